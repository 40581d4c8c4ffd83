// Vec: 16 float32 values in one AVX-512 register. The three vec.hpp have the same functions.
#pragma once

#include <immintrin.h>

#include "inline.hpp"
#include "kernels.hpp"

namespace rayvec::RAYVEC_SET {

using Vec = __m512;
constexpr std::int64_t LANES = 16;

RAYVEC_INLINE Vec zero() { return _mm512_setzero_ps(); }
RAYVEC_INLINE Vec broadcast(float x) { return _mm512_set1_ps(x); }
RAYVEC_INLINE Vec load(const float* from) { return _mm512_loadu_ps(from); }
RAYVEC_INLINE void store(float* to, Vec x) { _mm512_storeu_ps(to, x); }
RAYVEC_INLINE Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
RAYVEC_INLINE Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
RAYVEC_INLINE Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
RAYVEC_INLINE Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
RAYVEC_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
RAYVEC_INLINE Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
// a * b + c
RAYVEC_INLINE Vec mul_add(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
RAYVEC_INLINE float sum_of_lanes(Vec x) { return _mm512_reduce_add_ps(x); }
RAYVEC_INLINE float max_of_lanes(Vec x) { return _mm512_reduce_max_ps(x); }

}  // namespace rayvec::RAYVEC_SET
