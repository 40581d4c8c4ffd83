// What the files of bindings share: array types, checks, scratch memory.
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

// The float32 kernels as methods of Kernels, and the names of activations.
void bind_float32(nanobind::module_& module, nanobind::class_<Kernels>& kernels);

}  // namespace rayvec
