// The functions of tiles.hpp over AVX512_BF16, for processors that have it and no tiles: a register
// of sums is 16 vectors, and what is multiplied is read where it lies.
//
// VDPBF16PS adds a pair's two products onto the sum one after the other, where TDPBF16PS adds up
// even and odd members apart: sums differ in their last bits from those of tiles.
#pragma once

#include <immintrin.h>

#include <cstddef>

namespace rayvec::RAYVEC_SET {

struct TileRegisters {
    alignas(64) float sums[TILES][TILE_ROWS][TILE_ROW_BYTES / 4];
    const std::uint8_t* from[TILES];
    std::ptrdiff_t stride[TILES];
    int rows[TILES];
};

// Those of this thread's TileScope. A pointer with a fixed place in the thread's memory: anything
// larger would be found by a call, once an operation.
[[gnu::tls_model("initial-exec")]] inline thread_local constinit TileRegisters* tiles = nullptr;

RAYVEC_INLINE void tile_load_config(const TileConfig& config, TileRegisters& registers) {
    tiles = &registers;
    for (int tile = 0; tile < TILES; ++tile) {
        registers.rows[tile] = config.rows[tile];
    }
}

RAYVEC_INLINE void tile_release() { tiles = nullptr; }

template <int tile>
RAYVEC_INLINE void tile_zero() {
    for (auto& row : tiles->sums[tile]) {
        _mm512_store_ps(row, _mm512_setzero_ps());
    }
}

template <int tile>
RAYVEC_INLINE void tile_load(const void* from, std::ptrdiff_t stride) {
    tiles->from[tile] = static_cast<const std::uint8_t*>(from);
    tiles->stride[tile] = stride;
}

template <int tile>
RAYVEC_INLINE void tile_stream_load(const void* from, std::ptrdiff_t stride) {
    tile_load<tile>(from, stride);
}

template <int tile>
RAYVEC_INLINE void tile_load_sums(const float* from, std::ptrdiff_t stride) {
    for (int row = 0; row < tiles->rows[tile]; ++row) {
        _mm512_store_ps(tiles->sums[tile][row], _mm512_loadu_ps(from + row * stride / 4));
    }
}

template <int tile>
RAYVEC_INLINE void tile_store(float* to, std::ptrdiff_t stride) {
    for (int row = 0; row < tiles->rows[tile]; ++row) {
        _mm512_storeu_ps(to + row * stride / 4, _mm512_load_ps(tiles->sums[tile][row]));
    }
}

// sums (rows, 16) += a (rows, 32) @ b (16, 16, 2), both bf16 and without gaps between rows; for
// `count` of both, so many bytes from one to the next.
template <int rows>
RAYVEC_INLINE void dot_rows(
    float (*sums)[TILE_ROW_BYTES / 4],
    const std::uint8_t* a,
    const std::uint8_t* b,
    std::int64_t count = 1,
    std::ptrdiff_t a_step = 0,
    std::ptrdiff_t b_step = 0) {
    __m512 sum[rows];
#pragma GCC unroll 16
    for (int row = 0; row < rows; ++row) {
        sum[row] = _mm512_load_ps(sums[row]);
    }
    for (std::int64_t n = 0; n < count; ++n, a += a_step, b += b_step) {
        for (int pair = 0; pair < TILE_ROWS; ++pair) {
            const auto columns = (__m512bh)_mm512_loadu_si512(b + pair * TILE_ROW_BYTES);
#pragma GCC unroll 16
            for (int row = 0; row < rows; ++row) {
                std::int32_t both;
                __builtin_memcpy(&both, a + row * TILE_ROW_BYTES + pair * 4, sizeof both);
                sum[row] = _mm512_dpbf16_ps(sum[row], (__m512bh)_mm512_set1_epi32(both), columns);
            }
        }
    }
#pragma GCC unroll 16
    for (int row = 0; row < rows; ++row) {
        _mm512_store_ps(sums[row], sum[row]);
    }
}

// What a register was loaded with, without gaps between its rows: as it lies, or a copy.
RAYVEC_INLINE const std::uint8_t* packed_rows(
    const std::uint8_t* from, std::ptrdiff_t stride, int rows, std::uint8_t* copy) {
    if (stride == TILE_ROW_BYTES) [[likely]] {
        return from;
    }
    for (int row = 0; row < rows; ++row) {
        _mm512_store_si512(copy + row * TILE_ROW_BYTES, _mm512_loadu_si512(from + row * stride));
    }
    return copy;
}

template <int c, int a, int b>
RAYVEC_INLINE void tile_dot_bf16() {
    alignas(64) std::uint8_t a_copy[TILE_ROWS * TILE_ROW_BYTES], b_copy[sizeof a_copy];
    const int rows = tiles->rows[c];
    const std::uint8_t* left = packed_rows(tiles->from[a], tiles->stride[a], rows, a_copy);
    const std::uint8_t* right = packed_rows(tiles->from[b], tiles->stride[b], TILE_ROWS, b_copy);
    if (rows == TILE_ROWS) [[likely]] {
        dot_rows<TILE_ROWS>(tiles->sums[c], left, right);
        return;
    }
    for (int row = 0; row < rows; ++row) {
        dot_rows<1>(tiles->sums[c] + row, left + row * TILE_ROW_BYTES, right);
    }
}

// c += a @ b for `count` full tiles of both in a row, so many bytes from one to the next: the sums
// stay in vectors meanwhile.
template <int c>
RAYVEC_INLINE void dot_along(
    const void* a, const void* b, std::int64_t count, std::ptrdiff_t a_step, std::ptrdiff_t b_step) {
    dot_rows<TILE_ROWS>(
        tiles->sums[c], static_cast<const std::uint8_t*>(a), static_cast<const std::uint8_t*>(b),
        count, a_step, b_step);
}

}  // namespace rayvec::RAYVEC_SET
