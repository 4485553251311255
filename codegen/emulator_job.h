// The second half of the engine: buffers between guard pages, the job file, launches, timing, crash reports.
#pragma once

struct Buffer { unsigned char *map, *base; size_t nbytes, pages; bool writable; };
struct Kernel { void (*entry)(void**); int args; void (*shared)(char**, char**); };
struct Arg { int buffer; size_t offset; bool writes; };
struct Map { int arg; size_t offset; tw_tensor_map recipe; };
struct Launch {
    int kernel;
    unsigned grid[3], block, cluster[3];
    size_t shared;
    std::vector<Arg> args;
    std::vector<Map> maps;
};
static std::vector<Buffer> buffers;
static std::vector<Kernel> kernels;
static std::vector<Launch> launches;

static Buffer guarded(size_t nbytes) {
    Buffer b;
    b.nbytes = nbytes;
    const size_t rounded = (nbytes + 15) / 16 * 16;
    b.pages = (rounded + PAGE - 1) / PAGE * PAGE;
    b.map = (unsigned char*)mmap(nullptr, b.pages + 2 * GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b.map == MAP_FAILED || (b.pages && mprotect(b.map + GUARD, b.pages, PROT_READ | PROT_WRITE)))
        stop("line=-1 text=out of memory for a buffer of %zu bytes", nbytes);
    b.base = b.map + GUARD + b.pages - rounded;
    b.writable = true;
    memset(b.map + GUARD, POISON, b.pages);
    return b;
}
static void protect(Buffer& b, bool writable) {
    if (b.writable == writable || !b.pages) return;
    mprotect(b.map + GUARD, b.pages, writable ? PROT_READ | PROT_WRITE : PROT_READ);
    b.writable = writable;
}
// The bytes around a buffer that its guard pages do not cover must still be poison.
static void check_margins(size_t index) {
    const Buffer& b = buffers[index];
    const unsigned char *start = b.map + GUARD, *stop_at = start + b.pages;
    const size_t lead = (size_t)(b.base - start) < 256 ? (size_t)(b.base - start) : 256;
    for (const unsigned char* p = b.base - lead; p < b.base; ++p)
        if (*p != POISON) stop("line=-1 buffer=%zu offset=%ld text=write outside of the buffer", index, (long)(p - b.base));
    for (const unsigned char* p = b.base + b.nbytes; p < stop_at; ++p)
        if (*p != POISON) stop("line=-1 buffer=%zu offset=%ld text=write outside of the buffer", index, (long)(p - b.base));
}

static void on_signal(int number, siginfo_t* info, void* context) {
    const unsigned char* at = (const unsigned char*)info->si_addr;
    const char* what = "access";
#if defined(__x86_64__) && defined(__linux__)
    if (number == SIGSEGV) what = ((ucontext_t*)context)->uc_mcontext.gregs[REG_ERR] & 2 ? "write" : "read";
#else
    (void)context;
#endif
    if (number == SIGSEGV || number == SIGBUS) {
        for (size_t i = 0; i < buffers.size(); ++i) {
            const Buffer& b = buffers[i];
            if (at < b.map || at >= b.map + b.pages + 2 * GUARD) continue;
            const bool inside = at >= b.base && at < b.base + b.nbytes;
            stop("line=-1 buffer=%zu offset=%ld text=%s %s", i, (long)(at - b.base), what,
                 inside ? "to a buffer the launch does not declare as written" : "outside of the buffer");
        }
        if (dynamic_shared && at >= dynamic_shared_end && at < dynamic_shared_end + GUARD)
            stop("line=-1 text=%s beyond the end of shared memory", what);
        for (const Fiber& f : fibers)
            if (f.memory && at >= (unsigned char*)f.memory && at < (unsigned char*)f.memory + PAGE)
                stop("line=-1 text=the thread's local arrays need more than %zu bytes", STACK);
        stop("line=-1 text=%s far outside of any buffer", what);
    }
    stop("line=-1 text=%s", number == SIGFPE ? "integer division by zero" : "illegal instruction");
}
static void catch_signals() {
    static char memory[1 << 16];
    stack_t alternate = {};
    alternate.ss_sp = memory;
    alternate.ss_size = sizeof memory;
    sigaltstack(&alternate, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigaction(number, &action, nullptr);
}

static void run_launch(const Launch& l) {
    const Kernel& k = kernels[l.kernel];
    if (k.args != (int)(l.args.size() + l.maps.size()))
        stop("line=-1 text=the kernel takes %d buffers and maps, got %zu", k.args, l.args.size() + l.maps.size());
    std::vector<void*> args;
    for (const Arg& a : l.args) protect(buffers[a.buffer], false);
    for (const Arg& a : l.args) {
        if (a.writes) protect(buffers[a.buffer], true);
        args.push_back(buffers[a.buffer].base + a.offset);
    }
    std::vector<tw_tensor_map> maps;
    for (const Map& m : l.maps) {
        maps.push_back(m.recipe);
        maps.back().base = (unsigned char*)args[m.arg] + m.offset;
    }
    for (tw_tensor_map& m : maps) args.push_back(&m);
    static Buffer shared;
    static size_t held = 0;
    cluster_blocks = l.cluster[0] * l.cluster[1] * l.cluster[2];
    // It begins where the tiles of warpgroups may, so the guard page is less than 1024 bytes behind its end.
    shared_stride = (l.shared + 1023) / 1024 * 1024;
    const size_t all = shared_stride * cluster_blocks;
    if (all > held) shared = guarded(held = all);
    dynamic_shared = l.shared ? shared.base + held - all : nullptr;
    dynamic_shared_end = dynamic_shared + all;
    entry = k.entry, entry_args = args.data(), block_threads = l.block;
    char *start = nullptr, *end = nullptr;
    k.shared(&start, &end);
    for (unsigned z = 0; z < l.grid[2]; z += l.cluster[2])
        for (unsigned y = 0; y < l.grid[1]; y += l.cluster[1])
            for (unsigned x = 0; x < l.grid[0]; x += l.cluster[0]) {
                places.clear();
                for (unsigned k = 0; k < l.cluster[2]; ++k)
                    for (unsigned j = 0; j < l.cluster[1]; ++j)
                        for (unsigned i = 0; i < l.cluster[0]; ++i) places.push_back({x + i, y + j, z + k});
                run_block(start, end);
            }
    for (const Arg& a : l.args)
        if (a.writes) check_margins(a.buffer);
}
static double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static void run_all(bool tell_launches) {
    const double start = now();
    for (size_t i = 0; i < launches.size(); ++i) {
        launch_number = (int)i;
        const double begun = now();
        run_launch(launches[i]);
        if (tell_launches) printf("launch %zu %.9f\n", i, now() - begun);
    }
    printf("run %.9f\n", now() - start);
    launch_number = -1;
}

static Kernel load_kernel(const char* path) {
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) stop("line=-1 text=a built kernel cannot be loaded: %s", dlerror());
    Kernel k;
    k.entry = (void (*)(void**))dlsym(library, "tw_entry");
    k.shared = (void (*)(char**, char**))dlsym(library, "tw_static_shared");
    k.args = ((int (*)())dlsym(library, "tw_args"))();
    return k;
}
static void read_into(const Buffer& b, const char* path, long offset) {
    FILE* file = fopen(path, "rb");
    if (!file || fseek(file, offset, SEEK_SET) || fread(b.base, 1, b.nbytes, file) != b.nbytes)
        stop("line=-1 text=the data of a buffer cannot be read");
    fclose(file);
}
// Argument, offset, rank, element size, swizzle, fill, then per dimension extent, stride, box and step (innermost
// first), channels, pixels, and of an im2col map per spatial dimension the lower and the upper corner.
static Map read_map(FILE* job) {
    Map m;
    tw_tensor_map& r = m.recipe;
    memset(&r, 0, sizeof r);
    bool good = fscanf(job, "%d %zu %d %d %d %d %d", &m.arg, &m.offset, &r.rank, &r.itemsize, &r.swizzle, &r.nan, &r.rounds) == 7 && r.rank <= 5;
    for (int i = 0; good && i < r.rank; ++i)
        good = fscanf(job, "%lld %lld %d %d", &r.dims[i], &r.strides[i], &r.box[i], &r.steps[i]) == 4;
    good = good && fscanf(job, "%d %d", &r.channels, &r.pixels) == 2;
    for (int i = 0; good && r.channels && i < r.rank - 2; ++i) good = fscanf(job, "%d %d", &r.lower[i], &r.upper[i]) == 2;
    if (!good) stop("line=-1 text=a tensor map of the job cannot be read");
    return m;
}
static Launch read_launch(FILE* job) {
    Launch l;
    int count = 0;
    if (fscanf(job, "%d %u %u %u %u %zu %d", &l.kernel, l.grid, l.grid + 1, l.grid + 2, &l.block, &l.shared, &count) != 7)
        stop("line=-1 text=a launch of the job cannot be read");
    for (int i = 0; i < count; ++i) {
        Arg a;
        int writes = 0;
        if (fscanf(job, "%d %zu %d", &a.buffer, &a.offset, &writes) != 3) stop("line=-1 text=a launch of the job cannot be read");
        a.writes = writes != 0;
        l.args.push_back(a);
    }
    if (fscanf(job, "%u %u %u %d", l.cluster, l.cluster + 1, l.cluster + 2, &count) != 4) stop("line=-1 text=a launch of the job cannot be read");
    for (int i = 0; i < count; ++i) l.maps.push_back(read_map(job));
    return l;
}

// Words of the job: `seed S`, `buffer NBYTES FILE OFFSET` (FILE `-`: poison), `kernel PATH`, `launch ...`,
// `run TELL`, `output BUFFER OFFSET NBYTES`. Paths hold no spaces: they are relative to the working directory.
int main(int count, char** words) {
    if (count != 3) return 2;
    catch_signals();
    FILE *job = fopen(words[1], "r"), *output = fopen(words[2], "wb");
    if (!job || !output) return 2;
    char word[16], path[256];
    while (fscanf(job, "%15s", word) == 1) {
        size_t a = 0, b = 0, c = 0;
        if (!strcmp(word, "seed") && fscanf(job, "%llu", &order_seed) == 1) continue;
        if (!strcmp(word, "buffer") && fscanf(job, "%zu %255s %zu", &a, path, &b) == 3) {
            buffers.push_back(guarded(a));
            if (strcmp(path, "-")) read_into(buffers.back(), path, (long)b);
        } else if (!strcmp(word, "kernel") && fscanf(job, "%255s", path) == 1) {
            kernels.push_back(load_kernel(path));
        } else if (!strcmp(word, "launch")) {
            launches.push_back(read_launch(job));
        } else if (!strcmp(word, "run") && fscanf(job, "%zu", &a) == 1) {
            run_all(a != 0);
        } else if (!strcmp(word, "output") && fscanf(job, "%zu %zu %zu", &a, &b, &c) == 3) {
            if (fwrite(buffers[a].base + b, 1, c, output) != c) stop("line=-1 text=the outputs cannot be written");
        } else {
            stop("line=-1 text=the job holds an unknown word");
        }
    }
    if (fclose(output)) stop("line=-1 text=the outputs cannot be written");
    return 0;
}
