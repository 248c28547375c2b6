// Element-wise functions of up to three inputs, with broadcasting.
#pragma once
#include "work.h"

ENUMERATION(enum, Function, COPY, ADD, SUB, MUL, MAXIMUM, MINIMUM, NEG, ABS, WHERE, EQ, NE, LT, LE, GT, GE, AND, OR, NOT, REMAINDER,
            FLOOR_DIVIDE, DIV, POW, EXP, SILU, SIGMOID, TANH, GELU, GELU_TANH, RELU, SOFTPLUS, RSQRT, SQRT, LOG, COS, SIN, SQUARE,
            RECIPROCAL)

template <class F> static inline void map(long n, float* y, const float* a, const float* b, F f) {
    long i = 0;
    for (; i + W <= n; i += W) store(y + i, f(load(a + i), load(b + i)));
    if (i < n) {
        floats rest = f(load_part(a + i, n - i), load_part(b + i, n - i));
        memcpy(y + i, &rest, (n - i) * sizeof(float));
    }
}

#define EACH(expression)                            \
    for (long i = 0; i < n; i++) y[i] = expression; \
    break

// Comparisons are written so that NaN passes through, as in torch (in MAXIMUM, a comparison with a NaN in b chooses b).
static void apply(int function, long n, float* y, const float* a, const float* b, const float* c, float factor) {
    switch (function) {
        case COPY: EACH(a[i]);
        case ADD: EACH(a[i] + factor * b[i]);
        case SUB: EACH(a[i] - factor * b[i]);
        case MUL: EACH(a[i] * b[i]);
        case DIV: EACH(a[i] / b[i]);
        case MAXIMUM: EACH(a[i] != a[i] || a[i] > b[i] ? a[i] : b[i]);
        case MINIMUM: EACH(a[i] != a[i] || a[i] < b[i] ? a[i] : b[i]);
        case POW: EACH(std::pow(a[i], b[i]));
        case EXP: map(n, y, a, a, [](floats x, floats) { return exp(x); }); break;
        case SILU: map(n, y, a, a, [](floats x, floats) { return x * sigmoid(x); }); break;
        case SIGMOID: map(n, y, a, a, [](floats x, floats) { return sigmoid(x); }); break;
        case TANH: map(n, y, a, a, [](floats x, floats) { return tanh(x); }); break;
        case GELU: EACH(0.5f * a[i] * (1 + std::erf(a[i] * 0.70710678f)));
        case GELU_TANH:
            map(n, y, a, a, [](floats x, floats) { return 0.5f * x * (1.0f + tanh(0.79788456f * (x + 0.044715f * x * x * x))); });
            break;
        case RELU: EACH(a[i] > 0 || a[i] != a[i] ? a[i] : 0);
        case SOFTPLUS: EACH(a[i] > 20 ? a[i] : std::log1p(std::exp(a[i])));
        case NEG: EACH(-a[i]);
        case RSQRT: EACH(1 / std::sqrt(a[i]));
        case SQRT: EACH(std::sqrt(a[i]));
        case LOG: EACH(std::log(a[i]));
        case COS: EACH(std::cos(a[i]));
        case SIN: EACH(std::sin(a[i]));
        case ABS: EACH(std::fabs(a[i]));
        case SQUARE: EACH(a[i] * a[i]);
        case RECIPROCAL: EACH(1 / a[i]);
        case WHERE: EACH(a[i] != 0 ? b[i] : c[i]);
        case EQ: EACH(a[i] == b[i]);
        case NE: EACH(a[i] != b[i]);
        case LT: EACH(a[i] < b[i]);
        case LE: EACH(a[i] <= b[i]);
        case GT: EACH(a[i] > b[i]);
        case GE: EACH(a[i] >= b[i]);
        case AND: EACH(a[i] != 0 && b[i] != 0);
        case OR: EACH(a[i] != 0 || b[i] != 0);
        case NOT: EACH(a[i] == 0);
    }
}

static int64_t apply_integer(int function, int64_t a, int64_t b, int64_t c, int64_t factor) {
    switch (function) {
        case COPY: return a;
        case ADD: return a + factor * b;
        case SUB: return a - factor * b;
        case MUL: return a * b;
        case MAXIMUM: return std::max(a, b);
        case MINIMUM: return std::min(a, b);
        case NEG: return -a;
        case ABS: return a < 0 ? -a : a;
        case WHERE: return a ? b : c;
        case EQ: return a == b;
        case NE: return a != b;
        case LT: return a < b;
        case LE: return a <= b;
        case GT: return a > b;
        case GE: return a >= b;
        case AND: return a && b;
        case OR: return a || b;
        case NOT: return !a;
        case REMAINDER: return b == 0 ? 0 : ((a % b) + b) % b;  // with the sign of the divisor, as in Python
        case FLOOR_DIVIDE: return b == 0 ? 0 : (a - ((a % b) + b) % b) / b;
        default: return 0;
    }
}

static inline int64_t get_integer(const void* p, int type, long i) {
    return type == INT64 ? ((const int64_t*)p)[i] : ((const uint8_t*)p)[i];
}

// y = f(a, b, c); an input that is broadcast has strides of 0.
struct PointwiseArguments {
    void* y;
    const void* a;
    Optional<void> b, c;  // null if the function has fewer inputs
    int64_t sizes[4];     // of y
    int64_t y_strides[4], a_strides[4], b_strides[4], c_strides[4];
    double factor;  // of b in ADD and SUB (torch's alpha)
    Function function;
    Type y_type, a_type, b_type, c_type;
    bool is_whole;  // integers and booleans, computed in int64
    FIELDS(y, a, b, c, sizes, y_strides, a_strides, b_strides, c_strides, factor, function, y_type, a_type, b_type, c_type, is_whole)
};

static void pointwise(const PointwiseArguments& a, const Worker& worker) {
    constexpr long CHUNK = 512;  // elements of the last dimension that are converted to float32 at a time
    const int inputs = a.c ? 3 : a.b ? 2 : 1;
    const void* const x[3] = {a.a, a.b, a.c};
    const Type types[3] = {a.a_type, a.b_type, a.c_type};
    const int64_t *size = a.sizes, *const strides[4] = {a.y_strides, a.a_strides, a.b_strides, a.c_strides};
    const long cuts = (size[3] + CHUNK - 1) / CHUNK, items = size[0] * size[1] * size[2] * cuts;
    share(worker, items, std::max<long>(1, 4096 / std::min<long>(CHUNK, size[3])), [&](long first, long last) {
        alignas(64) float buffers[4][CHUNK + W];
        for (long item = first; item < last; item++) {
            const long start = item % cuts * CHUNK, n = std::min(CHUNK, size[3] - start), outer = item / cuts;
            const long index[3] = {outer / (size[1] * size[2]), outer / size[2] % size[1], outer % size[2]};
            long place[4];
            for (int j = 0; j <= inputs; j++) {
                const int64_t* stride = strides[j];
                place[j] = index[0] * stride[0] + index[1] * stride[1] + index[2] * stride[2] + start * stride[3];
            }
            const long y_stride = a.y_strides[3];
            if (a.is_whole) {
                for (long i = 0; i < n; i++) {
                    int64_t values[3] = {};
                    for (int j = 0; j < inputs; j++) values[j] = get_integer(x[j], types[j], place[1 + j] + i * strides[1 + j][3]);
                    int64_t y = apply_integer(a.function, values[0], values[1], values[2], (int64_t)a.factor);
                    if (a.y_type == INT64) ((int64_t*)a.y)[place[0] + i * y_stride] = y;
                    else put(a.y, a.y_type, place[0] + i * y_stride, (float)y);
                }
                continue;
            }
            const float* values[3] = {};
            for (int j = 0; j < inputs; j++) values[j] = as_floats(x[j], types[j], place[1 + j], strides[1 + j][3], n, buffers[j]);
            const bool direct = a.y_type == FLOAT32 && y_stride == 1;  // no conversion afterwards
            float* y = direct ? (float*)a.y + place[0] : buffers[3];
            apply(a.function, n, y, values[0], values[1], values[2], (float)a.factor);
            if (!direct) put_all(a.y, a.y_type, place[0], y_stride, n, y);
        }
    });
}
