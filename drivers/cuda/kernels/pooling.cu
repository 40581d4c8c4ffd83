// From the tokens of a sequence to one float32 vector. Built with WARPS and the numbers of the
// modes, MODE_CLS and so on, of drivers/cuda/launches/pooling.py.

constexpr int SLICE = LANES * VECTOR;  // columns of a block, VECTOR a lane

// The weight of a token, counted from the first that is read. Only a mask's may be 0: then the
// token is not looked at.
struct EvenWeights {
    static constexpr bool MAY_BE_ZERO = false;
    __device__ inline float operator()(int) const { return 1.0f; }
};
struct RisingWeights {
    static constexpr bool MAY_BE_ZERO = false;
    int first;
    __device__ inline float operator()(int token) const { return first + token; }
};
struct MaskWeights {
    static constexpr bool MAY_BE_ZERO = true;
    const float* mask;
    __device__ inline float operator()(int token) const { return mask[token]; }
};

// The larger of two values; NaN is larger than all.
__device__ inline float larger(float a, float b) { return b > a || b != b ? b : a; }

template <bool LARGEST>
__device__ inline float joined(float a, float b) {
    return LARGEST ? larger(a, b) : a + b;
}

// Which of the block's columns is a lane's value j: neighbours where it reads 16 bytes at a time.
template <bool PIECES>
__device__ inline int column_of(int lane, int j) {
    return PIECES ? lane * VECTOR + j : j * LANES + lane;
}

// Every WARPS-th token of x (tokens, width), this warp's, in the columns from first_col on: their
// weighted sum or their largest value, and the sum of their weights. A lane behind the last column
// reads that one in its place.
template <bool LARGEST, bool PIECES, class Weight>
__device__ inline void gather(float (&kept)[VECTOR], float& total, const STORAGE* x, int tokens,
                              int width, int first_col, Weight weight) {
    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
#pragma unroll 4
    for (int token = warp; token < tokens; token += WARPS) {
        const float by = weight(token);
        if (Weight::MAY_BE_ZERO && by == 0.0f) continue;
        const STORAGE* row = x + (size_t)token * width;
        float value[VECTOR];
        if (PIECES) {
            load_vector(value, row + min(first_col + lane * VECTOR, width - VECTOR));
        } else {
#pragma unroll
            for (int j = 0; j < VECTOR; j++)
                value[j] = widen(row[min(first_col + column_of<PIECES>(lane, j), width - 1)]);
        }
#pragma unroll
        for (int j = 0; j < VECTOR; j++)
            kept[j] = joined<LARGEST>(kept[j], LARGEST ? value[j] : by * value[j]);
        total += LARGEST ? 1.0f : by;
    }
}

// out[c] = the largest x[t, c], or sum_t weight(t) x[t, c] / sum_t weight(t), the root of the last
// sum where `root`, over t < tokens, for the columns c < out_cols of the SLICE from first_col on;
// zeros where no token is read. Warps take turns with the tokens, and what they gathered is joined
// in their order: a sequence has the same bits whatever stands beside it.
template <bool LARGEST, class Weight>
__device__ inline void pool_slice(float* out, int out_cols, const STORAGE* x, int tokens, int width,
                                  int first_col, Weight weight, bool root) {
    extern __shared__ float gathered[];  // (WARPS, SLICE), then the weights' sums, (WARPS,)
    float* totals = gathered + WARPS * SLICE;
    const int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const float nothing = LARGEST ? -INFINITY : 0.0f;

    float kept[VECTOR], total = 0.0f;
#pragma unroll
    for (int j = 0; j < VECTOR; j++) kept[j] = nothing;
    const bool pieces = width % VECTOR == 0 && on_vectors(x);
    if (pieces)
        gather<LARGEST, true>(kept, total, x, tokens, width, first_col, weight);
    else
        gather<LARGEST, false>(kept, total, x, tokens, width, first_col, weight);
#pragma unroll
    for (int j = 0; j < VECTOR; j++) {
        const int col = pieces ? column_of<true>(lane, j) : column_of<false>(lane, j);
        gathered[warp * SLICE + col] = kept[j];
    }
    if (lane == 0) totals[warp] = total;
    __syncthreads();  // every warp's share is there

    total = 0.0f;
    for (int w = 0; w < WARPS; w++) total += totals[w];
    const float divisor = LARGEST || total == 0.0f ? 1.0f : root ? sqrtf(total) : total;
    for (int c = threadIdx.x; c < SLICE && first_col + c < out_cols; c += WARPS * LANES) {
        float y = nothing;
        for (int w = 0; w < WARPS; w++) y = joined<LARGEST>(y, gathered[w * SLICE + c]);
        out[first_col + c] = LARGEST && total == 0.0f ? 0.0f : y / divisor;
    }
}

// Several modes side by side over unpadded tokens, the first skips[b] of sequence b left out; cut
// to the first `dim` columns. Mode y = blockIdx.y is the y-th number of MODE_BITS bits in `modes`; its
// columns are those from (first_mode + y) * width on.
//
//   out          (B, dim)     float32
//   x            (T, width)   STORAGE
//   cu_seqlens   (B + 1,)     int32, where each sequence starts among the T rows
//   skips        (B,)         int32, or null: nothing is left out
//
//   grid    (ceil(width / SLICE) * B, modes)
//   block   (32 * WARPS)
//   shared  float32 (WARPS, SLICE + 1)
extern "C" __global__ void __launch_bounds__(WARPS * LANES) pool(
    float* out, const STORAGE* x, const int* cu_seqlens, const int* skips, long long modes,
    int first_mode, int width, int dim) {
    const int slices = (width + SLICE - 1) / SLICE;
    const int sequence = blockIdx.x / slices, first_col = blockIdx.x % slices * SLICE;
    const int mode = modes >> MODE_BITS * blockIdx.y & ((1 << MODE_BITS) - 1);
    const int before = (first_mode + blockIdx.y) * width;
    const int out_cols = min(width, dim - before);
    if (first_col >= out_cols) return;  // the whole block: all of it is cut off

    const int skip = skips ? skips[sequence] : 0;
    int first = cu_seqlens[sequence] + skip, end = cu_seqlens[sequence + 1];
    if (mode == MODE_CLS) end = min(end, first + 1);
    if (mode == MODE_LAST) first = max(first, end - 1);
    float* to = out + (size_t)sequence * dim + before;
    const STORAGE* from = x + (size_t)first * width;
    if (mode == MODE_MAX)
        pool_slice<true>(to, out_cols, from, end - first, width, first_col, EvenWeights{}, false);
    else if (mode == MODE_WEIGHTED_MEAN)
        pool_slice<false>(to, out_cols, from, end - first, width, first_col,
                          RisingWeights{skip + 1}, false);
    else
        pool_slice<false>(to, out_cols, from, end - first, width, first_col, EvenWeights{},
                          mode == MODE_MEAN_SQRT_LEN);
}

// One vector of each sequence of a padded batch: the largest values or the weighted mean of the
// tokens whose mask is not 0, or the first token where there is no mask.
//
//   out      (B, width)      float32
//   hidden   (B, S, width)   STORAGE, S = seq
//   mask     (B, S)          float32, or null
//
//   grid, block and shared memory as above, with one mode
extern "C" __global__ void __launch_bounds__(WARPS * LANES) pool_padded(
    float* out, const STORAGE* hidden, const float* mask, int seq, int width, int largest) {
    const int slices = (width + SLICE - 1) / SLICE;
    const size_t sequence = blockIdx.x / slices;
    const int first_col = blockIdx.x % slices * SLICE;
    float* to = out + sequence * width;
    const STORAGE* from = hidden + sequence * seq * width;
    const MaskWeights weights = {mask + sequence * seq};
    if (!mask)
        pool_slice<false>(to, width, from, min(seq, 1), width, first_col, EvenWeights{}, false);
    else if (largest)
        pool_slice<true>(to, width, from, seq, width, first_col, weights, false);
    else
        pool_slice<false>(to, width, from, seq, width, first_col, weights, false);
}
