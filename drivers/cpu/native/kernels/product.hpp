// The inner loop of every product: a few rows of a times a panel of columns of b, in registers.
#pragma once

#include "vec.hpp"

namespace rayvec::RAYVEC_SET {

// A panel is two vectors wide. So many rows that the sums, one vector of a and two of b fill the
// registers: 32 of them with AVX-512, else 16.
constexpr std::int64_t PANEL = 2 * LANES;
constexpr int BLOCK_ROWS = LANES == 16 ? 14 : 6;

// So many products are added up in registers before they join the sum in memory: a long row then
// rounds like sqrt(depth / 256) such sums, not like sqrt(depth) single ones.
constexpr std::int64_t DEPTH_BLOCK = 256;

// sums = a @ b: a (rows, depth), its rows `a_stride` apart; b (depth, PANEL), its rows `b_stride`
// apart; sums (rows, PANEL), its rows `sums_stride` apart. Each sum adds its products in the order
// of the depth, whatever the number of rows: a row's result does not depend on the rows beside it.
template <int rows>
RAYVEC_INLINE void product_of_rows(
    const float* a,
    std::int64_t a_stride,
    const float* b,
    std::int64_t b_stride,
    std::int64_t depth,
    float* sums,
    std::int64_t sums_stride) {
    std::int64_t k = 0;
    do {
        const std::int64_t end = depth - k > DEPTH_BLOCK ? k + DEPTH_BLOCK : depth;
        const bool first = k == 0;
        Vec left[rows], right[rows];
#pragma GCC unroll 16
        for (int i = 0; i < rows; ++i) {
            left[i] = right[i] = zero();
        }
        for (; k < end; ++k) {
            const Vec b_left = load(b + k * b_stride);
            const Vec b_right = load(b + k * b_stride + LANES);
#pragma GCC unroll 16
            for (int i = 0; i < rows; ++i) {
                const Vec x = broadcast(a[i * a_stride + k]);
                left[i] = mul_add(x, b_left, left[i]);
                right[i] = mul_add(x, b_right, right[i]);
            }
        }
#pragma GCC unroll 16
        for (int i = 0; i < rows; ++i) {
            float* to = sums + i * sums_stride;
            store(to, first ? left[i] : add(load(to), left[i]));
            store(to + LANES, first ? right[i] : add(load(to + LANES), right[i]));
        }
    } while (k < depth);
}

template <int rows>
[[gnu::noinline]] static void product_for(
    const float* a,
    std::int64_t a_stride,
    const float* b,
    std::int64_t b_stride,
    std::int64_t depth,
    float* sums,
    std::int64_t sums_stride) {
    product_of_rows<rows>(a, a_stride, b, b_stride, depth, sums, sums_stride);
}

// product_of_rows for 1 to BLOCK_ROWS rows.
template <int most = BLOCK_ROWS>
RAYVEC_INLINE void block_product(
    std::int64_t rows,
    const float* a,
    std::int64_t a_stride,
    const float* b,
    std::int64_t b_stride,
    std::int64_t depth,
    float* sums,
    std::int64_t sums_stride) {
    if (rows == most) {
        product_for<most>(a, a_stride, b, b_stride, depth, sums, sums_stride);
    } else if constexpr (most > 1) {
        block_product<most - 1>(rows, a, a_stride, b, b_stride, depth, sums, sums_stride);
    }
}

}  // namespace rayvec::RAYVEC_SET
