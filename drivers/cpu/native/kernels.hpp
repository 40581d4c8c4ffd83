// The kernels: what each takes and gives, and the table of them that every instruction set fills.
//
// A kernel is written once in kernels/ (over the Vec of vec.hpp) or in tiles/, inside
// `namespace rayvec::RAYVEC_SET`, and compiled once per instruction set with that set's flags.
// The build defines RAYVEC_SET for those files: avx512, avx2, portable, avx512_bf16, ...
//
// A kernel file may use of the standard library only what leaves no shared symbol behind (types,
// constants, memcpy): the linker keeps one copy of an inline function, and that copy could hold
// instructions that this machine does not have. The build checks it.
#pragma once

#include <cstdint>

#include "tile_kernels.hpp"

namespace rayvec {

// ---- signatures, by theme

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

// What a benchmark measures the others against. Both run on one core's registers alone and give the
// number of floating-point operations that they did; sums keeps what they computed.

// sums (lanes): on entry factors between 0 and 1.
using FmaPeak = std::int64_t(std::int64_t iterations, float* sums);

// operands (512), both factors of every product; sums (256).
using TilePeak = std::int64_t(std::int64_t iterations, const Bf16* operands, float* sums);

// A linear layer: y = act(x @ weight.T + bias) + residual, in float32.
enum class Activation : int { none, gelu, gelu_tanh, quick_gelu, relu, silu, tanh };

struct LinearInput {
    const float* x;         // (rows, depth)
    const float* bias;      // (cols), or (2 cols) of a gated layer, or null
    const float* residual;  // (rows, cols) or null; a gated layer has none
    std::int64_t rows;
    std::int64_t depth;
    std::int64_t cols;
};

// float32 values of a packed weight (rows, depth).
using PackedSize = std::int64_t(std::int64_t rows, std::int64_t depth, bool gated);

// weight (rows, depth) to panels of columns: (panels, depth, 2 lanes), zeros where rows end. The
// two vectors of a gated weight's panel hold the same columns of its first and its second half.
using PackLinear = void(
    const float* weight, std::int64_t rows, std::int64_t depth, bool gated, float* packed);

// out (rows, cols). Gated: act(first half) * second half.
using Linear = void(const LinearInput& in, const float* packed, Activation act, float* out);

struct Norm {
    const float* weight;  // (cols)
    const float* bias;    // (cols) or null
    float eps;
    bool centred;  // a layer norm, not an RMS norm
};

// out = norm(x + residual), or residual + norm(x) where `sandwich`; x, residual, out (rows, cols),
// residual may be null; scratch (cols).
using AddNorm = void(
    const float* x,
    const float* residual,
    const Norm& norm,
    bool sandwich,
    std::int64_t rows,
    std::int64_t cols,
    float* scratch,
    float* out);

struct EmbeddingTable {
    const float* rows;        // (*, cols)
    const std::int32_t* ids;  // (tokens), each a row of the table
};

// out (tokens, cols) = the sum of the tables' rows, then the norm where it is not null;
// scratch (cols).
using Embed = void(
    const EmbeddingTable* tables,
    std::int64_t table_count,
    const Norm* norm,
    std::int64_t tokens,
    std::int64_t cols,
    float* scratch,
    float* out);

struct AttentionInput {
    const float* qkv;  // (tokens, (num_heads + 2 kv_heads) head_dim)
    const std::int32_t* cu_seqlens;  // (sequences + 1)
    std::int64_t sequences;
    std::int64_t row_stride;  // of qkv
    std::int64_t num_heads;
    std::int64_t kv_heads;
    std::int64_t head_dim;
    float scale;
    const float* cos;  // (rope_rows, rope_pairs), or one such table per sequence, or null
    const float* sin;
    std::int64_t rope_rows;
    std::int64_t rope_pairs;  // 0 without rotation
    bool rope_per_sequence;
    const float* q_norm;  // (head_dim) or null
    const float* k_norm;
    float norm_eps;
    std::int64_t window_left;   // keys before the query that it sees, -1 for all
    std::int64_t window_right;  // keys after it
    const float* position_bias;  // (num_heads, 2 bias_positions - 1) by key - query, or null
    std::int64_t bias_positions;
};

// float32 values of scratch memory that attention takes.
using AttentionScratch = std::int64_t(std::int64_t longest, std::int64_t head_dim);

// out (tokens, num_heads head_dim)
using Attention = void(const AttentionInput& in, float* scratch, float* out);

// out (cols) = sum of weights[i] * x[i] / sum of weights, in float64, zeros where all weights are 0;
// a row of weight 0 leaves no trace; scratch (cols).
using MeanRows = void(
    const float* x,
    const float* weights,
    std::int64_t rows,
    std::int64_t cols,
    double* scratch,
    float* out);

// out (cols) = the largest of x (rows, cols) in each column: NaN where there is one, 0 without rows.
using MaxRows = void(const float* x, std::int64_t rows, std::int64_t cols, float* out);

// What one instruction set offers. Every set has every kernel, but those of the tiles, which are
// null in a set without tiles.
struct Kernels {
    const char* name;
    std::int64_t lanes;  // float32 values in one vector
    PackedSize* packed_size;
    PackLinear* pack_linear;
    Linear* linear;
    Linear* gated_linear;
    AddNorm* add_norm;
    Embed* embed;
    AttentionScratch* attention_scratch;
    Attention* attention;
    MeanRows* mean_rows;
    MaxRows* max_rows;
    FmaPeak* fma_peak;
    TileMatmul* tile_matmul;
    TilePeak* tile_peak;
    const TileKernels* tiles;
};

// ---- the instruction sets of this build

#if defined(RAYVEC_X86)
namespace amx_bf16 {
extern const Kernels kernels;
}
namespace avx512_bf16 {
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
PackedSize packed_size;
PackLinear pack_linear;
Linear linear;
Linear gated_linear;
AddNorm add_norm;
Embed embed;
AttentionScratch attention_scratch;
Attention attention;
MeanRows mean_rows;
MaxRows max_rows;
FmaPeak fma_peak;
#if defined(RAYVEC_TILES)
TileMatmul tile_matmul;
TilePeak tile_peak;
#endif
}  // namespace RAYVEC_SET
#endif

}  // namespace rayvec
