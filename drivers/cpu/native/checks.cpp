// What bindings.hpp declares: checks of arguments, and scratch memory.
#include <algorithm>
#include <memory>
#include <new>

#include "bindings.hpp"

namespace rayvec {

void* scratch_bytes(std::size_t bytes) {
    constexpr std::size_t ALIGNMENT = 64;
    struct Free {
        void operator()(void* memory) const {
            ::operator delete(memory, std::align_val_t(ALIGNMENT));
        }
    };
    thread_local std::unique_ptr<void, Free> memory;
    thread_local std::size_t held = 0;
    if (bytes > held) {
        memory.reset();
        held = 0;
        memory.reset(::operator new(bytes, std::align_val_t(ALIGNMENT)));
        held = bytes;
    }
    return memory.get();
}

Norm norm_of(
    const Floats& weight, const OptionalFloats& bias, float eps, bool centred, std::int64_t cols) {
    require(
        size(weight, 0) == cols && has_length(bias, cols),
        "norm: weight or bias has another length than the rows");
    return Norm{.weight = weight.data(), .bias = data(bias), .eps = eps, .centred = centred};
}

std::vector<EmbeddingTable> tables_of(
    const std::vector<Matrix>& tables,
    const std::vector<Ids>& ids,
    std::int64_t tokens,
    std::int64_t cols) {
    require(!tables.empty() && tables.size() == ids.size(), "embed: wanted ids for each table");
    std::vector<EmbeddingTable> entries;
    for (std::size_t i = 0; i < tables.size(); ++i) {
        require(
            size(tables[i], 1) == cols && size(ids[i], 0) == tokens,
            "embed: the sizes of a table, its ids and out do not fit");
        const std::int32_t* begin = ids[i].data();
        const auto rows = size(tables[i], 0);
        require(
            std::all_of(begin, begin + tokens, [rows](auto id) { return 0 <= id && id < rows; }),
            "embed: an id is outside its table");
        entries.push_back({tables[i].data(), begin});
    }
    return entries;
}

std::int64_t longest_of(const Ids& cu_seqlens, std::int64_t tokens) {
    const std::int64_t count = size(cu_seqlens, 0);
    const std::int32_t* bounds = cu_seqlens.data();
    require(
        count >= 1 && bounds[0] == 0 && bounds[count - 1] == tokens &&
            std::is_sorted(bounds, bounds + count),
        "cu_seqlens: wanted bounds that rise from 0 to the number of tokens");
    std::int64_t longest = 0;
    for (std::int64_t i = 1; i < count; ++i) {
        longest = std::max<std::int64_t>(longest, bounds[i] - bounds[i - 1]);
    }
    return longest;
}

HeadRotation rotation_of(
    const RopeTable& cos,
    const RopeTable& sin,
    const OptionalFloats& q_norm,
    const OptionalFloats& k_norm,
    float norm_eps,
    std::int64_t sequences,
    std::int64_t longest,
    std::int64_t head_dim) {
    const HeadRotation rotation{
        .cos = data(cos),
        .sin = data(sin),
        .rope_rows = cos ? size(*cos, 1) : 0,
        .rope_pairs = cos ? size(*cos, 2) : 0,
        .rope_per_sequence = cos && size(*cos, 0) > 1,
        .q_norm = data(q_norm),
        .k_norm = data(k_norm),
        .norm_eps = norm_eps,
    };
    require(bool(cos) == bool(sin), "attention: wanted both cos and sin");
    if (cos) {
        require(
            size(*sin, 0) == size(*cos, 0) && size(*sin, 1) == rotation.rope_rows &&
                size(*sin, 2) == rotation.rope_pairs && rotation.rope_rows >= longest &&
                2 * rotation.rope_pairs <= head_dim &&
                (size(*cos, 0) == 1 || size(*cos, 0) == sequences),
            "attention: the sizes of cos and sin do not fit");
    }
    require(
        bool(q_norm) == bool(k_norm) && has_length(q_norm, head_dim) &&
            has_length(k_norm, head_dim),
        "attention: wanted q and k norms of the head's length");
    return rotation;
}

HeadScores scores_of(
    float scale,
    std::int64_t window_left,
    std::int64_t window_right,
    const OptionalMatrix& position_bias,
    std::int64_t num_heads,
    std::int64_t longest) {
    const std::int64_t positions = position_bias ? (size(*position_bias, 1) + 1) / 2 : 0;
    require(window_left >= -1 && window_right >= -1, "attention: wanted windows >= -1");
    require(
        !position_bias || (size(*position_bias, 0) == num_heads && positions >= longest &&
                           size(*position_bias, 1) == 2 * positions - 1),
        "attention: position_bias has another shape than (heads, 2 positions - 1)");
    return HeadScores{
        .scale = scale,
        .window_left = window_left,
        .window_right = window_right,
        .position_bias = data(position_bias),
        .bias_positions = positions,
    };
}

}  // namespace rayvec
