// What becomes of a finished row in float32: a residual and a norm, then a row and tiles.
#pragma once

#include "tiles/bf16_vec.hpp"
#include "tiles/layout.hpp"

namespace rayvec::RAYVEC_SET {

// A row of the result while it is worked on.
struct FinishedRow {
    const float* residual;  // (cols) or null
    float* row;             // (cols)
    Bf16* tiles;            // columns 0 to 31, or null
};

RAYVEC_INLINE void store_row(const FinishedRow& to, std::int64_t col, Vec first, Vec second) {
    store(to.row + col, first);
    store(to.row + col + LANES, second);
    if (to.tiles != nullptr) {
        store_bf16(to.tiles + col / TILE_WIDTH * TILE_VALUES, first, second);
    }
}

RAYVEC_INLINE Vec plus_residual(Vec x, const float* residual, std::int64_t col) {
    return residual == nullptr ? x : add(x, load(residual + col));
}

// value(col): the sums of the 16 columns from `col` on. A layer norm's mean is corrected by the
// mean of what is left once it is taken off: nothing cancels, and equal values give the bias.
template <typename Value>
RAYVEC_INLINE void finish_row(
    const Value& value,
    const Norm* norm,
    bool sandwich,
    std::int64_t cols,
    float* buffer,
    const FinishedRow& to) {
    const float* before = norm != nullptr && sandwich ? nullptr : to.residual;
    const float* after = norm != nullptr && sandwich ? to.residual : nullptr;
    if (norm == nullptr) {
        for (std::int64_t col = 0; col < cols; col += TILE_WIDTH) {
            const Vec first = plus_residual(value(col), before, col);
            store_row(to, col, first, plus_residual(value(col + LANES), before, col + LANES));
        }
        return;
    }
    const auto each_pair = [&](const auto& visit) {
        for (std::int64_t col = 0; col < cols; col += TILE_WIDTH) {
            visit(buffer + col, load(buffer + col), load(buffer + col + LANES));
        }
    };
    Vec sum = zero(), other_sum = zero();
    for (std::int64_t col = 0; col < cols; col += TILE_WIDTH) {
        const Vec first = plus_residual(value(col), before, col);
        const Vec second = plus_residual(value(col + LANES), before, col + LANES);
        store(buffer + col, first);
        store(buffer + col + LANES, second);
        sum = add(sum, first);
        other_sum = add(other_sum, second);
    }
    const float count = static_cast<float>(cols);
    float mean = norm->centred ? sum_of_lanes(add(sum, other_sum)) / count : 0.0f;
    Vec rest = zero(), other_rest = zero(), squares = zero(), other_squares = zero();
    each_pair([&](float*, Vec first, Vec second) {
        const Vec a = sub(first, broadcast(mean)), b = sub(second, broadcast(mean));
        rest = add(rest, a);
        other_rest = add(other_rest, b);
        squares = mul_add(a, a, squares);
        other_squares = mul_add(b, b, other_squares);
    });
    float variance = sum_of_lanes(add(squares, other_squares)) / count;
    float off = 0.0f;
    if (norm->centred) {
        off = sum_of_lanes(add(rest, other_rest)) / count;
        variance -= off * off;
        variance = variance < 0.0f ? 0.0f : variance;
    }
    const Vec scale = broadcast(1.0f / __builtin_sqrtf(variance + norm->eps));
    const auto normed = [&](std::int64_t col, Vec x) {
        x = sub(sub(x, broadcast(mean)), broadcast(off));
        x = mul(mul(x, scale), load(norm->weight + col));
        return norm->bias == nullptr ? x : add(x, load(norm->bias + col));
    };
    each_pair([&](const float* at, Vec first, Vec second) {
        const std::int64_t col = at - buffer;
        const Vec left = plus_residual(normed(col, first), after, col);
        const Vec right = plus_residual(normed(col + LANES, second), after, col + LANES);
        store_row(to, col, left, right);
    });
}

// The place of one row of a finish.
RAYVEC_INLINE FinishedRow row_of(const RowFinish& finish, std::int64_t row, std::int64_t cols) {
    return {
        .residual = finish.residual == nullptr ? nullptr : finish.residual + row * cols,
        .row = finish.rows + row * cols,
        .tiles = finish.tiles == nullptr ? nullptr : tile_row(finish.tiles, row, cols),
    };
}

RAYVEC_INLINE void finish_padding(const RowFinish& finish, std::int64_t tokens, std::int64_t cols) {
    if (finish.tiles != nullptr) {
        clear_padding(finish.tiles, tokens, cols);
    }
}

}  // namespace rayvec::RAYVEC_SET
