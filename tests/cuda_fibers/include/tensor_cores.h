// The twin of drivers/cuda/kernels/tensor_cores.cuh: the same functions, in the meaning that the PTX
// manual gives the instructions. What they are for is said there.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <fibers.h>

namespace fibers {

inline void require_shared(const void* p, const char* why) {
    const char* at = (const char*)p;
    if ((uintptr_t)at % 16) stop("gives an address that is not on a boundary of 16 bytes");
    if (at < machine.shared || at + 16 > machine.shared + machine.shared_bytes) stop(why);
}

inline float widened(__half x) { return __half2float(x); }
inline float widened(__nv_bfloat16 x) { return __bfloat162float(x); }
template <class Storage>
inline float value_of(unsigned two, int which) {
    const uint16_t bits = (uint16_t)(two >> 16 * which);
    Storage value;
    memcpy(&value, &bits, sizeof bits);
    return widened(value);
}

// ---- ldmatrix

struct MatrixLoad {
    unsigned* to;
    const uint16_t* row;
};
template <bool TRANSPOSED>
inline void load_for_warp(const uint64_t* offered) {
    for (unsigned lane = 0; lane < LANES; lane++) {
        const unsigned g = lane / 4, t = lane % 4;
        unsigned* to = ((const MatrixLoad*)offered[lane])->to;
        for (unsigned m = 0; m < 4; m++) {
            auto at = [&](unsigned row, unsigned column) {
                return ((const MatrixLoad*)offered[8 * m + row])->row[column];
            };
            const uint16_t first = TRANSPOSED ? at(2 * t, g) : at(g, 2 * t);
            const uint16_t second = TRANSPOSED ? at(2 * t + 1, g) : at(g, 2 * t + 1);
            to[m] = first | (unsigned)second << 16;
        }
    }
}

// ---- mma

struct Product {
    float* c;
    const unsigned* a;
    unsigned b[2];
};
template <class Storage>
inline void multiply_for_warp(const uint64_t* offered) {
    float a[16][16], b[16][8];
    for (unsigned lane = 0; lane < LANES; lane++) {
        const unsigned g = lane / 4, t = lane % 4;
        const Product& own = *(const Product*)offered[lane];
        for (unsigned i = 0; i < 4; i++)
            for (unsigned j = 0; j < 2; j++)
                a[g + i % 2 * 8][2 * t + i / 2 * 8 + j] = value_of<Storage>(own.a[i], j);
        for (unsigned i = 0; i < 2; i++)
            for (unsigned j = 0; j < 2; j++)
                b[2 * t + i * 8 + j][g] = value_of<Storage>(own.b[i], j);
    }
    for (unsigned lane = 0; lane < LANES; lane++) {
        const unsigned g = lane / 4, t = lane % 4;
        float* c = ((const Product*)offered[lane])->c;
        for (unsigned i = 0; i < 4; i++)
            for (unsigned k = 0; k < 16; k++) c[i] += a[g + i / 2 * 8][k] * b[k][2 * t + i % 2];
    }
}

}  // namespace fibers

inline void load_matrices(unsigned (&to)[4], const void* row) {
    fibers::require_shared(row, "loads a matrix from outside the shared memory");
    const fibers::MatrixLoad load = {to, (const uint16_t*)row};
    fibers::collect(fibers::LOAD_MATRICES, ~0u, (uint64_t)&load, fibers::load_for_warp<false>);
}
inline void load_matrices_transposed(unsigned (&to)[4], const void* row) {
    fibers::require_shared(row, "loads a matrix from outside the shared memory");
    const fibers::MatrixLoad load = {to, (const uint16_t*)row};
    fibers::collect(fibers::LOAD_TRANSPOSED, ~0u, (uint64_t)&load, fibers::load_for_warp<true>);
}

template <class Storage>
inline void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    const fibers::Product product = {c, a, {b0, b1}};
    fibers::collect(fibers::MULTIPLY, ~0u, (uint64_t)&product,
                    fibers::multiply_for_warp<Storage>);
}

template <class Storage>
inline unsigned pack(float first, float second);
template <>
inline unsigned pack<__half>(float first, float second) {
    const __half both[2] = {__float2half_rn(first), __float2half_rn(second)};
    unsigned bits;
    memcpy(&bits, both, sizeof bits);
    return bits;
}
template <>
inline unsigned pack<__nv_bfloat16>(float first, float second) {
    return __float2bfloat16_rn(first).bits | (unsigned)__float2bfloat16_rn(second).bits << 16;
}

inline float exp2_fast(float x) {
    const float power = exp2f(x);
    return power < 0x1p-126f ? 0.0f : power;
}

// ---- cp.async: nothing lands before the wait, and the target holds NaN until then

inline void copy_16_bytes(void* to, const void* from, bool exists) {
    fibers::require_shared(to, "copies to outside the shared memory");
    if ((uintptr_t)from % 16) fibers::stop("copies from no boundary of 16 bytes");
    fibers::Copies& copies = fibers::machine.running->copies;
    if (copies.started == fibers::Copies::LIMIT) fibers::stop("has too many copies in flight");
    memset(to, 0xff, 16);
    copies.each[copies.started++] = {to, exists ? from : nullptr, copies.groups};
}
inline void end_copy_group() { fibers::machine.running->copies.groups++; }
template <int STILL_RUNNING>
inline void wait_for_copies() {
    fibers::Copies& copies = fibers::machine.running->copies;
    unsigned left = 0;
    for (unsigned i = 0; i < copies.started; i++) {
        const fibers::Copy& copy = copies.each[i];
        if (copy.group + STILL_RUNNING >= copies.groups)
            copies.each[left++] = copy;
        else if (copy.from)
            memcpy(copy.to, copy.from, 16);
        else
            memset(copy.to, 0, 16);
    }
    copies.started = left;
}
