// The inner product, in the vectors of the set it is compiled for.
#include "vec.hpp"

namespace rayvec::RAYVEC_SET {

float dot(const float* a, const float* b, std::int64_t length) {
    Vec sum = zero();
    std::int64_t i = 0;
    for (; i + LANES <= length; i += LANES) {
        sum = mul_add(load(a + i), load(b + i), sum);
    }
    float total = sum_of_lanes(sum);
    for (; i < length; ++i) {
        total += a[i] * b[i];
    }
    return total;
}

}  // namespace rayvec::RAYVEC_SET
