// Tiles: eight registers of up to 16 rows of 64 bytes, and the product of two of them.
//
// The same functions three times: as AMX's instructions; over AVX512_BF16, for processors that have
// no tiles (RAYVEC_VECTOR_TILES); and as plain code with AMX's results bit by bit, for machines and
// sanitizers that have neither (RAYVEC_EMULATED_TILES).
// Which register a function means is a template argument: `tile_load<4>(from, 64)`. What a register
// was loaded from may be read as late as at its product, so it stays as it is until then.
//
// A thread loads a configuration before it uses tiles and releases them after (TileScope).
#pragma once

#include "inline.hpp"
#include "kernels.hpp"

namespace rayvec::RAYVEC_SET {

constexpr int TILES = 8;
constexpr int TILE_ROWS = 16;
constexpr int TILE_ROW_BYTES = 64;  // 16 float32 values, or 32 of bf16

// What LDTILECFG reads: the shape of each register.
struct alignas(64) TileConfig {
    std::uint8_t palette = 1;
    std::uint8_t start_row = 0;
    std::uint8_t reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// All eight registers full: 16 rows of 64 bytes.
RAYVEC_INLINE TileConfig full_tiles() {
    TileConfig config;
    for (int tile = 0; tile < TILES; ++tile) {
        config.row_bytes[tile] = TILE_ROW_BYTES;
        config.rows[tile] = TILE_ROWS;
    }
    return config;
}

}  // namespace rayvec::RAYVEC_SET

#if defined(RAYVEC_EMULATED_TILES)
#include "tiles/tiles_emulated.hpp"
#elif defined(RAYVEC_VECTOR_TILES)
#include "tiles/tiles_avx512.hpp"
#else
#include "tiles/tiles_amx.hpp"
#endif

namespace rayvec::RAYVEC_SET {

// The tiles of this thread, configured for as long as the object lives.
class TileScope {
public:
    explicit TileScope(const TileConfig& config) { tile_load_config(config, registers); }
    ~TileScope() { tile_release(); }
    TileScope(const TileScope&) = delete;
    TileScope& operator=(const TileScope&) = delete;

private:
    TileRegisters registers;
};

}  // namespace rayvec::RAYVEC_SET
