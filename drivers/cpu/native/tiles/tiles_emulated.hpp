// The functions of tiles.hpp in plain code, with the results that the Intel manual gives
// (Software Developer's Manual, volume 2, TDPBF16PS and TILELOADD).
#pragma once

#include <cstddef>
#include <cstring>

#include "bf16.hpp"

namespace rayvec::RAYVEC_SET {

struct TileRegisters {
    TileConfig config{0, 0, {}, {}, {}};  // palette 0: not configured
    alignas(64) std::uint8_t bytes[TILES][TILE_ROWS][TILE_ROW_BYTES] = {};
};

// Those of this thread's TileScope.
inline thread_local constinit TileRegisters* tiles = nullptr;

// A processor raises a fault where this stops the process.
RAYVEC_INLINE void fault_unless(bool allowed) {
    if (!allowed) {
        __builtin_trap();
    }
}

RAYVEC_INLINE void tile_load_config(const TileConfig& config, TileRegisters& registers) {
    tiles = &registers;
    fault_unless(config.palette == 1 && config.start_row == 0);
    for (int tile = 0; tile < TILES; ++tile) {
        fault_unless(config.rows[tile] <= TILE_ROWS);
        fault_unless(config.row_bytes[tile] <= TILE_ROW_BYTES);
    }
    tiles->config = config;
}

RAYVEC_INLINE void tile_release() { tiles = nullptr; }

// What follows is called, not inlined: the kernels use it in very many places.

[[gnu::noinline, maybe_unused]] static void emulate_zero(int tile) {
    fault_unless(tiles != nullptr && tiles->config.rows[tile] > 0);
    std::memset(tiles->bytes[tile], 0, sizeof tiles->bytes[tile]);
}

[[gnu::noinline, maybe_unused]] static void emulate_load(
    int tile, const void* from, std::ptrdiff_t stride) {
    emulate_zero(tile);
    const auto* row = static_cast<const std::uint8_t*>(from);
    for (int r = 0; r < tiles->config.rows[tile]; ++r, row += stride) {
        std::memcpy(tiles->bytes[tile][r], row, tiles->config.row_bytes[tile]);
    }
}

[[gnu::noinline, maybe_unused]] static void emulate_store(
    int tile, void* to, std::ptrdiff_t stride) {
    fault_unless(tiles != nullptr && tiles->config.rows[tile] > 0);
    auto* row = static_cast<std::uint8_t*>(to);
    for (int r = 0; r < tiles->config.rows[tile]; ++r, row += stride) {
        std::memcpy(row, tiles->bytes[tile][r], tiles->config.row_bytes[tile]);
    }
}

RAYVEC_INLINE float flush_denormal(float x) {
    return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.0f, x) : x;
}

// a * b + c, rounded once: both factors have 8 significant bits, so the product is exact in double,
// and rounding the sum to double before float32 changes nothing (53 >= 2 * 24 + 2 bits).
RAYVEC_INLINE float tile_mul_add(float a, float b, float c) {
    return flush_denormal(static_cast<float>(static_cast<double>(a) * b + c));
}

// The even and the odd members of the pairs are summed apart, then together, then onto c.
[[gnu::noinline, maybe_unused]] static void emulate_dot_bf16(int c, int a, int b) {
    const TileConfig& config = tiles->config;
    const int rows = config.rows[c], cols = config.row_bytes[c] / 4;
    const int pairs = config.row_bytes[a] / 4;
    fault_unless(config.palette == 1 && rows > 0 && cols > 0 && pairs > 0);
    fault_unless(config.rows[a] == rows && config.rows[b] == pairs);
    fault_unless(config.row_bytes[b] == config.row_bytes[c]);

    float left[TILE_ROWS][2], right[TILE_ROWS][2][TILE_ROWS];  // (pairs, 2), (pairs, 2, cols)
    Bf16 words[TILE_ROWS * 2];
    for (int k = 0; k < pairs; ++k) {
        std::memcpy(words, tiles->bytes[b][k], sizeof words);
        for (int n = 0; n < cols; ++n) {
            right[k][0][n] = flush_denormal(bf16_to_float(words[2 * n]));
            right[k][1][n] = flush_denormal(bf16_to_float(words[2 * n + 1]));
        }
    }
    for (int m = 0; m < rows; ++m) {
        std::memcpy(words, tiles->bytes[a][m], sizeof words);
        for (int k = 0; k < pairs; ++k) {
            left[k][0] = flush_denormal(bf16_to_float(words[2 * k]));
            left[k][1] = flush_denormal(bf16_to_float(words[2 * k + 1]));
        }
        float even[TILE_ROWS] = {}, odd[TILE_ROWS] = {}, sums[TILE_ROWS];
        for (int k = 0; k < pairs; ++k) {
            for (int n = 0; n < cols; ++n) {
                even[n] = tile_mul_add(left[k][0], right[k][0][n], even[n]);
                odd[n] = tile_mul_add(left[k][1], right[k][1][n], odd[n]);
            }
        }
        std::memcpy(sums, tiles->bytes[c][m], sizeof sums);
        for (int n = 0; n < cols; ++n) {
            const float pair_sum = flush_denormal(even[n] + odd[n]);
            sums[n] = flush_denormal(flush_denormal(sums[n]) + pair_sum);
        }
        std::memcpy(tiles->bytes[c][m], sums, sizeof sums);
    }
}

template <int tile>
RAYVEC_INLINE void tile_zero() {
    static_assert(0 <= tile && tile < TILES);
    emulate_zero(tile);
}

template <int tile>
RAYVEC_INLINE void tile_load(const void* from, std::ptrdiff_t stride) {
    static_assert(0 <= tile && tile < TILES);
    emulate_load(tile, from, stride);
}

template <int tile>
RAYVEC_INLINE void tile_stream_load(const void* from, std::ptrdiff_t stride) {
    tile_load<tile>(from, stride);
}

template <int tile>
RAYVEC_INLINE void tile_load_sums(const float* from, std::ptrdiff_t stride) {
    tile_load<tile>(from, stride);
}

template <int tile>
RAYVEC_INLINE void tile_store(float* to, std::ptrdiff_t stride) {
    static_assert(0 <= tile && tile < TILES);
    emulate_store(tile, to, stride);
}

template <int c, int a, int b>
RAYVEC_INLINE void tile_dot_bf16() {
    static_assert(0 <= c && c < TILES && 0 <= a && a < TILES && 0 <= b && b < TILES);
    static_assert(c != a && c != b && a != b);
    emulate_dot_bf16(c, a, b);
}

}  // namespace rayvec::RAYVEC_SET
