// Products of bfloat16 by the processor's matrix tiles (AMX): 32 rows of a matrix with up to 32 vectors at once.
// Each sum goes through k alike whatever else is in its tile, so that a row of many equals the row alone.
#pragma once
#include "work.h"

constexpr int SIDE = 16, DEPTH = 32;  // rows of a tile, and numbers in a row of the matrix's

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512BW__) && defined(__linux__) && WIDTH == 16
#include <sys/syscall.h>
#include <unistd.h>
#define HAS_TILES 1

static bool tiles_are_allowed() {  // Linux saves them only for a process that has asked for it
    constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18;
    static const bool allowed = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
    return allowed;
}

struct alignas(64) TileShapes {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
};

// Tiles 0 to 3 are sums (16 rows of the matrix, a column for each vector), 4 and 5 rows of the matrix, 6 and 7 vectors.
static void set_tile_shapes(int first, int second) {  // vectors of either tile
    TileShapes shapes;
    const int columns[8] = {first, second, first, second, SIDE, SIDE, first, second};
    for (int t = 0; t < 8; t++) shapes.rows[t] = SIDE, shapes.bytes[t] = 4 * columns[t];
    _tile_loadconfig(&shapes);
}

// Pairs of k of n vectors: pairs[k / 2][vector], as a tile of vectors wants them.
static void pack_pairs(const bfloat16* x, long ldx, long n, long K, uint32_t* pairs) {
    for (long k = 0; k < K / 2; k++)
        for (long m = 0; m < n; m++) memcpy(pairs + k * n + m, x + m * ldx + 2 * k, 4);
}

// sums[row][vector] of 32 rows of w with `first` vectors, and with `second` more behind them.
template <bool IS_WIDE>
static inline void multiply_tiles(const bfloat16* w, long ldw, const uint32_t* pairs, int first, int second, long K, float (*sums)[SIDE * SIDE]) {
    const uint32_t* others = pairs + K / 2 * first;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    const bfloat16* next = w + 2 * SIDE * ldw;  // what comes behind is fetched meanwhile, four rows side by side:
    long column = 0;                            // memory gives more to a few long streams than to 32 rows at once
    for (long k = 0; k < K; k += DEPTH) {
        for (int i = 0; i < 2 * SIDE / 4; i++) {
            for (int row = 0; row < 4; row++) __builtin_prefetch(next + row * ldw + column, 0, 1);
            if ((column += DEPTH) == K) column = 0, next += 4 * ldw;
        }
        _tile_loadd(6, pairs + k / 2 * first, 4 * first);
        _tile_loadd(4, w + k, 2 * ldw);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, w + SIDE * ldw + k, 2 * ldw);
        _tile_dpbf16ps(2, 5, 6);
        if (IS_WIDE) {
            _tile_loadd(7, others + k / 2 * second, 4 * second);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums[0], 4 * first);
    _tile_stored(2, sums[1], 4 * first);
    if (IS_WIDE) {
        _tile_stored(1, sums[2], 4 * second);
        _tile_stored(3, sums[3], 4 * second);
    }
}

// Of one vector, the sums of a tile's rows.
static inline floats tile_column(const float* sums, int columns, int vector) {
    const ints rows = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return (floats)_mm512_i32gather_ps((__m512i)(rows * columns), sums + vector, 4);
}
#endif
