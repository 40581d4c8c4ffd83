// Stands in for the header of the CUDA toolkit: __nv_bfloat16 with the conversions that the kernels
// use, rounding to nearest, ties to even.
#pragma once

#include <cstdint>
#include <cstring>

struct __nv_bfloat16 {
    uint16_t bits;
};
inline float __bfloat162float(__nv_bfloat16 x) {
    const uint32_t wide = (uint32_t)x.bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return {(uint16_t)(bits >> 16 | 0x40)};
    return {(uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
