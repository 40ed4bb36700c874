// The emulated machine: matrix products of a warpgroup, wgmma.mma_async of sm_90a.
//
// A product is carried out as late as its wait, or at a random time before; until then its sums
// are poison, and its left operand in registers and its operands in shared memory are read only
// when it is carried out. Stricter than the PTX ISA in one thing: fence, commit and wait are
// reached by all four warps together.

#include <string.h>

#include "machine.hpp"

namespace pb {

namespace {

// Quiet NaNs that no arithmetic leaves.
const u32 kPoison = 0x7fc0dead;

// Where shared memory begins as PTX sees it: the first KiB is the system's (CUDA C++ programming
// guide, compute capability 9.0), and an address of 0 would hide a descriptor without address.
const u32 kSharedStart = 1024;

// A matrix descriptor, by its bits (PTX ISA, "Matrix Descriptor Format" of wgmma). Lengths in
// units of 16 bytes.
struct Descriptor {
    u32 start, leading, stride;
    u32 width; // of a row of the swizzle, 1 without one
};

Descriptor decode(u64 bits) {
    const u64 unused = 0x3ull << 14 | 0x3ull << 30 | 0x7ull << 46 | 0x3ffull << 52;
    if ((bits & unused) != 0) {
        fail(kMisaligned, "the descriptor %016llx: bits that mean nothing are set",
            static_cast<unsigned long long>(bits));
    }
    if ((bits >> 49 & 7u) != 0) {
        fail(kMisaligned, "a descriptor with a base offset: not modelled");
    }
    const u32 widths[4] = {1, 8, 4, 2}; // modes none, 128, 64, 32 bytes
    return Descriptor{u32(bits & 0x3fffu), u32(bits >> 16 & 0x3fffu), u32(bits >> 32 & 0x3fffu),
        widths[bits >> 62]};
}

// Place of 16 bytes of an operand whose terms are contiguous: chunk `c` (8 terms) of row `mn`.
u32 place_k_major(const Descriptor& d, u32 mn, u32 c) {
    u32 between = d.width == 1 ? d.leading : 1;
    return mn % 8 * d.width + mn / 8 * d.stride + c * between;
}

// The same where rows or columns are contiguous: chunk `c` (8 of them) of term `k`.
u32 place_mn_major(const Descriptor& d, u32 k, u32 c) {
    if (d.width == 1) {
        return k % 8 + k / 8 * d.leading + c * d.stride;
    }
    return c % d.width + c / d.width * d.leading + k % 8 * d.width + k / 8 * d.stride;
}

// Offset in the block's shared memory, in bytes. The swizzle is one of addresses: bits 7 to 9, as
// many as the mode has, are added to bits 4 to 6 without carry.
size_t offset_of(const Descriptor& d, u32 place) {
    u32 address = (d.start + place) * 16;
    address ^= (address >> 7 & (d.width - 1)) << 4;
    return size_t(address) - kSharedStart;
}

float value_of(u32 bits, bool is_bf16) {
    u32 word = is_bf16 ? bits << 16 : (bits & 0x8000u) << 16 | (bits & 0x7fffu) << 13;
    bool special = !is_bf16 && (bits & 0x7c00u) == 0x7c00u;
    word |= special ? 0x7f800000u : 0;
    float y;
    memcpy(&y, &word, 4);
    return is_bf16 || special ? y : y * 0x1p112f;
}

// Calls `each` with the place of every chunk that a product reads: place, operand (0 a, 1 b), and
// row and chunk of it.
template <class F> void for_each_chunk(const Product& p, F each) {
    if (!p.in_registers) {
        Descriptor a = decode(p.a);
        for (u32 row = 0; row < 64; row++) {
            for (u32 c = 0; c < 2; c++) {
                each(offset_of(a, place_k_major(a, row, c)), 0, row, c);
            }
        }
    }
    Descriptor b = decode(p.b);
    for (u32 k = 0; k < 16; k++) {
        for (u32 c = 0; c < p.sums->columns / 8; c++) {
            each(offset_of(b, place_mn_major(b, k, c)), 1, k, c);
        }
    }
}

// Of thread t of a warpgroup, value i of its sums (PTX ISA, "Accumulator D" of wgmma m64nNk16).
u32 row_of(u32 t, u32 i) { return t / 32 * 16 + t % 32 / 4 + 8 * (i >> 1 & 1u); }
u32 column_of(u32 t, u32 i) { return i / 4 * 8 + t % 4 * 2 + (i & 1u); }

void carry_out(Product& p) {
    float a[64][16], b[16][256];
    u8* base = machine->shared.base;
    for_each_chunk(p, [&](size_t offset, u32 operand, u32 row, u32 c) {
        u16 elements[8];
        memcpy(elements, base + offset, 16);
        float* to = operand == 0 ? &a[row][8 * c] : &b[row][8 * c];
        for (u32 i = 0; i < 8; i++) {
            to[i] = value_of(elements[i], p.is_bf16);
        }
    });
    for (u32 t = 0; p.in_registers && t < kGroupThreads; t++) {
        // As the left operand of mma.m16n8k16, for the 16 rows of each warp.
        for (u32 r = 0; r < 4; r++) {
            u32 row = t / 32 * 16 + t % 32 / 4 + 8 * (r & 1u), k = 2 * (t % 4) + 8 * (r >> 1);
            a[row][k] = value_of(p.a_registers[t][r] & 0xffffu, p.is_bf16);
            a[row][k + 1] = value_of(p.a_registers[t][r] >> 16, p.is_bf16);
        }
    }
    for (u32 i = 0; i < 64; i++) {
        float* sums = p.sums->values[i];
        for (u32 j = 0; j < p.sums->columns && !p.add; j++) {
            sums[j] = 0.0f;
        }
        for (u32 k = 0; k < 16; k++) {
            for (u32 j = 0; j < p.sums->columns; j++) {
                sums[j] += a[i][k] * b[k][j];
            }
        }
    }
    p.done = true;
}

void carry_out_all(Warpgroup& g, u32 groups_end) {
    for (Product& p : g.products) {
        if (!p.done && p.group < groups_end) {
            carry_out(p);
        }
    }
}

Warpgroup& my_group() { return machine->groups[machine->current->id / kGroupThreads]; }
u32 my_place() { return machine->current->id % kGroupThreads; }

// Takes the registers of the sums of a product, if they are not on their way already.
Sums* sums_of(Warpgroup& g, u32 columns) {
    for (Sums* s : g.sums) {
        if (s->where[0] == g.where[0] && s->columns == columns) {
            return s;
        }
    }
    if (!g.fenced) {
        fail(kMissingFence, "wgmma on registers that others may have touched: no wgmma.fence");
    }
    Sums* s = new Sums();
    s->columns = columns;
    memcpy(s->where, g.where, sizeof s->where);
    for (u32 t = 0; t < kGroupThreads; t++) {
        for (u32 i = 0; i < columns / 2; i++) {
            s->values[row_of(t, i)][column_of(t, i)] = s->where[t][i];
            memcpy(&s->where[t][i], &kPoison, 4);
        }
    }
    g.sums.push_back(s);
    return s;
}

void start(Warpgroup& g, u32 columns) {
    Product p = g.next;
    if (p.in_registers && !g.fenced) {
        fail(kMissingFence, "wgmma with its left operand in registers: no wgmma.fence");
    }
    p.sums = sums_of(g, columns);
    p.sums->products++;
    p.group = g.group;
    p.epoch = machine->epoch;
    p.done = false;
    for_each_chunk(p, [](size_t offset, u32, u32, u32) { product_starts_reading(offset); });
    g.products.push_back(p);
    machine->flying = true;
    if (machine->random != 0 && draw(4) == 0) {
        carry_out_all(g, g.group + 1);
    }
}

// The last product of these sums is waited for: the registers have them.
void deliver(Sums& s) {
    for (u32 t = 0; t < kGroupThreads; t++) {
        for (u32 i = 0; i < s.columns / 2; i++) {
            if (memcmp(&s.where[t][i], &kPoison, 4) != 0) {
                fail(kPendingProduct, "thread %u of the warpgroup wrote to sums of wgmma before "
                                      "they were waited for",
                    t);
            }
            s.where[t][i] = s.values[row_of(t, i)][column_of(t, i)];
        }
    }
}

void finish(Warpgroup& g, u32 pending) {
    u32 end = g.group > pending ? g.group - pending : 0;
    carry_out_all(g, end);
    size_t kept = 0;
    for (Product& p : g.products) {
        if (p.group >= end) {
            g.products[kept++] = p;
            continue;
        }
        for_each_chunk(
            p, [&](size_t offset, u32, u32, u32) { product_has_read(offset, p.epoch); });
        p.sums->products--;
    }
    g.products.resize(kept);
    size_t left = 0;
    for (Sums* s : g.sums) {
        if (s->products > 0) {
            g.sums[left++] = s;
        } else {
            deliver(*s);
            delete s;
        }
    }
    g.sums.resize(left);
    g.fenced = false;
    machine->flying = false;
    for (const Warpgroup& other : machine->groups) {
        machine->flying = machine->flying || !other.products.empty();
    }
}

// Whether this is the last thread of the warpgroup to come.
bool arrive(GroupOp op, const char* name) {
    Warpgroup& g = my_group();
    if (g.arrived != 0 && g.op != op) {
        fail(kDivergence, "%s while others of the warpgroup are at another operation", name);
    }
    g.op = op;
    return ++g.arrived == kGroupThreads;
}

// All others may go on.
void release() {
    Machine& m = *machine;
    u32 first = m.current->id / kGroupThreads * kGroupThreads;
    my_group().arrived = 0;
    for (u32 id = first; id < first + kGroupThreads; id++) {
        if (id != m.current->id) {
            m.ready.push_back(u16(id));
        }
    }
}

void wait_for_others() {
    machine->current->state = State::Warp;
    yield();
}

bool overlap(const u8* a, size_t a_bytes, const void* b, size_t b_bytes) {
    const u8* start = static_cast<const u8*>(b);
    return a < start + b_bytes && start < a + a_bytes;
}

} // namespace

void check_registers(const u8* address, size_t bytes, Access access) {
    const Warpgroup& g = my_group();
    u32 t = my_place();
    for (const Sums* s : g.sums) {
        if (overlap(address, bytes, s->where[t], s->columns / 2 * sizeof(float))) {
            fail(kPendingProduct, "%s sums of wgmma before they were waited for",
                access == kRead ? "reads" : "writes to");
        }
    }
    for (const Product& p : g.products) {
        bool left = access == kWrite && p.in_registers;
        if (left && overlap(address, bytes, p.a_registers[t], 16)) {
            fail(kPendingProduct, "writes to an operand of wgmma before it was waited for");
        }
    }
}

void end_of_thread_products() {
    if (!my_group().products.empty()) {
        fail(kPendingProduct, "the thread ends with products of wgmma not waited for");
    }
}

void clear_products(Machine& m) {
    for (Warpgroup& g : m.groups) {
        for (Sums* s : g.sums) {
            delete s;
        }
        g = Warpgroup();
    }
    m.flying = false;
}

} // namespace pb

using namespace pb;

extern "C" {

u32 pb_shared_address(const void* p) {
    return u32(static_cast<const u8*>(p) - machine->shared.base) + kSharedStart;
}

void pb_proxy_fence() { machine->current->fences.push_back(machine->epoch); }

void pb_wgmma(
    float* d, const u32* registers, u64 a, u64 b, u32 columns, u32 is_bf16, u32 add) {
    Warpgroup& g = my_group();
    Product mine = {};
    mine.a = a;
    mine.b = b;
    mine.in_registers = registers != nullptr;
    mine.is_bf16 = is_bf16 != 0;
    mine.add = add != 0;
    bool first = g.arrived == 0;
    const Product& n = g.next;
    bool last = arrive(GroupOp::Product, "wgmma");
    if (first) {
        g.next = mine;
    } else if (n.a != a || n.b != b || n.in_registers != mine.in_registers ||
        n.is_bf16 != mine.is_bf16 || n.add != mine.add) {
        fail(kDivergence, "wgmma with other operands than other threads of the warpgroup");
    }
    g.where[my_place()] = d;
    g.next.a_registers[my_place()] = registers;
    if (last) {
        start(g, columns);
        release();
    } else {
        wait_for_others();
    }
}

void pb_wgmma_fence() {
    if (arrive(GroupOp::Fence, "wgmma.fence")) {
        my_group().fenced = true;
        release();
    } else {
        wait_for_others();
    }
}

void pb_wgmma_commit() {
    if (arrive(GroupOp::Commit, "wgmma.commit_group")) {
        my_group().group++;
        release();
    } else {
        wait_for_others();
    }
}

void pb_wgmma_wait(u32 pending) {
    if (arrive(GroupOp::Wait, "wgmma.wait_group")) {
        finish(my_group(), pending);
        release();
    } else {
        wait_for_others();
    }
}
}
