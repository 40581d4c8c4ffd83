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
RAYVEC_INLINE Vec absolute(Vec x) { return _mm512_abs_ps(x); }
RAYVEC_INLINE Vec nearest_integer(Vec x) { return _mm512_roundscale_ps(x, 0); }
// x * 2 ^ n for integral n
RAYVEC_INLINE Vec times_power_of_2(Vec x, Vec n) { return _mm512_scalef_ps(x, n); }
// a < b ? x : y, lane by lane
RAYVEC_INLINE Vec where_less(Vec a, Vec b, Vec x, Vec y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
// The first `count` lanes, 0 <= count <= LANES; the others are zero, or left as they are.
RAYVEC_INLINE Vec load_first(const float* from, std::int64_t count) {
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), from);
}
RAYVEC_INLINE void store_first(float* to, Vec x, std::int64_t count) {
    _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << count) - 1), x);
}
RAYVEC_INLINE float sum_of_lanes(Vec x) { return _mm512_reduce_add_ps(x); }
RAYVEC_INLINE float max_of_lanes(Vec x) { return _mm512_reduce_max_ps(x); }

// rows[i][j] becomes rows[j][i].
RAYVEC_INLINE void transpose(Vec (&rows)[LANES]) {
    Vec pairs[16], fours[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {  // 2 x 2 blocks of single values
        pairs[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    const auto low = [](Vec a, Vec b) {
        return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
    };
    const auto high = [](Vec a, Vec b) {
        return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
    };
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {  // 4 x 4 blocks within each quarter of a register
        fours[i] = low(pairs[i], pairs[i + 2]);
        fours[i + 1] = high(pairs[i], pairs[i + 2]);
        fours[i + 2] = low(pairs[i + 1], pairs[i + 3]);
        fours[i + 3] = high(pairs[i + 1], pairs[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {  // quarters 0 and 2, then 1 and 3
        pairs[i] = _mm512_shuffle_f32x4(fours[i], fours[i + 4], 0x88);
        pairs[i + 4] = _mm512_shuffle_f32x4(fours[i], fours[i + 4], 0xdd);
        pairs[i + 8] = _mm512_shuffle_f32x4(fours[i + 8], fours[i + 12], 0x88);
        pairs[i + 12] = _mm512_shuffle_f32x4(fours[i + 8], fours[i + 12], 0xdd);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
        rows[i] = _mm512_shuffle_f32x4(pairs[i], pairs[i + 8], 0x88);
        rows[i + 8] = _mm512_shuffle_f32x4(pairs[i], pairs[i + 8], 0xdd);
    }
}

}  // namespace rayvec::RAYVEC_SET
