// gather_rows: chosen rows of a matrix, side by side: those whose logits are wanted.
//
//   out[i] = from[rows[i]]
//
// Shapes   from [any][row_bytes], rows [chosen] u32, out [chosen][row_bytes]
// Launch   grid (chosen), 128 threads, no shared memory
// Limits   row_bytes a multiple of 16; rows within the matrix (checked by the host)
// Bytes    2 row_bytes a row
#include "device.cuh"

struct GatherRowsParams {
    const u8* from;
    const u32* rows;
    u8* out;
    u32 row_bytes, pad;
};

__device__ __forceinline__ void gather(const GatherRowsParams& p) {
    const u8* from = p.from + u64(p.rows[blockIdx.x]) * p.row_bytes;
    u8* to = p.out + u64(blockIdx.x) * p.row_bytes;
    for (u32 i = threadIdx.x * 16; i < p.row_bytes; i += blockDim.x * 16) {
        *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(from + i);
    }
}

PB_KERNEL(gather_rows, gather, GatherRowsParams, 128, 8)
