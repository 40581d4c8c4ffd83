// Rows of tables by id. Built with WARPS, CHECK_WARPS, TABLES (3) and the bits of `wide` of
// drivers/cuda/launches/lookups.py.

// The first id that is no row of a table of `size` rows: found = (its place, the id), (-1, 0) where
// all are.
//
//   found   (2,)       int64
//   ids     (count,)   int32
//
//   grid    (1)
//   block   (32 * CHECK_WARPS): a thread has every 32 * CHECK_WARPS-th id
//   shared  the place that each warp found, (CHECK_WARPS,) size_t
extern "C" __global__ void __launch_bounds__(CHECK_WARPS * LANES) first_outside(
    long long* found, const int* ids, long long count, int size) {
    extern __shared__ size_t places[];
    const size_t none = count;
    size_t first = none;
    for (size_t i = threadIdx.x; i < none && first == none; i += CHECK_WARPS * LANES)
        if (ids[i] < 0 || ids[i] >= size) first = i;
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2)
        first = min(first, __shfl_xor_sync(ALL_LANES, first, offset));
    if (threadIdx.x % LANES == 0) places[threadIdx.x / LANES] = first;
    __syncthreads();  // every warp's place is there
    if (threadIdx.x > 0) return;
    for (int warp = 0; warp < CHECK_WARPS; warp++) first = min(first, places[warp]);
    found[0] = first == none ? -1 : (long long)first;
    found[1] = first == none ? 0 : ids[first];
}

// One of the tables that a row is summed from; without ids there is no such table.
struct Lookup {
    const int* ids;     // (rows of out,)
    const void* table;  // (size, cols)
    int size;

    // Where the row of an id starts in the table; -1 for an id outside it.
    __device__ inline long long start_of(size_t row, int cols) const {
        const int id = ids[row];
        return id < 0 || id >= size ? -1 : (long long)id * cols;
    }
};

// out = norm(addend + table0[ids0] + table1[ids1] + table2[ids2]), row by row, with the norm of
// kernels/norm_row.cuh, or the sum itself where there is no weight. A row with an id outside its
// table is NaN; nothing outside a table is read.
//
//   out, addend    (rows, cols)   STORAGE, or float32 where `wide` has the tensor's bit
//   table0 to 2    (size, cols)   the same
//   weight, bias   (cols,)        the same
//   ids0 to 2      (rows,)        int32
//   addend, the later tables, weight and bias may be null; out may be addend
//
//   grid   (ceil(rows / WARPS))
//   block  (32 * WARPS): a warp a row
struct EmbedCall {
    void* out;
    const void* addend;
    Lookup lookup[TABLES];
    const void *weight, *bias;
    int wide;
    long long rows;
    int cols;
    float eps;
    bool centred;

    __device__ inline bool in_pieces() const {
        return on_vectors(out, addend, lookup[0].table, lookup[1].table, lookup[2].table, weight,
                          bias);
    }
    // Where the rows of out's row start in their tables. False where an id is outside its own.
    __device__ inline bool find(size_t row, long long (&starts)[TABLES]) const {
        bool inside = true;
#pragma unroll
        for (int i = 0; i < TABLES; i++) {
            starts[i] = lookup[i].ids ? lookup[i].start_of(row, cols) : 0;
            inside = inside && starts[i] >= 0;
        }
        return inside;
    }
};

// Any width, any mix of dtypes, any start: the row is read again for each of the sums.
__device__ inline void embed_row_plain(const EmbedCall& call, size_t row, int lane) {
    const size_t start = row * call.cols;
    long long from[TABLES];
    const bool inside = call.find(row, from);
    const auto sum = read_row(call.cols, lane, [&](int col) {
        if (!inside) return INFINITY - INFINITY;
        float y = 0.0f;
        if (call.addend) y = load_either(call.addend, start + col, call.wide & WIDE_ADDEND);
#pragma unroll
        for (int i = 0; i < TABLES; i++) {
            if (!call.lookup[i].ids) continue;
            const int wide = call.wide & WIDE_TABLE0 << i;
            const float entry = load_either(call.lookup[i].table, from[i] + col, wide);
            y = i == 0 && !call.addend ? entry : y + entry;
        }
        return y;
    });
    const bool normed = call.weight;
    const RowNorm norm = normed ? norm_of(sum, call.centred, call.eps) : RowNorm{};
    sum.each_column([&](float y, int col) {
        if (normed) {
            const float plus =
                call.bias ? load_either(call.bias, col, call.wide & WIDE_BIAS) : 0.0f;
            y = norm.normed(y) * load_either(call.weight, col, call.wide & WIDE_WEIGHT) + plus;
        }
        store_either(call.out, start + col, call.wide & WIDE_OUT, y);
    });
}

// A multiple of VECTOR columns, at most 32 HELD VECTOR; only weight and bias, both, may be wide.
template <int HELD>
__device__ inline void embed_row_held(const EmbedCall& call, size_t row, int lane) {
    const size_t start = row * call.cols;
    HeldRow<HELD> sum;
    sum.cols = call.cols;
    sum.lane = lane;
    long long from[TABLES];
    if (call.find(row, from)) {
        if (call.addend) sum.read(static_cast<const STORAGE*>(call.addend) + start);
#pragma unroll
        for (int i = 0; i < TABLES; i++) {
            if (!call.lookup[i].ids) continue;
            const STORAGE* entry = static_cast<const STORAGE*>(call.lookup[i].table) + from[i];
            if (i == 0 && !call.addend)
                sum.read(entry);
            else
                sum.add(entry);
        }
    } else {
        sum.fill(INFINITY - INFINITY);
    }
    if (call.weight)
        apply_norm(sum, call.centred, call.eps, call.weight, call.bias, call.wide & WIDE_WEIGHT);
    sum.write(static_cast<STORAGE*>(call.out) + start);
}

template <int HELD>
__device__ inline void embed_rows(const EmbedCall& call) {
    const size_t row = (size_t)blockIdx.x * WARPS + threadIdx.x / LANES;
    if (row >= (size_t)call.rows) return;  // the whole warp
    const int lane = threadIdx.x % LANES;
    if (HELD > 0 && call.in_pieces())
        embed_row_held<(HELD > 0 ? HELD : 1)>(call, row, lane);
    else
        embed_row_plain(call, row, lane);
}

// One block a processor is asked for: left to guess, the compiler spills to make room for more.
#define EMBED(NAME, HELD)                                                                        \
    extern "C" __global__ void __launch_bounds__(WARPS * LANES, 1) NAME(                         \
        void* out, const void* addend, const int* ids0, const void* table0, int size0,           \
        const int* ids1, const void* table1, int size1, const int* ids2, const void* table2,     \
        int size2, const void* weight, const void* bias, int wide, long long rows, int cols,     \
        float eps, int centred) {                                                                \
        embed_rows<HELD>({out, addend,                                                           \
                          {{ids0, table0, size0}, {ids1, table1, size1}, {ids2, table2, size2}}, \
                          weight, bias, wide, rows, cols, eps, centred != 0});                   \
    }
EMBED(embed_plain, 0)
EMBED(embed_held_1, 1)
EMBED(embed_held_2, 2)
EMBED(embed_held_3, 3)
EMBED(embed_held_4, 4)
EMBED(embed_held_6, 6)
EMBED(embed_held_8, 8)
EMBED(embed_held_12, 12)
EMBED(embed_held_16, 16)
