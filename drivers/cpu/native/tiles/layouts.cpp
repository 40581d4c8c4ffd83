// From rows to the layouts of tiles and back.
#include "tiles/bf16_vec.hpp"
#include "tiles/layout.hpp"

namespace rayvec::RAYVEC_SET {

namespace {

// 16 rows of a weight, 32 of the depth, to the pairs of one tile: (16 rows, 32) -> (16, 16, 2).
void pack_tile(const float* weight, std::int64_t depth, Bf16* tile) {
    alignas(64) Bf16 rows[STRIP][TILE_WIDTH];
    Vec pairs[STRIP];
    for (int row = 0; row < STRIP; ++row) {
        store_bf16(rows[row], load(weight + row * depth), load(weight + row * depth + LANES));
        pairs[row] = load(reinterpret_cast<const float*>(rows[row]));
    }
    transpose(pairs);
    for (int pair = 0; pair < STRIP; ++pair) {
        store(reinterpret_cast<float*>(tile + pair * TILE_WIDTH), pairs[pair]);
    }
}

}  // namespace

void pack_tiles(
    const float* weight, std::int64_t rows, std::int64_t depth, bool gated, Bf16* panels) {
    const std::int64_t step = gated ? STRIP : 2 * STRIP;  // rows from a panel to the next
    const std::int64_t right = gated ? rows / 2 : STRIP;  // from a panel's left to its right half
    for (std::int64_t panel = 0; panel < rows / TILE_BLOCK; ++panel) {
        const float* left = weight + panel * step * depth;
        for (std::int64_t k = 0; k < depth; k += TILE_WIDTH, panels += PANEL_STEP) {
            pack_tile(left + k, depth, panels);
            pack_tile(left + right * depth + k, depth, panels + TILE_VALUES);
        }
    }
}

void to_tiles(const float* rows, std::int64_t tokens, std::int64_t cols, Bf16* tiles) {
    for (std::int64_t row = 0; row < tokens; ++row) {
        const float* from = rows + row * cols;
        Bf16* to = tile_row(tiles, row, cols);
        for (std::int64_t col = 0; col < cols; col += TILE_WIDTH, to += TILE_VALUES) {
            store_bf16(to, load(from + col), load(from + col + LANES));
        }
    }
    clear_padding(tiles, tokens, cols);
}

void to_rows(const Bf16* tiles, std::int64_t tokens, std::int64_t cols, float* rows) {
    for (std::int64_t row = 0; row < tokens; ++row) {
        const Bf16* from = tile_row(tiles, row, cols);
        float* to = rows + row * cols;
        for (std::int64_t col = 0; col < cols; col += TILE_WIDTH, from += TILE_VALUES) {
            store(to + col, load_bf16(from));
            store(to + col + LANES, load_bf16(from + LANES));
        }
    }
}

}  // namespace rayvec::RAYVEC_SET
