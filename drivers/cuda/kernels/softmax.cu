// Softmax of rows, a warp a row: a short row stays in registers, a long one is read twice.
// Built with WARPS and MASKED_AT_OR_BELOW of drivers/cuda/launches/softmax.py.

// The logits of columns [column, column + PACK) of a row: -inf outside [first, end), where nothing
// is read, and where logit(column, score) says so.
template <int PACK, class In, class Logit>
__device__ inline void read_logits(float* x, const In* scores, int column, int first, int end,
                                   const Logit& logit) {
    Pack<In, PACK> pack;
    if (column + PACK > first && column < end)
        pack = load_pack<PACK>(scores + column);
#pragma unroll
    for (int i = 0; i < PACK; i++) {
        const bool visible = column + i >= first && column + i < end;
        x[i] = visible ? logit(column + i, widen(pack.at[i])) : -INFINITY;
    }
}

// out = power / total, 0 where the power is: a masked key's weight is 0 whatever the total.
template <int PACK, class Out>
__device__ inline void write_weights(Out* out, int column, const float* power, float inverse) {
    Pack<Out, PACK> pack;
#pragma unroll
    for (int i = 0; i < PACK; i++)
        store(pack.at + i, power[i] == 0.0f ? 0.0f : power[i] * inverse);
    store_pack(out + column, pack);
}

// One row by one warp: out[c] = exp(x[c] - peak) / sum_c exp(x[c] - peak), x[c] the logit of column
// c and peak the largest; zeros where every x is -inf. `out` may be `scores`: a lane writes only
// columns that it has read itself. WIDTH: the longest row that is kept, or 0 to keep none.
template <int WIDTH, int PACK, class Out, class In, class Logit>
__device__ inline void softmax_row(Out* out, const In* scores, int columns, int first, int end,
                                   const Logit& logit) {
    constexpr int STEP = LANES * PACK;  // columns that the warp takes at a time
    const int own = threadIdx.x % LANES * PACK;
    if constexpr (WIDTH > 0) {
        float x[WIDTH / STEP][PACK];
        float peak = -INFINITY, total = 0.0f;
#pragma unroll
        for (int s = 0; s < WIDTH / STEP; s++) {
            read_logits<PACK>(x[s], scores, s * STEP + own, first, end, logit);
#pragma unroll
            for (int i = 0; i < PACK; i++) peak = fmaxf(peak, x[s][i]);
        }
        peak = warp_max(peak);
        const float shift = peak == -INFINITY ? 0.0f : peak;
#pragma unroll
        for (int s = 0; s < WIDTH / STEP; s++)
#pragma unroll
            for (int i = 0; i < PACK; i++) {
                x[s][i] = expf(x[s][i] - shift);
                total += x[s][i];
            }
        const float inverse = 1.0f / warp_sum(total);
#pragma unroll
        for (int s = 0; s < WIDTH / STEP; s++) {
            const int column = s * STEP + own;
            if (column < columns) write_weights<PACK>(out, column, x[s], inverse);
        }
    } else {
        float x[PACK];
        float peak = -INFINITY, total = 0.0f;  // of this lane's columns
        for (int column = first / STEP * STEP + own; column < end; column += STEP) {
            read_logits<PACK>(x, scores, column, first, end, logit);
#pragma unroll
            for (int i = 0; i < PACK; i++) {
                if (x[i] == -INFINITY) continue;
                if (x[i] > peak) {
                    total *= expf(peak - x[i]);
                    peak = x[i];
                }
                total += expf(x[i] - peak);
            }
        }
        const float highest = warp_max(peak);
        const float shift = highest == -INFINITY ? 0.0f : highest;
        const float inverse = 1.0f / warp_sum(total == 0.0f ? 0.0f : total * expf(peak - shift));
        for (int column = own; column < columns; column += STEP) {
            read_logits<PACK>(x, scores, column, first, end, logit);
#pragma unroll
            for (int i = 0; i < PACK; i++) x[i] = expf(x[i] - shift);
            write_weights<PACK>(out, column, x, inverse);
        }
    }
}

// The row of this warp. Blocks lie along x, group by group, WARPS rows each; a row at or behind
// `rows` does not exist.
struct Row {
    int group, row;
};
__device__ inline Row own_row(int rows) {
    const int blocks_per_group = (rows + WARPS - 1) / WARPS;
    return {(int)(blockIdx.x / blocks_per_group),
            (int)(blockIdx.x % blocks_per_group * WARPS + threadIdx.x / LANES)};
}

struct MaskedLogit {
    const float* mask;  // of this sequence, or null
    const float* bias;  // of this query, or null
    float scale;
    __device__ inline float operator()(int key, float score) const {
        const float added = mask ? mask[key] : 0.0f;
        if (added <= MASKED_AT_OR_BELOW) return -INFINITY;
        return score * scale + (bias ? bias[key] : 0.0f) + added;
    }
};

// out[g, i] = softmax_j(scores[g, i, j] * scale + position_bias[n, j - i + P - 1] + mask[b, j])
// over the keys j with i - window_left <= j <= i + window_right whose mask[b, j] is above
// MASKED_AT_OR_BELOW; weight 0 for the others. g = b * N + n; N = num_heads, P = positions.
//
//   out            (G, S, S)      Out, may be `scores`
//   scores         (G, S, S)      In
//   mask           (G / N, S)     float32, or null
//   position_bias  (N, 2 P - 1)   float32, or null
//   a negative window has no limit; S is a multiple of PACK, and at most WIDTH where that is not 0
//
//   grid    (G * ceil(S / WARPS))
//   block   (32 * WARPS): a warp a row
template <int WIDTH, int PACK, class Out, class In>
__device__ inline void masked_softmax(Out* out, const In* scores, const float* mask,
                                      const float* position_bias, int seq, int num_heads,
                                      int positions, float scale, int window_left,
                                      int window_right) {
    const auto [group, query] = own_row(seq);
    if (query >= seq) return;  // the whole warp
    const int first = window_left < 0 ? 0 : max(0, query - window_left);
    const int end = window_right < 0 ? seq : min(seq, query + window_right + 1);
    MaskedLogit logit = {nullptr, nullptr, scale};
    if (mask) logit.mask = mask + (size_t)(group / num_heads) * seq;
    if (position_bias)
        logit.bias = position_bias + (size_t)(group % num_heads) * (2 * positions - 1) +
                     (positions - 1 - query);
    const size_t start = ((size_t)group * seq + query) * seq;
    softmax_row<WIDTH, PACK>(out + start, scores + start, seq, first, end, logit);
}

struct BandedLogit {
    float scale;
    __device__ inline float operator()(int, float score) const {
        return score == -INFINITY ? score : score * scale;
    }
};

// out[g, i] = softmax_w(scores[g, i, w] * scale) over the columns w whose score is not -inf and
// whose key i - W / 2 + w lies before lengths[b]; weight 0 for the others. g = b * N + n.
//
//   out      (G, S, W)  Out, may be `scores`
//   scores   (G, S, W)  In
//   lengths  (G / N,)   int32, or null: every key lies before it
//   W = window, at most WIDTH where that is not 0; N = num_heads
//
//   grid    (G * ceil(S / WARPS))
//   block   (32 * WARPS): a warp a row
template <int WIDTH, class Out, class In>
__device__ inline void banded_softmax(Out* out, const In* scores, const int* lengths, int seq,
                                      int num_heads, int window, float scale) {
    const auto [group, query] = own_row(seq);
    if (query >= seq) return;  // the whole warp
    const int first_key = query - window / 2;
    const int end = lengths ? min(window, lengths[group / num_heads] - first_key) : window;
    const size_t start = ((size_t)group * seq + query) * window;
    softmax_row<WIDTH, 1>(out + start, scores + start, window, 0, end, BandedLogit{scale});
}

#define MASKED_SOFTMAX(MIX, WIDTH, PACK, OUT, IN)                                             \
    extern "C" __global__ void __launch_bounds__(WARPS * LANES)                               \
        masked_softmax_##MIX##_##WIDTH##_##PACK(                                              \
            OUT* out, const IN* scores, const float* mask, const float* position_bias,        \
            int seq, int num_heads, int positions, float scale, int window_left,              \
            int window_right) {                                                               \
        masked_softmax<WIDTH, PACK>(out, scores, mask, position_bias, seq, num_heads,         \
                                    positions, scale, window_left, window_right);             \
    }
#define BANDED_SOFTMAX(MIX, WIDTH, OUT, IN)                                                   \
    extern "C" __global__ void __launch_bounds__(WARPS * LANES)                               \
        banded_softmax_##MIX##_##WIDTH(OUT* out, const IN* scores, const int* lengths,        \
                                       int seq, int num_heads, int window, float scale) {     \
        banded_softmax<WIDTH>(out, scores, lengths, seq, num_heads, window, scale);           \
    }

// By the types of out and scores: s the storage type, f float32.
#define SOFTMAXES(MIX, OUT, IN)          \
    MASKED_SOFTMAX(MIX, 128, 1, OUT, IN) \
    MASKED_SOFTMAX(MIX, 128, 4, OUT, IN) \
    MASKED_SOFTMAX(MIX, 512, 1, OUT, IN) \
    MASKED_SOFTMAX(MIX, 512, 4, OUT, IN) \
    MASKED_SOFTMAX(MIX, 0, 1, OUT, IN)   \
    MASKED_SOFTMAX(MIX, 0, 4, OUT, IN)   \
    BANDED_SOFTMAX(MIX, 160, OUT, IN)    \
    BANDED_SOFTMAX(MIX, 0, OUT, IN)
SOFTMAXES(ss, STORAGE, STORAGE)
SOFTMAXES(sf, STORAGE, float)
SOFTMAXES(fs, float, STORAGE)
