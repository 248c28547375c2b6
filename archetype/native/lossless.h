// Matrices of bfloat16 in 12 bits, without loss. A number's low byte (an exponent's last bit and the mantissa) stands as it is; of its
// high byte the sign, and a code of three bits for the eight that are most common in the matrix. Others stand apart.
#pragma once
#include "work.h"

typedef uint8_t bytes __attribute__((vector_size(4 * W)));
typedef uint16_t shorts __attribute__((vector_size(4 * W)));

// Of each byte of `which`, below 16, its entry of a table that stands in every 16 bytes of `table`.
static inline bytes look_up(bytes table, bytes which) {
#if WIDTH == 16 && defined(__AVX512F__) && defined(__AVX512BW__)
    return (bytes)_mm512_shuffle_epi8((__m512i)table, (__m512i)which);
#elif WIDTH == 8 && defined(__AVX2__)
    return (bytes)_mm256_shuffle_epi8((__m256i)table, (__m256i)which);
#elif WIDTH == 4 && defined(__SSSE3__)
    return (bytes)_mm_shuffle_epi8((__m128i)table, (__m128i)which);
#elif WIDTH == 4 && defined(__ARM_NEON)
    return (bytes)vqtbl1q_u8((uint8x16_t)table, (uint8x16_t)which);
#else
    bytes entries;
    for (int i = 0; i < 4 * W; i++) entries[i] = table[which[i]];
    return entries;
#endif
}

struct Lossless {
    static constexpr long UNIT = 128, HALF = UNIT / 2, RECORD = UNIT + HALF, BLOCK_ROWS = 32;  // numbers, and their bytes; rows
    const long K, N, units, bytes_of_row;
    const uint8_t* const records;
    const int32_t *const starts, *const exceptions;  // of each block its exceptions, in order of their places: place << 13 | row << 8 | high byte
    bytes table;

    Lossless(long K, long N, const void* records, const void* high_bytes, const void* starts, const void* exceptions)
        : K(K), N(N), units((K + UNIT - 1) / UNIT), bytes_of_row(units * RECORD), records((const uint8_t*)records),
          starts((const int32_t*)starts), exceptions((const int32_t*)exceptions) {
        for (int i = 0; i < 4 * W; i++) table[i] = ((const uint8_t*)high_bytes)[i % 8] | (i % 16 / 8) << 7;
    }

    // The last block of N rows holds the last 32, some of them a second time.
    long stored(long row) const { return row < N / BLOCK_ROWS * BLOCK_ROWS || N % BLOCK_ROWS == 0 ? row : row + BLOCK_ROWS - N % BLOCK_ROWS; }

    // A row's numbers, in whole units; the rows behind are fetched meanwhile.
    void unpack(long row, bfloat16* y) const {
        const long place = stored(row), block = place / BLOCK_ROWS;
        const uint8_t* low = records + place * bytes_of_row;
        for (long i = 0; i < bytes_of_row; i += 64) __builtin_prefetch(low + 8 * bytes_of_row + i, 0, 2);
        const bytes high_bytes = table;  // for the compiler, which cannot know that y is not the matrix
        for (long u = 0, n = units; u < n; u++)
            unpack_unit(low + u * UNIT, low + n * UNIT + u * HALF, high_bytes, [&](long i, shorts part) { memcpy(y + u * UNIT + i, &part, sizeof part); });
        for (const int32_t *e = exceptions + starts[block], *end = exceptions + starts[block + 1]; e < end; e++)
            if (row_of(*e) == place % BLOCK_ROWS) ((uint8_t*)(y + place_of(*e)))[1] = (uint8_t)*e;
    }

    static long place_of(int32_t exception) { return exception >> 13; }
    static long row_of(int32_t exception) { return exception >> 8 & 31; }

    // put(i, numbers) of all vectors of a unit of a row: number i and those behind. Bytes of 64 numbers stand as i and i + 32 by turns,
    // codes of two such halves in a byte.
    template <class Put> static inline void unpack_unit(const uint8_t* low, const uint8_t* codes, bytes table, Put put) {
#pragma GCC unroll 4
        for (long j = 0; j < HALF; j += 4 * W) {
            bytes code, part;
            memcpy(&code, codes + j, sizeof code);
            for (int half = 0; half < 2; half++) {
                memcpy(&part, low + half * HALF + j, sizeof part);
                const shorts high = (shorts)look_up(table, half ? code >> 4 : code & 15);
                put(half * HALF + j / 2, ((shorts)part & 0xff) | high << 8);
                put(half * HALF + HALF / 2 + j / 2, (shorts)part >> 8 | (high & 0xff00));
            }
        }
    }
};

// 32 rows, from the first number to the last: what stands behind them is fetched meanwhile, in four streams side by side.
struct LosslessBlock {
    const Lossless& matrix;
    const uint8_t *rows, *behind;
    const int32_t *exception, *end;
    LosslessBlock(const Lossless& matrix, long row) : matrix(matrix) {
        const long block = (row + Lossless::BLOCK_ROWS - 1) / Lossless::BLOCK_ROWS, size = Lossless::BLOCK_ROWS * matrix.bytes_of_row;
        rows = matrix.records + block * size, behind = rows + size;
        exception = matrix.exceptions + matrix.starts[block], end = matrix.exceptions + matrix.starts[block + 1];
    }
    // Numbers k to k + n, k and n in whole units: of each 32, 32 rows one after the other.
    void unpack(long k, long n, bfloat16* y) {
        const long row_bytes = matrix.bytes_of_row, stream = Lossless::BLOCK_ROWS / 4 * row_bytes, first = k / Lossless::UNIT;
        const long units = (n + Lossless::UNIT - 1) / Lossless::UNIT, codes = matrix.units * Lossless::UNIT;
        const bytes table = matrix.table;  // for the compiler, which cannot know that y is not the matrix
        const uint8_t* row = rows;
        for (long r = 0; r < Lossless::BLOCK_ROWS; r++, row += row_bytes)
            for (long u = 0; u < units; u++) {
                const uint8_t* ahead = behind + r % 4 * stream + (8 * first + r / 4 * units + u) * Lossless::RECORD;
                for (int i = 0; i < Lossless::RECORD; i += 64) __builtin_prefetch(ahead + i, 0, 2);
                bfloat16* numbers = y + Lossless::BLOCK_ROWS * (u * Lossless::UNIT + r);
                Lossless::unpack_unit(row + (first + u) * Lossless::UNIT, row + codes + (first + u) * Lossless::HALF, table, [&](long i, shorts part) {
                    memcpy(numbers + i / 32 * 32 * Lossless::BLOCK_ROWS + i % 32, &part, sizeof part);
                });
            }
        for (; exception < end && Lossless::place_of(*exception) < k + n; exception++) {
            const long place = Lossless::place_of(*exception) - k;
            ((uint8_t*)(y + place / 32 * 32 * Lossless::BLOCK_ROWS + Lossless::row_of(*exception) * 32 + place % 32))[1] = (uint8_t)*exception;
        }
    }
};

// Rows of such a matrix, by number or all. p: y records high_bytes starts exceptions ids; n: how many, N, K, type of y.
static void unpacked_rows(const Entry& e, const Worker& worker) {
    const long K = e.n[2];
    const Lossless matrix(K, e.n[1], e.p[1], e.p[2], e.p[3], e.p[4]);
    share(worker, e.n[0], std::max<long>(1, PIECE / K), [&](long first, long last) {
        bfloat16* numbers = scratch<bfloat16>(4, matrix.units * Lossless::UNIT);
        for (long i = first; i < last; i++) {
            matrix.unpack(e.p[5] ? ((const int64_t*)e.p[5])[i] : i, numbers);
            if (e.n[3] == BFLOAT16) memcpy((bfloat16*)e.p[0] + i * K, numbers, K * sizeof(bfloat16));
            else widen(numbers, K, (float*)e.p[0] + i * K);
        }
    });
}
