// Gated linear units. Built with THREADS of drivers/cuda/launches/chunks.py.

// out = act(first + bias[:F]) * (second + bias[F:]), rounded once; without the bias if it is null.
//
//   out            (rows, F)  STORAGE, or float32 where the flag behind the pointer is set; out may
//                             be first or second where stride is F
//   first, second  (rows, F)  the same, each row `stride` values behind the last: two tensors, or
//                             the halves of one (rows, 2 F)
//   bias           (2 F,)     the same
//
//   grid   (ceil(rows * ceil(F / CHUNK) / THREADS))
//   block  (THREADS): a thread a chunk
template <int ACTIVATION>
__device__ inline void gate(void* out, bool out_wide, const void* first, bool first_wide,
                            const void* second, bool second_wide, const void* bias, bool bias_wide,
                            size_t rows, size_t cols, size_t stride) {
    const size_t number = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const ChunkPlace place = chunk_place(number, rows, cols);
    if (place.count == 0) return;
    const size_t from = place.row * stride + place.column;

    const Chunk first_chunk = read_chunk(first, first_wide, from, place.count);
    const Chunk second_chunk = read_chunk(second, second_wide, from, place.count);
    float activated[CHUNK], other[CHUNK];
    widen_chunk(activated, first_chunk, first_wide);
    widen_chunk(other, second_chunk, second_wide);
    if (bias) {
        const Chunk first_bias = read_chunk(bias, bias_wide, place.column, place.count);
        const Chunk second_bias = read_chunk(bias, bias_wide, cols + place.column, place.count);
        float added[CHUNK];
        widen_chunk(added, first_bias, bias_wide);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) activated[i] += added[i];
        widen_chunk(added, second_bias, bias_wide);
#pragma unroll
        for (int i = 0; i < CHUNK; i++) other[i] += added[i];
    }
#pragma unroll
    for (int i = 0; i < CHUNK; i++) other[i] *= activation<ACTIVATION>(activated[i]);
    const size_t to = place.row * cols + place.column;
    write_chunk(out, out_wide, to, place.count, round_chunk(other, out_wide));
}

#define GATE(NAME, ACTIVATION)                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS) gate_##NAME(                           \
        void* out, int out_wide, const void* first, int first_wide, const void* second,          \
        int second_wide, const void* bias, int bias_wide, long long rows, long long cols,        \
        long long stride) {                                                                      \
        gate<ACTIVATION>(out, out_wide, first, first_wide, second, second_wide, bias, bias_wide, \
                         rows, cols, stride);                                                    \
    }
GATE(gelu, GELU)
GATE(gelu_tanh, GELU_TANH)
GATE(quick_gelu, QUICK_GELU)
GATE(relu, RELU)
GATE(silu, SILU)
GATE(tanh, TANH)

// first = x[:, :F], second = x[:, F:].
//
//   first, second  (rows, F)    STORAGE, or float32 where the flag behind the pointer is set
//   x              (rows, 2 F)  the same
//
//   grid   (ceil(rows * ceil(F / CHUNK) / THREADS))
//   block  (THREADS): a thread a chunk of both halves
extern "C" __global__ void __launch_bounds__(THREADS)
    split_halves(void* first, int first_wide, void* second, int second_wide, const void* x,
                 int x_wide, long long rows, long long cols) {
    const size_t number = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const ChunkPlace place = chunk_place(number, rows, cols);
    if (place.count == 0) return;
    const size_t from = place.row * 2 * cols + place.column;
    const size_t to = place.row * cols + place.column;
    const Chunk first_chunk = read_chunk(x, x_wide, from, place.count);
    const Chunk second_chunk = read_chunk(x, x_wide, from + cols, place.count);
    move_chunk(first, first_wide, to, place.count, first_chunk, x_wide);
    move_chunk(second, second_wide, to, place.count, second_chunk, x_wide);
}
