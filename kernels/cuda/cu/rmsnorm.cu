// rmsnorm, add_rmsnorm: root-mean-square norm of rows, alone and fused with the residual sum.
//
//   add_rmsnorm:  residual[i][j] += delta[i][j]          (f32, stored back)
//   both:         out[i][j] = residual[i][j] / sqrt(mean_j residual[i][j]^2 + eps) * weight[j]
//
// Shapes   residual [rows][hidden] f32, delta [rows][hidden] T, weight [hidden] T,
//          out [rows][hidden] T
// Launch   grid (rows), 256 threads, 32 bytes of shared memory
// Limits   hidden a multiple of 4
// Bytes    rmsnorm reads 4 and writes sizeof T per element; add_rmsnorm reads 4 + sizeof T and
//          writes 4 + sizeof T. The second pass over a row finds it in L1.
//
// Batch invariant: a row is one block's, and its sum has one order. Each thread adds the squares
// of its elements one after the other, lanes are added as a butterfly, warps in turn.
#include "device.cuh"

template <class T> struct RmsNormParams {
    float* residual;
    const T* delta; // unused by rmsnorm
    const T* weight;
    T* out;
    u32 hidden;
    float eps;
};


template <class T> __device__ __forceinline__ void load_four(const T* from, float (&x)[4]) {
    uint2 packed = *reinterpret_cast<const uint2*>(from);
    x[0] = to_f32(T{u16(packed.x & 0xffffu)});
    x[1] = to_f32(T{u16(packed.x >> 16)});
    x[2] = to_f32(T{u16(packed.y & 0xffffu)});
    x[3] = to_f32(T{u16(packed.y >> 16)});
}

template <class T, bool Add> __device__ __forceinline__ void norm(const RmsNormParams<T>& p) {
    PB_SHARED_MEMORY(base);
    float* warp_sums = reinterpret_cast<float*>(base);
    float* row = p.residual + u64(blockIdx.x) * p.hidden;
    const T* delta = p.delta + u64(blockIdx.x) * p.hidden;
    T* out = p.out + u64(blockIdx.x) * p.hidden;

    float squares = 0.0f;
    for (u32 i = threadIdx.x * 4; i < p.hidden; i += blockDim.x * 4) {
        float4 x = *reinterpret_cast<const float4*>(row + i);
        if (Add) {
            float d[4];
            load_four(delta + i, d);
            x = make_float4(x.x + d[0], x.y + d[1], x.z + d[2], x.w + d[3]);
            *reinterpret_cast<float4*>(row + i) = x;
        }
        squares = fmaf(x.x, x.x, squares);
        squares = fmaf(x.y, x.y, squares);
        squares = fmaf(x.z, x.z, squares);
        squares = fmaf(x.w, x.w, squares);
    }
    squares = warp_sum(squares);
#ifdef PB_FAULT_RACE
    warp_sums[threadIdx.x / 32] = squares + float(threadIdx.x % 32); // every lane, not one
#else
    if (threadIdx.x % 32 == 0) {
        warp_sums[threadIdx.x / 32] = squares;
    }
#endif
#ifndef PB_FAULT_NORM_BARRIER
    __syncthreads();
#endif
    float sum = 0.0f;
    for (u32 w = 0; w < blockDim.x / 32; w++) {
        sum += warp_sums[w];
    }
    float inverse = 1.0f / sqrtf(sum / float(p.hidden) + p.eps);

    for (u32 i = threadIdx.x * 4; i < p.hidden; i += blockDim.x * 4) {
        float4 x = *reinterpret_cast<const float4*>(row + i);
        float w[4];
        load_four(p.weight + i, w);
        *reinterpret_cast<uint2*>(out + i) =
            make_uint2(pack2<T>(x.x * inverse * w[0], x.y * inverse * w[1]),
                pack2<T>(x.z * inverse * w[2], x.w * inverse * w[3]));
    }
}

template <class T> __device__ __forceinline__ void rmsnorm(const RmsNormParams<T>& p) {
    norm<T, false>(p);
}

template <class T> __device__ __forceinline__ void add_rmsnorm(const RmsNormParams<T>& p) {
    norm<T, true>(p);
}

PB_KERNEL(rmsnorm_bf16, rmsnorm<bf16>, RmsNormParams<bf16>, 256, 4)
PB_KERNEL(rmsnorm_f16, rmsnorm<f16>, RmsNormParams<f16>, 256, 4)
PB_KERNEL(add_rmsnorm_bf16, add_rmsnorm<bf16>, RmsNormParams<bf16>, 256, 4)
PB_KERNEL(add_rmsnorm_f16, add_rmsnorm<f16>, RmsNormParams<f16>, 256, 4)
