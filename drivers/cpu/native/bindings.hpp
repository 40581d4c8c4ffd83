// What the files of bindings share: array types, checks, scratch memory. What fits together is
// checked in the bindings again, so that no call from Python reaches outside an array.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <vector>

#include "kernels.hpp"

namespace rayvec {

template <typename Value, std::size_t ndim>
using Array = nanobind::ndarray<
    Value, nanobind::ndim<ndim>, nanobind::c_contig, nanobind::device::cpu>;

using Floats = Array<const float, 1>;
using Matrix = Array<const float, 2>;
using Ids = Array<const std::int32_t, 1>;
using Out = Array<float, 2>;
using OptionalFloats = std::optional<Floats>;
using OptionalMatrix = std::optional<Matrix>;
using RopeTable = std::optional<Array<const float, 3>>;

inline void require(bool fits, const char* refusal) {
    if (!fits) {
        throw std::invalid_argument(refusal);
    }
}

template <typename... Options>
bool is_aligned(const nanobind::ndarray<Options...>& array) {
    using Value = typename nanobind::ndarray<Options...>::Scalar;
    return reinterpret_cast<std::uintptr_t>(array.data()) % alignof(Value) == 0;
}

template <typename A>
bool is_aligned(const std::optional<A>& array) {
    return !array || is_aligned(*array);
}

template <typename A>
bool is_aligned(const std::vector<A>& arrays) {
    for (const A& array : arrays) {
        if (!is_aligned(array)) {
            return false;
        }
    }
    return true;
}

// Refuses arrays that do not begin where a value of theirs may: the bindings do not look at that.
template <typename... Arrays>
void require_aligned(const Arrays&... arrays) {
    require((is_aligned(arrays) && ...), "an array is not aligned to its values");
}

template <typename A>
std::int64_t size(const A& array, std::size_t axis) {
    return static_cast<std::int64_t>(array.shape(axis));
}

template <typename A>
const float* data(const std::optional<A>& array) {
    return array ? array->data() : nullptr;
}

inline bool has_length(const OptionalFloats& array, std::int64_t length) {
    return !array || size(*array, 0) == length;
}

template <typename A>
bool has_shape(const A& array, std::int64_t rows, std::int64_t cols) {
    return size(array, 0) == rows && size(array, 1) == cols;
}

// Memory of this thread that a kernel may write on, of at least so many bytes, on a cache line. It
// grows and stays; the next call may give the same.
void* scratch_bytes(std::size_t bytes);

inline float* scratch_floats(std::int64_t count) {
    return static_cast<float*>(scratch_bytes(static_cast<std::size_t>(count) * sizeof(float)));
}

// ---- checks of several kernels

Norm norm_of(
    const Floats& weight, const OptionalFloats& bias, float eps, bool centred, std::int64_t cols);

// The tables with their ids, each of which is within its table.
std::vector<EmbeddingTable> tables_of(
    const std::vector<Matrix>& tables,
    const std::vector<Ids>& ids,
    std::int64_t tokens,
    std::int64_t cols);

// The longest of the sequences whose bounds these are; refuses bounds that leave the tokens.
std::int64_t longest_of(const Ids& cu_seqlens, std::int64_t tokens);

// The rotation and the norms of heads, for sequences up to `longest`.
HeadRotation rotation_of(
    const RopeTable& cos,
    const RopeTable& sin,
    const OptionalFloats& q_norm,
    const OptionalFloats& k_norm,
    float norm_eps,
    std::int64_t sequences,
    std::int64_t longest,
    std::int64_t head_dim);

// Scales, windows and biases of scores, for sequences up to `longest`.
HeadScores scores_of(
    float scale,
    std::int64_t window_left,
    std::int64_t window_right,
    const OptionalMatrix& position_bias,
    std::int64_t num_heads,
    std::int64_t longest);

// The float32 kernels as methods of Kernels, and the names of activations.
void bind_float32(nanobind::module_& module, nanobind::class_<Kernels>& kernels);

// The kernels of bfloat16 on tiles, as methods of Kernels; they refuse a set without tiles.
void bind_tiles(nanobind::class_<Kernels>& kernels);

}  // namespace rayvec
