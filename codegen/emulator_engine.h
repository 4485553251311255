// The process that runs emulated kernels: one fiber per CUDA thread, buffers between guard pages, poisoned memory.
// usage: engine JOB OUTPUT. JOB is lines of words written by tilewright.runtime.emulator; answers go to stdout.
#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <unordered_map>
#include <vector>

#include "emulator.h"

static const size_t PAGE = 65536;  // a multiple of every page size in use
static const size_t GUARD = 1 << 28;  // address space only: far accesses hit it too
static const size_t STACK = 1 << 18;
static const unsigned char POISON = 0xff;  // a nan in every float type

// -- where we are, and how a failure is told ------------------------------------------------------------------------
TwIndex threadIdx, blockIdx;
static int launch_number = -1, running = -1;
// Blocks of a cluster run together: fiber b * block_threads + t is thread t of block b.
static unsigned block_threads, cluster_blocks = 1;

[[noreturn]] static void stop(const char* format, ...) {
    va_list list;
    va_start(list, format);
    const int thread = running < 0 || !block_threads ? running : running % (int)block_threads;
    printf("error launch=%d block=%u,%u,%u thread=%d ", launch_number, blockIdx.x, blockIdx.y, blockIdx.z, thread);
    vprintf(format, list);
    printf("\n");
    fflush(stdout);
    _exit(3);
}
extern "C" void tw_fail(const char* what, int line) { stop("line=%d text=%s", line, what); }
extern "C" unsigned long long tw_nanoseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

// -- handlers that -fsanitize=bounds,alignment calls; ours name the thread and need no library -------------------
struct Place { const char* file; unsigned int line, column; };
struct ArrayFault { Place place; void *array, *index; };
struct PointerFault { Place place; void* type; unsigned char log_alignment, kind; };
extern "C" void __ubsan_handle_out_of_bounds_abort(ArrayFault* fault, unsigned long index) {
    stop("line=%u text=index %ld is outside of the array", fault->place.line, (long)index);
}
extern "C" void __ubsan_handle_out_of_bounds(ArrayFault* fault, unsigned long index) {
    __ubsan_handle_out_of_bounds_abort(fault, index);
}
extern "C" void __ubsan_handle_type_mismatch_v1_abort(PointerFault* fault, unsigned long pointer) {
    stop("line=%u text=an access of %u-byte alignment at an address that is %lu past it", fault->place.line,
         1u << fault->log_alignment, pointer % (1ul << fault->log_alignment));
}
extern "C" void __ubsan_handle_type_mismatch_v1(PointerFault* fault, unsigned long pointer) {
    __ubsan_handle_type_mismatch_v1_abort(fault, pointer);
}

// -- fibers ----------------------------------------------------------------------------------------------------------
#if defined(__x86_64__)
extern "C" void tw_switch(void** from, void* to);
asm(R"(
.text
.globl tw_switch
.type tw_switch,@function
tw_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size tw_switch,.-tw_switch
)");
static void* fresh_stack(char* end, void (*start)()) {
    void** top = (void**)end;
    *--top = nullptr;  // keeps the ABI's alignment at the entry of `start`
    *--top = (void*)start;
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    return top;
}
#elif defined(__aarch64__)
extern "C" void tw_switch(void** from, void* to);
asm(R"(
.text
.globl tw_switch
.type tw_switch,%function
tw_switch:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
.size tw_switch,.-tw_switch
)");
static void* fresh_stack(char* end, void (*start)()) {
    void** top = (void**)(end - 160);
    memset(top, 0, 160);
    top[11] = (void*)start;
    return top;
}
#else
#define TW_UCONTEXT 1
static void tw_switch(void** from, void* to) { swapcontext((ucontext_t*)*from, (ucontext_t*)to); }
#endif

static const int CLUSTER = -1;  // number of the barrier of all threads of a cluster
enum State { READY, BARRIER, TOGETHER, WAITING, DONE };
struct Region { void* at; int bytes; };
struct Copy { void* target; const void* source; int bytes; bool keep; int group; };
struct Store { void (*act)(void*); void* own; int group; };
struct Product { TwProductOf act; float* sums; unsigned long long a, b; int group; };
struct Fiber {
    void* stack;
    char* memory;
    State state;
    int line;
    TwTogether act;
    void* own;
    std::vector<Copy> copies;
    int groups;
    std::vector<Product> products;
    int product_groups;
    std::vector<Store> stores;
    int store_groups;
    // at a barrier its number and threads (0: all of the block), waiting the barrier of a channel and the parity
    int number, threads;
    unsigned long long* barrier;
    int parity;
    const char* role;
    unsigned long long fenced;
};
static std::vector<Fiber> fibers;
static void* scheduler;
#ifdef TW_UCONTEXT
static ucontext_t scheduler_context;
#endif
static void (*entry)(void**);
static void** entry_args;

static void leave() { tw_switch(&fibers[running].stack, scheduler); }
static void fiber_main() {
    entry(entry_args);
    if (!fibers[running].stores.empty()) stop("line=-1 text=a thread ends while stores of tiles still read shared memory");
    fibers[running].state = DONE;
    leave();
    abort();
}
static char* guarded_stack() {
    char* memory = (char*)mmap(nullptr, PAGE + STACK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory + PAGE, STACK, PROT_READ | PROT_WRITE)) stop("line=-1 text=out of memory for stacks");
    return memory;
}
static void start_fiber(Fiber& f) {
    if (!f.memory) f.memory = guarded_stack();
    f.state = READY;
    f.copies.clear();
    f.groups = 0;
    f.products.clear();
    f.product_groups = 0;
    f.stores.clear();
    f.store_groups = 0;
    f.role = nullptr, f.barrier = nullptr, f.fenced = 0;
#ifdef TW_UCONTEXT
    scheduler = &scheduler_context;
    if (!f.stack) f.stack = new ucontext_t;
    ucontext_t* context = (ucontext_t*)f.stack;
    getcontext(context);
    context->uc_stack.ss_sp = f.memory + PAGE;
    context->uc_stack.ss_size = STACK;
    context->uc_link = nullptr;
    makecontext(context, fiber_main, 0);
#else
    f.stack = fresh_stack(f.memory + PAGE + STACK, fiber_main);
#endif
}

extern "C" void tw_barrier_of(int line, int number, int threads) {
    Fiber& f = fibers[running];
    f.state = BARRIER, f.line = line, f.number = number, f.threads = threads;
    leave();
}
extern "C" void tw_barrier(int line) { tw_barrier_of(line, 0, (int)block_threads); }
extern "C" void tw_together(int line, TwTogether act, void* own) {
    Fiber& f = fibers[running];
    f.state = TOGETHER, f.line = line, f.act = act, f.own = own;
    leave();
}

// -- asynchronous copies: the target is poison until the thread waits for its group ------------------------------
extern "C" void tw_copy(void* target, const void* source, int bytes, bool keep) {
    if ((unsigned long)target % bytes || (keep && (unsigned long)source % bytes))
        stop("line=-1 text=an asynchronous copy of %d bytes that is not aligned to them", bytes);
    memset(target, POISON, bytes);
    Fiber& f = fibers[running];
    f.copies.push_back({target, source, bytes, keep, f.groups});
}
// What threads copied is seen by asynchronous reads after a fence of who copied it, or of who starts the read.
struct Stamp { unsigned long long clock; int thread; };
static std::unordered_map<unsigned long, Stamp> stamps;
static unsigned long long clock_now;

static void land(const Copy& c, int thread) {
    if (c.keep) memcpy(c.target, c.source, c.bytes);
    else memset(c.target, 0, c.bytes);
    if (c.bytes == 16) stamps[(unsigned long)c.target] = {++clock_now, thread};
}
extern "C" void tw_fence() { fibers[running].fenced = ++clock_now; }
static void check_fenced(unsigned long long tile) {
    auto found = stamps.find(tile << 2 >> 2 << 4);
    if (found == stamps.end()) return;
    const Stamp& s = found->second;
    if (fibers[running].fenced < s.clock && fibers[s.thread].fenced < s.clock)
        stop("line=-1 text=an asynchronous multiplication reads what thread %d copied with no fence between", s.thread);
}
extern "C" void tw_commit() { ++fibers[running].groups; }
extern "C" void tw_wait(int pending) {
    Fiber& f = fibers[running];
    size_t kept = 0;
    for (const Copy& c : f.copies) {
        if (c.group >= f.groups - pending) f.copies[kept++] = c;
        else land(c, running);
    }
    f.copies.resize(kept);
}

// -- multiplications of warpgroups: done as late as they may be, so that a missing wait shows --------------------
extern "C" void tw_multiply(TwProductOf act, float* sums, unsigned long long a, unsigned long long b) {
    Fiber& f = fibers[running];
    check_fenced(b);
    f.products.push_back({act, sums, a, b, f.product_groups});
}
extern "C" void tw_multiply_commit() { ++fibers[running].product_groups; }
extern "C" void tw_multiply_wait(int pending) {
    Fiber& f = fibers[running];
    size_t kept = 0;
    for (const Product& p : f.products) {
        if (p.group >= f.product_groups - pending) f.products[kept++] = p;
        else p.act(p.sums, p.a, p.b);
    }
    f.products.resize(kept);
}

// -- stores of tiles: shared memory is read as late as it may be, so that new values that come too early show -----
extern "C" void tw_store(void (*act)(void*), void* own) {
    Fiber& f = fibers[running];
    f.stores.push_back({act, own, f.store_groups});
}
extern "C" void tw_store_commit() { ++fibers[running].store_groups; }
extern "C" void tw_store_wait(int pending) {
    Fiber& f = fibers[running];
    size_t kept = 0;
    for (const Store& s : f.stores) {
        if (s.group >= f.store_groups - pending) f.stores[kept++] = s;
        else s.act(s.own);
    }
    f.stores.resize(kept);
}

#include "emulator_channels.h"

// -- one block ---------------------------------------------------------------------------------------------------
static unsigned long long order_seed;
static std::vector<int> order;
static std::vector<TwIndex> places;  // of the blocks of the cluster in the grid

static void shuffle_order() {
    const unsigned threads = block_threads * cluster_blocks;
    order.resize(threads);
    for (unsigned i = 0; i < threads; ++i) order[i] = i;
    if (!order_seed) return;
    for (unsigned i = threads; i > 1; --i) {
        order_seed = order_seed * 6364136223846793005ull + 1442695040888963407ull;
        const unsigned j = (unsigned)((order_seed >> 33) % i);
        const int kept = order[i - 1];
        order[i - 1] = order[j], order[j] = kept;
    }
}
// A warp that runs ahead goes on as far as it gets before the others of its block do, as one may on a GPU: what only
// a barrier of the warp stands before is not yet done by other warps. In order all run ahead, else half of them.
static bool runs_ahead() {
    if (!order_seed) return true;
    order_seed = order_seed * 6364136223846793005ull + 1442695040888963407ull;
    return order_seed >> 63;
}
// Runs a warp's common action once all its lanes wait for the same one. Returns the number of lanes that go on.
static int try_together(int thread) {
    const int inside = thread % block_threads / 32 * 32, first = thread / block_threads * block_threads + inside;
    const int count = (int)block_threads - inside < 32 ? (int)block_threads - inside : 32;
    void* lanes[32];
    for (int i = 0; i < count; ++i) {
        const Fiber &f = fibers[first + i], &start = fibers[first];
        if (f.state != TOGETHER || f.line != start.line || f.act != start.act) return 0;
        lanes[i] = f.own;
    }
    fibers[first].act(lanes, count);
    for (int i = 0; i < count; ++i) fibers[first + i].state = READY;
    return count;
}
static void run_thread(int thread) {
    running = thread;
    threadIdx = {thread % block_threads, 0, 0};
    blockIdx = places[thread / block_threads];
    tw_switch(&scheduler, fibers[thread].stack);
}
// Lets the lanes of a warp go on until they wait for something else than each other.
static void run_ahead(int thread, int lanes) {
    const int first = thread / block_threads * block_threads + thread % block_threads / 32 * 32;
    while (lanes) {
        int next = 0;
        for (int i = 0; i < lanes; ++i) {
            run_thread(first + i);
            if (fibers[first + i].state == TOGETHER) next = try_together(first + i);
        }
        lanes = next;
    }
}
static bool run_ready() {
    bool any = false;
    for (int thread : order) {
        if (fibers[thread].state == WAITING && passes(fibers[thread])) fibers[thread].state = READY;
        if (fibers[thread].state != READY) continue;
        any = true;
        run_thread(thread);
        if (fibers[thread].state != TOGETHER) continue;
        const int lanes = try_together(thread);
        if (lanes && runs_ahead()) run_ahead(thread, lanes);
    }
    return any;
}
static const char* doing(const Fiber& f, char* text) {
    if (f.state == DONE) snprintf(text, 80, "has ended");
    else if (f.line >= 0) snprintf(text, 80, "waits at the %s in line %d", f.state == BARRIER ? "barrier" : "shuffle", f.line);
    else snprintf(text, 80, "waits in a matrix operation of its warp");
    return text;
}
// All threads are stopped: at the same barrier, at their end, or somewhere that shows a divergence.
static bool next_phase() {
    if (!counters.empty() || cluster_blocks > 1) return next_of_roles();
    char one[80], other[80];
    for (unsigned i = 0; i < block_threads; ++i) {
        const Fiber &f = fibers[i], &first = fibers[0];
        const bool same = f.state == first.state && (f.state != BARRIER || f.line == first.line);
        if (same && f.state != TOGETHER) continue;
        unsigned with = 0;
        for (; with < block_threads - 1; ++with)
            if (fibers[with].state != f.state || fibers[with].line != f.line) break;
        running = (int)i;
        stop("line=%d text=the threads diverge: thread %u %s while thread %u %s", f.line, i, doing(f, one), with,
             doing(fibers[with], other));
    }
    if (fibers[0].state == DONE) return false;
    for (unsigned i = 0; i < block_threads; ++i) fibers[i].state = READY;
    return true;
}
static unsigned char *dynamic_shared, *dynamic_shared_end;
static size_t shared_stride;  // bytes from the dynamic shared memory of a block of the cluster to the next one's
extern "C" unsigned int tw_rank() { return running / block_threads; }
extern "C" unsigned char* tw_dynamic_shared() { return dynamic_shared + tw_rank() * shared_stride; }
// The same place in the shared memory of another block of the cluster.
extern "C" void* tw_in_block(const void* place, int rank) {
    if (rank >= (int)cluster_blocks) stop("line=-1 text=rank %d is named in a cluster of %u blocks", rank, cluster_blocks);
    const long offset = (const unsigned char*)place - tw_dynamic_shared();
    if (rank != (int)tw_rank() && (offset < 0 || offset >= (long)shared_stride))
        stop("line=-1 text=what other blocks of the cluster see lies outside of dynamic shared memory");
    return (unsigned char*)place + (rank - (long)tw_rank()) * (long)shared_stride;
}
extern "C" void tw_barrier_of_cluster(int line) { tw_barrier_of(line, CLUSTER, (int)(block_threads * cluster_blocks)); }

static void run_block(char* shared_start, char* shared_stop) {
    if (shared_start) memset(shared_start, POISON, shared_stop - shared_start);
    if (dynamic_shared) memset(dynamic_shared, POISON, dynamic_shared_end - dynamic_shared);
    const unsigned threads = block_threads * cluster_blocks;
    if (fibers.size() < threads) fibers.resize(threads);
    for (unsigned i = 0; i < threads; ++i) start_fiber(fibers[i]);
    counters.clear(), stamps.clear();
    do {
        shuffle_order();
        while (run_ready()) {}
    } while (next_phase());
    running = -1;
}

#include "emulator_job.h"
