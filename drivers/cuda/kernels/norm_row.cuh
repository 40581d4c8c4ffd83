// The norm of one row by one warp. Lane l has the columns of the pieces l, l + 32, l + 64, ... of
// VECTOR columns each, whichever way the row is read: all ways add up in the same order.

// A row held in registers, HELD pieces a lane, read and written in pieces. A lane whose piece lies
// behind the row reads the row's last one in its place, so that no load waits for a branch, and
// leaves it out of sums and stores.
template <int HELD>
struct HeldRow {
    int cols, lane;
    float y[HELD][VECTOR];

    __device__ inline int own_column(int piece) const { return (piece * LANES + lane) * VECTOR; }
    __device__ inline int column(int piece) const { return min(own_column(piece), cols - VECTOR); }
    __device__ inline bool has(int piece) const { return own_column(piece) < cols; }

    // use(value) for the lane's values.
    template <class Use>
    __device__ inline void each(Use use) const {
#pragma unroll
        for (int i = 0; i < HELD; i++)
            if (has(i))
#pragma unroll
                for (int j = 0; j < VECTOR; j++) use(y[i][j]);
    }
    __device__ inline void read(const STORAGE* from) {
#pragma unroll
        for (int i = 0; i < HELD; i++) load_vector(y[i], from + column(i));
    }
    __device__ inline void fill(float value) {
#pragma unroll
        for (int i = 0; i < HELD; i++)
#pragma unroll
            for (int j = 0; j < VECTOR; j++) y[i][j] = value;
    }
    __device__ inline void add(const STORAGE* from) {
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            float other[VECTOR];
            load_vector(other, from + column(i));
#pragma unroll
            for (int j = 0; j < VECTOR; j++) y[i][j] += other[j];
        }
    }
    __device__ inline void write(STORAGE* to) const {
#pragma unroll
        for (int i = 0; i < HELD; i++)
            if (has(i)) store_vector(to + own_column(i), y[i]);
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
#pragma unroll 1
        for (int first = lane * VECTOR; first < cols; first += LANES * VECTOR)
#pragma unroll 1
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
__device__ inline RowNorm norm_of(const Row& row, bool centred, float eps) {
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

// row = normed(row) * weight + bias in place, weight and bias (cols,); bias may be null.
template <class Stored, int HELD>
__device__ inline void scale_and_shift(HeldRow<HELD>& row, const RowNorm& norm,
                                       const Stored* weight, const Stored* bias) {
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        if (!row.has(i)) break;  // nor has it the pieces behind
        float by[VECTOR], plus[VECTOR] = {};
        load_vector(by, weight + row.own_column(i));
        if (bias) load_vector(plus, bias + row.own_column(i));
#pragma unroll
        for (int j = 0; j < VECTOR; j++) row.y[i][j] = norm.normed(row.y[i][j]) * by[j] + plus[j];
    }
}
// row = norm(row) in place; weight and bias are both float32 where `wide`, and both STORAGE if not.
template <int HELD>
__device__ inline void apply_norm(HeldRow<HELD>& row, bool centred, float eps, const void* weight,
                                  const void* bias, bool wide) {
    const RowNorm norm = norm_of(row, centred, eps);
    if (wide)
        scale_and_shift(row, norm, static_cast<const float*>(weight),
                        static_cast<const float*>(bias));
    else
        scale_and_shift(row, norm, static_cast<const STORAGE*>(weight),
                        static_cast<const STORAGE*>(bias));
}

