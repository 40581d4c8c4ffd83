// What is done to query and key heads before attention: an RMS norm and the rotation by position.
#include "tiles/bf16_vec.hpp"
#include "tiles/layout.hpp"
#include "kernels/rotation.hpp"

namespace rayvec::RAYVEC_SET {

namespace {

constexpr std::int64_t MOST_HEAD_DIM = 128;

// One head of one token, in place.
RAYVEC_INLINE void prepare_head(
    Bf16* head,
    std::int64_t dim,
    const float* norm_weight,
    float eps,
    const float* cos,
    const float* sin,
    std::int64_t pairs) {
    alignas(64) float wide[MOST_HEAD_DIM];
    Vec squares = zero();
    for (std::int64_t d = 0; d < dim; d += LANES) {
        const Vec x = load_bf16(head + d);
        squares = mul_add(x, x, squares);
        store(wide + d, x);
    }
    if (norm_weight != nullptr) {
        const float variance = sum_of_lanes(squares) / static_cast<float>(dim);
        const Vec scale = broadcast(1.0f / __builtin_sqrtf(variance + eps));
        for (std::int64_t d = 0; d < dim; d += LANES) {
            store(wide + d, mul(mul(load(wide + d), scale), load(norm_weight + d)));
        }
    }
    rotate(wide, cos, sin, pairs);
    for (std::int64_t d = 0; d < dim; d += TILE_WIDTH) {
        store_bf16(head + d, load(wide + d), load(wide + d + LANES));
    }
}

}  // namespace

void prepare_heads(const Heads& heads, const HeadRotation& rotation) {
    const std::int64_t pairs = rotation.rope_pairs;
    for (std::int64_t head = 0; head < heads.num_heads + heads.kv_heads; ++head) {
        const float* norm = head < heads.num_heads ? rotation.q_norm : rotation.k_norm;
        Bf16* rows = head_rows(heads, head);
        for (std::int64_t s = 0; s < heads.sequences; ++s) {
            const std::int64_t start = heads.cu_seqlens[s];
            const std::int64_t table = rotation.rope_per_sequence ? s * rotation.rope_rows : 0;
            for (std::int64_t token = start; token < heads.cu_seqlens[s + 1]; ++token) {
                const std::int64_t angle = pairs == 0 ? 0 : (table + token - start) * pairs;
                prepare_head(
                    rows + token * heads.head_dim, heads.head_dim, norm, rotation.norm_eps,
                    rotation.cos + angle, rotation.sin + angle, pairs);
            }
        }
    }
}

}  // namespace rayvec::RAYVEC_SET
