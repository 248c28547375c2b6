// Attention over a cache, and the cache's new places.
#pragma once
#include "product.h"

// So many numbers of n rows are fetched into the second cache.
template <class T> static inline void fetch_rows(const T* p, long stride, long n, long width) {
    for (long row = 0; row < n; row++)
        for (long i = 0; i < width; i += 64 / (long)sizeof(T)) __builtin_prefetch(p + row * stride + i, 0, 2);
}

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

// scores[s] += scale q k_s of n keys; those `ahead` of them are fetched meanwhile, unless that is 0.
template <class T, class X>
static void add_scores(const T* keys, long stride, long ahead, const X* q, long P, long n, float scale, float* scores) {
    long s = 0;
    for (; s + W <= n; s += W) {
        if (ahead) fetch_rows(keys + s * stride + ahead, stride, W, P);
        store(scores + s, load(scores + s) + scale * dot_keys(keys + s * stride, stride, q, P));
    }
    for (; s < n; s++) scores[s] += scale * dot(keys + s * stride, q, P);
}

// y = the first CHUNK vectors of lanes of the sum of weights[s] v_s; what is `ahead` is fetched meanwhile, unless that is 0.
template <int CHUNK> static inline void mix(const float* values, long stride, long ahead, const float* weights, long n, float* y) {
    floats sums[CHUNK] = {};
    for (long s = 0; s < n; s++) {
        if (ahead) fetch_rows(values + s * stride + ahead, 0, 1, CHUNK * W);
        for (int i = 0; i < CHUNK; i++) sums[i] = multiply_add(splat(weights[s]), load(values + s * stride + i * W), sums[i]);
    }
    memcpy(y, sums, sizeof sums);
}

// The same of bfloat16: even and odd numbers apart, each of which is half of a lane's 32 bits.
template <int CHUNK> static inline void mix(const bfloat16* values, long stride, long ahead, const float* weights, long n, float* y) {
    floats sums[2][CHUNK] = {};  // of every other place: no sum waits for the one before
    const auto add = [&](long s, floats (&totals)[CHUNK]) {
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
        for (int lane = 0; lane < W; lane++) y[(i - i % 2) * W + 2 * lane + i % 2] = total[lane];
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
        for (long s = 0; s < n; s++) total += weights[s] * (lanes == W ? load(values + s * stride + c) : load_part(values + s * stride + c, lanes));
        memcpy(y + c, &total, lanes * sizeof(float));
    }
}

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
    const float inverse = total > 0 ? 1 / total : 0;
    for (s = 0; s < n; s++) row[s] *= inverse;
}

// softmax(scale q k^T) v over the positions that a query may see, of a cache whose place s holds position s (or, of a ring,
// s modulo its size). Scores may be sums of two products, of keys in two parts.
// p: q keys values positions y slopes sinks mask q2 keys2; n: B H K T S P Q P2, then strides: 8 (b h t) of q, 11 (b h t) of
// q2, 14 (b k s) of keys, 17 of keys2, 20 of values, 23 (b t) of positions, 25 (b h t) of y, 28 (b h t s) of the mask; 32 types of
// q cache y mask, 36 window, ring, whether the mask is that of the last place alone, by distance. f: scale softcap.
static void attend(const Entry& e, const Worker& worker) {
    const long B = e.n[0], H = e.n[1], K = e.n[2], T = e.n[3], S = e.n[4], P = e.n[5], Q = e.n[6], P2 = e.n[7], G = H / K;
    const int64_t *sq = e.n + 8, *sq2 = e.n + 11, *sk = e.n + 14, *sk2 = e.n + 17, *sv = e.n + 20, *sp = e.n + 23, *sy = e.n + 25, *sm = e.n + 28;
    const int q_type = e.n[32], cache_type = e.n[33], y_type = e.n[34], mask_type = e.n[35];
    const long window = e.n[36], is_ring = e.n[37];
    const float scale = e.f[0], softcap = e.f[1], *slopes = (const float*)e.p[5], *sinks = (const float*)e.p[6];
    share(worker, B * T * H, 1, [&](long first, long last) {
        float *q = scratch<float>(0, std::max(P, P2)), *scores = scratch<float>(1, S), *y = scratch<float>(2, Q);
        for (long item = first; item < last; item++) {  // the queries of one head of keys after each other
            const long b = item / (T * H), k = item / (T * G) % K, t = item / G % T, h = k * G + item % G;
            const long position = e.p[3] ? ((const int64_t*)e.p[3])[b * sp[0] + t * sp[1]] : S - 1;
            const long end = std::min(S, position + 1);  // a ring is full of the newest
            const long start = window && !is_ring ? std::max(0L, position - window + 1) : 0, n = std::max(0L, end - start);
            const long mask_start = e.n[38] ? start + S - 1 - position : start;
            const long values = b * sv[0] + k * sv[1] + start * sv[2];
            std::fill(scores, scores + n, 0.0f);
            // the next head's places, or the next row's, are fetched with the first query of these; or those behind
            const auto ahead = [&](const int64_t* strides) -> long {
                if (item % (T * G)) return 0;
                return k + 1 < K ? strides[1] : b + 1 < B ? strides[0] - k * strides[1] : 2 * W * strides[2];
            };
            const auto add_products = [&](const void* queries, long query, const void* keys, long key, const int64_t* strides, long size) {
#if defined(HAS_PAIRS)
                if (q_type == BFLOAT16 && cache_type == BFLOAT16)
                    return add_scores((const bfloat16*)keys + key, strides[2], ahead(strides), (const bfloat16*)queries + query, size, n, scale, scores);
#endif
                const float* vector = as_floats(queries, q_type, query, 1, size, q);
                if (cache_type == FLOAT32) add_scores((const float*)keys + key, strides[2], ahead(strides), vector, size, n, scale, scores);
                else add_scores((const bfloat16*)keys + key, strides[2], ahead(strides), vector, size, n, scale, scores);
            };
            add_products(e.p[0], b * sq[0] + h * sq[1] + t * sq[2], e.p[1], b * sk[0] + k * sk[1] + start * sk[2], sk, P);
            if (P2) add_products(e.p[8], b * sq2[0] + h * sq2[1] + t * sq2[2], e.p[9], b * sk2[0] + k * sk2[1] + start * sk2[2], sk2, P2);
            for (long s = 0; s < n && (softcap > 0 || slopes || e.p[7]); s++) {
                if (softcap > 0) scores[s] = softcap * std::tanh(scores[s] / softcap);
                if (slopes) scores[s] -= slopes[h] * (position - start - s);
                if (e.p[7]) {
                    float m = get(e.p[7], mask_type, b * sm[0] + h * sm[1] + t * sm[2] + (mask_start + s) * sm[3]);
                    scores[s] = mask_type == BOOL ? (m != 0 ? scores[s] : -1e30f) : std::max(scores[s] + m, -1e30f);
                }
            }
            softmax(scores, n, sinks ? sinks + h : nullptr);
            if (cache_type == FLOAT32) mix_values((const float*)e.p[2] + values, sv[2], ahead(sv), scores, Q, n, y);
            else mix_values((const bfloat16*)e.p[2] + values, sv[2], ahead(sv), scores, Q, n, y);
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
            float* numbers = scratch<float>(0, P);
            for (long k = 0; k < K; k++)
                put_all(e.p[1], type, b * sb[0] + k * sb[1] + place * sb[2], 1, P,
                        as_floats(e.p[0], new_type, b * sn[0] + k * sn[1] + t * sn[2], 1, P, numbers));
        }
    });
}

// Places starts..ends of other rows of keys and of values, put in place of each row's own; into a source nothing is written.
// p: keys, values, sources, starts, ends; n: rows, heads, then of keys and of values the bytes of a row, a head, a place.
static void copy_places(const Entry& e, const Worker& worker) {
    const int64_t *sources = (const int64_t*)e.p[2], *starts = (const int64_t*)e.p[3], *ends = (const int64_t*)e.p[4];
    share(worker, e.n[0], 1, [&](long first, long last) {
        for (long row = first; row < last; row++) {
            if (sources[row] == row || starts[row] >= ends[row]) continue;
            for (int buffer = 0; buffer < 2; buffer++) {
                const int64_t* bytes = e.n + 2 + 3 * buffer;
                char* const places = (char*)e.p[buffer] + starts[row] * bytes[2];
                for (long k = 0; k < e.n[1]; k++)
                    memcpy(places + row * bytes[0] + k * bytes[1], places + sources[row] * bytes[0] + k * bytes[1], (ends[row] - starts[row]) * bytes[2]);
            }
        }
    });
}
