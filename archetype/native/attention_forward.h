// softmax(scale q k^T) v in bfloat16 by vectors of pairs (FlashAttention, Dao 2022, algorithm 1): 32 queries times 128 keys at a time.
// Sums are relative to the largest score so far, and are scaled down when a larger one appears. On processors with matrix tiles, torch's
// kernel, which uses them, computes attention instead.
#pragma once
#include "attention_blocks.h"

struct AttentionForwardArguments {
    bfloat16* y;                                                     // B H T P
    const bfloat16 *q, *k, *v;                                       // B H T P, B K S P, B K S P
    float* log_sums;                                                 // log-sum-exp of the scores, B H T
    int64_t batch, heads, key_heads, queries, places, features;      // B H K T S P
    int64_t y_strides[3], q_strides[3], k_strides[3], v_strides[3];  // b h t
    double scale;
    bool is_causal;  // queries are the last T of S positions
    FIELDS(y, q, k, v, log_sums, batch, heads, key_heads, queries, places, features, y_strides, q_strides, k_strides, v_strides, scale,
           is_causal)
};

#if defined(HAS_ATTENTION_BLOCKS) && !defined(HAS_TILES)
#define HAS_ATTENTION_FORWARD 1

// Keys and values of one head, packed as second operands of products, with zeros after the last position.
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

constexpr int STRIP = 4;  // blocks of keys at a time

// The queries of one block, and their sums so far, relative to the largest score so far.
struct QueryBlock {
    alignas(64) float scores[STRIP][4][SIDE * SIDE];
    alignas(64) bfloat16 weights[STRIP][PAIRED * PAIRED];
    floats sums[PAIRED];    // of weights, lane by lane
    float largest[PAIRED];  // score so far
    std::vector<bfloat16> queries;  // (PAIRED P)
    std::vector<float> y;           // (PAIRED P)
};

// Compute the weights of one query for n blocks of keys from `start` on, of which it sees those up to position `last`.
static inline void weigh_keys(QueryBlock& block, int query, long start, long n, long last, float scale, long P) {
    const ints lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    floats scores[2 * STRIP], top = splat(-INFINITY);
    for (long i = 0; i < 2 * n; i++) {
        scores[i] = load(block.scores[i / 2][2 * (query / SIDE) + i % 2] + query % SIDE * SIDE) * scale;
        const long first = start + i * SIDE;
        // Keys after `last` are masked: later positions if attention is causal, else the padding of the last block.
        if (first + SIDE - 1 > last) scores[i] = choose(lane <= (int)std::min<long>(last - first, SIDE), scores[i], splat(-INFINITY));
        top = choose(scores[i] > top, scores[i], top);
    }
    const float largest = std::max(block.largest[query], _mm512_reduce_max_ps((__m512)top));
    if (largest > block.largest[query]) {  // scale the sums so far down to the new largest score
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

// Compute attention for one block of queries, the first of which is at position `first` of the keys.
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

static void attention_forward(const AttentionForwardArguments& a, const Worker& worker) {
    const long B = a.batch, H = a.heads, K = a.key_heads, T = a.queries, S = a.places, P = a.features, G = H / K;
    const int64_t *sy = a.y_strides, *sq = a.q_strides, *sk = a.k_strides, *sv = a.v_strides;
    // Few key heads are split into parts, each with some of the blocks of queries, so that all threads have work.
    const long parts = std::max<long>(1, 2 * worker.threads / (B * K));
    static thread_local KeysAndValues head;
    static thread_local QueryBlock block;
    block.queries.assign(PAIRED * P, 0), block.y.resize(PAIRED * P);
    share(worker, B * K * parts, 1, [&](long item, long) {
        const long b = item / parts / K, group = item / parts % K;
        head.copy(a.k + b * sk[0] + group * sk[1], sk[2], a.v + b * sv[0] + group * sv[1], sv[2], S, P);
        for (long h = group * G; h < (group + 1) * G; h++)
            for (long first = item % parts * PAIRED; first < T; first += parts * PAIRED) {
                const long n = std::min<long>(PAIRED, T - first);
                const bfloat16* q = a.q + b * sq[0] + h * sq[1] + first * sq[2];
                for (long t = 0; t < n; t++) memcpy(block.queries.data() + t * P, q + t * sq[2], P * sizeof(bfloat16));
                attend_block(block, head, S - T + first, (float)a.scale, a.is_causal);
                for (long t = 0; t < n; t++) {
                    const float total = sum(block.sums[t]);
                    bfloat16* y = a.y + b * sy[0] + h * sy[1] + (first + t) * sy[2];
                    for (long p = 0; p < P; p += W) store(y + p, load(block.y.data() + t * P + p) / total);
                    a.log_sums[(b * H + h) * T + first + t] = block.largest[t] + std::log(total);
                }
            }
    });
}
#else
static inline bool is_complete(const AttentionForwardArguments&) { return false; }
static void attention_forward(const AttentionForwardArguments&, const Worker&) {}
#endif
