// The threads of a block as fibres: their order, barriers, collectives and asynchronous copies.
//
// A fibre is a stack and a stack pointer. On x86-64 it is changed by twelve instructions, elsewhere by ucontext, which
// calls the kernel to set the signal mask each time. Stacks have a page below them that nobody may touch.
#include "emulate_internal.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <sys/mman.h>
#include <vector>
#ifndef __x86_64__
#include <ucontext.h>
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulate {

struct position position;

// ---- fibres ----

enum { page_bytes = 4096, stack_bytes = 128 << 10, most_threads = 1024, warp_lanes = 32 };

// An asynchronous copy that is not waited for yet.
struct copy {
    void *to;
    const void *from;
    uint32_t bytes, size; // the rest of `size` bytes becomes 0
    int group;
};

struct fibre {
#ifdef __x86_64__
    void *stack_pointer;
#else
    ucontext_t context;
#endif
    char *stack;
    size_t stack_size;
    void *fake_stack; // the address sanitizer's
    dim3 thread;
    unsigned number;
    bool waits, ended;
    struct site site; // where it waits
    std::vector<struct copy> copies;
    int groups; // of copies, so far
};

struct warp {
    uint32_t arrived, ended; // a bit for each lane
    struct site site;        // of the collective that lanes have arrived at
    void (*operation)(void *const arguments[32]);
    void *arguments[warp_lanes];
};

struct block {
    const struct device *device;
    const char *kernel_name;
    const std::function<void()> *kernel;
    std::vector<struct fibre> fibres;
    std::vector<struct warp> warps;
    std::vector<unsigned> order; // in which the fibres take turns
    unsigned turn, ended, arrived;
    struct site barrier_site;
    char *shared;
    size_t shared_bytes;
    uint64_t random;
};

static struct block block;
static struct fibre host, *self;
static char *stacks; // of most_threads fibres, each with a page below it

#ifdef __x86_64__

// Saves the registers that a function must keep on the stack, and the stack pointer in *from; then takes those of `to`.
extern "C" void emulate_switch(void **from, void *to);

asm(".text\n"
    ".globl emulate_switch\n"
    ".hidden emulate_switch\n"
    ".type emulate_switch, @function\n"
    "emulate_switch:\n"
    "    pushq %rbp\n"
    "    pushq %rbx\n"
    "    pushq %r12\n"
    "    pushq %r13\n"
    "    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n"
    "    popq %r14\n"
    "    popq %r13\n"
    "    popq %r12\n"
    "    popq %rbx\n"
    "    popq %rbp\n"
    "    ret\n"
    ".size emulate_switch, . - emulate_switch\n");

static void prepare(struct fibre *fibre, void (*entry)()) {
    // The return address of emulate_switch, below it six registers; the stack is then as behind a call.
    void **top = reinterpret_cast<void **>(fibre->stack + fibre->stack_size) - 2;
    *top = reinterpret_cast<void *>(entry);
    memset(top - 6, 0, 6 * sizeof *top);
    fibre->stack_pointer = top - 6;
}

static void change_stack(struct fibre *from, struct fibre *to) {
    emulate_switch(&from->stack_pointer, to->stack_pointer);
}

#else

static void prepare(struct fibre *fibre, void (*entry)()) {
    getcontext(&fibre->context);
    fibre->context.uc_stack.ss_sp = fibre->stack;
    fibre->context.uc_stack.ss_size = fibre->stack_size;
    makecontext(&fibre->context, entry, 0);
}

static void change_stack(struct fibre *from, struct fibre *to) {
    swapcontext(&from->context, &to->context);
}

#endif

// Called first on a stack that has just become the current one.
static void arrived_from(struct fibre *from, void *fake_stack) {
#ifdef __SANITIZE_ADDRESS__
    const void *stack;
    size_t size;
    __sanitizer_finish_switch_fiber(fake_stack, &stack, &size);
    if (from == &host) {
        host.stack = static_cast<char *>(const_cast<void *>(stack));
        host.stack_size = size;
    }
#else
    (void)from, (void)fake_stack;
#endif
}

static struct fibre *previous; // what ran before the last change

static void run(struct fibre *to) {
    struct fibre *from = self;
    previous = from;
    self = to;
    position.thread = to->thread;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(from->ended ? nullptr : &from->fake_stack, to->stack, to->stack_size);
#endif
    change_stack(from, to);
    arrived_from(previous, from->fake_stack);
}

// ---- misuse ----

[[noreturn]] void misuse(struct site site, const char *format, ...) {
    fprintf(stderr, "emulate: %s, block (%u,%u,%u), thread %u: ", block.kernel_name, position.block.x, position.block.y,
            position.block.z, self ? self->number : 0);
    if (site.file) fprintf(stderr, "%s:%d: ", site.file, site.line);
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    abort();
}

static bool same_site(struct site a, struct site b) {
    return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

// ---- turns ----

static uint64_t next_random() {
    uint64_t &x = block.random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x;
}

// The next fibre that can go on, or NULL.
static struct fibre *next_fibre() {
    unsigned count = (unsigned)block.fibres.size();
    if (block.device->shuffled && next_random() % 8 == 0) block.turn = (unsigned)(next_random() % count);
    for (unsigned i = 0; i < count; i++) {
        block.turn = block.turn + 1 == count ? 0 : block.turn + 1;
        struct fibre *fibre = &block.fibres[block.order[block.turn]];
        if (!fibre->ended && !fibre->waits) return fibre;
    }
    return nullptr;
}

static void wait_here(struct site site) {
    struct fibre *own = self;
    own->waits = true;
    own->site = site;
    while (own->waits) {
        struct fibre *next = next_fibre();
        if (!next) {
            for (const struct fibre &other : block.fibres) {
                if (other.ended || same_site(other.site, site)) continue;
                misuse(site, "waits for ever: thread %u waits in %s:%d", other.number, other.site.file,
                       other.site.line);
            }
            misuse(site, "waits for ever: not all threads come here");
        }
        if (next != own) run(next);
    }
}

static void thread_entry() {
    arrived_from(previous, nullptr);
    (*block.kernel)();
    struct warp *warp = &block.warps[self->number / warp_lanes];
    if (!self->copies.empty()) misuse({}, "ends before its asynchronous copies are waited for");
    if (block.arrived) misuse(block.barrier_site, "ends while others wait in this barrier");
    if (warp->arrived) misuse(warp->site, "ends while lanes of its warp wait in this collective");
    self->ended = true;
    warp->ended |= 1u << self->number % warp_lanes;
    block.ended++;
    struct fibre *next = block.ended < block.fibres.size() ? next_fibre() : &host;
    if (!next) misuse({}, "ends, and all others wait for ever");
    run(next);
    abort();
}

// ---- barriers and collectives ----

void barrier(struct site site) {
    if (block.ended) misuse(site, "a barrier after another thread has ended");
    if (block.arrived && !same_site(site, block.barrier_site))
        misuse(site, "a barrier that is not the one where others wait, %s:%d", block.barrier_site.file,
               block.barrier_site.line);
    block.barrier_site = site;
    if (++block.arrived < block.fibres.size()) {
        wait_here(site);
        return;
    }
    block.arrived = 0;
    for (struct fibre &fibre : block.fibres) fibre.waits = false;
}

void collective(void (*operation)(void *const arguments[32]), void *argument, struct site site) {
    unsigned number = self->number / warp_lanes, lane = self->number % warp_lanes;
    struct warp *warp = &block.warps[number];
    if ((number + 1) * warp_lanes > block.fibres.size())
        misuse(site, "a collective in a warp of fewer than 32 threads");
    if (warp->ended) misuse(site, "a collective after a lane of the warp has ended");
    if (warp->arrived && (operation != warp->operation || !same_site(site, warp->site)))
        misuse(site, "a collective that is not the one where other lanes wait, %s:%d", warp->site.file,
               warp->site.line);
    warp->operation = operation;
    warp->site = site;
    warp->arguments[lane] = argument;
    warp->arrived |= 1u << lane;
    if (warp->arrived != UINT32_MAX) {
        wait_here(site);
        return;
    }
    warp->arrived = 0;
    operation(warp->arguments);
    for (unsigned i = 0; i < warp_lanes; i++) block.fibres[number * warp_lanes + i].waits = false;
}

// ---- shared memory and asynchronous copies ----

char *shared_memory() {
    return block.shared;
}

void check_shared(const void *p, size_t size, const char *what, struct site site) {
    auto at = reinterpret_cast<uintptr_t>(p), begin = reinterpret_cast<uintptr_t>(block.shared);
    if (at % size) misuse(site, "%s is at %p, no multiple of %zu", what, p, size);
    if (at < begin || at + size > begin + block.shared_bytes)
        misuse(site, "%s is at byte %lld of %zu bytes of shared memory", what, (long long)(at - begin),
               block.shared_bytes);
}

static void do_copy(const struct copy &copy) {
    char *to = static_cast<char *>(copy.to);
    if (copy.bytes) memcpy(to, copy.from, copy.bytes);
    memset(to + copy.bytes, 0, copy.size - copy.bytes);
}

// A late copy happens in copy_wait. Until then the target holds NaN.
void copy_async(void *to, const void *from, uint32_t bytes, uint32_t size, struct site site) {
    check_shared(to, size, "the target of a copy", site);
    if (bytes > size) misuse(site, "a copy of %u bytes", bytes);
    if (reinterpret_cast<uintptr_t>(from) % size) misuse(site, "a copy from %p, no multiple of %u", from, size);
    struct copy copy = {to, from, bytes, size, self->groups};
    if (block.device->copies_early)
        do_copy(copy);
    else
        memset(to, 0xff, size);
    self->copies.push_back(copy);
}

void copy_commit() {
    self->groups++;
}

void copy_wait(int groups_left) {
    size_t kept = 0;
    for (const struct copy &copy : self->copies) {
        if (copy.group >= self->groups - groups_left)
            self->copies[kept++] = copy;
        else if (!block.device->copies_early)
            do_copy(copy);
    }
    self->copies.resize(kept);
}

// ---- a grid ----

// Shared memory ends at a page that nobody may touch, up to 127 bytes of alignment. The address sanitizer needs none.
struct shared_region {
    char *pages = nullptr, *data = nullptr;
    size_t page_count = 0;

    explicit shared_region(size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
        void *memory;
        if (posix_memalign(&memory, 128, bytes ? bytes : 1) != 0) abort();
        data = static_cast<char *>(memory);
#else
        page_count = (bytes + 127 + page_bytes - 1) / page_bytes + 1;
        void *memory =
            mmap(nullptr, page_count * page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) abort();
        pages = static_cast<char *>(memory);
        char *end = pages + (page_count - 1) * page_bytes;
        if (mprotect(end, page_bytes, PROT_NONE) != 0) abort();
        data = end - (bytes + 127) / 128 * 128;
#endif
    }
    ~shared_region() {
        if (pages)
            munmap(pages, page_count * page_bytes);
        else
            free(data);
    }
};

// Between the end of shared memory and the page behind it are up to 127 bytes that nobody may write.
static void check_shared_end() {
#ifndef __SANITIZE_ADDRESS__
    for (const char *at = block.shared + block.shared_bytes; reinterpret_cast<uintptr_t>(at) % 128; at++)
        if (*at)
            misuse({}, "byte %zu of %zu bytes of shared memory was written", (size_t)(at - block.shared),
                   block.shared_bytes);
#endif
}

static void map_stacks() {
    if (stacks) return;
    size_t each = page_bytes + stack_bytes;
    void *memory =
        mmap(nullptr, most_threads * each, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) abort();
    stacks = static_cast<char *>(memory);
    for (size_t i = 0; i < most_threads; i++)
        if (mprotect(stacks + i * each, page_bytes, PROT_NONE) != 0) abort();
}

static void begin_block(unsigned count) {
    block.ended = block.arrived = 0;
    block.turn = count - 1;
    memset(block.shared, 0xff, block.shared_bytes);
    for (struct warp &warp : block.warps) warp.arrived = warp.ended = 0;
    for (unsigned i = 0; i < count; i++) {
        struct fibre *fibre = &block.fibres[i];
        fibre->waits = fibre->ended = false;
        fibre->groups = 0;
        fibre->fake_stack = nullptr;
#ifdef __SANITIZE_ADDRESS__
        // A thread ends in thread_entry, whose frame is at the top; all other functions have returned.
        __asan_unpoison_memory_region(fibre->stack + fibre->stack_size - page_bytes, page_bytes);
#endif
        prepare(fibre, thread_entry);
    }
    for (unsigned i = count; block.device->shuffled && i > 1; i--)
        std::swap(block.order[i - 1], block.order[next_random() % i]);
}

static void begin_grid(unsigned count) {
    block.fibres.resize(count);
    block.warps.resize((count + warp_lanes - 1) / warp_lanes);
    block.order.resize(count);
    for (unsigned i = 0; i < count; i++) {
        struct fibre *fibre = &block.fibres[i];
        fibre->stack = stacks + i * (size_t)(page_bytes + stack_bytes) + page_bytes;
        fibre->stack_size = stack_bytes;
        fibre->number = i;
        fibre->thread = dim3(i, 0, 0);
        block.order[i] = i;
    }
}

void run_grid(const struct device &device, const char *kernel_name, dim3 grid, dim3 block_size, size_t shared_bytes,
              const std::function<void()> &kernel) {
    static std::mutex one_at_a_time;
    std::lock_guard<std::mutex> lock(one_at_a_time);
    static uint64_t launches;
    map_stacks();
    struct shared_region shared(shared_bytes);
    block.device = &device;
    block.kernel_name = kernel_name;
    block.kernel = &kernel;
    block.shared = shared.data;
    block.shared_bytes = shared_bytes;
    block.random = ++launches * 0x9E3779B97F4A7C15u;
    begin_grid(block_size.x);
    position.block_size = block_size;
    position.grid_size = grid;
    for (unsigned z = 0; z < grid.z; z++) {
        for (unsigned y = 0; y < grid.y; y++) {
            for (unsigned x = 0; x < grid.x; x++) {
                position.block = {x, y, z};
                begin_block(block_size.x);
                self = &host;
                run(next_fibre());
                check_shared_end();
            }
        }
    }
    self = nullptr;
}

// ---- tensor cores ----

void multiply_matrices(void *const arguments[32]) {
    uint16_t a[16][16], b[16][8];
    float c[16][8];
    for (int lane = 0; lane < warp_lanes; lane++) {
        const auto *own = static_cast<const mma_operands *>(arguments[lane]);
        int g = lane / 4, t = 2 * (lane % 4);
        for (int i = 0; i < 2; i++) {
            for (int r = 0; r < 4; r++) a[g + r % 2 * 8][t + r / 2 * 8 + i] = (uint16_t)(own->a[r] >> 16 * i);
            for (int r = 0; r < 2; r++) b[t + r * 8 + i][g] = (uint16_t)(own->b[r] >> 16 * i);
            for (int r = 0; r < 2; r++) c[g + r * 8][t + i] = own->c[2 * r + i];
        }
    }
    add_products(c, a, 16, b, block.device->products_at_once, block.device->sum_bits);
    for (int lane = 0; lane < warp_lanes; lane++) {
        auto *own = static_cast<mma_operands *>(arguments[lane]);
        for (int r = 0; r < 4; r++) own->c[r] = c[lane / 4 + r / 2 * 8][2 * (lane % 4) + r % 2];
    }
}

} // namespace emulate
