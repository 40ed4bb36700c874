// paged_decode: attention of one query per sequence, keys split over blocks of threads.
//
//   out = softmax(scale q k^T) v     over all keys up to the query's own position
//
// Two launches. decode_split gives each item of the plan (a sequence and a range of `split`
// keys) one block per key/value head; the query heads of a group are the rows of one 16-row
// tile, so a key is read once for all of them. decode_merge brings the partial results of a
// sequence together by their maxima and sums (log-sum-exp), in the order of the keys.
//
// Shapes   as in prefill.cu; items [grid.x]; partials: o [items][q_heads][D] f32 and
//          max_sum [items][q_heads][2] f32 (maximum of raw scores, sum of weights)
// Launch   decode_split: grid (items, kv_heads), 128 threads, (16 D + 2 * 2 * 64 D) * 2 bytes of
//          shared memory; decode_merge: grid (sequences, q_heads), D threads
// Limits   D 64 or 128; group at most 16; blocks of 8, 16, 32 or 64; split a multiple of 64
// Bytes    2 D sizeof S per key and kv head, once; partials add 2 * 4 (D + 2) q_heads per item,
//          1/32 of the keys' bytes at split 1024, group 4 and 16-bit elements
//
// Batch invariance: with a fixed split *size* the order of every sum is a matter of positions
// alone. A plan with a fixed split *count* is allowed (fewer items, better balance), but then
// bits follow the length of the sequence and the load.
//
// Version 1, the one here: four warps take 16 keys each of a tile of 64, with a softmax of their
// own, and are merged at the end. One warp per 64 keys would leave three without work.
#include "paged.cuh"

struct DecodeItem {
    u32 seq;
    u32 first_key;
};

template <class T, class S> struct DecodeParams {
    const T* q;
    float* partial_o;
    float* partial_max_sum;
    const PbSeq* seqs;
    const DecodeItem* items;
    PagedKv<S> kv;
    u32 q_stride, q_heads, split;
    float scale_log2; // with log2 e and the scale of the keys
};

// The four warps' results in shared memory, where the tiles were.
template <int D> struct WarpResults {
    float o[4][16][D];
    float max[4][16];
    float sum[4][16];
};

template <class T, int D>
__device__ __forceinline__ void load_group(
    u8* to, const T* q, u64 row, u32 q_stride, u32 group, u32 kv_head) {
    for (u32 i = threadIdx.x; i < 16 * (D / 8); i += blockDim.x) {
        u32 head = i / (D / 8), chunk = i % (D / 8);
        bool valid = head < group;
        const T* from = q + row * q_stride + (kv_head * group + (valid ? head : 0)) * D + chunk * 8;
        cp_async_16(to + swizzled(head, chunk, D / 8), from, valid);
    }
}

template <int D>
__device__ __forceinline__ void hand_over(WarpResults<D>& results, const Rows<D>& rows) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u32 row = lane / 4 + 8 * half;
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            results.o[warp][row][8 * n + 2 * (lane % 4)] = rows.o[n][2 * half];
            results.o[warp][row][8 * n + 2 * (lane % 4) + 1] = rows.o[n][2 * half + 1];
        }
        if (lane % 4 == 0) {
            results.max[warp][row] = rows.max[half];
            results.sum[warp][row] = rows.sum[half];
        }
    }
}

// Weights of the four warps for one row, in the order of warps; returns the common maximum.
template <int D>
__device__ __forceinline__ float warp_weights(
    const WarpResults<D>& results, u32 row, float scale_log2, float (&weight)[4]) {
    float top = -PB_INFINITY;
#pragma unroll
    for (int w = 0; w < 4; w++) {
        top = fmaxf(top, results.max[w][row]);
    }
    // Every item has a visible key, so top is finite; a warp without one has weight 0.
#pragma unroll
    for (int w = 0; w < 4; w++) {
        weight[w] = exp2f(fmaf(results.max[w][row], scale_log2, -(top * scale_log2)));
    }
    return top;
}

template <class T, class S, int D>
__device__ __forceinline__ void store_partial(
    const DecodeParams<T, S>& p, const WarpResults<D>& results, u32 group, u32 kv_head) {
    u64 first = u64(blockIdx.x) * p.q_heads + kv_head * group;
    for (u32 i = threadIdx.x; i < group * D; i += blockDim.x) {
        u32 row = i / D, d = i % D;
        float weight[4];
        float top = warp_weights(results, row, p.scale_log2, weight);
        float o = 0.0f, sum = 0.0f;
#pragma unroll
        for (int w = 0; w < 4; w++) {
            o = fmaf(weight[w], results.o[w][row][d], o);
            sum = fmaf(weight[w], results.sum[w][row], sum);
        }
        p.partial_o[(first + row) * D + d] = o;
        if (d == 0) {
            p.partial_max_sum[(first + row) * 2] = top;
            p.partial_max_sum[(first + row) * 2 + 1] = sum;
        }
    }
}

template <class T, class S, int D>
__device__ __forceinline__ void decode_split(const DecodeParams<T, S>& p) {
    PB_SHARED_MEMORY(queries);
    u8* buffers = queries + 16 * D * 2;
    const DecodeItem item = p.items[blockIdx.x];
    const PbSeq seq = p.seqs[item.seq];
    const u32* table = p.kv.tables + seq.table_at;
    u32 kv_head = blockIdx.y, group = p.q_heads / p.kv.kv_heads;
    u32 keys = seq.start_pos + 1;
    keys = keys < item.first_key + p.split ? keys : item.first_key + p.split;
    u32 tiles = (keys - item.first_key + PB_TILE - 1) / PB_TILE;

    load_group<T, D>(queries, p.q, seq.q_row, p.q_stride, group, kv_head);
    load_tile<T, S, D>(buffers, p.kv, table, kv_head, item.first_key, keys);
    cp_async_commit();

    u32 warp_key = threadIdx.x / 32 * 16;
    u32 q[D / 16][4];
    Rows<D> rows;
    rows.clear();
    for (u32 t = 0; t < tiles; t++) {
        u8* tile = buffers + (t & 1) * Tile<D>::kBytes;
        u32 first = item.first_key + t * PB_TILE;
        if (t + 1 < tiles) {
            u8* next = buffers + ((t + 1) & 1) * Tile<D>::kBytes;
            load_tile<T, S, D>(next, p.kv, table, kv_head, first + PB_TILE, keys);
            cp_async_commit();
            cp_async_wait<1>();
        } else {
            cp_async_wait<0>();
        }
        __syncthreads();
        if (t == 0) {
            load_queries<D>(q, queries, 0);
        }
        float s[2][4] = {};
        score<T, D, 2>(s, q, tile, warp_key / 8);
        u32 column = first + warp_key + 2 * (threadIdx.x % 4);
#pragma unroll
        for (int n = 0; n < 2; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s[n][i] = column + 8 * n + (i & 1) < keys ? s[n][i] : -PB_INFINITY;
            }
        }
        rows.template weigh<2>(s, p.scale_log2);
        rows.template add_values<T, 2>(s, tile, warp_key);
        __syncthreads(); // before the buffer is filled again
    }
    rows.finish_sums();
    WarpResults<D>& results = *reinterpret_cast<WarpResults<D>*>(buffers);
    hand_over<D>(results, rows);
#ifndef PB_FAULT_DECODE_BARRIER
    __syncthreads();
#endif
    store_partial<T, S, D>(p, results, group, kv_head);
}

template <class T> struct MergeParams {
    const float* partial_o;
    const float* partial_max_sum;
    const PbSeq* seqs;
    const u32* first_item; // [sequences + 1]: the items of sequence i
    T* out;
    u32 q_heads, d_head;
    float scale_log2;
    float v_scale;
};

template <class T> __device__ __forceinline__ void decode_merge(const MergeParams<T>& p) {
    u32 seq = blockIdx.x, head = blockIdx.y, d = threadIdx.x;
    u32 begin = p.first_item[seq], end = p.first_item[seq + 1];
    float top = -PB_INFINITY;
    for (u32 item = begin; item < end; item++) {
        top = fmaxf(top, p.partial_max_sum[(u64(item) * p.q_heads + head) * 2]);
    }
    float o = 0.0f, sum = 0.0f;
    for (u32 item = begin; item < end; item++) {
        u64 at = u64(item) * p.q_heads + head;
        float max = p.partial_max_sum[at * 2];
        // The difference first: the largest item must weigh exactly 1, or one item alone would not
        // keep its bits.
#ifdef PB_FAULT_BASE
        float weight = expf((max - top) * p.scale_log2);
#else
        float weight = exp2f((max - top) * p.scale_log2);
#endif
        o = fmaf(weight, p.partial_o[at * p.d_head + d], o);
        sum = fmaf(weight, p.partial_max_sum[at * 2 + 1], sum);
    }
    u64 row = u64(p.seqs[seq].q_row) * p.q_heads + head;
    p.out[row * p.d_head + d] = from_f32<T>(o * (p.v_scale / sum));
}

typedef DecodeParams<bf16, bf16> DecodeBf16;
typedef DecodeParams<f16, f16> DecodeF16;
typedef DecodeParams<bf16, e4m3> DecodeBf16E4m3;

#define DECODE(name, T, S, D, Params)                                                           \
    __device__ __forceinline__ void name##_body(const Params& p) { decode_split<T, S, D>(p); }  \
    PB_KERNEL(name, name##_body, Params, PB_THREADS, 1)

DECODE(decode_split_bf16_d64, bf16, bf16, 64, DecodeBf16)
PB_KERNEL(decode_merge_bf16, decode_merge<bf16>, MergeParams<bf16>, 128, 8)
#ifndef PB_ONE_SHAPE
DECODE(decode_split_bf16_d128, bf16, bf16, 128, DecodeBf16)
DECODE(decode_split_f16_d64, f16, f16, 64, DecodeF16)
DECODE(decode_split_f16_d128, f16, f16, 128, DecodeF16)
DECODE(decode_split_bf16_e4m3_d64, bf16, e4m3, 64, DecodeBf16E4m3)
DECODE(decode_split_bf16_e4m3_d128, bf16, e4m3, 128, DecodeBf16E4m3)
PB_KERNEL(decode_merge_f16, decode_merge<f16>, MergeParams<f16>, 128, 8)
#endif
