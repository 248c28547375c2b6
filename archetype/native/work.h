// What an operation is, how its work is shared by threads, and numbers of any type as float32.
#pragma once
#include "arguments.h"
#include "vector.h"

#include <algorithm>
#include <atomic>
#include <vector>
#if !defined(_WIN32)
#include <sched.h>
#endif

// Entries that are serial are computed by the first thread alone; before one with `barrier` all threads wait for each other.
struct Entry {
    int32_t operation, serial, barrier;
    const void* arguments;  // the struct that stands at the operation's head
};

ENUMERATION(enum, Type, FLOAT32, BFLOAT16, INT64, BOOL, INT8, INT4, LOSSLESS)

// A type of numbers that are computed with.
struct Float {
    Type type;
    operator Type() const { return type; }
};
static inline const char* kind(const Float&) { return "Float"; }
static inline bool is_valid(const Float& x) { return x == FLOAT32 || x == BFLOAT16; }
constexpr int MAX_THREADS = 256;
constexpr long PIECE = 32768;  // bytes of weights that a thread takes at a time

struct alignas(64) Counter {
    std::atomic<long> next;
};

// The first number of a run by which no memory may be reached: a row that is none, or a place behind a cache.
struct WrongIndex {
    std::atomic<bool> is_set{false};
    std::atomic<long> entry{-1};
    int64_t index, count;
};

struct Worker {
    int thread, threads;
    Counter* counters;  // of the present entry, one of each thread's share
    WrongIndex* wrong;
    long entry;
    // Whether an index is one of so many. If it is not, the caller leaves out what it would reach, and nothing behind is computed.
    bool is_index(int64_t index, int64_t count) const {
        if ((uint64_t)index < (uint64_t)count) return true;
        long none = -1;
        if (wrong->entry.compare_exchange_strong(none, entry)) wrong->index = index, wrong->count = count;
        wrong->is_set = true;
        return false;
    }
};

static inline void spin() {
#if defined(__x86_64__)
    _mm_pause();
#endif
}

class Barrier {
  public:
    void wait(int threads) {
        if (threads == 1) return;
        int before = phase.load(std::memory_order_relaxed);
        if (arrived.fetch_add(1) == threads - 1) {
            arrived.store(0, std::memory_order_relaxed);
            phase.fetch_add(1);
            return;
        }
        for (int spins = 0; phase.load(std::memory_order_acquire) == before;) {
            spin();
            if (++spins == 500) {  // another program may have this core
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

// Call body(first, last) for all of 0..total in pieces: each thread its own share first, then what others have left.
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

template <class T> static T* scratch(int slot, size_t size) {  // one buffer a thread and slot, 64 bytes aligned
    static thread_local std::vector<char> buffers[5];
    auto& buffer = buffers[slot];
    if (buffer.size() < size * sizeof(T) + 64) buffer.resize(size * sizeof(T) + 64);
    return (T*)(((uintptr_t)buffer.data() + 63) & ~(uintptr_t)63);
}

static inline float get(const void* p, int type, long i) {
    switch (type) {
        case FLOAT32: return ((const float*)p)[i];
        case BFLOAT16: return to_float(((const bfloat16*)p)[i]);
        case INT64: return (float)((const int64_t*)p)[i];
        default: return ((const uint8_t*)p)[i];
    }
}

static inline void put(void* p, int type, long i, float x) {
    switch (type) {
        case FLOAT32: ((float*)p)[i] = x; break;
        case BFLOAT16: ((bfloat16*)p)[i] = to_bfloat16(x); break;
        case INT64: ((int64_t*)p)[i] = (int64_t)x; break;
        default: ((uint8_t*)p)[i] = x != 0;
    }
}

static inline void widen(const bfloat16* p, long n, float* y) {
    long i = 0;
    for (; i + W <= n; i += W) store(y + i, load(p + i));
    for (; i < n; i++) y[i] = to_float(p[i]);
}

// n numbers in the type of p, from its place `start` on.
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
    } else
        for (long i = 0; i < n; i++) put(p, type, start + i * stride, x[i]);
}

// n numbers as float32: in place where they are, else in a buffer.
static const float* as_floats(const void* p, int type, long start, long stride, long n, float* buffer) {
    if (type == FLOAT32 && stride == 1) return (const float*)p + start;
    if (stride == 0) std::fill(buffer, buffer + n, get(p, type, start));
    else if (type == FLOAT32)
        for (long i = 0; i < n; i++) buffer[i] = ((const float*)p)[start + i * stride];
    else if (type == BFLOAT16 && stride == 1) widen((const bfloat16*)p + start, n, buffer);
    else if (type == BFLOAT16)
        for (long i = 0; i < n; i++) buffer[i] = to_float(((const bfloat16*)p)[start + i * stride]);
    else
        for (long i = 0; i < n; i++) buffer[i] = get(p, type, start + i * stride);
    return buffer;
}
