// Products of bfloat16 by matrix tiles (AMX): 32 rows of a matrix times 32 vectors at a time.
// Each sum adds up k in the same order whatever else is in its tile, so that a vector has the same bits alone and among others.
#pragma once
#include "work.h"

constexpr int SIDE = 16, DEPTH = 32;  // rows of a tile; bfloat16 numbers in a row of a tile (64 bytes)
constexpr long BOTH = 2 * SIDE;       // rows, or vectors, of two tiles

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__linux__) && WIDTH == 16
#include <sys/syscall.h>
#include <unistd.h>
#define HAS_TILES 1

static bool tiles_are_allowed() {  // Linux lets only those processes use tiles that have asked for permission
    constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18;
    static const bool allowed = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
    return allowed;
}

// The configuration that the instruction ldtilecfg reads: bytes of a row, and rows, of each of 8 tile registers.
struct alignas(64) TileShapes {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
};

// Registers 0 to 3 hold sums (16 rows of the matrix, a column for each vector), 4 and 5 rows of the matrix, 6 and 7 vectors.
static void set_tile_shapes(int first, int second) {  // number of vectors in registers 6 and 7
    TileShapes shapes;
    const int columns[8] = {first, second, first, second, SIDE, SIDE, first, second};
    for (int t = 0; t < 8; t++) shapes.rows[t] = SIDE, shapes.bytes[t] = 4 * columns[t];
    _tile_loadconfig(&shapes);
}

// Columns of a tile for n vectors: up to two keep their number; more are padded to 16, which costs less than packing them one by one.
static inline int columns_of(long n) { return n <= 2 ? n : SIDE; }

// Pack n vectors as the second operand of a tile product: pairs[k / 2][vector] holds numbers k and k + 1.
static void pack_pairs(const bfloat16* x, long ldx, long n, long K, uint32_t* pairs) {
    if (columns_of(n) == SIDE) {
        alignas(64) bfloat16 rows[SIDE * DEPTH] = {};
        __m512i columns[SIDE];
        for (long k = 0; k < K; k += DEPTH) {
            // Fewer than 16 vectors are copied next to rows of zeros; 16 are transposed where they are.
            for (long m = 0; n < SIDE && m < n; m++) memcpy(rows + m * DEPTH, x + m * ldx + k, DEPTH * sizeof(bfloat16));
            transpose_words(n < SIDE ? rows : x + k, n < SIDE ? 2 * DEPTH : 2 * ldx, columns);
            for (int i = 0; i < SIDE; i++) _mm512_storeu_si512(pairs + (k / 2 + i) * SIDE, columns[i]);
        }
        return;
    }
    for (long k = 0; k < K / 2; k++)
        for (long m = 0; m < n; m++) memcpy(pairs + k * n + m, x + m * ldx + 2 * k, 4);
}

// Prefetches the next 32 rows while the present ones are multiplied: four rows at a time, since memory is faster with a few long
// streams than with 32.
struct RowsAhead {
    const bfloat16* row;
    long ld, K, times, left, column = 0;
    // `passes`: how often the present rows are read, with K / DEPTH calls of fetch() each, over which the prefetches are distributed.
    RowsAhead(const bfloat16* w, long ld, long K, long passes)
        : row(w), ld(ld), K(K), times(std::max<long>(1, BOTH / 4 / passes)), left(BOTH / 4 * K / DEPTH) {}
    void fetch() {
        for (long i = 0; i < times && left > 0; i++, left--) {
            for (int r = 0; r < 4; r++) __builtin_prefetch(row + r * ld + column, 0, 2);  // into L2; into L3 it was 3 to 7 % slower
            if ((column += DEPTH) == K) column = 0, row += 4 * ld;
        }
    }
};

// Where 32 rows are in memory, to be loaded as two tiles of 16 rows at a time.
struct TileRows {
    const bfloat16* first;
    long bytes, other, step;  // bytes between rows; numbers from the first tile to the second, and to the same tile of the next k
};

static TileRows in_place(const bfloat16* w, long ld) { return {w, 2 * ld, SIDE * ld, DEPTH}; }

static TileRows in_tiles(const bfloat16* copy) { return {copy, 2 * DEPTH, SIDE * DEPTH, BOTH * DEPTH}; }

// The same rows in a copy, tile by tile: rows that are some kilobytes apart would evict each other from L1.
static TileRows copied(const bfloat16* w, long ld, long K, bfloat16* copy) {
    for (int row = 0; row < BOTH; row++)
        for (long k = 0; k < K; k += DEPTH) memcpy(copy + BOTH * k + row * DEPTH, w + row * ld + k, DEPTH * sizeof(bfloat16));
    return in_tiles(copy);
}

// sums[2 j + i], 16 x 16: the i-th 16 rows times the j-th tile of vectors; the tiles have `first` and `second` vectors.
// IS_WIDE: there is a second tile of vectors. ADDS: add to the sums instead of replacing them.
template <bool IS_WIDE, bool ADDS>
static inline void multiply_tiles(TileRows rows, const uint32_t* pairs, int first, const uint32_t* others, int second, long K,
                                  float (*sums)[SIDE * SIDE], RowsAhead& ahead) {
    constexpr int ROW = 4 * SIDE;  // bytes
    if (ADDS) {
        _tile_loadd(0, sums[0], ROW);
        _tile_loadd(2, sums[1], ROW);
        if (IS_WIDE) {
            _tile_loadd(1, sums[2], ROW);
            _tile_loadd(3, sums[3], ROW);
        }
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (long k = 0; k < K; k += DEPTH, rows.first += rows.step) {
        ahead.fetch();
        _tile_loadd(6, pairs + k / 2 * first, 4 * first);
        _tile_loadd(4, rows.first, rows.bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, rows.first + rows.other, rows.bytes);
        _tile_dpbf16ps(2, 5, 6);
        if (IS_WIDE) {
            _tile_loadd(7, others + k / 2 * second, 4 * second);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums[0], ROW);
    _tile_stored(2, sums[1], ROW);
    if (IS_WIDE) {
        _tile_stored(1, sums[2], ROW);
        _tile_stored(3, sums[3], ROW);
    }
}
#endif
