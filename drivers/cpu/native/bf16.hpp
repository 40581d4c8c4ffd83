// Conversions between float32 and bf16, value by value, as the processor's own do them.
#pragma once

#include "inline.hpp"
#include "kernels.hpp"

namespace rayvec::RAYVEC_SET {

RAYVEC_INLINE float bf16_to_float(Bf16 x) {
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(x) << 16);
}

// To nearest, ties to even; denormals become zero and a NaN becomes a quiet one (VCVTNE2PS2BF16).
RAYVEC_INLINE Bf16 bf16_from_float(float x) {
    const auto bits = __builtin_bit_cast(std::uint32_t, x);
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    const std::uint32_t nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const std::uint32_t quiet_nan = (bits >> 16) | 0x40u;
    const std::uint32_t signed_zero = (bits >> 16) & 0x8000u;
    const std::uint32_t number = magnitude < 0x00800000u ? signed_zero : nearest;
    return static_cast<Bf16>(magnitude > 0x7f800000u ? quiet_nan : number);
}

}  // namespace rayvec::RAYVEC_SET
