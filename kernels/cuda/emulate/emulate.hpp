// The CUDA language surface that the kernels use, for a host C++ compiler.
//
// Every thread of a block is a fiber (emulate/machine.cpp). Loads and stores are plain C++ and
// are seen by the machine because kernel files are compiled with -fsanitize=thread: the compiler
// then calls a hook before each access that may leave the function, and the hooks are ours
// instead of ThreadSanitizer's.
#pragma once

#include <math.h>
#include <stddef.h>
#include <string.h>

#define __device__
#define __global__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__ __restrict
#define __align__(n) __attribute__((aligned(n)))

#define PB_INFINITY __builtin_inff()

struct uint3 {
    unsigned int x, y, z;
};

extern "C" void pb_misaligned(const void* address, u32 bytes);

// The compiler may split the copy of a vector into words, and no hook then sees its alignment; so
// vectors check it themselves. It must not conclude that the type is always aligned.
__forceinline__ void pb_aligned(const void* address, u32 bytes) {
    asm("" : "+r"(address));
    if (size_t(address) % bytes != 0) {
        pb_misaligned(address, bytes);
    }
}

template <class T, u32 N> struct __align__(N * sizeof(T)) pb_vector;

template <class T> struct __align__(2 * sizeof(T)) pb_vector<T, 2> {
    T x, y;
    pb_vector(T a, T b) : x(a), y(b) {}
    pb_vector(const pb_vector& o) : x((pb_aligned(&o, 2 * sizeof(T)), o.x)), y(o.y) {}
    pb_vector& operator=(const pb_vector& o) {
        pb_aligned(this, 2 * sizeof(T));
        x = o.x, y = o.y;
        return *this;
    }
};

template <class T> struct __align__(4 * sizeof(T)) pb_vector<T, 4> {
    T x, y, z, w;
    pb_vector(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
    pb_vector(const pb_vector& o)
        : x((pb_aligned(&o, 4 * sizeof(T)), o.x)), y(o.y), z(o.z), w(o.w) {}
    pb_vector& operator=(const pb_vector& o) {
        pb_aligned(this, 4 * sizeof(T));
        x = o.x, y = o.y, z = o.z, w = o.w;
        return *this;
    }
};

typedef pb_vector<u32, 2> uint2;
typedef pb_vector<u32, 4> uint4;
typedef pb_vector<float, 4> float4;

inline uint2 make_uint2(u32 x, u32 y) { return uint2(x, y); }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return uint4(x, y, z, w); }
inline float4 make_float4(float x, float y, float z, float w) { return float4(x, y, z, w); }

struct pb_quad_f32 {
    float x[4];
};
struct pb_quad_u32 {
    u32 x[4];
};

extern "C" {
// Constant within a fiber, so the compiler may keep the result.
uint3 pb_thread_index() __attribute__((const));
uint3 pb_block_index() __attribute__((const));
uint3 pb_block_size() __attribute__((const));
uint3 pb_grid_size() __attribute__((const));
void* pb_shared_base() __attribute__((const));
void pb_sync_threads();
void pb_sync_warp(u32 mask);
u32 pb_shuffle(u32 mask, u32 value, u32 source);
u32 pb_ballot(u32 mask, u32 predicate);
// By value, so that the registers of a kernel stay registers and need no hooks.
pb_quad_f32 pb_mma(pb_quad_f32 d, pb_quad_u32 a, u32 b0, u32 b1, u32 is_bf16);
pb_quad_u32 pb_ldmatrix(const void* row, u32 transposed);
void pb_cp_async(void* to, const void* from, u32 valid);
void pb_cp_commit();
void pb_cp_wait(u32 pending);
// By address, because the registers are not there yet when the call returns. `registers` is null
// where the left operand lies in shared memory at `a`.
void pb_wgmma(float* d, const u32* registers, u64 a, u64 b, u32 columns, u32 is_bf16, u32 add);
void pb_wgmma_fence();
void pb_wgmma_commit();
void pb_wgmma_wait(u32 pending);
void pb_proxy_fence();
u32 pb_shared_address(const void* p);
}

#define threadIdx (pb_thread_index())
#define blockIdx (pb_block_index())
#define blockDim (pb_block_size())
#define gridDim (pb_grid_size())
#define __syncthreads() pb_sync_threads()
inline void __syncwarp(u32 mask = 0xffffffffu) { pb_sync_warp(mask); }

#define PB_KERNEL(name, body, Params, threads, blocks_per_sm)                                   \
    extern "C" void name(const void* params) { body(*static_cast<const Params*>(params)); }

#define PB_SHARED_MEMORY(base) u8* const base = static_cast<u8*>(pb_shared_base())

inline u32 __float_as_uint(float x) {
    u32 y;
    memcpy(&y, &x, 4);
    return y;
}
inline float __uint_as_float(u32 x) {
    float y;
    memcpy(&y, &x, 4);
    return y;
}
inline u64 __umul64hi(u64 a, u64 b) { return u64((unsigned __int128)a * b >> 64); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

inline u32 pb_lane() { return pb_thread_index().x & 31u; }
inline u32 __shfl_sync(u32 mask, u32 x, int source) { return pb_shuffle(mask, x, u32(source)); }
inline u32 __shfl_xor_sync(u32 mask, u32 x, int lanes) {
    return pb_shuffle(mask, x, pb_lane() ^ u32(lanes));
}
inline float __shfl_xor_sync(u32 mask, float x, int lanes) {
    return __uint_as_float(__shfl_xor_sync(mask, __float_as_uint(x), lanes));
}
inline u32 __ballot_sync(u32 mask, int predicate) { return pb_ballot(mask, predicate != 0); }
inline int __any_sync(u32 mask, int predicate) { return pb_ballot(mask, predicate != 0) != 0; }
inline int __popc(u32 x) { return __builtin_popcount(x); }

// --- Conversions: round to nearest even; a NaN becomes the canonical one, as PTX cvt has it. ---

inline float to_f32(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }

inline float to_f32(f16 x) {
    u32 sign = u32(x.bits & 0x8000u) << 16, rest = x.bits & 0x7fffu;
    if (rest >= 0x7c00u) {
        return __uint_as_float(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    }
    // The same fields mean 2^112 less as an f32, subnormal numbers included.
    return __uint_as_float(sign | rest << 13) * 0x1p112f;
}

template <class T> inline T from_f32(float x);

template <> inline bf16 from_f32<bf16>(float x) {
    u32 bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return bf16{0x7fff};
    }
    return bf16{u16((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

template <> inline f16 from_f32<f16>(float x) {
    u32 bits = __float_as_uint(x);
    u16 sign = u16(bits >> 16 & 0x8000u);
    u32 magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return f16{0x7fff};
    }
    if (magnitude >= 0x477ff000u) { // 65520 and above round to infinity
        return f16{u16(sign | 0x7c00u)};
    }
    if (magnitude < 0x38800000u) { // Subnormal: multiples of 2^-24.
        float steps = (__uint_as_float(magnitude) * 0x1p24f + 0x1p23f) - 0x1p23f;
        return f16{u16(sign | u16(steps))};
    }
    u32 rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return f16{u16(sign | u16((rounded - 0x38000000u) >> 13))};
}

template <class T> inline u32 pack2(float low, float high) {
    return u32(from_f32<T>(low).bits) | u32(from_f32<T>(high).bits) << 16;
}

// --- Warp-wide operations. ---

template <class T> struct pb_is_bf16;
template <> struct pb_is_bf16<bf16> {
    static const u32 value = 1;
};
template <> struct pb_is_bf16<f16> {
    static const u32 value = 0;
};

template <class T>
__forceinline__ void mma_m16n8k16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    pb_quad_f32 sum = {{d[0], d[1], d[2], d[3]}};
    pb_quad_u32 left = {{a[0], a[1], a[2], a[3]}};
    sum = pb_mma(sum, left, b0, b1, pb_is_bf16<T>::value);
    for (int i = 0; i < 4; i++) {
        d[i] = sum.x[i];
    }
}
__forceinline__ void pb_load_matrix(u32 (&r)[4], const void* row, u32 transposed) {
    pb_quad_u32 loaded = pb_ldmatrix(row, transposed);
    for (int i = 0; i < 4; i++) {
        r[i] = loaded.x[i];
    }
}
__forceinline__ void ldmatrix_x4(u32 (&r)[4], const void* row) { pb_load_matrix(r, row, 0); }
__forceinline__ void ldmatrix_x4_trans(u32 (&r)[4], const void* row) {
    pb_load_matrix(r, row, 1);
}
inline void cp_async_16(void* to, const void* from, bool valid) { pb_cp_async(to, from, valid); }
inline void cp_async_commit() { pb_cp_commit(); }
template <int Pending> inline void cp_async_wait() { pb_cp_wait(Pending); }

// --- What a warpgroup does, on sm_90a. ---

inline u32 shared_address(const void* p) { return pb_shared_address(p); }

inline float exp2_flushed(float x) {
    float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y;
}

inline void fence_for_wgmma() { pb_proxy_fence(); }
inline void wgmma_fence() { pb_wgmma_fence(); }
inline void wgmma_commit() { pb_wgmma_commit(); }
inline void compute_before(float) {}
template <int N> __forceinline__ void hold(float (&)[N][4]) {}
template <int Pending, int N> __forceinline__ void wgmma_wait(float (&)[N][4]) {
    pb_wgmma_wait(Pending);
}
template <class T, int N>
__forceinline__ void wgmma_shared(float (&d)[N / 8][4], u64 a, u64 b, bool add) {
    pb_wgmma(&d[0][0], nullptr, a, b, N, pb_is_bf16<T>::value, add);
}
template <class T, int N>
__forceinline__ void wgmma_registers(
    float (&d)[N / 8][4], const u32 (&a)[4], u64 b, bool add) {
    pb_wgmma(&d[0][0], &a[0], 0, b, N, pb_is_bf16<T>::value, add);
}
