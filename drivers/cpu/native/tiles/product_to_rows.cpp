// Products whose results stay in float32 until whole rows are there for a residual and a norm: a
// linear layer, and two of them with an activation between.
#include "tiles/finish.hpp"
#include "tiles/product.hpp"

namespace rayvec::RAYVEC_SET {

namespace {

// Steps of the inner layer's width at a time: 384 columns of it, for all rows at hand, stay in the
// second cache between the two layers.
constexpr std::int64_t INNER_STEPS = 12;

// Bytes of the second cache for the rows at hand: x, their sums and the inner layer's block.
constexpr std::int64_t CACHE_BYTES = 1600 * 1024;

// Rows at a time of a product with so many columns.
std::int64_t rows_at_once(std::int64_t tokens, std::int64_t cols) {
    const std::int64_t bytes_of_row = cols * 6 + INNER_STEPS * TILE_WIDTH * 2;
    const std::int64_t rows = CACHE_BYTES / bytes_of_row / TILE_BLOCK * TILE_BLOCK;
    return least(padded_rows(tokens), most(2 * TILE_BLOCK, least(MOST_ROWS, rows)));
}

std::int64_t sums_size(std::int64_t tokens, std::int64_t cols) {
    return rows_at_once(tokens, cols) * cols;
}

// Rows [first, first + rows) of the result, from their sums (rows / 32, cols / 32, 32, 32).
void finish_sums(
    const float* sums,
    const float* bias,
    const RowFinish& finish,
    std::int64_t first,
    std::int64_t rows,
    std::int64_t cols,
    float* buffer) {
    for (std::int64_t row = 0; row < rows; ++row) {
        const float* of_row = sums + row / TILE_BLOCK * TILE_BLOCK * cols +
                              row % TILE_BLOCK * TILE_BLOCK;
        const auto value = [&](std::int64_t col) {
            const Vec x = load(of_row + col / TILE_BLOCK * BLOCK_SUMS + col % TILE_BLOCK);
            return bias == nullptr ? x : add(x, load(bias + col));
        };
        const FinishedRow to = row_of(finish, first + row, cols);
        finish_row(value, finish.norm, finish.sandwich, cols, buffer, to);
    }
}

}  // namespace

void accumulate(
    const DepthPart& part, std::int64_t blocks, std::int64_t panels, bool fresh, float* sums) {
    const std::int64_t strip = part.x_steps * TILE_VALUES;
    for (std::int64_t p = 0; p < panels; ++p) {
        const Bf16* panel = part.panels + p * part.panel_steps * PANEL_STEP;
        const Bf16* ahead = panel + part.panel_steps * PANEL_STEP;
        for (std::int64_t m = 0; m < blocks; ++m) {
            const Bf16* top = part.x + 2 * m * strip;
            float* block = sums + (m * panels + p) * BLOCK_SUMS;
            fresh ? zero_sums() : load_sums(block);
            Factors at{top, top + strip, panel, ahead};
            multiply_steps(at, part.steps);
            ahead = at.ahead;
            store_sums(block);
        }
    }
}

std::int64_t linear_rows_scratch(std::int64_t tokens, std::int64_t cols) {
    return sums_size(tokens, cols) + cols;
}

void linear_rows(
    const TileLayer& layer,
    const Bf16* x,
    std::int64_t tokens,
    const RowFinish& finish,
    float* scratch) {
    const TileScope scope(full_tiles());
    const std::int64_t cols = layer.outputs, at_once = rows_at_once(tokens, cols);
    const std::int64_t steps = layer.depth / TILE_WIDTH, part = part_of(steps);
    float* buffer = scratch + sums_size(tokens, cols);
    for (std::int64_t row = 0; row < tokens; row += at_once) {
        const std::int64_t rows = least(at_once, tokens - row);
        for (std::int64_t done = 0; done < steps; done += part) {
            const DepthPart depth{
                .x = x + row * layer.depth + done * TILE_VALUES,
                .x_steps = steps,
                .panels = layer.panels + done * PANEL_STEP,
                .panel_steps = steps,
                .steps = least(part, steps - done),
            };
            accumulate(
                depth, padded_rows(rows) / TILE_BLOCK, cols / TILE_BLOCK, done == 0, scratch);
        }
        finish_sums(scratch, layer.bias, finish, row, rows, cols, buffer);
    }
    finish_padding(finish, tokens, cols);
}

std::int64_t ffn_scratch(std::int64_t tokens, std::int64_t cols) {
    const std::int64_t inner_values = rows_at_once(tokens, cols) * INNER_STEPS * TILE_WIDTH;
    return sums_size(tokens, cols) + inner_values / 2 + cols;
}

void ffn(
    const TileLayer& first,
    const TileLayer& second,
    const Bf16* x,
    std::int64_t tokens,
    const RowFinish& finish,
    float* scratch) {
    const TileScope scope(full_tiles());
    const std::int64_t cols = second.outputs, at_once = rows_at_once(tokens, cols);
    const std::int64_t inner_steps = second.depth / TILE_WIDTH;
    const std::int64_t panels_of_step = first.gated ? 2 : 1;
    auto* inner = reinterpret_cast<Bf16*>(scratch + sums_size(tokens, cols));
    float* buffer = scratch + ffn_scratch(tokens, cols) - cols;
    for (std::int64_t row = 0; row < tokens; row += at_once) {
        const std::int64_t rows = least(at_once, tokens - row);
        const std::int64_t blocks = padded_rows(rows) / TILE_BLOCK;
        for (std::int64_t done = 0; done < inner_steps; done += INNER_STEPS) {
            const std::int64_t steps = least(INNER_STEPS, inner_steps - done);
            multiply_to_bf16(
                panels_of(first, done * panels_of_step, steps * panels_of_step),
                x + row * first.depth, blocks,
                tiles_target(inner, steps * TILE_WIDTH, first.gated));
            const DepthPart depth{
                .x = inner,
                .x_steps = steps,
                .panels = second.panels + done * PANEL_STEP,
                .panel_steps = inner_steps,
                .steps = steps,
            };
            accumulate(depth, blocks, cols / TILE_BLOCK, done == 0, scratch);
        }
        finish_sums(scratch, second.bias, finish, row, rows, cols, buffer);
    }
    finish_padding(finish, tokens, cols);
}

}  // namespace rayvec::RAYVEC_SET
