// The emulated machine: what the lanes of a warp do together, and asynchronous copies.

#include <string.h>

#include "machine.hpp"

namespace pb {

static bool arrive(WarpOp op, u32 variant, u32 mask, const char* name) {
    Machine& m = *machine;
    Fiber& f = *m.current;
    Warp& w = m.warps[f.id / 32];
    if (mask != 0xffffffffu) {
        fail(kDivergence, "%s with the mask %08x: only whole warps are supported", name, mask);
    }
    if (w.arrived != 0 && (w.op != op || w.variant != variant)) {
        fail(kDivergence, "%s while other lanes of the warp are at another operation", name);
    }
    w.op = op;
    w.variant = variant;
    w.arrived |= 1u << (f.id & 31u);
    return w.arrived == 0xffffffffu;
}

// Called by the last lane: all others may go on.
static void complete() {
    Machine& m = *machine;
    u16 me = m.current->id;
    m.warps[me / 32].arrived = 0;
    for (u16 lane = 0; lane < 32; lane++) {
        u16 id = u16(me / 32 * 32 + lane);
        if (id != me) {
            m.ready.push_back(id);
        }
    }
}

static u32* lane_in() {
    u16 id = machine->current->id;
    return machine->warps[id / 32].in[id & 31];
}

static const u32* lane_out() {
    u16 id = machine->current->id;
    return machine->warps[id / 32].out[id & 31];
}

static float half_value(u32 bits, bool is_bf16) {
    u32 word;
    float y;
    if (is_bf16) {
        word = bits << 16;
        memcpy(&y, &word, 4);
        return y;
    }
    word = (bits & 0x8000u) << 16 | (bits & 0x7fffu) << 13;
    bool special = (bits & 0x7c00u) == 0x7c00u;
    word |= special ? 0x7f800000u : 0;
    memcpy(&y, &word, 4);
    return special ? y : y * 0x1p112f;
}

// The fragments of mma.m16n8k16 as PTX ISA has them ("Matrix Fragments for mma.m16n8k16 with
// floating point type"): with g = lane / 4 and t = lane % 4, register r of A holds row
// g + 8 (r & 1), columns 2 t + 8 (r >> 1) + {0, 1}; register r of B rows 2 t + 8 r + {0, 1},
// column g; value i of C row g + 8 (i >> 1), column 2 t + (i & 1).
static void multiply(Warp& w, bool is_bf16) {
    float a[16][16], b[16][8], c[16][8];
    for (u32 lane = 0; lane < 32; lane++) {
        u32 g = lane / 4, t = lane % 4;
        const u32* in = w.in[lane];
        for (u32 r = 0; r < 4; r++) {
            u32 row = g + 8 * (r & 1), column = 2 * t + 8 * (r >> 1);
            a[row][column] = half_value(in[4 + r] & 0xffffu, is_bf16);
            a[row][column + 1] = half_value(in[4 + r] >> 16, is_bf16);
        }
        for (u32 r = 0; r < 2; r++) {
            b[2 * t + 8 * r][g] = half_value(in[8 + r] & 0xffffu, is_bf16);
            b[2 * t + 8 * r + 1][g] = half_value(in[8 + r] >> 16, is_bf16);
        }
        for (u32 i = 0; i < 4; i++) {
            memcpy(&c[g + 8 * (i >> 1)][2 * t + (i & 1)], &in[i], 4);
        }
    }
    // Products of 8- or 11-bit significands are exact in f32, and each sum is rounded.
    for (u32 i = 0; i < 16; i++) {
        for (u32 k = 0; k < 16; k++) {
            for (u32 j = 0; j < 8; j++) {
                c[i][j] += a[i][k] * b[k][j];
            }
        }
    }
    for (u32 lane = 0; lane < 32; lane++) {
        for (u32 i = 0; i < 4; i++) {
            memcpy(&w.out[lane][i], &c[lane / 4 + 8 * (i >> 1)][2 * (lane % 4) + (i & 1)], 4);
        }
    }
}

// Lane l brought the address of row l % 8 of matrix l / 8.
static void load_matrices(Warp& w, bool transposed) {
    u16 elements[4][8][8];
    for (u32 lane = 0; lane < 32; lane++) {
        const void* row;
        memcpy(&row, &w.in[lane][0], sizeof row);
        memcpy(elements[lane / 8][lane % 8], row, 16);
    }
    for (u32 lane = 0; lane < 32; lane++) {
        for (u32 r = 0; r < 4; r++) {
            u32 g = lane / 4, t = 2 * (lane % 4);
            u32 low = transposed ? elements[r][t][g] : elements[r][g][t];
            u32 high = transposed ? elements[r][t + 1][g] : elements[r][g][t + 1];
            w.out[lane][r] = low | high << 16;
        }
    }
}

} // namespace pb

using namespace pb;

extern "C" {

void pb_sync_warp(u32 mask) {
    if (arrive(WarpOp::Sync, 0, mask, "__syncwarp")) {
        machine->warps[machine->current->id / 32].sync++;
        complete();
    } else {
        machine->current->state = State::Warp;
        yield();
    }
}

u32 pb_shuffle(u32 mask, u32 value, u32 source) {
    u32* in = lane_in();
    in[0] = value;
    in[1] = source & 31u;
    if (arrive(WarpOp::Shuffle, 0, mask, "a shuffle")) {
        Warp& w = machine->warps[machine->current->id / 32];
        for (u32 lane = 0; lane < 32; lane++) {
            w.out[lane][0] = w.in[w.in[lane][1]][0];
        }
        complete();
    } else {
        machine->current->state = State::Warp;
        yield();
    }
    return lane_out()[0];
}

u32 pb_ballot(u32 mask, u32 predicate) {
    lane_in()[0] = predicate;
    if (arrive(WarpOp::Ballot, 0, mask, "a ballot")) {
        Warp& w = machine->warps[machine->current->id / 32];
        u32 votes = 0;
        for (u32 lane = 0; lane < 32; lane++) {
            votes |= w.in[lane][0] << lane;
        }
        for (u32 lane = 0; lane < 32; lane++) {
            w.out[lane][0] = votes;
        }
        complete();
    } else {
        machine->current->state = State::Warp;
        yield();
    }
    return lane_out()[0];
}

struct Quad {
    u32 x[4];
};
struct QuadFloat {
    float x[4];
};

QuadFloat pb_mma(QuadFloat d, Quad a, u32 b0, u32 b1, u32 is_bf16) {
    u32* in = lane_in();
    memcpy(in, &d, 16);
    memcpy(in + 4, &a, 16);
    in[8] = b0;
    in[9] = b1;
    if (arrive(WarpOp::Mma, is_bf16, 0xffffffffu, "mma")) {
        multiply(machine->warps[machine->current->id / 32], is_bf16 != 0);
        complete();
    } else {
        machine->current->state = State::Warp;
        yield();
    }
    QuadFloat out;
    memcpy(&out, lane_out(), 16);
    return out;
}

Quad pb_ldmatrix(const void* row, u32 transposed) {
    check(row, 16, kRead, true);
    size_t offset = size_t(static_cast<const u8*>(row) - machine->shared.base);
    if (offset >= machine->shared_bytes) {
        fail(kOutOfBounds, "ldmatrix from something that is not shared memory");
    }
    memcpy(lane_in(), &row, sizeof row);
    if (arrive(WarpOp::Ldmatrix, transposed, 0xffffffffu, "ldmatrix")) {
        load_matrices(machine->warps[machine->current->id / 32], transposed != 0);
        complete();
    } else {
        machine->current->state = State::Warp;
        yield();
    }
    Quad out;
    memcpy(&out, lane_out(), 16);
    return out;
}

static void finish_copy(Copy& copy) {
    if (copy.done) {
        return;
    }
    if (copy.valid) {
        memcpy(copy.to, copy.from, 16);
    } else {
        memset(copy.to, 0, 16);
    }
    copy.done = true;
}

// A copy may happen at any time until it is waited for: as late as possible when threads run in
// order, and otherwise at once or late by chance.
void pb_cp_async(void* to, const void* from, u32 valid) {
    Machine& m = *machine;
    if (valid) {
        check(from, 16, kRead, true);
    }
    copy_issued(static_cast<u8*>(to));
    Fiber& f = *m.current;
    f.copies.push_back(
        Copy{static_cast<u8*>(to), static_cast<const u8*>(from), f.group, valid != 0, false});
    if (m.random != 0 && draw(2) == 0) {
        finish_copy(f.copies.back());
    }
}

void pb_cp_commit() { machine->current->group++; }

void pb_cp_wait(u32 pending) {
    Fiber& f = *machine->current;
    size_t kept = 0;
    for (Copy& copy : f.copies) {
        if (copy.group + pending < f.group) {
            finish_copy(copy);
            copy_arrived(copy.to);
        } else {
            f.copies[kept++] = copy;
        }
    }
    f.copies.resize(kept);
}
}
