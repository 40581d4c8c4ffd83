// Linear layers in float32: packed weights, and a product whose bias, activation, gate and residual
// are applied while a block of the result is still in the first cache.
#include "kernels/lanes.hpp"
#include "kernels/math.hpp"
#include "kernels/product.hpp"

namespace rayvec::RAYVEC_SET {

namespace {

// A finished block of `rows` sums, and where it goes: `cols` columns from `out` on.
struct Block {
    const float* sums;  // (rows, PANEL)
    std::int64_t rows;
    std::int64_t cols;
    const float* bias;      // (cols), or null
    const float* gate_bias;  // (cols), or null: of the half that is not activated
    const float* residual;  // (rows, *) at the same place as out, or null
    float* out;
    std::int64_t stride;  // of residual and out
};

template <Activation act>
RAYVEC_INLINE void finish_vector(const Block& block, std::int64_t row, std::int64_t col) {
    const std::int64_t left = block.cols - col;
    Vec y = load(block.sums + row * PANEL + col);
    if (block.bias != nullptr) {
        y = add(y, load_left(block.bias + col, left));
    }
    y = activate<act>(y);
    if (block.residual != nullptr) {
        y = add(y, load_left(block.residual + row * block.stride + col, left));
    }
    store_left(block.out + row * block.stride + col, y, left);
}

template <Activation act>
[[gnu::noinline]] void finish(const Block& block) {
    for (std::int64_t row = 0; row < block.rows; ++row) {
        finish_vector<act>(block, row, 0);
        finish_vector<act>(block, row, LANES);
    }
}

// The left half of the panel is activated and multiplied by the right half.
template <Activation act>
[[gnu::noinline]] void finish_gated(const Block& block) {
    for (std::int64_t row = 0; row < block.rows; ++row) {
        Vec value = load(block.sums + row * PANEL);
        Vec factor = load(block.sums + row * PANEL + LANES);
        if (block.bias != nullptr) {
            value = add(value, load_left(block.bias, block.cols));
            factor = add(factor, load_left(block.gate_bias, block.cols));
        }
        const Vec y = mul(activate<act>(value), factor);
        store_left(block.out + row * block.stride, y, block.cols);
    }
}

using Finish = void(const Block&);

// The finishing function of an activation, in the order of the enumeration.
constexpr Finish* FINISH[] = {
    finish<Activation::none>,       finish<Activation::gelu>, finish<Activation::gelu_tanh>,
    finish<Activation::quick_gelu>, finish<Activation::relu>, finish<Activation::silu>,
    finish<Activation::tanh>,
};
constexpr Finish* FINISH_GATED[] = {
    finish_gated<Activation::none>,       finish_gated<Activation::gelu>,
    finish_gated<Activation::gelu_tanh>,  finish_gated<Activation::quick_gelu>,
    finish_gated<Activation::relu>,       finish_gated<Activation::silu>,
    finish_gated<Activation::tanh>,
};

// Panel by panel, so that a panel of the weight stays in cache while the rows of x pass it.
void product(
    const LinearInput& in,
    const float* panels,
    std::int64_t panel_cols,
    Finish* finish_block,
    float* out) {
    alignas(64) float sums[BLOCK_ROWS * PANEL];
    for (std::int64_t col = 0; col < in.cols; col += panel_cols) {
        for (std::int64_t row = 0; row < in.rows; row += BLOCK_ROWS) {
            const std::int64_t rows = least(BLOCK_ROWS, in.rows - row);
            block_product(
                rows, in.x + row * in.depth, in.depth, panels, PANEL, in.depth, sums, PANEL);
            const std::int64_t place = row * in.cols + col;
            finish_block(Block{
                .sums = sums,
                .rows = rows,
                .cols = least(panel_cols, in.cols - col),
                .bias = in.bias == nullptr ? nullptr : in.bias + col,
                .gate_bias = in.bias == nullptr ? nullptr : in.bias + in.cols + col,
                .residual = in.residual == nullptr ? nullptr : in.residual + place,
                .out = out + place,
                .stride = in.cols,
            });
        }
        panels += in.depth * PANEL;
    }
}

// One vector's width of columns of the weight, transposed, zeros beyond the last row.
void pack_columns(
    const float* weight,
    std::int64_t rows,
    std::int64_t depth,
    float* panel) {
    for (std::int64_t k = 0; k < depth; ++k) {
        for (std::int64_t n = 0; n < LANES; ++n) {
            panel[k * PANEL + n] = n < rows ? weight[n * depth + k] : 0.0f;
        }
    }
}

}  // namespace

std::int64_t packed_size(std::int64_t rows, std::int64_t depth, bool gated) {
    const std::int64_t cols = gated ? LANES : PANEL;
    const std::int64_t outputs = gated ? rows / 2 : rows;
    return (outputs + cols - 1) / cols * PANEL * depth;
}

void pack_linear(
    const float* weight,
    std::int64_t rows,
    std::int64_t depth,
    bool gated,
    float* packed) {
    const std::int64_t cols = gated ? LANES : PANEL;
    const std::int64_t outputs = gated ? rows / 2 : rows;
    const std::int64_t second = gated ? outputs : LANES;  // the row that the right half starts with
    for (std::int64_t row = 0; row < outputs; row += cols) {
        const std::int64_t last = gated ? rows : outputs;
        pack_columns(weight + row * depth, outputs - row, depth, packed);
        pack_columns(
            weight + (row + second) * depth, last - row - second, depth, packed + LANES);
        packed += depth * PANEL;
    }
}

void linear(const LinearInput& in, const float* packed, Activation act, float* out) {
    product(in, packed, PANEL, FINISH[static_cast<int>(act)], out);
}

void gated_linear(const LinearInput& in, const float* packed, Activation act, float* out) {
    product(in, packed, LANES, FINISH_GATED[static_cast<int>(act)], out);
}

}  // namespace rayvec::RAYVEC_SET
