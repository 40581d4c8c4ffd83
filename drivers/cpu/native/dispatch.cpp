#include "dispatch.hpp"

#include <stdexcept>

#include "cpu_features.hpp"

namespace rayvec {

std::vector<const Kernels*> runnable_sets() {
    std::vector<const Kernels*> sets;
#if defined(RAYVEC_X86)
    if (has_amx_bf16()) {
        sets.push_back(&amx_bf16::kernels);
    }
    if (has_avx512_bf16()) {
        sets.push_back(&avx512_bf16::kernels);
    }
    if (has_avx512()) {
        sets.push_back(&avx512::kernels);
    }
    if (has_avx2()) {
        sets.push_back(&avx2::kernels);
    }
#endif
    sets.push_back(&portable::kernels);
    sets.push_back(&amx_bf16_emulated::kernels);
    return sets;
}

const Kernels& kernels_of(const std::string& name) {
    std::string names;
    for (const Kernels* set : runnable_sets()) {
        if (set->name == name) {
            return *set;
        }
        names += names.empty() ? set->name : std::string(", ") + set->name;
    }
    throw std::invalid_argument("no instruction set '" + name + "' on this machine, have " + names);
}

}  // namespace rayvec
