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
// product to the next in registers. On sm_90a prefill_sm90.cu takes its place for 16-bit stores.
//
// prefill_split is the same for a range of `split` keys of a tile, one block of threads each: a
// few queries after a long prefix then fill a device. It leaves partial results of every token and
// range, which decode_merge (decode.cu) brings together, a token in the place of a sequence:
//
// Shapes   ranges [grid.x]; first_partial [tokens]: the first of a token's partial results, one
//          for each range up to its own position; partials as in decode.cu
// Launch   grid (ranges, kv_heads), threads and shared memory as above
// Limits   split a multiple of 64
// Bytes    as above, and 4 (D + 2) for each row and range, written and read again
//
// Ranges start at multiples of `split`, wherever a chunk was cut, so bits depend on it but not on
// the cut; a token with one range has the bits of the kernel above.
//
// Chunk invariant: key tiles start at multiples of 64 and a tile with nothing to see changes
// nothing, so a row's bits do not depend on where its prompt was cut, nor on the batch.
#include "prefill.cuh"

struct PrefillRange {
    u32 seq;
    u32 first_row;
    u32 first_key;
    u32 first_token; // where the sequence's tokens start in `first_partial`
};

template <class T, class S> struct PrefillSplitParams {
    PrefillParams<T, S> whole; // its `tiles` and `out` are not used
    const PrefillRange* ranges;
    float* partial_o;
    float* partial_max_sum;
    const u32* first_partial;
    u32 split;
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

// Partial results of the rows that see a key of the range.
template <class T, class S, int D>
__device__ __forceinline__ void store_partial_rows(const PrefillSplitParams<T, S>& p,
    const Rows<D>& rows, const PbSeq& seq, const PrefillRange& range, u32 group, u32 first_row) {
    u32 lane = threadIdx.x % 32, kv_head = blockIdx.y;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 row = first_row + lane / 4 + 8 * half, token = row / group;
        if (row >= seq.q_len * group || seq.start_pos + token < range.first_key) {
            continue;
        }
        u32 partial = p.first_partial[range.first_token + token] + range.first_key / p.split;
        u64 at = u64(partial) * p.whole.q_heads + kv_head * group + row % group;
        float* o = p.partial_o + at * D + 2 * (lane % 4);
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            o[8 * n] = rows.o[n][2 * half];
            o[8 * n + 1] = rows.o[n][2 * half + 1];
        }
        if (lane % 4 == 0) {
            p.partial_max_sum[at * 2] = rows.max[half];
            p.partial_max_sum[at * 2 + 1] = rows.sum[half];
        }
    }
}

// Attention of the 64 rows from `first_row` on over the keys from `first_key`, a multiple of the
// tile, up to `keys`, which may lie after what some of the rows see.
template <class T, class S, int D>
__device__ __forceinline__ void attend(Rows<D>& rows, const PrefillParams<T, S>& p,
    const PbSeq& seq, u32 first_row, u32 end_row, u32 first_key, u32 keys) {
    PB_SHARED_MEMORY(queries);
    u8* buffers = queries + 64 * D * 2;
    const u32* table = p.kv.tables + seq.table_at;
    u32 kv_head = blockIdx.y, group = p.q_heads / p.kv.kv_heads;
    u32 tiles = (keys - first_key + PB_TILE - 1) / PB_TILE;

    load_query_tile<T, D>(queries, p.q, p.q_stride, seq, group, first_row, kv_head);
    load_tile<T, S, D>(buffers, p.kv, table, kv_head, first_key, keys);
    cp_async_commit();

    u32 warp_row = threadIdx.x / 32 * 16;
    u32 limit[2]; // Rows past the end see what the last row sees, and are not stored.
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 row = first_row + warp_row + threadIdx.x % 32 / 4 + 8 * half;
        row = row < end_row ? row : end_row - 1;
        limit[half] = seq.start_pos + row / group;
    }
    u32 q[D / 16][4];
    rows.clear();

    for (u32 t = 0; t < tiles; t++) {
        u8* tile = buffers + (t & 1) * Tile<D>::kBytes;
        if (t + 1 < tiles) {
            u8* next = buffers + ((t + 1) & 1) * Tile<D>::kBytes;
            load_tile<T, S, D>(next, p.kv, table, kv_head, first_key + (t + 1) * PB_TILE, keys);
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
        if (first_key + (t + 1) * PB_TILE > seq.start_pos + first_row / group) {
            mask<PB_TILE / 8>(s, first_key + t * PB_TILE, limit);
        }
        rows.template weigh<PB_TILE / 8>(s, p.scale_log2);
        rows.template add_values<T, PB_TILE / 8>(s, tile, 0);
#ifndef PB_FAULT_BARRIER
        __syncthreads(); // before the buffer is filled again
#endif
    }
    rows.finish_sums();
}

// The rows of a tile end here.
__device__ __forceinline__ u32 end_of_tile(const PbSeq& seq, u32 first_row, u32 group) {
    u32 end = first_row + 64;
    return end < seq.q_len * group ? end : seq.q_len * group;
}

template <class T, class S, int D>
__device__ __forceinline__ void prefill(const PrefillParams<T, S>& p) {
    const PrefillTile plan = p.tiles[blockIdx.x];
    const PbSeq seq = p.seqs[plan.seq];
    u32 group = p.q_heads / p.kv.kv_heads;
    u32 end_row = end_of_tile(seq, plan.first_row, group);
    u32 keys = seq.start_pos + (end_row - 1) / group + 1;
    Rows<D> rows;
    attend<T, S, D>(rows, p, seq, plan.first_row, end_row, 0, keys);
    u32 first_row = plan.first_row + threadIdx.x / 32 * 16;
    store_rows<T, S, D>(p, rows, seq, group, blockIdx.y, first_row);
}

template <class T, class S, int D>
__device__ __forceinline__ void prefill_split(const PrefillSplitParams<T, S>& p) {
    const PrefillRange range = p.ranges[blockIdx.x];
    const PbSeq seq = p.whole.seqs[range.seq];
    u32 group = p.whole.q_heads / p.whole.kv.kv_heads;
    u32 end_row = end_of_tile(seq, range.first_row, group);
    u32 keys = seq.start_pos + (end_row - 1) / group + 1;
#ifndef PB_FAULT_SPLIT
    keys = keys < range.first_key + p.split ? keys : range.first_key + p.split;
#endif
    Rows<D> rows;
    attend<T, S, D>(rows, p.whole, seq, range.first_row, end_row, range.first_key, keys);
    u32 first_row = range.first_row + threadIdx.x / 32 * 16;
    store_partial_rows<T, S, D>(p, rows, seq, range, group, first_row);
}

typedef PrefillParams<bf16, bf16> PrefillBf16;
typedef PrefillParams<f16, f16> PrefillF16;
typedef PrefillParams<bf16, e4m3> PrefillBf16E4m3;
typedef PrefillSplitParams<bf16, bf16> PrefillSplitBf16;
typedef PrefillSplitParams<f16, f16> PrefillSplitF16;
typedef PrefillSplitParams<bf16, e4m3> PrefillSplitBf16E4m3;

#define PREFILL(kernel, name, T, S, D, Params)                                                  \
    __device__ __forceinline__ void name##_body(const Params& p) { kernel<T, S, D>(p); }        \
    PB_KERNEL(name, name##_body, Params, PB_THREADS, 1)

PREFILL(prefill, prefill_bf16_d64, bf16, bf16, 64, PrefillBf16)
PREFILL(prefill_split, prefill_split_bf16_d64, bf16, bf16, 64, PrefillSplitBf16)
#ifndef PB_ONE_SHAPE
PREFILL(prefill, prefill_bf16_d128, bf16, bf16, 128, PrefillBf16)
PREFILL(prefill, prefill_f16_d64, f16, f16, 64, PrefillF16)
PREFILL(prefill, prefill_f16_d128, f16, f16, 128, PrefillF16)
PREFILL(prefill, prefill_bf16_e4m3_d64, bf16, e4m3, 64, PrefillBf16E4m3)
PREFILL(prefill, prefill_bf16_e4m3_d128, bf16, e4m3, 128, PrefillBf16E4m3)
PREFILL(prefill_split, prefill_split_bf16_d128, bf16, bf16, 128, PrefillSplitBf16)
PREFILL(prefill_split, prefill_split_f16_d64, f16, f16, 64, PrefillSplitF16)
PREFILL(prefill_split, prefill_split_f16_d128, f16, f16, 128, PrefillSplitF16)
PREFILL(prefill_split, prefill_split_bf16_e4m3_d64, bf16, e4m3, 64, PrefillSplitBf16E4m3)
PREFILL(prefill_split, prefill_split_bf16_e4m3_d128, bf16, e4m3, 128, PrefillSplitBf16E4m3)
#endif
