// Tensors in pieces of 16 bytes, and tensors of STORAGE or float32 by a flag.

constexpr int VECTOR = 16 / sizeof(STORAGE);  // values of a piece

// Whether pieces may be read and written from each of these on; from a null pointer, too.
template <class... Pointer>
__device__ inline bool on_vectors(Pointer... start) {
    return (... | reinterpret_cast<size_t>(start)) % 16 == 0;
}

// VECTOR values of STORAGE or of float32, at a boundary of 16 bytes.
template <class Stored>
__device__ inline void load_vector(float (&to)[VECTOR], const Stored* from) {
    constexpr int PIECE = 16 / sizeof(Stored);
#pragma unroll
    for (int first = 0; first < VECTOR; first += PIECE) {
        const uint4 bits = *reinterpret_cast<const uint4*>(from + first);
        const Stored* values = reinterpret_cast<const Stored*>(&bits);
#pragma unroll
        for (int i = 0; i < PIECE; i++) to[first + i] = widen(values[i]);
    }
}
__device__ inline void store_vector(STORAGE* to, const float (&from)[VECTOR]) {
    uint4 bits;
    STORAGE* values = reinterpret_cast<STORAGE*>(&bits);
#pragma unroll
    for (int i = 0; i < VECTOR; i++) store(values + i, from[i]);
    *reinterpret_cast<uint4*>(to) = bits;
}

// One value of a tensor that is float32 where `wide`, and STORAGE otherwise.
__device__ inline float load_either(const void* from, size_t at, bool wide) {
    return wide ? static_cast<const float*>(from)[at]
                : widen(static_cast<const STORAGE*>(from)[at]);
}
__device__ inline void store_either(void* to, size_t at, bool wide, float x) {
    if (wide)
        static_cast<float*>(to)[at] = x;
    else
        store(static_cast<STORAGE*>(to) + at, x);
}

