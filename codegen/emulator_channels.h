// Roles and channels on the CPU: barriers that count arrivals and bytes, slots that are poison once they are released.
// Part of the engine. What arrives later (copies of threads, transactions) lands as late as it may: with the last
// arrival of its phase.
#pragma once

#include <unordered_map>

struct Landing { void (*act)(void*); void* own; int bytes; };
struct Later { std::vector<Copy> copies; int thread; };
// One barrier of a channel: `row` 0 counts what fills a slot, `row` 1 who gives it back. phase: those complete.
struct Counter {
    const char* channel;
    int row, slot, slots, expected, pending;
    long bytes;
    unsigned phase;
    std::vector<Landing> landings;
    std::vector<Later> later;
    std::vector<Region> holds;
    std::unordered_map<int, int> groups;
};
static std::unordered_map<unsigned long long*, Counter> counters;

static Counter& counter_of(unsigned long long* barrier) {
    auto found = counters.find(barrier);
    if (found == counters.end()) stop("line=-1 text=a barrier is used that no channel of the block has");
    return found->second;
}
extern "C" void tw_counters(unsigned long long* barriers, int slots, int full, int empty, const char* channel) {
    for (int i = 0; i < 2 * slots; ++i) {
        const int expected = i < slots ? full : empty;
        counters[barriers + i] = {channel, i / slots, i % slots, slots, expected, expected, 0, 0, {}, {}, {}, {}};
    }
}
extern "C" void tw_slots_hold(unsigned long long* barriers, int slots, void* buffer, int bytes) {
    for (int i = 0; i < slots; ++i) counter_of(barriers + slots + i).holds.push_back({(char*)buffer + (long)i * bytes, bytes});
}
// The item whose fills, or whose release, complete the phase that a barrier is in.
static long item_of(const Counter& c) { return c.slot + (long)c.slots * c.phase; }

static void try_complete(Counter& c) {
    if (c.pending != (int)c.later.size()) return;
    for (const Later& l : c.later)
        for (const Copy& copy : l.copies) land(copy, l.thread);
    c.later.clear();
    c.pending = 0;
    for (const Landing& l : c.landings) l.act(l.own), c.bytes -= l.bytes;
    c.landings.clear();
    if (c.bytes) return;
    ++c.phase, c.pending = c.expected;
    for (const Region& r : c.holds) memset(r.at, POISON, r.bytes);
}
static void arrive(Counter& c) {
    if (--c.pending < (int)c.later.size())
        stop("line=-1 text=more than %d arrivals for item %ld of channel %s", c.expected, item_of(c), c.channel);
    try_complete(c);
}
extern "C" void tw_arrive(unsigned long long* barrier) { arrive(counter_of(barrier)); }
extern "C" void tw_arrive_expecting(unsigned long long* barrier, int bytes) {
    Counter& c = counter_of(barrier);
    c.bytes += bytes;
    arrive(c);
}
// The last of a group's threads arrives for all: on the GPU its first one does, when the group is as far.
extern "C" void tw_arrive_group(unsigned long long* barrier, int threads) {
    Counter& c = counter_of(barrier);
    int& count = c.groups[running / threads];
    if (++count < threads) return;
    count = 0;
    arrive(c);
}
extern "C" void tw_arrive_copies(unsigned long long* barrier) {
    Counter& c = counter_of(barrier);
    Fiber& f = fibers[running];
    c.later.push_back({std::move(f.copies), running});
    f.copies.clear();
    try_complete(c);
}
// What the copy engine brings: `act(own)` writes it when it lands, `bytes` count on the barrier.
extern "C" void tw_transaction(unsigned long long* barrier, int bytes, void (*act)(void*), void* own) {
    Counter& c = counter_of(barrier);
    c.landings.push_back({act, own, bytes});
    if (!c.pending) try_complete(c);  // of another block of the cluster, when all of this one have arrived
}
static bool passes(const Fiber& f) { return (counter_of(f.barrier).phase & 1) != (unsigned)f.parity; }

extern "C" void tw_await(unsigned long long* barrier, int parity) {
    Fiber& f = fibers[running];
    f.barrier = barrier, f.parity = parity & 1;
    if (passes(f)) return;
    f.state = WAITING;
    leave();
}
extern "C" void tw_takes_role(const char* name) { fibers[running].role = name; }

static const char* waits_for(const Fiber& f, char* text, size_t room) {
    if (f.state == DONE) snprintf(text, room, "has ended");
    else if (f.state == WAITING) {
        const Counter& c = counter_of(f.barrier);
        if (c.row)
            snprintf(text, room, "waits to acquire item %ld of channel %s until item %ld is released (%d of %d arrivals)",
                     item_of(c) + c.slots, c.channel, item_of(c), c.expected - c.pending, c.expected);
        else
            snprintf(text, room, "waits to receive item %ld of channel %s (%d of %d arrivals, %ld bytes to come)", item_of(c),
                     c.channel, c.expected - c.pending, c.expected, c.bytes);
    } else if (f.state == BARRIER) snprintf(text, room, "waits at the barrier in line %d", f.line);
    else snprintf(text, room, "waits for other lanes of its warp in line %d", f.line);
    return text;
}
[[noreturn]] static void stuck() {
    char text[2048], one[320];
    size_t used = 0;
    for (unsigned i = 0; i < block_threads * cluster_blocks; ++i) {
        const Fiber& f = fibers[i];
        bool first = f.state != DONE;
        for (unsigned j = 0; j < i && first; ++j)
            first = fibers[j].role != f.role || fibers[j].state != f.state || fibers[j].barrier != f.barrier;
        if (!first || used > sizeof text - sizeof one) continue;
        used += snprintf(text + used, sizeof text - used, "%srole %s %s", used ? "; " : "", f.role ? f.role : "-",
                         waits_for(f, one, sizeof one));
    }
    running = -1;
    stop("line=-1 text=the block is stuck: %s", text);
}
// Threads at a named barrier go on when all of it are there, at the same place.
static bool meets(unsigned i, unsigned j) {
    const Fiber &a = fibers[i], &b = fibers[j];
    return b.state == BARRIER && a.number == b.number && (a.number == CLUSTER || i / block_threads == j / block_threads);
}
static bool open_barriers() {
    bool any = false;
    const unsigned threads = block_threads * cluster_blocks;
    for (unsigned i = 0; i < threads; ++i) {
        const Fiber& first = fibers[i];
        if (first.state != BARRIER) continue;
        int there = 0;
        for (unsigned j = i; j < threads; ++j) {
            const Fiber& f = fibers[j];
            if (!meets(i, j)) continue;
            if (f.line != first.line) {
                running = (int)j;
                stop("line=%d text=the threads diverge: thread %u waits at the barrier in line %d while thread %u waits "
                     "at the barrier in line %d", f.line, j, f.line, i, first.line);
            }
            ++there;
        }
        int ended = 0;  // threads of a cluster that have ended count as there
        for (unsigned j = 0; first.number == CLUSTER && j < threads; ++j) ended += fibers[j].state == DONE;
        if (there + ended != first.threads) continue;
        std::vector<unsigned> all;
        for (unsigned j = i; j < threads; ++j)
            if (meets(i, j)) all.push_back(j);
        for (unsigned j : all) fibers[j].state = READY;
        any = true;
    }
    return any;
}
// Kernels with roles: returns whether some thread can go on; stops where none can and not all have ended.
static bool next_of_roles() {
    if (open_barriers()) return true;
    for (unsigned i = 0; i < block_threads * cluster_blocks; ++i)
        if (fibers[i].state != DONE) stuck();
    return false;
}
