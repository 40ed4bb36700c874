// block_copy, block_gather, block_scatter: moving blocks for copy-on-write, swap and transfer.
//
//   copy      block pairs[i].to of every store = block pairs[i].from of the same store
//   gather    staging[i][store] = block blocks[i] of the store
//   scatter   the reverse
//
// Shapes   stores [grid.y] addresses (keys or values of a layer), pairs [grid.x][2] u32 or
//          blocks [grid.x] u32, staging [blocks][stores][block_bytes]
// Launch   grid (blocks, stores), 256 threads, no shared memory
// Limits   block_bytes a multiple of 16; within one copy no block is both read and written, and
//          none is written twice (checked by the host)
// Bytes    2 block_bytes per block and store
//
// With stores in the order keys, values of layer 0, of layer 1 and so on, the staging of a block
// is the body of the engine's block image, without the scales, which the host keeps.
#include "device.cuh"

struct BlocksParams {
    const u64* stores;
    const u32* blocks; // of a copy: from, to
    u8* staging;       // unused by copy
    u32 block_bytes;
};

__device__ __forceinline__ u8* block_of(const BlocksParams& p, u32 block) {
    return reinterpret_cast<u8*>(p.stores[blockIdx.y]) + u64(block) * p.block_bytes;
}

__device__ __forceinline__ u8* staged(const BlocksParams& p) {
    return p.staging + (u64(blockIdx.x) * gridDim.y + blockIdx.y) * p.block_bytes;
}

__device__ __forceinline__ void move(const u8* from, u8* to, u32 bytes) {
    for (u32 i = threadIdx.x * 16; i < bytes; i += blockDim.x * 16) {
        *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(from + i);
    }
}

__device__ __forceinline__ void copy(const BlocksParams& p) {
    const u32* pair = p.blocks + 2 * blockIdx.x;
    move(block_of(p, pair[0]), block_of(p, pair[1]), p.block_bytes);
}

__device__ __forceinline__ void gather(const BlocksParams& p) {
    move(block_of(p, p.blocks[blockIdx.x]), staged(p), p.block_bytes);
}

__device__ __forceinline__ void scatter(const BlocksParams& p) {
    move(staged(p), block_of(p, p.blocks[blockIdx.x]), p.block_bytes);
}

PB_KERNEL(block_copy, copy, BlocksParams, 256, 4)
PB_KERNEL(block_gather, gather, BlocksParams, 256, 4)
PB_KERNEL(block_scatter, scatter, BlocksParams, 256, 4)
