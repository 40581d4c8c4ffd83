// The norm of one row by one warp. Lane l has the columns of the pieces l, l + 32, l + 64, ... of
// VECTOR columns each, whichever way the row is read: all ways add up in the same order.

// A row held in registers, HELD pieces a lane, read and written in pieces.
template <int HELD>
struct HeldRow {
    int cols, lane;
    float y[HELD][VECTOR];

    // use(piece, its first column) for the lane's pieces that the row has.
    template <class Use>
    __device__ inline void each_piece(Use use) {
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const int col = (i * LANES + lane) * VECTOR;
            if (col < cols) use(y[i], col);
        }
    }
    // use(value) for the lane's values.
    template <class Use>
    __device__ inline void each(Use use) {
        each_piece([&](float(&piece)[VECTOR], int) {
#pragma unroll
            for (int j = 0; j < VECTOR; j++) use(piece[j]);
        });
    }
    __device__ inline void read(const STORAGE* from) {
        each_piece([&](float(&piece)[VECTOR], int col) { load_vector(piece, from + col); });
    }
    __device__ inline void add(const STORAGE* from) {
        each_piece([&](float(&piece)[VECTOR], int col) {
            float other[VECTOR];
            load_vector(other, from + col);
#pragma unroll
            for (int j = 0; j < VECTOR; j++) piece[j] += other[j];
        });
    }
    __device__ inline void write(STORAGE* to) {
        each_piece([&](float(&piece)[VECTOR], int col) { store_vector(to + col, piece); });
    }
};

// A row that is read again for each use: value_at(column) gives it, one column at a time.
template <class ValueAt>
struct ReadRow {
    int cols, lane;
    ValueAt value_at;

    // use(value, its column) for the lane's values.
    template <class Use>
    __device__ inline void each_column(Use use) const {
        for (int first = lane * VECTOR; first < cols; first += LANES * VECTOR)
            for (int col = first; col < min(first + VECTOR, cols); col++) use(value_at(col), col);
    }
    template <class Use>
    __device__ inline void each(Use use) const {
        each_column([&](float value, int) { use(value); });
    }
};
template <class ValueAt>
__device__ inline ReadRow<ValueAt> read_row(int cols, int lane, ValueAt value_at) {
    return {cols, lane, value_at};
}

// normed(y) = (y - mean) / sqrt(mean of the squares + eps), the mean 0 where not `centred`. A row
// is centred twice, then squared: nothing cancels, whatever the mean, and in a row of equal values
// all are 0. Every lane has the same numbers.
struct RowNorm {
    float mean, rest, scale;  // rest: what the first mean's rounding left

    __device__ inline float normed(float y) const { return (y - mean - rest) * scale; }
};
template <class Row>
__device__ inline RowNorm norm_of(Row& row, bool centred, float eps) {
    RowNorm norm = {0.0f, 0.0f, 0.0f};
    float sum = 0.0f;
    if (centred) {
        row.each([&](float y) { sum += y; });
        norm.mean = warp_sum(sum) / row.cols;
        sum = 0.0f;
        row.each([&](float y) { sum += y - norm.mean; });
        norm.rest = warp_sum(sum) / row.cols;
        sum = 0.0f;
    }
    row.each([&](float y) {
        const float centred_y = y - norm.mean - norm.rest;
        sum += centred_y * centred_y;
    });
    norm.scale = 1.0f / sqrtf(warp_sum(sum) / row.cols + eps);
    return norm;
}

// row = normed(row) * weight + bias in place; bias may be null.
template <class Stored, int HELD>
__device__ inline void apply_norm(HeldRow<HELD>& row, const RowNorm& norm, const Stored* weight,
                                  const Stored* bias) {
    row.each_piece([&](float(&piece)[VECTOR], int col) {
        float by[VECTOR], plus[VECTOR] = {};
        load_vector(by, weight + col);
        if (bias) load_vector(plus, bias + col);
#pragma unroll
        for (int j = 0; j < VECTOR; j++) piece[j] = norm.normed(piece[j]) * by[j] + plus[j];
    });
}

