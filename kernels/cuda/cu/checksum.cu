// checksum: one 64-bit sum of every block of every store, to prove a transfer.
//
//   sum of (word_i + 1) m(i) modulo 2^64    over the 32-bit words of the block,
//   m(i) = splitmix64(i) | 1
//
// The definition is src/checksum.rs, which says why. Terms may be added in any order.
//
// Shapes   stores [grid.y] addresses (keys or values of a layer), blocks [grid.x] u32,
//          out [blocks][stores] u64
// Launch   grid (blocks, stores), 256 threads, 64 bytes of shared memory
// Limits   block_bytes a multiple of 4
// Bytes    block_bytes read per block and store
#include "device.cuh"

struct ChecksumParams {
    const u64* stores;
    const u32* blocks;
    u64* out;
    u32 block_bytes;
};

__device__ __forceinline__ u64 multiplier(u64 i) {
    u64 z = (i + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (z ^ (z >> 31)) | 1;
}

__device__ __forceinline__ void checksum(const ChecksumParams& p) {
    PB_SHARED_MEMORY(base);
    u64* warp_sums = reinterpret_cast<u64*>(base);
    const u8* store = reinterpret_cast<const u8*>(p.stores[blockIdx.y]);
    const u32* words =
        reinterpret_cast<const u32*>(store + u64(p.blocks[blockIdx.x]) * p.block_bytes);
    u64 sum = 0;
    for (u32 i = threadIdx.x; i < p.block_bytes / 4; i += blockDim.x) {
        sum += (u64(words[i]) + 1) * multiplier(i);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) {
        warp_sums[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (u32 w = 1; w < blockDim.x / 32; w++) {
            sum += warp_sums[w];
        }
        p.out[u64(blockIdx.x) * gridDim.y + blockIdx.y] = sum;
    }
}

PB_KERNEL(block_checksum, checksum, ChecksumParams, 256, 4)
