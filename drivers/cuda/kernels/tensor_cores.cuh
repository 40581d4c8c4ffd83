// Pasted after the prelude of themes that use tensor cores: all inline PTX there is, sm_80 and
// later. Each function here has a twin in tests/cuda_fibers/include/tensor_cores.h.
//
// Fragments of mma.m16n8k16, where lane = 4 g + t (PTX ISA, "Matrix Fragments for mma.m16n8k16"):
//   a  (16, 16)  a[0] row g, columns 2 t and 2 t + 1; a[1] row g + 8; a[2], a[3] as these, but 8
//                columns further on
//   b  (16, 8)   b0 rows 2 t and 2 t + 1 of column g; b1 8 rows further on
//   c  (16, 8)   c[0], c[1] row g, columns 2 t and 2 t + 1; c[2], c[3] row g + 8
// Two 16-bit values share a register, the first in the lower half.

__device__ inline unsigned shared_address(const void* p) {
    return (unsigned)__cvta_generic_to_shared(p);
}

// Four 8 x 8 matrices of 16-bit values from shared memory: the lanes 8 m .. 8 m + 7 of the warp
// name the rows of matrix m, each 16 bytes on a boundary of 16 bytes. Lane 4 g + t gets row g,
// columns 2 t and 2 t + 1 of matrix m in to[m].
__device__ inline void load_matrices(unsigned (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}
// The same, each matrix transposed: lane 4 g + t gets rows 2 t and 2 t + 1 of column g.
__device__ inline void load_matrices_transposed(unsigned (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// c += a b in float32, a and b of a 16-bit storage type. All lanes of the warp take part.
template <class Storage>
__device__ inline void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                    unsigned b1);
template <>
__device__ inline void multiply_add<__half>(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                            unsigned b1) {
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ inline void multiply_add<__nv_bfloat16>(float (&c)[4], const unsigned (&a)[4],
                                                   unsigned b0, unsigned b1) {
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two values of a storage type in a register, rounded to nearest, ties to even.
template <class Storage>
__device__ inline unsigned pack(float first, float second);
template <>
__device__ inline unsigned pack<__half>(float first, float second) {
    unsigned both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}
template <>
__device__ inline unsigned pack<__nv_bfloat16>(float first, float second) {
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
}

// 2^x to 2 units in the last place; what would be denormal is 0.
__device__ inline float exp2_fast(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

// Starts a copy of 16 bytes to shared memory, or of 16 zeros where the source does not exist. Both
// addresses lie on a boundary of 16 bytes. Nothing may read or write the target until this thread
// has waited for the copy's group; other threads see it after a barrier behind that.
__device__ inline void copy_16_bytes(void* to, const void* from, bool exists) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(to)), "l"(from), "r"(exists ? 16 : 0)
                 : "memory");
}
// Ends a group of this thread's copies.
__device__ inline void end_copy_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for this thread's groups, all but the last so many.
template <int STILL_RUNNING>
__device__ inline void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(STILL_RUNNING) : "memory");
}

