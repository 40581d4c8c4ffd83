
// RMS norm and rotation of the heads of q and k, one pass over the packed rows.
// Built with THREADS of drivers/cuda/launches/heads.py.

// Dimensions of a head that a lane takes at a time, 16 bytes of a 16-bit type.
constexpr int PIECE = 8;
struct alignas(16) Piece {
    STORAGE at[PIECE];
};

// The sequence that a token lies in: the last one that starts at or before it.
__device__ inline int sequence_of(int token, const int* cu_seqlens, int batch) {
    int first = 0, end = batch;
    while (end - first > 1) {
        const int middle = (first + end) / 2;
        if (cu_seqlens[middle] <= token)
            first = middle;
        else
            end = middle;
    }
    return first;
}

// Where the token's row of a rotary table starts: position times `pairs` on, in the sequence's own
// table if there is more than one.
__device__ inline size_t table_row(int token, const int* cu_seqlens, int batch, int tables,
                                   int positions, int pairs) {
    const int sequence = sequence_of(token, cu_seqlens, batch);
    const int position = token - cu_seqlens[sequence];
    return ((size_t)(tables == 1 ? 0 : sequence) * positions + position) * pairs;
}

// For each head x of q, then of k, of each token, in float32 until it is stored:
//   y = x / sqrt(mean(x^2) + eps) * weight          where there are weights, otherwise y = x
//   out[j]         = y[j] cos[j] - y[j + pairs] sin[j]
//   out[j + pairs] = y[j + pairs] cos[j] + y[j] sin[j]     j < pairs;  out = y behind 2 pairs
// with cos and sin of the token's position, counted from its sequence's start.
//
//   out         (T, out_heads * D)              STORAGE, written: the first N + KV heads of a row.
//                                               It may be `qkv`
//   qkv         (T, (N + 2 KV) * D)             STORAGE
//   q_weight, k_weight  (D,)                    STORAGE, or both null
//   cos, sin    (P, pairs) or (B, P, pairs)     float32, or both null and pairs = 0
//   cu_seqlens  (B + 1,)                        int32, where each sequence starts among the T rows
//   P = positions, D = head_dim, B = batch; tables: 1, or B of them
//
//   grid (T), block (THREADS)
#define PARAMETERS                                                                             \
    STORAGE *out, const STORAGE *qkv, const STORAGE *q_weight, const STORAGE *k_weight,        \
        const float *cos, const float *sin, const int *cu_seqlens, int batch, int tables,      \
        int positions, int pairs, int num_heads, int kv_heads, int head_dim, int out_heads,    \
        float eps

// Any head: a warp each. The second time that it reads the head, it comes from the cache.
extern "C" __global__ void __launch_bounds__(THREADS) norm_and_rotate_any(PARAMETERS) {
    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const size_t token = blockIdx.x;
    const size_t row = pairs ? table_row(token, cu_seqlens, batch, tables, positions, pairs) : 0;
    for (int head = warp; head < num_heads + kv_heads; head += THREADS / LANES) {
        const STORAGE* from = qkv + (token * (num_heads + 2 * kv_heads) + head) * head_dim;
        STORAGE* to = out + (token * out_heads + head) * head_dim;
        const STORAGE* weight = head < num_heads ? q_weight : k_weight;
        float factor = 1.0f;
        if (weight) {
            float squares = 0.0f;
            for (int d = lane; d < head_dim; d += LANES) {
                const float x = widen(from[d]);
                squares += x * x;
            }
            factor = 1.0f / sqrtf(warp_sum(squares) / head_dim + eps);
        }
        auto normed = [&](int d) {
            return weight ? widen(from[d]) * factor * widen(weight[d]) : widen(from[d]);
        };
        for (int j = lane; j < pairs; j += LANES) {
            const float c = cos[row + j], s = sin[row + j];
            float x = normed(j), y = normed(j + pairs);
            rotate(x, y, c, s);
            store(to + j, x);
            store(to + j + pairs, y);
        }
        for (int d = 2 * pairs + lane; d < head_dim; d += LANES) store(to + d, normed(d));
    }
}

// A head of D dimensions, a multiple of 16, that is rotated whole or not at all: the lane at place
// p of the GROUP of a head, D / 16 <= GROUP, owns dimensions 8 p .. 8 p + 7 and those D / 2 further
// on. Rows start on boundaries of 16 bytes.
template <int GROUP>
__device__ inline void norm_and_rotate(PARAMETERS) {
    const int group = threadIdx.x / GROUP, place = threadIdx.x % GROUP;
    const int half = head_dim / 2, d = place * PIECE;
    const size_t token = blockIdx.x;

    float c[PIECE], s[PIECE];
    if (pairs && d < half) {
        const size_t row = table_row(token, cu_seqlens, batch, tables, positions, pairs) + d;
#pragma unroll
        for (int i = 0; i < PIECE; i++) {
            c[i] = cos[row + i];
            s[i] = sin[row + i];
        }
    }
    const int heads = num_heads + kv_heads;
    for (int first = 0; first < heads; first += THREADS / GROUP) {  // the whole block
        const int head = first + group;
        const bool exists = head < heads && d < half;
        float x[PIECE], y[PIECE];
        if (exists) {
            const STORAGE* from = qkv + (token * (heads + kv_heads) + head) * head_dim + d;
            const Piece low = *(const Piece*)from, high = *(const Piece*)(from + half);
#pragma unroll
            for (int i = 0; i < PIECE; i++) {
                x[i] = widen(low.at[i]);
                y[i] = widen(high.at[i]);
            }
        }
        if (q_weight) {
            float squares = 0.0f;
            if (exists) {
#pragma unroll
                for (int i = 0; i < PIECE; i++) squares += x[i] * x[i] + y[i] * y[i];
            }
#pragma unroll
            for (int offset = GROUP / 2; offset > 0; offset /= 2)
                squares += __shfl_xor_sync(ALL_LANES, squares, offset);
            const float factor = 1.0f / sqrtf(squares / head_dim + eps);
            if (exists) {
                const STORAGE* weight = (head < num_heads ? q_weight : k_weight) + d;
                const Piece low = *(const Piece*)weight, high = *(const Piece*)(weight + half);
#pragma unroll
                for (int i = 0; i < PIECE; i++) {
                    x[i] = x[i] * factor * widen(low.at[i]);
                    y[i] = y[i] * factor * widen(high.at[i]);
                }
            }
        }
        if (exists) {
            Piece low, high;
#pragma unroll
            for (int i = 0; i < PIECE; i++) {
                if (pairs) rotate(x[i], y[i], c[i], s[i]);
                store(&low.at[i], x[i]);
                store(&high.at[i], y[i]);
            }
            STORAGE* to = out + (token * out_heads + head) * head_dim + d;
            *(Piece*)to = low;
            *(Piece*)(to + half) = high;
        }
    }
}

#define NORM_AND_ROTATE(GROUP)                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS) norm_and_rotate_##GROUP(PARAMETERS) {  \
        norm_and_rotate<GROUP>(out, qkv, q_weight, k_weight, cos, sin, cu_seqlens, batch, tables, \
                               positions, pairs, num_heads, kv_heads, head_dim, out_heads, eps); \
    }
NORM_AND_ROTATE(2)
NORM_AND_ROTATE(4)
NORM_AND_ROTATE(8)
NORM_AND_ROTATE(16)
