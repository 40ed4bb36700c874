// What the kernels need beyond plain C++: element types, matrix products, asynchronous copies.
//
// This is the only file with PTX. Compiled by NVRTC or nvcc it is inline PTX for sm_80 and up;
// compiled by a host C++ compiler with PB_EMULATE it takes the same functions from
// emulate/emulate.hpp, which follows the PTX ISA's fragment tables. No header of the CUDA
// toolkit is needed, so that a machine with nothing but NVRTC can build the kernels.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;

// Elements are their bits; arithmetic is always in f32.
struct bf16 {
    u16 bits;
};
struct f16 {
    u16 bits;
};
// OCP E4M3: bias 7, no infinity, 0x7f and 0xff are NaN.
struct e4m3 {
    u8 bits;
};

#ifdef PB_EMULATE
#include "emulate.hpp"
#else

#define PB_INFINITY __int_as_float(0x7f800000)

// A kernel takes one structure by value, so that launching one needs no list of arguments.
#define PB_KERNEL(name, body, Params, threads, blocks_per_sm)                                   \
    extern "C" __global__ void __launch_bounds__(threads, blocks_per_sm)                        \
        name(const __grid_constant__ Params params) {                                           \
        body(params);                                                                           \
    }

// The dynamic shared memory of the block, aligned to 128 bytes.
#define PB_SHARED_MEMORY(base)                                                                  \
    extern __shared__ __align__(128) u8 pb_shared_memory[];                                     \
    u8* const base = pb_shared_memory

__device__ __forceinline__ float to_f32(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }

__device__ __forceinline__ float to_f32(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

template <class T> __device__ __forceinline__ T from_f32(float x);

template <> __device__ __forceinline__ bf16 from_f32<bf16>(float x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

template <> __device__ __forceinline__ f16 from_f32<f16>(float x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

// Two elements in one register, `low` in the lower half.
template <class T> __device__ __forceinline__ u32 pack2(float low, float high);

template <> __device__ __forceinline__ u32 pack2<bf16>(float low, float high) {
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

template <> __device__ __forceinline__ u32 pack2<f16>(float low, float high) {
    u32 y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

// d += a b for one tile of 16 x 8 with 16 terms; a row-major, b column-major, sums in f32.
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1);

template <>
__device__ __forceinline__ void mma_m16n8k16<bf16>(
    float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void mma_m16n8k16<f16>(
    float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ u32 shared_address(const void* p) {
    return static_cast<u32>(__cvta_generic_to_shared(p));
}

// Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix
// l / 8. The lane receives elements (lane / 4, 2 (lane % 4) + {0, 1}) of each matrix.
__device__ __forceinline__ void ldmatrix_x4(u32 (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// The same of the transposed matrices: elements (2 (lane % 4) + {0, 1}, lane / 4).
__device__ __forceinline__ void ldmatrix_x4_trans(u32 (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Starts a copy of 16 bytes to shared memory; zeros when not `valid`, and then `from` is not
// read (but must be an address).
__device__ __forceinline__ void cp_async_16(void* to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0)
                 : "memory");
}

// Closes the group of copies started since the last commit.
__device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits for this thread's copies, but for the `Pending` groups committed last.
template <int Pending> __device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" : : "n"(Pending) : "memory");
}

#endif // PB_EMULATE

// The value, exactly: as a bf16 the same fields mean 2^120 less, subnormal numbers included.
__device__ __forceinline__ float to_f32(e4m3 x) {
    u32 bits = x.bits;
    float y = __uint_as_float((bits & 0x80u) << 24 | (bits & 0x7fu) << 20);
    return (bits & 0x7fu) == 0x7fu ? __uint_as_float(0x7fc00000u) : y * 0x1p120f;
}

__device__ __forceinline__ float to_f32(float x) { return x; }

// Nearest code, ties to even, saturating at 448; NaN stays NaN. In integers, because the
// conversion instruction is from sm_89 on, and writing is never what the time goes into.
template <> __device__ __forceinline__ e4m3 from_f32<e4m3>(float x) {
    e4m3 code;
    u32 bits = __float_as_uint(x);
    u32 sign = bits >> 24 & 0x80u;
    u32 magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        code.bits = 0x7f;
        return code;
    }
    if (magnitude >= 0x43e00000u) { // 448
        code.bits = u8(sign | 0x7eu);
        return code;
    }
    i32 exponent = i32(magnitude >> 23) - 127;
    exponent = exponent < -6 ? -6 : exponent;
    // Neighbours are 2^(exponent - 3) apart. Adding and taking away 2^23 rounds to an integer.
    float unit = __uint_as_float(u32(127 + 3 - exponent) << 23);
    float steps = (__uint_as_float(magnitude) * unit + 0x1p23f) - 0x1p23f;
    // Codes are consecutive across exponents, so a carry out of the mantissa needs no care.
    code.bits = u8(sign | u32((exponent + 6) * 8 + i32(steps)));
    return code;
}

// Where chunk `c` (16 bytes) of row `r` lies in a tile of `chunks` chunks a row, in bytes. With
// this exchange the 8 rows that ldmatrix reads at one chunk fall on different banks.
__device__ __forceinline__ u32 swizzled(u32 r, u32 c, u32 chunks) {
    return (r * chunks + (c ^ (r & 7u))) * 16;
}

// Sum of a value over the 32 lanes, in one fixed order, given to all of them.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        x += __shfl_xor_sync(0xffffffffu, x, step);
    }
    return x;
}

__device__ __forceinline__ u64 shuffle(u64 x, u32 source) {
    u32 low = __shfl_sync(0xffffffffu, u32(x), source);
    return u64(__shfl_sync(0xffffffffu, u32(x >> 32), source)) << 32 | low;
}

__device__ __forceinline__ u64 warp_sum(u64 x) {
    for (u32 step = 16; step > 0; step /= 2) {
        x += shuffle(x, (threadIdx.x % 32) ^ step);
    }
    return x;
}
