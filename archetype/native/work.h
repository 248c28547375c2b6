// Entries of a list of operations, how threads share an entry's work, and conversions between float32 and other data types.
#pragma once
#include "arguments.h"
#include "vector.h"

#include <algorithm>
#include <atomic>
#include <vector>
#if !defined(_WIN32)
#include <sched.h>
#endif

// A serial entry is computed by the first thread. Before an entry with `barrier`, all threads wait for each other; recorder.py decides
// which entries need one.
struct Entry {
    int32_t operation, serial, barrier;
    const void* arguments;  // the operation's struct, such as ProductArguments
};

ENUMERATION(enum, Type, FLOAT32, BFLOAT16, INT64, BOOL, INT8, INT4, LOSSLESS, FLOAT16)

// A data type that kernels compute in; the other types are only stored or indices.
struct Float {
    Type type;
    operator Type() const { return type; }
};
static inline const char* kind(const Float&) { return "Float"; }
static inline bool is_valid(const Float& x) { return x == FLOAT32 || x == BFLOAT16; }

// A data type of a cache, which kernels read and write but do not compute in.
struct Cached {
    Type type;
    operator Type() const { return type; }
};
static inline const char* kind(const Cached&) { return "Cached"; }
static inline bool is_valid(const Cached& x) { return x == FLOAT32 || x == BFLOAT16 || x == FLOAT16 || x == INT8; }
constexpr int MAX_THREADS = 256;
constexpr long PIECE = 32768;  // bytes of weights that a thread takes at a time

// How much of one thread's share of an entry has been taken. A cache line each, so that threads do not slow each other down.
struct alignas(64) Counter {
    std::atomic<long> next;
};

// The first index of a run that is out of range (token, expert, cache position), for the error message.
struct WrongIndex {
    std::atomic<bool> is_set{false};
    std::atomic<long> entry{-1};
    int64_t index, count;
};

struct Worker {
    int thread, threads;
    Counter* counters;  // (threads) of the current entry
    WrongIndex* wrong;
    long entry;
    // Check an index before memory is accessed through it. If it is out of range, the caller must skip the access; the error is recorded,
    // and later entries are not computed.
    bool is_index(int64_t index, int64_t count) const {
        if ((uint64_t)index < (uint64_t)count) return true;  // a negative index becomes a large number
        long none = -1;
        // Only the first thread writes the details, which are read after the parallel region.
        if (wrong->entry.compare_exchange_strong(none, entry)) wrong->index = index, wrong->count = count;
        wrong->is_set = true;
        return false;
    }
};

static inline void spin() {  // one iteration of a spin wait, which leaves the core's other hardware thread more of the core
#if defined(__x86_64__)
    _mm_pause();
#endif
}

// A barrier on which threads spin. `arrived` counts the threads of the current phase; the last one starts the next phase.
class Barrier {
  public:
    void wait(int threads) {
        if (threads == 1) return;
        int before = phase.load(std::memory_order_relaxed);  // before arriving: afterwards, the phase may already have changed
        if (arrived.fetch_add(1) == threads - 1) {
            arrived.store(0, std::memory_order_relaxed);  // before the others are released, who may arrive at the next barrier at once
            phase.fetch_add(1);
            return;
        }
        // Acquire: what other threads wrote before the barrier is visible after it.
        for (int spins = 0; phase.load(std::memory_order_acquire) == before;) {
            spin();
            if (++spins == 500) {  // the awaited thread may have lost its core to another program: offer this one
                spins = 0;
#if !defined(_WIN32)
                sched_yield();
#endif
            }
        }
    }

  private:
    std::atomic<int> arrived{0}, phase{0};
};

// Call body(first, last) for 0..total in pieces. Each thread computes its own share first, then steals pieces that others have not begun.
template <class Body> static void share(const Worker& worker, long total, long piece, Body body) {
    for (int i = 0; i < worker.threads; i++) {
        int owner = (worker.thread + i) % worker.threads;
        long low = total * owner / worker.threads, high = total * (owner + 1) / worker.threads;
        if (low == high) continue;
        for (;;) {
            long first = low + worker.counters[owner].next.fetch_add(piece, std::memory_order_relaxed);
            if (first >= high) break;
            body(first, std::min(high, first + piece));
        }
    }
}

// A buffer of this thread, aligned to 64 bytes. It is reused: the next call with the same slot returns the same memory.
template <class T> static T* scratch(int slot, size_t size) {
    static thread_local std::vector<char> buffers[5];
    auto& buffer = buffers[slot];
    if (buffer.size() < size * sizeof(T) + 64) buffer.resize(size * sizeof(T) + 64);
    return (T*)(((uintptr_t)buffer.data() + 63) & ~(uintptr_t)63);
}

static inline float get(const void* p, int type, long i) {
    switch (type) {
        case FLOAT32: return ((const float*)p)[i];
        case BFLOAT16: return to_float(((const bfloat16*)p)[i]);
        case FLOAT16: return to_float(((const float16*)p)[i]);
        case INT64: return (float)((const int64_t*)p)[i];
        default: return ((const uint8_t*)p)[i];
    }
}

static inline void put(void* p, int type, long i, float x) {
    switch (type) {
        case FLOAT32: ((float*)p)[i] = x; break;
        case BFLOAT16: ((bfloat16*)p)[i] = to_bfloat16(x); break;
        case FLOAT16: ((float16*)p)[i].bits = to_half(x); break;
        case INT64: ((int64_t*)p)[i] = (int64_t)x; break;
        default: ((uint8_t*)p)[i] = x != 0;
    }
}

template <class T> static inline void widen(const T* p, long n, float* y) {
    long i = 0;
    for (; i + W <= n; i += W) store(y + i, load(p + i));
    for (; i < n; i++) y[i] = to_float(p[i]);
}

// Store n numbers of x, converted to a data type, at p[start], p[start + stride], ...
static inline void put_all(void* p, int type, long start, long stride, long n, const float* x) {
    if (type == BFLOAT16) {
        bfloat16* y = (bfloat16*)p + start;
        long i = 0;
        for (; stride == 1 && i + W <= n; i += W) store(y + i, load(x + i));
        for (; i < n; i++) y[i * stride] = to_bfloat16(x[i]);
    } else if (type == FLOAT32) {
        float* y = (float*)p + start;
        if (stride == 1) memcpy(y, x, n * sizeof(float));
        else
            for (long i = 0; i < n; i++) y[i * stride] = x[i];
    } else {
        long i = 0;
        for (; type == FLOAT16 && stride == 1 && i + W <= n; i += W) store((float16*)p + start + i, load(x + i));
        for (; i < n; i++) put(p, type, start + i * stride, x[i]);
    }
}

// Return n numbers of p as contiguous float32: p itself if they already are, else `buffer` with a copy.
static const float* as_floats(const void* p, int type, long start, long stride, long n, float* buffer) {
    if (type == FLOAT32 && stride == 1) return (const float*)p + start;
    if (stride == 0) std::fill(buffer, buffer + n, get(p, type, start));  // broadcast
    else if (type == FLOAT32)
        for (long i = 0; i < n; i++) buffer[i] = ((const float*)p)[start + i * stride];
    else if (type == BFLOAT16 && stride == 1) widen((const bfloat16*)p + start, n, buffer);
    else if (type == FLOAT16 && stride == 1) widen((const float16*)p + start, n, buffer);
    else if (type == BFLOAT16)
        for (long i = 0; i < n; i++) buffer[i] = to_float(((const bfloat16*)p)[start + i * stride]);
    else
        for (long i = 0; i < n; i++) buffer[i] = get(p, type, start + i * stride);
    return buffer;
}
