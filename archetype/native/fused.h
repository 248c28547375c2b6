// Operations between the matrix products of training and prompt processing, each in one pass over memory. All tensors have one data type.
#pragma once
#include "work.h"

ENUMERATION(enum class, Gate, SILU, GELU_TANH)
constexpr long NUMBERS = 4096;  // elements that a thread takes at a time

// Load, and store, up to W numbers, if n may be less.
template <class T> static inline floats load_some(const T* p, long n) { return n >= W ? load(p) : load_part(p, n); }

template <class T> static inline void store_some(T* p, floats v, long n) {
    if (n >= W) return store(p, v);
    T lanes[W];
    store(lanes, v);
    memcpy(p, lanes, n * sizeof(T));
}

static inline void from_float(float* p, float x) { *p = x; }
static inline void from_float(bfloat16* p, float x) { *p = to_bfloat16(x); }

// Return f(x) and set `slope` to its derivative.
static inline floats activated(Gate kind, floats x, floats& slope) {
    if (kind == Gate::SILU) {
        const floats s = sigmoid(x);
        slope = s * (1.0f + x * (1.0f - s));
        return x * s;
    }
    const floats t = tanh(0.79788456f * (x + 0.044715f * x * x * x));  // sqrt(2 / pi)
    slope = 0.5f * (1.0f + t) + 0.39894228f * x * (1.0f - t * t) * (1.0f + 0.134145f * x * x);
    return 0.5f * x * (1.0f + t);
}

// y = f(gate) * up.
struct GatedArguments {
    void* y;
    const void *gate, *up;
    int64_t count;  // elements of each tensor
    Gate activation;
    Float type;  // of all
    FIELDS(y, gate, up, count, activation, type)
};

template <class T> static void gated_as(const GatedArguments& a, const Worker& worker) {
    T* y = (T*)a.y;
    const T *gate = (const T*)a.gate, *up = (const T*)a.up;
    share(worker, a.count, NUMBERS, [&](long first, long last) {
        floats slope;
        for (long i = first; i < last; i += W)
            store_some(y + i, activated(a.activation, load_some(gate + i, last - i), slope) * load_some(up + i, last - i), last - i);
    });
}

static void gated(const GatedArguments& a, const Worker& worker) {
    a.type == BFLOAT16 ? gated_as<bfloat16>(a, worker) : gated_as<float>(a, worker);
}

// The gradients of gate and up.
struct GatedBackwardArguments {
    void *dgate, *dup;
    const void *dy, *gate, *up;
    int64_t count;  // elements of each tensor
    Gate activation;
    Float type;  // of all
    FIELDS(dgate, dup, dy, gate, up, count, activation, type)
};

template <class T> static void gated_backward_as(const GatedBackwardArguments& a, const Worker& worker) {
    T *dgate = (T*)a.dgate, *dup = (T*)a.dup;
    const T *dy = (const T*)a.dy, *gate = (const T*)a.gate, *up = (const T*)a.up;
    share(worker, a.count, NUMBERS, [&](long first, long last) {
        floats slope;
        for (long i = first; i < last; i += W) {
            const floats d = load_some(dy + i, last - i), f = activated(a.activation, load_some(gate + i, last - i), slope);
            store_some(dgate + i, d * load_some(up + i, last - i) * slope, last - i);
            store_some(dup + i, d * f, last - i);
        }
    });
}

static void gated_backward(const GatedBackwardArguments& a, const Worker& worker) {
    a.type == BFLOAT16 ? gated_backward_as<bfloat16>(a, worker) : gated_backward_as<float>(a, worker);
}

// Rotate pairs of the first R features by an angle, and copy the rest.
struct RotateArguments {
    void* y;  // B H T P
    const void* x;
    const void *cos, *sin;                               // T R/2, or B T R/2
    int64_t batch, heads, positions, features, rotated;  // B H T P R
    int64_t x_strides[3], y_strides[3];                  // batch, head, position
    int64_t angle_stride;                                // between sequences; 0 if all have the same angles
    double sign;                                         // 1; -1 rotates back, as the gradient needs
    Float type;                                          // of all
    bool is_interleaved;                                 // pairs are features 2 i and 2 i + 1, else i and i + R/2
    FIELDS(y, x, cos, sin, batch, heads, positions, features, rotated, x_strides, y_strides, angle_stride, sign, type, is_interleaved)
};

static inline bool is_complete(const RotateArguments& a) { return a.rotated <= a.features; }

template <class X> static void rotate_as(const RotateArguments& a, const Worker& worker) {
    const long H = a.heads, T = a.positions, P = a.features, R = a.rotated, half = R / 2;
    const int64_t *sx = a.x_strides, *sy = a.y_strides;
    const bool neighbours = a.is_interleaved;
    const float sign = (float)a.sign;
    share(worker, a.batch * T, std::max<long>(1, NUMBERS / (H * P)), [&](long first, long last) {
        for (long item = first; item < last; item++) {
            const long b = item / T, t = item % T;
            const X *cos = (const X*)a.cos + b * a.angle_stride + t * half, *sin = (const X*)a.sin + b * a.angle_stride + t * half;
            for (long h = 0; h < H; h++) {
                const X* x = (const X*)a.x + b * sx[0] + h * sx[1] + t * sx[2];
                X* y = (X*)a.y + b * sy[0] + h * sy[1] + t * sy[2];
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
                        const floats left = load_some(x + i, n), right = load_some(x + half + i, n);
                        const floats cosine = load_some(cos + i, n), sine = sign * load_some(sin + i, n);
                        store_some(y + i, left * cosine - right * sine, n);
                        store_some(y + half + i, right * cosine + left * sine, n);
                    }
                memcpy(y + R, x + R, (P - R) * sizeof(X));
            }
        }
    });
}

static void rotate(const RotateArguments& a, const Worker& worker) {
    a.type == BFLOAT16 ? rotate_as<bfloat16>(a, worker) : rotate_as<float>(a, worker);
}

// Philox with four words and ten rounds (Salmon 2011, section 3.3): four random words for each of W counters. `low` is the first word of
// a counter; the other three are 0.
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

// Each element times a factor, or 0 if its random word is below the threshold.
struct DropoutArguments {
    void* y;
    const void* x;
    int64_t count;      // elements
    int64_t key;        // of the random words
    int64_t threshold;  // probability of 0, times 2^32
    double factor;
    Float type;  // of both
    FIELDS(y, x, count, key, threshold, factor, type)
};

template <class T> static void dropout_as(const DropoutArguments& a, const Worker& worker) {
    constexpr long LANES = 16, BLOCK = 4 * LANES;  // whatever W is, so that a key drops the same elements on every machine
    static_assert(LANES % W == 0);
    T* y = (T*)a.y;
    const T* x = (const T*)a.x;
    const long n = a.count;
    const uint32_t threshold = (uint32_t)a.threshold;
    const floats scale = splat((float)a.factor);
    share(worker, (n + BLOCK - 1) / BLOCK, NUMBERS / BLOCK, [&](long first, long last) {
        for (long block = first; block < last; block++)
            for (long lane = 0; lane < LANES; lane += W) {
                words low, random[4];
                for (int i = 0; i < W; i++) low[i] = (uint32_t)(block * LANES + lane + i);
                philox(low, (uint64_t)a.key, random);
                for (int k = 0; k < 4; k++) {  // a counter has words for four elements, LANES apart
                    const long i = block * BLOCK + k * LANES + lane;
                    if (i < n) store_some(y + i, choose((ints)(random[k] >= threshold), load_some(x + i, n - i) * scale, floats{}), n - i);
                }
            }
    });
}

static void dropout(const DropoutArguments& a, const Worker& worker) {
    a.type == BFLOAT16 ? dropout_as<bfloat16>(a, worker) : dropout_as<float>(a, worker);
}
