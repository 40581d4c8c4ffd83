// Tiles: eight registers of up to 16 rows of 64 bytes, and the product of two of them.
//
// The same functions twice: as instructions of the processor, and, with RAYVEC_EMULATED_TILES,
// as plain code with the same results bit by bit, for machines and sanitizers that have no tiles.
// Which register a function means is a template argument: `tile_load<4>(from, 64)`.
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
#include "amx/tiles_emulated.hpp"
#else
#include "amx/tiles_native.hpp"
#endif

namespace rayvec::RAYVEC_SET {

// The tiles of this thread, configured for as long as the object lives.
class TileScope {
public:
    explicit TileScope(const TileConfig& config) { tile_load_config(config); }
    ~TileScope() { tile_release(); }
    TileScope(const TileScope&) = delete;
    TileScope& operator=(const TileScope&) = delete;
};

}  // namespace rayvec::RAYVEC_SET
