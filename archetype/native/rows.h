// Functions of rows: norms, softmax, reductions, top-k, and lookups by index.
#pragma once
#include "work.h"

ENUMERATION(enum, Row, RMS_NORM, LAYER_NORM, SOFTMAX, LOG_SOFTMAX, SUM, MEAN, LOG_SUM_EXP)

static float maximum(const float* x, long n) {  // undefined if one of them is NaN
    floats best = splat(-INFINITY);
    long i = 0;
    for (; i + W <= n; i += W) best = choose(load(x + i) > best, load(x + i), best);
    float largest = -INFINITY;
    for (int j = 0; j < W; j++) largest = std::max(largest, best[j]);
    for (; i < n; i++) largest = std::max(largest, x[i]);
    return largest;
}

// A function of each row.
struct RowsArguments {
    void* y;  // (rows, features), or (rows) for a reduction
    const void* x;
    Optional<void> weight, bias;  // (features)
    int64_t rows, features;
    int64_t x_stride;  // between rows of x; rows of y are contiguous
    double eps;
    Row function;
    Float y_type, x_type, weight_type, bias_type;
    FIELDS(y, x, weight, bias, rows, features, x_stride, eps, function, y_type, x_type, weight_type, bias_type)
};

static void rows(const RowsArguments& a, const Worker& worker) {
    const long R = a.rows, D = a.features;
    const Row kind = a.function;
    const Type y_type = a.y_type;
    share(worker, R, std::max<long>(1, 4096 / D), [&](long first, long last) {
        float *buffer = scratch<float>(0, D), *y = scratch<float>(1, D), *weights = scratch<float>(2, D), *biases = scratch<float>(3, D);
        const float* weight = a.weight ? as_floats(a.weight, a.weight_type, 0, 1, D, weights) : nullptr;
        const float* bias = a.bias ? as_floats(a.bias, a.bias_type, 0, 1, D, biases) : nullptr;
        for (long r = first; r < last; r++) {
            const float* x = as_floats(a.x, a.x_type, r * a.x_stride, 1, D, buffer);
            floats sums = {};
            double total = 0;
            long i = 0;
            if (kind == SOFTMAX || kind == LOG_SOFTMAX || kind == LOG_SUM_EXP) {
                const float largest = maximum(x, D);  // subtracted, so that no exponential overflows
                for (; i + W <= D; i += W) {
                    floats exponentials = exp(load(x + i) - largest);
                    store(y + i, exponentials);
                    sums += exponentials;
                }
                for (total = sum(sums); i < D; i++) total += y[i] = std::exp(x[i] - largest);
                if (kind == SOFTMAX)
                    for (i = 0; i < D; i++) y[i] = (float)(y[i] / total);
                else {
                    const float log_total = largest + std::log((float)total);
                    if (kind == LOG_SUM_EXP) {
                        put(a.y, y_type, r, log_total);
                        continue;
                    }
                    for (i = 0; i < D; i++) y[i] = x[i] - log_total;
                }
                put_all(a.y, y_type, r * D, 1, D, y);
                continue;
            }
            if (kind != RMS_NORM) {
                for (; i + W <= D; i += W) sums += load(x + i);
                for (total = sum(sums); i < D; i++) total += x[i];
            }
            if (kind == SUM || kind == MEAN) {
                put(a.y, y_type, r, (float)(kind == SUM ? total : total / D));
                continue;
            }
            const float mean = kind == LAYER_NORM ? (float)(total / D) : 0;
            sums = floats{};
            for (i = 0; i + W <= D; i += W) {
                floats v = load(x + i) - mean;
                sums += v * v;
            }
            for (total = sum(sums); i < D; i++) total += (x[i] - mean) * (x[i] - mean);
            const float scale = 1 / std::sqrt((float)(total / D) + (float)a.eps);
            float* out = y_type == FLOAT32 ? (float*)a.y + r * D : y;
            for (i = 0; i < D; i++) out[i] = (x[i] - mean) * scale;
            if (weight)
                for (i = 0; i < D; i++) out[i] *= weight[i];
            if (bias)
                for (i = 0; i < D; i++) out[i] += bias[i];
            if (out == y) put_all(a.y, y_type, r * D, 1, D, y);
        }
    });
}

// The gradients of RMSNorm, y = s w x with s = (mean(x^2) + eps)^-1/2: dx = s w dy - s^3 mean(x w dy) x, dw = sum of s x dy over rows. The
// gradient of the weight is summed for each piece of rows separately, so that it does not depend on the number of threads. Within a piece,
// sums of a few rows are added up, so that small numbers are not lost in large ones.
struct RmsNormBackwardArguments {
    void* dx;
    float* dweight;  // (pieces, features), to be summed over pieces
    const void *x, *weight, *dy;
    int64_t rows, features;
    int64_t x_stride;    // between rows of x; rows of dx and dy are contiguous
    int64_t piece_rows;  // rows of a piece
    double eps;
    Float dx_type, x_type, weight_type, dy_type;
    FIELDS(dx, dweight, x, weight, dy, rows, features, x_stride, piece_rows, eps, dx_type, x_type, weight_type, dy_type)
};

static void rms_norm_backward(const RmsNormBackwardArguments& a, const Worker& worker) {
    const long R = a.rows, D = a.features, piece = a.piece_rows;
    share(worker, (R + piece - 1) / piece, 1, [&](long first, long last) {
        float *x_buffer = scratch<float>(0, D), *dx = scratch<float>(1, D), *weights = scratch<float>(2, D),
              *dy_buffer = scratch<float>(3, D);
        float* few = scratch<float>(4, D);
        constexpr long FEW = 16;
        std::fill(few, few + D, 0.0f);
        const float* weight = as_floats(a.weight, a.weight_type, 0, 1, D, weights);
        for (long r = first * piece; r < std::min(R, last * piece); r++) {
            const float *x = as_floats(a.x, a.x_type, r * a.x_stride, 1, D, x_buffer),
                        *dy = as_floats(a.dy, a.dy_type, r * D, 1, D, dy_buffer);
            float* dweight = a.dweight + r / piece * D;
            if (r % piece == 0) std::fill(dweight, dweight + D, 0.0f);
            floats squares = {}, products = {};
            long i = 0;
            for (; i + W <= D; i += W) squares += load(x + i) * load(x + i), products += load(x + i) * load(weight + i) * load(dy + i);
            double square = sum(squares), product = sum(products);
            for (; i < D; i++) square += x[i] * x[i], product += x[i] * weight[i] * dy[i];
            const float scale = 1 / std::sqrt((float)(square / D) + (float)a.eps);
            const float along = (float)(product / D) * scale * scale * scale;
            for (i = 0; i < D; i++) dx[i] = scale * weight[i] * dy[i] - along * x[i];
            for (i = 0; i < D; i++) few[i] += scale * x[i] * dy[i];
            if (r % FEW == FEW - 1 || (r + 1) % piece == 0 || r + 1 == R)
                for (i = 0; i < D; i++) dweight[i] += few[i], few[i] = 0;
            put_all(a.dx, a.dx_type, r * D, 1, D, dx);
        }
    });
}

// Rows of a table by index.
struct EmbeddingArguments {
    char* y;
    const char* table;
    const int64_t* ids;
    int64_t count;            // number of ids
    int64_t rows, row_bytes;  // of the table
    FIELDS(y, table, ids, count, rows, row_bytes)
};

static void embedding(const EmbeddingArguments& a, const Worker& worker) {
    for (long i = 0; i < a.count; i++)
        if (worker.is_index(a.ids[i], a.rows)) memcpy(a.y + i * a.row_bytes, a.table + a.ids[i] * a.row_bytes, a.row_bytes);
}

// Rows of an int8 or int4 matrix by index.
struct QuantizedEmbeddingArguments {
    void* y;
    const uint32_t* quants;  // in blocks of W rows: (rows / W, features / weights of a word, W)
    const half* scales;      // (rows / W, features / 32, W)
    const int64_t* ids;
    int64_t count;  // number of ids
    int64_t rows, features, bits;
    Float y_type;
    FIELDS(y, quants, scales, ids, count, rows, features, bits, y_type)
};

static inline bool is_complete(const QuantizedEmbeddingArguments& a) { return a.bits == 8 || a.bits == 4; }

static void quantized_embedding(const QuantizedEmbeddingArguments& a, const Worker& worker) {
    const long K = a.features, bits = a.bits, per_word = 32 / bits, offset = 1 << (bits - 1), mask = (1 << bits) - 1;
    for (long i = 0; i < a.count; i++) {
        if (!worker.is_index(a.ids[i], a.rows)) return;
        const long block = a.ids[i] / W, lane = a.ids[i] % W;
        const uint32_t* quants = a.quants + block * (K / per_word) * W + lane;
        const half* scales = a.scales + block * (K / 32) * W + lane;
        for (long k = 0; k < K; k++) {
            const long q = (quants[k / per_word * W] >> (k % per_word * bits)) & mask;
            put(a.y, a.y_type, i * K + k, (q - offset) * half_to_float(scales[k / 32 * W]));
        }
    }
}

// The k largest numbers of each row in descending order; the first of equal numbers comes first. As in torch, NaN is the largest.
struct TopkArguments {
    float* values;     // (rows, k)
    int64_t* indices;  // likewise
    const float* x;    // (rows, features)
    int64_t rows, features, k;
    FIELDS(values, indices, x, rows, features, k)
};

static inline bool is_complete(const TopkArguments& a) { return a.k <= a.features; }

static void topk(const TopkArguments& a, const Worker& worker) {
    const long D = a.features, k = a.k;
    share(worker, a.rows, 1, [&](long first, long last) {
        float* best = scratch<float>(0, k);
        int64_t* places = scratch<int64_t>(1, k);
        for (long r = first; r < last; r++) {
            const float* x = a.x + r * D;
            long count = 0;
            auto insert = [&](long place) {  // into the sorted list of the best so far; if it is full, the last one drops out
                long at = count < k ? count++ : k - 1;
                const float value = x[place];
                for (; at > 0 && (value > best[at - 1] || (value != value && best[at - 1] == best[at - 1])); at--) {
                    best[at] = best[at - 1];
                    places[at] = places[at - 1];
                }
                best[at] = value;
                places[at] = place;
            };
            long i = 0;
            for (; i < k; i++) insert(i);
            for (; i + W <= D; i += W) {  // most vectors have no number that is larger than the k-th so far
                const floats numbers = load(x + i);
                if (!any(~(numbers <= best[k - 1]))) continue;  // a NaN is never <=; if the k-th is NaN, all are, and nothing is larger
                for (long j = i; j < i + W; j++)
                    if (!(x[j] <= best[k - 1]) && best[k - 1] == best[k - 1]) insert(j);
            }
            for (; i < D; i++)
                if (!(x[i] <= best[k - 1]) && best[k - 1] == best[k - 1]) insert(i);
            memcpy(a.values + r * k, best, k * sizeof(float));
            memcpy(a.indices + r * k, places, k * sizeof(int64_t));
        }
    });
}

// y[r, i] = x[r, index[r, i]].
struct GatherArguments {
    float* y;  // (rows, columns)
    const float* x;
    const int64_t* index;  // as y
    int64_t rows, columns;
    int64_t features;  // of a row of x
    FIELDS(y, x, index, rows, columns, features)
};

static void gather(const GatherArguments& a, const Worker& worker) {
    for (long r = 0; r < a.rows; r++)
        for (long i = r * a.columns; i < (r + 1) * a.columns; i++)
            if (worker.is_index(a.index[i], a.features)) a.y[i] = a.x[r * a.features + a.index[i]];
}
