// Where values lie in the layouts of tile_kernels.hpp.
#pragma once

#include "kernels.hpp"
#include "kernels/lanes.hpp"

namespace rayvec::RAYVEC_SET {

constexpr std::int64_t STRIP = 16;         // rows of one tile
constexpr std::int64_t TILE_WIDTH = 32;    // bf16 values in one row of a tile
constexpr std::int64_t TILE_VALUES = 512;  // bf16 values of a tile
constexpr std::int64_t PANEL_STEP = 1024;  // of a panel, for 32 of the depth: two tiles
constexpr std::int64_t BLOCK_SUMS = 1024;  // float32 values of a block of sums, 32 x 32

constexpr std::int64_t quotient_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Columns 0 to 31 of a row of tokens in tiles; the next 32 lie TILE_VALUES further on.
template <typename Value>
RAYVEC_INLINE Value* tile_row(Value* tiles, std::int64_t row, std::int64_t cols) {
    return tiles + row / STRIP * STRIP * cols + row % STRIP * TILE_WIDTH;
}

// Columns of a layer's result.
RAYVEC_INLINE std::int64_t width_of(const TileLayer& layer) {
    return layer.gated ? layer.outputs / 2 : layer.outputs;
}

// The first row of a head: (padded_rows, head_dim).
RAYVEC_INLINE Bf16* head_rows(const Heads& heads, std::int64_t head) {
    return heads.values + head * padded_rows(heads.cu_seqlens[heads.sequences]) * heads.head_dim;
}

// Zeros in the rows after the last token.
RAYVEC_INLINE void clear_padding(Bf16* tiles, std::int64_t tokens, std::int64_t cols) {
    for (std::int64_t row = tokens; row < padded_rows(tokens); ++row) {
        Bf16* to = tile_row(tiles, row, cols);
        for (std::int64_t col = 0; col < cols; col += TILE_WIDTH, to += TILE_VALUES) {
            __builtin_memset(to, 0, TILE_WIDTH * sizeof(Bf16));
        }
    }
}

}  // namespace rayvec::RAYVEC_SET
