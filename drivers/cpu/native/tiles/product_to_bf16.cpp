// Products whose results are rounded to bf16 at once: the bias, the activation and the gate of a
// block are worked out while the tiles multiply the next one.
#include "tiles/activations.hpp"
#include "tiles/bf16_vec.hpp"
#include "tiles/product.hpp"

namespace rayvec::RAYVEC_SET {

namespace {

// What a block's rows need once its sums are stored.
struct Pending {
    const float* sums;  // (32, 32)
    Vec bias, right_bias;
    Bf16* top;  // row 0
    Bf16* bottom;  // row 16
};

template <Activation act, bool gated>
RAYVEC_INLINE void finish_row(const float* sums, const Pending& block, Bf16* to) {
    const Vec left = activate_coarse<act>(add(load(sums), block.bias));
    const Vec right = add(load(sums + LANES), block.right_bias);
    if constexpr (gated) {
        store_bf16(to, mul(left, right));
    } else {
        store_bf16(to, left, activate_coarse<act>(right));
    }
}

// Rows that are finished at each step of the next block: so many that 32 are done within the steps.
constexpr int MANY_ROWS = 4;
constexpr int FEW_ROWS = 2;
constexpr std::int64_t STEPS_FOR_FEW = TILE_BLOCK / FEW_ROWS;

template <Activation act, bool gated, int rows_each>
void multiply(const Panels& panels, const Bf16* x, std::int64_t blocks, const Bf16Target& target) {
    alignas(64) float sums[2][BLOCK_SUMS];
    alignas(64) float partial[MOST_ROWS / TILE_BLOCK][BLOCK_SUMS];
    const std::int64_t steps = panels.steps, strip = steps * TILE_VALUES;
    const std::int64_t part = part_of(steps), before_last = (steps - 1) / part * part;
    const std::int64_t row_stride = target.row_stride;
    Pending pending{nullptr, zero(), zero(), nullptr, nullptr};
    // Finishes rows [row, row + count) of the pending block.
    const auto finish_rows = [&](std::int64_t row, int count) {
        Bf16* to = row < STRIP ? pending.top : pending.bottom;
        to += row % STRIP * row_stride;
        const float* from = pending.sums + row * TILE_BLOCK;
#pragma GCC unroll 4
        for (int i = 0; i < count; ++i) {
            finish_row<act, gated>(from + i * TILE_BLOCK, pending, to + i * row_stride);
        }
    };
    int turn = 0;
    for (std::int64_t p = 0; p < panels.count; ++p) {
        const Bf16* panel = panels.values + p * steps * PANEL_STEP;
        for (std::int64_t done = 0; done < before_last; done += part) {
            const Bf16* ahead = panel + (done + part) * PANEL_STEP;
            for (std::int64_t m = 0; m < blocks; ++m) {
                const Bf16* top = x + 2 * m * strip + done * TILE_VALUES;
                done == 0 ? zero_sums() : load_sums(partial[m]);
                Factors at{top, top + strip, panel + done * PANEL_STEP, ahead};
                multiply_steps(at, part);
                ahead = at.ahead;
                store_sums(partial[m]);
            }
        }
        Vec bias = zero(), right_bias = zero();
        if (panels.bias != nullptr) {
            bias = load(panels.bias + p * panels.bias_step);
            right_bias = load(panels.right_bias + p * panels.bias_step);
        }
        Bf16* to = target.to + p / target.group * target.group_stride +
                   p % target.group * target.panel_stride;
        const Bf16* ahead = panel + steps * PANEL_STEP;
        for (std::int64_t m = 0; m < blocks; ++m) {
            const Bf16* top = x + 2 * m * strip + before_last * TILE_VALUES;
            before_last == 0 ? zero_sums() : load_sums(partial[m]);
            Factors at{top, top + strip, panel + before_last * PANEL_STEP, ahead};
            std::int64_t k = before_last, row = pending.sums == nullptr ? TILE_BLOCK : 0;
#if !defined(RAYVEC_VECTOR_TILES)
            for (; k < steps && row < TILE_BLOCK; ++k, row += rows_each) {
                multiply_step(at);
                finish_rows(row, rows_each);
            }
#endif
            multiply_steps(at, steps - k);
            for (; row < TILE_BLOCK; ++row) {
                finish_rows(row, 1);
            }
            ahead = at.ahead;
            store_sums(sums[turn]);
            Bf16* place = to + 2 * m * target.strip_stride;
            pending = {sums[turn], bias, right_bias, place, place + target.strip_stride};
            turn ^= 1;
        }
    }
    for (std::int64_t row = 0; row < TILE_BLOCK; ++row) {
        finish_rows(row, 1);
    }
}

using Multiply = void(const Panels&, const Bf16*, std::int64_t, const Bf16Target&);

template <Activation act>
constexpr Multiply* OF_ACTIVATION[2][2] = {
    {multiply<act, false, MANY_ROWS>, multiply<act, false, FEW_ROWS>},
    {multiply<act, true, MANY_ROWS>, multiply<act, true, FEW_ROWS>},
};

// The products of an activation, in the order of the enumeration; without a gate and with one; for
// a last part of few steps and of many.
constexpr Multiply* const (*PRODUCTS[])[2] = {
    OF_ACTIVATION<Activation::none>,       OF_ACTIVATION<Activation::gelu>,
    OF_ACTIVATION<Activation::gelu_tanh>,  OF_ACTIVATION<Activation::quick_gelu>,
    OF_ACTIVATION<Activation::relu>,       OF_ACTIVATION<Activation::silu>,
    OF_ACTIVATION<Activation::tanh>,
};

// All of a layer's panels over all rows of x, so many rows at a time.
void multiply_layer(
    const TileLayer& layer, const Bf16* x, std::int64_t tokens, const Bf16Target& target) {
    const TileScope scope(full_tiles());
    const Panels panels = panels_of(layer, 0, layer.outputs / TILE_BLOCK);
    const std::int64_t rows = padded_rows(tokens);
    for (std::int64_t row = 0; row < rows; row += MOST_ROWS) {
        Bf16Target from_row = target;
        from_row.to += row / STRIP * target.strip_stride;
        const std::int64_t blocks = least(MOST_ROWS, rows - row) / TILE_BLOCK;
        multiply_to_bf16(panels, x + row * layer.depth, blocks, from_row);
    }
}

}  // namespace

void multiply_to_bf16(
    const Panels& panels, const Bf16* x, std::int64_t blocks, const Bf16Target& target) {
    const std::int64_t part = part_of(panels.steps);
    const bool few = (panels.steps - 1) % part + 1 >= STEPS_FOR_FEW;
    PRODUCTS[static_cast<int>(panels.act)][panels.gated][few](panels, x, blocks, target);
}

void linear_tiles(const TileLayer& layer, const Bf16* x, std::int64_t tokens, Bf16* out) {
    multiply_layer(layer, x, tokens, tiles_target(out, width_of(layer), layer.gated));
}

void linear_heads(
    const TileLayer& layer,
    const Bf16* x,
    std::int64_t tokens,
    std::int64_t head_dim,
    Bf16* heads) {
    const Bf16Target target{
        .to = heads,
        .row_stride = head_dim,
        .strip_stride = STRIP * head_dim,
        .group = head_dim / TILE_BLOCK,
        .group_stride = padded_rows(tokens) * head_dim,
        .panel_stride = TILE_BLOCK,
    };
    multiply_layer(layer, x, tokens, target);
}

}  // namespace rayvec::RAYVEC_SET
