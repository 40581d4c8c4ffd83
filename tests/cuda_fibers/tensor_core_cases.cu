// A kernel for the tests of include/tensor_cores.h: every function of tensor_cores.cuh once.
//
//   c        (16, 8)    float32   a b, and behind it (16, 8) the same from b as it is stored
//   a        (16, 16)   STORAGE
//   b        (16, 8)    STORAGE
//   b_turned (8, 16)    STORAGE, b transposed
//   packed   (32,)      unsigned, pack(lane, -lane)
//   powers   (32,)      float32, exp2_fast(-lane * step)
//   grid (1), block (32), shared STORAGE a, b, b_turned
extern "C" __global__ void one_product(float* c, const STORAGE* a, const STORAGE* b,
                                       const STORAGE* b_turned, unsigned* packed, float* powers,
                                       float step) {
    extern __shared__ STORAGE tiles[];
    STORAGE *shared_a = tiles, *shared_b = tiles + 256, *shared_turned = shared_b + 128;
    const int lane = threadIdx.x;
    copy_16_bytes(shared_a + lane * 8, a + lane * 8, true);
    end_copy_group();
    copy_16_bytes((lane < 16 ? shared_b : shared_turned) + lane % 16 * 8,
                  (lane < 16 ? b : b_turned) + lane % 16 * 8, true);
    end_copy_group();
    wait_for_copies<1>();  // a
    wait_for_copies<0>();  // b
    __syncthreads();

    unsigned rows[4], columns[4], turned[4];
    load_matrices(rows, shared_a + lane % 16 * 16 + lane / 16 * 8);
    load_matrices_transposed(columns, shared_b + lane % 16 * 8);
    load_matrices(turned, shared_turned + lane % 8 * 16 + lane / 8 % 2 * 8);
    float sums[4] = {0, 0, 0, 0}, same[4] = {0, 0, 0, 0};
    multiply_add<STORAGE>(sums, rows, turned[0], turned[1]);
    multiply_add<STORAGE>(same, rows, columns[0], columns[1]);
    for (int i = 0; i < 4; i++) {
        const int at = (lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2;
        c[at] = sums[i];
        c[128 + at] = same[i];
    }
    packed[lane] = pack<STORAGE>(lane, -lane);
    powers[lane] = exp2_fast(-lane * step);
}

// What exists of two rows of 8, zeros in place of the rest: to (2, 8), from (2, 8), exists 0 to 2.
extern "C" __global__ void copy_existing(STORAGE* to, const STORAGE* from, int exists) {
    extern __shared__ STORAGE tiles[];
    const int row = threadIdx.x / 8, column = threadIdx.x % 8;
    if (column == 0) {
        copy_16_bytes(tiles + row * 8, from + row * 8, row < exists);
        end_copy_group();
        wait_for_copies<0>();
    }
    __syncthreads();
    to[threadIdx.x] = tiles[threadIdx.x];
}
