// What the tile kernels do with vectors beyond vec.hpp: rows of bf16 values, 16 rows at a time, and
// powers for softmax weights. Twice: with AVX-512 and its BF16, and in plain code.
#pragma once

#include "bf16.hpp"
#include "kernels/math.hpp"

namespace rayvec::RAYVEC_SET {

static_assert(LANES == 16, "a row of a tile of float32 is one vector");

// 2 ^ x by its whole part and a minimax cubic of the rest in [0, 1), of relative error 7.5e-5, where
// rounding the weight to bf16 may cost 3.9e-3. Infinity from 128 on.
constexpr float EXP2_CUBIC[] = {0.99992522f, 0.69583353f, 0.226067166f, 0.0780245234f};

#if defined(__AVX512BF16__)

RAYVEC_INLINE Vec load_bf16(const Bf16* from) {
    const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}

RAYVEC_INLINE void store_bf16(Bf16* to, Vec x) {
    _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh(x));
}

// 32 values: those of `first`, then those of `second`.
RAYVEC_INLINE void store_bf16(Bf16* to, Vec first, Vec second) {
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}

// Stores as store_bf16 does; returns sum + first + second, lane pairs added, of the rounded values.
RAYVEC_INLINE Vec store_bf16_and_add(Bf16* to, Vec first, Vec second, Vec sum) {
    const __m512bh rounded = _mm512_cvtne2ps_pbh(second, first);
    _mm512_storeu_si512(to, (__m512i)rounded);
    return _mm512_dpbf16_ps(sum, rounded, (__m512bh)_mm512_set1_epi16(0x3f80));
}

RAYVEC_INLINE Vec exp2_coarse(Vec x) {
    const Vec fraction = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);  // x - floor(x)
    return _mm512_scalef_ps(polynomial(fraction, EXP2_CUBIC), x);
}

// The lanes whose bit is set; `other` in the rest.
RAYVEC_INLINE Vec where_bit(std::uint32_t bits, Vec x, Vec other) {
    return _mm512_mask_mov_ps(other, static_cast<__mmask16>(bits), x);
}

// Lane i of the result is op over the lanes of rows[i].
template <typename Op>
RAYVEC_INLINE Vec reduce_rows(const Vec (&rows)[16], const Op& op) {
    const auto low = [](Vec a, Vec b) {
        return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
    };
    const auto high = [](Vec a, Vec b) {
        return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
    };
    const auto quarters = [&](Vec a, Vec b) {
        return op(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    };
    Vec pairs[8], fours[4];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
        const Vec a = rows[2 * i], b = rows[2 * i + 1];
        pairs[i] = op(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        const Vec a = pairs[2 * i], b = pairs[2 * i + 1];
        fours[i] = op(low(a, b), high(a, b));
    }
    return quarters(quarters(fours[0], fours[1]), quarters(fours[2], fours[3]));
}

// 32 values of two rows in pairs (even[i], odd[i]): the first 16 to `low`, the others to `high`.
RAYVEC_INLINE void interleave(const Bf16* even, const Bf16* odd, Bf16* low, Bf16* high) {
    const __m512i first = _mm512_set_epi16(
        47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4,
        35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
    const __m512i a = _mm512_loadu_si512(even), b = _mm512_loadu_si512(odd);
    _mm512_storeu_si512(low, _mm512_permutex2var_epi16(a, first, b));
    _mm512_storeu_si512(high, _mm512_permutex2var_epi16(a, second, b));
}

#else

// Called, not inlined: the kernels use them in very many places, and no speed is asked of them.
#define RAYVEC_CALLED [[gnu::noinline, maybe_unused]] static

RAYVEC_CALLED Vec load_bf16(const Bf16* from) {
    Vec x;
    for (int lane = 0; lane < 16; ++lane) {
        x[lane] = bf16_to_float(from[lane]);
    }
    return x;
}

RAYVEC_CALLED void store_bf16(Bf16* to, Vec x) {
    for (int lane = 0; lane < 16; ++lane) {
        to[lane] = bf16_from_float(x[lane]);
    }
}

RAYVEC_INLINE void store_bf16(Bf16* to, Vec first, Vec second) {
    store_bf16(to, first);
    store_bf16(to + 16, second);
}

RAYVEC_CALLED Vec store_bf16_and_add(Bf16* to, Vec first, Vec second, Vec sum) {
    store_bf16(to, first, second);
    for (int lane = 0; lane < 16; ++lane) {
        sum[lane] += bf16_to_float(to[2 * lane]);
        sum[lane] += bf16_to_float(to[2 * lane + 1]);
    }
    return sum;
}

RAYVEC_CALLED Vec exp2_coarse(Vec x) {
    const Vec within = clamp(x, -200.0f, 200.0f);
    const Vec near = nearest_integer(within);
    const Vec floor = where_less(within, near, sub(near, broadcast(1.0f)), near);
    return times_power_of_2(polynomial(sub(within, floor), EXP2_CUBIC), floor);
}

RAYVEC_CALLED Vec where_bit(std::uint32_t bits, Vec x, Vec other) {
    for (int lane = 0; lane < 16; ++lane) {
        x[lane] = (bits >> lane & 1u) != 0 ? x[lane] : other[lane];
    }
    return x;
}

template <typename Op>
RAYVEC_INLINE Vec reduce_rows(const Vec (&rows)[16], const Op& op) {
    Vec columns[16];
    for (int i = 0; i < 16; ++i) {
        columns[i] = rows[i];
    }
    transpose(columns);
    for (int width = 8; width > 0; width /= 2) {
        for (int i = 0; i < width; ++i) {
            columns[i] = op(columns[i], columns[i + width]);
        }
    }
    return columns[0];
}

RAYVEC_CALLED void interleave(const Bf16* even, const Bf16* odd, Bf16* low, Bf16* high) {
    for (int i = 0; i < 16; ++i) {
        low[2 * i] = even[i];
        low[2 * i + 1] = odd[i];
        high[2 * i] = even[16 + i];
        high[2 * i + 1] = odd[16 + i];
    }
}

#undef RAYVEC_CALLED
#endif

}  // namespace rayvec::RAYVEC_SET
