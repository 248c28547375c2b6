// Functions of rows: norms, softmax, sums, the largest, and rows by number.
#pragma once
#include "work.h"

enum Row { RMS_NORM, LAYER_NORM, SOFTMAX, LOG_SOFTMAX, SUM, MEAN, LOG_SUM_EXP };

static float maximum(const float* x, long n) {  // of numbers; of one that is none, anything
    floats best = splat(-INFINITY);
    long i = 0;
    for (; i + W <= n; i += W) best = choose(load(x + i) > best, load(x + i), best);
    float largest = -INFINITY;
    for (int j = 0; j < W; j++) largest = std::max(largest, best[j]);
    for (; i < n; i++) largest = std::max(largest, x[i]);
    return largest;
}

// A function of each row. p: y x weight bias; n: rows D, stride of x, kind, types of y x weight bias; f: eps.
static void rows(const Entry& e, const Worker& worker) {
    const long R = e.n[0], D = e.n[1];
    const int kind = e.n[3], y_type = e.n[4];
    share(worker, R, std::max<long>(1, 4096 / D), [&](long first, long last) {
        float *buffer = scratch<float>(0, D), *y = scratch<float>(1, D), *weights = scratch<float>(2, D), *biases = scratch<float>(3, D);
        const float* weight = e.p[2] ? as_floats(e.p[2], e.n[6], 0, 1, D, weights) : nullptr;
        const float* bias = e.p[3] ? as_floats(e.p[3], e.n[7], 0, 1, D, biases) : nullptr;
        for (long r = first; r < last; r++) {
            const float* x = as_floats(e.p[1], e.n[5], r * e.n[2], 1, D, buffer);
            floats sums = {};
            double total = 0;
            long i = 0;
            if (kind == SOFTMAX || kind == LOG_SOFTMAX || kind == LOG_SUM_EXP) {
                const float largest = maximum(x, D);
                for (; i + W <= D; i += W) {
                    floats exponentials = exp(load(x + i) - largest);
                    store(y + i, exponentials);
                    sums += exponentials;
                }
                for (total = sum(sums); i < D; i++) total += y[i] = std::exp(x[i] - largest);
                if (kind == SOFTMAX) for (i = 0; i < D; i++) y[i] = (float)(y[i] / total);
                else {
                    const float log_total = largest + std::log((float)total);
                    if (kind == LOG_SUM_EXP) {
                        put(e.p[0], y_type, r, log_total);
                        continue;
                    }
                    for (i = 0; i < D; i++) y[i] = x[i] - log_total;
                }
                put_all(e.p[0], y_type, r * D, 1, D, y);
                continue;
            }
            if (kind != RMS_NORM) {
                for (; i + W <= D; i += W) sums += load(x + i);
                for (total = sum(sums); i < D; i++) total += x[i];
            }
            if (kind == SUM || kind == MEAN) {
                put(e.p[0], y_type, r, (float)(kind == SUM ? total : total / D));
                continue;
            }
            const float mean = kind == LAYER_NORM ? (float)(total / D) : 0;
            sums = floats{};
            for (i = 0; i + W <= D; i += W) {
                floats v = load(x + i) - mean;
                sums += v * v;
            }
            for (total = sum(sums); i < D; i++) total += (x[i] - mean) * (x[i] - mean);
            const float scale = 1 / std::sqrt((float)(total / D) + (float)e.f[0]);
            float* out = y_type == FLOAT32 ? (float*)e.p[0] + r * D : y;
            for (i = 0; i < D; i++) out[i] = (x[i] - mean) * scale;
            if (weight) for (i = 0; i < D; i++) out[i] *= weight[i];
            if (bias) for (i = 0; i < D; i++) out[i] += bias[i];
            if (out == y) put_all(e.p[0], y_type, r * D, 1, D, y);
        }
    });
}

// The gradients of RMSNorm. Each piece of rows has a sum of its own for the weight, so that threads change no number; it adds
// up sums of a few rows, so that small numbers are not lost in large ones.
// p: dx, sums of dweight (pieces D, float32), x weight dy; n: rows D, stride of x, rows of a piece, types of dx x weight dy; f: eps.
static void rms_norm_backward(const Entry& e, const Worker& worker) {
    const long R = e.n[0], D = e.n[1], piece = e.n[3];
    share(worker, (R + piece - 1) / piece, 1, [&](long first, long last) {
        float *x_buffer = scratch<float>(0, D), *dx = scratch<float>(1, D), *weights = scratch<float>(2, D), *dy_buffer = scratch<float>(3, D);
        float* few = scratch<float>(4, D);
        constexpr long FEW = 16;
        std::fill(few, few + D, 0.0f);
        const float* weight = as_floats(e.p[3], e.n[6], 0, 1, D, weights);
        for (long r = first * piece; r < std::min(R, last * piece); r++) {
            const float *x = as_floats(e.p[2], e.n[5], r * e.n[2], 1, D, x_buffer), *dy = as_floats(e.p[4], e.n[7], r * D, 1, D, dy_buffer);
            float* dweight = (float*)e.p[1] + r / piece * D;
            if (r % piece == 0) std::fill(dweight, dweight + D, 0.0f);
            floats squares = {}, products = {};
            long i = 0;
            for (; i + W <= D; i += W) squares += load(x + i) * load(x + i), products += load(x + i) * load(weight + i) * load(dy + i);
            double square = sum(squares), product = sum(products);
            for (; i < D; i++) square += x[i] * x[i], product += x[i] * weight[i] * dy[i];
            const float scale = 1 / std::sqrt((float)(square / D) + (float)e.f[0]);
            const float along = (float)(product / D) * scale * scale * scale;
            for (i = 0; i < D; i++) dx[i] = scale * weight[i] * dy[i] - along * x[i];
            for (i = 0; i < D; i++) few[i] += scale * x[i] * dy[i];
            if (r % FEW == FEW - 1 || (r + 1) % piece == 0 || r + 1 == R)
                for (i = 0; i < D; i++) dweight[i] += few[i], few[i] = 0;
            put_all(e.p[0], e.n[4], r * D, 1, D, dx);
        }
    });
}

// Rows of a table by number. p: y table ids; n: how many, bytes of a row.
static void embedding(const Entry& e, const Worker&) {
    for (long i = 0; i < e.n[0]; i++) memcpy((char*)e.p[0] + i * e.n[1], (char*)e.p[1] + ((int64_t*)e.p[2])[i] * e.n[1], e.n[1]);
}

// Rows of a matrix of 8 or 4 bits by number. p: y quants scales ids; n: how many, K, bits, type of y.
static void quantized_embedding(const Entry& e, const Worker&) {
    const long K = e.n[1], bits = e.n[2], per_word = 32 / bits, offset = 1 << (bits - 1), mask = (1 << bits) - 1;
    for (long i = 0; i < e.n[0]; i++) {
        const long id = ((const int64_t*)e.p[3])[i], block = id / W, lane = id % W;
        const uint32_t* quants = (const uint32_t*)e.p[1] + block * (K / per_word) * W + lane;
        const half* scales = (const half*)e.p[2] + block * (K / 32) * W + lane;
        for (long k = 0; k < K; k++) {
            const long q = (quants[k / per_word * W] >> (k % per_word * bits)) & mask;
            put(e.p[0], e.n[3], i * K + k, (q - offset) * half_to_float(scales[k / 32 * W]));
        }
    }
}

// The k largest of each row, largest first, the earlier of equals first; what is no number is the largest of all, as in torch.
// p: values indices x; n: rows D k; float32.
static void topk(const Entry& e, const Worker& worker) {
    const long D = e.n[1], k = e.n[2];
    share(worker, e.n[0], 1, [&](long first, long last) {
        float* best = scratch<float>(0, k);
        int64_t* places = scratch<int64_t>(1, k);
        for (long r = first; r < last; r++) {
            const float* x = (const float*)e.p[2] + r * D;
            long count = 0;
            auto insert = [&](long place) {
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
            for (; i + W <= D; i += W) {  // most vectors have nothing that is larger than the k-th so far
                const floats numbers = load(x + i);
                if (!any(~(numbers <= best[k - 1]))) continue;
                for (long j = i; j < i + W; j++)
                    if (!(x[j] <= best[k - 1]) && best[k - 1] == best[k - 1]) insert(j);
            }
            for (; i < D; i++)
                if (!(x[i] <= best[k - 1]) && best[k - 1] == best[k - 1]) insert(i);
            memcpy((float*)e.p[0] + r * k, best, k * sizeof(float));
            memcpy((int64_t*)e.p[1] + r * k, places, k * sizeof(int64_t));
        }
    });
}

// y[r, i] = x[r, index[r, i]]. p: y x index; n: rows, columns of the index, columns of x; float32.
static void gather(const Entry& e, const Worker&) {
    for (long r = 0; r < e.n[0]; r++)
        for (long i = 0; i < e.n[1]; i++)
            ((float*)e.p[0])[r * e.n[1] + i] = ((float*)e.p[1])[r * e.n[2] + ((int64_t*)e.p[2])[r * e.n[1] + i]];
}
