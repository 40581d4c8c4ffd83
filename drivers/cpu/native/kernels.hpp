// The kernels: what each takes and gives, and the table of them that every instruction set fills.
//
// A kernel is written once in kernels/ (over the Vec of vec.hpp) or in amx/, inside
// `namespace rayvec::RAYVEC_SET`, and compiled once per instruction set with that set's flags.
// The build defines RAYVEC_SET for those files: avx512, avx2, portable, amx_bf16, ...
//
// A kernel file may use of the standard library only what leaves no shared symbol behind (types,
// constants, memcpy): the linker keeps one copy of an inline function, and that copy could hold
// instructions that this machine does not have. The build checks it.
#pragma once

#include <cstdint>

namespace rayvec {

using Bf16 = std::uint16_t;  // the upper half of a float32

// ---- signatures, by theme

// The sum of a[i] * b[i]; a and b (length).
using Dot = float(const float* a, const float* b, std::int64_t length);

// c += a @ b in the arithmetic of the tiles: a (rows, depth); b (depth / 2, cols, 2), so that
// b[i][j] holds the pair of rows 2 i and 2 i + 1 of column j; c (rows, cols).
// depth is a multiple of 32 and cols of 16.
using TileMatmul = void(
    const Bf16* a,
    const Bf16* b,
    float* c,
    std::int64_t rows,
    std::int64_t depth,
    std::int64_t cols);

// What one instruction set offers. Every set has every kernel, but those of the tiles, which are
// null in a set without tiles.
struct Kernels {
    const char* name;
    std::int64_t lanes;  // float32 values in one vector
    Dot* dot;
    TileMatmul* tile_matmul;
};

// ---- the instruction sets of this build

#if defined(RAYVEC_X86)
namespace amx_bf16 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}
#endif
namespace portable {
extern const Kernels kernels;
}
namespace amx_bf16_emulated {
extern const Kernels kernels;
}

// ---- the functions of the set that is being compiled

#if defined(RAYVEC_SET)
namespace RAYVEC_SET {
Dot dot;
#if defined(RAYVEC_TILES)
TileMatmul tile_matmul;
#endif
}  // namespace RAYVEC_SET
#endif

}  // namespace rayvec
