
// Unpadded multi-head attention on tensor cores, for 16-bit storage types and heads of 32, 64, 96,
// 128 and 256; up to 128, q and k may be rotated on their way in. Built with WARPS_D, KEYS_D and
// BLOCKS_D for each head size D of drivers/cuda/launches/flash_attention.py.

static_assert(sizeof(STORAGE) == 2, "tensor cores take 16-bit storage types");

constexpr int ROWS_PER_WARP = 16;  // those of an mma
constexpr float LOG2_E = 1.4426950408889634f;

// Values from one row of a tile to the next: 16 bytes more than a row holds, so that the eight rows
// of a matrix that is loaded lie in different banks.
template <int DIM>
constexpr int STRIDE = DIM + 8;

// Threads side by side in a row, 16 bytes each: as many as divide PART values.
template <int PART>
constexpr int THREADS_PER_ROW = PART % 64 == 0 ? 8 : PART % 32 == 0 ? 4 : 2;

// Starts to copy rows [first, first + KEYS) of one head to shared memory: zeros from row `end` on,
// which may be another sequence's. Row `first` exists. All threads of the block take part; the one
// that copies a value copies the value PART further on as well.
template <int DIM, int PART, int KEYS, int THREADS>
__device__ inline void copy_rows(STORAGE* to, const STORAGE* from, int row_stride, int first,
                                 int end) {
    constexpr int PER_ROW = THREADS_PER_ROW<PART>, ROWS = THREADS / PER_ROW;
    const int dim = threadIdx.x % PER_ROW * 8;
#pragma unroll
    for (int i = 0; i < KEYS; i += ROWS) {
        const int row = i + threadIdx.x / PER_ROW;
        if (KEYS % ROWS != 0 && row >= KEYS) break;
        const bool exists = first + row < end;
        const STORAGE* source = from + (size_t)(exists ? first + row : first) * row_stride + dim;
#pragma unroll
        for (int j = 0; j < DIM; j += PER_ROW * 8)
            copy_16_bytes(to + row * STRIDE<DIM> + dim + j, source + j, exists);
    }
}

// Rotates rows [first, end) of a head, among the tile's KEYS. Each thread turns the pairs that it
// has copied itself, with a PART of DIM / 2, and has waited for.
template <int DIM, int KEYS, int THREADS>
__device__ inline void rotate_rows(STORAGE* rows, const float* cos, const float* sin, int first,
                                   int end) {
    constexpr int PAIRS = DIM / 2, PER_ROW = THREADS_PER_ROW<PAIRS>, ROWS = THREADS / PER_ROW;
    const int dim = threadIdx.x % PER_ROW * 8;
#pragma unroll
    for (int i = 0; i < KEYS; i += ROWS) {
        const int row = i + threadIdx.x / PER_ROW;
        if (row >= KEYS || first + row >= end) break;
#pragma unroll
        for (int j = 0; j < PAIRS; j += PER_ROW * 8) {
            STORAGE* at = rows + row * STRIDE<DIM> + dim + j;
            const size_t angle = (size_t)(first + row) * PAIRS + dim + j;
            Pack<STORAGE, 8> x = load_pack<8>(at), y = load_pack<8>(at + PAIRS);
            rotate_packs(x, y, cos + angle, sin + angle);
            store_pack(at, x);
            store_pack(at + PAIRS, y);
        }
    }
}

// The 16 query rows of a warp as fragments, straight from device memory: zeros behind the sequence.
// `q` is its row 0 of this head.
template <int DIM>
__device__ inline void load_queries(unsigned (&queries)[DIM / 16][4], const STORAGE* q,
                                    int row_stride, int first_row, int length) {
    const int lane = threadIdx.x % LANES;
#pragma unroll
    for (int step = 0; step < DIM / 16; step++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = first_row + lane / 4 + i % 2 * 8;
            const int dim = step * 16 + i / 2 * 8 + lane % 4 * 2;
            const STORAGE* source = q + (size_t)row * row_stride + dim;
            queries[step][i] = row < length ? *(const unsigned*)source : 0;
        }
}

// The same, rotated: both halves of a pair belong to the same lane.
template <int DIM>
__device__ inline void load_rotated_queries(unsigned (&queries)[DIM / 16][4], const STORAGE* q,
                                            int row_stride, const float* cos, const float* sin,
                                            int first_row, int length) {
    constexpr int PAIRS = DIM / 2;
    const int lane = threadIdx.x % LANES;
#pragma unroll
    for (int step = 0; step < PAIRS / 16; step++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = first_row + lane / 4 + i % 2 * 8;
            const int dim = step * 16 + i / 2 * 8 + lane % 4 * 2;
            unsigned turned[2] = {0, 0};
            if (row < length) {
                const STORAGE* source = q + (size_t)row * row_stride + dim;
                const size_t angle = (size_t)row * PAIRS + dim;
                Pack<STORAGE, 2> x = load_pack<2>(source), y = load_pack<2>(source + PAIRS);
                rotate_packs(x, y, cos + angle, sin + angle);
                turned[0] = reinterpret_cast<const unsigned&>(x);
                turned[1] = reinterpret_cast<const unsigned&>(y);
            }
            queries[step][i] = turned[0];
            queries[step + PAIRS / 16][i] = turned[1];
        }
}

// scores[n] = q . k for the warp's 16 queries and keys 8 n .. 8 n + 7 of the tile.
template <int DIM, int KEYS>
__device__ inline void score_keys(float (&scores)[KEYS / 8][4],
                                  const unsigned (&queries)[DIM / 16][4], const STORAGE* keys) {
    const int lane = threadIdx.x % LANES;
    const STORAGE* row = keys + (lane / 16 * 8 + lane % 8) * STRIDE<DIM> + lane / 8 % 2 * 8;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) scores[n][i] = 0.0f;
#pragma unroll
    for (int step = 0; step < DIM / 16; step++)
#pragma unroll
        for (int n = 0; n < KEYS / 8; n += 2) {
            unsigned k[4];  // keys 8 n .. 8 n + 15, dimensions 16 step .. 16 step + 15
            load_matrices(k, row + n * 8 * STRIDE<DIM> + step * 16);
            multiply_add<STORAGE>(scores[n], queries[step], k[0], k[1]);
            multiply_add<STORAGE>(scores[n + 1], queries[step], k[2], k[3]);
        }
}

// context += weights v, the weights rounded to the storage type.
template <int DIM, int KEYS>
__device__ inline void add_values(float (&context)[DIM / 8][4], const float (&weights)[KEYS / 8][4],
                                  const STORAGE* values) {
    const int lane = threadIdx.x % LANES;
    const STORAGE* row = values + lane % 16 * STRIDE<DIM> + lane / 16 * 8;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n += 2) {
        const unsigned w[4] = {pack<STORAGE>(weights[n][0], weights[n][1]),
                               pack<STORAGE>(weights[n][2], weights[n][3]),
                               pack<STORAGE>(weights[n + 1][0], weights[n + 1][1]),
                               pack<STORAGE>(weights[n + 1][2], weights[n + 1][3])};
#pragma unroll
        for (int m = 0; m < DIM / 8; m += 2) {
            unsigned v[4];  // keys 8 n .. 8 n + 15, dimensions 8 m .. 8 m + 15
            load_matrices_transposed(v, row + n * 8 * STRIDE<DIM> + m * 8);
            multiply_add<STORAGE>(context[m], w, v[0], v[1]);
            multiply_add<STORAGE>(context[m + 1], w, v[2], v[3]);
        }
    }
}

// Row r of a lane's two: what is not visible scores -inf, and a bias that is not null is added to
// the rest. Columns count from the lane's first key: [begin, end) are visible.
template <int KEYS>
__device__ inline void hide_keys(float (&scores)[KEYS / 8][4], int r, int begin, int end,
                                 const float* bias) {
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int column = n * 8 + i;
            if (column < begin || column >= end)
                scores[n][2 * r + i] = -INFINITY;
            else if (bias)
                scores[n][2 * r + i] += bias[column] * LOG2_E;
        }
}

// Over the four lanes that share the rows of a fragment.
__device__ inline float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}
__device__ inline float row_sum(float x) {
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

// Row r of a lane's two: scores become weights, 2^(score - peak) with the largest score so far as
// the peak, and what was summed under an older peak is rescaled. `total` sums this lane's weights.
template <int DIM, int KEYS>
__device__ inline void weigh_keys(float (&scores)[KEYS / 8][4], float (&context)[DIM / 8][4], int r,
                                  float& peak, float& total) {
    float highest = peak;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
        highest = fmaxf(highest, fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
    highest = row_max(highest);
    const float shift = highest == -INFINITY ? 0.0f : highest;  // nothing seen yet
    const float rescale = exp2_fast(peak - shift);
    peak = highest;
    total *= rescale;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; i++) {
            scores[n][i] = exp2_fast(scores[n][i] - shift);
            total += scores[n][i];
        }
#pragma unroll
    for (int m = 0; m < DIM / 8; m++) {
        context[m][2 * r] *= rescale;
        context[m][2 * r + 1] *= rescale;
    }
}

struct alignas(8) FourValues {
    unsigned low, high;
};

// Row r of a lane's two, divided by its sum of weights, or zeros; all lanes of the warp take part.
// Neighbours exchange what they hold of two blocks of 8 dimensions, so that four lanes write 32
// bytes side by side.
template <int DIM>
__device__ inline void store_row(STORAGE* to, const float (&context)[DIM / 8][4], int r, float sum,
                                 bool exists) {
    const int lane = threadIdx.x % LANES, odd = lane % 2;
    const float share = 1.0f / sum;
#pragma unroll
    for (int m = 0; m < DIM / 8; m += 2) {
        unsigned block[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float* at = context[m + i] + 2 * r;
            block[i] = sum == 0.0f ? 0 : pack<STORAGE>(at[0] * share, at[1] * share);
        }
        const unsigned got = __shfl_xor_sync(ALL_LANES, odd ? block[0] : block[1], 1);
        const FourValues four = odd ? FourValues{got, block[1]} : FourValues{block[0], got};
        if (exists) *(FourValues*)(to + (m + odd) * 8 + lane % 4 / 2 * 4) = four;
    }
}

// out[t, n] = sum_j w[j] v[j, m],   w = softmax_j(q[t, n] . k[j, m] * scale + bias),
// m = n * KV / N, over the keys j of t's own sequence that lie within the window,
// i - window_left <= j <= i + window_right, i and j counted from the sequence's start; zeros where
// every score is -inf. Scores, softmax and sums are float32, by powers of 2; weights are rounded to
// the storage type for their product with v. Tiles of keys pass by twice buffered; with each, what
// was summed so far is rescaled to the largest score so far (Milakov and Gimelshein 2018; the split
// among warps as in Dao 2023). Other sequences leave no trace. NaN in a value of the own sequence
// may reach queries whose window it is not in. Where ROTATE, q and k are first rotated, each head
// whole, with the same bits as by heads.cu: k anew by each query tile that reads it.
//
//   out            (T, N * D)             STORAGE
//   qk             (T, qk_heads * D)      STORAGE, rows that begin with q (N, D) and k (KV, D)
//   qkv            (T, (N + 2 KV) * D)    STORAGE, v the last KV heads. `qk` may be `qkv`
//   cu_seqlens     (B + 1,)               int32, where each sequence starts among the T rows
//   position_bias  (N, 2 P - 1)           float32, or null: entry j - i + P - 1 of head n is added
//   cos, sin       (L, D / 2) or (B, L, D / 2)  float32, where ROTATE; on boundaries of 32 bytes
//   table_rows     L >= S where each sequence has a table of its own, 0 where one serves all
//   S = max_seq, the longest sequence, P = positions >= S; a negative window has no limit. The rows
//   of qk and qkv start on boundaries of 16 bytes. Of device memory, q is read once and out written
//   once; k and v are read once by each query tile of a head, which follow one another, so that all
//   but the first find them in the cache.
//
//   grid    (B * N * ceil(S / (16 * WARPS))): the query tiles of a head side by side, last one
//           first, which sees most keys where attention is causal; then the heads of a sequence
//   block   (32 * WARPS): a warp owns 16 query rows
//   shared  STORAGE two buffers of keys (KEYS, D + 8) and values (KEYS, D + 8)
template <int DIM, int WARPS, int KEYS, bool ROTATE>
__device__ inline void flash_attention(STORAGE* out, const STORAGE* qk, const STORAGE* qkv,
                                       const int* cu_seqlens, const float* position_bias,
                                       int positions, int num_heads, int kv_heads, int qk_heads,
                                       int max_seq, float scale, int window_left,
                                       int window_right, const float* cos, const float* sin,
                                       int table_rows) {
    extern __shared__ STORAGE shared_memory[];
    constexpr int THREADS = WARPS * LANES;
    constexpr int ROWS = WARPS * ROWS_PER_WARP;
    constexpr int TILE = KEYS * STRIDE<DIM>;
    constexpr int KEY_PART = ROTATE ? DIM / 2 : DIM;

    const int row_tiles = (max_seq + ROWS - 1) / ROWS;
    const int head = blockIdx.x / row_tiles % num_heads;
    const int sequence = blockIdx.x / row_tiles / num_heads;
    const int start = cu_seqlens[sequence];
    const int length = cu_seqlens[sequence + 1] - start;
    const int first_row = (row_tiles - 1 - (int)(blockIdx.x % row_tiles)) * ROWS;
    if (first_row >= length) return;  // the whole block

    const int qk_stride = qk_heads * DIM;
    const int v_stride = (num_heads + 2 * kv_heads) * DIM;
    const int kv_head = head * kv_heads / num_heads;
    const STORAGE* q = qk + (size_t)start * qk_stride + head * DIM;
    const STORAGE* k = qk + (size_t)start * qk_stride + (num_heads + kv_head) * DIM;
    const STORAGE* v = qkv + (size_t)start * v_stride + (num_heads + kv_heads + kv_head) * DIM;
    const size_t bias_start = (size_t)head * (2 * positions - 1) + positions - 1;
    const float* bias = position_bias ? position_bias + bias_start : nullptr;

    if constexpr (ROTATE) {
        cos += (size_t)sequence * table_rows * (DIM / 2);
        sin += (size_t)sequence * table_rows * (DIM / 2);
    }

    // The keys that any row of this block sees; without a limit a window holds the sequence.
    const int left = window_left < 0 ? length : min(window_left, length);
    const int right = window_right < 0 ? length : min(window_right, length);
    const int first_key = max(0, first_row - left);
    const int end_key = min(length, min(first_row + ROWS, length) + right);

    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const int warp_first = first_row + warp * ROWS_PER_WARP;
    const int warp_last = warp_first + ROWS_PER_WARP - 1;
    const int own_row = warp_first + lane / 4;  // and 8 rows further on

    // A buffer holds the keys and then the values of a tile: this tile's, and the next one's.
    int buffer = 0;
    copy_rows<DIM, KEY_PART, KEYS, THREADS>(shared_memory, k, qk_stride, first_key, end_key);
    copy_rows<DIM, DIM, KEYS, THREADS>(shared_memory + TILE, v, v_stride, first_key, end_key);
    end_copy_group();

    unsigned queries[DIM / 16][4];
    float context[DIM / 8][4];
    float peak[2] = {-INFINITY, -INFINITY}, total[2] = {0.0f, 0.0f};
    if constexpr (ROTATE)
        load_rotated_queries<DIM>(queries, q, qk_stride, cos, sin, warp_first, length);
    else
        load_queries<DIM>(queries, q, qk_stride, warp_first, length);
#pragma unroll
    for (int m = 0; m < DIM / 8; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) context[m][i] = 0.0f;

    for (int tile = first_key; tile < end_key; tile += KEYS) {
        STORAGE* keys = shared_memory + buffer * 2 * TILE;
        wait_for_copies<0>();
        if constexpr (ROTATE) rotate_rows<DIM, KEYS, THREADS>(keys, cos, sin, tile, end_key);
        __syncthreads();  // the tile is complete, and every warp is done with the one before
        if (tile + KEYS < end_key) {
            STORAGE* next = shared_memory + (1 - buffer) * 2 * TILE;
            copy_rows<DIM, KEY_PART, KEYS, THREADS>(next, k, qk_stride, tile + KEYS, end_key);
            copy_rows<DIM, DIM, KEYS, THREADS>(next + TILE, v, v_stride, tile + KEYS, end_key);
            end_copy_group();
        }

        // Which of the tile's keys the warp's rows see: none, some, or all of them.
        const int last_key = tile + KEYS - 1;
        const bool none = warp_first >= length || last_key < warp_first - left ||
                          tile > warp_last + right;
        const bool all = last_key < end_key && tile >= warp_last - left &&
                         last_key <= warp_first + right;
        if (!none) {
            float scores[KEYS / 8][4];
            score_keys<DIM, KEYS>(scores, queries, keys);
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) scores[n][i] *= scale * LOG2_E;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                if (bias || !all) {
                    const int row = own_row + r * 8, first = tile + lane % 4 * 2;
                    const int begin = row - left, end = min(end_key, row + right + 1);
                    hide_keys<KEYS>(scores, r, begin - first, row < length ? end - first : 0,
                                    bias ? bias + (first - row) : nullptr);
                }
                weigh_keys<DIM, KEYS>(scores, context, r, peak[r], total[r]);
            }
            add_values<DIM, KEYS>(context, scores, keys + TILE);
        }
        buffer = 1 - buffer;
    }

#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = own_row + r * 8;
        STORAGE* to = out + ((size_t)(start + row) * num_heads + head) * DIM;
        store_row<DIM>(to, context, r, row_sum(total[r]), row < length);
    }
}

#define PARAMETERS                                                                              \
    STORAGE *out, const STORAGE *qk, const STORAGE *qkv, const int *cu_seqlens,                 \
        const float *position_bias, int positions, int num_heads, int kv_heads, int qk_heads,   \
        int max_seq, float scale, int window_left, int window_right
#define FLASH_ATTENTION(DIM)                                                                    \
    extern "C" __global__ void __launch_bounds__(WARPS_##DIM * LANES, BLOCKS_##DIM)             \
        flash_attention_##DIM(PARAMETERS) {                                                     \
        flash_attention<DIM, WARPS_##DIM, KEYS_##DIM, false>(                                   \
            out, qk, qkv, cu_seqlens, position_bias, positions, num_heads, kv_heads, qk_heads,  \
            max_seq, scale, window_left, window_right, nullptr, nullptr, 0);                    \
    }
#define ROTATING_ATTENTION(DIM)                                                                 \
    extern "C" __global__ void __launch_bounds__(WARPS_##DIM * LANES, BLOCKS_##DIM)             \
        rotating_attention_##DIM(PARAMETERS, const float* cos, const float* sin,                \
                                 int table_rows) {                                              \
        flash_attention<DIM, WARPS_##DIM, KEYS_##DIM, true>(                                    \
            out, qk, qkv, cu_seqlens, position_bias, positions, num_heads, kv_heads, qk_heads,  \
            max_seq, scale, window_left, window_right, cos, sin, table_rows);                   \
    }
FLASH_ATTENTION(32)
ROTATING_ATTENTION(32)
FLASH_ATTENTION(64)
ROTATING_ATTENTION(64)
FLASH_ATTENTION(96)
ROTATING_ATTENTION(96)
FLASH_ATTENTION(128)
ROTATING_ATTENTION(128)
FLASH_ATTENTION(256)
