// Work on whole rows in float32: norms with their residual, embedding tables, pooling.
#include "kernels/lanes.hpp"

namespace rayvec::RAYVEC_SET {

namespace {

// y - mean(y), in place.
RAYVEC_INLINE void centre(float* y, std::int64_t cols) {
    Vec sum = zero();
    each_vector(cols, [&](std::int64_t col, std::int64_t left) {
        sum = add(sum, load_left(y + col, left));
    });
    const Vec mean = broadcast(sum_of_lanes(sum) / static_cast<float>(cols));
    each_vector(cols, [&](std::int64_t col, std::int64_t left) {
        store_left(y + col, sub(load_left(y + col, left), mean), left);
    });
}

// to = norm(y) + residual; y is overwritten. A layer norm's row is centred twice, then squared:
// nothing cancels, whatever the mean, and a row of equal values gives exactly the bias.
RAYVEC_INLINE void norm_row(
    float* y, const Norm& norm, const float* residual, float* to, std::int64_t cols) {
    if (norm.centred) {
        centre(y, cols);
        centre(y, cols);
    }
    Vec squares = zero();
    each_vector(cols, [&](std::int64_t col, std::int64_t left) {
        const Vec x = load_left(y + col, left);
        squares = mul_add(x, x, squares);
    });
    const float variance = sum_of_lanes(squares) / static_cast<float>(cols);
    const Vec scale = broadcast(1.0f / __builtin_sqrtf(variance + norm.eps));
    each_vector(cols, [&](std::int64_t col, std::int64_t left) {
        Vec x = mul(mul(load_left(y + col, left), scale), load_left(norm.weight + col, left));
        if (norm.bias != nullptr) {
            x = add(x, load_left(norm.bias + col, left));
        }
        if (residual != nullptr) {
            x = add(x, load_left(residual + col, left));
        }
        store_left(to + col, x, left);
    });
}

RAYVEC_INLINE void sum_rows(const float* a, const float* b, float* to, std::int64_t cols) {
    each_vector(cols, [&](std::int64_t col, std::int64_t left) {
        const Vec x = load_left(a + col, left);
        store_left(to + col, b == nullptr ? x : add(x, load_left(b + col, left)), left);
    });
}

}  // namespace

void add_norm(
    const float* x,
    const float* residual,
    const Norm& norm,
    bool sandwich,
    std::int64_t rows,
    std::int64_t cols,
    float* scratch,
    float* out) {
    for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t start = row * cols;
        const float* other = residual == nullptr ? nullptr : residual + start;
        sum_rows(x + start, sandwich ? nullptr : other, scratch, cols);
        norm_row(scratch, norm, sandwich ? other : nullptr, out + start, cols);
    }
}

void embed(
    const EmbeddingTable* tables,
    std::int64_t table_count,
    const Norm* norm,
    std::int64_t tokens,
    std::int64_t cols,
    float* scratch,
    float* out) {
    for (std::int64_t token = 0; token < tokens; ++token) {
        float* sum = norm == nullptr ? out + token * cols : scratch;
        for (std::int64_t i = 0; i < table_count; ++i) {
            const float* row = tables[i].rows + tables[i].ids[token] * cols;
            sum_rows(row, i == 0 ? nullptr : sum, sum, cols);
        }
        if (norm != nullptr) {
            norm_row(sum, *norm, nullptr, out + token * cols, cols);
        }
    }
}

void mean_rows(
    const float* x,
    const float* weights,
    std::int64_t rows,
    std::int64_t cols,
    double* scratch,
    float* out) {
    for (std::int64_t col = 0; col < cols; ++col) {
        scratch[col] = 0.0;
    }
    double total = 0.0;
    for (std::int64_t row = 0; row < rows; ++row) {
        const double weight = weights[row];
        if (weight == 0.0) {
            continue;  // NaN in a row that is left out would stay NaN
        }
        total += weight;
        for (std::int64_t col = 0; col < cols; ++col) {
            scratch[col] += weight * static_cast<double>(x[row * cols + col]);
        }
    }
    for (std::int64_t col = 0; col < cols; ++col) {
        out[col] = static_cast<float>(scratch[col] / (total == 0.0 ? 1.0 : total));
    }
}

void max_rows(const float* x, std::int64_t rows, std::int64_t cols, float* out) {
    for (std::int64_t col = 0; col < cols; ++col) {
        out[col] = rows == 0 ? 0.0f : x[col];
    }
    for (std::int64_t row = 1; row < rows; ++row) {
        for (std::int64_t col = 0; col < cols; ++col) {
            const float value = x[row * cols + col];
            out[col] = value > out[col] || value != value ? value : out[col];  // NaN stays
        }
    }
}

}  // namespace rayvec::RAYVEC_SET
