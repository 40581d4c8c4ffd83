// The products of attention on tiles: 16 queries with 32 keys of one head.
//
// Keys are laid out as (blocks, head_dim / 32, 2, 16, 16, 2), two tiles of 16 keys for each 32 of
// the head, pairs along the head; values as (blocks, head_dim / 32, 2, 16, 16, 2), two tiles of 16
// columns, pairs along the keys. Both are zero beyond the last key.
#pragma once

#include "tiles/bf16_vec.hpp"
#include "tiles/layout.hpp"
#include "tiles/tiles.hpp"

namespace rayvec::RAYVEC_SET {

constexpr std::int64_t QUERIES = 16;  // at a time
constexpr std::int64_t KEYS = 32;     // at a time

// Registers of a head of 32, whose queries stay in one, and of wider heads. The context of 64
// columns is summed up at a time; the further columns of wider heads follow in a second pass.
struct NarrowHead {
    enum : int { CONTEXT, CONTEXT_RIGHT, SCORES, SCORES_RIGHT, QUERY, LEFT, RIGHT, WEIGHTS };
};
struct WideHead {
    enum : int { CONTEXT, CONTEXT_RIGHT, FURTHER, FURTHER_RIGHT, SCORES, SCORES_RIGHT, ROWS, COLUMNS };
};

// For `width` 32s of a head: scores (16, 32) = queries (16, head_dim) @ keys of one block. A narrow
// head's queries are in their register already.
template <int width>
RAYVEC_INLINE void score(const Bf16* queries, const Bf16* keys, float* scores) {
    if constexpr (width == 1) {
        tile_zero<NarrowHead::SCORES>();
        tile_zero<NarrowHead::SCORES_RIGHT>();
        tile_load<NarrowHead::LEFT>(keys, 64);
        tile_dot_bf16<NarrowHead::SCORES, NarrowHead::QUERY, NarrowHead::LEFT>();
        tile_load<NarrowHead::RIGHT>(keys + TILE_VALUES, 64);
        tile_dot_bf16<NarrowHead::SCORES_RIGHT, NarrowHead::QUERY, NarrowHead::RIGHT>();
        tile_store<NarrowHead::SCORES>(scores, 128);
        tile_store<NarrowHead::SCORES_RIGHT>(scores + 16, 128);
    } else {
        tile_zero<WideHead::SCORES>();
        tile_zero<WideHead::SCORES_RIGHT>();
#pragma GCC unroll 4
        for (int c = 0; c < width; ++c) {
            tile_load<WideHead::ROWS>(queries + c * TILE_WIDTH, width * 64);
            tile_load<WideHead::COLUMNS>(keys + c * PANEL_STEP, 64);
            tile_dot_bf16<WideHead::SCORES, WideHead::ROWS, WideHead::COLUMNS>();
            tile_load<WideHead::COLUMNS>(keys + c * PANEL_STEP + TILE_VALUES, 64);
            tile_dot_bf16<WideHead::SCORES_RIGHT, WideHead::ROWS, WideHead::COLUMNS>();
        }
        tile_store<WideHead::SCORES>(scores, 128);
        tile_store<WideHead::SCORES_RIGHT>(scores + 16, 128);
    }
}

template <int width>
RAYVEC_INLINE void zero_context() {
    tile_zero<0>();
    tile_zero<1>();
    if constexpr (width > 1) {
        tile_zero<2>();
        tile_zero<3>();
    }
}

// context += weights (16, 32) @ values of one block, for the columns from 32 * first on, 64 at most.
template <int width, int first>
RAYVEC_INLINE void add_values(const Bf16* weights, const Bf16* values) {
    values += first * PANEL_STEP;
    if constexpr (width == 1) {
        tile_load<NarrowHead::WEIGHTS>(weights, 64);
        tile_load<NarrowHead::LEFT>(values, 64);
        tile_dot_bf16<NarrowHead::CONTEXT, NarrowHead::WEIGHTS, NarrowHead::LEFT>();
        tile_load<NarrowHead::RIGHT>(values + TILE_VALUES, 64);
        tile_dot_bf16<NarrowHead::CONTEXT_RIGHT, NarrowHead::WEIGHTS, NarrowHead::RIGHT>();
    } else {
        tile_load<WideHead::ROWS>(weights, 64);
        tile_load<WideHead::COLUMNS>(values, 64);
        tile_dot_bf16<WideHead::CONTEXT, WideHead::ROWS, WideHead::COLUMNS>();
        tile_load<WideHead::COLUMNS>(values + TILE_VALUES, 64);
        tile_dot_bf16<WideHead::CONTEXT_RIGHT, WideHead::ROWS, WideHead::COLUMNS>();
        if constexpr (first + 1 < width) {
            tile_load<WideHead::COLUMNS>(values + 2 * TILE_VALUES, 64);
            tile_dot_bf16<WideHead::FURTHER, WideHead::ROWS, WideHead::COLUMNS>();
            tile_load<WideHead::COLUMNS>(values + 3 * TILE_VALUES, 64);
            tile_dot_bf16<WideHead::FURTHER_RIGHT, WideHead::ROWS, WideHead::COLUMNS>();
        }
    }
}

// The summed columns from 32 * first on, of context (16, head_dim).
template <int width, int first>
RAYVEC_INLINE void store_context(float* context) {
    constexpr std::int64_t stride = width * TILE_WIDTH * 4;
    context += first * TILE_WIDTH;
    tile_store<0>(context, stride);
    tile_store<1>(context + 16, stride);
    if constexpr (first + 1 < width) {
        tile_store<2>(context + 32, stride);
        tile_store<3>(context + 48, stride);
    }
}

// Keys (count, head_dim) of one head to blocks; the last block is filled up with zeros.
RAYVEC_INLINE void lay_out_keys(
    const Bf16* from, std::int64_t count, std::int64_t head_dim, Bf16* to) {
    for (std::int64_t key = 0; key < quotient_up(count, KEYS) * KEYS; key += KEYS) {
        for (std::int64_t d = 0; d < head_dim; d += TILE_WIDTH) {
            for (std::int64_t half = key; half < key + KEYS; half += STRIP, to += TILE_VALUES) {
                Vec pairs[STRIP];
#pragma GCC unroll 16
                for (std::int64_t i = 0; i < STRIP; ++i) {
                    const Bf16* row = from + (half + i) * head_dim + d;
                    pairs[i] =
                        half + i < count ? load(reinterpret_cast<const float*>(row)) : zero();
                }
                transpose(pairs);
#pragma GCC unroll 16
                for (std::int64_t i = 0; i < STRIP; ++i) {
                    store(reinterpret_cast<float*>(to + i * TILE_WIDTH), pairs[i]);
                }
            }
        }
    }
}

// Values (count, head_dim) of one head to blocks, in the same way.
RAYVEC_INLINE void lay_out_values(
    const Bf16* from, std::int64_t count, std::int64_t head_dim, Bf16* to) {
    alignas(64) static constexpr Bf16 zeros[TILE_WIDTH] = {};
    for (std::int64_t key = 0; key < count; key += KEYS) {
        for (std::int64_t d = 0; d < head_dim; d += TILE_WIDTH, to += PANEL_STEP) {
            for (std::int64_t i = 0; i < STRIP; ++i) {
                const std::int64_t even = key + 2 * i, odd = even + 1;
                interleave(
                    even < count ? from + even * head_dim + d : zeros,
                    odd < count ? from + odd * head_dim + d : zeros, to + i * TILE_WIDTH,
                    to + TILE_VALUES + i * TILE_WIDTH);
            }
        }
    }
}

}  // namespace rayvec::RAYVEC_SET
