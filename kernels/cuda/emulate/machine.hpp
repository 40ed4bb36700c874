// State of the emulated machine, shared by its parts.
//
// Happens-before. Two accesses of one block are ordered when a __syncthreads lies between them,
// or, within a warp, a __syncwarp. So every access is stamped with the number of barriers before
// it (`epoch`, counted through all blocks of all launches) and the number of warp barriers of its
// warp (`sync`). Shuffles, mma and ldmatrix order no memory, as the CUDA guide has it. Blocks of
// one launch are never ordered.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <vector>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

namespace pb {

enum FaultKind : u32 {
    kNone = 0,
    kOutOfBounds = 1,
    kUninitialised = 2,
    kRace = 3,
    kDivergence = 4,
    kMisaligned = 5,
    kReadOnly = 6,
    kPendingCopy = 7,
    kBadLaunch = 8,
    kMissingFence = 9,
    kPendingProduct = 10,
};

// What is known of one granule of memory (1, 2 or 4 bytes).
struct Cell {
    u32 write_epoch, read_epoch; // 0: never
    u32 written;                 // epoch at which it was initialised; 0: not
    u16 writer, reader;          // threads
    u16 write_sync, read_sync;
    u32 readers;     // 0 none, 1 one thread, 2 several of one warp, 3 of several warps
    u32 foreign;     // number of the launch in which another block read it
    u32 pending;     // an asynchronous copy into it has not been waited for
    u32 fences;      // proxy fences of the writer before it wrote
};

// Memory that kernels may touch.
struct Region {
    u8* base;
    size_t bytes;
    u32 shift;      // log2 of bytes per granule
    bool read_only; // then it needs no cells
    char name[32];
    u8* allocation;
    std::vector<Cell> cells;
};

struct Copy {
    u8* to;
    const u8* from;
    u32 group;
    bool valid, done;
};

enum class State : u8 { Ready, Barrier, Warp, Done };

struct Fiber {
    void* stack_pointer;
    State state;
    u16 id;
    u32 x, y, z;
    u32 group; // of the next asynchronous copy
    std::vector<Copy> copies;
    std::vector<u32> fences; // epochs of its proxy fences in this block
};

enum class WarpOp : u32 { None, Sync, Shuffle, Ballot, Mma, Ldmatrix };

// One warp-wide operation in progress: what the lanes brought, and what they take away.
struct Warp {
    WarpOp op;
    u32 variant; // must agree too
    u32 arrived;
    u16 sync;
    u32 in[32][12];
    u32 out[32][4];
};

const u32 kGroupThreads = 128;

// Sums of products on their way: registers of all threads of a warpgroup, which hold poison until
// the last of these products is waited for.
struct Sums {
    u32 columns;
    u32 products;                // not waited for
    float* where[kGroupThreads]; // on the stacks of the threads
    float values[64][256];
};

// One wgmma that was started.
struct Product {
    Sums* sums;
    u64 a, b; // descriptors
    const u32* a_registers[kGroupThreads];
    u32 group, epoch;
    bool in_registers, is_bf16, add, done;
};

enum class GroupOp : u32 { None, Product, Fence, Commit, Wait };

// What the four warps of a warpgroup do together.
struct Warpgroup {
    GroupOp op;
    u32 arrived, group;
    bool fenced; // since registers of the last products could be touched
    Product next; // what the threads bring
    float* where[kGroupThreads];
    std::vector<Product> products;
    std::vector<Sums*> sums;
};

struct Index {
    u32 x, y, z;
};

typedef void (*Kernel)(const void* params);

struct Fault {
    u32 kind;
    char text[508];
};

struct Machine {
    std::vector<Region*> regions; // by address
    Region shared;
    size_t shared_bytes = 0;
    u8* stacks = nullptr;
    size_t stacks_bytes = 0;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::vector<Warpgroup> groups;
    bool flying = false; // some product is on its way
    std::vector<u16> ready;
    size_t ready_head = 0;
    Fiber* current = nullptr;
    void* main_stack = nullptr;
    u32 threads = 0, live = 0, at_barrier = 0, exited = 0;
    u32 epoch = 1, block_first = 1, launch_first = 1;
    u32 launch = 0;
    Index block = {}, block_size = {}, grid = {};
    Kernel kernel = nullptr;
    const char* kernel_name = "";
    alignas(16) u8 params[512];
    u64 random = 0; // 0: threads run in order
    Fault* fault = nullptr;
    Region* last_hit = nullptr;
};

extern thread_local Machine* machine __attribute__((tls_model("initial-exec")));

enum Access { kRead, kWrite };

// Checks an access of the current thread and stamps it.
void check(const void* address, size_t bytes, Access access, bool aligned);
void misaligned(const void* address, size_t bytes);
// Marks 16 bytes of shared memory as the target of a copy on its way; and as arrived.
void copy_issued(u8* to);
void copy_arrived(u8* to);
// Checks and stamps the read of 16 bytes of shared memory, by their offset, by a product: when it
// is started, and when it is waited for.
void product_starts_reading(size_t offset);
void product_has_read(size_t offset, u32 started_at_epoch);
// An access to a stack while products are on their way: it must not be to their registers.
void check_registers(const u8* address, size_t bytes, Access access);
// A thread ends: its products must be waited for. A block begins, or the machine ends.
void end_of_thread_products();
void clear_products(Machine& m);
// Ends the launch with a fault; does not return.
[[noreturn]] void fail(FaultKind kind, const char* format, ...)
    __attribute__((format(printf, 2, 3)));
// Leaves the current fiber for one that can run.
void yield();
// The next number of the seeded sequence, below `below`.
u32 draw(u32 below);

} // namespace pb
