// What prefill and decode attention share: tiles of keys and values from paged blocks into
// shared memory, and the products of one tile.
//
// A block of keys is [kv_head][d][slot] and one of values [kv_head][slot][d], so the part of one
// head is contiguous in both, and 16 bytes are 8 keys of one dimension or 8 dimensions of one
// value. A tile of 64 keys lies in shared memory as
//
//   keys    [D][64]   in 16-byte chunks; chunk c of row r at c ^ (r % 8)
//   values  [64][D]   likewise
//
// With this exchange the 8 rows that ldmatrix reads at one chunk fall on different banks. Both
// are the row-major [k][n] operand of their product, so both are read with the transposing
// ldmatrix.
#pragma once
#include "device.cuh"

// Queries of one sequence in a batch.
struct PbSeq {
    u32 q_row;     // first row in q and out
    u32 q_len;     // queries
    u32 start_pos; // position of the first one
    u32 table_at;  // where its block table starts in `tables`
};

// Keys of one tile. Tiles start at multiples of this position, wherever a chunk was cut: the
// order of every sum over keys is then a matter of positions alone.
#define PB_TILE 64

// Threads of a block, in both kernels. A constant, so that the loops of a loader unroll: each copy
// waits for its entry of the block table, and several of those must be under way at once.
#define PB_THREADS 128

// The store of one layer and how to find a sequence in it.
template <class S> struct PagedKv {
    const S* k;
    const S* v;
    const u32* tables;
    u32 kv_heads;
    u32 log2_block; // log2 of the tokens per block: 3 to 6
};

template <int D> struct Tile {
    static const u32 kBytes = 2 * PB_TILE * D * 2; // keys and values, 16-bit elements
};

// Eight elements of the store to shared memory, zeros where not `valid`. Of the same type: an
// asynchronous copy.
template <class T, class S> struct Mover;

template <class T> struct Mover<T, T> {
    static __device__ __forceinline__ void move(u8* to, const T* from, bool valid) {
        cp_async_16(to, from, valid);
    }
};

// From e4m3 through f32, exactly; the scale is applied to scores and outputs instead.
template <class T> struct Mover<T, e4m3> {
    static __device__ __forceinline__ void move(u8* to, const e4m3* from, bool valid) {
        u32 packed[4] = {0, 0, 0, 0};
        if (valid) {
            uint2 codes = *reinterpret_cast<const uint2*>(from);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 pair = (i < 2 ? codes.x : codes.y) >> (16 * (i % 2));
                packed[i] = pack2<T>(
                    to_f32(e4m3{u8(pair & 0xffu)}), to_f32(e4m3{u8(pair >> 8 & 0xffu)}));
            }
        }
        *reinterpret_cast<uint4*>(to) = make_uint4(packed[0], packed[1], packed[2], packed[3]);
    }
};

// Brings the keys and values of positions [first, first + 64) of one head to `tile`. Positions
// from `keys` on do not exist: their chunks of keys may hold anything that is masked later, but
// values get zeros, because a weight of zero does not silence a NaN.
template <class T, class S, int D>
__device__ __forceinline__ void load_tile(
    u8* tile, const PagedKv<S>& kv, const u32* table, u32 kv_head, u32 first, u32 keys) {
    u32 block_size = 1u << kv.log2_block, log2_chunks = kv.log2_block - 3;
    u64 head_elems = u64(D) << kv.log2_block;
    // In the order of memory: blocks, dimensions, chunks of 8 slots.
#pragma unroll 4
    for (u32 step = 0; step < D * 8 / PB_THREADS; step++) {
        u32 i = step * PB_THREADS + threadIdx.x;
        u32 chunk_in_row = i & ((1u << log2_chunks) - 1);
        u32 row_of_blocks = i >> log2_chunks;
        u32 d = row_of_blocks % D, block_of_tile = row_of_blocks / D;
        u32 chunk = (block_of_tile << log2_chunks) + chunk_in_row;
        u32 position = first + chunk * 8;
        bool valid = position < keys;
        u64 block = valid ? table[position >> kv.log2_block] : 0;
        const S* from = kv.k + (block * kv.kv_heads + kv_head) * head_elems +
            (u64(d) << kv.log2_block) + chunk_in_row * 8;
        Mover<T, S>::move(tile + swizzled(d, chunk, 8), from, valid);
    }
    u8* values = tile + PB_TILE * D * 2;
#pragma unroll 4
    for (u32 step = 0; step < PB_TILE * (D / 8) / PB_THREADS; step++) {
        u32 i = step * PB_THREADS + threadIdx.x;
        u32 chunk = i % (D / 8), key = i / (D / 8), position = first + key;
        bool valid = position < keys;
        u64 block = valid ? table[position >> kv.log2_block] : 0;
        const S* from = kv.v + (block * kv.kv_heads + kv_head) * head_elems +
            u64(position & (block_size - 1)) * D + chunk * 8;
        Mover<T, S>::move(values + swizzled(key, chunk, D / 8), from, valid);
    }
}

// Queries of 16 rows as left operands, from [rows][D] in shared memory, swizzled like values.
template <int D>
__device__ __forceinline__ void load_queries(u32 (&q)[D / 16][4], const u8* rows, u32 first) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
        ldmatrix_x4(q[step],
            rows + swizzled(first + (lane & 15u), u32(step) * 2 + (lane >> 4), D / 8));
    }
}

// scores += Q K for `Tiles` times 8 keys, the first of which is key 8 * `first_chunk` of the tile.
template <class T, int D, int Tiles>
__device__ __forceinline__ void score(
    float (&s)[Tiles][4], const u32 (&q)[D / 16][4], const u8* tile, u32 first_chunk) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
#pragma unroll
        for (int n = 0; n < Tiles; n += 2) {
            u32 b[4];
            ldmatrix_x4_trans(b,
                tile + swizzled(step * 16 + (lane & 15u), first_chunk + n + (lane >> 4), 8));
            mma_m16n8k16<T>(s[n], q[step], b[0], b[1]);
            mma_m16n8k16<T>(s[n + 1], q[step], b[2], b[3]);
        }
    }
}

// What a warp knows of its 16 rows: a lane holds rows lane / 4 and lane / 4 + 8, of each the
// columns 8 n + 2 (lane % 4) + {0, 1} of o. Maxima are of raw scores.
template <int D> struct Rows {
    float o[D / 8][4];
    float max[2];
    float sum[2]; // of this lane's columns only, until it is finished

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                o[n][i] = 0.0f;
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            max[half] = -PB_INFINITY;
            sum[half] = 0.0f;
        }
    }

    // Online softmax: takes up masked scores (hidden: -infinity) and leaves their weights in `s`.
    // `scale_log2` is the factor of a score, with log2 e, so that the exponential is a power of 2.
    // A tile in which all keys of a row are hidden changes no bit of the row.
    template <int Tiles>
    __device__ __forceinline__ void weigh(float (&s)[Tiles][4], float scale_log2) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = max[half];
#pragma unroll
            for (int n = 0; n < Tiles; n++) {
                top = fmaxf(top, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
            }
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            // While no key was visible the difference of two infinities must not be formed.
            float base = top == -PB_INFINITY ? 0.0f : top * scale_log2;
            float shrink = exp2f(fmaf(max[half], scale_log2, -base));
            max[half] = top;
            float total = sum[half] * shrink;
#pragma unroll
            for (int n = 0; n < Tiles; n++) {
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    s[n][i] = exp2f(fmaf(s[n][i], scale_log2, -base));
                    total += s[n][i];
                }
            }
            sum[half] = total;
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                o[n][2 * half] *= shrink;
                o[n][2 * half + 1] *= shrink;
            }
        }
    }

    // o += P V for the weights of `Tiles` times 8 keys, the first of which is key `first_key` of
    // the tile. The weights leave the score product in the very layout of a left operand.
    template <class T, int Tiles>
    __device__ __forceinline__ void add_values(
        const float (&p)[Tiles][4], const u8* tile, u32 first_key) {
        u32 lane = threadIdx.x % 32;
        const u8* values = tile + PB_TILE * D * 2;
#pragma unroll
        for (int step = 0; step < Tiles / 2; step++) {
            u32 a[4] = {pack2<T>(p[2 * step][0], p[2 * step][1]),
                pack2<T>(p[2 * step][2], p[2 * step][3]),
                pack2<T>(p[2 * step + 1][0], p[2 * step + 1][1]),
                pack2<T>(p[2 * step + 1][2], p[2 * step + 1][3])};
            u32 key = first_key + step * 16 + (lane & 15u);
#pragma unroll
            for (int n = 0; n < D / 8; n += 2) {
                u32 b[4];
                ldmatrix_x4_trans(b, values + swizzled(key, u32(n) + (lane >> 4), D / 8));
                mma_m16n8k16<T>(o[n], a, b[0], b[1]);
                mma_m16n8k16<T>(o[n + 1], a, b[2], b[3]);
            }
        }
    }

    // Adds up the sums of the four lanes of a row.
    __device__ __forceinline__ void finish_sums() {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
            sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
        }
    }
};
