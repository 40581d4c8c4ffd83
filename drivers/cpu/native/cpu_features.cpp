#include "cpu_features.hpp"

#if defined(RAYVEC_X86)

#include <cpuid.h>

#include <cstdint>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace rayvec {
namespace {

struct CpuidLeaf {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// All zero for a leaf that the processor does not have.
CpuidLeaf cpuid(unsigned leaf, unsigned subleaf) {
    CpuidLeaf found;
    if (!__get_cpuid_count(leaf, subleaf, &found.eax, &found.ebx, &found.ecx, &found.edx)) {
        return {};
    }
    return found;
}

constexpr bool all_bits(std::uint64_t word, std::uint64_t wanted) {
    return (word & wanted) == wanted;
}

constexpr std::uint64_t bit(int position) { return std::uint64_t{1} << position; }

// Leaf 1, ecx.
constexpr std::uint64_t FMA = bit(12), OSXSAVE = bit(27), AVX = bit(28), F16C = bit(29);
// Leaf 7.0, ebx.
constexpr std::uint64_t AVX2 = bit(5);
constexpr std::uint64_t AVX512_F_DQ_BW_VL = bit(16) | bit(17) | bit(30) | bit(31);
// Leaf 7.0, edx.
constexpr std::uint64_t AMX_BF16 = bit(22), AMX_TILE = bit(24);
// Leaf 7.1, eax.
constexpr std::uint64_t AVX512_BF16 = bit(5);
// Register states that the system saves (XCR0).
constexpr std::uint64_t YMM_STATE = bit(1) | bit(2);
constexpr std::uint64_t ZMM_STATE = YMM_STATE | bit(5) | bit(6) | bit(7);
constexpr int TILE_DATA = 18;
constexpr std::uint64_t TILE_STATE = bit(17) | bit(TILE_DATA);

std::uint64_t saved_states() {
    if (!all_bits(cpuid(1, 0).ecx, OSXSAVE)) {
        return 0;
    }
    std::uint32_t low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (std::uint64_t{high} << 32) | low;
}

// Linux gives the tiles' registers to processes that ask for them, since 5.16.
bool request_tiles() {
#if defined(__linux__)
    constexpr int ARCH_REQ_XCOMP_PERM = 0x1023;
    static const bool granted = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
    return granted;
#else
    return false;
#endif
}

}  // namespace

bool has_avx2() {
    return all_bits(saved_states(), YMM_STATE) && all_bits(cpuid(1, 0).ecx, FMA | AVX | F16C) &&
           all_bits(cpuid(7, 0).ebx, AVX2);
}

bool has_avx512() {
    return has_avx2() && all_bits(saved_states(), ZMM_STATE) &&
           all_bits(cpuid(7, 0).ebx, AVX512_F_DQ_BW_VL);
}

bool has_avx512_bf16() { return has_avx512() && all_bits(cpuid(7, 1).eax, AVX512_BF16); }

bool has_amx_bf16() {
    return has_avx512_bf16() && all_bits(saved_states(), TILE_STATE) &&
           all_bits(cpuid(7, 0).edx, AMX_BF16 | AMX_TILE) && request_tiles();
}

}  // namespace rayvec

#endif
