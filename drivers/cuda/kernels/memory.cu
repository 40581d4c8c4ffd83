// Zeros, copies and casts. They know the types they move, or only bytes: one build serves all.
// Built with THREADS of drivers/cuda/launches/chunks.py.

// out = 0, and out = x.
//
//   out, x  (bytes,)
//
//   grid   (ceil(bytes / 16 / THREADS))
//   block  (THREADS): a thread 16 bytes, one at a time at an end or off a boundary of 16
extern "C" __global__ void __launch_bounds__(THREADS) fill_zeros(char* out, long long bytes) {
    const long long first = ((long long)blockIdx.x * THREADS + threadIdx.x) * sizeof(Bytes16);
    if (bytes - first >= (long long)sizeof(Bytes16) && on_16_bytes(out + first)) {
        *reinterpret_cast<Bytes16*>(out + first) = {};
        return;
    }
    const long long end = min(first + (long long)sizeof(Bytes16), bytes);
    for (long long i = first; i < end; i++) out[i] = 0;
}
extern "C" __global__ void __launch_bounds__(THREADS)
    copy_bytes(char* out, const char* x, long long bytes) {
    const long long first = ((long long)blockIdx.x * THREADS + threadIdx.x) * sizeof(Bytes16);
    if (bytes - first >= (long long)sizeof(Bytes16) && on_16_bytes(out + first) &&
        on_16_bytes(x + first)) {
        *reinterpret_cast<Bytes16*>(out + first) = *reinterpret_cast<const Bytes16*>(x + first);
        return;
    }
    const long long end = min(first + (long long)sizeof(Bytes16), bytes);
    for (long long i = first; i < end; i++) out[i] = x[i];
}

// out = x, rounded to nearest; beyond the range of TO infinite.
//
//   out  (count,) TO
//   x    (count,) FROM
//
//   grid   (ceil(count / CHUNK / THREADS))
//   block  (THREADS): a thread a chunk
template <class FROM, class TO>
__device__ inline void cast(TO* out, const FROM* x, size_t count) {
    const size_t number = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const ChunkPlace place = chunk_place(number, 1, count);
    if (place.count == 0) return;
    float values[CHUNK];
    widen_values<FROM>(values, read_values(x + place.column, place.count));
    write_values(out + place.column, place.count, round_values<TO>(values));
}

#define CAST(FROM_NAME, FROM, TO_NAME, TO)                                          \
    extern "C" __global__ void __launch_bounds__(THREADS)                           \
        cast_##FROM_NAME##_##TO_NAME(TO* out, const FROM* x, long long count) {     \
        cast(out, x, count);                                                        \
    }
CAST(float32, float, float16, __half)
CAST(float32, float, bfloat16, __nv_bfloat16)
CAST(float16, __half, float32, float)
CAST(float16, __half, bfloat16, __nv_bfloat16)
CAST(bfloat16, __nv_bfloat16, float32, float)
CAST(bfloat16, __nv_bfloat16, float16, __half)
