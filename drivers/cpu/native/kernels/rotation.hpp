// The rotation of a head by position.
#pragma once

#include "kernels/lanes.hpp"

namespace rayvec::RAYVEC_SET {

// Values i and i + pairs of a head, for each pair i, turned by the angle of cos[i] and sin[i].
RAYVEC_INLINE void rotate(float* head, const float* cos, const float* sin, std::int64_t pairs) {
    each_vector(pairs, [&](std::int64_t d, std::int64_t left) {
        const Vec first = load_left(head + d, left), second = load_left(head + pairs + d, left);
        const Vec c = load_left(cos + d, left), s = load_left(sin + d, left);
        store_left(head + d, sub(mul(first, c), mul(second, s)), left);
        store_left(head + pairs + d, mul_add(second, c, mul(first, s)), left);
    });
}

}  // namespace rayvec::RAYVEC_SET
