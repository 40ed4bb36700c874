// lora_shrink, lora_expand: the change of an adapter of low rank, for rows of several adapters.
//
//   inner[i][p][r] = scale * sum over l of x[rows[i]][l] a[r][l]      (shrink)
//   out[rows[i]][column_p + j] += sum over r of inner[i][p][r] b[j][r] (expand)
//
// for every part p of a fused product (queries, keys and values are three) and a, b, scale of the
// adapter of the row. Rows are listed by adapter, in tiles of 16 that share one.
//
// Shapes   x [any][width] T, rows [listed] u32, tiles [tiles][4] u32 (adapter, first listed row,
//          rows, unused), parts [adapters][grid.y or z] LoraPart, inner [listed][parts][stride] T,
//          a [rank][width] T, b [outputs][rank] T, out [any][out_width] T
// Launch   shrink: grid (tiles, parts, ceil(largest rank / 64)), 128 threads, 16 KiB of shared
//          memory; expand: grid (tiles, ceil(most outputs / 256), parts), 128 threads, none
// Limits   width and ranks multiples of 8 (ranks are padded with zeros), columns even; a part
//          without a change has a null `a`
// FLOPs    2 rank (width + outputs) a row and part; whole tiles of 16 rows are computed
// Bytes    for every tile of 16 rows: a and b once, 16 rows of x and out
//
// Version 1, the one here: a warp has the 16 rows and multiplies with mma.sync m16n8k16, operands
// straight from global memory. A sum may take its terms in any order as long as both operands
// agree on it, so a lane loads 8 neighbouring terms at once (16 bytes) and feeds them to the four
// places that the instruction gives it in two steps. The four warps of shrink take 32 terms of
// every 128 each, and are added in one order at the end. Not here: shared memory for a, which two
// tiles of one adapter read twice; both kernels in one, which would leave most of the device idle.
//
// Batch invariant: an output is one chain over its terms, whatever rows are with it. `inner` is
// rounded to T, as the operand of a product must be; the sum with `out` is in f32.
#include "device.cuh"

#define PB_LORA_ROWS 16
#define PB_LORA_RANKS 64 // of a block of shrink, and columns of a warp of expand
#define PB_LORA_WARPS 4

template <class T> struct LoraPart {
    const T* a; // null: the adapter leaves this part alone
    const T* b;
    u32 rank;
    float scale;
};

template <class T> struct LoraShrinkParams {
    const T* x;
    const LoraPart<T>* parts;
    const u32* rows;
    const u32* tiles;
    T* inner;
    u32 width, count, stride, pad; // `count` parts
};

template <class T> struct LoraExpandParams {
    const T* inner;
    const LoraPart<T>* parts;
    const u32* rows;
    const u32* tiles;
    T* out;
    u32 out_width, count, stride, pad;
    u32 columns[3], outputs[3];
};

// The tile of this block, and where a lane's two rows of it are: rows past its end are those of
// its first, computed and thrown away.
struct LoraTile {
    u32 adapter, first, rows;

    __device__ __forceinline__ explicit LoraTile(const u32* tiles) {
        const u32* t = tiles + 4 * blockIdx.x;
        adapter = t[0];
        first = t[1];
        rows = t[2];
#ifdef PB_FAULT_LORA_ADAPTER
        adapter = tiles[0];
#endif
    }

    __device__ __forceinline__ u32 listed(u32 row) const {
        return first + (row < rows ? row : 0);
    }
};

// Eight elements, or zeros.
template <class T>
__device__ __forceinline__ void load_8(u32 (&words)[4], const T* from, bool valid) {
    uint4 packed = valid ? *reinterpret_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
    words[0] = packed.x;
    words[1] = packed.y;
    words[2] = packed.z;
    words[3] = packed.w;
}

// sum += 16 rows times 8 columns over 32 terms, 8 of them in the lane's words.
template <class T>
__device__ __forceinline__ void multiply_32(
    float (&sum)[4], const u32 (&low)[4], const u32 (&high)[4], const u32 (&w)[4]) {
#pragma unroll
    for (int step = 0; step < 4; step += 2) {
        u32 a[4] = {low[step], high[step], low[step + 1], high[step + 1]};
        mma_m16n8k16<T>(sum, a, w[step], w[step + 1]);
    }
}

// Sums of this warp's share of the terms.
template <class T>
__device__ __forceinline__ void partial_sums(float (&sum)[8][4], const LoraShrinkParams<T>& p,
    const LoraTile& tile, const T* a, u32 ranks) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4;
    const T* low = p.x + u64(p.rows[tile.listed(row)]) * p.width;
    const T* high = p.x + u64(p.rows[tile.listed(row + 8)]) * p.width;
    for (u32 term = warp * 32; term < p.width; term += PB_LORA_WARPS * 32) {
        u32 at = term + lane % 4 * 8;
        bool valid = at < p.width;
        u32 x[2][4];
        load_8(x[0], low + at, valid);
        load_8(x[1], high + at, valid);
#pragma unroll
        for (u32 n = 0; n < 8; n++) {
            if (n * 8 < ranks) {
                u32 w[4];
                load_8(w, a + u64(n * 8 + row) * p.width + at, valid);
                multiply_32<T>(sum[n], x[0], x[1], w);
            }
        }
    }
}

template <class T> __device__ __forceinline__ void lora_shrink(const LoraShrinkParams<T>& p) {
    PB_SHARED_MEMORY(base);
    float* sums = reinterpret_cast<float*>(base); // [warps][16][64]
    LoraTile tile(p.tiles);
    const LoraPart<T>& part = p.parts[tile.adapter * p.count + blockIdx.y];
    u32 first_rank = blockIdx.z * PB_LORA_RANKS;
    if (part.a == nullptr || first_rank >= part.rank) {
        return;
    }
    u32 ranks = part.rank - first_rank;
    ranks = ranks < PB_LORA_RANKS ? ranks : PB_LORA_RANKS;
    float sum[8][4] = {};
    partial_sums<T>(sum, p, tile, part.a + u64(first_rank) * p.width, ranks);

    const u32 per_warp = PB_LORA_ROWS * PB_LORA_RANKS;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (u32 n = 0; n < 8; n++) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 row = lane / 4 + i / 2 * 8, column = n * 8 + 2 * (lane % 4) + i % 2;
            sums[warp * per_warp + row * PB_LORA_RANKS + column] = sum[n][i];
        }
    }
#ifndef PB_FAULT_LORA_BARRIER
    __syncthreads();
#endif
    for (u32 i = threadIdx.x; i < tile.rows * ranks; i += blockDim.x) {
        u32 row = i / ranks, rank = i % ranks;
        const float* from = sums + row * PB_LORA_RANKS + rank;
        float total = from[0];
#pragma unroll
        for (u32 w = 1; w < PB_LORA_WARPS; w++) {
            total += from[w * per_warp];
        }
        T* to = p.inner + (u64(tile.first + row) * p.count + blockIdx.y) * p.stride;
        to[first_rank + rank] = from_f32<T>(total * part.scale);
    }
}

// Adds two neighbouring sums to what is there.
template <class T> __device__ __forceinline__ void add_pair(T* to, float x, float y) {
    u32* word = reinterpret_cast<u32*>(to);
    u32 old = *word;
    *word = pack2<T>(
        to_f32(T{u16(old & 0xffffu)}) + x, to_f32(T{u16(old >> 16)}) + y);
}

template <class T> __device__ __forceinline__ void lora_expand(const LoraExpandParams<T>& p) {
    LoraTile tile(p.tiles);
    const LoraPart<T>& part = p.parts[tile.adapter * p.count + blockIdx.z];
    u32 outputs = p.outputs[blockIdx.z], lane = threadIdx.x % 32, row = lane / 4;
    u32 first_column = (blockIdx.y * PB_LORA_WARPS + threadIdx.x / 32) * PB_LORA_RANKS;
    if (part.a == nullptr || first_column >= outputs) {
        return;
    }
    u64 per_row = u64(p.count) * p.stride;
    const T* inner = p.inner + blockIdx.z * p.stride;
    const T* low = inner + tile.listed(row) * per_row;
    const T* high = inner + tile.listed(row + 8) * per_row;
    float sum[8][4] = {};
    for (u32 term = 0; term < part.rank; term += 32) {
        u32 at = term + lane % 4 * 8;
        bool valid = at < part.rank;
        u32 x[2][4];
        load_8(x[0], low + at, valid);
        load_8(x[1], high + at, valid);
#pragma unroll
        for (u32 n = 0; n < 8; n++) {
            u32 w[4], column = first_column + n * 8 + row;
            load_8(w, part.b + u64(column) * part.rank + at, valid && column < outputs);
            multiply_32<T>(sum[n], x[0], x[1], w);
        }
    }
    u32 width = p.out_width, first = p.columns[blockIdx.z];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        u32 r = row + 8 * half;
        if (r < tile.rows) {
            T* to = p.out + u64(p.rows[tile.first + r]) * width + first;
#pragma unroll
            for (u32 n = 0; n < 8; n++) {
                u32 column = first_column + n * 8 + 2 * (lane % 4);
                if (column < outputs) {
                    add_pair(to + column, sum[n][2 * half], sum[n][2 * half + 1]);
                }
            }
        }
    }
}

typedef LoraShrinkParams<bf16> LoraShrinkBf16;
typedef LoraShrinkParams<f16> LoraShrinkF16;
typedef LoraExpandParams<bf16> LoraExpandBf16;
typedef LoraExpandParams<f16> LoraExpandF16;

PB_KERNEL(lora_shrink_bf16, lora_shrink<bf16>, LoraShrinkBf16, 128, 4)
PB_KERNEL(lora_shrink_f16, lora_shrink<f16>, LoraShrinkF16, 128, 4)
PB_KERNEL(lora_expand_bf16, lora_expand<bf16>, LoraExpandBf16, 128, 4)
PB_KERNEL(lora_expand_f16, lora_expand<f16>, LoraExpandF16, 128, 4)
