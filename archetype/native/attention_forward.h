// softmax(scale q k^T) v in bfloat16 by vectors of pairs (Dao 2022, algorithm 1): 32 queries with 128 keys at a time, whose weights
// are made smaller again where a larger score comes. Where there are matrix tiles, torch's own kernel uses them.
#pragma once
#include "attention_blocks.h"

#if defined(HAS_ATTENTION_BLOCKS) && !defined(HAS_TILES)
#define HAS_ATTENTION_FORWARD 1

// One head's keys and values as second operands of products; behind the last place are zeros.
struct KeysAndValues {
    long places, P;
    std::vector<bfloat16> rows;
    std::vector<uint32_t> keys_by_feature, values_by_place;

    void copy(const bfloat16* keys, long key_stride, const bfloat16* values, long value_stride, long new_places, long new_P) {
        places = new_places, P = new_P;
        const long S = (places + PAIRED - 1) / PAIRED * PAIRED;
        rows.assign(S * P, 0), keys_by_feature.resize(S * P / 2), values_by_place.resize(S * P / 2);
        for (long s = 0; s < places; s++) memcpy(rows.data() + s * P, keys + s * key_stride, P * sizeof(bfloat16));
        pair_features(rows, S, P, keys_by_feature);
        for (long s = 0; s < places; s++) memcpy(rows.data() + s * P, values + s * value_stride, P * sizeof(bfloat16));
        pair_places(rows, S, P, values_by_place);
    }
};

constexpr int STRIP = 4;  // blocks of keys

// The queries of one block, and what has been summed for them.
struct QueryBlock {
    alignas(64) float scores[STRIP][4][SIDE * SIDE];
    alignas(64) bfloat16 weights[STRIP][PAIRED * PAIRED];
    floats sums[PAIRED];    // of weights, lane by lane
    float largest[PAIRED];  // scores
    std::vector<bfloat16> queries;  // (PAIRED P)
    std::vector<float> y;           // (PAIRED P)
};

// Of one query, the weights of the n blocks of keys from `start` on, of which it sees those up to `last`.
static inline void weigh_keys(QueryBlock& block, int query, long start, long n, long last, float scale, long P) {
    const ints lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    floats scores[2 * STRIP], top = splat(-INFINITY);
    for (long i = 0; i < 2 * n; i++) {
        scores[i] = load(block.scores[i / 2][2 * (query / SIDE) + i % 2] + query % SIDE * SIDE) * scale;
        const long first = start + i * SIDE;
        if (first + SIDE - 1 > last) scores[i] = choose(lane <= (int)std::min<long>(last - first, SIDE), scores[i], splat(-INFINITY));
        top = choose(scores[i] > top, scores[i], top);
    }
    const float largest = std::max(block.largest[query], _mm512_reduce_max_ps((__m512)top));
    if (largest > block.largest[query]) {
        const floats factor = exp(splat(block.largest[query] - largest));
        for (long p = 0; p < P; p += W) store(block.y.data() + query * P + p, load(block.y.data() + query * P + p) * factor);
        block.sums[query] *= factor, block.largest[query] = largest;
    }
    for (long i = 0; i < n; i++) {
        const floats left = exp(scores[2 * i] - largest), right = exp(scores[2 * i + 1] - largest);
        block.sums[query] += left + right;
        store_both(left, right, block.weights[i] + query * PAIRED);
    }
}

// Queries that stand from place `first` of the keys on.
static void attend_block(QueryBlock& block, const KeysAndValues& head, long first, float scale, bool is_causal) {
    const long P = head.P, end = is_causal ? std::min(first + PAIRED, head.places) : head.places;
    std::fill(block.y.begin(), block.y.end(), 0.0f);
    std::fill(block.largest, block.largest + PAIRED, -INFINITY);
    std::fill(block.sums, block.sums + PAIRED, floats{});
    for (long start = 0; start < end; start += STRIP * PAIRED) {
        const long n = std::min<long>(STRIP, (end - start + PAIRED - 1) / PAIRED);
        for (long i = 0; i < n; i++)
            multiply_block(block.queries.data(), head.keys_by_feature.data() + (start + i * PAIRED) * P / 2, P, block.scores[i]);
        for (int query = 0; query < PAIRED; query++)
            weigh_keys(block, query, start, n, is_causal ? std::min(first + query, end - 1) : end - 1, scale, P);
        add_products(block.weights[0], head.values_by_place.data() + start / 2 * P, n, P, block.y.data());
    }
}

// p: y q k v, logarithms of the sums of weights (B H T, float32); n: B H K T S P, whether causal (queries then are the last T of S
// places), then strides (b h t): 7 of y, 10 of q, 13 of k, 16 of v. f: scale.
static void attention_forward(const Entry& e, const Worker& worker) {
    const long B = e.n[0], H = e.n[1], K = e.n[2], T = e.n[3], S = e.n[4], P = e.n[5], G = H / K;
    const int64_t *sy = e.n + 7, *sq = e.n + 10, *sk = e.n + 13, *sv = e.n + 16;
    const bool is_causal = e.n[6];
    const long parts = std::max<long>(1, 2 * worker.threads / (B * K));  // of the queries of one head of keys
    static thread_local KeysAndValues head;
    static thread_local QueryBlock block;
    block.queries.assign(PAIRED * P, 0), block.y.resize(PAIRED * P);
    share(worker, B * K * parts, 1, [&](long item, long) {
        const long b = item / parts / K, group = item / parts % K;
        head.copy((const bfloat16*)e.p[2] + b * sk[0] + group * sk[1], sk[2], (const bfloat16*)e.p[3] + b * sv[0] + group * sv[1], sv[2], S, P);
        for (long h = group * G; h < (group + 1) * G; h++)
            for (long first = item % parts * PAIRED; first < T; first += parts * PAIRED) {
                const long n = std::min<long>(PAIRED, T - first);
                const bfloat16* q = (const bfloat16*)e.p[1] + b * sq[0] + h * sq[1] + first * sq[2];
                for (long t = 0; t < n; t++) memcpy(block.queries.data() + t * P, q + t * sq[2], P * sizeof(bfloat16));
                attend_block(block, head, S - T + first, (float)e.f[0], is_causal);
                for (long t = 0; t < n; t++) {
                    const float total = sum(block.sums[t]);
                    bfloat16* y = (bfloat16*)e.p[0] + b * sy[0] + h * sy[1] + (first + t) * sy[2];
                    for (long p = 0; p < P; p += W) store(y + p, load(block.y.data() + t * P + p) / total);
                    ((float*)e.p[4])[(b * H + h) * T + first + t] = block.largest[t] + std::log(total);
                }
            }
    });
}
#else
static void attention_forward(const Entry&, const Worker&) {}
#endif
