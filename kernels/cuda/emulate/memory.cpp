// The memory of the emulated machine: bounds, initialisation, races; and the compiler's hooks.

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "machine.hpp"

namespace pb {

namespace {

// What an access meant to touch, in words.
void describe(const void* address, char* out, size_t size) {
    const u8* p = static_cast<const u8*>(address);
    Machine& m = *machine;
    if (p >= m.shared.base && p < m.shared.base + m.shared_bytes) {
        snprintf(out, size, "shared memory at byte %zu of %zu", size_t(p - m.shared.base),
            m.shared_bytes);
        return;
    }
    for (const Region* r : m.regions) {
        if (p >= r->base && p < r->base + r->bytes) {
            snprintf(out, size, "%s at byte %zu of %zu", r->name, size_t(p - r->base), r->bytes);
            return;
        }
    }
    // A near miss is named after what it missed.
    for (const Region* r : m.regions) {
        if (p + 4096 > r->base && p < r->base + r->bytes + 4096) {
            snprintf(out, size, "byte %td of %s, which has %zu", p - r->base, r->name, r->bytes);
            return;
        }
    }
    if (p + 4096 > m.shared.base && p < m.shared.base + m.shared.bytes) {
        snprintf(out, size, "byte %td of shared memory, which has %zu", p - m.shared.base,
            m.shared_bytes);
        return;
    }
    snprintf(out, size, "an address in no buffer");
}

Region* find(const u8* p, size_t bytes) {
    Machine& m = *machine;
    if (p >= m.shared.base && p + bytes <= m.shared.base + m.shared_bytes) {
        return &m.shared;
    }
    Region* last = m.last_hit;
    if (last && p >= last->base && p + bytes <= last->base + last->bytes) {
        return last;
    }
    auto starts_after = [](const u8* at, const Region* r) { return at < r->base; };
    auto after = std::upper_bound(m.regions.begin(), m.regions.end(), p, starts_after);
    if (after == m.regions.begin()) {
        return nullptr;
    }
    Region* r = *(after - 1);
    if (p + bytes > r->base + r->bytes) {
        return nullptr;
    }
    m.last_hit = r;
    return r;
}

bool same_warp(u16 a, u16 b) { return a / 32 == b / 32; }

// Whether an access of the current epoch by `other` is unordered with one of thread `me`.
bool unordered(u16 other, u16 other_sync, u16 me, u16 sync) {
    return other != me && (!same_warp(other, me) || other_sync == sync);
}

[[noreturn]] void race(const void* address, const char* what, u16 other) {
    char where[128];
    describe(address, where, sizeof where);
    fail(kRace, "%s, %s by thread %u without a barrier between", where, what, other);
}

[[noreturn]] void race_of_blocks(const void* address, const char* what) {
    char where[128];
    describe(address, where, sizeof where);
    fail(kRace, "%s, %s by another block of the launch", where, what);
}

void check_written(const Region& r, const Cell& cell, const void* address) {
    bool shared = &r == &machine->shared;
    char where[128];
    if (cell.pending >= (shared ? machine->block_first : 1)) {
        describe(address, where, sizeof where);
        fail(kPendingCopy, "%s, the target of a copy that was not waited for", where);
    }
    if (cell.written < (shared ? machine->block_first : 1)) {
        describe(address, where, sizeof where);
        fail(kUninitialised, "%s, read before anything was written there", where);
    }
}

// The first epoch that matters: shared memory is new in every block.
u32 first_epoch(const Region& r) {
    return &r == &machine->shared ? machine->block_first : machine->launch_first;
}

void read_cell(const Region& r, Cell& cell, const void* address, u16 me, u16 sync) {
    Machine& m = *machine;
    u32 first = first_epoch(r);
    check_written(r, cell, address);
    if (cell.write_epoch >= first) {
        if (cell.write_epoch < m.block_first) {
            race_of_blocks(address, "read here, written");
        }
        if (cell.write_epoch == m.epoch && unordered(cell.writer, cell.write_sync, me, sync)) {
            race(address, "read here, written", cell.writer);
        }
    }
    if (cell.read_epoch >= first && cell.read_epoch < m.block_first) {
        cell.foreign = m.launch;
    }
    if (cell.read_epoch != m.epoch) {
        cell.read_epoch = m.epoch;
        cell.readers = 0;
    }
    if (cell.readers == 0) {
        cell.readers = 1;
    } else if (!same_warp(cell.reader, me)) {
        cell.readers = 3;
    } else if (cell.readers <= 2) {
        // Readers before a warp barrier no longer matter to this warp, and to other warps any
        // one reader is enough.
        bool others = cell.read_sync == sync && (cell.readers == 2 || cell.reader != me);
        cell.readers = others ? 2 : 1;
    }
    cell.reader = me;
    cell.read_sync = sync;
}

void write_cell(const Region& r, Cell& cell, const void* address, u16 me, u16 sync) {
    Machine& m = *machine;
    u32 first = first_epoch(r);
    if (cell.write_epoch >= first) {
        if (cell.write_epoch < m.block_first) {
            race_of_blocks(address, "written here, written");
        }
        if (cell.write_epoch == m.epoch && unordered(cell.writer, cell.write_sync, me, sync)) {
            race(address, "written here, written", cell.writer);
        }
    }
    bool foreign = cell.foreign == m.launch && m.launch != 0;
    if (foreign || (cell.read_epoch >= first && cell.read_epoch < m.block_first)) {
        race_of_blocks(address, "written here, read");
    }
    if (cell.read_epoch == m.epoch) {
        bool mine = same_warp(cell.reader, me);
        bool conflict = cell.readers == 3 ||
            (mine ? cell.read_sync == sync && (cell.readers == 2 || cell.reader != me) : true);
        if (conflict) {
            race(address, "written here, read", cell.reader);
        }
    }
    cell.write_epoch = m.epoch;
    cell.writer = me;
    cell.write_sync = sync;
    cell.fences = u32(m.fibers[me].fences.size());
}

bool on_a_stack(const u8* p) {
    return size_t(p - machine->stacks) < machine->stacks_bytes;
}

bool in_params(const u8* p) {
    return size_t(p - machine->params) < sizeof machine->params;
}

} // namespace

void check(const void* address, size_t bytes, Access access, bool aligned) {
    const u8* p = static_cast<const u8*>(address);
    Machine* m = machine;
    if (m == nullptr || m->current == nullptr) {
        return;
    }
    if (on_a_stack(p)) {
        if (m->flying) {
            check_registers(p, bytes, access);
        }
        return;
    }
    if (access == kRead && in_params(p)) {
        return;
    }
    Region* r = find(p, bytes);
    char where[128];
    if (r == nullptr) {
        describe(address, where, sizeof where);
        fail(kOutOfBounds, "%s of %zu bytes: %s", access == kRead ? "read" : "write", bytes,
            where);
    }
    if (aligned && size_t(p) % bytes != 0) {
        describe(address, where, sizeof where);
        fail(kMisaligned, "access of %zu bytes: %s", bytes, where);
    }
    if (r->read_only) {
        if (access == kWrite) {
            describe(address, where, sizeof where);
            fail(kReadOnly, "write to an input: %s", where);
        }
        return;
    }
    u16 me = m->current->id, sync = m->warps[me / 32].sync;
    size_t begin = size_t(p - r->base) >> r->shift;
    size_t last = (size_t(p - r->base) + bytes - 1) >> r->shift;
    for (size_t i = begin; i <= last; i++) {
        Cell& cell = r->cells[i];
        const u8* at = r->base + (i << r->shift);
        if (access == kRead) {
            read_cell(*r, cell, at, me, sync);
        } else {
            write_cell(*r, cell, at, me, sync);
            cell.written = m->epoch;
            cell.pending = 0;
        }
    }
}

void misaligned(const void* address, size_t bytes) {
    if (!on_a_stack(static_cast<const u8*>(address))) {
        char where[128];
        describe(address, where, sizeof where);
        fail(kMisaligned, "a vector of %zu bytes: %s", bytes, where);
    }
}

void copy_issued(u8* to) {
    check(to, 16, kWrite, true);
    Region& r = machine->shared;
    if (to < r.base || to + 16 > r.base + machine->shared_bytes) {
        fail(kOutOfBounds, "an asynchronous copy to something that is not shared memory");
    }
    size_t first = size_t(to - r.base) >> r.shift;
    for (size_t i = first; i < first + (16 >> r.shift); i++) {
        r.cells[i].pending = machine->epoch;
    }
}

void copy_arrived(u8* to) {
    check(to, 16, kWrite, true);
}

// Whether the writer of a cell made it visible to the other proxy before the last barrier.
static bool fenced(const Cell& cell) {
    const std::vector<u32>& fences = machine->fibers[cell.writer].fences;
    return cell.fences < fences.size() && fences[cell.fences] < machine->epoch;
}

void product_starts_reading(size_t offset) {
    Machine& m = *machine;
    Region& r = m.shared;
    if (offset > m.shared_bytes || offset + 16 > m.shared_bytes) {
        fail(kOutOfBounds, "wgmma reads shared memory at byte %zu of %zu", offset, m.shared_bytes);
    }
    u16 me = m.current->id, sync = m.warps[me / 32].sync;
    for (size_t i = offset >> r.shift; i < (offset + 16) >> r.shift; i++) {
        Cell& cell = r.cells[i];
        const u8* at = r.base + (i << r.shift);
        read_cell(r, cell, at, me, sync);
        if (cell.write_epoch == m.epoch) {
            race(at, "read by wgmma, written", cell.writer);
        }
        if (!fenced(cell)) {
            fail(kMissingFence,
                "wgmma reads shared memory at byte %zu, written by thread %u without "
                "fence.proxy.async before the barrier",
                offset, cell.writer);
        }
        cell.readers = 3; // threads of all four warps
    }
}

void product_has_read(size_t offset, u32 started_at_epoch) {
    Machine& m = *machine;
    Region& r = m.shared;
    for (size_t i = offset >> r.shift; i < (offset + 16) >> r.shift; i++) {
        Cell& cell = r.cells[i];
        if (cell.write_epoch >= started_at_epoch) {
            fail(kRace,
                "shared memory at byte %zu, written by thread %u while wgmma that reads it was "
                "not waited for",
                offset, cell.writer);
        }
        cell.read_epoch = m.epoch;
        cell.reader = m.current->id;
        cell.read_sync = m.warps[m.current->id / 32].sync;
        cell.readers = 3;
    }
}

} // namespace pb

// What -fsanitize=thread calls. The accesses themselves follow, so a fault is found before the
// memory is touched.
using pb::check;
using pb::kRead;
using pb::kWrite;

#define PB_HOOKS(n)                                                                             \
    void __tsan_read##n(void* p) { check(p, n, kRead, true); }                                  \
    void __tsan_write##n(void* p) { check(p, n, kWrite, true); }                                \
    void __tsan_unaligned_read##n(void* p) { check(p, n, kRead, false); }                       \
    void __tsan_unaligned_write##n(void* p) { check(p, n, kWrite, false); }

extern "C" {
void pb_misaligned(const void* address, u32 bytes) { pb::misaligned(address, bytes); }
PB_HOOKS(1)
PB_HOOKS(2)
PB_HOOKS(4)
PB_HOOKS(8)
PB_HOOKS(16)
void __tsan_read_range(void* p, size_t bytes) { check(p, bytes, kRead, false); }
void __tsan_write_range(void* p, size_t bytes) { check(p, bytes, kWrite, false); }
// Newer clang calls these for copies of structures.
void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
    check(from, bytes, kRead, false);
    check(to, bytes, kWrite, false);
    return memcpy(to, from, bytes);
}
void* __tsan_memset(void* to, int byte, size_t bytes) {
    check(to, bytes, kWrite, false);
    return memset(to, byte, bytes);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
}
