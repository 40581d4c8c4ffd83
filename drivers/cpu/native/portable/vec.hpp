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
RAYVEC_INLINE Vec absolute(Vec x) { return x < 0.0f ? -x : x; }

// Adding 1.5 * 2^23 leaves no bits below the point; |x| < 2^22.
RAYVEC_INLINE Vec nearest_integer(Vec x) {
    const Vec shift = broadcast(12582912.0f);
    return (x + shift) - shift;
}

// x * 2 ^ n for integral n from -252 to 254: in two steps, each a power that is a normal number.
RAYVEC_INLINE Vec times_power_of_2(Vec x, Vec n) {
    typedef std::int32_t Ints __attribute__((vector_size(RAYVEC_LANES * sizeof(std::int32_t))));
    const Ints whole = __builtin_convertvector(n, Ints);
    const Ints half = whole >> 1;
    const Ints first = (half + 127) << 23;
    const Ints second = (whole - half + 127) << 23;
    return x * __builtin_bit_cast(Vec, first) * __builtin_bit_cast(Vec, second);
}

// a < b ? x : y, lane by lane
RAYVEC_INLINE Vec where_less(Vec a, Vec b, Vec x, Vec y) { return a < b ? x : y; }

// The first `count` lanes, 0 <= count <= LANES; the others are zero, or left as they are.
RAYVEC_INLINE Vec load_first(const float* from, std::int64_t count) {
    Vec x{};
    std::memcpy(&x, from, static_cast<std::size_t>(count) * sizeof(float));
    return x;
}
RAYVEC_INLINE void store_first(float* to, Vec x, std::int64_t count) {
    std::memcpy(to, &x, static_cast<std::size_t>(count) * sizeof(float));
}

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

// rows[i][j] becomes rows[j][i].
RAYVEC_INLINE void transpose(Vec (&rows)[LANES]) {
    for (std::int64_t i = 0; i < LANES; ++i) {
        for (std::int64_t j = 0; j < i; ++j) {
            const float x = rows[i][j];
            rows[i][j] = rows[j][i];
            rows[j][i] = x;
        }
    }
}

}  // namespace rayvec::RAYVEC_SET
