// Products of blocks of 32 positions in bfloat16, by matrix tiles or by vectors of pairs, for attention and its gradients.
#pragma once
#include "tiles.h"

#if defined(HAS_TILES) || (defined(__AVX512BF16__) && defined(__AVX512BW__) && WIDTH == 16)
#define HAS_ATTENTION_BLOCKS 1

constexpr int PAIRED = 2 * SIDE;  // keys, and queries, of a block

// The second operand of a product holds, in each 32-bit word, two numbers that are neighbours along the dimension that is summed over:
// features for scores, positions for sums of values.

// pairs[block of positions][feature / 2][position in the block].
static void pair_features(const std::vector<bfloat16>& x, long T, long P, std::vector<uint32_t>& pairs) {
    __m512i columns[SIDE];
    for (long t = 0; t < T; t += SIDE)
        for (long p = 0; p < P / 2; p += SIDE) {
            transpose_words(x.data() + t * P + 2 * p, 2 * P, columns);
            uint32_t* block = pairs.data() + t / PAIRED * PAIRED * P / 2 + t % PAIRED;
            for (int i = 0; i < SIDE; i++) _mm512_storeu_si512(block + (p + i) * PAIRED, columns[i]);
        }
}

// pairs[position / 2][feature].
static void pair_places(const std::vector<bfloat16>& x, long T, long P, std::vector<uint32_t>& pairs) {
    for (long t = 0; t < T; t += 2)
        for (long p = 0; p < P; p++) pairs[t / 2 * P + p] = x[t * P + p] | (uint32_t)x[(t + 1) * P + p] << 16;
}

#if defined(HAS_TILES)
// products[2 i + j], 16 x 16: the i-th 16 rows of a (PAIRED P) times the j-th 16 columns of pairs (P/2 PAIRED).
static inline void multiply_block(const bfloat16* a, const uint32_t* pairs, long P, float (*products)[SIDE * SIDE]) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (long p = 0; p < P; p += DEPTH) {
        _tile_loadd(4, a + p, 2 * P);
        _tile_loadd(5, a + SIDE * P + p, 2 * P);
        _tile_loadd(6, pairs + p / 2 * PAIRED, 4 * PAIRED);
        _tile_loadd(7, pairs + p / 2 * PAIRED + SIDE, 4 * PAIRED);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, products[0], 4 * SIDE);
    _tile_stored(1, products[1], 4 * SIDE);
    _tile_stored(2, products[2], 4 * SIDE);
    _tile_stored(3, products[3], 4 * SIDE);
}

// sums (PAIRED P) += sum over n blocks of a b, where a is (PAIRED PAIRED) and b (PAIRED P), stored as pairs of rows (PAIRED/2 P).
static inline void add_products(const bfloat16* a, const uint32_t* b, long n, long P, float* sums) {
    for (long p = 0; p < P; p += 2 * SIDE) {
        _tile_loadd(0, sums + p, 4 * P);
        _tile_loadd(1, sums + p + SIDE, 4 * P);
        _tile_loadd(2, sums + SIDE * P + p, 4 * P);
        _tile_loadd(3, sums + SIDE * P + p + SIDE, 4 * P);
        for (long i = 0; i < n; i++) {
            const bfloat16* block = a + i * PAIRED * PAIRED;
            const uint32_t* rows = b + i * PAIRED / 2 * P + p;
            _tile_loadd(4, block, 2 * PAIRED);
            _tile_loadd(5, block + SIDE * PAIRED, 2 * PAIRED);
            _tile_loadd(6, rows, 4 * P);
            _tile_loadd(7, rows + SIDE, 4 * P);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, sums + p, 4 * P);
        _tile_stored(1, sums + p + SIDE, 4 * P);
        _tile_stored(2, sums + SIDE * P + p, 4 * P);
        _tile_stored(3, sums + SIDE * P + p + SIDE, 4 * P);
    }
}

#else
// a (SIDE D) times 2 SIDE columns of b, which is stored as pairs of rows (D/2 ldb). `left` receives the first 16 columns, `right` the
// others. ADDS: add to them instead of replacing them.
template <bool ADDS> static inline void multiply_pairs(const bfloat16* a, long lda, const uint32_t* b, long ldb, long D, float* left,
                                                       float* right, long ld) {
    constexpr int ROWS = SIDE / 2;  // whose sums fit into registers
    for (int first = 0; first < SIDE; first += ROWS, a += ROWS * lda, left += ROWS * ld, right += ROWS * ld) {
        __m512 sums[ROWS][2];
        for (int row = 0; row < ROWS; row++) {
            sums[row][0] = ADDS ? _mm512_loadu_ps(left + row * ld) : _mm512_setzero_ps();
            sums[row][1] = ADDS ? _mm512_loadu_ps(right + row * ld) : _mm512_setzero_ps();
        }
        for (long d = 0; d < D / 2; d++) {
            const __m512bh columns[2] = {(__m512bh)_mm512_loadu_si512(b + d * ldb), (__m512bh)_mm512_loadu_si512(b + d * ldb + SIDE)};
            for (int row = 0; row < ROWS; row++) {
                int pair;
                memcpy(&pair, a + row * lda + 2 * d, sizeof pair);
                const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
                sums[row][0] = _mm512_dpbf16_ps(sums[row][0], both, columns[0]);
                sums[row][1] = _mm512_dpbf16_ps(sums[row][1], both, columns[1]);
            }
        }
        for (int row = 0; row < ROWS; row++)
            _mm512_storeu_ps(left + row * ld, sums[row][0]), _mm512_storeu_ps(right + row * ld, sums[row][1]);
    }
}

// The same two products as with tiles.
static inline void multiply_block(const bfloat16* a, const uint32_t* pairs, long P, float (*products)[SIDE * SIDE]) {
    for (int i = 0; i < 2; i++) multiply_pairs<false>(a + i * SIDE * P, P, pairs, PAIRED, P, products[2 * i], products[2 * i + 1], SIDE);
}

static inline void add_products(const bfloat16* a, const uint32_t* b, long n, long P, float* sums) {
    for (long p = 0; p < P; p += 2 * SIDE)
        for (long i = 0; i < n; i++)
            for (int half = 0; half < 2; half++) {
                float* rows = sums + half * SIDE * P + p;
                multiply_pairs<true>(a + i * PAIRED * PAIRED + half * SIDE * PAIRED, PAIRED, b + i * PAIRED / 2 * P + p, P, PAIRED, rows,
                                     rows + SIDE, P);
            }
}
#endif
#endif
