// Attention over a cache, and writes to the cache.
#pragma once
#include "product.h"

#include <type_traits>

constexpr long SPAN = 128;    // slots whose scores are computed before their values are added
constexpr long TOGETHER = 32;  // queries of one key head that read its cache together

// Read 2 W numbers of a row (n may be less) as two vectors. Of bfloat16, these are the even and the odd numbers: a 32-bit lane holds one of
// each, which a shift and a mask turn into float32.
template <class T> static inline void load_two(const T* p, long n, floats (&v)[2]) {
    v[0] = n >= W ? load(p) : load_part(p, n);
    v[1] = n >= 2 * W ? load(p + W) : n > W ? load_part(p + W, n - W) : floats{};
}

static inline void load_two(const bfloat16* p, long n, floats (&v)[2]) {
    words pairs{};
    if (n >= 2 * W) memcpy(&pairs, p, sizeof pairs);
    else memcpy(&pairs, p, n * sizeof *p);
    v[0] = (floats)(pairs << 16), v[1] = (floats)(pairs & 0xffff0000);
}

// Index of number i of a row in the order of load_two, and the length of a row of n numbers, padded to whole pairs of vectors.
template <class T> static inline long place_of(long i) {
    return !std::is_same_v<T, bfloat16> ? i : i / (2 * W) * (2 * W) + i % 2 * W + i % (2 * W) / 2;
}
static inline long padded(long n) { return (n + 2 * W - 1) / (2 * W) * (2 * W); }

// The products of one query, padded and in the order of load_two, with W consecutive keys of P numbers; a lane of the result for each key.
template <class T> static inline floats dot_keys(const T* keys, long stride, const float* q, long P) {
    floats sums[W] = {};
    for (long i = 0; i < P; i += 2 * W) {
        const floats vectors[2] = {load(q + i), load(q + i + W)};
        for (int j = 0; j < W; j++) {
            floats key[2];
            load_two(keys + j * stride + i, P - i, key);
            sums[j] = multiply_add(vectors[1], key[1], multiply_add(vectors[0], key[0], sums[j]));
        }
    }
    return sums_of(sums);
}

#if defined(HAS_PAIRS)
static inline floats dot_keys(const bfloat16* keys, long stride, const bfloat16* q, long P) {
    floats sums[W] = {};
    for (long i = 0; i < P; i += 2 * W) {
        const long n = std::min<long>(2 * W, P - i);
        const floats vector = load_pairs(q + i, n);
        for (int j = 0; j < W; j++) sums[j] = add_pairs(sums[j], load_pairs(keys + j * stride + i, n), vector);
    }
    return sums_of(sums);
}
#endif

// n slots of a cache buffer, of `width` numbers each. `left` slots of this head are still to be read; then follows the head at `next`
// (null: none).
template <class T> struct Places {
    const T *rows, *next;
    long stride, width, n, left;
    // Prefetch into L2 what will be read SPAN slots after these.
    void fetch_ahead_of(long first, long last) const {
        for (long row = first + SPAN; row < last + SPAN; row++) {
            if (row >= left && !next) return;
            const T* const p = row < left ? rows + row * stride : next + (row - left) * stride;
            for (long i = 0; i < width; i += 64 / (long)sizeof(T)) __builtin_prefetch(p + i, 0, 2);
        }
    }
};

// scores (N, SPAN) += scale q k for n keys and N queries, ldq numbers apart. With several queries, each key is converted to float32 once.
// `factors` are those of the keys (null: 1).
template <class T, class X>
static void add_scores(const Places<T>& keys, const X* q, long ldq, long N, float scale, const float* factors, float* scores) {
    constexpr bool WIDENS = sizeof(T) < sizeof(X);
    const long P = keys.width, ldw = padded(P);
    float* const wide = scratch<float>(3, 2 * W * ldw);
    T* const last = (T*)(wide + W * ldw);
    for (long s = 0; s < keys.n; s += W) {
        const T* rows = keys.rows + s * keys.stride;
        long ld = keys.stride;
        keys.fetch_ahead_of(s, s + W);
        if (keys.n - s < W) {  // fewer than W keys are left: copy them next to zeros
            memset(last, 0, W * P * sizeof(T));
            for (long row = 0; row < keys.n - s; row++) memcpy(last + row * P, rows + row * ld, P * sizeof(T));
            rows = last, ld = P;
        }
        for (long row = 0; WIDENS && N > 1 && row < W; row++)
            for (long i = 0; i < P; i += 2 * W) {
                floats v[2];
                load_two(rows + row * ld + i, P - i, v);
                store(wide + row * ldw + i, v[0]), store(wide + row * ldw + i + W, v[1]);
            }
        const floats factor = factors ? scale * load(factors + s) : splat(scale);
        for (long m = 0; m < N; m++) {
            float* const y = scores + m * SPAN + s;
            if (WIDENS && N > 1) store(y, load(y) + factor * dot_keys(wide, ldw, (const float*)q + m * ldq, ldw));
            else store(y, load(y) + factor * dot_keys(rows, ld, q + m * ldq, P));
        }
    }
}

// y (N, ldy) += weights (N, SPAN) v of n slots, for N queries and 2 C vectors of each value, of which `left` numbers remain.
template <int N, int C, class T>
static inline void mix(const T* values, long stride, long left, const float* weights, long n, float* y, long ldy) {
    floats sums[N][2 * C];
    for (int m = 0; m < N; m++)
        for (int c = 0; c < 2 * C; c++) sums[m][c] = load(y + m * ldy + c * W);
    for (long s = 0; s < n; s++) {
        floats lanes[C][2];
        for (int c = 0; c < C; c++) load_two(values + s * stride + 2 * c * W, left - 2 * c * W, lanes[c]);
        for (int m = 0; m < N; m++) {
            const floats weight = splat(weights[m * SPAN + s]);
            for (int c = 0; c < 2 * C; c++) sums[m][c] = multiply_add(weight, lanes[c / 2][c % 2], sums[m][c]);
        }
    }
    for (int m = 0; m < N; m++)
        for (int c = 0; c < 2 * C; c++) store(y + m * ldy + c * W, sums[m][c]);
}

template <int N, int C, class T>
static void mix_queries(const T* values, long stride, long left, const float* weights, long queries, long n, float* y, long ldy) {
    for (; queries >= N; queries -= N, weights += N * SPAN, y += N * ldy) mix<N, C>(values, stride, left, weights, n, y, ldy);
    if constexpr (N > 1)
        if (queries) mix_queries<N - 1, C>(values, stride, left, weights, queries, n, y, ldy);
}

// y (N, padded) += weights (N, SPAN) v.
template <class T> static void add_values(const Places<T>& values, const float* weights, long N, float* y) {
    constexpr int QUERIES = W < 16 ? 4 : 6, C = W < 16 ? 1 : 2;  // the sums of a tile fit into registers
    constexpr long STEP = 32;  // slots between two prefetches
    const long Q = values.width, ldy = padded(Q);
    for (long s = 0; s < values.n; s += STEP) {
        const T* rows = values.rows + s * values.stride;
        const long n = std::min(STEP, values.n - s);
        values.fetch_ahead_of(s, s + n);
        long c = 0;
        for (; c + C * 2 * W <= Q; c += C * 2 * W) mix_queries<QUERIES, C>(rows + c, values.stride, Q - c, weights + s, N, n, y + c, ldy);
        for (; c < Q; c += 2 * W) mix_queries<QUERIES, 1>(rows + c, values.stride, Q - c, weights + s, N, n, y + c, ldy);
    }
}

// Online softmax of one query (Milakov & Gimelshein 2018, algorithm 3).
struct Running {
    long start, end;  // slots that the query sees
    float largest;  // score so far
    floats total;  // sum of the weights exp(score - largest) so far, lane by lane

    // Replace the scores of n slots from `first` on by weights. If a score is larger than all before, scale down y and `total`, which are
    // sums relative to the largest score.
    void weigh(float* scores, long first, long n, float* y, long ldy) {
        for (long s = 0; s < n; s++)
            if (first + s < start || first + s >= end) scores[s] = -INFINITY;
        for (long s = n; s % W; s++) scores[s] = -INFINITY;  // up to whole vectors
        floats lanes = splat(-INFINITY);
        for (long s = 0; s < n; s += W) lanes = choose(load(scores + s) > lanes, load(scores + s), lanes);
        float top = largest;
        for (int i = 0; i < W; i++) top = std::max(top, lanes[i]);
        if (top > largest) {
            const float factor = std::exp(largest - top);
            for (long i = 0; i < ldy; i += W) store(y + i, load(y + i) * factor);
            total *= factor, largest = top;
        }
        const float base = top > -INFINITY ? top : 0;  // so that weights of unseen slots are 0, and those of NaN are NaN
        for (long s = 0; s < n; s += W) {
            const floats weights = exp(load(scores + s) - base);
            store(scores + s, weights);
            total += weights;
        }
    }
};

// Join the results of several parts of the slots: sums of values (Q numbers) relative to the part's largest score, this score, and the sum
// of weights. A sink takes part in the normalization, but has no value.
static void join(const float* parts, long count, long stride, const float* sink, long Q, float* y) {
    float largest = sink ? *sink : -INFINITY;
    for (long part = 0; part < count; part++) largest = std::max(largest, parts[part * stride + Q]);
    if (largest == -INFINITY) largest = 0;  // no keys, or NaN
    std::fill(y, y + Q, 0.0f);
    float total = sink ? std::exp(*sink - largest) : 0;
    for (long part = 0; part < count; part++, parts += stride) {
        const float factor = std::exp(parts[Q] - largest);
        total += factor * parts[Q + 1];
        for (long i = 0; i < Q; i++) y[i] += factor * parts[i];
    }
    for (long i = 0; i < Q; i++) y[i] = total == 0 ? 0 : y[i] / total;  // no keys: 0
}

// softmax(scale q k^T) v over the slots of a cache that each query sees. Slot s of a full cache holds position s; slot s of a ring holds
// the newest position p with p mod S = s. With q2 and keys2, scores are scale (q k^T + q2 keys2^T), as in latent attention.
struct AttendArguments {
    void* y;  // B H T Q; with several parts, B H T parts (Q + 2) for join_parts
    const void* q;  // B H T P
    const void* keys;  // B K S P
    const void* values;  // B K S Q
    Optional<int64_t> positions;  // of the queries, B T; null: each sees all slots
    Optional<float> slopes;  // H, of ALiBi
    Optional<float> sinks;  // H, logits that take a share of the weights
    Optional<void> mask;  // B H T S: whether a pair is allowed, or a number added to its score
    Optional<void> q2, keys2;  // B H T P2, B K S P2
    Optional<float> keys_scales, values_scales, keys2_scales;  // B K S, of int8: the factor of a slot's numbers
    int64_t batch, heads, key_heads, queries;  // B H K T
    int64_t places, features, value_features, features2;  // S P Q P2
    int64_t q_strides[3], q2_strides[3];  // b h t
    int64_t keys_strides[3], keys2_strides[3], values_strides[3];  // b k s
    int64_t keys_scales_strides[3], values_scales_strides[3], keys2_scales_strides[3];  // b k s
    int64_t positions_strides[2], y_strides[3], mask_strides[4];  // b t, b h t, b h t s
    int64_t window;  // positions that a query sees, itself included; 0: all
    int64_t part;  // slots that one thread sums; S or more: a single part
    double scale;
    double softcap;  // c of c tanh(score / c); 0: none
    Float q_type, y_type;
    Cached cache_type;
    Type mask_type;
    bool is_ring;  // the buffers are rings, whose slots are all within the window
    bool is_by_distance;  // the mask is that of a query in the last slot, and depends only on the distance
    FIELDS(y, q, keys, values, positions, slopes, sinks, mask, q2, keys2, keys_scales, values_scales, keys2_scales, batch, heads, key_heads,
           queries, places, features, value_features, features2, q_strides, q2_strides, keys_strides, keys2_strides, values_strides,
           keys_scales_strides, values_scales_strides, keys2_scales_strides, positions_strides, y_strides, mask_strides, window, part,
           scale, softcap, q_type, y_type, cache_type, mask_type, is_ring, is_by_distance)
};

static inline bool is_complete(const AttendArguments& a) {
    const bool has_scales = a.keys_scales && a.values_scales && (a.features2 == 0 || a.keys2_scales);
    return (a.cache_type != INT8 || has_scales) && (a.features2 == 0 || (a.q2 && a.keys2)) && a.key_heads && a.heads % a.key_heads == 0 &&
           a.part > 0 && a.part % SPAN == 0;
}

// Apply softcap, ALiBi and mask to the scores of one query for n slots from `first` on.
static void adjust_scores(const AttendArguments& a, long b, long h, long t, long position, long first, long n, float* scores) {
    const int64_t* sm = a.mask_strides;
    const float* slopes = a.slopes;
    const float softcap = a.softcap;
    // The mask by distance is that of a query in the last slot, so it is shifted by this query's distance from there.
    const long column = a.is_by_distance ? first + a.places - 1 - position : first;
    for (long s = 0; s < n; s++) {
        if (softcap > 0) scores[s] = softcap * std::tanh(scores[s] / softcap);
        if (slopes) scores[s] -= slopes[h] * (position - first - s);
        if (a.mask) {
            const float m = get(a.mask, a.mask_type, b * sm[0] + h * sm[1] + t * sm[2] + (column + s) * sm[3]);
            // Finite instead of -infinity: a query whose keys are all masked gets equal weights.
            scores[s] = a.mask_type == BOOL ? (m != 0 ? scores[s] : -1e30f) : std::max(scores[s] + m, -1e30f);
        }
    }
}

// Copy a query in the order in which dot_keys reads keys of type T.
template <class T> static void copy_query(const void* q, int type, long start, long P, float* y) {
    float* const buffer = scratch<float>(3, P);
    const float* numbers = as_floats(q, type, start, 1, P, buffer);
    std::fill(y, y + padded(P), 0.0f);
    for (long i = 0; i < P; i++) y[place_of<T>(i)] = numbers[i];
}

template <class T> static void copy_query(const void* q, int, long start, long P, bfloat16* y) {
    memcpy(y, (const bfloat16*)q + start, P * sizeof *y);
}

// N of the T G queries of key head k, from number `query` on, over one part of the slots. T is the data type of the cache, and X the
// data type in which queries are multiplied.
template <class T, class X>
static void attend_part(const AttendArguments& a, const Worker& worker, long b, long k, long query, long N, long part) {
    const long G = a.heads / a.key_heads, S = a.places, P = a.features, P2 = a.features2, Q = a.value_features;
    const long ldq = padded(P), ldq2 = padded(P2), ldy = padded(Q);
    const int64_t *sq = a.q_strides, *sq2 = a.q2_strides, *sk = a.keys_strides, *sk2 = a.keys2_strides, *sv = a.values_strides;
    const int64_t *sp = a.positions_strides, *sy = a.y_strides;
    X *const q = scratch<X>(0, N * (ldq + ldq2)), *const q2 = q + N * ldq;
    float *const scores = scratch<float>(1, N * SPAN), *const y = scratch<float>(2, N * ldy + Q + 2), *const record = y + N * ldy;
    Running running[TOGETHER];
    long positions[TOGETHER], low = S, high = 0;
    for (long m = 0; m < N; m++) {
        const long t = (query + m) / G, h = k * G + (query + m) % G;
        const long position = positions[m] = a.positions ? a.positions[b * sp[0] + t * sp[1]] : S - 1;
        if (!worker.is_index(position, a.is_ring ? INT64_MAX : S)) return;
        const long end = std::min(S, position + 1);  // all slots of a ring that is full, else the slots filled so far
        const long start = a.window && !a.is_ring ? std::max(0L, position - a.window + 1) : 0;
        running[m] = Running{start, end, -INFINITY, floats{}};
        low = std::min(low, start), high = std::max(high, end);
        copy_query<T>(a.q, a.q_type, b * sq[0] + h * sq[1] + t * sq[2], P, q + m * ldq);
        if (P2) copy_query<T>(a.q2, a.q_type, b * sq2[0] + h * sq2[1] + t * sq2[2], P2, q2 + m * ldq2);
    }
    std::fill(y, y + N * ldy, 0.0f);
    // Vectors and spans begin at fixed slots, and slots that a query does not see have weight 0, so that its sums have the same order
    // whatever other queries are computed with it.
    const long begin = std::max(low / W * W, part * a.part), stop = std::min(high, (part + 1) * a.part);
    for (long first = begin, after; first < stop; first = after) {
        after = std::min(first / SPAN * SPAN + SPAN, stop);
        const long n = after - first;
        const auto places = [&](const void* buffer, const int64_t* of, long width) {
            const T* const head = (const T*)buffer + b * of[0] + k * of[1];
            const long further =
                k + 1 < a.key_heads ? of[1] : of[0] - k * of[1];  // to the next head, or the first head of the next sequence
            const bool is_last = k + 1 == a.key_heads && b + 1 == a.batch;
            return Places<T>{head + first * of[2], is_last ? nullptr : head + further + begin * of[2], of[2], width, n, high - first};
        };
        alignas(64) float factors[SPAN] = {};
        const auto factors_of = [&](const float* scales, const int64_t* of) -> const float* {
            if constexpr (std::is_same_v<T, int8_t>) {
                for (long s = 0; s < n; s++) factors[s] = scales[b * of[0] + k * of[1] + (first + s) * of[2]];
                return factors;
            }
            return nullptr;
        };
        std::fill(scores, scores + N * SPAN, 0.0f);
        add_scores(places(a.keys, sk, P), q, ldq, N, a.scale, factors_of(a.keys_scales, a.keys_scales_strides), scores);
        if (P2) add_scores(places(a.keys2, sk2, P2), q2, ldq2, N, a.scale, factors_of(a.keys2_scales, a.keys2_scales_strides), scores);
        const float* const of_values = factors_of(a.values_scales, a.values_scales_strides);
        for (long m = 0; m < N; m++) {
            if (a.softcap > 0 || a.slopes || a.mask)
                adjust_scores(a, b, k * G + (query + m) % G, (query + m) / G, positions[m], first, n, scores + m * SPAN);
            running[m].weigh(scores + m * SPAN, first, n, y + m * ldy, ldy);
            for (long s = 0; of_values && s < n; s++) scores[m * SPAN + s] *= of_values[s];
        }
        add_values(places(a.values, sv, Q), scores, N, y);
    }
    for (long m = 0; m < N; m++) {
        const long t = (query + m) / G, h = k * G + (query + m) % G;
        for (long i = 0; i < Q; i++) record[i] = y[m * ldy + place_of<T>(i)];  // back to the order of the features
        record[Q] = running[m].largest, record[Q + 1] = sum(running[m].total);
        if (S > a.part) {
            const long parts = (S + a.part - 1) / a.part;
            memcpy((float*)a.y + (((b * a.heads + h) * a.queries + t) * parts + part) * (Q + 2), record, (Q + 2) * sizeof(float));
        } else {
            join(record, 1, 0, a.sinks ? a.sinks + h : nullptr, Q, y + m * ldy);
            put_all(a.y, a.y_type, b * sy[0] + h * sy[1] + t * sy[2], 1, Q, y + m * ldy);
        }
    }
}

static void attend(const AttendArguments& a, const Worker& worker) {
    const long B = a.batch, K = a.key_heads, T = a.queries, S = a.places, R = T * (a.heads / K), parts = (S + a.part - 1) / a.part;
    // As few groups of queries as give each thread two: of a short cache with a single key head there is one part, which all would wait
    // for. How queries are grouped changes no bit.
    const long last = a.positions ? std::clamp<long>(a.positions[(T - 1) * a.positions_strides[1]], 0, S - 1) : S - 1;
    const long items = B * K * (last / a.part + 1),
               groups = std::max((R + TOGETHER - 1) / TOGETHER, std::min(R, (2 * worker.threads + items - 1) / items));
    share(worker, B * K * groups * parts, 1, [&](long item, long) {
        const long part = item % parts, group = item / parts % groups, k = item / parts / groups % K, b = item / parts / groups / K;
        const long query = R * group / groups, N = R * (group + 1) / groups - query;
#if defined(HAS_PAIRS)
        if (a.q_type == BFLOAT16 && a.cache_type == BFLOAT16) return attend_part<bfloat16, bfloat16>(a, worker, b, k, query, N, part);
#endif
        if (a.cache_type == FLOAT32) attend_part<float, float>(a, worker, b, k, query, N, part);
        else if (a.cache_type == INT8) attend_part<int8_t, float>(a, worker, b, k, query, N, part);
        else if (a.cache_type == FLOAT16) attend_part<float16, float>(a, worker, b, k, query, N, part);
        else attend_part<bfloat16, float>(a, worker, b, k, query, N, part);
    });
}

// The results of queries whose slots were summed in several parts.
struct JoinPartsArguments {
    void* y;  // B H T Q
    const float* parts;  // B H T parts (Q + 2)
    Optional<float> sinks;  // H
    int64_t batch, heads, queries, count, features;  // B H T parts Q
    int64_t y_strides[3];  // b h t
    Float y_type;
    FIELDS(y, parts, sinks, batch, heads, queries, count, features, y_strides, y_type)
};

static void join_parts(const JoinPartsArguments& a, const Worker& worker) {
    const long H = a.heads, T = a.queries, Q = a.features, stride = Q + 2;
    const int64_t* sy = a.y_strides;
    share(worker, a.batch * H * T, 1, [&](long item, long) {
        const long t = item % T, h = item / T % H, b = item / T / H;
        float* y = scratch<float>(0, Q);
        join(a.parts + item * a.count * stride, a.count, stride, a.sinks ? a.sinks + h : nullptr, Q, y);
        put_all(a.y, a.y_type, b * sy[0] + h * sy[1] + t * sy[2], 1, Q, y);
    });
}

// Write new keys or values into their slots.
struct AppendArguments {
    void* buffer;  // B K S P
    const void* added;  // B K T P
    const int64_t* positions;  // B T; the slot is the position modulo S
    int64_t batch, heads, added_places, features, places;  // B K T P S
    int64_t added_strides[3], buffer_strides[3], positions_strides[2];  // b k t, b k s, b t
    Float added_type;
    Cached buffer_type;
    FIELDS(buffer, added, positions, batch, heads, added_places, features, places, added_strides, buffer_strides, positions_strides,
           added_type, buffer_type)
};

static inline bool is_complete(const AppendArguments& a) { return a.places > 0; }

static void append(const AppendArguments& a, const Worker& worker) {
    const long B = a.batch, K = a.heads, T = a.added_places, P = a.features, S = a.places;
    const int64_t *sn = a.added_strides, *sb = a.buffer_strides, *sp = a.positions_strides;
    share(worker, B * T, 1, [&](long first, long last) {
        for (long item = first; item < last; item++) {
            const long b = item / T, t = item % T, position = a.positions[b * sp[0] + t * sp[1]], place = position % S;
            if (!worker.is_index(position, INT64_MAX)) return;
            float* numbers = scratch<float>(0, P);
            for (long k = 0; k < K; k++)
                put_all(a.buffer, a.buffer_type, b * sb[0] + k * sb[1] + place * sb[2], 1, P,
                        as_floats(a.added, a.added_type, b * sn[0] + k * sn[1] + t * sn[2], 1, P, numbers));
        }
    });
}

// Write new keys or values into their slots as int8, with one factor for each slot and head.
struct AppendScaledArguments {
    int8_t* buffer;  // B K S P
    float* scales;  // B K S
    const void* added;  // B K T P
    const int64_t* positions;  // B T; the slot is the position modulo S
    int64_t batch, heads, added_places, features, places;  // B K T P S
    int64_t added_strides[3], buffer_strides[3], scales_strides[3], positions_strides[2];  // b k t, b k s, b k s, b t
    Float added_type;
    FIELDS(buffer, scales, added, positions, batch, heads, added_places, features, places, added_strides, buffer_strides, scales_strides,
           positions_strides, added_type)
};

static inline bool is_complete(const AppendScaledArguments& a) { return a.places > 0; }

static void append_scaled(const AppendScaledArguments& a, const Worker& worker) {
    const long K = a.heads, T = a.added_places, P = a.features;
    const int64_t *sn = a.added_strides, *sb = a.buffer_strides, *ss = a.scales_strides, *sp = a.positions_strides;
    share(worker, a.batch * T * K, 1, [&](long item, long) {
        const long k = item % K, t = item / K % T, b = item / K / T, position = a.positions[b * sp[0] + t * sp[1]];
        if (!worker.is_index(position, INT64_MAX)) return;
        const float* x = as_floats(a.added, a.added_type, b * sn[0] + k * sn[1] + t * sn[2], 1, P, scratch<float>(0, P));
        float largest = 0, scale;
        bool are_numbers = true;
        for (long i = 0; i < P; i++) largest = std::max(largest, std::fabs(x[i])), are_numbers &= x[i] == x[i];
        const long place = position % a.places;
        a.scales[b * ss[0] + k * ss[1] + place * ss[2]] = scale = are_numbers ? largest / 127 : NAN;
        int8_t* const y = a.buffer + b * sb[0] + k * sb[1] + place * sb[2];
        for (long i = 0; i < P; i++)  // not finite: the factor alone keeps it visible
            y[i] = scale > 0 && scale < INFINITY ? (int8_t)std::clamp(std::nearbyint(x[i] / scale), -127.0f, 127.0f) : 0;
    });
}

// Copy slots starts[b] to ends[b] - 1 of keys and values from sequence sources[b] to sequence b. A sequence that others copy from must be
// its own source: threads copy at the same time, so that nothing may be written to it.
struct CopyPlacesArguments {
    char *keys, *values;
    const int64_t *sources, *starts, *ends;  // (rows)
    int64_t rows, heads, places;
    int64_t keys_strides[3], values_strides[3];  // in bytes: of a sequence, a head, a slot
    FIELDS(keys, values, sources, starts, ends, rows, heads, places, keys_strides, values_strides)
};

static void copy_places(const CopyPlacesArguments& a, const Worker& worker) {
    const int64_t *sources = a.sources, *starts = a.starts, *ends = a.ends;
    share(worker, a.rows, 1, [&](long first, long last) {
        for (long row = first; row < last; row++) {
            if (sources[row] == row || starts[row] >= ends[row]) continue;
            const bool are_places = worker.is_index(starts[row], a.places) && worker.is_index(ends[row] - 1, a.places);
            if (!are_places || !worker.is_index(sources[row], a.rows)) return;
            for (int buffer = 0; buffer < 2; buffer++) {
                const int64_t* bytes = buffer ? a.values_strides : a.keys_strides;
                char* const places = (buffer ? a.values : a.keys) + starts[row] * bytes[2];
                for (long k = 0; k < a.heads; k++)
                    memcpy(places + row * bytes[0] + k * bytes[1], places + sources[row] * bytes[0] + k * bytes[1],
                           (ends[row] - starts[row]) * bytes[2]);
            }
        }
    });
}
