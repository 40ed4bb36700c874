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

// wgmma is of sm_90a alone: neither earlier nor later architectures have it.
#if defined(PB_EMULATE) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define PB_SM90A
#endif

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

// The dynamic shared memory of the block, aligned to 1024 bytes: where the pattern of the swizzle
// of wgmma's operands begins anew.
#define PB_SHARED_MEMORY(base)                                                                  \
    extern __shared__ __align__(1024) u8 pb_shared_memory[];                                    \
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

#ifdef PB_SM90A

// 2^x to about 2 units in the last place; results below the smallest normal number are zero.
__device__ __forceinline__ float exp2_flushed(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Makes this thread's writes to shared memory, arrived copies included, visible to wgmma, which
// reads through another proxy (PTX ISA, "Async proxy"). A barrier must follow.
__device__ __forceinline__ void fence_for_wgmma() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Before the first wgmma, and before one whose registers something else has touched.
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Closes the group of products started since the last commit.
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Keeps the compiler from moving accesses to these registers to the other side of this place.
template <int N> __device__ __forceinline__ void hold(float (&d)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            asm volatile("" : "+f"(d[n][i])::"memory");
        }
    }
}

// Waits for the products of this warpgroup, but for the `Pending` groups committed last; `d` is
// what they leave.
template <int Pending, int N> __device__ __forceinline__ void wgmma_wait(float (&d)[N][4]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(Pending) : "memory");
    hold(d);
}

// Keeps what `x`, which is never negative, depends on before what follows. Without this ptxas moves
// a wait for products up over the arithmetic that is to be done in the meantime. It moves neither
// over a branch, and the branch must be the same for all lanes of a warp, or it gives up on
// asynchronous products altogether (its message C7518).
__device__ __forceinline__ void compute_before(float x) {
    if (__any_sync(0xffffffffu, x < 0.0f)) {
        fence_for_wgmma(); // never, and no harm
    }
}

// Starts d (+)= a b for 64 rows, N columns and 16 terms; without `add` the old content of d does
// not count. `a` and `b` are operands in shared memory, see wgmma_operand: a with its terms
// contiguous, b with its columns (imm-trans-a 0, imm-trans-b 1). A warp has 16 of the rows, and
// d[n] is what mma_m16n8k16 leaves of them and of the columns from 8 n on (PTX ISA, "Register
// Fragments" of wgmma).
template <class T, int N>
__device__ __forceinline__ void wgmma_shared(float (&d)[N / 8][4], u64 a, u64 b, bool add);

// The same with `a` in registers, which holds the fragment of mma_m16n8k16.
template <class T, int N>
__device__ __forceinline__ void wgmma_registers(
    float (&d)[N / 8][4], const u32 (&a)[4], u64 b, bool add);

#define PB_D32                                                                                  \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                                    \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define PB_D64                                                                                  \
    PB_D32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"                  \
           "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define PB_SUM4(d, n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define PB_SUM16(d, n) PB_SUM4(d, n), PB_SUM4(d, n + 1), PB_SUM4(d, n + 2), PB_SUM4(d, n + 3)
#define PB_SUM32(d) PB_SUM16(d, 0), PB_SUM16(d, 4)
#define PB_SUM64(d) PB_SUM32(d), PB_SUM16(d, 8), PB_SUM16(d, 12)

// For one type and N: the list of sums and the numbers of the six operands after them.
#define PB_WGMMA(T, type, N, list, sums, o0, o1, o2, o3, o4, o5)                                \
    template <>                                                                                 \
    __device__ __forceinline__ void wgmma_shared<T, N>(                                         \
        float (&d)[N / 8][4], u64 a, u64 b, bool add) {                                         \
        asm volatile("{.reg .pred p; setp.ne.b32 p, %" o2 ", 0; "                               \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type            \
                     " {" list "}, %" o0 ", %" o1 ", p, 1, 1, 0, 1;}"                           \
                     : sums(d)                                                                  \
                     : "l"(a), "l"(b), "r"(u32(add)));                                          \
    }                                                                                           \
    template <>                                                                                 \
    __device__ __forceinline__ void wgmma_registers<T, N>(                                      \
        float (&d)[N / 8][4], const u32 (&a)[4], u64 b, bool add) {                             \
        asm volatile("{.reg .pred p; setp.ne.b32 p, %" o5 ", 0; "                               \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type            \
                     " {" list "}, {%" o0 ", %" o1 ", %" o2 ", %" o3 "}, %" o4                  \
                     ", p, 1, 1, 1;}"                                                           \
                     : sums(d)                                                                  \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(u32(add)));      \
    }

PB_WGMMA(bf16, "bf16", 64, PB_D32, PB_SUM32, "32", "33", "34", "35", "36", "37")
PB_WGMMA(bf16, "bf16", 128, PB_D64, PB_SUM64, "64", "65", "66", "67", "68", "69")
PB_WGMMA(f16, "f16", 64, PB_D32, PB_SUM32, "32", "33", "34", "35", "36", "37")
PB_WGMMA(f16, "f16", 128, PB_D64, PB_SUM64, "64", "65", "66", "67", "68", "69")

#endif // PB_SM90A
#endif // PB_EMULATE

#ifdef PB_SM90A
// Where an operand of wgmma begins in shared memory and how its parts of 8 rows of 128 bytes
// follow one another, 128-byte swizzle (PTX ISA, "Matrix Descriptor Format" and "Strides" of
// wgmma): within 1024 bytes chunk c of row r lies at c ^ r.
// Terms contiguous: a row of the part is one row of the operand; `stride` is the distance of the
// next 8 rows, `leading` has no meaning. Rows or columns contiguous: a row of the part is one
// term of 64 of them; `stride` is the distance of the next 8 terms, `leading` that of the next
// 64 rows or columns.
__device__ __forceinline__ u64 wgmma_operand(const void* start, u32 leading, u32 stride) {
    const u64 swizzle_128_bytes = 1ull << 62;
    return swizzle_128_bytes | u64((stride & 0x3ffffu) >> 4) << 32 |
        u64((leading & 0x3ffffu) >> 4) << 16 | (shared_address(start) & 0x3ffffu) >> 4;
}
#endif

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
