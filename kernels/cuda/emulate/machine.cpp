// The emulated machine: fibers, the barrier of a block, launches.

#include "machine.hpp"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>

#if !defined(__x86_64__) || defined(PB_UCONTEXT)
#define PB_SWITCH_BY_UCONTEXT
#include <ucontext.h>
#endif

namespace pb {

thread_local Machine* machine = nullptr;

namespace {
const size_t kStackBytes = 128 * 1024;
const size_t kRedZone = 4096;
const u32 kMaxThreads = 1024;
const size_t kMaxShared = 227 * 1024; // what a block may have on sm_90
} // namespace

// --- Switching between fibers. ---

#ifndef PB_SWITCH_BY_UCONTEXT
// Saves the callee-saved registers and the stack pointer, and takes up those of `to`.
extern "C" void pb_switch(void** save, void* to);
asm(R"(
.text
.globl pb_switch
.hidden pb_switch
.type pb_switch, @function
pb_switch:
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
.size pb_switch, .-pb_switch
)");

static void* new_stack(u8* base, u32 id, void (*entry)()) {
    // Tops at equal distances would fall on the same few lines of the cache.
    void** top = reinterpret_cast<void**>(base + kStackBytes - id % 64 * 320);
    *--top = nullptr; // As after a call: 8 below a multiple of 16.
    *--top = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; i++) {
        *--top = nullptr;
    }
    return top;
}
#else
// Elsewhere the slower portable way; a context lies at the foot of its stack.
extern "C" void pb_switch(void** save, void* to) {
    ucontext_t here;
    *save = &here;
    swapcontext(&here, static_cast<ucontext_t*>(to));
}

static void* new_stack(u8* base, u32, void (*entry)()) {
    ucontext_t* context = reinterpret_cast<ucontext_t*>(base);
    getcontext(context);
    context->uc_stack.ss_sp = base + sizeof(ucontext_t);
    context->uc_stack.ss_size = kStackBytes - sizeof(ucontext_t);
    context->uc_link = nullptr;
    makecontext(context, entry, 0);
    return context;
}
#endif

u32 draw(u32 below) {
    u64 z = machine->random += 0x9e3779b97f4a7c15ull; // SplitMix64
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return u32((z ^ (z >> 31)) % below);
}

void fail(FaultKind kind, const char* format, ...) {
    Machine& m = *machine;
    char text[320];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    m.fault->kind = kind;
    if (m.current) {
        Fiber& f = *m.current;
        snprintf(m.fault->text, sizeof m.fault->text, "%s, block (%u,%u,%u), thread %u: %s",
            m.kernel_name, m.block.x, m.block.y, m.block.z, f.id, text);
    } else {
        snprintf(m.fault->text, sizeof m.fault->text, "%s: %s", m.kernel_name, text);
    }
    // Kernels own nothing, so their fibers are simply left.
    m.current = nullptr;
    void* abandoned;
    pb_switch(&abandoned, m.main_stack);
    abort();
}

void yield() {
    Machine& m = *machine;
    Fiber* from = m.current;
    if (m.ready_head == m.ready.size()) {
        if (m.live == 0) {
            m.current = nullptr;
            pb_switch(&from->stack_pointer, m.main_stack);
        }
        fail(kDivergence,
            "no thread can go on: %u wait at __syncthreads, the others of %u in warp-wide "
            "operations that not every lane reaches",
            m.at_barrier, m.live);
    }
    size_t at = m.ready_head;
    if (m.random != 0) {
        at += draw(u32(m.ready.size() - m.ready_head));
    }
    u16 next = m.ready[at];
    m.ready[at] = m.ready[m.ready_head++];
    if (m.ready_head == m.ready.size()) {
        m.ready.clear();
        m.ready_head = 0;
    } else if (m.ready_head == 4096) {
        m.ready.erase(m.ready.begin(), m.ready.begin() + 4096);
        m.ready_head = 0;
    }
    Fiber* to = &m.fibers[next];
    to->state = State::Ready;
    m.current = to;
    if (to != from) {
        pb_switch(&from->stack_pointer, to->stack_pointer);
    }
}

static void fiber_main() {
    Machine& m = *machine;
    m.kernel(m.params);
    Fiber& f = *m.current;
    for (const Copy& c : f.copies) {
        if (!c.done) {
            fail(kPendingCopy, "the thread ends with asynchronous copies not waited for");
        }
    }
    end_of_thread_products();
    f.state = State::Done;
    m.live--;
    m.exited++;
    if (m.at_barrier > 0) {
        fail(kDivergence, "the thread ends while %u wait at __syncthreads", m.at_barrier);
    }
    yield();
    abort();
}

// --- Launches. ---

static void release_barrier() {
    Machine& m = *machine;
    m.epoch++;
    m.at_barrier = 0;
    for (Fiber& f : m.fibers) {
        if (f.state == State::Barrier) {
            m.ready.push_back(f.id);
        }
    }
}

static void run_block() {
    Machine& m = *machine;
    m.epoch++;
    m.block_first = m.epoch;
    m.live = m.threads;
    m.at_barrier = m.exited = 0;
    m.ready.clear();
    m.ready_head = 0;
    for (Warp& w : m.warps) {
        w.arrived = 0;
        w.sync = 0;
    }
    clear_products(m);
    // What an earlier block left must not pass for data.
    memset(m.shared.base, 0xff, m.shared_bytes);
    for (u32 i = 0; i < m.threads; i++) {
        Fiber& f = m.fibers[i];
        f.id = u16(i);
        f.x = i % m.block_size.x;
        f.y = i / m.block_size.x % m.block_size.y;
        f.z = i / m.block_size.x / m.block_size.y;
        f.state = State::Ready;
        f.group = 0;
        f.copies.clear();
        f.fences.clear();
        f.stack_pointer = new_stack(m.stacks + i * kStackBytes, i, fiber_main);
        m.ready.push_back(u16(i));
    }
    u16 first = m.ready[0];
    m.ready_head = 1;
    if (m.ready.size() == 1) {
        m.ready.clear();
        m.ready_head = 0;
    }
    m.current = &m.fibers[first];
    pb_switch(&m.main_stack, m.fibers[first].stack_pointer);
    m.current = nullptr;
}

static bool good_launch(const Index& grid, const Index& block, size_t shared, size_t params) {
    Machine& m = *machine;
    u64 threads = u64(block.x) * block.y * block.z;
    const char* problem = nullptr;
    if (threads == 0 || threads > kMaxThreads || threads % 32 != 0) {
        problem = "threads of a block must be a multiple of 32, at most 1024";
    } else if (u64(grid.x) * grid.y * grid.z == 0 || grid.y > 65535 || grid.z > 65535) {
        problem = "an empty or too large grid";
    } else if (shared > kMaxShared) {
        problem = "more than 227 KiB of shared memory";
    } else if (params > sizeof m.params) {
        problem = "too many bytes of parameters";
    }
    if (problem) {
        m.fault->kind = kBadLaunch;
        snprintf(m.fault->text, sizeof m.fault->text, "%s: %s", m.kernel_name, problem);
    }
    return problem == nullptr;
}

static void prepare(const Index& grid, const Index& block, size_t shared_bytes, u64 seed) {
    Machine& m = *machine;
    m.grid = grid;
    m.block_size = block;
    m.threads = block.x * block.y * block.z;
    m.shared_bytes = shared_bytes;
    m.random = seed;
    m.launch++;
    m.epoch++;
    m.launch_first = m.epoch;
    m.last_hit = nullptr;
    m.fibers.resize(m.threads);
    m.warps.resize(m.threads / 32);
    m.groups.resize((m.threads + kGroupThreads - 1) / kGroupThreads);
}

} // namespace pb

using namespace pb;

extern "C" {

Index pb_thread_index() {
    const Fiber& f = *machine->current;
    return Index{f.x, f.y, f.z};
}
Index pb_block_index() { return machine->block; }
Index pb_block_size() { return machine->block_size; }
Index pb_grid_size() { return machine->grid; }
void* pb_shared_base() { return machine->shared.base; }

void pb_sync_threads() {
    Machine& m = *machine;
    if (m.exited > 0) {
        fail(kDivergence, "__syncthreads after %u threads of the block have ended", m.exited);
    }
    m.current->state = State::Barrier;
    if (++m.at_barrier == m.live) {
        release_barrier();
    }
    yield();
}

// --- What the host calls. ---

Machine* pb_machine_new() {
    Machine* m = new Machine();
    m->stacks_bytes = kMaxThreads * kStackBytes;
    m->stacks = static_cast<u8*>(aligned_alloc(4096, m->stacks_bytes));
    m->shared.allocation =
        static_cast<u8*>(aligned_alloc(4096, kMaxShared + 2 * kRedZone + 4096));
    m->shared.base = m->shared.allocation + kRedZone;
    m->shared.bytes = kMaxShared;
    m->shared.shift = 1;
    m->shared.read_only = false;
    m->shared.cells.resize(kMaxShared >> 1);
    return m;
}

void* pb_machine_alloc(
    Machine* m, size_t bytes, u32 shift, u32 read_only, u32 initialised, const char* name) {
    Region* r = new Region();
    size_t room = (bytes + 2 * kRedZone + 4095) / 4096 * 4096;
    r->allocation = static_cast<u8*>(aligned_alloc(4096, room));
    r->base = r->allocation + kRedZone;
    r->bytes = bytes;
    r->shift = shift;
    r->read_only = read_only != 0;
    snprintf(r->name, sizeof r->name, "%s", name);
    memset(r->base, 0xff, bytes);
    if (!r->read_only) {
        r->cells.resize((bytes + (1u << shift) - 1) >> shift);
        for (Cell& c : r->cells) {
            c.written = initialised ? 1 : 0;
        }
    }
    auto starts_after = [](const u8* at, const Region* other) { return at < other->base; };
    m->regions.insert(
        std::upper_bound(m->regions.begin(), m->regions.end(), r->base, starts_after), r);
    return r->base;
}

void pb_machine_release(Machine* m, void* base) {
    m->last_hit = nullptr;
    for (size_t i = 0; i < m->regions.size(); i++) {
        Region* r = m->regions[i];
        if (r->base == base) {
            free(r->allocation);
            delete r;
            m->regions.erase(m->regions.begin() + long(i));
            return;
        }
    }
}

// Bytes of a buffer that nothing was written to yet.
size_t pb_machine_unwritten(Machine* m, const void* base) {
    size_t unwritten = 0;
    for (const Region* r : m->regions) {
        if (r->base == base) {
            for (const Cell& c : r->cells) {
                unwritten += c.written == 0 ? size_t(1) << r->shift : 0;
            }
        }
    }
    return unwritten;
}

void pb_machine_free(Machine* m) {
    while (!m->regions.empty()) {
        pb_machine_release(m, m->regions.back()->base);
    }
    clear_products(*m);
    free(m->stacks);
    free(m->shared.allocation);
    delete m;
}

// Runs every block of the grid; fills `fault` and stops at the first fault.
void pb_machine_launch(Machine* m, Kernel kernel, const char* name, const u32* grid,
    const u32* block, size_t shared_bytes, const void* params, size_t params_bytes, u64 seed,
    Fault* fault) {
    machine = m;
    m->fault = fault;
    m->kernel = kernel;
    m->kernel_name = name;
    fault->kind = kNone;
    Index g = {grid[0], grid[1], grid[2]}, b = {block[0], block[1], block[2]};
    if (good_launch(g, b, shared_bytes, params_bytes)) {
        prepare(g, b, shared_bytes, seed);
        memcpy(m->params, params, params_bytes);
        std::vector<u32> order(g.x * g.y * g.z);
        for (u32 i = 0; i < order.size(); i++) {
            order[i] = i;
        }
        for (u32 i = u32(order.size()) - 1; seed != 0 && i > 0; i--) {
            u32 j = draw(i + 1), other = order[j];
            order[j] = order[i];
            order[i] = other;
        }
        for (u32 i = 0; i < order.size() && fault->kind == kNone; i++) {
            m->block = Index{order[i] % g.x, order[i] / g.x % g.y, order[i] / g.x / g.y};
            run_block();
        }
    }
    machine = nullptr;
}
}
