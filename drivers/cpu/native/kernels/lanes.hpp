// Rows whose length no vector divides: the last vector of a row is loaded and stored in part.
#pragma once

#include "vec.hpp"

namespace rayvec::RAYVEC_SET {

constexpr std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
constexpr std::int64_t most(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

// A vector of which `left` values are there; the others are zero. None is read where left <= 0.
RAYVEC_INLINE Vec load_left(const float* from, std::int64_t left) {
    return left >= LANES ? load(from) : load_first(from, most(0, left));
}

// Stores as many lanes as there is room for, and none where left <= 0.
RAYVEC_INLINE void store_left(float* to, Vec x, std::int64_t left) {
    if (left >= LANES) {
        store(to, x);
    } else {
        store_first(to, x, most(0, left));
    }
}

// Calls f(column, left) for each vector of a row of `cols` values, left = cols - column.
template <typename F>
RAYVEC_INLINE void each_vector(std::int64_t cols, const F& f) {
    for (std::int64_t col = 0; col < cols; col += LANES) {
        f(col, cols - col);
    }
}

}  // namespace rayvec::RAYVEC_SET
