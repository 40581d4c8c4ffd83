// Pasted before the kernels of every theme. Built with -D STORAGE=float, __half or __nv_bfloat16:
// what tensors are stored in; arithmetic is float32, rounded once at the end.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef INFINITY  // NVRTC has no math.h
#define INFINITY __int_as_float(0x7f800000)
#endif

constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr int LANES = 32;

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(__half x) { return __half2float(x); }
__device__ inline float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline void store(float* to, float x) { *to = x; }
__device__ inline void store(__half* to, float x) { *to = __float2half_rn(x); }
__device__ inline void store(__nv_bfloat16* to, float x) { *to = __float2bfloat16_rn(x); }

// The largest value of a warp, and the sum of a warp, in every lane.
__device__ inline float warp_max(float x) {
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2)
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, offset));
    return x;
}
__device__ inline float warp_sum(float x) {
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2)
        x += __shfl_xor_sync(ALL_LANES, x, offset);
    return x;
}

// ---- activations, in float32: drivers/activations.py says what their names mean

// The numbers of drivers/cuda/activations.py.
enum Activation { NO_ACTIVATION, GELU, GELU_TANH, QUICK_GELU, RELU, SILU, TANH };

// max(x, 0), and NaN where x is.
__device__ inline float positive(float x) { return x < 0.0f ? 0.0f : x; }

// x * sigmoid(y). Where exp(-y) overflows, and __fdividef gives 0, the limit is 0.
__device__ inline float times_sigmoid(float x, float y) { return __fdividef(x, 1.0f + expf(-y)); }

// x * Phi(x) = max(x, 0) - |x| * Q(|x|), with no cancellation on either side. Q, the upper tail of
// the normal distribution, is exp(-a^2 / 2) times a polynomial of t: the fit of
// drivers/activations.py, of relative error 3.2e-8.
__device__ inline float gelu(float x) {
    constexpr float FIT[] = {0.1396214077f,  0.1398618032f,   0.1198334074f,
                             0.1055056131f,  -0.02310350487f, 0.1591638803f,
                             -0.2557042304f, 0.1439663182f,   -0.02914471045f};
    constexpr int LAST = sizeof FIT / sizeof FIT[0] - 1;
    const float a = fminf(fabsf(x), 40.0f);  // Q(40) is 0; keeps infinity out of 0 * a
    const float t = __fdividef(1.0f, 1.0f + 0.35f * a);
    float fit = FIT[LAST];
#pragma unroll
    for (int k = LAST - 1; k >= 0; k--) fit = fit * t + FIT[k];
    return positive(x) - a * (fit * t * expf(-0.5f * a * a));
}

template <int ACTIVATION>
__device__ inline float activation(float x) {
    if constexpr (ACTIVATION == GELU) return gelu(x);
    if constexpr (ACTIVATION == GELU_TANH)  // (1 + tanh(y)) / 2 is sigmoid(2 y)
        return times_sigmoid(x, 2 * 0.7978845608f * (x * (1.0f + 0.044715f * (x * x))));
    if constexpr (ACTIVATION == QUICK_GELU) return times_sigmoid(x, 1.702f * x);
    if constexpr (ACTIVATION == RELU) return positive(x);
    if constexpr (ACTIVATION == SILU) return times_sigmoid(x, x);
    if constexpr (ACTIVATION == TANH) return tanhf(x);
    return x;
}

// ---- chunks: CHUNK values in a row of a matrix, which a thread takes at once

constexpr int CHUNK = 8;

struct alignas(16) Bytes16 {
    unsigned word[4];
};

// Values as they are stored, side by side from the start.
struct Chunk {
    Bytes16 part[CHUNK * sizeof(float) / sizeof(Bytes16)];
};

// Where a chunk lies among rows of `cols` values: the last one of a row may be shorter, and
// a count of 0 stands for no chunk at all.
struct ChunkPlace {
    size_t row, column;
    int count;
};

// n / by; 32 bits, where they are enough, take a quarter of the time of 64.
__device__ inline size_t quotient(size_t n, size_t by) {
    return ((n | by) >> 32) == 0 ? (size_t)((unsigned)n / (unsigned)by) : n / by;
}

__device__ inline ChunkPlace chunk_place(size_t number, size_t rows, size_t cols) {
    const size_t chunks = (cols + CHUNK - 1) / CHUNK;  // of a row
    const size_t row = quotient(number, chunks);
    const size_t column = (number - row * chunks) * CHUNK;
    const size_t left = cols - column;
    return {row, column, row >= rows ? 0 : left < CHUNK ? (int)left : CHUNK};
}

__device__ inline bool on_16_bytes(const void* at) { return (size_t)at % sizeof(Bytes16) == 0; }

template <class VALUE>
__device__ inline Chunk read_values(const VALUE* from, int count) {
    Chunk chunk;
    if (count == CHUNK && on_16_bytes(from)) {
#pragma unroll
        for (int i = 0; i < CHUNK * sizeof(VALUE) / sizeof(Bytes16); i++)
            chunk.part[i] = reinterpret_cast<const Bytes16*>(from)[i];
    } else {
#pragma unroll
        for (int i = 0; i < CHUNK; i++)
            if (i < count) reinterpret_cast<VALUE*>(&chunk)[i] = from[i];
    }
    return chunk;
}
template <class VALUE>
__device__ inline void write_values(VALUE* to, int count, const Chunk& chunk) {
    if (count == CHUNK && on_16_bytes(to)) {
#pragma unroll
        for (int i = 0; i < CHUNK * sizeof(VALUE) / sizeof(Bytes16); i++)
            reinterpret_cast<Bytes16*>(to)[i] = chunk.part[i];
    } else {
#pragma unroll
        for (int i = 0; i < CHUNK; i++)
            if (i < count) to[i] = reinterpret_cast<const VALUE*>(&chunk)[i];
    }
}

// A chunk's values in float32, and what is stored for values in float32.
template <class VALUE>
__device__ inline void widen_values(float (&values)[CHUNK], const Chunk& chunk) {
#pragma unroll
    for (int i = 0; i < CHUNK; i++)
        values[i] = widen(reinterpret_cast<const VALUE*>(&chunk)[i]);
}
template <class VALUE>
__device__ inline Chunk round_values(const float (&values)[CHUNK]) {
    Chunk chunk;
#pragma unroll
    for (int i = 0; i < CHUNK; i++) store(reinterpret_cast<VALUE*>(&chunk) + i, values[i]);
    return chunk;
}

// The same for a tensor that is stored as STORAGE, or as float where `wide`. What is read is
// widened later, so that the reads of several tensors are under way together.
__device__ inline Chunk read_chunk(const void* from, bool wide, size_t first, int count) {
    if (wide) return read_values(static_cast<const float*>(from) + first, count);
    return read_values(static_cast<const STORAGE*>(from) + first, count);
}
__device__ inline void write_chunk(void* to, bool wide, size_t first, int count,
                                   const Chunk& chunk) {
    if (wide)
        write_values(static_cast<float*>(to) + first, count, chunk);
    else
        write_values(static_cast<STORAGE*>(to) + first, count, chunk);
}
__device__ inline void widen_chunk(float (&values)[CHUNK], const Chunk& chunk, bool wide) {
    if (wide)
        widen_values<float>(values, chunk);
    else
        widen_values<STORAGE>(values, chunk);
}
__device__ inline Chunk round_chunk(const float (&values)[CHUNK], bool wide) {
    return wide ? round_values<float>(values) : round_values<STORAGE>(values);
}
// What was read of a tensor, as it is or in the other type.
__device__ inline void move_chunk(void* to, bool to_wide, size_t first, int count,
                                  const Chunk& chunk, bool wide) {
    float values[CHUNK];
    widen_chunk(values, chunk, wide);
    write_chunk(to, to_wide, first, count,
                to_wide == wide ? chunk : round_chunk(values, to_wide));
}

// So many neighbours in one load or store; they lie on a boundary of their own size.
template <class Element, int COUNT>
struct alignas(sizeof(Element) * COUNT) Pack {
    Element at[COUNT];
};
template <int COUNT, class Element>
__device__ inline Pack<Element, COUNT> load_pack(const Element* from) {
    return *reinterpret_cast<const Pack<Element, COUNT>*>(from);
}
template <int COUNT, class Element>
__device__ inline void store_pack(Element* to, const Pack<Element, COUNT>& pack) {
    *reinterpret_cast<Pack<Element, COUNT>*>(to) = pack;
}

