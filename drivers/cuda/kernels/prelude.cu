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

