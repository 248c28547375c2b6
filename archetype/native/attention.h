// Attention over a cache, and writes to the cache.
#pragma once
#include "product.h"

// Prefetch `width` numbers of n rows into L2.
template <class T> static inline void fetch_rows(const T* p, long stride, long n, long width) {
    for (long row = 0; row < n; row++)
        for (long i = 0; i < width; i += 64 / (long)sizeof(T)) __builtin_prefetch(p + row * stride + i, 0, 2);
}

// The products of one query with W consecutive keys, a lane of the result for each key.
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

// scores[s] += scale q k_s for n keys. Prefetches what is `ahead` numbers behind each key, unless that is 0.
template <class T, class X>
static void add_scores(const T* keys, long stride, long ahead, const X* q, long P, long n, float scale, float* scores) {
    long s = 0;
    for (; s + W <= n; s += W) {
        if (ahead) fetch_rows(keys + s * stride + ahead, stride, W, P);
        store(scores + s, load(scores + s) + scale * dot_keys(keys + s * stride, stride, q, P));
    }
    for (; s < n; s++) scores[s] += scale * dot(keys + s * stride, q, P);
}

// y[0 .. CHUNK W - 1] = sum over s of weights[s] v_s. Prefetches what is `ahead` numbers behind each value, unless that is 0.
template <int CHUNK> static inline void mix(const float* values, long stride, long ahead, const float* weights, long n, float* y) {
    floats sums[CHUNK] = {};
    for (long s = 0; s < n; s++) {
        if (ahead) fetch_rows(values + s * stride + ahead, 0, 1, CHUNK * W);
        for (int i = 0; i < CHUNK; i++) sums[i] = multiply_add(splat(weights[s]), load(values + s * stride + i * W), sums[i]);
    }
    memcpy(y, sums, sizeof sums);
}

// The same for bfloat16. A 32-bit lane holds an even and an odd number, which are summed separately: a shift and a mask make them float32.
template <int CHUNK> static inline void mix(const bfloat16* values, long stride, long ahead, const float* weights, long n, float* y) {
    floats sums[2][CHUNK] = {};  // of even and of odd slots, so that an addition need not wait for the one before
    const auto add = [&](long s, floats(&totals)[CHUNK]) {
        if (ahead) fetch_rows(values + s * stride + ahead, 0, 1, CHUNK * W);
        for (int i = 0; i < CHUNK; i += 2) {
            words pairs;
            memcpy(&pairs, values + s * stride + i * W, sizeof pairs);
            totals[i] = multiply_add(splat(weights[s]), (floats)(pairs << 16), totals[i]);
            totals[i + 1] = multiply_add(splat(weights[s]), (floats)(pairs & 0xffff0000), totals[i + 1]);
        }
    };
    for (long s = 0; s < n; s++) s % 2 ? add(s, sums[1]) : add(s, sums[0]);
    for (int i = 0; i < CHUNK; i++) {
        const floats total = sums[0][i] + sums[1][i];
        for (int lane = 0; lane < W; lane++) y[(i - i % 2) * W + 2 * lane + i % 2] = total[lane];  // even and odd features interleaved
    }
}

// y = sum of weights[s] v_s.
template <class T> static void mix_values(const T* values, long stride, long ahead, const float* weights, long Q, long n, float* y) {
    long c = 0;
    for (; c + 8 * W <= Q; c += 8 * W) mix<8>(values + c, stride, ahead, weights, n, y + c);
    for (; c + 4 * W <= Q; c += 4 * W) mix<4>(values + c, stride, ahead, weights, n, y + c);
    for (; c + 2 * W <= Q; c += 2 * W) mix<2>(values + c, stride, ahead, weights, n, y + c);
    for (; c < Q; c += W) {
        const long lanes = std::min<long>(W, Q - c);
        floats total = {};
        for (long s = 0; s < n; s++)
            total += weights[s] * (lanes == W ? load(values + s * stride + c) : load_part(values + s * stride + c, lanes));
        memcpy(y + c, &total, lanes * sizeof(float));
    }
}

// Softmax of n scores in place. A sink takes part in the normalization, but is not a result.
static void softmax(float* row, long n, const float* sink) {
    float largest = sink ? *sink : -INFINITY;
    long s = 0;
    if (n >= W) {
        floats lanes = load(row);
        for (s = W; s + W <= n; s += W) lanes = choose(load(row + s) > lanes, load(row + s), lanes);
        for (int i = 0; i < W; i++) largest = std::max(largest, lanes[i]);
    }
    for (; s < n; s++) largest = std::max(largest, row[s]);
    float total = sink ? std::exp(*sink - largest) : 0;
    floats totals = {};
    for (s = 0; s + W <= n; s += W) {
        floats weights = exp(load(row + s) - largest);
        store(row + s, weights);
        totals += weights;
    }
    for (; s < n; s++) total += row[s] = std::exp(row[s] - largest);
    total += sum(totals);
    const float inverse = total > 0 ? 1 / total : 0;  // 0 if there are no keys
    for (s = 0; s < n; s++) row[s] *= inverse;
}

// softmax(scale q k^T) v over the slots of a cache that each query sees. Slot s of a full cache holds position s; slot s of a ring holds
// the newest position p with p mod S = s. With q2 and keys2, scores are scale (q k^T + q2 keys2^T), as in latent attention.
struct AttendArguments {
    void* y;                                                       // B H T Q
    const void* q;                                                 // B H T P
    const void* keys;                                              // B K S P
    const void* values;                                            // B K S Q
    Optional<int64_t> positions;                                   // of the queries, B T; null: each sees all slots
    Optional<float> slopes;                                        // H, of ALiBi
    Optional<float> sinks;                                         // H, logits that take a share of the weights
    Optional<void> mask;                                           // B H T S: whether a pair is allowed, or a number added to its score
    Optional<void> q2, keys2;                                      // B H T P2, B K S P2
    int64_t batch, heads, key_heads, queries;                      // B H K T
    int64_t places, features, value_features, features2;           // S P Q P2
    int64_t q_strides[3], q2_strides[3];                           // b h t
    int64_t keys_strides[3], keys2_strides[3], values_strides[3];  // b k s
    int64_t positions_strides[2], y_strides[3], mask_strides[4];   // b t, b h t, b h t s
    int64_t window;                                                // positions that a query sees, itself included; 0: all
    double scale;
    double softcap;  // c of c tanh(score / c); 0: none
    Float q_type, cache_type, y_type;
    Type mask_type;
    bool is_ring;         // the buffers are rings, whose slots are all within the window
    bool is_by_distance;  // the mask is that of a query in the last slot, and depends only on the distance
    FIELDS(y, q, keys, values, positions, slopes, sinks, mask, q2, keys2, batch, heads, key_heads, queries, places, features,
           value_features, features2, q_strides, q2_strides, keys_strides, keys2_strides, values_strides, positions_strides, y_strides,
           mask_strides, window, scale, softcap, q_type, cache_type, y_type, mask_type, is_ring, is_by_distance)
};

static inline bool is_complete(const AttendArguments& a) {
    return (a.features2 == 0 || (a.q2 && a.keys2)) && a.key_heads && a.heads % a.key_heads == 0;
}

static void attend(const AttendArguments& a, const Worker& worker) {
    const long B = a.batch, H = a.heads, K = a.key_heads, T = a.queries, S = a.places, P = a.features, Q = a.value_features,
               P2 = a.features2;
    const long G = H / K, window = a.window;
    const int64_t *sq = a.q_strides, *sq2 = a.q2_strides, *sk = a.keys_strides, *sk2 = a.keys2_strides, *sv = a.values_strides;
    const int64_t *sp = a.positions_strides, *sy = a.y_strides, *sm = a.mask_strides;
    const Type q_type = a.q_type, cache_type = a.cache_type, mask_type = a.mask_type;
    const float scale = a.scale, softcap = a.softcap, *slopes = a.slopes, *sinks = a.sinks;
    share(worker, B * T * H, 1, [&](long first, long last) {
        float *q = scratch<float>(0, std::max(P, P2)), *scores = scratch<float>(1, S), *y = scratch<float>(2, Q);
        // All queries of one key head follow each other, so that its keys are read from memory once.
        for (long item = first; item < last; item++) {
            const long b = item / (T * H), k = item / (T * G) % K, t = item / G % T, h = k * G + item % G;
            const long position = a.positions ? a.positions[b * sp[0] + t * sp[1]] : S - 1;
            if (!worker.is_index(position, a.is_ring ? INT64_MAX : S)) return;
            // Slots from `start` to `end` are visible. Of a ring, they are the slots filled so far: all of them once it is full.
            const long end = std::min(S, position + 1);
            const long start = window && !a.is_ring ? std::max(0L, position - window + 1) : 0, n = std::max(0L, end - start);
            // Shifted by the distance of this query from the last slot, for which the mask was made.
            const long mask_start = a.is_by_distance ? start + S - 1 - position : start;
            const long values = b * sv[0] + k * sv[1] + start * sv[2];
            std::fill(scores, scores + n, 0.0f);
            // The first query of a key head prefetches the next head, the next sequence if this is the last head, or else what follows.
            const auto ahead = [&](const int64_t* strides) -> long {
                if (item % (T * G)) return 0;
                return k + 1 < K ? strides[1] : b + 1 < B ? strides[0] - k * strides[1] : 2 * W * strides[2];
            };
            const auto add_products = [&](const void* queries, long query, const void* keys, long key, const int64_t* strides, long size) {
#if defined(HAS_PAIRS)
                if (q_type == BFLOAT16 && cache_type == BFLOAT16)
                    return add_scores((const bfloat16*)keys + key, strides[2], ahead(strides), (const bfloat16*)queries + query, size, n,
                                      scale, scores);
#endif
                const float* vector = as_floats(queries, q_type, query, 1, size, q);
                if (cache_type == FLOAT32) add_scores((const float*)keys + key, strides[2], ahead(strides), vector, size, n, scale, scores);
                else add_scores((const bfloat16*)keys + key, strides[2], ahead(strides), vector, size, n, scale, scores);
            };
            add_products(a.q, b * sq[0] + h * sq[1] + t * sq[2], a.keys, b * sk[0] + k * sk[1] + start * sk[2], sk, P);
            if (P2) add_products(a.q2, b * sq2[0] + h * sq2[1] + t * sq2[2], a.keys2, b * sk2[0] + k * sk2[1] + start * sk2[2], sk2, P2);
            for (long s = 0; s < n && (softcap > 0 || slopes || a.mask); s++) {
                if (softcap > 0) scores[s] = softcap * std::tanh(scores[s] / softcap);
                if (slopes) scores[s] -= slopes[h] * (position - start - s);
                if (a.mask) {
                    float m = get(a.mask, mask_type, b * sm[0] + h * sm[1] + t * sm[2] + (mask_start + s) * sm[3]);
                    // Finite instead of -infinity: a query whose keys are all masked gets equal weights instead of NaN.
                    scores[s] = mask_type == BOOL ? (m != 0 ? scores[s] : -1e30f) : std::max(scores[s] + m, -1e30f);
                }
            }
            softmax(scores, n, sinks ? sinks + h : nullptr);
            if (cache_type == FLOAT32) mix_values((const float*)a.values + values, sv[2], ahead(sv), scores, Q, n, y);
            else mix_values((const bfloat16*)a.values + values, sv[2], ahead(sv), scores, Q, n, y);
            put_all(a.y, a.y_type, b * sy[0] + h * sy[1] + t * sy[2], 1, Q, y);
        }
    });
}

// Write new keys or values into their slots.
struct AppendArguments {
    void* buffer;  // B K S P
    const void* added;  // B K T P
    const int64_t* positions;  // B T; the slot is the position modulo S
    int64_t batch, heads, added_places, features, places;  // B K T P S
    int64_t added_strides[3], buffer_strides[3], positions_strides[2];  // b k t, b k s, b t
    Float added_type, buffer_type;
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
