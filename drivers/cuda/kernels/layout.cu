// Tokens to heads and back, flat or padded. Nothing is computed.
// Built with THREADS of drivers/cuda/launches/chunks.py, and with MASK_VALUE.

// Where the tokens of a sequence lie: end to end as cu_seqlens says, or, where it is null, in rows
// of `seq` tokens.
struct Tokens {
    size_t start;
    int length;
};
__device__ inline Tokens tokens_of(size_t sequence, int seq, const int* cu_seqlens) {
    if (!cu_seqlens) return {sequence * seq, seq};
    const int start = cu_seqlens[sequence];
    return {(size_t)start, cu_seqlens[sequence + 1] - start};
}

// A chunk of one head of one token, heads counted within the token.
struct HeadPlace {
    size_t sequence;
    int position, head, dim, count;
};
__device__ inline HeadPlace head_place(int batch, int seq, int heads, int head_dim) {
    const size_t number = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const ChunkPlace place = chunk_place(number, (size_t)batch * seq * heads, head_dim);
    const size_t token = quotient(place.row, heads), sequence = quotient(token, seq);
    return {sequence, (int)(token - sequence * seq), (int)(place.row - token * heads),
            (int)place.column, place.count};
}

// Each token's heads to where the heads are kept; zeros behind a sequence's end.
//
//   q           (B * N, S, D)          STORAGE, or float32 where the flag behind the pointer is set
//   k, v        (B * KV, S, D)         the same; not used where KV = 0
//   tokens      (T, (N + 2 KV) * D)    the same, q before k before v
//   cu_seqlens  (B + 1,)               int32, where each sequence starts among the T tokens; null
//                                      where they are B * S padded ones, which are all taken
//   S = seq, N = num_heads, KV = kv_heads, D = head_dim
//
//   grid   (ceil(B * S * (N + 2 KV) * ceil(D / CHUNK) / THREADS))
//   block  (THREADS): a thread a chunk of a head, neighbours side by side among the tokens
extern "C" __global__ void __launch_bounds__(THREADS)
    split_heads(void* q, int q_wide, void* k, int k_wide, void* v, int v_wide, const void* tokens,
                int tokens_wide, const int* cu_seqlens, int batch, int seq, int num_heads,
                int kv_heads, int head_dim) {
    const int heads = num_heads + 2 * kv_heads;
    const HeadPlace place = head_place(batch, seq, heads, head_dim);
    if (place.count == 0) return;

    const bool is_q = place.head < num_heads, is_k = place.head < num_heads + kv_heads;
    void* out = is_q ? q : is_k ? k : v;
    const bool out_wide = is_q ? q_wide : is_k ? k_wide : v_wide;
    const int out_heads = is_q ? num_heads : kv_heads;
    const int out_head = place.head - (is_q ? 0 : is_k ? num_heads : num_heads + kv_heads);
    const size_t group = place.sequence * out_heads + out_head;
    const size_t to = (group * seq + place.position) * head_dim + place.dim;

    const Tokens own = tokens_of(place.sequence, seq, cu_seqlens);
    if (place.position >= own.length) {
        write_chunk(out, out_wide, to, place.count, Chunk{});
        return;
    }
    const size_t token = own.start + place.position;
    const size_t from = (token * heads + place.head) * head_dim + place.dim;
    const Chunk chunk = read_chunk(tokens, tokens_wide, from, place.count);
    move_chunk(out, out_wide, to, place.count, chunk, tokens_wide);
}

// Heads side by side again, each token's own; what lies behind a sequence's end is left behind.
//
//   tokens      (T, N * D)     STORAGE, or float32 where the flag behind the pointer is set
//   x           (B * N, S, D)  the same
//   cu_seqlens  (B + 1,)       as in split_heads
//
//   grid   (ceil(B * S * N * ceil(D / CHUNK) / THREADS))
//   block  (THREADS): a thread a chunk of a head, neighbours side by side among the tokens
extern "C" __global__ void __launch_bounds__(THREADS)
    join_heads(void* tokens, int tokens_wide, const void* x, int x_wide, const int* cu_seqlens,
               int batch, int seq, int num_heads, int head_dim) {
    const HeadPlace place = head_place(batch, seq, num_heads, head_dim);
    if (place.count == 0) return;
    const Tokens own = tokens_of(place.sequence, seq, cu_seqlens);
    if (place.position >= own.length) return;

    const size_t group = place.sequence * num_heads + place.head;
    const size_t from = (group * seq + place.position) * head_dim + place.dim;
    const size_t token = own.start + place.position;
    const size_t to = (token * num_heads + place.head) * head_dim + place.dim;
    move_chunk(tokens, tokens_wide, to, place.count, read_chunk(x, x_wide, from, place.count),
               x_wide);
}

// out = 0 where int_mask is not 0, else MASK_VALUE.
//
//   out       (count,)  float32
//   int_mask  (count,)  int32
//
//   grid   (ceil(count / THREADS))
//   block  (THREADS): a thread a value
extern "C" __global__ void __launch_bounds__(THREADS)
    build_attn_mask(float* out, const int* int_mask, long long count) {
    const long long i = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (i < count) out[i] = int_mask[i] != 0 ? 0.0f : MASK_VALUE;
}
