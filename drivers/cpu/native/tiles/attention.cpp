// Multi-head attention on tiles over unpadded rows, one sequence and one key head at a time.
//
// The softmax of a query is shifted by its largest score among the first block of keys that it
// sees, which is nearly always enough: weights are as exact for any shift. Where a later score is
// so much larger that the sum leaves the safe range, the query is worked out again, exactly. All
// of it depends on the query's own sequence alone.
#include "tiles/attention_tiles.hpp"
#include "kernels/lanes.hpp"

namespace rayvec::RAYVEC_SET {

namespace {

constexpr float LEAST_SCORE = -3.0e38f;
constexpr float SAFE_SUM = 1e25f;
constexpr std::int64_t FAR = std::int64_t{1} << 40;

// Where the scratch memory's parts begin, in float32 values.
struct Scratch {
    std::int64_t keys, values, weights, scores, context, bias, row, size;

    Scratch(std::int64_t longest, std::int64_t head_dim) {
        const std::int64_t blocks = quotient_up(longest, KEYS);
        keys = 0;                                        // (blocks, head_dim, 32) bf16
        values = keys + blocks * KEYS * head_dim / 2;    // the same
        weights = values + blocks * KEYS * head_dim / 2;  // (blocks, 16, 32) bf16
        scores = weights + most(2, blocks) * TILE_VALUES / 2;  // (2, 16, 32)
        context = scores + 2 * QUERIES * KEYS;                   // (16, head_dim)
        bias = context + QUERIES * head_dim;  // (2 longest - 1), and room for a block either side
        row = bias + 2 * blocks * KEYS + 2 * KEYS;  // (longest)
        size = row + blocks * KEYS;
    }
};

// One head of one sequence.
struct Task {
    const Bf16* queries;  // (tokens, head_dim)
    const Bf16* keys;     // the same, and laid out below
    const Bf16* values;
    const Bf16* key_blocks;
    const Bf16* value_blocks;
    const float* bias;  // by key - query, times log2(e); or null
    Bf16* weights;      // scratch, as named in Scratch
    float* scores;
    float* context;
    float* row_scores;
    Bf16* out;  // tiles: the head's first column, of row 0 of all tokens
    std::int64_t out_cols;
    std::int64_t first_row;  // of out
    std::int64_t tokens;
    std::int64_t before;  // keys that a query sees before it, and after it
    std::int64_t after;
    float scale;  // times log2(e)
};

// Bits of the keys of a block, from `key` on, that `query` sees.
RAYVEC_INLINE std::uint32_t seen(const Task& task, std::int64_t query, std::int64_t key) {
    const std::int64_t from = most(0, least(KEYS, query - task.before - key));
    const std::int64_t end = least(task.tokens, query + task.after + 1);
    const std::int64_t to = most(0, least(KEYS, end - key));
    const std::uint64_t below_to = (std::uint64_t{1} << to) - 1;
    const std::uint64_t below_from = (std::uint64_t{1} << from) - 1;
    return static_cast<std::uint32_t>(below_to & ~below_from);
}

// 16 scores of a query as powers of 2, less the shift.
template <bool biased>
RAYVEC_INLINE Vec exponent(const float* scores, const float* bias, Vec scale, Vec minus_shift) {
    if constexpr (biased) {
        minus_shift = add(minus_shift, load(bias));
    }
    return mul_add(load(scores), scale, minus_shift);
}

// Raises each query's peak to its largest score among the keys of a block that it sees.
template <bool biased>
RAYVEC_INLINE void raise_peaks(
    const Task& task, const float* scores, std::int64_t query, std::int64_t key, float* peaks) {
    const Vec scale = broadcast(task.scale), least_score = broadcast(LEAST_SCORE);
    Vec rows[QUERIES];
#pragma GCC unroll 16
    for (std::int64_t i = 0; i < QUERIES; ++i) {
        const std::uint32_t bits = seen(task, query + i, key);
        const float* bias = biased ? task.bias + key - query - i : nullptr;
        const Vec left = exponent<biased>(scores + i * KEYS, bias, scale, zero());
        const Vec right = exponent<biased>(scores + i * KEYS + LANES, bias + LANES, scale, zero());
        rows[i] =
            max(where_bit(bits, left, least_score), where_bit(bits >> 16, right, least_score));
    }
    const Vec largest = reduce_rows(rows, [](Vec a, Vec b) { return max(a, b); });
    store(peaks, max(load(peaks), largest));
}

// 16 queries of a task on their way through blocks of keys.
struct QueryBlock {
    std::int64_t query;
    std::int64_t first;  // the first block of keys that some query sees
    std::int64_t end;    // one after the last
    alignas(64) float peaks[QUERIES];
    alignas(64) float minus_peaks[QUERIES];
    alignas(64) float totals[QUERIES][LANES];
};

// Scores of a block to weights, rounded to bf16, and onto the queries' totals. edge: whether some
// query does not see some key.
template <bool biased, bool edge>
RAYVEC_INLINE void weigh(
    const Task& task,
    const QueryBlock& block,
    std::int64_t key,
    const float* scores,
    Bf16* weights,
    Vec (&totals)[QUERIES]) {
    const Vec scale = broadcast(task.scale);
#pragma GCC unroll 16
    for (std::int64_t i = 0; i < QUERIES; ++i) {
        const Vec shift = broadcast(block.minus_peaks[i]);
        const float* from = scores + i * KEYS;
        const float* bias = biased ? task.bias + key - block.query - i : nullptr;
        Vec left = exp2_coarse(exponent<biased>(from, bias, scale, shift));
        Vec right = exp2_coarse(exponent<biased>(from + LANES, bias + LANES, scale, shift));
        if constexpr (edge) {
            const std::uint32_t bits = seen(task, block.query + i, key);
            left = where_bit(bits, left, zero());
            right = where_bit(bits >> 16, right, zero());
        }
        totals[i] = store_bf16_and_add(weights + i * KEYS, left, right, totals[i]);
    }
}

// One query again, with the largest of all its scores as the shift; zeros where none of them is
// above minus infinity.
[[gnu::noinline]] void attend_exactly(
    const Task& task, std::int64_t query, std::int64_t head_dim, float* context) {
    const std::int64_t first = most(0, query - task.before);
    const std::int64_t last = least(task.tokens, query + task.after + 1);
    const Bf16* q = task.queries + query * head_dim;
    float peak = -__builtin_inff();
    for (std::int64_t key = first; key < last; ++key) {
        Vec sum = zero();
        for (std::int64_t d = 0; d < head_dim; d += LANES) {
            sum = mul_add(load_bf16(q + d), load_bf16(task.keys + key * head_dim + d), sum);
        }
        const float bias = task.bias == nullptr ? 0.0f : task.bias[key - query];
        const float x = sum_of_lanes(sum) * task.scale + bias;
        task.row_scores[key] = x;
        peak = x > peak ? x : peak;
    }
    for (std::int64_t d = 0; d < head_dim; d += LANES) {
        store(context + d, zero());
    }
    const float shift = peak == -__builtin_inff() ? 0.0f : peak;
    float total = 0.0f;
    for (std::int64_t key = first; key < last; ++key) {
        alignas(64) float weight[LANES];
        store(weight, exp2_of_negative(broadcast(task.row_scores[key] - shift)));
        total += weight[0];
        for (std::int64_t d = 0; d < head_dim; d += LANES) {
            const Vec value = load_bf16(task.values + key * head_dim + d);
            store(context + d, mul_add(value, broadcast(weight[0]), load(context + d)));
        }
    }
    for (std::int64_t d = 0; d < head_dim; d += LANES) {
        store(context + d, div(load(context + d), broadcast(total == 0.0f ? 1.0f : total)));
    }
}

// Rows of context (16, head_dim), each times its share, to the tiles.
template <int width>
RAYVEC_INLINE void store_rows(
    const Task& task, const float* context, const float* shares, std::int64_t query,
    std::int64_t rows) {
    for (std::int64_t i = 0; i < rows; ++i) {
        Bf16* to = tile_row(task.out, task.first_row + query + i, task.out_cols);
        const Vec share = broadcast(shares[i]);
#pragma GCC unroll 4
        for (int c = 0; c < width; ++c) {
            const float* from = context + (i * width + c) * TILE_WIDTH;
            store_bf16(
                to + c * TILE_VALUES, mul(load(from), share), mul(load(from + LANES), share));
        }
    }
}

RAYVEC_INLINE float* scores_of(const Task& task, std::int64_t b) {
    return task.scores + (b & 1) * QUERIES * KEYS;
}

// The weights of all blocks are kept where a second pass over the values follows.
template <int width>
RAYVEC_INLINE Bf16* weights_of(const Task& task, const QueryBlock& block, std::int64_t b) {
    return task.weights + (width > 2 ? b - block.first : b & 1) * TILE_VALUES;
}

template <int width>
RAYVEC_INLINE void score_block(const Task& task, const QueryBlock& block, std::int64_t b) {
    constexpr std::int64_t head_dim = width * TILE_WIDTH;
    const Bf16* queries = task.queries + block.query * head_dim;
    score<width>(queries, task.key_blocks + b * KEYS * head_dim, scores_of(task, b));
}

// Key blocks [from, to), whose first has its scores already: beside the weights of one block run
// the scores of the next and the context of the one before.
template <int width, bool biased, bool edge>
[[gnu::noinline]] void attend_keys(
    const Task& task, QueryBlock& block, std::int64_t from, std::int64_t to) {
    constexpr std::int64_t block_values = KEYS * width * TILE_WIDTH;
    Vec totals[QUERIES];
#pragma GCC unroll 16
    for (std::int64_t i = 0; i < QUERIES; ++i) {
        totals[i] = load(block.totals[i]);
    }
    for (std::int64_t b = from; b < to; ++b) {
        if (b + 1 < block.end) {
            score_block<width>(task, block, b + 1);
        }
        Bf16* weights = weights_of<width>(task, block, b);
        weigh<biased, edge>(task, block, b * KEYS, scores_of(task, b), weights, totals);
        if (b > block.first) {
            const Bf16* values = task.value_blocks + (b - 1) * block_values;
            add_values<width, 0>(weights_of<width>(task, block, b - 1), values);
        }
    }
#pragma GCC unroll 16
    for (std::int64_t i = 0; i < QUERIES; ++i) {
        store(block.totals[i], totals[i]);
    }
}

// What the first keys that each query sees score at most: every query sees one in the first block,
// or, where windows end before it, in the second.
template <int width, bool biased>
RAYVEC_INLINE void find_peaks(const Task& task, QueryBlock& block) {
    store(block.peaks, broadcast(LEAST_SCORE));
    const bool from_start = task.before == FAR;
    const std::int64_t end = from_start ? block.first + 1 : least(block.first + 2, block.end);
    for (std::int64_t b = block.first; b < end; ++b) {
        score_block<width>(task, block, b);
        raise_peaks<biased>(task, scores_of(task, b), block.query, b * KEYS, block.peaks);
    }
    store(block.minus_peaks, sub(zero(), load(block.peaks)));
}

// Queries [query, query + 16) of one head; those after the last token are worked out, not stored.
template <int width, bool biased>
RAYVEC_INLINE void attend_block(const Task& task, std::int64_t query) {
    constexpr std::int64_t head_dim = width * TILE_WIDTH, block_values = KEYS * head_dim;
    const std::int64_t rows = least(QUERIES, task.tokens - query);
    QueryBlock block;
    block.query = query;
    block.first = most(0, query - task.before) / KEYS;
    block.end = quotient_up(least(task.tokens, query + rows + task.after), KEYS);
    __builtin_memset(block.totals, 0, sizeof block.totals);
    if constexpr (width == 1) {
        tile_load<NarrowHead::QUERY>(task.queries + query * head_dim, 64);
    }
    zero_context<width>();
    find_peaks<width, biased>(task, block);

    // Blocks [inner, inner_end) are seen whole by all queries.
    const std::int64_t first_whole = most(0, query + QUERIES - 1 - task.before);
    const std::int64_t seen_by_all = least(task.tokens, query + task.after + 1);
    const std::int64_t inner_end = most(block.first, seen_by_all / KEYS);
    const std::int64_t inner =
        least(inner_end, most(block.first, quotient_up(first_whole, KEYS)));
    attend_keys<width, biased, true>(task, block, block.first, inner);
    attend_keys<width, biased, false>(task, block, inner, inner_end);
    attend_keys<width, biased, true>(task, block, inner_end, block.end);

    const std::int64_t last = block.end - 1;
    add_values<width, 0>(
        weights_of<width>(task, block, last), task.value_blocks + last * block_values);
    store_context<width, 0>(task.context);
    if constexpr (width > 2) {
        zero_context<width>();
        for (std::int64_t b = block.first; b < block.end; ++b) {
            add_values<width, 2>(
                weights_of<width>(task, block, b), task.value_blocks + b * block_values);
        }
        store_context<width, 2>(task.context);
    }

    Vec totals[QUERIES];
#pragma GCC unroll 16
    for (std::int64_t i = 0; i < QUERIES; ++i) {
        totals[i] = load(block.totals[i]);
    }
    alignas(64) float sums[QUERIES], shares[QUERIES];
    const Vec sum = reduce_rows(totals, [](Vec a, Vec b) { return add(a, b); });
    store(sums, sum);
    store(shares, div(broadcast(1.0f), sum));
    for (std::int64_t i = 0; i < rows; ++i) {
        if (!(sums[i] > 1.0f / SAFE_SUM && sums[i] < SAFE_SUM)) [[unlikely]] {
            attend_exactly(task, query + i, head_dim, task.context + i * head_dim);
            shares[i] = 1.0f;
        }
    }
    store_rows<width>(task, task.context, shares, query, rows);
}

template <int width, bool biased>
void attend(const Task& task) {
    for (std::int64_t query = 0; query < task.tokens; query += QUERIES) {
        attend_block<width, biased>(task, query);
    }
}

using Attend = void(const Task&);

// By 32s of the head, and by whether there is a position bias.
constexpr Attend* ATTEND[][2] = {
    {attend<1, false>, attend<1, true>},
    {attend<2, false>, attend<2, true>},
    {attend<3, false>, attend<3, true>},
    {attend<4, false>, attend<4, true>},
};

// How many keys a window reaches, without end where it holds the whole sequence.
constexpr std::int64_t reach(std::int64_t window, std::int64_t tokens) {
    return 0 <= window && window < tokens ? window : FAR;
}

// The biases of distances within `tokens`, times log2(e), from -tokens + 1 on; zeros on both sides.
void scale_bias(const HeadScores& scores, std::int64_t head, std::int64_t tokens, float* middle) {
    const std::int64_t reach = quotient_up(tokens, KEYS) * KEYS + KEYS;
    const std::int64_t width = 2 * scores.bias_positions - 1;
    const float* table = scores.position_bias + head * width + scores.bias_positions - 1;
    for (std::int64_t distance = -reach; distance < reach; ++distance) {
        const bool within = -tokens < distance && distance < tokens;
        middle[distance] = within ? table[distance] * LOG2_E : 0.0f;
    }
}

}  // namespace

std::int64_t attend_scratch(std::int64_t longest, std::int64_t head_dim) {
    return Scratch(longest, head_dim).size;
}

void attend_heads(const Heads& heads, const HeadScores& scores, float* scratch, Bf16* out) {
    const TileScope scope(full_tiles());
    std::int64_t longest = 0;
    for (std::int64_t s = 0; s < heads.sequences; ++s) {
        longest = most(longest, heads.cu_seqlens[s + 1] - heads.cu_seqlens[s]);
    }
    const std::int64_t dim = heads.head_dim, group = heads.num_heads / heads.kv_heads;
    const Scratch at(longest, dim);
    auto* key_blocks = reinterpret_cast<Bf16*>(scratch + at.keys);
    auto* value_blocks = reinterpret_cast<Bf16*>(scratch + at.values);
    const bool biased = scores.position_bias != nullptr;
    float* bias = scratch + at.bias + quotient_up(longest, KEYS) * KEYS + KEYS;
    for (std::int64_t s = 0; s < heads.sequences; ++s) {
        const std::int64_t start = heads.cu_seqlens[s], tokens = heads.cu_seqlens[s + 1] - start;
        for (std::int64_t kv_head = 0; kv_head < heads.kv_heads; ++kv_head) {
            const Bf16* keys = head_rows(heads, heads.num_heads + kv_head) + start * dim;
            const Bf16* values =
                head_rows(heads, heads.num_heads + heads.kv_heads + kv_head) + start * dim;
            lay_out_keys(keys, tokens, dim, key_blocks);
            lay_out_values(values, tokens, dim, value_blocks);
            for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
                if (biased) {
                    scale_bias(scores, head, tokens, bias);
                }
                const Task task{
                    .queries = head_rows(heads, head) + start * dim,
                    .keys = keys,
                    .values = values,
                    .key_blocks = key_blocks,
                    .value_blocks = value_blocks,
                    .bias = biased ? bias : nullptr,
                    .weights = reinterpret_cast<Bf16*>(scratch + at.weights),
                    .scores = scratch + at.scores,
                    .context = scratch + at.context,
                    .row_scores = scratch + at.row,
                    .out = out + head * dim * STRIP,
                    .out_cols = heads.num_heads * dim,
                    .first_row = start,
                    .tokens = tokens,
                    .before = reach(scores.window_left, tokens),
                    .after = reach(scores.window_right, tokens),
                    .scale = scores.scale * LOG2_E,
                };
                ATTEND[dim / TILE_WIDTH - 1][biased](task);
            }
        }
    }
    clear_padding(out, heads.cu_seqlens[heads.sequences], heads.num_heads * dim);
}

}  // namespace rayvec::RAYVEC_SET
