// bfloat16 matrices compressed to 12 bits a number without loss. The low byte of a number (last bit of the exponent, mantissa) is stored
// as it is. The high byte becomes four bits: the sign, and a code for the eight most common high bytes of the matrix (without signs).
// Numbers with another high byte are listed as exceptions.
#pragma once
#include "work.h"

typedef uint8_t bytes __attribute__((vector_size(4 * W)));
typedef uint16_t shorts __attribute__((vector_size(4 * W)));

// table[which[i]] for each byte, which[i] < 16. Every 16 bytes of `table` repeat the table, since instructions look up within 16 bytes.
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
    // Numbers of a unit; bytes of a unit (low bytes, then codes); rows that are stored interleaved, unit by unit.
    static constexpr long UNIT = 128, HALF = UNIT / 2, RECORD = UNIT + HALF, BLOCK_ROWS = 32;
    const long K, N, units;
    const uint8_t* const records;
    // Block b has the exceptions from starts[b] to starts[b + 1], sorted by position: position in the row << 13 | row in the block << 8 |
    // high byte.
    const int32_t *const starts, *const exceptions;
    bytes table;  // high byte of each 4-bit code: without the sign, then with it

    Lossless(long K, long N, const uint8_t* records, const uint8_t* high_bytes, const int32_t* starts, const int32_t* exceptions)
        : K(K), N(N), units((K + UNIT - 1) / UNIT), records(records), starts(starts), exceptions(exceptions) {
        for (int i = 0; i < 4 * W; i++) table[i] = high_bytes[i % 8] | (i % 16 / 8) << 7;
    }

    // Where a row is stored. If N is not a multiple of 32, the last block holds the last 32 rows, some of them for a second time.
    long stored(long row) const {
        return row < N / BLOCK_ROWS * BLOCK_ROWS || N % BLOCK_ROWS == 0 ? row : row + BLOCK_ROWS - N % BLOCK_ROWS;
    }

    // Unpack one row into y, in whole units; prefetches the row that is 8 rows further.
    void unpack(long row, bfloat16* y) const {
        const long at = stored(row), block = at / BLOCK_ROWS;
        const uint8_t* record = block_at(block) + at % BLOCK_ROWS * RECORD;
        const bytes high_bytes = table;  // a local copy: for all the compiler knows, writing to y could change `table`
        for (long u = 0, n = units; u < n; u++, record += BLOCK_ROWS * RECORD, y += UNIT) {
            for (int i = 0; i < RECORD; i += 64) __builtin_prefetch(record + 8 * RECORD + i, 0, 2);
            unpack_unit(record, high_bytes, [&](long i, shorts part) { memcpy(y + i, &part, sizeof part); });
        }
        y -= units * UNIT;
        for (const int32_t *e = exceptions + starts[block], *end = exceptions + starts[block + 1]; e < end; e++)
            if (row_of(*e) == at % BLOCK_ROWS) ((uint8_t*)(y + place_of(*e)))[1] = (uint8_t)*e;  // the high byte
    }

    // A block holds the first unit of each of its rows, then the second unit of each row, and so on.
    const uint8_t* block_at(long block) const { return records + block * units * BLOCK_ROWS * RECORD; }
    static long place_of(int32_t exception) { return exception >> 13; }
    static long row_of(int32_t exception) { return exception >> 8 & 31; }

    // Unpack a unit of one row: put(i, part) receives numbers i, i + 1, ... as a vector. In each half of 64 numbers, the low bytes of
    // numbers i and i + 32 alternate, so that the two bytes of a 16-bit lane belong to two vectors. A byte of codes has the code of a
    // number of the first half in its low four bits, and of the second half in its high four bits.
    template <class Put> static inline void unpack_unit(const uint8_t* low, bytes table, Put put) {
#pragma GCC unroll 4
        for (long j = 0; j < HALF; j += 4 * W) {
            bytes code, part;
            memcpy(&code, low + UNIT + j, sizeof code);
            for (int half = 0; half < 2; half++) {
                memcpy(&part, low + half * HALF + j, sizeof part);
                const shorts high = (shorts)look_up(table, half ? code >> 4 : code & 15);
                put(half * HALF + j / 2, ((shorts)part & 0xff) | high << 8);
                put(half * HALF + HALF / 2 + j / 2, (shorts)part >> 8 | (high & 0xff00));
            }
        }
    }
};

// Unpacks 32 rows from left to right. Meanwhile the next block is prefetched in four parallel streams.
struct LosslessBlock {
    const bytes table;
    const uint8_t *record, *behind;  // next unit of this block; where the first stream of prefetches in the next block has arrived
    const long stream;  // bytes between streams
    const int32_t *exception, *const end;  // next exception of this block
    LosslessBlock(const Lossless& matrix, long block)
        : table(matrix.table), record(matrix.block_at(block)), behind(matrix.block_at(block + 1)), stream((behind - record) / 4),
          exception(matrix.exceptions + matrix.starts[block]), end(matrix.exceptions + matrix.starts[block + 1]) {}

    // Unpack the next unit of all rows, which begins at number k, into tiles: y[number / 32][row][number % 32].
    void unpack_next(long k, bfloat16* y) {
        constexpr long ROWS = Lossless::BLOCK_ROWS;
        const uint8_t *next = record, *ahead = behind;
        const bytes high_bytes = table;
        for (long r = 0; r < ROWS; r++, next += Lossless::RECORD) {
            for (int i = 0; i < Lossless::RECORD; i += 64) __builtin_prefetch(ahead + r % 4 * stream + r / 4 * Lossless::RECORD + i, 0, 2);
            Lossless::unpack_unit(next, high_bytes,
                                  [&](long i, shorts part) { memcpy(y + i / 32 * 32 * ROWS + r * 32 + i % 32, &part, sizeof part); });
        }
        record = next, behind = ahead + ROWS / 4 * Lossless::RECORD;
        // Exceptions are sorted by position, so those of this unit come next.
        for (; exception < end && Lossless::place_of(*exception) < k + Lossless::UNIT; exception++) {
            const long place = Lossless::place_of(*exception) - k;
            ((uint8_t*)(y + place / 32 * 32 * ROWS + Lossless::row_of(*exception) * 32 + place % 32))[1] = (uint8_t)*exception;
        }
    }
};

// Rows of a lossless matrix by index, or all rows.
struct UnpackedRowsArguments {
    void* y;
    const uint8_t *records, *high_bytes;
    const int32_t* starts;
    Optional<int32_t> exceptions;  // null if there are none
    Optional<int64_t> ids;
    int64_t count;  // number of ids, or of rows
    int64_t rows, features;  // of the matrix; of a stack, the rows of all matrices
    Float y_type;
    FIELDS(y, records, high_bytes, starts, exceptions, ids, count, rows, features, y_type)
};

static void unpacked_rows(const UnpackedRowsArguments& a, const Worker& worker) {
    const long K = a.features;
    const Lossless matrix(K, a.rows, a.records, a.high_bytes, a.starts, a.exceptions);
    share(worker, a.count, std::max<long>(1, PIECE / K), [&](long first, long last) {
        bfloat16* numbers = scratch<bfloat16>(4, matrix.units * Lossless::UNIT);
        for (long i = first; i < last; i++) {
            const long row = a.ids ? a.ids[i] : i;
            if (!worker.is_index(row, a.rows)) return;
            matrix.unpack(row, numbers);
            if (a.y_type == BFLOAT16) memcpy((bfloat16*)a.y + i * K, numbers, K * sizeof(bfloat16));
            else widen(numbers, K, (float*)a.y + i * K);
        }
    });
}
