// Products within a band: queries against the few keys near them, and weights against values.
// Built with WARPS, QUERY_ROWS and DIMS of drivers/cuda/launches/banded.py.

constexpr int KEY_ROWS = LANES;  // a tile of keys: one a lane
constexpr int ROWS_PER_WARP = QUERY_ROWS / WARPS;
constexpr int KEY_STRIDE = DIMS + 1;  // odd: a column of keys spreads over all banks

// Copies rows [first, first + rows) and dimensions [dim, dim + DIMS) of one head into shared
// memory, `stride` floats a row: zeros outside rows [0, seq), and behind head_dim. All threads of
// the block take part.
template <class In>
__device__ inline void load_rows(float* to, int stride, const In* from, int first, int rows,
                                 int seq, int dim, int head_dim) {
    for (int i = threadIdx.x; i < rows * DIMS; i += WARPS * LANES) {
        const int row = first + i / DIMS, column = dim + i % DIMS;
        const bool exists = row >= 0 && row < seq && column < head_dim;
        to[i / DIMS * stride + i % DIMS] =
            exists ? widen(from[(size_t)row * head_dim + column]) : 0.0f;
    }
}

// The group and the first query of this block: blocks lie along x, group by group.
struct Tile {
    int group, first_row;
};
__device__ inline Tile own_tile(int seq) {
    const int tiles = (seq + QUERY_ROWS - 1) / QUERY_ROWS;
    return {(int)(blockIdx.x / tiles), (int)(blockIdx.x % tiles * QUERY_ROWS)};
}

// out[g, i, w] = q[g, i] . k[h, j],  j = i - W / 2 + w,  h = g / heads_per_key_head; -inf where
// there is no key j.
//
//   out  (G, S, W)                        Out
//   q    (G, S, D)                        Query
//   k    (G / heads_per_key_head, S, D)   Key
//   W = window, D = head_dim
//
//   grid    (G * ceil(S / QUERY_ROWS))
//   block   (32 * WARPS): a warp owns every WARPS-th query row, a lane one key of the tile
//   shared  float32 queries (QUERY_ROWS, DIMS), keys (32, DIMS + 1)
template <class Out, class Query, class Key>
__device__ inline void banded_qk(Out* out, const Query* q, const Key* k, int seq,
                                 int heads_per_key_head, int head_dim, int window) {
    extern __shared__ float shared_memory[];
    float* queries = shared_memory;
    float* keys = queries + QUERY_ROWS * DIMS;
    const auto [group, first_row] = own_tile(seq);
    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const size_t head = (size_t)seq * head_dim;
    const Query* own = q + group * head;
    const Key* theirs = k + group / heads_per_key_head * head;

    const int last_row = min(first_row + QUERY_ROWS, seq) - 1;
    const int end_key = last_row - window / 2 + window;
    for (int tile = first_row - window / 2; tile < end_key; tile += KEY_ROWS) {
        const bool exists = tile + KEY_ROWS > 0 && tile < seq;  // any key of the tile
        float score[ROWS_PER_WARP] = {};
        for (int dim = 0; exists && dim < head_dim; dim += DIMS) {
            load_rows(queries, DIMS, own, first_row, QUERY_ROWS, seq, dim, head_dim);
            load_rows(keys, KEY_STRIDE, theirs, tile, KEY_ROWS, seq, dim, head_dim);
            __syncthreads();  // the tiles are complete
            const int dims = min(DIMS, head_dim - dim);
            for (int d = 0; d < dims; d++) {
                const float key = keys[lane * KEY_STRIDE + d];
#pragma unroll
                for (int r = 0; r < ROWS_PER_WARP; r++)
                    score[r] += queries[(r * WARPS + warp) * DIMS + d] * key;
            }
            __syncthreads();  // every warp is done with the tiles
        }
        const int key = tile + lane;
        int row = first_row + warp, column = key - (row - window / 2);
        Out* to = out + ((size_t)group * seq + row) * window + column;
        const bool has_key = key >= 0 && key < seq;
#pragma unroll
        for (int r = 0; r < ROWS_PER_WARP; r++) {
            if (row < seq && column >= 0 && column < window)
                store(to, has_key ? score[r] : -INFINITY);
            row += WARPS;
            column -= WARPS;
            to += (size_t)WARPS * window - WARPS;
        }
    }
}

// out[g, i] = sum_w weights[g, i, w] v[h, j] over the keys j = i - W / 2 + w that exist,
// h = g / heads_per_value_head. Weights of keys that do not exist are not read, and no value
// outside a query's band reaches its sum.
//
//   out      (G, S, D)                          Out
//   weights  (G, S, W)                          Weight
//   v        (G / heads_per_value_head, S, D)   Value
//   W = window, D = head_dim
//
//   grid    (G * ceil(S / QUERY_ROWS), ceil(D / DIMS))
//   block   (32 * WARPS): a warp owns every WARPS-th query row, a lane every 32nd dimension
//   shared  float32 values (32, DIMS), weights (QUERY_ROWS, 32)
template <class Out, class Weight, class Value>
__device__ inline void banded_sv(Out* out, const Weight* weights, const Value* v, int seq,
                                 int heads_per_value_head, int head_dim, int window) {
    extern __shared__ float shared_memory[];
    constexpr int DIMS_PER_LANE = DIMS / LANES;
    float* values = shared_memory;
    float* of_keys = values + KEY_ROWS * DIMS;
    const auto [group, first_row] = own_tile(seq);
    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const int dim = blockIdx.y * DIMS;
    const Value* theirs = v + group / heads_per_value_head * ((size_t)seq * head_dim);

    const int last_row = min(first_row + QUERY_ROWS, seq) - 1;
    const int end_key = min(seq, last_row - window / 2 + window);
    float sum[ROWS_PER_WARP][DIMS_PER_LANE] = {};
    for (int tile = max(0, first_row - window / 2); tile < end_key; tile += KEY_ROWS) {
        load_rows(values, DIMS, theirs, tile, KEY_ROWS, seq, dim, head_dim);
#pragma unroll
        for (int r = 0; r < ROWS_PER_WARP; r++) {
            const int row = first_row + r * WARPS + warp, key = tile + lane;
            const int column = key - (row - window / 2);
            const bool exists = row < seq && key < seq && column >= 0 && column < window;
            of_keys[(r * WARPS + warp) * KEY_ROWS + lane] =
                exists ? widen(weights[((size_t)group * seq + row) * window + column]) : 0.0f;
        }
        __syncthreads();  // values and weights are complete
        const int keys = min(KEY_ROWS, end_key - tile);
        for (int j = 0; j < keys; j++) {
            float value[DIMS_PER_LANE];
#pragma unroll
            for (int c = 0; c < DIMS_PER_LANE; c++)
                value[c] = values[j * DIMS + c * LANES + lane];
#pragma unroll
            for (int r = 0; r < ROWS_PER_WARP; r++) {
                const int local_row = r * WARPS + warp;
                const int column = tile + j - (first_row + local_row - window / 2);
                if (column < 0 || column >= window) continue;  // the whole warp
                const float weight = of_keys[local_row * KEY_ROWS + j];
#pragma unroll
                for (int c = 0; c < DIMS_PER_LANE; c++) sum[r][c] += weight * value[c];
            }
        }
        __syncthreads();  // every warp is done with the tile
    }
#pragma unroll
    for (int r = 0; r < ROWS_PER_WARP; r++) {
        const int row = first_row + r * WARPS + warp;
        if (row >= seq) continue;
#pragma unroll
        for (int c = 0; c < DIMS_PER_LANE; c++) {
            const int d = dim + c * LANES + lane;
            if (d < head_dim) store(out + ((size_t)group * seq + row) * head_dim + d, sum[r][c]);
        }
    }
}

// By the types of out and of the two inputs: s the storage type, f float32. Four blocks a
// multiprocessor: without that number the compiler spills a register or two to fit more.
#define BANDED(MIX, OUT, LEFT, RIGHT)                                                          \
    extern "C" __global__ void __launch_bounds__(WARPS * LANES, 4)                             \
        banded_qk_##MIX(OUT* out, const LEFT* q, const RIGHT* k, int seq,                      \
                        int heads_per_key_head, int head_dim, int window) {                    \
        banded_qk(out, q, k, seq, heads_per_key_head, head_dim, window);                       \
    }                                                                                          \
    extern "C" __global__ void __launch_bounds__(WARPS * LANES, 4)                             \
        banded_sv_##MIX(OUT* out, const LEFT* weights, const RIGHT* v, int seq,                \
                        int heads_per_value_head, int head_dim, int window) {                  \
        banded_sv(out, weights, v, seq, heads_per_value_head, head_dim, window);               \
    }
BANDED(sss, STORAGE, STORAGE, STORAGE)
BANDED(ssf, STORAGE, STORAGE, float)
BANDED(sfs, STORAGE, float, STORAGE)
BANDED(sff, STORAGE, float, float)
BANDED(fss, float, STORAGE, STORAGE)
BANDED(fsf, float, STORAGE, float)
BANDED(ffs, float, float, STORAGE)
