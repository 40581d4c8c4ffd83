// Rotary position embedding of heads. Built with THREADS of drivers/cuda/launches/rotary.py.

// out[g, i, j]         = x[g, i, j] cos[b, i, j] - x[g, i, j + R / 2] sin[b, i, j]
// out[g, i, j + R / 2] = x[g, i, j + R / 2] cos[b, i, j] + x[g, i, j] sin[b, i, j],   j < R / 2
// and the dimensions from R on as they are; b = g / heads_per_table.
//
//   out       (G, S, D)                         Out, may be `x`
//   x         (G, S, D)                         In
//   cos, sin  (G / heads_per_table, P, R / 2)   float32
//   P = positions >= S, D = head_dim, R / 2 = pairs; passing: D - R, or 0 to leave what is there.
//   D, R / 2 and passing are multiples of PACK.
//
//   grid    (G * ceil(S * (R / 2 + passing) / PACK / THREADS))
//   block   (THREADS): a thread PACK pairs, or PACK dimensions that pass
template <int PACK, class Out, class In>
__device__ inline void apply_rope(Out* out, const In* x, const float* cos, const float* sin,
                                  int seq, int positions, int head_dim, int pairs, int passing,
                                  int heads_per_table) {
    const int turns = pairs / PACK, slots = turns + passing / PACK;  // of a position
    const int blocks_per_group = (seq * slots + THREADS - 1) / THREADS;
    const int group = blockIdx.x / blocks_per_group;
    const int index = blockIdx.x % blocks_per_group * THREADS + threadIdx.x;
    const int position = index / slots, slot = index % slots;
    if (position >= seq) return;
    const size_t row = ((size_t)group * seq + position) * head_dim;
    if (slot >= turns) {
        const size_t d = row + 2 * pairs + (slot - turns) * PACK;
        const Pack<In, PACK> same = load_pack<PACK>(x + d);
        Pack<Out, PACK> passed;
#pragma unroll
        for (int i = 0; i < PACK; i++) store(passed.at + i, widen(same.at[i]));
        store_pack(out + d, passed);
        return;
    }
    const int pair = slot * PACK;
    const size_t angle =
        ((size_t)(group / heads_per_table) * positions + position) * pairs + pair;
    const Pack<float, PACK> c = load_pack<PACK>(cos + angle), s = load_pack<PACK>(sin + angle);
    const Pack<In, PACK> first = load_pack<PACK>(x + row + pair);
    const Pack<In, PACK> second = load_pack<PACK>(x + row + pairs + pair);
    Pack<Out, PACK> left, right;
#pragma unroll
    for (int i = 0; i < PACK; i++) {
        const float a = widen(first.at[i]), b = widen(second.at[i]);
        store(left.at + i, a * c.at[i] - b * s.at[i]);
        store(right.at + i, b * c.at[i] + a * s.at[i]);
    }
    store_pack(out + row + pair, left);
    store_pack(out + row + pairs + pair, right);
}

// By the types of out and x: s the storage type, f float32.
#define APPLY_ROPE(MIX, PACK, OUT, IN)                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS) apply_rope_##MIX##_##PACK(            \
        OUT* out, const IN* x, const float* cos, const float* sin, int seq, int positions,      \
        int head_dim, int pairs, int passing, int heads_per_table) {                            \
        apply_rope<PACK>(out, x, cos, sin, seq, positions, head_dim, pairs, passing,            \
                         heads_per_table);                                                      \
    }
APPLY_ROPE(ss, 1, STORAGE, STORAGE)
APPLY_ROPE(ss, 4, STORAGE, STORAGE)
APPLY_ROPE(sf, 1, STORAGE, float)
APPLY_ROPE(sf, 4, STORAGE, float)
APPLY_ROPE(fs, 1, float, STORAGE)
APPLY_ROPE(fs, 4, float, STORAGE)
