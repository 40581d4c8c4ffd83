// Norms of rows. Built with WARPS and the bits of `wide` of drivers/cuda/launches/norms.py.

// out = norm(x + residual), or norm(x) + residual where `sandwich`, row by row:
//   norm(y) = (y - mean) / sqrt(mean of the squares + eps) * weight + bias,
// the mean 0 where not `centred`: layer norm (Ba et al. 2016), RMS norm (Zhang and Sennrich 2019).
//
//   out, x, residual   (rows, cols)   STORAGE, or float32 where `wide` has the tensor's bit
//   weight, bias       (cols,)        the same
//   residual and bias may be null; out may be x or residual
//
//   grid   (ceil(rows / WARPS))
//   block  (32 * WARPS): a warp a row
struct NormCall {
    void* out;
    const void *x, *residual, *weight, *bias;
    int wide;
    long long rows;
    int cols;
    float eps;
    bool centred, sandwich;
};

// Any width, any mix of dtypes, any start: the row is read again for each of the sums.
__device__ inline void norm_row_plain(const NormCall& call, size_t start, int lane) {
    const auto at = [&](const void* from, size_t place, int bit) {
        return load_either(from, place, call.wide & bit);
    };
    const bool before = call.residual && !call.sandwich, after = call.residual && call.sandwich;
    const auto row = read_row(call.cols, lane, [&](int col) {
        const float x = at(call.x, start + col, WIDE_X);
        return before ? x + at(call.residual, start + col, WIDE_RESIDUAL) : x;
    });
    const RowNorm norm = norm_of(row, call.centred, call.eps);
    row.each_column([&](float value, int col) {
        const float plus = call.bias ? at(call.bias, col, WIDE_BIAS) : 0.0f;
        float y = norm.normed(value) * at(call.weight, col, WIDE_WEIGHT) + plus;
        if (after) y += at(call.residual, start + col, WIDE_RESIDUAL);
        store_either(call.out, start + col, call.wide & WIDE_OUT, y);
    });
}

// A multiple of VECTOR columns, at most 32 HELD VECTOR; only weight and bias, both, may be wide.
template <int HELD>
__device__ inline void norm_row_held(const NormCall& call, size_t start, int lane) {
    HeldRow<HELD> row;
    row.cols = call.cols;
    row.lane = lane;
    const STORAGE* residual = static_cast<const STORAGE*>(call.residual) + start;
    row.read(static_cast<const STORAGE*>(call.x) + start);
    if (call.residual && !call.sandwich) row.add(residual);
    apply_norm(row, call.centred, call.eps, call.weight, call.bias, call.wide & WIDE_WEIGHT);
    if (call.residual && call.sandwich) row.add(residual);
    row.write(static_cast<STORAGE*>(call.out) + start);
}

template <int HELD>
__device__ inline void norm_rows(const NormCall& call) {
    const size_t row = (size_t)blockIdx.x * WARPS + threadIdx.x / LANES;
    if (row >= (size_t)call.rows) return;  // the whole warp
    const size_t start = row * call.cols;
    const int lane = threadIdx.x % LANES;
    if (HELD > 0 && on_vectors(call.out, call.x, call.residual, call.weight, call.bias))
        norm_row_held<(HELD > 0 ? HELD : 1)>(call, start, lane);
    else
        norm_row_plain(call, start, lane);
}

// One block a processor is asked for: left to guess, the compiler spills to make room for more.
#define NORM(NAME, HELD)                                                                         \
    extern "C" __global__ void __launch_bounds__(WARPS * LANES, 1) NAME(                         \
        void* out, const void* x, const void* residual, const void* weight, const void* bias,    \
        int wide, long long rows, int cols, float eps, int centred, int sandwich) {              \
        norm_rows<HELD>({out, x, residual, weight, bias, wide, rows, cols, eps, centred != 0,    \
                         sandwich != 0});                                                        \
    }
NORM(norm_plain, 0)
NORM(norm_held_1, 1)
NORM(norm_held_2, 2)
NORM(norm_held_3, 3)
NORM(norm_held_4, 4)
NORM(norm_held_6, 6)
NORM(norm_held_8, 8)
NORM(norm_held_12, 12)
NORM(norm_held_16, 16)

// out = x / max(|x|, floor), row by row: a row of zeros stays one.
//
//   out, x   (rows, cols)   STORAGE, or float32 where `wide` has the tensor's bit; may be the same
//
//   grid   (ceil(rows / WARPS))
//   block  (32 * WARPS): a warp a row
extern "C" __global__ void __launch_bounds__(WARPS * LANES) l2_normalize(
    void* out, const void* x, int wide, long long rows, int cols, float floor) {
    const size_t number = (size_t)blockIdx.x * WARPS + threadIdx.x / LANES;
    if (number >= (size_t)rows) return;  // the whole warp
    const size_t start = number * cols;
    const auto row = read_row(cols, threadIdx.x % LANES, [&](int col) {
        return load_either(x, start + col, wide & WIDE_X);
    });
    float squares = 0.0f;
    row.each([&](float y) { squares += y * y; });
    const float length = sqrtf(warp_sum(squares));
    const float divisor = length < floor ? floor : length;  // NaN stays NaN
    row.each_column([&](float y, int col) {
        store_either(out, start + col, wide & WIDE_OUT, y / divisor);
    });
}
