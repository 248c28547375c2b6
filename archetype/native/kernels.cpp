// The operations of a decoding step, each computed by all threads of one parallel region, and a list of them in turn.
#include "attention.h"
#include "attention_backward.h"
#include "attention_forward.h"
#include "elementwise.h"
#include "product.h"
#include "rows.h"
#include "fused.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

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

// Compute the entries one after the other, by `threads` threads of one parallel region.
extern "C" void run(const Entry* entries, long count, int threads) {
    static thread_local std::vector<Counter> counters;
    threads = std::min(threads, MAX_THREADS);
    if ((long)counters.size() < count * threads) counters = std::vector<Counter>(count * threads);
    Counter* const all = counters.data();
    for (long i = 0; i < count * threads; i++) all[i].next.store(0, std::memory_order_relaxed);
    Barrier barrier;
#if defined(_OPENMP)
#pragma omp parallel num_threads(threads)
#endif
    {
        Worker worker{0, 1, all};
#if defined(_OPENMP)
        worker.thread = omp_get_thread_num();
        worker.threads = omp_get_num_threads();
#endif
        for (long i = 0; i < count; i++) {
            const Entry& e = entries[i];
            if (e.barrier) barrier.wait(worker.threads);
            worker.counters = all + i * threads;
            if (!e.serial) operations[e.operation](e, worker);
            else if (worker.thread == 0) operations[e.operation](e, Worker{0, 1, worker.counters});
        }
    }
}
