// A plain product on tiles, for tests of the tiles themselves.
#include "tiles/tiles.hpp"

namespace rayvec::RAYVEC_SET {

namespace {

constexpr std::int64_t TILE_DEPTH = 32;  // bf16 values in one row of a tile
constexpr std::int64_t TILE_COLS = 16;   // float32 values in one row of a tile
enum : int { SUM, LEFT, RIGHT };

// `rows` rows of the left factor and of the sum; a full right factor.
TileConfig tiles_of(std::int64_t rows) {
    TileConfig config = full_tiles();
    config.rows[SUM] = config.rows[LEFT] = static_cast<std::uint8_t>(rows);
    return config;
}

}  // namespace

void tile_matmul(
    const Bf16* a,
    const Bf16* b,
    float* c,
    std::int64_t rows,
    std::int64_t depth,
    std::int64_t cols) {
    for (std::int64_t m = 0; m < rows; m += TILE_ROWS) {
        const std::int64_t left = rows - m;
        const TileScope scope(tiles_of(left < TILE_ROWS ? left : TILE_ROWS));
        for (std::int64_t n = 0; n < cols; n += TILE_COLS) {
            tile_load_sums<SUM>(c + m * cols + n, cols * 4);
            for (std::int64_t k = 0; k < depth; k += TILE_DEPTH) {
                tile_stream_load<LEFT>(a + m * depth + k, depth * 2);
                tile_load<RIGHT>(b + k * cols + n * 2, cols * 4);
                tile_dot_bf16<SUM, LEFT, RIGHT>();
            }
            tile_store<SUM>(c + m * cols + n, cols * 4);
        }
    }
}

}  // namespace rayvec::RAYVEC_SET
