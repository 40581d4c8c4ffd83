// Sums and activations, value by value. Built with THREADS of drivers/cuda/launches/chunks.py.

// out = act(x + bias) + residual, rounded once; what is null is left out.
//
//   out, x, residual  (rows, cols)  STORAGE, or float32 where the flag behind the pointer is set;
//                                   out may be x or residual
//   bias              (cols,)       the same
//
//   grid   (ceil(rows * ceil(cols / CHUNK) / THREADS))
//   block  (THREADS): a thread a chunk
template <int ACTIVATION>
__device__ inline void elementwise(void* out, bool out_wide, const void* x, bool x_wide,
                                   const void* bias, bool bias_wide, const void* residual,
                                   bool residual_wide, size_t rows, size_t cols) {
    const size_t number = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const ChunkPlace place = chunk_place(number, rows, cols);
    if (place.count == 0) return;
    const size_t first = place.row * cols + place.column;

    Chunk x_chunk = read_chunk(x, x_wide, first, place.count), bias_chunk, residual_chunk;
    if (bias) bias_chunk = read_chunk(bias, bias_wide, place.column, place.count);
    if (residual) residual_chunk = read_chunk(residual, residual_wide, first, place.count);

    float values[CHUNK], added[CHUNK];
    widen_chunk(values, x_chunk, x_wide);
    if (bias) {
        widen_chunk(added, bias_chunk, bias_wide);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) values[i] += added[i];
    }
#pragma unroll
    for (int i = 0; i < CHUNK; i++) values[i] = activation<ACTIVATION>(values[i]);
    if (residual) {
        widen_chunk(added, residual_chunk, residual_wide);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) values[i] += added[i];
    }
    write_chunk(out, out_wide, first, place.count, round_chunk(values, out_wide));
}

#define ELEMENTWISE(NAME, ACTIVATION)                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS) elementwise_##NAME(                     \
        void* out, int out_wide, const void* x, int x_wide, const void* bias, int bias_wide,      \
        const void* residual, int residual_wide, long long rows, long long cols) {                \
        elementwise<ACTIVATION>(out, out_wide, x, x_wide, bias, bias_wide, residual,              \
                                residual_wide, rows, cols);                                       \
    }
ELEMENTWISE(sum, NO_ACTIVATION)
ELEMENTWISE(gelu, GELU)
ELEMENTWISE(gelu_tanh, GELU_TANH)
ELEMENTWISE(quick_gelu, QUICK_GELU)
ELEMENTWISE(relu, RELU)
ELEMENTWISE(silu, SILU)
ELEMENTWISE(tanh, TANH)
