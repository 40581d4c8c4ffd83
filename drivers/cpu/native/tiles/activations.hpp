// Activations for results that are rounded to bf16: gelu by a polynomial, without a division.
#pragma once

#include "kernels/math.hpp"

namespace rayvec::RAYVEC_SET {

constexpr float GELU_END = 4.25f;  // beyond it gelu is x, or 0, to 5e-5

// x * Phi(x) with Phi(t) = 0.5 + t P(t^2) for |t| <= GELU_END: minimax fits of x * error. The error
// is below 6e-5 for x <= 4, and below 2e-5 of the result from there on; bf16 rounds by up to 3.9e-3.
constexpr float GELU[] = {0.39881922f,      -0.0661902823f,   0.00971877961f,
                          -0.00107907822f,  8.84891812e-05f,  -5.14751759e-06f,
                          1.98616096e-07f,  -4.51530951e-09f, 4.54707978e-11f};
constexpr float GELU_TANH[] = {0.398787854f,     -0.0664531755f,   0.00990495619f,
                               -0.00112869142f,  9.54799017e-05f,  -5.72299136e-06f,
                               2.26518124e-07f,  -5.25541032e-09f, 5.37667802e-11f};

RAYVEC_INLINE Vec gelu_polynomial(Vec x, const float (&c)[9]) {
    const Vec low = max(broadcast(-GELU_END), x);
    const Vec t = min(broadcast(GELU_END), low);
    return mul(low, mul_add(polynomial(mul(t, t), c), t, broadcast(0.5f)));
}

template <Activation act>
RAYVEC_INLINE Vec activate_coarse(Vec x) {
    if constexpr (act == Activation::gelu) {
        return gelu_polynomial(x, GELU);
    } else if constexpr (act == Activation::gelu_tanh) {
        return gelu_polynomial(x, GELU_TANH);
    } else {
        return activate<act>(x);
    }
}

}  // namespace rayvec::RAYVEC_SET
