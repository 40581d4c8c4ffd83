// Vec: 8 float32 values in one AVX2 register. The three vec.hpp have the same functions.
#pragma once

#include <immintrin.h>

#include "inline.hpp"
#include "kernels.hpp"

namespace rayvec::RAYVEC_SET {

using Vec = __m256;
constexpr std::int64_t LANES = 8;

RAYVEC_INLINE Vec zero() { return _mm256_setzero_ps(); }
RAYVEC_INLINE Vec broadcast(float x) { return _mm256_set1_ps(x); }
RAYVEC_INLINE Vec load(const float* from) { return _mm256_loadu_ps(from); }
RAYVEC_INLINE void store(float* to, Vec x) { _mm256_storeu_ps(to, x); }
RAYVEC_INLINE Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
RAYVEC_INLINE Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
RAYVEC_INLINE Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
RAYVEC_INLINE Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
RAYVEC_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
RAYVEC_INLINE Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
// a * b + c
RAYVEC_INLINE Vec mul_add(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }

RAYVEC_INLINE float sum_of_lanes(Vec x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

RAYVEC_INLINE float max_of_lanes(Vec x) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

}  // namespace rayvec::RAYVEC_SET
