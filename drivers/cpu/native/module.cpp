// The Python module rayvec_native: bindings only. Its stub is rayvec_native.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "bindings.hpp"
#include "dispatch.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace rayvec {
namespace {

// Raised by one whenever a function of this module changes its arguments or its meaning, together
// with drivers/cpu/native_module.py.
constexpr int ABI_VERSION = 3;

std::vector<std::string> instruction_sets() {
    std::vector<std::string> names;
    for (const Kernels* set : runnable_sets()) {
        names.emplace_back(set->name);
    }
    return names;
}

// ---- kernels that tests and benchmarks alone call

void tile_matmul(
    const Kernels& kernels,
    Array<const Bf16, 2> a,
    Array<const Bf16, 3> b,
    Array<float, 2> c) {
    require_aligned(a, b, c);
    require(kernels.tile_matmul != nullptr, "tile_matmul: this instruction set has no tiles");
    const auto rows = static_cast<std::int64_t>(a.shape(0));
    const auto depth = static_cast<std::int64_t>(a.shape(1));
    const auto cols = static_cast<std::int64_t>(b.shape(1));
    require(depth % 32 == 0 && cols % 16 == 0, "tile_matmul: wanted depth 32 k and cols 16 n");
    require(
        std::int64_t(b.shape(0)) * 2 == depth && b.shape(2) == 2 &&
            std::int64_t(c.shape(0)) == rows && std::int64_t(c.shape(1)) == cols,
        "tile_matmul: wanted a (rows, depth), b (depth / 2, cols, 2), c (rows, cols)");
    kernels.tile_matmul(a.data(), b.data(), c.data(), rows, depth, cols);
}

std::int64_t fma_peak(const Kernels& kernels, std::int64_t iterations) {
    require(iterations >= 0, "fma_peak: wanted iterations >= 0");
    std::vector<float> sums(static_cast<std::size_t>(kernels.lanes), 0.5f);
    return kernels.fma_peak(iterations, sums.data());
}

std::int64_t tile_peak(const Kernels& kernels, std::int64_t iterations) {
    require(kernels.tile_peak != nullptr, "tile_peak: this instruction set has no tiles");
    require(iterations >= 0, "tile_peak: wanted iterations >= 0");
    constexpr Bf16 SMALL = 0x3a83;  // 0.001, so that a sum takes long to reach the end of the range
    const std::vector<Bf16> operands(512, SMALL);
    std::vector<float> sums(256);
    return kernels.tile_peak(iterations, operands.data(), sums.data());
}

}  // namespace
}  // namespace rayvec

NB_MODULE(rayvec_native, module) {
    using namespace rayvec;
    const auto without_gil = nb::call_guard<nb::gil_scoped_release>();

    module.doc() = "Native kernels of rayvec's cpu driver, by instruction set.";
    module.def("abi_version", [] { return ABI_VERSION; });
    module.def("instruction_sets", &instruction_sets);

    nb::class_<Kernels> kernels(module, "Kernels");
    kernels.def_prop_ro("name", [](const Kernels& set) { return set.name; })
        .def_prop_ro("lanes", [](const Kernels& set) { return set.lanes; })
        .def_prop_ro("has_tiles", [](const Kernels& set) { return set.tiles != nullptr; });
    bind_float32(module, kernels);
    bind_tiles(kernels);
    module.def("kernels", &kernels_of, "name"_a, nb::rv_policy::reference);

    nb::module_ testing = module.def_submodule("testing", "Kernels that tests and benchmarks alone call.");
    testing.def(
        "tile_matmul", &tile_matmul, "kernels"_a, "a"_a.noconvert(), "b"_a.noconvert(),
        "c"_a.noconvert(), without_gil);
    testing.def("fma_peak", &fma_peak, "kernels"_a, "iterations"_a, without_gil);
    testing.def("tile_peak", &tile_peak, "kernels"_a, "iterations"_a, without_gil);
}
