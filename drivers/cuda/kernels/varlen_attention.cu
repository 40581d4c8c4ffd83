// Unpadded multi-head attention in plain arithmetic: any storage type, any head up to 256.
// Built with QUERY_ROWS and WARPS of drivers/cuda/launches/varlen_attention.py.

constexpr int KEY_ROWS = LANES;  // a tile of keys: one a lane
constexpr int ROWS_PER_WARP = QUERY_ROWS / WARPS;

// Copies rows [first, first + rows) of one head into shared memory, `stride` floats a row: zeros
// at and behind row `end`, and behind head_dim. All threads of the block take part.
template <int WIDTH>
__device__ inline void load_rows(float* to, int stride, const STORAGE* from, size_t row_stride,
                                 int first, int rows, int end, int head_dim) {
    for (int i = threadIdx.x; i < rows * WIDTH; i += WARPS * LANES) {
        const int row = i / WIDTH, dim = i % WIDTH;
        const bool exists = first + row < end && dim < head_dim;
        to[row * stride + dim] = exists ? widen(from[(first + row) * row_stride + dim]) : 0.0f;
    }
}

// out[t, n] = sum_j w[j] v[j, m],   w = softmax_j(q[t, n] . k[j, m] * scale + bias),
// m = n * KV / N, over the keys j of t's own sequence that lie within the window,
// i - window_left <= j <= i + window_right, i and j counted from the sequence's start. Online
// softmax (Milakov and Gimelshein 2018): with each tile of keys, what was summed so far is rescaled
// to the largest score so far.
//
//   out            (T, N * D)             STORAGE
//   qk             (T, qk_heads * D)      STORAGE, rows that begin with q (N, D) and k (KV, D)
//   qkv            (T, (N + 2 KV) * D)    STORAGE, v the last KV heads. `qk` may be `qkv`
//   cu_seqlens     (B + 1,)               int32, where each sequence starts among the T rows
//   position_bias  (N, 2 P - 1)           float32, or null: entry j - i + P - 1 of head n is added
//   P = positions, D = head_dim <= WIDTH, S = max_seq, the longest sequence; a negative window has
//   no limit
//
//   grid    (B * N * ceil(S / QUERY_ROWS)): the query tiles of a head side by side, then its heads
//   block   (32 * WARPS): a warp owns every WARPS-th query row, a lane one key of the tile and
//           then every 32nd dimension of the context
//   shared  float32 queries (QUERY_ROWS, WIDTH), keys (32, WIDTH + 1), values (32, WIDTH),
//           weights (QUERY_ROWS, 32). The odd stride of the keys spreads a column over all banks.
template <int WIDTH>
__device__ inline void varlen_attention(STORAGE* out, const STORAGE* qk, const STORAGE* qkv,
                                        const int* cu_seqlens, const float* position_bias,
                                        int positions, int num_heads, int kv_heads, int qk_heads,
                                        int max_seq, int head_dim, float scale, int window_left,
                                        int window_right) {
    extern __shared__ float shared_memory[];
    constexpr int KEY_STRIDE = WIDTH + 1;
    constexpr int DIMS_PER_LANE = WIDTH / LANES;
    float* queries = shared_memory;
    float* keys = queries + QUERY_ROWS * WIDTH;
    float* values = keys + KEY_ROWS * KEY_STRIDE;
    float* weights = values + KEY_ROWS * WIDTH;

    const int row_tiles = (max_seq + QUERY_ROWS - 1) / QUERY_ROWS;
    const int head = blockIdx.x / row_tiles % num_heads;
    const int sequence = blockIdx.x / row_tiles / num_heads;
    const int start = cu_seqlens[sequence];
    const int length = cu_seqlens[sequence + 1] - start;
    const int first_row = blockIdx.x % row_tiles * QUERY_ROWS;
    if (first_row >= length) return;  // the whole block
    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;

    const size_t qk_stride = (size_t)qk_heads * head_dim;
    const size_t v_stride = (size_t)(num_heads + 2 * kv_heads) * head_dim;
    const int kv_head = head * kv_heads / num_heads;
    const STORAGE* q = qk + start * qk_stride + (size_t)head * head_dim;
    const STORAGE* k = qk + start * qk_stride + (size_t)(num_heads + kv_head) * head_dim;
    const STORAGE* v = qkv + start * v_stride + (size_t)(num_heads + kv_heads + kv_head) * head_dim;

    // The keys that any row of this block sees.
    const int last_row = min(first_row + QUERY_ROWS, length) - 1;
    const int first_key = window_left < 0 ? 0 : max(0, first_row - window_left);
    const int end_key = window_right < 0 ? length : min(length, last_row + window_right + 1);

    float peak[ROWS_PER_WARP], total[ROWS_PER_WARP], context[ROWS_PER_WARP][DIMS_PER_LANE];
#pragma unroll
    for (int r = 0; r < ROWS_PER_WARP; r++) {
        peak[r] = -INFINITY;
        total[r] = 0.0f;
#pragma unroll
        for (int c = 0; c < DIMS_PER_LANE; c++) context[r][c] = 0.0f;
    }

    load_rows<WIDTH>(queries, WIDTH, q, qk_stride, first_row, QUERY_ROWS, length, head_dim);
    for (int tile = first_key; tile < end_key; tile += KEY_ROWS) {
        load_rows<WIDTH>(keys, KEY_STRIDE, k, qk_stride, tile, KEY_ROWS, end_key, head_dim);
        load_rows<WIDTH>(values, WIDTH, v, v_stride, tile, KEY_ROWS, end_key, head_dim);
        __syncthreads();  // the tile is complete
#pragma unroll
        for (int r = 0; r < ROWS_PER_WARP; r++) {
            const int local_row = r * WARPS + warp;
            const int row = first_row + local_row, key = tile + lane;
            if (row >= length) continue;  // the whole warp

            const bool visible = key < end_key && (window_left < 0 || key >= row - window_left) &&
                                 (window_right < 0 || key <= row + window_right);
            float score = -INFINITY;
            if (visible) {
                float product = 0.0f;
                for (int d = 0; d < head_dim; d++)
                    product += queries[local_row * WIDTH + d] * keys[lane * KEY_STRIDE + d];
                score = product * scale;
                if (position_bias)
                    score += position_bias[(size_t)head * (2 * positions - 1) + key - row +
                                           positions - 1];
            }

            const float highest = fmaxf(peak[r], warp_max(score));
            const float shift = highest == -INFINITY ? 0.0f : highest;  // nothing seen yet
            const float rescale = expf(peak[r] - shift);
            const float weight = expf(score - shift);  // 0 where not visible
            peak[r] = highest;
            total[r] = total[r] * rescale + weight;  // of this lane's keys
            weights[local_row * KEY_ROWS + lane] = weight;
            __syncwarp();  // the row's weights are complete

#pragma unroll
            for (int c = 0; c < DIMS_PER_LANE; c++) {
                float sum = context[r][c] * rescale;
                for (int j = 0; j < KEY_ROWS; j++)
                    sum += weights[local_row * KEY_ROWS + j] * values[j * WIDTH + c * LANES + lane];
                context[r][c] = sum;
            }
        }
        __syncthreads();  // every warp is done with the tile
    }

#pragma unroll
    for (int r = 0; r < ROWS_PER_WARP; r++) {
        const int row = first_row + r * WARPS + warp;
        if (row >= length) continue;
        const float sum = warp_sum(total[r]);
        const float share = 1.0f / sum;
        STORAGE* to = out + ((size_t)(start + row) * num_heads + head) * head_dim;
#pragma unroll
        for (int c = 0; c < DIMS_PER_LANE; c++) {
            const int d = c * LANES + lane;
            if (d < head_dim) store(to + d, sum == 0.0f ? 0.0f : context[r][c] * share);
        }
    }
}

// BLOCKS: how many of them share a multiprocessor, which bounds the registers of a thread.
#define VARLEN_ATTENTION(WIDTH, BLOCKS)                                                           \
    extern "C" __global__ void __launch_bounds__(WARPS * LANES, BLOCKS) varlen_attention_##WIDTH( \
        STORAGE* out, const STORAGE* qk, const STORAGE* qkv, const int* cu_seqlens,               \
        const float* position_bias, int positions, int num_heads, int kv_heads, int qk_heads,     \
        int max_seq, int head_dim, float scale, int window_left, int window_right) {              \
        varlen_attention<WIDTH>(out, qk, qkv, cu_seqlens, position_bias, positions, num_heads,    \
                                kv_heads, qk_heads, max_seq, head_dim, scale, window_left,        \
                                window_right);                                                    \
    }
VARLEN_ATTENTION(32, 6)
VARLEN_ATTENTION(64, 5)
VARLEN_ATTENTION(96, 5)
VARLEN_ATTENTION(128, 5)
VARLEN_ATTENTION(256, 2)
