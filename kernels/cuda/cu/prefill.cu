// paged_prefill: attention of chunks of prompts against their cached prefix and themselves.
//
//   out = softmax(scale q k^T, key position <= query position) v     per query head
//
// Query head h reads key/value head h / group, group = q_heads / kv_heads. Queries are rows of
// (token, head of the group), token first, so that a group shares every key that is loaded.
//
// Shapes   q rows of `q_stride` T, the first q_heads D of each used; out [rows][q_heads D] T;
//          keys and values paged, see paged.cuh; seqs [sequences]; tables: all block tables;
//          tiles [grid.x]: the launch plan, 64 query rows each, of any number of sequences
// Launch   grid (tiles, kv_heads), 128 threads, (64 D + 2 * 2 * 64 D) * 2 bytes of shared memory
// Limits   D 64 or 128; blocks of 8, 16, 32 or 64; values finite (a weight of zero times an
//          infinite value of a later token of the chunk is NaN)
// FLOPs    4 D per visible pair and head; whole tiles are computed, so up to 64 * 64 D * 4 more
//          per query tile at the diagonal
// Bytes    each query tile reads its keys and values once: 2 D sizeof S per key and kv head
//
// Version 1, the one here: FlashAttention-2 (Dao 2023) on mma.sync m16n8k16: a warp has 16 query
// rows and all 64 keys of a tile, tiles are double buffered with cp.async, weights go from one
// product to the next in registers. Not here: wgmma and TMA (sm_90), a split of long prefixes
// over blocks when a batch has few tiles.
//
// Chunk invariant: key tiles start at multiples of 64 and a tile with nothing to see changes
// nothing, so a row's bits do not depend on where its prompt was cut, nor on the batch.
#include "paged.cuh"

struct PrefillTile {
    u32 seq;
    u32 first_row; // of the q_len * group rows of the sequence
};

template <class T, class S> struct PrefillParams {
    const T* q;
    T* out;
    const PbSeq* seqs;
    const PrefillTile* tiles;
    PagedKv<S> kv;
    u32 q_stride, q_heads;
    float scale_log2; // with log2 e and the scale of the keys
    float v_scale;
};

template <class T, int D>
__device__ __forceinline__ void load_query_tile(
    u8* to, const T* q, u32 q_stride, const PbSeq& seq, u32 group, u32 first_row, u32 kv_head) {
    for (u32 i = threadIdx.x; i < 64 * (D / 8); i += blockDim.x) {
        u32 row = i / (D / 8), chunk = i % (D / 8);
        bool valid = first_row + row < seq.q_len * group;
        u32 token = valid ? (first_row + row) / group : 0;
        u32 head = kv_head * group + (valid ? (first_row + row) % group : 0);
        const T* from = q + u64(seq.q_row + token) * q_stride + head * D + chunk * 8;
        cp_async_16(to + swizzled(row, chunk, D / 8), from, valid);
    }
}

// Hides the keys after each row's own position; `limit` is the last visible one of both rows.
template <int Tiles>
__device__ __forceinline__ void mask(float (&s)[Tiles][4], u32 first_key, const u32 (&limit)[2]) {
    u32 column = first_key + 2 * (threadIdx.x % 4);
#pragma unroll
    for (int n = 0; n < Tiles; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
#ifdef PB_FAULT_MASK
            bool hidden = column + 8 * n + (i & 1) > limit[i / 2] + 1;
#else
            bool hidden = column + 8 * n + (i & 1) > limit[i / 2];
#endif
            s[n][i] = hidden ? -PB_INFINITY : s[n][i];
        }
    }
}

template <class T, class S, int D>
__device__ __forceinline__ void store_rows(const PrefillParams<T, S>& p, const Rows<D>& rows,
    const PbSeq& seq, u32 group, u32 kv_head, u32 first_row) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 row = first_row + lane / 4 + 8 * half;
        if (row >= seq.q_len * group) {
            continue;
        }
#ifdef PB_FAULT_HEADS
        u32 head = row % group * p.kv.kv_heads + kv_head; // h mod kv_heads instead of h / group
#else
        u32 head = kv_head * group + row % group;
#endif
        float factor = p.v_scale / rows.sum[half];
        u64 out_row = seq.q_row + row / group;
        T* out = p.out + (out_row * p.q_heads + head) * D + 2 * (lane % 4);
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            *reinterpret_cast<u32*>(out + 8 * n) =
                pack2<T>(rows.o[n][2 * half] * factor, rows.o[n][2 * half + 1] * factor);
        }
    }
}

template <class T, class S, int D>
__device__ __forceinline__ void prefill(const PrefillParams<T, S>& p) {
    PB_SHARED_MEMORY(queries);
    u8* buffers = queries + 64 * D * 2;
    const PrefillTile plan = p.tiles[blockIdx.x];
    const PbSeq seq = p.seqs[plan.seq];
    const u32* table = p.kv.tables + seq.table_at;
    u32 kv_head = blockIdx.y, group = p.q_heads / p.kv.kv_heads;

    u32 end_row = plan.first_row + 64;
    end_row = end_row < seq.q_len * group ? end_row : seq.q_len * group;
    u32 keys = seq.start_pos + (end_row - 1) / group + 1;
    u32 tiles = (keys + PB_TILE - 1) / PB_TILE;

    load_query_tile<T, D>(queries, p.q, p.q_stride, seq, group, plan.first_row, kv_head);
    load_tile<T, S, D>(buffers, p.kv, table, kv_head, 0, keys);
    cp_async_commit();

    u32 warp_row = threadIdx.x / 32 * 16;
    u32 limit[2]; // Rows past the end see what the last row sees, and are not stored.
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 row = plan.first_row + warp_row + threadIdx.x % 32 / 4 + 8 * half;
        row = row < end_row ? row : end_row - 1;
        limit[half] = seq.start_pos + row / group;
    }
    u32 q[D / 16][4];
    Rows<D> rows;
    rows.clear();

    for (u32 t = 0; t < tiles; t++) {
        u8* tile = buffers + (t & 1) * Tile<D>::kBytes;
        if (t + 1 < tiles) {
            u8* next = buffers + ((t + 1) & 1) * Tile<D>::kBytes;
            load_tile<T, S, D>(next, p.kv, table, kv_head, (t + 1) * PB_TILE, keys);
            cp_async_commit();
#ifdef PB_FAULT_WAIT
            cp_async_wait<2>();
#else
            cp_async_wait<1>();
#endif
        } else {
            cp_async_wait<0>();
        }
        __syncthreads();
        if (t == 0) {
            load_queries<D>(q, queries, warp_row);
        }
        float s[PB_TILE / 8][4] = {};
        score<T, D, PB_TILE / 8>(s, q, tile, 0);
        // Tiles that end before this block's first query's position need no mask.
        if ((t + 1) * PB_TILE > seq.start_pos + plan.first_row / group) {
            mask<PB_TILE / 8>(s, t * PB_TILE, limit);
        }
        rows.template weigh<PB_TILE / 8>(s, p.scale_log2);
        rows.template add_values<T, PB_TILE / 8>(s, tile, 0);
#ifndef PB_FAULT_BARRIER
        __syncthreads(); // before the buffer is filled again
#endif
    }
    rows.finish_sums();
    store_rows<T, S, D>(p, rows, seq, group, kv_head, plan.first_row + warp_row);
}

typedef PrefillParams<bf16, bf16> PrefillBf16;
typedef PrefillParams<f16, f16> PrefillF16;
typedef PrefillParams<bf16, e4m3> PrefillBf16E4m3;

#define PREFILL(name, T, S, D, Params)                                                          \
    __device__ __forceinline__ void name##_body(const Params& p) { prefill<T, S, D>(p); }       \
    PB_KERNEL(name, name##_body, Params, PB_THREADS, 1)

PREFILL(prefill_bf16_d64, bf16, bf16, 64, PrefillBf16)
#ifndef PB_ONE_SHAPE
PREFILL(prefill_bf16_d128, bf16, bf16, 128, PrefillBf16)
PREFILL(prefill_f16_d64, f16, f16, 64, PrefillF16)
PREFILL(prefill_f16_d128, f16, f16, 128, PrefillF16)
PREFILL(prefill_bf16_e4m3_d64, bf16, e4m3, 64, PrefillBf16E4m3)
PREFILL(prefill_bf16_e4m3_d128, bf16, e4m3, 128, PrefillBf16E4m3)
#endif
