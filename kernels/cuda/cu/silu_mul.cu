// silu_mul: the gate of the feed-forward part, on the output of one fused projection.
//
//   out[i][j] = g / (1 + e^-g) * u   with g = gate_up[i][j], u = gate_up[i][ffn + j]
//
// Shapes   gate_up [rows][2 ffn] T, out [rows][ffn] T; arithmetic in f32, rounded once
// Launch   grid (ceil(ffn / 1024), rows), 128 threads, no shared memory
// Limits   ffn a multiple of 8
// Bytes    3 ffn sizeof T per row
#include "device.cuh"

template <class T> struct SiluMulParams {
    const T* gate_up;
    T* out;
    u32 ffn;
};

template <class T> __device__ __forceinline__ u32 silu_mul_pair(u32 gates, u32 ups) {
    float y[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float g = to_f32(T{u16(half == 0 ? gates & 0xffffu : gates >> 16)});
        float u = to_f32(T{u16(half == 0 ? ups & 0xffffu : ups >> 16)});
        y[half] = g / (1.0f + expf(-g)) * u;
    }
    return pack2<T>(y[0], y[1]);
}

template <class T> __device__ __forceinline__ void silu_mul(const SiluMulParams<T>& p) {
    u32 i = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (i >= p.ffn) {
        return;
    }
    const T* row = p.gate_up + u64(blockIdx.y) * 2 * p.ffn;
    uint4 g = *reinterpret_cast<const uint4*>(row + i);
    uint4 u = *reinterpret_cast<const uint4*>(row + p.ffn + i);
    *reinterpret_cast<uint4*>(p.out + u64(blockIdx.y) * p.ffn + i) =
        make_uint4(silu_mul_pair<T>(g.x, u.x), silu_mul_pair<T>(g.y, u.y),
            silu_mul_pair<T>(g.z, u.z), silu_mul_pair<T>(g.w, u.w));
}

PB_KERNEL(silu_mul_bf16, silu_mul<bf16>, SiluMulParams<bf16>, 128, 8)
PB_KERNEL(silu_mul_f16, silu_mul<f16>, SiluMulParams<f16>, 128, 8)
