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
RAYVEC_INLINE Vec absolute(Vec x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
RAYVEC_INLINE Vec nearest_integer(Vec x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

// x * 2 ^ n for integral n from -252 to 254: in two steps, each a power that is a normal number.
RAYVEC_INLINE Vec times_power_of_2(Vec x, Vec n) {
    const __m256i whole = _mm256_cvtps_epi32(n);
    const __m256i half = _mm256_srai_epi32(whole, 1);
    const __m256i rest = _mm256_sub_epi32(whole, half);
    const __m256i bias = _mm256_set1_epi32(127);
    const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23);
    const Vec scaled = _mm256_mul_ps(x, _mm256_castsi256_ps(first));
    return _mm256_mul_ps(scaled, _mm256_castsi256_ps(second));
}

// a < b ? x : y, lane by lane
RAYVEC_INLINE Vec where_less(Vec a, Vec b, Vec x, Vec y) {
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}

RAYVEC_INLINE __m256i first_lanes(std::int64_t count) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lanes);
}

// The first `count` lanes, 0 <= count <= LANES; the others are zero, or left as they are.
RAYVEC_INLINE Vec load_first(const float* from, std::int64_t count) {
    return _mm256_maskload_ps(from, first_lanes(count));
}
RAYVEC_INLINE void store_first(float* to, Vec x, std::int64_t count) {
    _mm256_maskstore_ps(to, first_lanes(count), x);
}

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

// rows[i][j] becomes rows[j][i].
RAYVEC_INLINE void transpose(Vec (&rows)[LANES]) {
    Vec pairs[8], fours[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {  // 2 x 2 blocks of single values
        pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {  // 4 x 4 blocks within each half of a register
        fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
        fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
        fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
        fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {  // the halves
        rows[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
        rows[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
    }
}

}  // namespace rayvec::RAYVEC_SET
