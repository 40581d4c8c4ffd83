// What the files of bindings share: array types, checks, scratch memory.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <stdexcept>

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

// The float32 kernels as methods of Kernels, and the names of activations.
void bind_float32(nanobind::module_& module, nanobind::class_<Kernels>& kernels);

}  // namespace rayvec
