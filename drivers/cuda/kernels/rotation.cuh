// Rotation of pairs of values, pasted after the prelude of themes that turn heads of q and k.

// (x, y) turned by an angle. Each product is rounded before they are added, as in NumPy, where the
// compiler would be free to round one of the two alone: all kernels give the same bits.
__device__ inline void rotate(float& x, float& y, float cos, float sin) {
    const float turned = __fsub_rn(__fmul_rn(x, cos), __fmul_rn(y, sin));
    y = __fadd_rn(__fmul_rn(y, cos), __fmul_rn(x, sin));
    x = turned;
}

// COUNT pairs side by side, rounded to STORAGE; cos and sin lie on boundaries of COUNT values.
template <int COUNT>
__device__ inline void rotate_packs(Pack<STORAGE, COUNT>& x, Pack<STORAGE, COUNT>& y,
                                    const float* cos, const float* sin) {
    const Pack<float, COUNT> c = load_pack<COUNT>(cos), s = load_pack<COUNT>(sin);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        float first = widen(x.at[i]), second = widen(y.at[i]);
        rotate(first, second, c.at[i], s.at[i]);
        store(x.at + i, first);
        store(y.at + i, second);
    }
}

