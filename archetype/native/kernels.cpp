// The operations of a decoding step, each computed by all threads of one parallel region, and a list of them in turn.
#include "attention.h"
#include "attention_backward.h"
#include "attention_forward.h"
#include "elementwise.h"
#include "product.h"
#include "rows.h"
#include "fused.h"

typedef void (*Operation)(const Entry&, const Worker&);
static const Operation operations[] = {product, batched_product, attend, append, pointwise, rows, embedding, quantized_embedding, topk, gather,
                                       gated, gated_backward, rotate, dropout, rms_norm_backward, attention_forward, attention_backward, copy_places, unpacked_rows};

extern "C" int lanes() { return W; }

extern "C" int has_tiles() {
#if defined(HAS_TILES)
    return tiles_are_allowed();
#else
    return 0;
#endif
}

extern "C" int has_attention_forward() {
#if defined(HAS_ATTENTION_FORWARD)
    return 1;
#else
    return 0;
#endif
}

extern "C" int differentiates_attention() {  // whether there is attention_backward on this processor
    return has_tiles() || has_attention_forward();
}

extern "C" int entry_bytes() { return sizeof(Entry); }

// The pool of threads is that of torch's OpenMP runtime, whose functions whoever opens this library finds and gives: so
// nothing is linked, and any compiler will do. Without them one thread computes everything.
static struct {
    void (*parallel)(void (*body)(void*), void* data, unsigned threads, unsigned flags);
    int (*thread)();
    int (*threads)();
} openmp;

extern "C" void use_openmp(void* parallel, void* thread, void* threads) {
    openmp = {(decltype(openmp.parallel))parallel, (decltype(openmp.thread))thread, (decltype(openmp.threads))threads};
}

struct Run {
    const Entry* entries;
    long count;
    Counter* counters;  // of each entry one for each thread
    Barrier barrier;
};

// One thread's part of a run.
static void take_part(void* data) {
    Run& run = *(Run*)data;
    Worker worker{0, 1, run.counters};
    if (openmp.parallel) worker.thread = openmp.thread(), worker.threads = openmp.threads();
    for (long i = 0; i < run.count; i++) {
        const Entry& e = run.entries[i];
        if (e.barrier) run.barrier.wait(worker.threads);
        worker.counters = run.counters + i * worker.threads;
        if (!e.serial) operations[e.operation](e, worker);
        else if (worker.thread == 0) operations[e.operation](e, Worker{0, 1, worker.counters});
    }
}

// Compute the entries one after the other, by `threads` threads of one parallel region.
extern "C" void run(const Entry* entries, long count, int threads) {
    static thread_local std::vector<Counter> counters;
    threads = openmp.parallel ? std::min(threads, MAX_THREADS) : 1;
    if ((long)counters.size() < count * threads) counters = std::vector<Counter>(count * threads);
    for (long i = 0; i < count * threads; i++) counters[i].next.store(0, std::memory_order_relaxed);
    Run run{entries, count, counters.data(), {}};
    if (openmp.parallel) openmp.parallel(take_part, &run, threads, 0);
    else take_part(&run);
}
