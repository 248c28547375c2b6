// The operations of a decoding step, each computed by all threads of one parallel region, and a list of them in turn.
//
// An Entry is one operation: pointers, integers and numbers, whose places stand at the head of each function. Entries that
// are serial are computed by the first thread alone; before an entry with `barrier` all threads wait for each other.
#include "vector.h"

#include <algorithm>
#include <atomic>
#include <vector>
#if defined(_OPENMP)
#include <omp.h>
#endif
#if !defined(_WIN32)
#include <sched.h>
#endif

struct Entry {
    int32_t operation, serial, barrier, unused;
    void* p[10];
    int64_t n[56];
    double f[4];
};

enum Type { FLOAT32, BFLOAT16, INT64, BOOL, INT8, INT4 };
constexpr int MAX_THREADS = 256;
constexpr int ROWS_AT_ONCE = 4, VECTORS_AT_ONCE = W == 16 ? 4 : 3;  // as many sums as there are registers for
constexpr long PIECE = 32768;  // bytes of weights that a thread takes at a time

struct alignas(64) Counter { std::atomic<long> next; };

struct Worker {
    int thread, threads;
    Counter* counters;  // of the present entry, one of each thread's share
};

static inline void pause() {
#if defined(__x86_64__)
    _mm_pause();
#endif
}

class Barrier {
  public:
    void wait(int threads) {
        if (threads == 1) return;
        int before = phase.load(std::memory_order_relaxed);
        if (arrived.fetch_add(1) == threads - 1) {
            arrived.store(0, std::memory_order_relaxed);
            phase.fetch_add(1);
            return;
        }
        for (int spins = 0; phase.load(std::memory_order_acquire) == before;) {
            pause();
            if (++spins == 500) {  // another program may have this core
                spins = 0;
#if !defined(_WIN32)
                sched_yield();
#endif
            }
        }
    }

  private:
    std::atomic<int> arrived{0}, phase{0};
};

// Call body(first, last) for all of 0..total in pieces: each thread its own share first, then what others have left.
template <class Body> static void share(const Worker& worker, long total, long piece, Body body) {
    for (int i = 0; i < worker.threads; i++) {
        int owner = (worker.thread + i) % worker.threads;
        long low = total * owner / worker.threads, high = total * (owner + 1) / worker.threads;
        if (low == high) continue;
        for (;;) {
            long first = low + worker.counters[owner].next.fetch_add(piece, std::memory_order_relaxed);
            if (first >= high) break;
            body(first, std::min(high, first + piece));
        }
    }
}

template <class T> static T* scratch(int slot, size_t size) {  // one buffer a thread and slot, 64 bytes aligned
    static thread_local std::vector<char> buffers[4];
    auto& buffer = buffers[slot];
    if (buffer.size() < size * sizeof(T) + 64) buffer.resize(size * sizeof(T) + 64);
    return (T*)(((uintptr_t)buffer.data() + 63) & ~(uintptr_t)63);
}

static inline float get(const void* p, int type, long i) {
    switch (type) {
        case FLOAT32: return ((const float*)p)[i];
        case BFLOAT16: return to_float(((const bfloat16*)p)[i]);
        case INT64: return (float)((const int64_t*)p)[i];
        default: return ((const uint8_t*)p)[i];
    }
}

static inline void put(void* p, int type, long i, float x) {
    switch (type) {
        case FLOAT32: ((float*)p)[i] = x; break;
        case BFLOAT16: ((bfloat16*)p)[i] = to_bfloat16(x); break;
        case INT64: ((int64_t*)p)[i] = (int64_t)x; break;
        default: ((uint8_t*)p)[i] = x != 0;
    }
}

static inline void widen(const bfloat16* p, long n, float* y) {
    long i = 0;
    for (; i + W <= n; i += W) store(y + i, load(p + i));
    for (; i < n; i++) y[i] = to_float(p[i]);
}

// n numbers in the type of p, from its place `start` on.
static inline void put_all(void* p, int type, long start, long stride, long n, const float* x) {
    if (type == BFLOAT16) {
        bfloat16* y = (bfloat16*)p + start;
        for (long i = 0; i < n; i++) y[i * stride] = to_bfloat16(x[i]);
    } else if (type == FLOAT32) {
        float* y = (float*)p + start;
        for (long i = 0; i < n; i++) y[i * stride] = x[i];
    } else
        for (long i = 0; i < n; i++) put(p, type, start + i * stride, x[i]);
}

// n numbers as float32: in place where they are, else in a buffer.
static const float* as_floats(const void* p, int type, long start, long stride, long n, float* buffer) {
    if (type == FLOAT32 && stride == 1) return (const float*)p + start;
    if (stride == 0) std::fill(buffer, buffer + n, get(p, type, start));
    else if (type == FLOAT32) for (long i = 0; i < n; i++) buffer[i] = ((const float*)p)[start + i * stride];
    else if (type == BFLOAT16 && stride == 1) widen((const bfloat16*)p + start, n, buffer);
    else if (type == BFLOAT16) for (long i = 0; i < n; i++) buffer[i] = to_float(((const bfloat16*)p)[start + i * stride]);
    else for (long i = 0; i < n; i++) buffer[i] = get(p, type, start + i * stride);
    return buffer;
}

// ---------------------------------------------------------------------------------------------------------- product

// Add to sums[r * stride + m], lane by lane, the products of R rows of a matrix with M vectors, over K of their columns.
template <int R, int M, class T>
static inline void accumulate(const T* w, long ldw, const float* x, long ldx, long K, floats* totals, long stride) {
    constexpr int UNROLL = 64 / (sizeof(T) * W) > 0 ? 64 / (sizeof(T) * W) : 1;  // a cache line of weights
    floats sums[R][M];
    for (int r = 0; r < R; r++)
        for (int m = 0; m < M; m++) sums[r][m] = totals[r * stride + m];
    long k = 0;
    for (; k + UNROLL * W <= K; k += UNROLL * W) {
        for (int r = 0; r < R; r++) __builtin_prefetch(w + (r + 2 * R) * ldw + k);
        for (int u = 0; u < UNROLL; u++) {
            floats vectors[M];
            for (int m = 0; m < M; m++) vectors[m] = load(x + m * ldx + k + u * W);
            for (int r = 0; r < R; r++) {
                floats weights = load(w + r * ldw + k + u * W);
                for (int m = 0; m < M; m++) sums[r][m] = multiply_add(weights, vectors[m], sums[r][m]);
            }
        }
    }
    for (; k < K; k += W) {
        long n = std::min<long>(W, K - k);
        for (int r = 0; r < R; r++) {
            floats weights = load_part(w + r * ldw + k, n);
            for (int m = 0; m < M; m++) sums[r][m] = multiply_add(weights, load_part(x + m * ldx + k, n), sums[r][m]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int m = 0; m < M; m++) totals[r * stride + m] = sums[r][m];
}

// One row times one vector.
template <class T> static inline float dot(const T* w, const float* x, long K) {
    floats total = {};
    accumulate<1, 1>(w, 0, x, 0, K, &total, 1);
    return sum(total);
}

// The four bytes (two 8-bit, or eight 4-bit weights by groups of 32) of W rows at once: each lane is a row.
template <int BITS, int M>
static inline void dot_groups(const uint8_t* w, const half* scales, const int32_t* x, const float* x_scale, const int32_t* x_sum,
                              long groups, long ldx, floats* y) {
    constexpr int PAIRS = 16 / BITS, LOADS = 32 / (2 * PAIRS), OFFSET = 1 << (BITS - 1);
    const words mask = (words)splat(BITS == 8 ? 0x00ff00ff : 0x000f000f);
    for (int m = 0; m < M; m++) y[m] = floats{};
    for (long g = 0; g < groups; g++) {
        ints sums[M];
        for (int m = 0; m < M; m++) sums[m] = splat(-OFFSET * x_sum[m * groups + g]);
        for (int i = 0; i < LOADS; i++, w += 4 * W) {
            words weights;
            memcpy(&weights, w, sizeof weights);
            __builtin_prefetch(w + 1024);
            for (int j = 0; j < PAIRS; j++) {
                ints pair = (ints)((weights >> (j * BITS)) & mask);
                for (int m = 0; m < M; m++) sums[m] = multiply_pairs(sums[m], pair, splat(x[m * ldx + g * 16 + i * PAIRS + j]));
            }
        }
        floats scale = load_half(scales + g * W);
        for (int m = 0; m < M; m++) y[m] = multiply_add(__builtin_convertvector(sums[m], floats), scale * x_scale[m * groups + g], y[m]);
    }
}

// Vectors by groups of 32 as 16-bit integers, in pairs as dot_groups meets them.
static void quantize(const float* x, long ldx, long M, long K, int bits, int32_t* pairs, float* scale, int32_t* sums) {
    const int stride = 16 / bits;  // a pair is k and k + stride, of each 2 * stride
    for (long m = 0; m < M; m++)
        for (long g = 0; g < K / 32; g++) {
            const float* group = x + m * ldx + g * 32;
            float largest = 0;
            for (int k = 0; k < 32; k++) largest = std::max(largest, std::fabs(group[k]));
            float inverse = largest > 0 ? 32767 / largest : 0;
            int16_t q[32];
            int32_t total = 0;
            for (int k = 0; k < 32; k++) {
                q[k] = (int16_t)std::nearbyint(group[k] * inverse);
                total += q[k];
            }
            for (int i = 0; i < 16; i++) {
                int k = i / stride * 2 * stride + i % stride;
                pairs[m * (K / 2) + g * 16 + i] = (int32_t)((uint32_t)(uint16_t)q[k + stride] << 16 | (uint16_t)q[k]);
            }
            scale[m * (K / 32) + g] = largest / 32767;
            sums[m * (K / 32) + g] = total;
        }
}

struct Product {
    long M, N, K, ldx, ldw, ldy;
    int x_type, w_type, bias_type, y_type;
    const Entry& e;
    explicit Product(const Entry& e)
        : M(e.n[0]), N(e.n[1]), K(e.n[2]), ldx(e.n[3]), ldw(e.n[4]), ldy(e.n[5]), x_type(e.n[6]), w_type(e.n[7]), bias_type(e.n[8]),
          y_type(e.n[9]), e(e) {}
    void put_sum(long m, long row, float y, long bias_row) const {
        if (e.p[2]) y += get(e.p[2], bias_type, bias_row);
        put(e.p[3], y_type, m * ldy + row, y);
    }
};

// Add the products of n rows with M vectors, in tiles for which there are registers.
template <class T>
static void accumulate_tiles(const T* w, long ldw, long n, const float* x, long ldx, long M, long K, floats* totals, long stride) {
    using std::integral_constant;
    constexpr int TILE = VECTORS_AT_ONCE;
    for (long m = 0; m < M; m += TILE) {
        auto run = [&](auto r, auto t) {
            accumulate<decltype(r)::value, decltype(t)::value>(w, ldw, x + m * ldx, ldx, K, totals + m, stride);
        };
        auto tiles = [&](auto r) {
            switch (std::min<long>(TILE, M - m)) {
                case 1: run(r, integral_constant<int, 1>()); break;
                case 2: run(r, integral_constant<int, 2>()); break;
                case 3: run(r, integral_constant<int, 3>()); break;
                default: run(r, integral_constant<int, TILE>());
            }
        };
        switch (n) {
            case 1: tiles(integral_constant<int, 1>()); break;
            case 2: tiles(integral_constant<int, 2>()); break;
            case 3: tiles(integral_constant<int, 3>()); break;
            default: tiles(integral_constant<int, ROWS_AT_ONCE>());
        }
    }
}

template <class T> static void float_product(const Product& p, const float* x, long ldx, const Worker& worker) {
    constexpr int R = ROWS_AT_ONCE;
    const int64_t* indices = (const int64_t*)p.e.p[5];  // each vector's own matrix of a stack
    const long per_token = p.e.n[10], stack = p.e.n[11], M = indices ? 1 : p.M;
    share(worker, p.N, std::max<long>(1, PIECE / (long)(p.K * sizeof(T)) / R) * R, [&](long first, long last) {
        floats* totals = scratch<floats>(1, R * M);
        for (long product = 0; product < (indices ? p.M : 1); product++) {
            const long which = indices ? indices[product] : 0;
            const float* vectors = x + (indices ? product / per_token * ldx : 0);
            for (long row = first; row < last; row += R) {
                const long n = std::min<long>(R, last - row);
                const T* rows = (const T*)p.e.p[1] + which * stack + row * p.ldw;
                std::fill((float*)totals, (float*)(totals + n * M), 0.0f);
                if (sizeof(T) == 2 && M > VECTORS_AT_ONCE) {  // converted once for all vectors
                    float* converted = scratch<float>(2, R * p.K);
                    for (long r = 0; r < n; r++) as_floats(rows, BFLOAT16, r * p.ldw, 1, p.K, converted + r * p.K);
                    accumulate_tiles(converted, p.K, n, vectors, ldx, M, p.K, totals, M);
                } else
                    accumulate_tiles(rows, p.ldw, n, vectors, ldx, M, p.K, totals, M);
                for (long r = 0; r < n; r++)
                    for (long m = 0; m < M; m++) p.put_sum(product + m, row + r, sum(totals[r * M + m]), which * p.N + row + r);
            }
        }
    });
}

template <int BITS> static void quantized_product(const Product& p, const float* x, long ldx, const Worker& worker) {
    constexpr int TILE = 4;
    const int64_t* indices = (const int64_t*)p.e.p[5];
    const long groups = p.K / 32, block = p.K * W * BITS / 8, blocks = (p.N + W - 1) / W, per_token = p.e.n[10];
    const long vectors = indices ? p.M / per_token : p.M;
    auto* pairs = scratch<int32_t>(1, vectors * p.K / 2);
    auto* scale = scratch<float>(2, vectors * groups);
    auto* sums = scratch<int32_t>(3, vectors * groups);
    quantize(x, ldx, vectors, p.K, BITS, pairs, scale, sums);
    share(worker, blocks, std::max<long>(1, PIECE / block), [&](long first, long last) {
        for (long b = first; b < last; b++)
            for (long m = 0; m < p.M;) {
                const long tile = indices ? 1 : std::min<long>(TILE, p.M - m), which = indices ? indices[m] : 0;
                const long vector = indices ? m / per_token : m, place = which * blocks + b;
                floats y[TILE];
                auto run = [&](auto t) {
                    dot_groups<BITS, decltype(t)::value>((const uint8_t*)p.e.p[1] + place * block, (const half*)p.e.p[4] + place * groups * W,
                                                         pairs + vector * (p.K / 2), scale + vector * groups, sums + vector * groups, groups,
                                                         p.K / 2, y);
                };
                switch (tile) {
                    case 1: run(std::integral_constant<int, 1>()); break;
                    case 2: run(std::integral_constant<int, 2>()); break;
                    case 3: run(std::integral_constant<int, 3>()); break;
                    default: run(std::integral_constant<int, TILE>());
                }
                for (long i = 0; i < tile; i++)
                    for (long r = 0; r < std::min<long>(W, p.N - b * W); r++)
                        p.put_sum(m + i, b * W + r, y[i][r], which * p.N + b * W + r);
                m += tile;
            }
    });
}

// y = x w^T + bias. p: x w bias y scales indices; n: M N K ldx ldw ldy, types of x w bias y, choices a token, size of a matrix.
static void product(const Entry& e, const Worker& worker) {
    Product p(e);
    long vectors = e.p[5] ? p.M / e.n[10] : p.M, ldx = p.ldx;
    const float* x = (const float*)e.p[0];
    if (p.x_type != FLOAT32) {
        float* floats = scratch<float>(0, vectors * p.K);
        for (long m = 0; m < vectors; m++) as_floats(e.p[0], p.x_type, m * p.ldx, 1, p.K, floats + m * p.K);
        x = floats;
        ldx = p.K;
    }
    switch (p.w_type) {
        case FLOAT32: float_product<float>(p, x, ldx, worker); break;
        case BFLOAT16: float_product<bfloat16>(p, x, ldx, worker); break;
        case INT8: quantized_product<8>(p, x, ldx, worker); break;
        case INT4: quantized_product<4>(p, x, ldx, worker); break;
    }
}

// y[b] = x[b] w[b], of any strides. p: x w y; n: B M N K, strides (b m k) of x, (b k n) of w, (b m n) of y, types of x w y.
static void batched_product(const Entry& e, const Worker& worker) {
    const long B = e.n[0], M = e.n[1], N = e.n[2], K = e.n[3];
    const int64_t *sx = e.n + 4, *sw = e.n + 7, *sy = e.n + 10;
    const int x_type = e.n[13], w_type = e.n[14], y_type = e.n[15];
    const long columns = std::max<long>(64, 4096 / std::max<long>(K, 1)), cuts = (N + columns - 1) / columns;
    share(worker, B * M * cuts, 1, [&](long first, long last) {
        float *a = scratch<float>(0, K), *line = scratch<float>(1, std::max(K, columns)), *sums = scratch<float>(2, columns);
        for (long item = first; item < last; item++) {
            long b = item / (M * cuts), m = item / cuts % M, n0 = item % cuts * columns, n = std::min(columns, N - n0);
            const float* x = as_floats(e.p[0], x_type, b * sx[0] + m * sx[1], sx[2], K, a);
            if (sw[2] == 1 || sw[1] != 1) {  // rows of w, times a number each
                std::fill(sums, sums + n, 0.0f);
                for (long k = 0; k < K; k++) {
                    const float* row = as_floats(e.p[1], w_type, b * sw[0] + k * sw[1] + n0 * sw[2], sw[2], n, line);
                    for (long j = 0; j < n; j++) sums[j] += x[k] * row[j];
                }
            } else
                for (long j = 0; j < n; j++) {
                    const float* column = as_floats(e.p[1], w_type, b * sw[0] + (n0 + j) * sw[2], 1, K, line);
                    sums[j] = dot(column, x, K);
                }
            for (long j = 0; j < n; j++) put(e.p[2], y_type, b * sy[0] + m * sy[1] + (n0 + j) * sy[2], sums[j]);
        }
    });
}

// -------------------------------------------------------------------------------------------------------- attention

// W products of one vector with consecutive keys, each a lane of the result.
template <class T> static inline floats dot_keys(const T* keys, long stride, const float* q, long P) {
    floats sums[W] = {};
    for (long i = 0; i + W <= P; i += W) {
        floats vector = load(q + i);
        for (int j = 0; j < W; j++) sums[j] = multiply_add(vector, load(keys + j * stride + i), sums[j]);
    }
    if (long n = P % W) {
        floats vector = load_part(q + P - n, n);
        for (int j = 0; j < W; j++) sums[j] = multiply_add(vector, load_part(keys + j * stride + P - n, n), sums[j]);
    }
    floats y;
    for (int j = 0; j < W; j++) y[j] = sum(sums[j]);
    return y;
}

// scores[s] += q k_s of n keys.
template <class T> static void add_scores(const T* keys, long stride, const float* q, long P, long n, float* scores) {
    long s = 0;
    for (; s + W <= n; s += W) store(scores + s, load(scores + s) + dot_keys(keys + s * stride, stride, q, P));
    for (; s < n; s++) scores[s] += dot(keys + s * stride, q, P);
}

// y = sum of weights[s] v_s; CHUNK vectors of lanes at a time.
template <class T> static void mix_values(const T* values, long stride, const float* weights, long Q, long n, float* y) {
    constexpr int CHUNK = 8;
    long c = 0;
    for (; c + CHUNK * W <= Q; c += CHUNK * W) {
        floats sums[CHUNK] = {};
        for (long s = 0; s < n; s++)
            for (int i = 0; i < CHUNK; i++) sums[i] += weights[s] * load(values + s * stride + c + i * W);
        memcpy(y + c, sums, sizeof sums);
    }
    for (; c < Q; c += W) {
        const long lanes = std::min<long>(W, Q - c);
        floats total = {};
        for (long s = 0; s < n; s++) total += weights[s] * load_part(values + s * stride + c, lanes);
        memcpy(y + c, &total, lanes * sizeof(float));
    }
}

static void softmax(float* row, long n, const float* sink) {
    float largest = sink ? *sink : -INFINITY;
    for (long s = 0; s < n; s++) largest = std::max(largest, row[s]);
    float total = sink ? std::exp(*sink - largest) : 0;
    floats totals = {};
    long s = 0;
    for (; s + W <= n; s += W) {
        floats weights = exp(load(row + s) - largest);
        store(row + s, weights);
        totals += weights;
    }
    for (; s < n; s++) total += row[s] = std::exp(row[s] - largest);
    total += sum(totals);
    const float inverse = total > 0 ? 1 / total : 0;
    for (s = 0; s < n; s++) row[s] *= inverse;
}

// softmax(scale q k^T) v over the positions that a query may see, of a cache whose place s holds position s (or, of a ring,
// s modulo its size). Scores may be sums of two products, of keys in two parts.
// p: q keys values positions y slopes sinks mask q2 keys2; n: B H K T S P Q P2, then strides: 8 (b h t) of q, 11 (b h t) of
// q2, 14 (b k s) of keys, 17 of keys2, 20 of values, 23 (b t) of positions, 25 (b h t) of y, 28 (b h t s) of the mask; 32 types of
// q cache y mask, 36 window, ring, added to positions. f: scale softcap.
static void attend(const Entry& e, const Worker& worker) {
    const long B = e.n[0], H = e.n[1], K = e.n[2], T = e.n[3], S = e.n[4], P = e.n[5], Q = e.n[6], P2 = e.n[7], G = H / K;
    const int64_t *sq = e.n + 8, *sq2 = e.n + 11, *sk = e.n + 14, *sk2 = e.n + 17, *sv = e.n + 20, *sp = e.n + 23, *sy = e.n + 25, *sm = e.n + 28;
    const int q_type = e.n[32], cache_type = e.n[33], y_type = e.n[34], mask_type = e.n[35];
    const long window = e.n[36], is_ring = e.n[37], offset = e.n[38];
    const float scale = e.f[0], softcap = e.f[1], *slopes = (const float*)e.p[5], *sinks = (const float*)e.p[6];
    share(worker, B * T * H, 1, [&](long first, long last) {
        float *q = scratch<float>(0, P + P2), *scores = scratch<float>(1, S), *y = scratch<float>(2, Q);
        for (long item = first; item < last; item++) {
            const long b = item / (T * H), t = item / H % T, h = item % H, k = h / G;
            const long position = e.p[3] ? ((const int64_t*)e.p[3])[b * sp[0] + t * sp[1]] + offset : S - 1;
            const long end = std::min(S, position + 1);  // a ring is full of the newest
            const long start = window && !is_ring ? std::max(0L, position - window + 1) : 0, n = std::max(0L, end - start);
            const float* first_part = as_floats(e.p[0], q_type, b * sq[0] + h * sq[1] + t * sq[2], 1, P, q);
            for (long i = 0; i < P; i++) q[i] = first_part[i] * scale;
            if (P2) {
                const float* second_part = as_floats(e.p[8], q_type, b * sq2[0] + h * sq2[1] + t * sq2[2], 1, P2, q + P);
                for (long i = 0; i < P2; i++) q[P + i] = second_part[i] * scale;
            }
            std::fill(scores, scores + n, 0.0f);
            const long keys = b * sk[0] + k * sk[1] + start * sk[2], keys2 = b * sk2[0] + k * sk2[1] + start * sk2[2];
            const long values = b * sv[0] + k * sv[1] + start * sv[2];
            if (cache_type == FLOAT32) {
                add_scores((const float*)e.p[1] + keys, sk[2], q, P, n, scores);
                if (P2) add_scores((const float*)e.p[9] + keys2, sk2[2], q + P, P2, n, scores);
            } else {
                add_scores((const bfloat16*)e.p[1] + keys, sk[2], q, P, n, scores);
                if (P2) add_scores((const bfloat16*)e.p[9] + keys2, sk2[2], q + P, P2, n, scores);
            }
            for (long s = 0; s < n && (softcap > 0 || slopes || e.p[7]); s++) {
                if (softcap > 0) scores[s] = softcap * std::tanh(scores[s] / softcap);
                if (slopes) scores[s] -= slopes[h] * (position - start - s);
                if (e.p[7]) {
                    float m = get(e.p[7], mask_type, b * sm[0] + h * sm[1] + t * sm[2] + (start + s) * sm[3]);
                    scores[s] = mask_type == BOOL ? (m != 0 ? scores[s] : -1e30f) : std::max(scores[s] + m, -1e30f);
                }
            }
            softmax(scores, n, sinks ? sinks + h : nullptr);
            if (cache_type == FLOAT32) mix_values((const float*)e.p[2] + values, sv[2], scores, Q, n, y);
            else mix_values((const bfloat16*)e.p[2] + values, sv[2], scores, Q, n, y);
            put_all(e.p[4], y_type, b * sy[0] + h * sy[1] + t * sy[2], 1, Q, y);
        }
    });
}

// Write new keys or values into their places. p: new buffer positions; n: B K T P S, strides (b k t) of new, (b k s) of the
// buffer, (b t) of positions, types of both.
static void append(const Entry& e, const Worker& worker) {
    const long B = e.n[0], K = e.n[1], T = e.n[2], P = e.n[3], S = e.n[4];
    const int64_t *sn = e.n + 5, *sb = e.n + 8, *sp = e.n + 11;
    const int new_type = e.n[13], type = e.n[14];
    share(worker, B * T, 1, [&](long first, long last) {
        for (long item = first; item < last; item++) {
            const long b = item / T, t = item % T, place = ((const int64_t*)e.p[2])[b * sp[0] + t * sp[1]] % S;
            for (long k = 0; k < K; k++)
                for (long i = 0; i < P; i++)
                    put(e.p[1], type, b * sb[0] + k * sb[1] + place * sb[2] + i, get(e.p[0], new_type, b * sn[0] + k * sn[1] + t * sn[2] + i));
        }
    });
}

// -------------------------------------------------------------------------------------------------------- by element

enum Function { COPY, ADD, SUB, MUL, MAXIMUM, MINIMUM, NEG, ABS, WHERE, EQ, NE, LT, LE, GT, GE, AND, OR, NOT, REMAINDER, FLOOR_DIVIDE, DIV,
                POW, EXP, SILU, SIGMOID, TANH, GELU, GELU_TANH, RELU, SOFTPLUS, RSQRT, SQRT, LOG, COS, SIN, SQUARE, RECIPROCAL };

template <class F> static inline void map(long n, float* y, const float* a, const float* b, F f) {
    long i = 0;
    for (; i + W <= n; i += W) store(y + i, f(load(a + i), load(b + i)));
    if (i < n) {
        floats rest = f(load_part(a + i, n - i), load_part(b + i, n - i));
        memcpy(y + i, &rest, (n - i) * sizeof(float));
    }
}

#define EACH(expression) for (long i = 0; i < n; i++) y[i] = expression; break

static void apply(int function, long n, float* y, const float* a, const float* b, const float* c, const double* f) {
    switch (function) {
        case COPY: EACH(a[i]);
        case ADD: EACH(a[i] + (float)f[0] * b[i]);
        case SUB: EACH(a[i] - (float)f[0] * b[i]);
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

static int64_t apply_integer(int function, int64_t a, int64_t b, int64_t c, const double* f) {
    switch (function) {
        case COPY: return a;
        case ADD: return a + (int64_t)f[0] * b;
        case SUB: return a - (int64_t)f[0] * b;
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
        case REMAINDER: return b == 0 ? 0 : ((a % b) + b) % b;  // the sign of the divisor, as in Python
        case FLOOR_DIVIDE: return b == 0 ? 0 : (a - ((a % b) + b) % b) / b;
        default: return 0;
    }
}

static inline int64_t get_integer(const void* p, int type, long i) { return type == INT64 ? ((const int64_t*)p)[i] : ((const uint8_t*)p)[i]; }

// y = f(a, b, c) with strides, so with broadcasting. p: y a b c; n: 4 sizes, number of inputs, function, whether integers,
// types of y a b c, strides of y at 12, of a b c at 16, 20, 24. f: a number of the function's.
static void pointwise(const Entry& e, const Worker& worker) {
    constexpr long CHUNK = 512;
    const int64_t* size = e.n;
    const int inputs = e.n[4], function = e.n[5], y_type = e.n[7];
    const long cuts = (size[3] + CHUNK - 1) / CHUNK, items = size[0] * size[1] * size[2] * cuts;
    share(worker, items, std::max<long>(1, 4096 / std::min<long>(CHUNK, size[3])), [&](long first, long last) {
        alignas(64) float buffers[4][CHUNK + W];
        for (long item = first; item < last; item++) {
            const long start = item % cuts * CHUNK, n = std::min(CHUNK, size[3] - start), outer = item / cuts;
            const long index[3] = {outer / (size[1] * size[2]), outer / size[2] % size[1], outer % size[2]};
            long place[4];
            for (int j = 0; j <= inputs; j++) {
                const int64_t* stride = e.n + 12 + 4 * j;
                place[j] = index[0] * stride[0] + index[1] * stride[1] + index[2] * stride[2] + start * stride[3];
            }
            if (e.n[6]) {
                for (long i = 0; i < n; i++) {
                    int64_t values[3] = {};
                    for (int j = 0; j < inputs; j++) values[j] = get_integer(e.p[1 + j], e.n[8 + j], place[1 + j] + i * e.n[19 + 4 * j]);
                    int64_t y = apply_integer(function, values[0], values[1], values[2], e.f);
                    if (y_type == INT64) ((int64_t*)e.p[0])[place[0] + i * e.n[15]] = y;
                    else put(e.p[0], y_type, place[0] + i * e.n[15], (float)y);
                }
                continue;
            }
            const float* values[3] = {};
            for (int j = 0; j < inputs; j++) values[j] = as_floats(e.p[1 + j], e.n[8 + j], place[1 + j], e.n[19 + 4 * j], n, buffers[j]);
            const bool direct = y_type == FLOAT32 && e.n[15] == 1;
            float* y = direct ? (float*)e.p[0] + place[0] : buffers[3];
            apply(function, n, y, values[0], values[1], values[2], e.f);
            if (!direct) put_all(e.p[0], y_type, place[0], e.n[15], n, y);
        }
    });
}

// -------------------------------------------------------------------------------------------------------- rows

enum Row { RMS_NORM, LAYER_NORM, SOFTMAX, SUM, MEAN };

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
            if (kind == SOFTMAX) {
                float largest = *std::max_element(x, x + D);
                for (; i < D; i++) total += y[i] = std::exp(x[i] - largest);
                for (i = 0; i < D; i++) put(e.p[0], y_type, r * D + i, (float)(y[i] / total));
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

// The k largest of each row, largest first, the earlier of equals first. p: values indices x; n: rows D k; float32.
static void topk(const Entry& e, const Worker&) {
    const long D = e.n[1], k = e.n[2];
    std::vector<long> order(D);
    for (long r = 0; r < e.n[0]; r++) {
        const float* x = (const float*)e.p[2] + r * D;
        for (long i = 0; i < D; i++) order[i] = i;
        std::partial_sort(order.begin(), order.begin() + k, order.end(), [&](long a, long b) { return x[a] > x[b] || (x[a] == x[b] && a < b); });
        for (long i = 0; i < k; i++) {
            ((float*)e.p[0])[r * k + i] = x[order[i]];
            ((int64_t*)e.p[1])[r * k + i] = order[i];
        }
    }
}

// y[r, i] = x[r, index[r, i]]. p: y x index; n: rows, columns of the index, columns of x; float32.
static void gather(const Entry& e, const Worker&) {
    for (long r = 0; r < e.n[0]; r++)
        for (long i = 0; i < e.n[1]; i++)
            ((float*)e.p[0])[r * e.n[1] + i] = ((float*)e.p[1])[r * e.n[2] + ((int64_t*)e.p[2])[r * e.n[1] + i]];
}

// ------------------------------------------------------------------------------------------------------------- steps

typedef void (*Operation)(const Entry&, const Worker&);
static const Operation operations[] = {product, batched_product, attend, append, pointwise, rows, embedding, quantized_embedding, topk, gather};

extern "C" int lanes() { return W; }

extern "C" int entry_bytes() { return sizeof(Entry); }

// Compute the entries one after the other, by `threads` threads of one parallel region.
extern "C" void run(const Entry* entries, long count, int threads) {
    static thread_local std::vector<Counter> counters;
    threads = std::min(threads, MAX_THREADS);
    if ((long)counters.size() < count * threads) counters = std::vector<Counter>(count * threads);
    Counter* const all = counters.data();
    for (long i = 0; i < count * threads; i++) all[i].next.store(0, std::memory_order_relaxed);
    Barrier barrier;
#if defined(_OPENMP)
#pragma omp parallel num_threads(threads)
#endif
    {
        Worker worker{0, 1, all};
#if defined(_OPENMP)
        worker.thread = omp_get_thread_num();
        worker.threads = omp_get_num_threads();
#endif
        for (long i = 0; i < count; i++) {
            const Entry& e = entries[i];
            if (e.barrier) barrier.wait(worker.threads);
            worker.counters = all + i * threads;
            if (!e.serial) operations[e.operation](e, worker);
            else if (worker.thread == 0) operations[e.operation](e, Worker{0, 1, worker.counters});
        }
    }
}

// The sum of n numbers, read by all threads: the machine's speed of reading.
extern "C" float read_all(const float* p, long n, int threads) {
    float total = 0;
#if defined(_OPENMP)
#pragma omp parallel num_threads(threads) reduction(+ : total)
#endif
    {
        long thread = 0, count = 1;
#if defined(_OPENMP)
        thread = omp_get_thread_num(), count = omp_get_num_threads();
#endif
        long first = n / 64 * thread / count * 64, last = n / 64 * (thread + 1) / count * 64;
        floats sums[4] = {};
        for (long i = first; i < last; i += 4 * W)
            for (int j = 0; j < 4; j++) sums[j] += load(p + i + j * W);
        total += sum(sums[0] + sums[1] + sums[2] + sums[3]);
    }
    return total;
}
