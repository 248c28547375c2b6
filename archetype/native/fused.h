// What training and reading a prompt compute between products, each in one pass over memory; all numbers are of one type.
#pragma once
#include "work.h"

enum Gate { GATE_SILU, GATE_GELU_TANH };
constexpr long NUMBERS = 4096;  // that a thread takes at a time

template <class T> static inline floats load_some(const T* p, long n) { return n >= W ? load(p) : load_part(p, n); }

template <class T> static inline void store_some(T* p, floats v, long n) {
    if (n >= W) return store(p, v);
    T lanes[W];
    store(lanes, v);
    memcpy(p, lanes, n * sizeof(T));
}

static inline void from_float(float* p, float x) { *p = x; }
static inline void from_float(bfloat16* p, float x) { *p = to_bfloat16(x); }

// f(x) and its derivative.
static inline floats activated(int kind, floats x, floats& slope) {
    if (kind == GATE_SILU) {
        const floats s = sigmoid(x);
        slope = s * (1.0f + x * (1.0f - s));
        return x * s;
    }
    const floats t = tanh(0.79788456f * (x + 0.044715f * x * x * x));
    slope = 0.5f * (1.0f + t) + 0.39894228f * x * (1.0f - t * t) * (1.0f + 0.134145f * x * x);
    return 0.5f * x * (1.0f + t);
}

template <class T> static void gated_as(const Entry& e, const Worker& worker) {
    T* y = (T*)e.p[0];
    const T *gate = (const T*)e.p[1], *up = (const T*)e.p[2];
    share(worker, e.n[0], NUMBERS, [&](long first, long last) {
        floats slope;
        for (long i = first; i < last; i += W)
            store_some(y + i, activated(e.n[1], load_some(gate + i, last - i), slope) * load_some(up + i, last - i), last - i);
    });
}

// y = f(gate) * up. p: y gate up; n: how many, kind, type.
static void gated(const Entry& e, const Worker& worker) {
    e.n[2] == BFLOAT16 ? gated_as<bfloat16>(e, worker) : gated_as<float>(e, worker);
}

template <class T> static void gated_backward_as(const Entry& e, const Worker& worker) {
    T *dgate = (T*)e.p[0], *dup = (T*)e.p[1];
    const T *dy = (const T*)e.p[2], *gate = (const T*)e.p[3], *up = (const T*)e.p[4];
    share(worker, e.n[0], NUMBERS, [&](long first, long last) {
        floats slope;
        for (long i = first; i < last; i += W) {
            const floats d = load_some(dy + i, last - i), f = activated(e.n[1], load_some(gate + i, last - i), slope);
            store_some(dgate + i, d * load_some(up + i, last - i) * slope, last - i);
            store_some(dup + i, d * f, last - i);
        }
    });
}

// The gradients of gate and up. p: dgate dup dy gate up; n: how many, kind, type.
static void gated_backward(const Entry& e, const Worker& worker) {
    e.n[2] == BFLOAT16 ? gated_backward_as<bfloat16>(e, worker) : gated_backward_as<float>(e, worker);
}

template <class X> static void rotate_as(const Entry& e, const Worker& worker) {
    const long H = e.n[1], T = e.n[2], P = e.n[3], R = e.n[4], half = R / 2;
    const bool neighbours = e.n[5];
    const float sign = (float)e.f[0];
    share(worker, e.n[0] * T, std::max<long>(1, NUMBERS / (H * P)), [&](long first, long last) {
        for (long item = first; item < last; item++) {
            const long b = item / T, t = item % T;
            const X *cos = (const X*)e.p[2] + b * e.n[12] + t * half, *sin = (const X*)e.p[3] + b * e.n[12] + t * half;
            for (long h = 0; h < H; h++) {
                const X* x = (const X*)e.p[1] + b * e.n[6] + h * e.n[7] + t * e.n[8];
                X* y = (X*)e.p[0] + b * e.n[9] + h * e.n[10] + t * e.n[11];
                if (neighbours)
                    for (long i = 0; i < half; i++) {
                        const float even = to_float(x[2 * i]), odd = to_float(x[2 * i + 1]);
                        const float c = to_float(cos[i]), s = sign * to_float(sin[i]);
                        from_float(y + 2 * i, even * c - odd * s);
                        from_float(y + 2 * i + 1, odd * c + even * s);
                    }
                else
                    for (long i = 0; i < half; i += W) {
                        const long n = half - i;
                        const floats a = load_some(x + i, n), c = load_some(x + half + i, n);
                        const floats cosine = load_some(cos + i, n), sine = sign * load_some(sin + i, n);
                        store_some(y + i, a * cosine - c * sine, n);
                        store_some(y + half + i, c * cosine + a * sine, n);
                    }
                memcpy(y + R, x + R, (P - R) * sizeof(X));
            }
        }
    });
}

// Pairs of features turned by an angle, the rest as it is. p: y x cos sin; n: B H T P R, whether pairs are neighbours, strides
// of x and y: batch, head, position, stride of cos: batch, type; f: 1, or -1 for the other way round.
static void rotate(const Entry& e, const Worker& worker) {
    e.n[13] == BFLOAT16 ? rotate_as<bfloat16>(e, worker) : rotate_as<float>(e, worker);
}

// Philox with four words and ten rounds (Salmon 2011, section 3.3): the words of W counters, of which `low` is the first word.
static inline void philox(words low, uint64_t key, words y[4]) {
    typedef uint64_t longs __attribute__((vector_size(8 * W)));
    words a = low, b{}, c{}, d{};
    uint32_t first = (uint32_t)key, second = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        const longs p = __builtin_convertvector(a, longs) * 0xD2511F53u, q = __builtin_convertvector(c, longs) * 0xCD9E8D57u;
        a = __builtin_convertvector(q >> 32, words) ^ b ^ first;
        c = __builtin_convertvector(p >> 32, words) ^ d ^ second;
        b = __builtin_convertvector(q, words), d = __builtin_convertvector(p, words);
        first += 0x9E3779B9u, second += 0xBB67AE85u;
    }
    y[0] = a, y[1] = b, y[2] = c, y[3] = d;
}

template <class T> static void dropout_as(const Entry& e, const Worker& worker) {
    constexpr long LANES = 16, BLOCK = 4 * LANES;  // on every machine, so that the same numbers are dropped
    static_assert(LANES % W == 0);
    T* y = (T*)e.p[0];
    const T* x = (const T*)e.p[1];
    const long n = e.n[0];
    const uint32_t threshold = (uint32_t)e.n[2];
    const floats scale = splat((float)e.f[0]);
    share(worker, (n + BLOCK - 1) / BLOCK, NUMBERS / BLOCK, [&](long first, long last) {
        for (long block = first; block < last; block++)
            for (long lane = 0; lane < LANES; lane += W) {
                words low, random[4];
                for (int i = 0; i < W; i++) low[i] = (uint32_t)(block * LANES + lane + i);
                philox(low, (uint64_t)e.n[1], random);
                for (int k = 0; k < 4; k++) {
                    const long i = block * BLOCK + k * LANES + lane;
                    if (i < n) store_some(y + i, choose((ints)(random[k] >= threshold), load_some(x + i, n - i) * scale, floats{}), n - i);
                }
            }
    });
}

// Each number times f, or 0 where its random word is below the threshold. p: y x; n: how many, key, threshold, type; f: a factor.
static void dropout(const Entry& e, const Worker& worker) {
    e.n[3] == BFLOAT16 ? dropout_as<bfloat16>(e, worker) : dropout_as<float>(e, worker);
}
