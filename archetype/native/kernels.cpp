// The table of native operations, and the interpreter of a list of them: one parallel region, in which all threads compute each entry.
#include "attention.h"
#include "attention_backward.h"
#include "attention_forward.h"
#include "elementwise.h"
#include "product.h"
#include "rows.h"
#include "fused.h"

struct Operation {
    void (*compute)(const void* arguments, const Worker&);
    int (*fault)(const void* arguments);
    void (*describe)(Text&);
};

// The struct of an operation's arguments, taken from the signature of its function, so that the three functions below cannot disagree.
template <class A> static A arguments_of(void (*)(const A&, const Worker&));
#define OPERATION(name)                                                                        \
    {[](const void* a, const Worker& w) { name(*(const decltype(arguments_of(name))*)a, w); }, \
     [](const void* a) { return fault_of(*(const decltype(arguments_of(name))*)a); },          \
     [](Text& text) { describe<decltype(arguments_of(name))>(#name, text); }}

// In the order of the classes in operations.py: the index is the operation's number there.
static const Operation operations[] = {
    OPERATION(product),
    OPERATION(batched_product),
    OPERATION(attend),
    OPERATION(join_parts),
    OPERATION(append),
    OPERATION(append_scaled),
    OPERATION(copy_places),
    OPERATION(pointwise),
    OPERATION(rows),
    OPERATION(rms_norm_backward),
    OPERATION(embedding),
    OPERATION(quantized_embedding),
    OPERATION(unpacked_rows),
    OPERATION(topk),
    OPERATION(gather),
    OPERATION(gated),
    OPERATION(gated_backward),
    OPERATION(rotate),
    OPERATION(dropout),
    OPERATION(attention_forward),
    OPERATION(attention_backward),
};
constexpr int OPERATIONS = sizeof operations / sizeof *operations;

// One line for each list of names and for each operation. Python compares them with its own before it uses the library.
extern "C" const char* description() {
    static const Text text = [] {
        Text lines;
        lines.add("Entry, %d bytes\n", (int)sizeof(Entry));
        lines.add("Type: %s\nFunction: %s\nRow: %s\nGate: %s\n", Type_NAMES, Function_NAMES, Row_NAMES, Gate_NAMES);
        for (const Operation& operation : operations) operation.describe(lines);
        return lines;
    }();
    return text.all();
}

// Check an entry: 0 if valid, -1 if the operation is unknown, -2 if it has no arguments, else as fault_of.
extern "C" int fault(const Entry* entry) {
    if (entry->operation < 0 || entry->operation >= OPERATIONS) return -1;
    return entry->arguments ? operations[entry->operation].fault(entry->arguments) : -2;
}

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

extern "C" int differentiates_attention() {  // whether attention_backward computes anything on this processor
    return has_tiles() || has_attention_forward();
}

// Kernels run on the threads of torch's OpenMP runtime. Python finds its functions and passes them in (library.py), so that nothing is
// linked, any compiler can build this library, and there is only one pool of threads. Without them, one thread computes everything.
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
    Counter* counters;  // (entries, threads)
    Barrier barrier;
    WrongIndex wrong;
};

// One thread's part of a run. Every thread walks through the whole list and waits only at barriers, so that a fast thread may
// already compute later entries.
static void take_part(void* data) {
    Run& run = *(Run*)data;
    Worker worker{0, 1, run.counters, &run.wrong, 0};
    // OpenMP may have started fewer threads than requested, so ask it for their number.
    if (openmp.parallel) worker.thread = openmp.thread(), worker.threads = openmp.threads();
    for (long i = 0; i < run.count; i++) {
        const Entry& e = run.entries[i];
        if (e.barrier) run.barrier.wait(worker.threads);
        // After a wrong index, compute nothing more, but still arrive at each barrier, where other threads may be waiting.
        if (run.wrong.is_set.load(std::memory_order_relaxed)) continue;
        worker.counters = run.counters + i * worker.threads;
        worker.entry = i;
        const auto compute = operations[e.operation].compute;
        if (!e.serial) compute(e.arguments, worker);
        // Always the same thread, so that serial entries follow each other in order without barriers.
        else if (worker.thread == 0) compute(e.arguments, Worker{0, 1, worker.counters, worker.wrong, i});
    }
}

// Compute the entries in order, with `threads` threads in one parallel region. Returns
//   0: everything was computed;
//   1 + index of an invalid entry: nothing was computed;
//   -1 - index of an entry that met an index out of range: `wrong` is that index and the size that it exceeds, and results are incomplete.
extern "C" long run(const Entry* entries, long count, int threads, int64_t* wrong) {
    for (long i = 0; i < count; i++)
        if (fault(entries + i)) return i + 1;
    static thread_local std::vector<Counter> counters;  // kept, so that a step allocates nothing
    threads = openmp.parallel ? std::min(threads, MAX_THREADS) : 1;
    if ((long)counters.size() < count * threads) counters = std::vector<Counter>(count * threads);
    for (long i = 0; i < count * threads; i++) counters[i].next.store(0, std::memory_order_relaxed);
    Run run{entries, count, counters.data(), {}, {}};
    if (openmp.parallel) openmp.parallel(take_part, &run, threads, 0);
    else take_part(&run);
    if (!run.wrong.is_set) return 0;
    wrong[0] = run.wrong.index, wrong[1] = run.wrong.count;
    return -1 - run.wrong.entry;
}
