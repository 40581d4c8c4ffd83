// Multi-head attention over unpadded rows in float32, one sequence and one key head at a time.
//
// Keys are laid out as panels that a block of queries runs over, scores of a block of queries stand
// in scratch memory whole, and the exponential is taken once their maximum is known.
#include "kernels/lanes.hpp"
#include "kernels/math.hpp"
#include "kernels/product.hpp"
#include "kernels/rotation.hpp"

namespace rayvec::RAYVEC_SET {

namespace {

constexpr std::int64_t whole_panels(std::int64_t count) {
    return (count + PANEL - 1) / PANEL * PANEL;
}

constexpr float MASKED = -__builtin_inff();

// Where the scratch memory's parts begin, in float32 values, for sequences up to `longest`.
struct Scratch {
    std::int64_t keys, values, queries, scores, sums, size;

    Scratch(std::int64_t longest, std::int64_t head_dim) {
        const std::int64_t width = whole_panels(head_dim), length = whole_panels(longest);
        keys = 0;                                      // (panels, head_dim, PANEL)
        values = keys + length * head_dim;             // (width / PANEL, longest, PANEL)
        queries = values + length * width;             // (BLOCK_ROWS or LANES, head_dim)
        scores = queries + whole_panels(most(BLOCK_ROWS, LANES) * head_dim);  // (BLOCK_ROWS, length)
        sums = scores + BLOCK_ROWS * length;           // (BLOCK_ROWS, PANEL)
        size = sums + BLOCK_ROWS * PANEL;
    }
};

// One head of one token as attention uses it: normed, then rotated, then times `factor`.
RAYVEC_INLINE void prepare_head(
    const float* head,
    const AttentionInput& in,
    const float* norm_weight,
    const float* cos,
    const float* sin,
    float factor,
    float* to) {
    const std::int64_t dim = in.head_dim;
    float scale = factor;
    if (norm_weight != nullptr) {
        Vec squares = zero();
        each_vector(dim, [&](std::int64_t d, std::int64_t left) {
            const Vec x = load_left(head + d, left);
            squares = mul_add(x, x, squares);
        });
        const float variance = sum_of_lanes(squares) / static_cast<float>(dim);
        scale *= 1.0f / __builtin_sqrtf(variance + in.norm_eps);
    }
    each_vector(dim, [&](std::int64_t d, std::int64_t left) {
        const Vec x = mul(load_left(head + d, left), broadcast(scale));
        const bool normed = norm_weight != nullptr;
        store_left(to + d, normed ? mul(x, load_left(norm_weight + d, left)) : x, left);
    });
    rotate(to, cos, sin, in.rope_pairs);
}

// The tokens of one sequence in the layout of one head.
struct Sequence {
    const float* qkv;  // the first token's row
    float* out;        // the same
    std::int64_t tokens;
    const float* cos;  // (rope_rows, rope_pairs) or null
    const float* sin;
};

RAYVEC_INLINE const float* rope_row(const float* table, std::int64_t pairs, std::int64_t token) {
    return table == nullptr ? nullptr : table + token * pairs;
}

// Keys of one head to panels (panels, head_dim, PANEL), zeros after the last token; `rows` has
// room for LANES heads.
void lay_out_keys(
    const AttentionInput& in, const Sequence& seq, std::int64_t kv_head, float* rows, float* keys) {
    const std::int64_t dim = in.head_dim;
    const float* from = seq.qkv + (in.num_heads + kv_head) * dim;
    for (std::int64_t first = 0; first < whole_panels(seq.tokens); first += LANES) {
        const std::int64_t count = most(0, least(LANES, seq.tokens - first));
        for (std::int64_t i = 0; i < count; ++i) {
            const std::int64_t token = first + i;
            prepare_head(
                from + token * in.row_stride, in, in.k_norm,
                rope_row(seq.cos, in.rope_pairs, token), rope_row(seq.sin, in.rope_pairs, token),
                1.0f, rows + i * dim);
        }
        float* to = keys + first / PANEL * PANEL * dim + first % PANEL;
        for (std::int64_t d = 0; d < dim; d += LANES) {
            Vec block[LANES];
            for (std::int64_t i = 0; i < LANES; ++i) {
                block[i] = i < count ? load_left(rows + i * dim + d, dim - d) : zero();
            }
            transpose(block);
            for (std::int64_t i = 0; i < least(LANES, dim - d); ++i) {
                store(to + (d + i) * PANEL, block[i]);
            }
        }
    }
}

void lay_out_values(
    const AttentionInput& in, const Sequence& seq, std::int64_t kv_head, float* values) {
    const std::int64_t dim = in.head_dim, width = whole_panels(dim);
    const float* from = seq.qkv + (in.num_heads + in.kv_heads + kv_head) * dim;
    for (std::int64_t token = 0; token < seq.tokens; ++token) {
        for (std::int64_t col = 0; col < width; col += PANEL) {
            float* to = values + col * seq.tokens + token * PANEL;
            const float* head = from + token * in.row_stride + col;
            for (std::int64_t d = 0; d < PANEL; d += LANES) {
                const std::int64_t left = dim - col - d;
                store(to + d, load_left(head + d, left));
            }
        }
    }
}

// Scores of one query to weights: scores (length) of the keys from `first_key` on, those outside
// [from, to) masked, and any that is -infinity. Returns the sum of the weights, 1 where all are 0.
RAYVEC_INLINE float softmax_row(
    float* scores,
    std::int64_t length,
    std::int64_t first_key,
    std::int64_t from,
    std::int64_t to,
    const float* bias) {
    for (std::int64_t k = 0; k < from - first_key; ++k) {
        scores[k] = MASKED;
    }
    for (std::int64_t k = to - first_key; k < length; ++k) {
        scores[k] = MASKED;
    }
    if (bias != nullptr) {
        for (std::int64_t k = from - first_key; k < to - first_key; ++k) {
            scores[k] += bias[k];
        }
    }
    Vec peaks = broadcast(MASKED);
    for (std::int64_t k = 0; k < length; k += LANES) {
        peaks = max(peaks, load(scores + k));
    }
    const float largest = max_of_lanes(peaks);
    const Vec peak = broadcast(largest == MASKED ? 0.0f : largest);
    Vec total = zero();
    for (std::int64_t k = 0; k < length; k += LANES) {
        // The difference first: near the peak, where weights are large, it is exact.
        const Vec below = sub(load(scores + k), peak);
        const Vec weight = exp2_of_negative(mul(below, broadcast(LOG2_E)));
        store(scores + k, weight);
        total = add(total, weight);
    }
    const float sum = sum_of_lanes(total);
    return sum == 0.0f ? 1.0f : sum;
}

// Keys that a window reaches to one side, no more than there are; -1 is all.
constexpr std::int64_t reach(std::int64_t window, std::int64_t tokens) {
    return window < 0 ? tokens : least(window, tokens);
}

// Queries [query, query + rows) of one head.
void attend(
    const AttentionInput& in,
    const Sequence& seq,
    std::int64_t head,
    std::int64_t query,
    std::int64_t rows,
    const Scratch& at,
    float* scratch) {
    const std::int64_t dim = in.head_dim;
    float* queries = scratch + at.queries;
    for (std::int64_t i = 0; i < rows; ++i) {
        prepare_head(
            seq.qkv + (query + i) * in.row_stride + head * dim, in, in.q_norm,
            rope_row(seq.cos, in.rope_pairs, query + i),
            rope_row(seq.sin, in.rope_pairs, query + i), in.scale, queries + i * dim);
    }
    const std::int64_t before = reach(in.window_left, seq.tokens);
    const std::int64_t after = reach(in.window_right, seq.tokens);
    const std::int64_t first = most(0, query - before) / PANEL * PANEL;
    const std::int64_t last = least(seq.tokens, query + rows + after);
    const std::int64_t length = whole_panels(last - first);
    float* scores = scratch + at.scores;
    for (std::int64_t key = 0; key < length; key += PANEL) {
        const float* panel = scratch + at.keys + (first + key) * dim;
        block_product(rows, queries, dim, panel, PANEL, dim, scores + key, length);
    }
    float totals[BLOCK_ROWS];
    for (std::int64_t i = 0; i < rows; ++i) {
        const std::int64_t token = query + i;
        const float* bias = in.position_bias;
        if (bias != nullptr) {
            const std::int64_t middle = in.bias_positions - 1;
            bias += head * (2 * middle + 1) + middle + first - token;
        }
        totals[i] = softmax_row(
            scores + i * length, length, first, most(0, token - before),
            least(seq.tokens, token + after + 1), bias);
    }
    float* sums = scratch + at.sums;
    for (std::int64_t col = 0; col < dim; col += PANEL) {
        const float* values = scratch + at.values + col * seq.tokens + first * PANEL;
        block_product(rows, scores, length, values, PANEL, last - first, sums, PANEL);
        for (std::int64_t i = 0; i < rows; ++i) {
            const Vec share = broadcast(1.0f / totals[i]);
            float* to = seq.out + (query + i) * in.num_heads * dim + head * dim + col;
            for (std::int64_t d = 0; d < least(PANEL, dim - col); d += LANES) {
                const Vec y = mul(load(sums + i * PANEL + d), share);
                store_left(to + d, y, dim - col - d);
            }
        }
    }
}

}  // namespace

std::int64_t attention_scratch(std::int64_t longest, std::int64_t head_dim) {
    return Scratch(longest, head_dim).size;
}

void attention(const AttentionInput& in, float* scratch, float* out) {
    std::int64_t longest = 0;
    for (std::int64_t s = 0; s < in.sequences; ++s) {
        longest = most(longest, in.cu_seqlens[s + 1] - in.cu_seqlens[s]);
    }
    const Scratch at(longest, in.head_dim);
    for (std::int64_t s = 0; s < in.sequences; ++s) {
        const std::int64_t start = in.cu_seqlens[s];
        const std::int64_t table = in.rope_per_sequence ? s * in.rope_rows * in.rope_pairs : 0;
        const Sequence seq{
            .qkv = in.qkv + start * in.row_stride,
            .out = out + start * in.num_heads * in.head_dim,
            .tokens = in.cu_seqlens[s + 1] - start,
            .cos = in.cos == nullptr ? nullptr : in.cos + table,
            .sin = in.sin == nullptr ? nullptr : in.sin + table,
        };
        const std::int64_t group = in.num_heads / in.kv_heads;
        for (std::int64_t kv_head = 0; kv_head < in.kv_heads; ++kv_head) {
            lay_out_keys(in, seq, kv_head, scratch + at.queries, scratch + at.keys);
            lay_out_values(in, seq, kv_head, scratch + at.values);
            for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
                for (std::int64_t query = 0; query < seq.tokens; query += BLOCK_ROWS) {
                    const std::int64_t rows = least(BLOCK_ROWS, seq.tokens - query);
                    attend(in, seq, head, query, rows, at, scratch);
                }
            }
        }
    }
}

}  // namespace rayvec::RAYVEC_SET
