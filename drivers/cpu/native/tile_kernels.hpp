// The kernels of bfloat16 on tiles: what each takes and gives, and the table of them.
//
// Layouts, all of bf16:
//   tokens in tiles  (rows / 16, cols / 32, 16, 32): rows padded to a multiple of 32 (padded_rows)
//   packed weight    (panels, depth / 32, 2, 16, 16, 2): panels of 32 outputs; each half of a panel
//                    holds 16 columns, and of each the pairs of values that lie along the depth.
//                    A gated panel has 16 columns of the first half of the weight on the left, and
//                    the same columns of the second half on the right
//   heads            (heads, padded_rows, head_dim), query heads before key heads before values
// Every width and depth is a multiple of 32. Sums are float32. What a row comes to does not depend
// on the rows beside it, nor on how many there are: the order of its additions is fixed.
#pragma once

#include <cstdint>

#include "inline.hpp"

namespace rayvec {

using Bf16 = std::uint16_t;  // the upper half of a float32

enum class Activation : int;
struct EmbeddingTable;
struct Norm;

constexpr std::int64_t TILE_BLOCK = 32;  // rows and columns of a block of sums

RAYVEC_INLINE constexpr std::int64_t padded_rows(std::int64_t tokens) {
    return (tokens + TILE_BLOCK - 1) / TILE_BLOCK * TILE_BLOCK;
}

// act(x @ weight.T + bias); gated: act(first half) * second half.
struct TileLayer {
    const Bf16* panels;
    const float* bias;  // (outputs) or null
    std::int64_t outputs;  // rows of the weight
    std::int64_t depth;
    Activation act;
    bool gated;
};

// What becomes of finished rows y (tokens, cols) in float32: y + residual, norm(y + residual), or
// residual + norm(y) where `sandwich`.
struct RowFinish {
    const float* residual;  // (tokens, cols) or null
    const Norm* norm;       // or null
    bool sandwich;
    float* rows;  // (tokens, cols), the result
    Bf16* tiles;  // the same in tiles, zeros after the last token; or null
};

struct Heads {
    Bf16* values;
    const std::int32_t* cu_seqlens;  // (sequences + 1)
    std::int64_t sequences;
    std::int64_t num_heads;
    std::int64_t kv_heads;
    std::int64_t head_dim;  // 32, 64, 96 or 128
};

struct HeadRotation {
    const float* cos;  // (rope_rows, rope_pairs), or one such table per sequence, or null
    const float* sin;
    std::int64_t rope_rows;
    std::int64_t rope_pairs;  // 0 without rotation
    bool rope_per_sequence;
    const float* q_norm;  // (head_dim) or null
    const float* k_norm;
    float norm_eps;
};

struct HeadScores {
    float scale;
    std::int64_t window_left;   // keys before the query that it sees, -1 for all
    std::int64_t window_right;  // keys after it
    const float* position_bias;  // (num_heads, 2 bias_positions - 1) by key - query, or null
    std::int64_t bias_positions;
};

// weight (rows, depth) to panels.
using PackTiles = void(
    const float* weight, std::int64_t rows, std::int64_t depth, bool gated, Bf16* panels);

// rows (tokens, cols) to tiles, zeros after the last token; and back.
using ToTiles = void(const float* rows, std::int64_t tokens, std::int64_t cols, Bf16* tiles);
using ToRows = void(const Bf16* tiles, std::int64_t tokens, std::int64_t cols, float* rows);

using LinearTiles = void(
    const TileLayer& layer, const Bf16* x, std::int64_t tokens, Bf16* out);

// The layer's outputs, without activation, as heads of `head_dim` columns.
using LinearHeads = void(
    const TileLayer& layer,
    const Bf16* x,
    std::int64_t tokens,
    std::int64_t head_dim,
    Bf16* heads);

// float32 values of scratch memory that linear_rows and ffn take.
using LinearRowsScratch = std::int64_t(std::int64_t tokens, std::int64_t cols);
using FfnScratch = std::int64_t(std::int64_t tokens, std::int64_t cols);

// The layer has no activation and no gate.
using LinearRows = void(
    const TileLayer& layer,
    const Bf16* x,
    std::int64_t tokens,
    const RowFinish& finish,
    float* scratch);

// second(first(x)); the second layer has no activation and no gate.
using Ffn = void(
    const TileLayer& first,
    const TileLayer& second,
    const Bf16* x,
    std::int64_t tokens,
    const RowFinish& finish,
    float* scratch);

// x (tokens, cols); scratch (cols).
using NormRows = void(
    const float* x,
    std::int64_t tokens,
    std::int64_t cols,
    const RowFinish& finish,
    float* scratch);

// The sum of the tables' rows; scratch (cols).
using EmbedTiles = void(
    const EmbeddingTable* tables,
    std::int64_t table_count,
    std::int64_t tokens,
    std::int64_t cols,
    const RowFinish& finish,
    float* scratch);

// Norms and rotates the query and key heads in place, rounded once.
using PrepareHeads = void(const Heads& heads, const HeadRotation& rotation);

// float32 values of scratch memory that attend_heads takes.
using AttendScratch = std::int64_t(std::int64_t longest, std::int64_t head_dim);

// out: tokens in tiles of num_heads * head_dim columns.
using AttendHeads = void(
    const Heads& heads, const HeadScores& scores, float* scratch, Bf16* out);

struct TileKernels {
    PackTiles* pack_tiles;
    ToTiles* to_tiles;
    ToRows* to_rows;
    LinearTiles* linear_tiles;
    LinearHeads* linear_heads;
    LinearRowsScratch* linear_rows_scratch;
    LinearRows* linear_rows;
    FfnScratch* ffn_scratch;
    Ffn* ffn;
    NormRows* norm_rows;
    EmbedTiles* embed_tiles;
    PrepareHeads* prepare_heads;
    AttendScratch* attend_scratch;
    AttendHeads* attend_heads;
};

// ---- the functions of the set that is being compiled

#if defined(RAYVEC_TILES)
namespace RAYVEC_SET {
PackTiles pack_tiles;
ToTiles to_tiles;
ToRows to_rows;
LinearTiles linear_tiles;
LinearHeads linear_heads;
LinearRowsScratch linear_rows_scratch;
LinearRows linear_rows;
FfnScratch ffn_scratch;
Ffn ffn;
NormRows norm_rows;
EmbedTiles embed_tiles;
PrepareHeads prepare_heads;
AttendScratch attend_scratch;
AttendHeads attend_heads;
extern const TileKernels tile_kernels;
}  // namespace RAYVEC_SET
#endif

}  // namespace rayvec
