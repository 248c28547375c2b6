// The gradients of softmax(scale q k^T) v in bfloat16, by matrix tiles or by vectors of pairs (FlashAttention, Dao 2022, algorithm 4):
// weights are recomputed from log_sums, 32 keys times 32 queries at a time, so that no (T, T) matrix is stored.
#pragma once
#include "attention_blocks.h"

struct AttentionBackwardArguments {
    bfloat16 *dq, *dk, *dv;                               // as q, k, v
    const bfloat16 *q, *k, *v, *y, *dy;                   // B H T P, B K T P, B K T P, B H T P, B H T P
    const float* log_sums;                                // log-sum-exp of the scores, B H T
    int64_t batch, heads, key_heads, places, features;    // B H K T P
    int64_t dq_strides[3], dk_strides[3], dv_strides[3];  // b h t
    int64_t q_strides[3], k_strides[3], v_strides[3], y_strides[3], dy_strides[3];
    double scale;
    bool is_causal;
    FIELDS(dq, dk, dv, q, k, v, y, dy, log_sums, batch, heads, key_heads, places, features, dq_strides, dk_strides, dv_strides, q_strides,
           k_strides, v_strides, y_strides, dy_strides, scale, is_causal)
};

#if defined(HAS_ATTENTION_BLOCKS)
// Buffers of one key head and one of its query heads, as operands of products (see attention_blocks.h). T is the number of positions,
// rounded up to a multiple of PAIRED; after the last position are zeros.
struct HeadBuffers {
    long places, T, P;
    std::vector<bfloat16> keys, values, queries, dy, keys_transposed;                        // (T P); the last (P T)
    std::vector<uint32_t> queries_by_feature, dy_by_feature, queries_by_place, dy_by_place;  // (P/2 T), (P/2 T), (T/2 P), (T/2 P)
    std::vector<float> dkeys, dvalues, dqueries, log_sums, dots;                             // (T P), (T P), (P T), (T), (T)

    void resize(long new_places, long new_P) {
        if (new_places == places && new_P == P) return;
        places = new_places, P = new_P, T = (places + PAIRED - 1) / PAIRED * PAIRED;
        for (auto* each : {&keys, &values, &queries, &dy, &keys_transposed}) each->assign(T * P, 0);
        for (auto* each : {&queries_by_feature, &dy_by_feature, &queries_by_place, &dy_by_place}) each->assign(T * P / 2, 0);
        for (auto* each : {&dkeys, &dvalues, &dqueries}) each->assign(T * P, 0);
        log_sums.assign(T, INFINITY), dots.assign(T, 0);  // the weights of queries after the last position are exp(-infinity) = 0
    }

    void copy_rows(const bfloat16* x, long stride, std::vector<bfloat16>& rows) {
        for (long t = 0; t < places; t++) memcpy(rows.data() + t * P, x + t * stride, P * sizeof(bfloat16));
    }
};

// y[feature][position].
static void transpose(const std::vector<bfloat16>& x, long T, long P, std::vector<bfloat16>& y) {
    __m512i columns[SIDE];
    for (long t = 0; t < T; t += SIDE)
        for (long p = 0; p < P; p += 2 * SIDE) {
            transpose_words(x.data() + t * P + p, 2 * P, columns);
            for (int i = 0; i < SIDE; i++) {  // a word of columns[i] holds features 2 i and 2 i + 1 of one position
                const __m256i even = _mm512_cvtepi32_epi16(columns[i]), odd = _mm512_cvtepi32_epi16(_mm512_srli_epi32(columns[i], 16));
                memcpy(y.data() + (p + 2 * i) * T + t, &even, sizeof even);
                memcpy(y.data() + (p + 2 * i + 1) * T + t, &odd, sizeof odd);
            }
        }
}

// Store the first n rows of the transpose of x (P T).
static void store_transposed(const std::vector<float>& x, long T, long P, long n, bfloat16* y, long stride) {
    __m512i columns[SIDE];
    for (long t = 0; t < n; t += SIDE)
        for (long p = 0; p < P; p += SIDE) {
            transpose_words(x.data() + p * T + t, 4 * T, columns);
            for (long i = 0; i < std::min<long>(SIDE, n - t); i++) store(y + (t + i) * stride + p, (floats)columns[i]);
        }
}

#if defined(HAS_TILES)
// sums += a b for PAIRED columns of a (P T) and of sums (P T), and b (PAIRED PAIRED), stored as pairs of rows (PAIRED/2 PAIRED).
static inline void add_transposed_products(const bfloat16* a, const uint32_t* b, long T, long P, float* sums) {
    _tile_loadd(6, b, 4 * PAIRED);
    _tile_loadd(7, b + SIDE, 4 * PAIRED);
    for (long p = 0; p < P; p += 2 * SIDE) {
        float *above = sums + p * T, *below = sums + (p + SIDE) * T;
        _tile_loadd(0, above, 4 * T);
        _tile_loadd(1, above + SIDE, 4 * T);
        _tile_loadd(2, below, 4 * T);
        _tile_loadd(3, below + SIDE, 4 * T);
        _tile_loadd(4, a + p * T, 2 * T);
        _tile_loadd(5, a + (p + SIDE) * T, 2 * T);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        _tile_stored(0, above, 4 * T);
        _tile_stored(1, above + SIDE, 4 * T);
        _tile_stored(2, below, 4 * T);
        _tile_stored(3, below + SIDE, 4 * T);
    }
}
#else
static inline void add_transposed_products(const bfloat16* a, const uint32_t* b, long T, long P, float* sums) {
    for (long p = 0; p < P; p += SIDE) multiply_pairs<true>(a + p * T, T, b, PAIRED, PAIRED, sums + p * T, sums + p * T + SIDE, T);
}
#endif

// For PAIRED keys (rows) and PAIRED queries (columns): weight = exp(scale score - log_sum), dscore = weight (dweight - dot) scale, where
// dot = sum(y dy) of the query. `pairs` are the dscores again, as pairs of keys.
static inline void differentiate_softmax(const float (*scores)[SIDE * SIDE], const float (*dweights)[SIDE * SIDE], const float* log_sums,
                                         const float* dots, float scale, bool is_diagonal, bfloat16* weights, bfloat16* dscores,
                                         uint32_t* pairs) {
    const ints query = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const floats log_sum[2] = {load(log_sums), load(log_sums + SIDE)}, dot[2] = {load(dots), load(dots + SIDE)};
    for (int key = 0; key < PAIRED; key += 2) {
        floats dscore[2][2];
        for (int odd = 0; odd < 2; odd++) {
            floats weight[2];
            for (int half = 0; half < 2; half++) {
                const int tile = 2 * (key / SIDE) + half, place = (key + odd) % SIDE * SIDE;
                weight[half] = exp(load(scores[tile] + place) * scale - log_sum[half]);
                // On the diagonal of causal attention, queries do not see later keys.
                if (is_diagonal) weight[half] = choose(query + half * SIDE >= key + odd, weight[half], floats{});
                dscore[odd][half] = weight[half] * (load(dweights[tile] + place) - dot[half]) * scale;
            }
            store_both(weight[0], weight[1], weights + (key + odd) * PAIRED);
            store_both(dscore[odd][0], dscore[odd][1], dscores + (key + odd) * PAIRED);
        }
        for (int half = 0; half < 2; half++) {
            const __m256i even = (__m256i)_mm512_cvtneps_pbh((__m512)dscore[0][half]),
                          odd = (__m256i)_mm512_cvtneps_pbh((__m512)dscore[1][half]);
            const __m512i both = _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
            memcpy(pairs + key / 2 * PAIRED + half * SIDE, &both, sizeof both);
        }
    }
}

// Compute the gradients of one query head, and add its part to the gradients of its keys and values. Each stage is computed for a strip of
// blocks before the next stage, since loading tiles from memory that was just written is slow.
static void differentiate_head(HeadBuffers& head, float scale, bool is_causal) {
    constexpr int STRIP = 4;
    const long T = head.T, P = head.P;
    alignas(64) float scores[STRIP][4][SIDE * SIDE], dweights[STRIP][4][SIDE * SIDE];
    alignas(64) bfloat16 weights[STRIP][PAIRED * PAIRED], dscores[STRIP][PAIRED * PAIRED];
    alignas(64) uint32_t pairs[STRIP][PAIRED / 2 * PAIRED];
    std::fill(head.dqueries.begin(), head.dqueries.end(), 0.0f);
    for (long j = 0; j < T; j += PAIRED)
        // j: keys; start, i: queries, from the diagonal on if attention is causal
        for (long start = is_causal ? j : 0; start < T; start += STRIP * PAIRED) {
            const long n = std::min<long>(STRIP, (T - start) / PAIRED);
            for (long block = 0, i = start; block < n; block++, i += PAIRED) {
                multiply_block(head.keys.data() + j * P, head.queries_by_feature.data() + i * P / 2, P, scores[block]);
                multiply_block(head.values.data() + j * P, head.dy_by_feature.data() + i * P / 2, P, dweights[block]);
            }
            for (long block = 0, i = start; block < n; block++, i += PAIRED)
                differentiate_softmax(scores[block], dweights[block], head.log_sums.data() + i, head.dots.data() + i, scale,
                                      is_causal && i == j, weights[block], dscores[block], pairs[block]);
            add_products(weights[0], head.dy_by_place.data() + start / 2 * P, n, P, head.dvalues.data() + j * P);
            add_products(dscores[0], head.queries_by_place.data() + start / 2 * P, n, P, head.dkeys.data() + j * P);
            for (long block = 0; block < n; block++)
                add_transposed_products(head.keys_transposed.data() + j, pairs[block], T, P, head.dqueries.data() + start + block * PAIRED);
        }
}

static void attention_backward(const AttentionBackwardArguments& a, const Worker& worker) {
    const long B = a.batch, H = a.heads, K = a.key_heads, T = a.places, P = a.features, G = H / K;
    const int64_t *sq = a.q_strides, *sk = a.k_strides, *sv = a.v_strides, *sy = a.y_strides, *sdy = a.dy_strides;
    const int64_t *sdq = a.dq_strides, *sdk = a.dk_strides, *sdv = a.dv_strides;
    static thread_local HeadBuffers head{};
    share(worker, B * K, 1, [&](long first, long last) {
#if defined(HAS_TILES)
        set_tile_shapes(SIDE, SIDE);
#endif
        head.resize(T, P);
        for (long item = first; item < last; item++) {
            const long b = item / K, group = item % K;
            const bfloat16 *keys = a.k + b * sk[0] + group * sk[1], *values = a.v + b * sv[0] + group * sv[1];
            head.copy_rows(keys, sk[2], head.keys);
            head.copy_rows(values, sv[2], head.values);
            transpose(head.keys, head.T, P, head.keys_transposed);
            std::fill(head.dkeys.begin(), head.dkeys.end(), 0.0f);
            std::fill(head.dvalues.begin(), head.dvalues.end(), 0.0f);
            // One thread computes all query heads of a key head, whose gradients dk and dv are sums over them.
            for (long h = group * G; h < (group + 1) * G; h++) {
                const bfloat16 *y = a.y + b * sy[0] + h * sy[1], *dy = a.dy + b * sdy[0] + h * sdy[1];
                head.copy_rows(a.q + b * sq[0] + h * sq[1], sq[2], head.queries);
                head.copy_rows(dy, sdy[2], head.dy);
                pair_features(head.queries, head.T, P, head.queries_by_feature);
                pair_features(head.dy, head.T, P, head.dy_by_feature);
                pair_places(head.queries, head.T, P, head.queries_by_place);
                pair_places(head.dy, head.T, P, head.dy_by_place);
                memcpy(head.log_sums.data(), a.log_sums + (b * H + h) * T, T * sizeof(float));
                for (long t = 0; t < T; t++) {
                    floats sums = {};
                    for (long p = 0; p < P; p += W) sums += load(y + t * sy[2] + p) * load(head.dy.data() + t * P + p);
                    head.dots[t] = sum(sums);
                }
                differentiate_head(head, (float)a.scale, a.is_causal);
                store_transposed(head.dqueries, head.T, P, T, a.dq + b * sdq[0] + h * sdq[1], sdq[2]);
            }
            for (long t = 0; t < T; t++) {
                put_all(a.dk, BFLOAT16, b * sdk[0] + group * sdk[1] + t * sdk[2], 1, P, head.dkeys.data() + t * P);
                put_all(a.dv, BFLOAT16, b * sdv[0] + group * sdv[1] + t * sdv[2], 1, P, head.dvalues.data() + t * P);
            }
        }
#if defined(HAS_TILES)
        _tile_release();
#endif
    });
}
#else
static inline bool is_complete(const AttentionBackwardArguments&) { return false; }
static void attention_backward(const AttentionBackwardArguments&, const Worker&) {}
#endif
