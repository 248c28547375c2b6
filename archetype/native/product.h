// Products of vectors with matrices of float32, bfloat16 (plain, or compressed to 12 bits), int8 and int4.
#pragma once
#include "lossless.h"
#include "tiles.h"

constexpr int ROWS_AT_ONCE = 4;  // rows of the matrix, for a single vector
constexpr int TILE_ROWS = W == 16 ? 4 : 6,
              VECTORS_AT_ONCE = W == 16 ? 6 : 2;  // a tile of sums in registers; if it needs all of them, gcc spills
constexpr long BLOCK = 16384;  // bytes of weights that stay in the nearest cache while all vectors are multiplied by them

// sums[r][m]: lane-wise partial sums of R rows of a matrix times M vectors. The following rows are prefetched, unless that was done with
// earlier vectors (are_first is false).
template <int R, int M, class T>
static inline void accumulate(const T* w, long ldw, const float* x, long ldx, long K, floats (&sums)[R][M], bool are_first = true) {
    constexpr int UNROLL = 64 / (sizeof(T) * W) > 0 ? 64 / (sizeof(T) * W) : 1;  // a cache line of weights
    for (int r = 0; r < R; r++)
        for (int m = 0; m < M; m++) sums[r][m] = floats{};
    long k = 0;
    for (; k + UNROLL * W <= K; k += UNROLL * W) {
        if (are_first)
            for (int r = 0; r < R; r++) __builtin_prefetch(w + (r + 2 * R) * ldw + k);
        for (int u = 0; u < UNROLL; u++) {
            floats vectors[M];
            for (int m = 0; m < M; m++) vectors[m] = in_register(load(x + m * ldx + k + u * W));
            for (int r = 0; r < R; r++) {
                floats weights = in_register(load(w + r * ldw + k + u * W));
                for (int m = 0; m < M; m++) sums[r][m] = multiply_add(weights, vectors[m], sums[r][m]);
            }
        }
    }
    for (; k < K; k += W) {  // the rest, with zeros in missing lanes
        long n = std::min<long>(W, K - k);
        for (int r = 0; r < R; r++) {
            floats weights = load_part(w + r * ldw + k, n);
            for (int m = 0; m < M; m++) sums[r][m] = multiply_add(weights, load_part(x + m * ldx + k, n), sums[r][m]);
        }
    }
}

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && WIDTH == 16
#define HAS_PAIRS 1
static inline floats load_pairs(const bfloat16* p) { return in_register((floats)_mm512_loadu_si512(p)); }
static inline floats load_pairs(const bfloat16* p, long n) {
    return (floats)_mm512_maskz_loadu_epi16(~0u >> (2 * W - n), p);
}  // the first n; the other lanes are 0
static inline floats add_pairs(floats sums, floats a, floats b) { return (floats)_mm512_dpbf16_ps((__m512)sums, (__m512bh)a, (__m512bh)b); }
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) && WIDTH == 4
#define HAS_PAIRS 1
static inline floats load_pairs(const bfloat16* p, long n = 2 * W) {
    floats v{};
    memcpy(&v, p, n * sizeof *p);
    return v;
}
static inline floats add_pairs(floats sums, floats a, floats b) {
    return (floats)vbfdotq_f32((float32x4_t)sums, (bfloat16x8_t)a, (bfloat16x8_t)b);
}
#endif

#if defined(HAS_PAIRS)
// The same for bfloat16 times bfloat16: an instruction adds two products to each lane.
template <int R, int M>
static inline void accumulate(const bfloat16* w, long ldw, const bfloat16* x, long ldx, long K, floats (&sums)[R][M],
                              bool are_first = true) {
    constexpr long PAIRED = 2 * W;
    for (int r = 0; r < R; r++)
        for (int m = 0; m < M; m++) sums[r][m] = floats{};
    long k = 0;
    for (; k + PAIRED <= K; k += PAIRED) {
        if (are_first)
            for (int r = 0; r < R; r++) __builtin_prefetch(w + (r + 2 * R) * ldw + k, 0, 2);  // into the second cache
        floats vectors[M];
        for (int m = 0; m < M; m++) vectors[m] = load_pairs(x + m * ldx + k);
        for (int r = 0; r < R; r++) {
            const floats weights = load_pairs(w + r * ldw + k);
            for (int m = 0; m < M; m++) sums[r][m] = add_pairs(sums[r][m], weights, vectors[m]);
        }
    }
    if (k < K) {
        for (int r = 0; r < R; r++) {
            const floats weights = load_pairs(w + r * ldw + k, K - k);
            for (int m = 0; m < M; m++) sums[r][m] = add_pairs(sums[r][m], weights, load_pairs(x + m * ldx + k, K - k));
        }
    }
}
#endif

// One row times one vector.
template <class T, class X> static inline float dot(const T* w, const X* x, long K) {
    floats sums[1][1];
    accumulate<1, 1>(w, 0, x, 0, K, sums);
    return sum(sums[0][0]);
}

// The j-th weight in each 16-bit half of a lane, which holds two 8-bit or four 4-bit weights. The two 4-bit weights in the middle are left
// in their place, 16 and 256 times too large, since a mask costs less than a shift: dot_groups divides their sums.
template <int BITS> static inline ints weights_at(words weights, int j) {
    constexpr int LAST = 16 / BITS - 1;
    if (j == LAST) return (ints)((shorts)weights >> (16 - BITS));
    return (ints)(weights & (words)splat((BITS == 8 ? 0x00ff00ff : 0x000f000f) << (j * BITS)));
}

// y[m]: products of W rows (a lane for each) with vector m, in groups of 32 weights. A word of weights holds 4 bytes of one row. Weights
// are stored as unsigned numbers, OFFSET too large; that is corrected once a group, by OFFSET times the sum of the vector's group.
template <int BITS, int M>
static inline void dot_groups(const uint8_t* w, const half* scales, const int32_t* x, const float* x_scale, const int32_t* x_sum,
                              long groups, long ldx, floats* y) {
    constexpr int PAIRS = 16 / BITS, LOADS = 32 / (2 * PAIRS), OFFSET = 1 << (BITS - 1),
                  SUMS = PAIRS - 1;  // the last weights, which are shifted, are added to the sum of the first
    constexpr long AHEAD = 4096;  // bytes from the present weights to those that are prefetched
    for (int m = 0; m < M; m++) y[m] = floats{};
    for (long g = 0; g < groups; g++) {
        ints sums[M][SUMS];
        for (int m = 0; m < M; m++)
            for (int j = 0; j < SUMS; j++) sums[m][j] = splat(j == 0 ? -OFFSET * x_sum[m * groups + g] : 0);
        for (int i = 0; i < LOADS; i++, w += 4 * W) {
            words weights;
            memcpy(&weights, w, sizeof weights);
            __builtin_prefetch(w + AHEAD);
            for (int j = 0; j < PAIRS; j++) {
                const ints pair = weights_at<BITS>(weights, j);
                for (int m = 0; m < M; m++)
                    sums[m][j % SUMS] = multiply_pairs(sums[m][j % SUMS], pair, splat(x[m * ldx + g * 16 + i * PAIRS + j]));
            }
        }
        floats scale = load_half(scales + g * W);
        for (int m = 0; m < M; m++) {
            for (int j = 1; j < SUMS; j++) sums[m][0] += sums[m][j] >> (j * BITS);  // exact: a multiple of 2^(j BITS)
            y[m] = multiply_add(__builtin_convertvector(sums[m][0], floats), scale * x_scale[m * groups + g], y[m]);
        }
    }
}

// Quantize vectors to 16-bit integers in groups of 32, as pairs in the order in which dot_groups reads them.
// pairs: (M, K / 2); scale: (M, K / 32); sums: (M, K / 32), of the integers of each group.
static void quantize(const float* x, long ldx, long M, long K, int bits, int32_t* pairs, float* scale, int32_t* sums) {
    const int stride = 16 / bits;  // weights k and k + stride are at the same bits of the two halves of a word
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

// y = x w^T + bias. With `indices`, each vector is multiplied by a matrix of a stack, such as the experts that were selected for it.
struct ProductArguments {
    void* y;                               // (vectors, rows)
    const void* x;                         // (vectors / choices, features)
    const void* w;                         // (rows, features), or a stack: floats, quants in blocks of W rows, or lossless records
    Optional<void> bias;                   // (rows), or (matrices, rows)
    Optional<int64_t> indices;             // (vectors): the matrix of each in a stack; null for one matrix
    Optional<half> scales;                 // of int8 and int4: one for each group of 32 weights
    Optional<uint8_t> high_bytes;          // of a lossless matrix, as are starts and exceptions
    Optional<int32_t> starts, exceptions;  // exceptions may be null
    int64_t vectors, rows, features;       // M N K
    int64_t x_stride, w_stride, y_stride;  // between rows
    int64_t choices;                       // how many consecutive vectors share a row of x (experts of a token)
    int64_t matrices, matrix_stride;       // of a stack
    Float x_type;
    Type w_type, bias_type;
    Float y_type;
    FIELDS(y, x, w, bias, indices, scales, high_bytes, starts, exceptions, vectors, rows, features, x_stride, w_stride, y_stride, choices,
           matrices, matrix_stride, x_type, w_type, bias_type, y_type)
};

static inline bool is_complete(const ProductArguments& a) {
    if (a.choices == 0) return false;
    switch (a.w_type) {
        case FLOAT32:
        case BFLOAT16: return true;
        case INT8:
        case INT4: return a.scales;
        case LOSSLESS: return a.high_bytes && a.starts;
        default: return false;
    }
}

struct Product {
    const ProductArguments& a;
    const long M = a.vectors, N = a.rows, K = a.features, ldx = a.x_stride, ldw = a.w_stride, ldy = a.y_stride;
    const Type x_type = a.x_type, w_type = a.w_type, bias_type = a.bias_type, y_type = a.y_type;
    void put_sum(long m, long row, float y, long bias_row) const {
        if (a.bias) y += get(a.bias, bias_type, bias_row);
        put(a.y, y_type, m * ldy + row, y);
    }
    // Store the sums of a tile, (M, R), together, which costs less than one by one. They are read in whole vectors, so that the buffer is W
    // numbers longer.
    template <int R, int M> void put_sums(long m, long row, float* sums) const {
        if (a.bias) {
            float bias[R];
            for (int r = 0; r < R; r++) bias[r] = get(a.bias, bias_type, row + r);
            for (int i = 0; i < M; i++)
                for (int r = 0; r < R; r++) sums[i * R + r] += bias[r];
        }
        if (y_type == FLOAT32)
            for (int i = 0; i < M; i++) memcpy((float*)a.y + (m + i) * ldy + row, sums + i * R, R * sizeof(float));
        else if (y_type == BFLOAT16) {
            bfloat16 rounded[M * R + W];
            for (int i = 0; i < M * R; i += W) store(rounded + i, load(sums + i));
            for (int i = 0; i < M; i++) memcpy((bfloat16*)a.y + (m + i) * ldy + row, rounded + i * R, R * sizeof(bfloat16));
        } else
            for (int i = 0; i < M * R; i++) put(a.y, y_type, (m + i / R) * ldy + row + i % R, sums[i]);
    }
};

// Rows of a matrix, ld numbers apart.
template <class T> struct RowsOf {
    const T* numbers;
    long ld;
    const T* operator[](long row) const { return numbers + row * ld; }
};

// Access to rows of a matrix: in place (Plain), or unpacked into a buffer (Unpacked). rows_of is for one matrix of a stack.
template <class T> struct Plain {
    typedef T Number;
    static constexpr bool IS_PLAIN = true;
    const Product& p;
    RowsOf<T> rows(long row, long) const { return {(const T*)p.a.w + row * p.ldw, p.ldw}; }
    RowsOf<T> rows_of(long which, long row, long) const { return {(const T*)p.a.w + which * p.a.matrix_stride + row * p.ldw, p.ldw}; }
};

struct Unpacked {
    typedef bfloat16 Number;
    static constexpr bool IS_PLAIN = false;
    const Product& p;
    const Lossless matrix{p.K, p.N, (const uint8_t*)p.a.w, p.a.high_bytes, p.a.starts, p.a.exceptions};
    RowsOf<bfloat16> rows(long row, long n) const {
        const long ld = matrix.units * Lossless::UNIT;
        bfloat16* numbers = scratch<bfloat16>(4, n * ld);
        for (long r = 0; r < n; r++) matrix.unpack(row + r, numbers + r * ld);
        return {numbers, ld};
    }
    // In a stack, the rows of a matrix are a multiple of 32, so that matrices follow each other without repeated rows.
    RowsOf<bfloat16> rows_of(long which, long row, long n) const { return rows(which * p.N + row, n); }
};

// Multiply n rows at w, of which the first is number `row` of the matrix, with vectors m to m + M - 1, and store the results.
template <int M, class T, class X>
static inline void put_tile(const Product& p, const T* w, long ldw, long n, long row, const X* x, long ldx, long m, bool are_first) {
    if (n < TILE_ROWS) {
        for (long r = 0; r < n; r++) {
            floats sums[1][M];
            accumulate<1, M>(w + r * ldw, ldw, x, ldx, p.K, sums, are_first);
            for (long i = 0; i < M; i++) p.put_sum(m + i, row + r, sum(sums[0][i]), row + r);
        }
        return;
    }
    floats sums[TILE_ROWS][M];
    accumulate<TILE_ROWS, M>(w, ldw, x, ldx, p.K, sums, are_first);
    alignas(64) float y[M * TILE_ROWS + W];
    int i = 0;
    if constexpr (TILE_ROWS * M >= W && W % TILE_ROWS == 0) {  // W sums at once, in the order of y: vector by vector
        floats some[W];
        for (; i < W / TILE_ROWS; i++)
            for (int r = 0; r < TILE_ROWS; r++) some[i * TILE_ROWS + r] = sums[r][i];
        store(y, sums_of(some));
    }
    for (; i < M; i++) {
        sum_four(sums[0][i], sums[1][i], sums[2][i], sums[3][i], y + i * TILE_ROWS);
        for (int r = 4; r < TILE_ROWS; r++) y[i * TILE_ROWS + r] = sum(sums[r][i]);
    }
    p.put_sums<TILE_ROWS, M>(m, row, y);
}

// Multiply n rows with the next vectors, from m on, up to VECTORS_AT_ONCE of them, in tiles of TILE_ROWS rows.
template <class T, class X>
static void put_tiles(const Product& p, RowsOf<T> rows, long n, long row, const X* x, long ldx, long m, bool are_first) {
    using std::integral_constant;
    auto run = [&](auto t) {
        for (long r = 0; r < n; r += TILE_ROWS)
            put_tile<decltype(t)::value>(p, rows[r], rows.ld, std::min<long>(TILE_ROWS, n - r), row + r, x + m * ldx, ldx, m, are_first);
    };
    switch (std::min<long>(VECTORS_AT_ONCE, p.M - m)) {
        case 1: return run(integral_constant<int, 1>());
        case 2: return run(integral_constant<int, 2>());
        case 3: return run(integral_constant<int, 3>());
        case 4: return run(integral_constant<int, 4>());
        case 5: return run(integral_constant<int, 5>());
        default: return run(integral_constant<int, VECTORS_AT_ONCE>());
    }
}

template <class Matrix, class X> static void float_product(const Matrix& matrix, const X* x, long ldx, const Worker& worker) {
    typedef typename Matrix::Number T;
    constexpr int R = ROWS_AT_ONCE;
    constexpr bool CONVERTS = sizeof(T) < sizeof(X);
    const Product& p = matrix.p;
    const int64_t* indices = p.a.indices;  // matrix of each vector in a stack, or null
    const long per_token = p.a.choices;
    const long rows = indices || p.M == 1 ? R : TILE_ROWS;
    share(worker, p.N, std::max<long>(1, PIECE / (long)(p.K * sizeof(T)) / rows) * rows, [&](long first, long last) {
        if (indices || p.M == 1) {  // every vector reads its own rows, so there is nothing to reuse
            for (long m = 0; m < p.M; m++) {
                const long which = indices ? indices[m] : 0;
                const X* vector = x + m / per_token * ldx;
                for (long row = first; row < last; row += R) {
                    const long n = std::min<long>(R, last - row);
                    const RowsOf<T> w = matrix.rows_of(which, row, n);
                    floats sums[R][1];
                    if (n == R) accumulate<R, 1>(w[0], w.ld, vector, 0, p.K, sums, Matrix::IS_PLAIN);
                    for (long r = 0; r < n; r++)
                        p.put_sum(m, row + r, n == R ? sum(sums[r][0]) : dot(w[r], vector, p.K), which * p.N + row + r);
                }
            }
            return;
        }
        const long block = std::max<long>(1, BLOCK / (long)(p.K * sizeof(X)) / rows) * rows;
        for (long row = first; row < last; row += block) {
            const long n = std::min(block, last - row);
            const RowsOf<T> weights = matrix.rows(row, n);
            if constexpr (CONVERTS)
                if (p.M > VECTORS_AT_ONCE) {  // convert the rows to float32 once for all vectors
                    float* converted = scratch<float>(2, n * p.K);
                    for (long r = 0; r < n; r++) as_floats(weights[r], BFLOAT16, 0, 1, p.K, converted + r * p.K);
                    for (long m = 0; m < p.M; m += VECTORS_AT_ONCE) put_tiles(p, RowsOf<float>{converted, p.K}, n, row, x, ldx, m, m == 0);
                    continue;
                }
            for (long m = 0; m < p.M; m += VECTORS_AT_ONCE) put_tiles(p, weights, n, row, x, ldx, m, m == 0 && Matrix::IS_PLAIN);
        }
    });
}

#if defined(HAS_TILES)
// Tiles need bfloat16 throughout, at least 32 rows, and K in whole tiles.
static bool fits_tiles(const Product& p) {
    return p.x_type == BFLOAT16 && (p.w_type == BFLOAT16 || p.w_type == LOSSLESS) && p.y_type == BFLOAT16 && !p.a.indices && p.N >= BOTH &&
           p.K % DEPTH == 0 && tiles_are_allowed();
}

// Packed vectors that stay in L2 while all rows of a matrix are multiplied by them.
struct Panel {
    // Bytes of the vectors; numbers of each of 32 rows that stay in L1 while all vectors of the panel are multiplied by them.
    static constexpr long BYTES = 1 << 20, SLICE = 256;
    const Product& p;
    const long size;  // vectors that fit
    long start = -1, M = 0;  // first vector, and number of vectors, that are packed
    std::pair<int, int> shapes;  // of the tiles, as they are configured now
    uint32_t* const pairs = scratch<uint32_t>(0, p.K / 2 * size);
    float (*const sums)[SIDE * SIDE] = (float (*)[SIDE * SIDE]) scratch<float>(1, size / SIDE * 2 * SIDE * SIDE);
    bfloat16* const copy = scratch<bfloat16>(3, 2 * SIDE * SLICE);

    Panel(const Product& p, long size) : p(p), size(size) {}
    static long whole(long n) { return (n + BOTH - 1) / BOTH * BOTH; }
    static long most(const Product& p) { return std::max(BOTH, BYTES / (2 * p.K) / BOTH * BOTH); }
    int at_once(long m) const { return (int)std::clamp<long>(M - m, 0, SIDE); }  // vectors of a tile

    // Pack the vectors from `first` on, unless they are already packed.
    void pack(long first) {
        if (first == start) return;
        start = first, M = std::min(size, p.M - start);
        for (long m = 0; m < M; m += SIDE)
            pack_pairs((const bfloat16*)p.a.x + (start + m) * p.ldx, p.ldx, at_once(m), p.K, pairs + m * p.K / 2);
    }

    // Multiply all packed vectors by 32 rows of the matrix.
    void multiply(long row) {
        const bfloat16* w = (const bfloat16*)p.a.w + row * p.ldw;
        // With more than two passes over the rows, a copied slice of them is multiplied with all vectors before the next slice.
        const long passes = whole(M) / BOTH, depth = passes > 2 ? SLICE : p.K;
        RowsAhead ahead(w + BOTH * p.ldw, p.ldw, p.K, passes);
        for (long k = 0; k < p.K; k += depth) {
            const long n = std::min(depth, p.K - k);
            const TileRows rows = passes > 2 ? copied(w + k, p.ldw, n, copy) : in_place(w + k, p.ldw);
            for (long m = 0; m < M; m += BOTH) multiply_slice(rows, row, k, n, m, ahead);
        }
    }

    // The same with rows of a lossless matrix, unit by unit.
    void multiply(const Lossless& matrix, long row) {
        LosslessBlock block(matrix, (row + BOTH - 1) / BOTH);  // rounded up: the last block holds the last 32 rows
        RowsAhead none(nullptr, 0, 0, 1);
        for (long k = 0; k < p.K; k += Lossless::UNIT) {
            const long n = std::min(Lossless::UNIT, p.K - k);
            block.unpack_next(k, copy);
            for (long m = 0; m < M; m += BOTH) multiply_slice(in_tiles(copy), row, k, n, m, none);
        }
    }

    // Add the products of numbers k to k + n - 1 of 32 rows with up to 32 vectors from m on. After the last numbers, store the results.
    void multiply_slice(const TileRows& rows, long row, long k, long n, long m, RowsAhead& ahead) {
        const int first = columns_of(at_once(m)), second = columns_of(at_once(m + SIDE));
        const bool is_last = k + n == p.K;
        if (first != shapes.first || second != shapes.second) set_tile_shapes(first, std::max(1, second));  // no tile may have 0 columns
        shapes = {first, second};
        bfloat16* y = (bfloat16*)p.a.y + (start + m) * p.ldy + row;
        // The results are about to be written.
        for (int i = 0; is_last && i < at_once(m) + at_once(m + SIDE); i++) __builtin_prefetch(y + i * p.ldy, 1);
        const uint32_t *vectors = pairs + (m * p.K + k * first) / 2, *others = pairs + ((m + SIDE) * p.K + k * second) / 2;
        const auto multiply = second ? k ? multiply_tiles<true, true> : multiply_tiles<true, false>
                              : k ? multiply_tiles<false, true>
                                     : multiply_tiles<false, false>;
        multiply(rows, vectors, first, others, second, n, sums + m / SIDE * 2, ahead);
        if (is_last) put_sums(y, at_once(m), row, sums + m / SIDE * 2);
        if (is_last && second) put_sums(y + SIDE * p.ldy, at_once(m + SIDE), row, sums + m / SIDE * 2 + 2);
    }

    // Store two tiles of sums (32 rows from `row` on, times n vectors) at y, a row of 32 numbers for each vector: transposed, with bias.
    void put_sums(bfloat16* y, int n, long row, const float (*tiles)[SIDE * SIDE]) const {
        __m512i first[SIDE], second[SIDE];
        transpose_words(tiles[0], 4 * SIDE, first);
        transpose_words(tiles[1], 4 * SIDE, second);
        floats bias[2] = {};
        for (int i = 0; i < (p.a.bias ? 2 : 0); i++)
            bias[i] = load(as_floats(p.a.bias, p.bias_type, row + i * SIDE, 1, SIDE, scratch<float>(2, SIDE)));
        for (int i = 0; i < n; i++) store_both((floats)first[i] + bias[0], (floats)second[i] + bias[1], y + i * p.ldy);
    }
};

static void tile_product(const Product& p, const Lossless* matrix, const Worker& worker) {
    const long most = Panel::most(p), panels = (p.M + most - 1) / most, size = Panel::whole((p.M + panels - 1) / panels);
    const long blocks = Panel::whole(p.N) / BOTH, piece = std::max<long>(1, PIECE / (BOTH * p.K * 2));
    Panel panel(p, size);
    share(worker, panels * blocks, piece, [&](long first, long last) {
        for (long item = first; item < last; item++) {
            panel.pack(item / blocks * size);
            // The last 32 rows may overlap the ones before; two threads then write the same numbers.
            const long row = std::min(item % blocks * BOTH, p.N - BOTH);
            matrix ? panel.multiply(*matrix, row) : panel.multiply(row);
        }
    });
    _tile_release();
}
#endif

template <int BITS> static void quantized_product(const Product& p, const float* x, long ldx, const Worker& worker) {
    constexpr int TILE = 4;
    const int64_t* indices = p.a.indices;
    const long groups = p.K / 32, block = p.K * W * BITS / 8, blocks = (p.N + W - 1) / W, per_token = p.a.choices;
    const long vectors = indices ? p.M / per_token : p.M;
    // Every thread quantizes all vectors for itself, so that none has to wait for another.
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
                    dot_groups<BITS, decltype(t)::value>((const uint8_t*)p.a.w + place * block, p.a.scales + place * groups * W,
                                                         pairs + vector * (p.K / 2), scale + vector * groups, sums + vector * groups,
                                                         groups, p.K / 2, y);
                };
                switch (tile) {
                    case 1: run(std::integral_constant<int, 1>()); break;
                    case 2: run(std::integral_constant<int, 2>()); break;
                    case 3: run(std::integral_constant<int, 3>()); break;
                    default: run(std::integral_constant<int, TILE>());
                }
                for (long i = 0; i < tile; i++)
                    for (long r = 0; r < std::min<long>(W, p.N - b * W); r++) p.put_sum(m + i, b * W + r, y[i][r], which * p.N + b * W + r);
                m += tile;
            }
    });
}

static void product(const ProductArguments& a, const Worker& worker) {
    for (long m = 0; a.indices && m < a.vectors; m++)
        if (!worker.is_index(a.indices[m], a.matrices)) return;
    const Product p{a};
#if defined(HAS_TILES)
    if (fits_tiles(p)) {
        if (p.w_type != LOSSLESS) return tile_product(p, nullptr, worker);
        const Unpacked rows{p};
        return tile_product(p, &rows.matrix, worker);
    }
#endif
#if defined(HAS_PAIRS)
    if (p.x_type == BFLOAT16 && p.w_type == BFLOAT16) return float_product(Plain<bfloat16>{p}, (const bfloat16*)a.x, p.ldx, worker);
    if (p.x_type == BFLOAT16 && p.w_type == LOSSLESS) return float_product(Unpacked{p}, (const bfloat16*)a.x, p.ldx, worker);
#endif
    long vectors = a.indices ? p.M / a.choices : p.M, ldx = p.ldx;
    const float* x = (const float*)a.x;
    if (p.x_type != FLOAT32) {
        float* floats = scratch<float>(0, vectors * p.K);
        for (long m = 0; m < vectors; m++) as_floats(a.x, p.x_type, m * p.ldx, 1, p.K, floats + m * p.K);
        x = floats;
        ldx = p.K;
    }
    switch (p.w_type) {
        case FLOAT32: float_product(Plain<float>{p}, x, ldx, worker); break;
        case BFLOAT16: float_product(Plain<bfloat16>{p}, x, ldx, worker); break;
        case LOSSLESS: float_product(Unpacked{p}, x, ldx, worker); break;
        case INT8: quantized_product<8>(p, x, ldx, worker); break;
        case INT4: quantized_product<4>(p, x, ldx, worker); break;
        default: break;
    }
}

// y[b] = x[b] w[b], with any strides.
struct BatchedProductArguments {
    void* y;  // (batch, rows, columns)
    const void* x;  // (batch, rows, features)
    const void* w;  // (batch, features, columns)
    int64_t batch, rows, columns, features;  // B M N K
    int64_t x_strides[3], w_strides[3], y_strides[3];  // of the dimensions above, in order
    Float x_type, w_type, y_type;
    FIELDS(y, x, w, batch, rows, columns, features, x_strides, w_strides, y_strides, x_type, w_type, y_type)
};

static void batched_product(const BatchedProductArguments& a, const Worker& worker) {
    const long B = a.batch, M = a.rows, N = a.columns, K = a.features;
    const int64_t *sx = a.x_strides, *sw = a.w_strides, *sy = a.y_strides;
    const long columns = std::max<long>(64, 4096 / std::max<long>(K, 1)), cuts = (N + columns - 1) / columns;
    share(worker, B * M * cuts, 1, [&](long first, long last) {
        float *vector = scratch<float>(0, K), *line = scratch<float>(1, std::max(K, columns)), *sums = scratch<float>(2, columns);
        for (long item = first; item < last; item++) {
            long b = item / (M * cuts), m = item / cuts % M, n0 = item % cuts * columns, n = std::min(columns, N - n0);
            const float* x = as_floats(a.x, a.x_type, b * sx[0] + m * sx[1], sx[2], K, vector);
            if (sw[2] == 1 || sw[1] != 1) {  // sum of the rows of w, each times a number of x; if columns are contiguous, dot products
                std::fill(sums, sums + n, 0.0f);
                for (long k = 0; k < K; k++) {
                    const float* row = as_floats(a.w, a.w_type, b * sw[0] + k * sw[1] + n0 * sw[2], sw[2], n, line);
                    for (long j = 0; j < n; j++) sums[j] += x[k] * row[j];
                }
            } else
                for (long j = 0; j < n; j++) {
                    const float* column = as_floats(a.w, a.w_type, b * sw[0] + (n0 + j) * sw[2], 1, K, line);
                    sums[j] = dot(column, x, K);
                }
            for (long j = 0; j < n; j++) put(a.y, a.y_type, b * sy[0] + m * sy[1] + (n0 + j) * sy[2], sums[j]);
        }
    });
}
