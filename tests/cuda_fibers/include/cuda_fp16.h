// Stands in for the header of the CUDA toolkit: __half with the conversions that the kernels use.
// _Float16 rounds to nearest, ties to even, as the hardware does.
#pragma once

struct __half {
    _Float16 value;
};
inline float __half2float(__half x) { return (float)x.value; }
inline __half __float2half_rn(float x) { return __half{(_Float16)x}; }
