// The inner loop of every product on tiles, and the products that are made of it.
//
// A block of the result is 32 x 32: four tiles of sums, from two tiles of x and two of the weight
// at each step of 32 along the depth.
#pragma once

#include "tiles/layout.hpp"
#include "tiles/tiles.hpp"

namespace rayvec::RAYVEC_SET {

// What each register holds.
enum : int { TOP_LEFT, TOP_RIGHT, BOTTOM_LEFT, BOTTOM_RIGHT, TOP, BOTTOM, LEFT, RIGHT };

// Steps of the depth at a time: of so many, a panel of the weight (48 KiB) and two strips of x go
// through the first cache. A deeper product is cut into equal parts.
constexpr std::int64_t MOST_STEPS = 24;

RAYVEC_INLINE std::int64_t part_of(std::int64_t steps) {
    return quotient_up(steps, quotient_up(steps, MOST_STEPS));
}

// Rows of x at a time, so that they stay in the second cache while all panels pass.
constexpr std::int64_t MOST_ROWS = 512;

RAYVEC_INLINE void zero_sums() {
    tile_zero<TOP_LEFT>();
    tile_zero<TOP_RIGHT>();
    tile_zero<BOTTOM_LEFT>();
    tile_zero<BOTTOM_RIGHT>();
}

RAYVEC_INLINE void load_sums(const float* sums) {
    tile_load_sums<TOP_LEFT>(sums, 128);
    tile_load_sums<TOP_RIGHT>(sums + 16, 128);
    tile_load_sums<BOTTOM_LEFT>(sums + 512, 128);
    tile_load_sums<BOTTOM_RIGHT>(sums + 528, 128);
}

RAYVEC_INLINE void store_sums(float* sums) {
    tile_store<TOP_LEFT>(sums, 128);
    tile_store<TOP_RIGHT>(sums + 16, 128);
    tile_store<BOTTOM_LEFT>(sums + 512, 128);
    tile_store<BOTTOM_RIGHT>(sums + 528, 128);
}

// Where a block's factors lie, from one step of the depth on.
struct Factors {
    const Bf16* top;     // rows 0 to 15 of x
    const Bf16* bottom;  // rows 16 to 31
    const Bf16* panel;
    const Bf16* ahead;  // what follows the panel: brought into the second cache meanwhile
};

// Lines of a following panel to fetch at each step: of 11 blocks of rows, they fetch it whole.
constexpr int AHEAD_LINES = 3;

// Adds one step of the depth to the sums, and moves on to the next.
RAYVEC_INLINE void multiply_step(Factors& at) {
    tile_stream_load<TOP>(at.top, 64);
    tile_load<LEFT>(at.panel, 64);
    tile_dot_bf16<TOP_LEFT, TOP, LEFT>();
    tile_load<RIGHT>(at.panel + TILE_VALUES, 64);
    tile_dot_bf16<TOP_RIGHT, TOP, RIGHT>();
    tile_stream_load<BOTTOM>(at.bottom, 64);
    tile_dot_bf16<BOTTOM_LEFT, BOTTOM, LEFT>();
    tile_dot_bf16<BOTTOM_RIGHT, BOTTOM, RIGHT>();
#pragma GCC unroll 4
    for (int line = 0; line < AHEAD_LINES; ++line) {
        __builtin_prefetch(at.ahead + line * 32, 0, 2);
    }
    at.top += TILE_VALUES;
    at.bottom += TILE_VALUES;
    at.panel += PANEL_STEP;
    at.ahead += AHEAD_LINES * 32;
}

// Adds so many steps.
RAYVEC_INLINE void multiply_steps(Factors& at, std::int64_t steps) {
#if defined(RAYVEC_VECTOR_TILES)
    constexpr std::ptrdiff_t along = TILE_VALUES * sizeof(Bf16), of_panel = 2 * along;
    dot_along<TOP_LEFT>(at.top, at.panel, steps, along, of_panel);
    dot_along<TOP_RIGHT>(at.top, at.panel + TILE_VALUES, steps, along, of_panel);
    dot_along<BOTTOM_LEFT>(at.bottom, at.panel, steps, along, of_panel);
    dot_along<BOTTOM_RIGHT>(at.bottom, at.panel + TILE_VALUES, steps, along, of_panel);
    at.ahead += steps * AHEAD_LINES * 32;
#else
    for (std::int64_t k = 0; k < steps; ++k) {
        multiply_step(at);
    }
#endif
}

// ---- products; each runs within a TileScope of full tiles

// Where rows of bf16 results go. Panel p begins at p / group * group_stride + p % group *
// panel_stride, row r at r / 16 * strip_stride + r % 16 * row_stride.
struct Bf16Target {
    Bf16* to;
    std::int64_t row_stride;
    std::int64_t strip_stride;
    std::int64_t group;
    std::int64_t group_stride;
    std::int64_t panel_stride;
};

// Tiles of so many columns, for panels of 32 results or, gated, of 16.
RAYVEC_INLINE Bf16Target tiles_target(Bf16* tiles, std::int64_t cols, bool gated) {
    return {tiles, TILE_WIDTH, STRIP * cols, gated ? 2 : 1, TILE_VALUES, STRIP};
}

// Panels of a layer, from one on.
struct Panels {
    const Bf16* values;
    const float* bias;       // of the first panel's left columns, or null
    const float* right_bias;  // of its right ones
    std::int64_t bias_step;  // from panel to panel
    std::int64_t steps;      // of 32 of the depth
    std::int64_t count;
    Activation act;
    bool gated;
};

// `count` panels of a layer from `first` on.
RAYVEC_INLINE Panels panels_of(const TileLayer& layer, std::int64_t first, std::int64_t count) {
    const std::int64_t step = layer.gated ? STRIP : 2 * STRIP;
    const std::int64_t right = layer.gated ? layer.outputs / 2 : STRIP;
    const std::int64_t steps = layer.depth / TILE_WIDTH;
    const float* bias = layer.bias == nullptr ? nullptr : layer.bias + first * step;
    return {
        .values = layer.panels + first * steps * PANEL_STEP,
        .bias = bias,
        .right_bias = bias == nullptr ? nullptr : bias + right,
        .bias_step = step,
        .steps = steps,
        .count = count,
        .act = layer.act,
        .gated = layer.gated,
    };
}

// act(x @ panels + bias) for `blocks` blocks of rows of x, rounded to bf16.
void multiply_to_bf16(
    const Panels& panels, const Bf16* x, std::int64_t blocks, const Bf16Target& target);

// A part of a weight's depth: `steps` of it from the pointers on, of x and of the panels.
struct DepthPart {
    const Bf16* x;
    std::int64_t x_steps;  // of a whole strip of x
    const Bf16* panels;
    std::int64_t panel_steps;  // of a whole panel
    std::int64_t steps;
};

// sums (blocks, panels, 32, 32) += x @ panels over the part; where `fresh`, sums = x @ panels.
void accumulate(
    const DepthPart& part, std::int64_t blocks, std::int64_t panels, bool fresh, float* sums);

}  // namespace rayvec::RAYVEC_SET
