// embed: rows of the embedding table for a list of tokens.
//
//   out[i][j] = table[tokens[i]][j], widened to f32
//
// Shapes   table [vocab][hidden] T, tokens [rows] u32, out [rows][hidden] f32
// Launch   grid (rows), 128 threads, no shared memory
// Limits   hidden a multiple of 8; tokens below vocab (checked by the host)
// Bytes    rows * hidden * (sizeof T + 4): one pass, nothing is read twice
//
// The residual stream is f32, as in the CPU engine: it is the one sum that runs through every
// layer, and its rounding would be seen by all of them.
#include "device.cuh"

template <class T> struct EmbedParams {
    const T* table;
    const u32* tokens;
    float* out;
    u32 hidden;
};

template <class T> __device__ __forceinline__ void embed(const EmbedParams<T>& p) {
    u32 row = blockIdx.x;
    const T* from = p.table + u64(p.tokens[row]) * p.hidden;
    float* to = p.out + u64(row) * p.hidden;
    for (u32 i = threadIdx.x * 8; i < p.hidden; i += blockDim.x * 8) {
        uint4 packed = *reinterpret_cast<const uint4*>(from + i);
        u32 words[4] = {packed.x, packed.y, packed.z, packed.w};
        float x[8];
#pragma unroll
        for (int w = 0; w < 4; w++) {
            x[2 * w] = to_f32(T{u16(words[w] & 0xffffu)});
            x[2 * w + 1] = to_f32(T{u16(words[w] >> 16)});
        }
        float4* out = reinterpret_cast<float4*>(to + i);
        out[0] = make_float4(x[0], x[1], x[2], x[3]);
        out[1] = make_float4(x[4], x[5], x[6], x[7]);
    }
}

PB_KERNEL(embed_bf16, embed<bf16>, EmbedParams<bf16>, 128, 8)
PB_KERNEL(embed_f16, embed<f16>, EmbedParams<f16>, 128, 8)
