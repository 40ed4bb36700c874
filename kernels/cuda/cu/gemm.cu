// gemm, gemm_e4m3: rows of activations times a matrix of weights, sums in f32.
//
//   gemm:       out[i][j] = sum over l of a[i][l] w[j][l]  (+ bias[j])
//   gemm_e4m3:  out[i][j] = (sum over l of a[i][l] w[j][l]) * a_scales[i] * w_scales[j]
//
// Shapes   gemm: a [m][k] T, w [n][k] T, bias [n] T or null, out [m][n] T or f32
//          gemm_e4m3: a [m][k] and w [n][k] e4m3, a_scales [m] and w_scales [n] f32,
//          out [m][n] bf16, f16 or f32
// Launch   grid (ceil(m / 64), ceil(n / 64)), 128 threads, 32 KiB of shared memory
// Limits   k a multiple of 8, n of 2
// FLOPs    2 m n k; whole tiles of 16 rows and 64 columns are computed
// Bytes    (m k + n k) times the size of an element read and m n sizeof out written, at least;
//          weights are read once for every 64 rows, activations once for every 64 columns, the
//          repeats from L2. gemm_e4m3 also reads 4 (m + n) of scales
//
// Version 1, the one here: a block has 64 x 64 outputs, its warps 16 rows each; tiles of 64 terms
// are double buffered with cp.async, products are mma.sync m16n8k16. Not here: larger tiles,
// wgmma and TMA (sm_90), sums of one output split over blocks.
//
// gemm_e4m3 is the same product: a code of e4m3 is exactly a bf16 and an f16, so tiles are widened
// on their way to shared memory, by loads that wait (sm_80 has no products of 8-bit floats). The
// product of two codes has 8 significant bits, so the sum in f32 is all that rounds before the
// scales do. What it saves is half of the bytes, not time in the tensor cores.
//
// Batch invariant: an output is one chain over its terms in one order, whatever m is and wherever
// its row lies. A vendor's product is faster and promises no such thing; this one is for the mode
// in which chunked and whole prompts must agree in every bit, and for devices without the other.
#include "paged.cuh" // Mover: elements of one type to shared memory as another

// Rows, columns and terms of a tile.
#define PB_GEMM_TILE 64
#define PB_GEMM_THREADS 128
#define PB_GEMM_TILE_BYTES (PB_GEMM_TILE * PB_GEMM_TILE * 2)

template <class T, class O> struct GemmParams {
    const T* a;
    const T* w;
    const T* bias; // or null
    O* out;
    u32 m, n, k, pad;
};

template <class O> struct GemmE4m3Params {
    const e4m3* a;
    const e4m3* w;
    const float* a_scales; // one a row of a
    const float* w_scales; // one a row of w
    O* out;
    u32 m, n, k, pad;
};

// 64 rows of 64 terms of a row-major matrix to shared memory as T, swizzled, zeros outside.
template <class T, class S>
__device__ __forceinline__ void load_matrix_tile(
    u8* to, const S* from, u32 rows, u32 terms, u32 first_row, u32 first_term) {
#pragma unroll
    for (u32 step = 0; step < PB_GEMM_TILE * 8 / PB_GEMM_THREADS; step++) {
        u32 i = step * PB_GEMM_THREADS + threadIdx.x;
        u32 row = i / 8, chunk = i % 8, term = first_term + chunk * 8;
#ifdef PB_FAULT_GEMM_TAIL
        bool valid = first_row + row < rows && (term < terms || first_row + row + 1 < rows);
#else
        bool valid = first_row + row < rows && term < terms;
#endif
        const S* source = valid ? from + u64(first_row + row) * terms + term : from;
        Mover<T, S>::move(to + swizzled(row, chunk, 8), source, valid);
    }
}

// The rows of this block, then its columns.
template <class T, class P>
__device__ __forceinline__ void load_tiles(
    u8* to, const P& p, u32 first_row, u32 first_column, u32 first_term) {
    load_matrix_tile<T>(to, p.a, p.m, p.k, first_row, first_term);
    load_matrix_tile<T>(to + PB_GEMM_TILE_BYTES, p.w, p.n, p.k, first_column, first_term);
    cp_async_commit();
}

// sum += rows of this warp times the 64 columns, for one tile of terms.
template <class T>
__device__ __forceinline__ void multiply(float (&sum)[8][4], const u8* tile, u32 warp_row) {
    u32 lane = threadIdx.x % 32;
    const u8* weights = tile + PB_GEMM_TILE_BYTES;
#pragma unroll
    for (u32 step = 0; step < PB_GEMM_TILE / 16; step++) {
        u32 a[4];
        ldmatrix_x4(a, tile + swizzled(warp_row + (lane & 15u), 2 * step + (lane >> 4), 8));
#pragma unroll
        for (u32 n = 0; n < 8; n += 2) {
            // Both halves of the terms of 8 columns, then of the next 8. A row of the matrix is a
            // column of the right operand, so nothing is transposed.
            u32 b[4], column = n * 8 + (lane >> 4) * 8 + (lane & 7u);
            ldmatrix_x4(b, weights + swizzled(column, 2 * step + (lane >> 3 & 1u), 8));
            mma_m16n8k16<T>(sum[n], a, b[0], b[1]);
            mma_m16n8k16<T>(sum[n + 1], a, b[2], b[3]);
        }
    }
}

template <class T> __device__ __forceinline__ void put_pair(T* to, float x, float y) {
    *reinterpret_cast<u32*>(to) = pack2<T>(x, y);
}

__device__ __forceinline__ void put_pair(float* to, float x, float y) {
    to[0] = x;
    to[1] = y;
}

// What is done to the sums of two neighbouring columns.
template <class T, class O>
__device__ __forceinline__ void finish(
    const GemmParams<T, O>& p, u32, u32 column, float& x, float& y) {
    if (p.bias) {
        x += to_f32(p.bias[column]);
        y += to_f32(p.bias[column + 1]);
    }
}

template <class O>
__device__ __forceinline__ void finish(
    const GemmE4m3Params<O>& p, u32 row, u32 column, float& x, float& y) {
#ifdef PB_FAULT_E4M3_SCALE
    row -= row % PB_GEMM_TILE; // that of the first row of the tile
#endif
    float scale = p.a_scales[row];
    x = x * scale * p.w_scales[column];
    y = y * scale * p.w_scales[column + 1];
}

template <class P>
__device__ __forceinline__ void store_tile(
    const P& p, const float (&sum)[8][4], u32 first_row, u32 first_column) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        u32 row = first_row + lane / 4 + 8 * half;
#pragma unroll
        for (u32 n = 0; n < 8; n++) {
            u32 column = first_column + n * 8 + 2 * (lane % 4);
            if (row < p.m && column < p.n) {
                float x = sum[n][2 * half], y = sum[n][2 * half + 1];
                finish(p, row, column, x, y);
                put_pair(p.out + u64(row) * p.n + column, x, y);
            }
        }
    }
}

template <class T, class P> __device__ __forceinline__ void gemm(const P& p) {
    PB_SHARED_MEMORY(buffers);
    u32 first_row = blockIdx.x * PB_GEMM_TILE, first_column = blockIdx.y * PB_GEMM_TILE;
    u32 warp_row = threadIdx.x / 32 * 16;
    // A warp whose rows all lie past the end only helps to load.
    bool has_rows = first_row + warp_row < p.m;
    u32 tiles = (p.k + PB_GEMM_TILE - 1) / PB_GEMM_TILE;
    float sum[8][4] = {};

    load_tiles<T>(buffers, p, first_row, first_column, 0);
    for (u32 t = 0; t < tiles; t++) {
        const u8* tile = buffers + (t & 1u) * 2 * PB_GEMM_TILE_BYTES;
        if (t + 1 < tiles) {
            u8* next = buffers + ((t + 1) & 1u) * 2 * PB_GEMM_TILE_BYTES;
            load_tiles<T>(next, p, first_row, first_column, (t + 1) * PB_GEMM_TILE);
            cp_async_wait<1>();
        } else {
            cp_async_wait<0>();
        }
        __syncthreads();
        if (has_rows) {
            multiply<T>(sum, tile, warp_row);
        }
#ifndef PB_FAULT_GEMM_BARRIER
        __syncthreads(); // before the buffer is filled again
#endif
    }
    if (has_rows) {
        store_tile(p, sum, first_row + warp_row, first_column);
    }
}

template <class T> __device__ __forceinline__ void gemm_same(const GemmParams<T, T>& p) {
    gemm<T>(p);
}

template <class T> __device__ __forceinline__ void gemm_f32(const GemmParams<T, float>& p) {
    gemm<T>(p);
}

// Both 16-bit types hold the codes exactly, so it does not matter which they are widened to.
template <class O> __device__ __forceinline__ void gemm_e4m3(const GemmE4m3Params<O>& p) {
    gemm<bf16>(p);
}

typedef GemmParams<bf16, bf16> GemmBf16;
typedef GemmParams<f16, f16> GemmF16;
typedef GemmParams<bf16, float> GemmBf16F32;
typedef GemmParams<f16, float> GemmF16F32;
typedef GemmE4m3Params<bf16> GemmE4m3Bf16;
typedef GemmE4m3Params<f16> GemmE4m3F16;
typedef GemmE4m3Params<float> GemmE4m3F32;

PB_KERNEL(gemm_bf16, gemm_same<bf16>, GemmBf16, 128, 4)
PB_KERNEL(gemm_f16, gemm_same<f16>, GemmF16, 128, 4)
PB_KERNEL(gemm_bf16_f32, gemm_f32<bf16>, GemmBf16F32, 128, 4)
PB_KERNEL(gemm_f16_f32, gemm_f32<f16>, GemmF16F32, 128, 4)
PB_KERNEL(gemm_e4m3_bf16, gemm_e4m3<bf16>, GemmE4m3Bf16, 128, 4)
PB_KERNEL(gemm_e4m3_f16, gemm_e4m3<f16>, GemmE4m3F16, 128, 4)
PB_KERNEL(gemm_e4m3_f32, gemm_e4m3<float>, GemmE4m3F32, 128, 4)
