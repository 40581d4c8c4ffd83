// The float32 kernels as methods of Kernels.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace rayvec {
namespace {

// Sizes below it have products within int64, and no array of real values has a longer side.
constexpr std::int64_t SIZE_LIMIT = std::int64_t{1} << 31;

// ---- linear layers

std::int64_t packed_size(const Kernels& kernels, std::int64_t rows, std::int64_t depth, bool gated) {
    require(
        0 <= rows && rows < SIZE_LIMIT && 0 <= depth && depth < SIZE_LIMIT,
        "packed_size: wanted sizes from 0 to 2^31 - 1");
    require(!gated || rows % 2 == 0, "packed_size: a gated weight has an even number of rows");
    return kernels.packed_size(rows, depth, gated);
}

void pack_linear(const Kernels& kernels, Matrix weight, bool gated, Array<float, 1> packed) {
    require_aligned(weight, packed);
    const std::int64_t rows = size(weight, 0), depth = size(weight, 1);
    require(
        size(packed, 0) == packed_size(kernels, rows, depth, gated),
        "pack_linear: packed has another size than packed_size says");
    kernels.pack_linear(weight.data(), rows, depth, gated, packed.data());
}

void linear(
    const Kernels& kernels,
    Matrix x,
    Floats packed,
    OptionalFloats bias,
    OptionalMatrix residual,
    Activation act,
    bool gated,
    Out out) {
    require_aligned(x, packed, bias, residual, out);
    const LinearInput in{
        .x = x.data(),
        .bias = data(bias),
        .residual = data(residual),
        .rows = size(x, 0),
        .depth = size(x, 1),
        .cols = size(out, 1),
    };
    const std::int64_t outputs = gated ? 2 * in.cols : in.cols;
    require(
        size(out, 0) == in.rows && has_length(bias, outputs) &&
            size(packed, 0) == packed_size(kernels, outputs, in.depth, gated) &&
            (!residual || (!gated && has_shape(*residual, in.rows, in.cols))),
        "linear: the sizes of x, packed, bias, residual and out do not fit");
    (gated ? kernels.gated_linear : kernels.linear)(in, packed.data(), act, out.data());
}

// ---- rows

void add_norm(
    const Kernels& kernels,
    Matrix x,
    OptionalMatrix residual,
    Floats weight,
    OptionalFloats bias,
    float eps,
    bool centred,
    bool sandwich,
    Out out) {
    require_aligned(x, residual, weight, bias, out);
    const std::int64_t rows = size(x, 0), cols = size(x, 1);
    require(
        has_shape(out, rows, cols) && (!residual || has_shape(*residual, rows, cols)),
        "add_norm: x, residual and out differ in shape");
    if (cols == 0) {
        return;  // an array without values may have any number of rows
    }
    kernels.add_norm(
        x.data(), data(residual), norm_of(weight, bias, eps, centred, cols), sandwich, rows, cols,
        scratch_floats(cols), out.data());
}

void embed(
    const Kernels& kernels,
    const std::vector<Matrix>& tables,
    const std::vector<Ids>& ids,
    OptionalFloats weight,
    OptionalFloats bias,
    float eps,
    bool centred,
    Out out) {
    require_aligned(tables, ids, weight, bias, out);
    const std::int64_t tokens = size(out, 0), cols = size(out, 1);
    const std::vector<EmbeddingTable> entries = tables_of(tables, ids, tokens, cols);
    Norm norm{};
    if (weight) {
        norm = norm_of(*weight, bias, eps, centred, cols);
    }
    kernels.embed(
        entries.data(), static_cast<std::int64_t>(entries.size()), weight ? &norm : nullptr, tokens,
        cols, scratch_floats(cols), out.data());
}

// ---- sequences

void attention(
    const Kernels& kernels,
    Matrix qkv,
    Ids cu_seqlens,
    std::int64_t num_heads,
    std::int64_t kv_heads,
    std::int64_t head_dim,
    float scale,
    RopeTable cos,
    RopeTable sin,
    OptionalFloats q_norm,
    OptionalFloats k_norm,
    float norm_eps,
    std::int64_t window_left,
    std::int64_t window_right,
    OptionalMatrix position_bias,
    Out out) {
    require_aligned(qkv, cu_seqlens, cos, sin, q_norm, k_norm, position_bias, out);
    const std::int64_t tokens = size(qkv, 0), longest = longest_of(cu_seqlens, tokens);
    const std::int64_t sequences = size(cu_seqlens, 0) - 1;
    require(
        1 <= kv_heads && kv_heads < SIZE_LIMIT && 1 <= num_heads && num_heads < SIZE_LIMIT / 4 &&
            1 <= head_dim && head_dim < SIZE_LIMIT && num_heads % kv_heads == 0 &&
            size(qkv, 1) == (num_heads + 2 * kv_heads) * head_dim &&
            has_shape(out, tokens, num_heads * head_dim),
        "attention: the sizes of qkv, the heads and out do not fit");
    const HeadRotation rotation =
        rotation_of(cos, sin, q_norm, k_norm, norm_eps, sequences, longest, head_dim);
    const HeadScores scores =
        scores_of(scale, window_left, window_right, position_bias, num_heads, longest);
    const AttentionInput in{
        .qkv = qkv.data(),
        .cu_seqlens = cu_seqlens.data(),
        .sequences = sequences,
        .row_stride = size(qkv, 1),
        .num_heads = num_heads,
        .kv_heads = kv_heads,
        .head_dim = head_dim,
        .scale = scale,
        .cos = rotation.cos,
        .sin = rotation.sin,
        .rope_rows = rotation.rope_rows,
        .rope_pairs = rotation.rope_pairs,
        .rope_per_sequence = rotation.rope_per_sequence,
        .q_norm = rotation.q_norm,
        .k_norm = rotation.k_norm,
        .norm_eps = norm_eps,
        .window_left = window_left,
        .window_right = window_right,
        .position_bias = scores.position_bias,
        .bias_positions = scores.bias_positions,
    };
    kernels.attention(
        in, scratch_floats(kernels.attention_scratch(longest, head_dim)), out.data());
}

void mean_rows(
    const Kernels& kernels, Matrix x, Ids cu_seqlens, Floats weights, Out out) {
    require_aligned(x, cu_seqlens, weights, out);
    const std::int64_t tokens = size(x, 0), cols = size(x, 1);
    longest_of(cu_seqlens, tokens);
    require(
        size(weights, 0) == tokens && has_shape(out, size(cu_seqlens, 0) - 1, cols),
        "mean_rows: the sizes of x, weights and out do not fit");
    auto* scratch =
        static_cast<double*>(scratch_bytes(static_cast<std::size_t>(cols) * sizeof(double)));
    for (std::int64_t i = 0; i < size(out, 0); ++i) {
        const std::int64_t first = cu_seqlens.data()[i], last = cu_seqlens.data()[i + 1];
        kernels.mean_rows(
            x.data() + first * cols, weights.data() + first, last - first, cols, scratch,
            out.data() + i * cols);
    }
}

void max_rows(const Kernels& kernels, Matrix x, Ids starts, Ids ends, Out out) {
    require_aligned(x, starts, ends, out);
    const std::int64_t tokens = size(x, 0), cols = size(x, 1), count = size(starts, 0);
    require(
        size(ends, 0) == count && has_shape(out, count, cols),
        "max_rows: the sizes of x, starts, ends and out do not fit");
    const std::int32_t *first = starts.data(), *last = ends.data();
    for (std::int64_t i = 0; i < count; ++i) {
        require(
            0 <= first[i] && first[i] <= last[i] && last[i] <= tokens,
            "max_rows: a range outside the rows");
    }
    for (std::int64_t i = 0; i < count; ++i) {
        kernels.max_rows(
            x.data() + first[i] * cols, last[i] - first[i], cols, out.data() + i * cols);
    }
}

}  // namespace

void bind_float32(nb::module_& module, nb::class_<Kernels>& kernels) {
    const auto without_gil = nb::call_guard<nb::gil_scoped_release>();
    nb::enum_<Activation>(module, "Activation")
        .value("none", Activation::none)
        .value("gelu", Activation::gelu)
        .value("gelu_tanh", Activation::gelu_tanh)
        .value("quick_gelu", Activation::quick_gelu)
        .value("relu", Activation::relu)
        .value("silu", Activation::silu)
        .value("tanh", Activation::tanh);
    kernels
        .def("packed_size", &packed_size, "rows"_a, "depth"_a, "gated"_a)
        .def(
            "pack_linear", &pack_linear, "weight"_a.noconvert(), "gated"_a, "packed"_a.noconvert(),
            without_gil)
        .def(
            "linear", &linear, "x"_a.noconvert(), "packed"_a.noconvert(),
            "bias"_a.noconvert().none(), "residual"_a.noconvert().none(), "act"_a, "gated"_a,
            "out"_a.noconvert(), without_gil)
        .def(
            "add_norm", &add_norm, "x"_a.noconvert(), "residual"_a.noconvert().none(),
            "weight"_a.noconvert(), "bias"_a.noconvert().none(), "eps"_a, "centred"_a,
            "sandwich"_a, "out"_a.noconvert(), without_gil)
        .def(
            "embed", &embed, "tables"_a.noconvert(), "ids"_a.noconvert(),
            "weight"_a.noconvert().none(), "bias"_a.noconvert().none(), "eps"_a, "centred"_a,
            "out"_a.noconvert(), without_gil)
        .def(
            "attention", &attention, "qkv"_a.noconvert(), "cu_seqlens"_a.noconvert(),
            "num_heads"_a, "kv_heads"_a, "head_dim"_a, "scale"_a, "cos"_a.noconvert().none(),
            "sin"_a.noconvert().none(), "q_norm"_a.noconvert().none(),
            "k_norm"_a.noconvert().none(), "norm_eps"_a, "window_left"_a, "window_right"_a,
            "position_bias"_a.noconvert().none(), "out"_a.noconvert(), without_gil)
        .def(
            "mean_rows", &mean_rows, "x"_a.noconvert(), "cu_seqlens"_a.noconvert(),
            "weights"_a.noconvert(), "out"_a.noconvert(), without_gil)
        .def(
            "max_rows", &max_rows, "x"_a.noconvert(), "starts"_a.noconvert(), "ends"_a.noconvert(),
            "out"_a.noconvert(), without_gil);
}

}  // namespace rayvec
