// Which instruction sets this build has, which of them this processor runs, and their kernels.
#pragma once

#include <string>
#include <vector>

#include "kernels.hpp"

namespace rayvec {

// The tables that this processor can run, best first. The emulated tiles come last: they are there
// for tests, and slow.
std::vector<const Kernels*> runnable_sets();

// The table of that name. Throws std::invalid_argument, with the names there are, where this
// processor cannot run it or the build does not have it.
const Kernels& kernels_of(const std::string& name);

}  // namespace rayvec
