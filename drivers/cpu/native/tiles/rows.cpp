// Norms of rows and embedding tables, into rows and tiles.
#include "tiles/finish.hpp"

namespace rayvec::RAYVEC_SET {

void norm_rows(
    const float* x,
    std::int64_t tokens,
    std::int64_t cols,
    const RowFinish& finish,
    float* scratch) {
    for (std::int64_t row = 0; row < tokens; ++row) {
        const auto value = [&](std::int64_t col) { return load(x + row * cols + col); };
        const FinishedRow to = row_of(finish, row, cols);
        finish_row(value, finish.norm, finish.sandwich, cols, scratch, to);
    }
    finish_padding(finish, tokens, cols);
}

void embed_tiles(
    const EmbeddingTable* tables,
    std::int64_t table_count,
    std::int64_t tokens,
    std::int64_t cols,
    const RowFinish& finish,
    float* scratch) {
    for (std::int64_t token = 0; token < tokens; ++token) {
        const auto value = [&](std::int64_t col) {
            Vec sum = load(tables[0].rows + tables[0].ids[token] * cols + col);
            for (std::int64_t i = 1; i < table_count; ++i) {
                sum = add(sum, load(tables[i].rows + tables[i].ids[token] * cols + col));
            }
            return sum;
        };
        const FinishedRow to = row_of(finish, token, cols);
        finish_row(value, finish.norm, finish.sandwich, cols, scratch, to);
    }
    finish_padding(finish, tokens, cols);
}

}  // namespace rayvec::RAYVEC_SET
