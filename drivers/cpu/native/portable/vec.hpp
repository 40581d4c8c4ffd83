// Vec: RAYVEC_LANES float32 values in the compiler's own vector type, on any machine. The float32
// kernels are built with 4, which is one SSE or NEON register, and the emulated tiles with 16, as
// AVX-512 has. The three vec.hpp have the same functions.
#pragma once

#include <cstring>

#include "inline.hpp"
#include "kernels.hpp"

namespace rayvec::RAYVEC_SET {

constexpr std::int64_t LANES = RAYVEC_LANES;
typedef float Vec __attribute__((vector_size(RAYVEC_LANES * sizeof(float))));

RAYVEC_INLINE Vec zero() { return Vec{}; }
RAYVEC_INLINE Vec broadcast(float x) { return Vec{} + x; }

RAYVEC_INLINE Vec load(const float* from) {
    Vec x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

RAYVEC_INLINE void store(float* to, Vec x) { std::memcpy(to, &x, sizeof x); }
RAYVEC_INLINE Vec add(Vec a, Vec b) { return a + b; }
RAYVEC_INLINE Vec sub(Vec a, Vec b) { return a - b; }
RAYVEC_INLINE Vec mul(Vec a, Vec b) { return a * b; }
RAYVEC_INLINE Vec div(Vec a, Vec b) { return a / b; }
RAYVEC_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }  // b where either is NaN, as x86 does
RAYVEC_INLINE Vec min(Vec a, Vec b) { return a < b ? a : b; }
// a * b + c, rounded once or twice as the machine has it
RAYVEC_INLINE Vec mul_add(Vec a, Vec b, Vec c) { return a * b + c; }

RAYVEC_INLINE float sum_of_lanes(Vec x) {
    float total = x[0];
    for (std::int64_t lane = 1; lane < LANES; ++lane) {
        total += x[lane];
    }
    return total;
}

RAYVEC_INLINE float max_of_lanes(Vec x) {
    float largest = x[0];
    for (std::int64_t lane = 1; lane < LANES; ++lane) {
        largest = largest > x[lane] ? largest : x[lane];
    }
    return largest;
}

}  // namespace rayvec::RAYVEC_SET
