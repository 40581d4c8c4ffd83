// The most multiply-adds that this instruction set does: operands in registers, nothing else.
#include "vec.hpp"

namespace rayvec::RAYVEC_SET {

std::int64_t fma_peak(std::int64_t iterations, float* sums) {
    // Enough sums that none waits for its last product, and few enough for 16 registers. They begin
    // apart, or the compiler would compute one for all; each goes to 1, so none overflows.
    constexpr int SUMS = 12;
    const Vec factor = load(sums);
    const Vec term = sub(broadcast(1.0f), factor);
    Vec sum[SUMS];
#pragma GCC unroll 12
    for (int i = 0; i < SUMS; ++i) {
        sum[i] = broadcast(static_cast<float>(i));
    }
    for (std::int64_t n = 0; n < iterations; ++n) {
#pragma GCC unroll 12
        for (int i = 0; i < SUMS; ++i) {
            sum[i] = mul_add(sum[i], factor, term);
        }
    }
#pragma GCC unroll 12
    for (int i = 1; i < SUMS; ++i) {
        sum[0] = add(sum[0], sum[i]);
    }
    store(sums, sum[0]);
    return iterations * SUMS * LANES * 2;
}

}  // namespace rayvec::RAYVEC_SET
