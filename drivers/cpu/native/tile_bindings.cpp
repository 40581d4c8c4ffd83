// The kernels of bfloat16 on tiles as methods of Kernels. Tokens in tiles, packed weights and heads
// are flat arrays of bf16 bits, whose sizes follow from those of the other arguments.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <limits>

#include "bindings.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace rayvec {
namespace {

using Bits = Array<const Bf16, 1>;
using OutBits = Array<Bf16, 1>;

// What sizes given as numbers may be, so that no product of them overflows.
constexpr std::int64_t MOST_TOKENS = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t MOST_HEADS = std::int64_t{1} << 20;

const TileKernels& tiles_of(const Kernels& kernels) {
    require(kernels.tiles != nullptr, "this instruction set has no tiles");
    return *kernels.tiles;
}

bool whole_blocks(std::int64_t size) { return size > 0 && size % TILE_BLOCK == 0; }

template <typename A>
bool has_tiles(const A& array, std::int64_t tokens, std::int64_t cols) {
    return whole_blocks(cols) && size(array, 0) == padded_rows(tokens) * cols;
}

// A layer whose input is `depth` wide.
TileLayer layer_of(
    const Bits& packed, const OptionalFloats& bias, std::int64_t depth, Activation act, bool gated) {
    require(whole_blocks(depth), "linear: wanted a depth of 32 n");
    const std::int64_t outputs = size(packed, 0) / depth;
    require(
        whole_blocks(gated ? outputs / 2 : outputs) && size(packed, 0) == outputs * depth &&
            has_length(bias, outputs),
        "linear: the sizes of x, packed and bias do not fit");
    return {packed.data(), data(bias), outputs, depth, act, gated};
}

// The width of tokens in tiles.
std::int64_t cols_of(const Bits& x, std::int64_t tokens) {
    require(tokens >= 1 && tokens <= MOST_TOKENS, "wanted at least one token, and fewer than 2^31");
    const std::int64_t cols = size(x, 0) / padded_rows(tokens);
    require(has_tiles(x, tokens, cols), "wanted x in tiles of so many tokens");
    return cols;
}

// ---- layouts

void pack_tiles(const Kernels& kernels, Matrix weight, bool gated, OutBits packed) {
    require_aligned(weight, packed);
    const std::int64_t rows = size(weight, 0), depth = size(weight, 1);
    require(
        whole_blocks(gated ? rows / 2 : rows) && whole_blocks(depth) && rows % TILE_BLOCK == 0 &&
            size(packed, 0) == rows * depth,
        "pack_tiles: wanted sizes of 32 n, and packed of the weight's size");
    tiles_of(kernels).pack_tiles(weight.data(), rows, depth, gated, packed.data());
}

void to_tiles(const Kernels& kernels, Matrix rows, OutBits tiles) {
    require_aligned(rows, tiles);
    const std::int64_t tokens = size(rows, 0), cols = size(rows, 1);
    require(has_tiles(tiles, tokens, cols), "to_tiles: the sizes of rows and tiles do not fit");
    tiles_of(kernels).to_tiles(rows.data(), tokens, cols, tiles.data());
}

void to_rows(const Kernels& kernels, Bits tiles, Out rows) {
    require_aligned(tiles, rows);
    const std::int64_t tokens = size(rows, 0), cols = size(rows, 1);
    require(has_tiles(tiles, tokens, cols), "to_rows: the sizes of tiles and rows do not fit");
    tiles_of(kernels).to_rows(tiles.data(), tokens, cols, rows.data());
}

// ---- products

void linear_tiles(
    const Kernels& kernels,
    std::int64_t tokens,
    Bits x,
    Bits packed,
    OptionalFloats bias,
    Activation act,
    bool gated,
    OutBits out) {
    require_aligned(x, packed, bias, out);
    const TileLayer layer = layer_of(packed, bias, cols_of(x, tokens), act, gated);
    require(
        has_tiles(out, tokens, gated ? layer.outputs / 2 : layer.outputs),
        "linear_tiles: out has another size than tokens and layer");
    tiles_of(kernels).linear_tiles(layer, x.data(), tokens, out.data());
}

bool has_head_dim(std::int64_t head_dim) { return whole_blocks(head_dim) && head_dim <= 128; }

void linear_heads(
    const Kernels& kernels,
    std::int64_t tokens,
    Bits x,
    Bits packed,
    OptionalFloats bias,
    std::int64_t head_dim,
    OutBits out) {
    require_aligned(x, packed, bias, out);
    const TileLayer layer =
        layer_of(packed, bias, cols_of(x, tokens), Activation::none, false);
    require(
        has_head_dim(head_dim) && layer.outputs % head_dim == 0 &&
            has_tiles(out, tokens, layer.outputs),
        "linear_heads: the sizes of the layer, the heads and out do not fit");
    tiles_of(kernels).linear_heads(layer, x.data(), tokens, head_dim, out.data());
}

// The norm of finished rows, as Python gives it.
struct FinishNorm {
    Norm norm{};
    bool there = false;

    FinishNorm(
        const OptionalFloats& weight,
        const OptionalFloats& bias,
        float eps,
        bool centred,
        std::int64_t cols) {
        there = bool(weight);
        if (weight) {
            norm = norm_of(*weight, bias, eps, centred, cols);
        }
    }

    RowFinish finish(
        const OptionalMatrix& residual,
        bool sandwich,
        const Out& rows,
        const std::optional<OutBits>& tiles) const {
        const std::int64_t tokens = size(rows, 0), cols = size(rows, 1);
        require(
            (!residual || has_shape(*residual, tokens, cols)) &&
                (!tiles || has_tiles(*tiles, tokens, cols)),
            "the sizes of residual, rows and tiles do not fit");
        return {
            .residual = data(residual),
            .norm = there ? &norm : nullptr,
            .sandwich = sandwich,
            .rows = rows.data(),
            .tiles = tiles ? tiles->data() : nullptr,
        };
    }
};

void linear_rows(
    const Kernels& kernels,
    Bits x,
    Bits packed,
    OptionalFloats bias,
    OptionalMatrix residual,
    OptionalFloats weight,
    OptionalFloats norm_bias,
    float eps,
    bool centred,
    bool sandwich,
    Out rows,
    std::optional<OutBits> tiles) {
    require_aligned(x, packed, bias, residual, weight, norm_bias, rows, tiles);
    const std::int64_t tokens = size(rows, 0), cols = size(rows, 1);
    const TileLayer layer =
        layer_of(packed, bias, cols_of(x, tokens), Activation::none, false);
    require(layer.outputs == cols, "linear_rows: rows has another width than the layer");
    const FinishNorm norm(weight, norm_bias, eps, centred, cols);
    const TileKernels& set = tiles_of(kernels);
    set.linear_rows(
        layer, x.data(), tokens, norm.finish(residual, sandwich, rows, tiles),
        scratch_floats(set.linear_rows_scratch(tokens, cols)));
}

void ffn(
    const Kernels& kernels,
    Bits x,
    Bits packed,
    OptionalFloats bias,
    Activation act,
    bool gated,
    Bits second_packed,
    OptionalFloats second_bias,
    OptionalMatrix residual,
    OptionalFloats weight,
    OptionalFloats norm_bias,
    float eps,
    bool centred,
    bool sandwich,
    Out rows,
    std::optional<OutBits> tiles) {
    require_aligned(
        x, packed, bias, second_packed, second_bias, residual, weight, norm_bias, rows, tiles);
    const std::int64_t tokens = size(rows, 0), cols = size(rows, 1);
    const TileLayer first = layer_of(packed, bias, cols_of(x, tokens), act, gated);
    const TileLayer second = layer_of(
        second_packed, second_bias, gated ? first.outputs / 2 : first.outputs, Activation::none,
        false);
    require(second.outputs == cols, "ffn: rows has another width than the second layer");
    const FinishNorm norm(weight, norm_bias, eps, centred, cols);
    const TileKernels& set = tiles_of(kernels);
    set.ffn(
        first, second, x.data(), tokens, norm.finish(residual, sandwich, rows, tiles),
        scratch_floats(set.ffn_scratch(tokens, cols)));
}

// ---- rows

void norm_rows(
    const Kernels& kernels,
    Matrix x,
    OptionalMatrix residual,
    OptionalFloats weight,
    OptionalFloats norm_bias,
    float eps,
    bool centred,
    bool sandwich,
    Out rows,
    std::optional<OutBits> tiles) {
    require_aligned(x, residual, weight, norm_bias, rows, tiles);
    const std::int64_t tokens = size(x, 0), cols = size(x, 1);
    require(
        whole_blocks(cols) && has_shape(rows, tokens, cols), "norm_rows: x and rows do not fit");
    const FinishNorm norm(weight, norm_bias, eps, centred, cols);
    tiles_of(kernels).norm_rows(
        x.data(), tokens, cols, norm.finish(residual, sandwich, rows, tiles),
        scratch_floats(cols));
}

void embed_tiles(
    const Kernels& kernels,
    const std::vector<Matrix>& tables,
    const std::vector<Ids>& ids,
    OptionalFloats weight,
    OptionalFloats norm_bias,
    float eps,
    bool centred,
    Out rows,
    std::optional<OutBits> tiles) {
    require_aligned(tables, ids, weight, norm_bias, rows, tiles);
    const std::int64_t tokens = size(rows, 0), cols = size(rows, 1);
    require(whole_blocks(cols), "embed_tiles: wanted a width of 32 n");
    const std::vector<EmbeddingTable> entries = tables_of(tables, ids, tokens, cols);
    const FinishNorm norm(weight, norm_bias, eps, centred, cols);
    tiles_of(kernels).embed_tiles(
        entries.data(), static_cast<std::int64_t>(entries.size()), tokens, cols,
        norm.finish(std::nullopt, false, rows, tiles), scratch_floats(cols));
}

// ---- sequences

// Heads of as many tokens as the bounds say.
Heads heads_of(
    Bf16* values,
    std::int64_t values_size,
    const Ids& cu_seqlens,
    std::int64_t num_heads,
    std::int64_t kv_heads,
    std::int64_t head_dim) {
    require(
        kv_heads >= 1 && num_heads >= 1 && num_heads <= MOST_HEADS && num_heads % kv_heads == 0 &&
            has_head_dim(head_dim),
        "attention: wanted kv_heads that divide the heads, and 32, 64, 96 or 128 columns of each");
    const std::int64_t tokens = cu_seqlens.data()[size(cu_seqlens, 0) - 1];
    require(
        values_size == (num_heads + 2 * kv_heads) * padded_rows(tokens) * head_dim,
        "attention: heads has another size than its sizes say");
    return {values, cu_seqlens.data(), size(cu_seqlens, 0) - 1, num_heads, kv_heads, head_dim};
}

void prepare_heads(
    const Kernels& kernels,
    OutBits heads,
    std::int64_t tokens,
    Ids cu_seqlens,
    std::int64_t num_heads,
    std::int64_t kv_heads,
    std::int64_t head_dim,
    RopeTable cos,
    RopeTable sin,
    OptionalFloats q_norm,
    OptionalFloats k_norm,
    float norm_eps) {
    require_aligned(heads, cu_seqlens, cos, sin, q_norm, k_norm);
    const std::int64_t longest = longest_of(cu_seqlens, tokens);
    const Heads of =
        heads_of(heads.data(), size(heads, 0), cu_seqlens, num_heads, kv_heads, head_dim);
    const HeadRotation rotation = rotation_of(
        cos, sin, q_norm, k_norm, norm_eps, of.sequences, longest, head_dim);
    tiles_of(kernels).prepare_heads(of, rotation);
}

void attend_heads(
    const Kernels& kernels,
    OutBits heads,
    std::int64_t tokens,
    Ids cu_seqlens,
    std::int64_t num_heads,
    std::int64_t kv_heads,
    std::int64_t head_dim,
    float scale,
    std::int64_t window_left,
    std::int64_t window_right,
    OptionalMatrix position_bias,
    OutBits out) {
    require_aligned(heads, cu_seqlens, position_bias, out);
    const std::int64_t longest = longest_of(cu_seqlens, tokens);
    const Heads of =
        heads_of(heads.data(), size(heads, 0), cu_seqlens, num_heads, kv_heads, head_dim);
    const HeadScores scores =
        scores_of(scale, window_left, window_right, position_bias, num_heads, longest);
    require(
        has_tiles(out, tokens, num_heads * head_dim), "attention: out has another size than heads");
    const TileKernels& set = tiles_of(kernels);
    set.attend_heads(
        of, scores, scratch_floats(set.attend_scratch(longest, head_dim)), out.data());
}

}  // namespace

void bind_tiles(nb::class_<Kernels>& kernels) {
    const auto without_gil = nb::call_guard<nb::gil_scoped_release>();
    kernels
        .def(
            "pack_tiles", &pack_tiles, "weight"_a.noconvert(), "gated"_a, "packed"_a.noconvert(),
            without_gil)
        .def("to_tiles", &to_tiles, "rows"_a.noconvert(), "tiles"_a.noconvert(), without_gil)
        .def("to_rows", &to_rows, "tiles"_a.noconvert(), "rows"_a.noconvert(), without_gil)
        .def(
            "linear_tiles", &linear_tiles, "tokens"_a, "x"_a.noconvert(), "packed"_a.noconvert(),
            "bias"_a.noconvert().none(), "act"_a, "gated"_a, "out"_a.noconvert(), without_gil)
        .def(
            "linear_heads", &linear_heads, "tokens"_a, "x"_a.noconvert(), "packed"_a.noconvert(),
            "bias"_a.noconvert().none(), "head_dim"_a, "out"_a.noconvert(), without_gil)
        .def(
            "linear_rows", &linear_rows, "x"_a.noconvert(), "packed"_a.noconvert(),
            "bias"_a.noconvert().none(), "residual"_a.noconvert().none(),
            "weight"_a.noconvert().none(), "norm_bias"_a.noconvert().none(), "eps"_a, "centred"_a,
            "sandwich"_a, "rows"_a.noconvert(), "tiles"_a.noconvert().none(), without_gil)
        .def(
            "ffn", &ffn, "x"_a.noconvert(), "packed"_a.noconvert(), "bias"_a.noconvert().none(),
            "act"_a, "gated"_a, "second_packed"_a.noconvert(), "second_bias"_a.noconvert().none(),
            "residual"_a.noconvert().none(), "weight"_a.noconvert().none(),
            "norm_bias"_a.noconvert().none(), "eps"_a, "centred"_a, "sandwich"_a,
            "rows"_a.noconvert(), "tiles"_a.noconvert().none(), without_gil)
        .def(
            "norm_rows", &norm_rows, "x"_a.noconvert(), "residual"_a.noconvert().none(),
            "weight"_a.noconvert().none(), "norm_bias"_a.noconvert().none(), "eps"_a, "centred"_a,
            "sandwich"_a, "rows"_a.noconvert(), "tiles"_a.noconvert().none(), without_gil)
        .def(
            "embed_tiles", &embed_tiles, "tables"_a, "ids"_a, "weight"_a.noconvert().none(),
            "norm_bias"_a.noconvert().none(), "eps"_a, "centred"_a, "rows"_a.noconvert(),
            "tiles"_a.noconvert().none(), without_gil)
        .def(
            "prepare_heads", &prepare_heads, "heads"_a.noconvert(), "tokens"_a,
            "cu_seqlens"_a.noconvert(), "num_heads"_a, "kv_heads"_a, "head_dim"_a,
            "cos"_a.noconvert().none(), "sin"_a.noconvert().none(), "q_norm"_a.noconvert().none(),
            "k_norm"_a.noconvert().none(), "norm_eps"_a, without_gil)
        .def(
            "attend_heads", &attend_heads, "heads"_a.noconvert(), "tokens"_a,
            "cu_seqlens"_a.noconvert(), "num_heads"_a, "kv_heads"_a, "head_dim"_a, "scale"_a,
            "window_left"_a, "window_right"_a, "position_bias"_a.noconvert().none(),
            "out"_a.noconvert(), without_gil);
}

}  // namespace rayvec
