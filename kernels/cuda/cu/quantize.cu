// quantize_rows: rows to e4m3, with one scale each.
//
//   scales[i] = max over j of |x[i][j]| / 448, or 1 for a row of zeros
//   out[i][j] = the code nearest to x[i][j] / scales[i], ties to even, saturating
//
// Shapes   x [rows][width] T, out [rows][width] e4m3, scales [rows] f32; arithmetic in f32
// Launch   grid (rows), 256 threads, 32 bytes of shared memory
// Limits   width a multiple of 8
// Bytes    sizeof T + 1 per element and 4 per row; the second pass over a row finds it in L1
//
// 448 is the largest code, so the largest value of a row becomes just that: nothing is cut off
// and the whole range of the format is used. A maximum has no order, so the bits of a row depend
// on the row alone. A NaN is no maximum and stays NaN; a row with an infinity has an infinite
// scale, and whatever is made of it is NaN: neither is hidden.
#include "device.cuh"

#define PB_E4M3_MAX 448.0f

template <class T> struct QuantizeParams {
    const T* x;
    e4m3* out;
    float* scales;
    u32 width, pad;
};

template <class T> __device__ __forceinline__ void load_eight(const T* from, float (&x)[8]) {
    uint4 packed = *reinterpret_cast<const uint4*>(from);
    const u32 words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = to_f32(T{u16(words[i] & 0xffffu)});
        x[2 * i + 1] = to_f32(T{u16(words[i] >> 16)});
    }
}

// The codes of four values, the first in the lowest byte.
__device__ __forceinline__ u32 four_codes(const float* x, float scale) {
    u32 codes = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        codes |= u32(from_f32<e4m3>(x[i] / scale).bits) << (8 * i);
    }
    return codes;
}

// Largest of a value over the 32 lanes, given to all of them.
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    }
    return x;
}

template <class T>
__device__ __forceinline__ void quantize_rows(const QuantizeParams<T>& p) {
    PB_SHARED_MEMORY(base);
    float* warp_largest = reinterpret_cast<float*>(base);
    const T* row = p.x + u64(blockIdx.x) * p.width;
    e4m3* out = p.out + u64(blockIdx.x) * p.width;

    float largest = 0.0f;
    for (u32 i = threadIdx.x * 8; i < p.width; i += blockDim.x * 8) {
        float x[8];
        load_eight(row + i, x);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            largest = fmaxf(largest, fabsf(x[j]));
        }
    }
    largest = warp_max(largest);
    if (threadIdx.x % 32 == 0) {
        warp_largest[threadIdx.x / 32] = largest;
    }
#ifndef PB_FAULT_QUANTIZE_BARRIER
    __syncthreads();
#endif
#ifndef PB_FAULT_QUANTIZE_MAX // else every warp keeps to its own
    for (u32 w = 0; w < blockDim.x / 32; w++) {
        largest = fmaxf(largest, warp_largest[w]);
    }
#endif
    float scale = largest > 0.0f ? largest / PB_E4M3_MAX : 1.0f;

    for (u32 i = threadIdx.x * 8; i < p.width; i += blockDim.x * 8) {
        float x[8];
        load_eight(row + i, x);
        *reinterpret_cast<uint2*>(out + i) =
            make_uint2(four_codes(x, scale), four_codes(x + 4, scale));
    }
    if (threadIdx.x == 0) {
        p.scales[blockIdx.x] = scale;
    }
}

PB_KERNEL(quantize_rows_bf16, quantize_rows<bf16>, QuantizeParams<bf16>, 256, 4)
PB_KERNEL(quantize_rows_f16, quantize_rows<f16>, QuantizeParams<f16>, 256, 4)
