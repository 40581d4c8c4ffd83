// Elementary functions and activations on vectors of float32, to about one unit in the last place.
#pragma once

#include "vec.hpp"

namespace rayvec::RAYVEC_SET {

constexpr float LOG2_E = 1.44269504088896341f;

// c[0] + c[1] x + c[2] x^2 + ...
template <int terms>
RAYVEC_INLINE Vec polynomial(Vec x, const float (&c)[terms]) {
    Vec sum = broadcast(c[terms - 1]);
#pragma GCC unroll 16
    for (int i = terms - 2; i >= 0; --i) {
        sum = mul_add(sum, x, broadcast(c[i]));
    }
    return sum;
}

// x within [low, high]; a NaN stays one.
RAYVEC_INLINE Vec clamp(Vec x, float low, float high) {
    return max(broadcast(low), min(broadcast(high), x));
}

// 2 ^ x for x <= 0, and 0 below -126, where numbers are no longer normal and arithmetic is slow.
// Coefficients: exp2f of the Cephes library.
RAYVEC_INLINE Vec exp2_of_negative(Vec x) {
    const Vec n = nearest_integer(max(broadcast(-126.0f), x));
    const Vec r = sub(max(broadcast(-126.0f), x), n);
    const float c[] = {1.0f,           6.931472028e-1f, 2.402264791e-1f, 5.550332471e-2f,
                       9.618437357e-3f, 1.339887440e-3f, 1.535336188e-4f};
    return where_less(x, broadcast(-126.0f), zero(), times_power_of_2(polynomial(r, c), n));
}

// e ^ x, not less than the least normal number, and infinity from 88.8 on. The argument is reduced
// in two steps, so that nothing of x is lost (Cephes' expf).
RAYVEC_INLINE Vec exp(Vec x) {
    x = clamp(x, -87.3f, 89.5f);
    const Vec n = nearest_integer(mul(x, broadcast(LOG2_E)));
    Vec r = mul_add(n, broadcast(-0.693359375f), x);
    r = mul_add(n, broadcast(2.12194440e-4f), r);
    const float c[] = {5.0000001201e-1f, 1.6666665459e-1f, 4.1665795894e-2f,
                       8.3334519073e-3f, 1.3981999507e-3f, 1.9875691500e-4f};
    const Vec tail = mul_add(polynomial(r, c), mul(r, r), r);
    return times_power_of_2(add(tail, broadcast(1.0f)), n);
}

// x / (1 + e ^ (-slope x)); an overflow to infinity gives the right limit.
RAYVEC_INLINE Vec sigmoid_times(Vec x, float slope) {
    return div(x, add(broadcast(1.0f), exp(mul(x, broadcast(-slope)))));
}

// tanh: a polynomial near 0, where the quotient would cancel (Cephes' tanhf).
RAYVEC_INLINE Vec tanh(Vec x) {
    const Vec a = absolute(x);
    const Vec square = mul(x, x);
    const float c[] = {-3.33332819422e-1f, 1.33314422036e-1f, -5.37397155531e-2f,
                       2.06390887954e-2f, -5.70498872745e-3f};
    const Vec near = mul_add(mul(polynomial(square, c), square), x, x);
    const Vec grown = exp(add(a, a));
    const Vec far = sub(broadcast(1.0f), div(broadcast(2.0f), add(grown, broadcast(1.0f))));
    const Vec signed_far = where_less(x, zero(), sub(zero(), far), far);
    return where_less(a, broadcast(0.625f), near, signed_far);
}

// x * Phi(x) = max(x, 0) - |x| * Q(|x|), Q the upper tail of the normal distribution:
// exp(-a^2 / 2) times a polynomial in t = 1 / (1 + 0.35 a), of relative error 3e-8.
RAYVEC_INLINE Vec gelu(Vec x) {
    const Vec end = broadcast(12.5f);  // Q is below 4e-36 from here on, and counts as 0
    const Vec a = min(end, absolute(x));
    const Vec t = div(broadcast(1.0f), mul_add(a, broadcast(0.35f), broadcast(1.0f)));
    const float c[] = {0.1396214077f,   0.1398618032f, 0.1198334074f,
                       0.1055056131f,   -0.02310350487f, 0.1591638803f,
                       -0.2557042304f,  0.1439663182f, -0.02914471045f};
    const Vec fit = mul(polynomial(t, c), t);
    const Vec there = mul(fit, exp(mul(mul(a, a), broadcast(-0.5f))));
    const Vec tail = where_less(a, end, there, zero());
    return sub(max(zero(), x), mul(tail, a));
}

// x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)), which is the tanh form.
RAYVEC_INLINE Vec gelu_tanh(Vec x) {
    const Vec inner = mul_add(mul(x, x), broadcast(0.044715f), broadcast(1.0f));
    const Vec doubled = mul(mul(inner, x), broadcast(-1.59576912160573f));
    return div(x, add(broadcast(1.0f), exp(doubled)));
}

template <Activation act>
RAYVEC_INLINE Vec activate(Vec x) {
    if constexpr (act == Activation::gelu) {
        return gelu(x);
    } else if constexpr (act == Activation::gelu_tanh) {
        return gelu_tanh(x);
    } else if constexpr (act == Activation::quick_gelu) {
        return sigmoid_times(x, 1.702f);
    } else if constexpr (act == Activation::relu) {
        return max(zero(), x);
    } else if constexpr (act == Activation::silu) {
        return sigmoid_times(x, 1.0f);
    } else if constexpr (act == Activation::tanh) {
        return tanh(x);
    } else {
        return x;
    }
}

}  // namespace rayvec::RAYVEC_SET
