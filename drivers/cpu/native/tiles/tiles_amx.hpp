// The functions of tiles.hpp as instructions. Written out because the compiler's intrinsics take
// a literal register number only, and because those of GCC 12 do not say that a load reads memory.
#pragma once

#include <cstddef>

namespace rayvec::RAYVEC_SET {

struct TileRegisters {};  // the processor's own

RAYVEC_INLINE void tile_load_config(const TileConfig& config, TileRegisters&) {
    asm volatile("ldtilecfg %0" ::"m"(config));
}

RAYVEC_INLINE void tile_release() { asm volatile("tilerelease"); }

template <int tile>
RAYVEC_INLINE void tile_zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(tile));
}

// Row r of the register is what lies at from + r * stride bytes.
template <int tile>
RAYVEC_INLINE void tile_load(const void* from, std::ptrdiff_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(tile) : "memory");
}

// tile_load of what will not be read again soon.
template <int tile>
RAYVEC_INLINE void tile_stream_load(const void* from, std::ptrdiff_t stride) {
    asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(tile) : "memory");
}

template <int tile>
RAYVEC_INLINE void tile_load_sums(const float* from, std::ptrdiff_t stride) {
    tile_stream_load<tile>(from, stride);
}

template <int tile>
RAYVEC_INLINE void tile_store(float* to, std::ptrdiff_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(tile) : "memory");
}

// c += a @ b: a (rows, 2 k) bf16, b (k, cols, 2) bf16, c (rows, cols) float32.
template <int c, int a, int b>
RAYVEC_INLINE void tile_dot_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(c), "i"(a), "i"(b));
}

}  // namespace rayvec::RAYVEC_SET
