// paged_prefill on sm_90a: the operation of prefill.cu, by wgmma.
//
// Shapes   as prefill; keys and values of 16 bits. `tiles` is the same launch plan: a block takes
//          128 query rows, its own tile and the next one, and ends at once where its tile is the
//          second of such a pair
// Launch   grid (tiles, kv_heads), 256 threads, (128 + 4 * 128) D * 2 bytes of shared memory
// Limits   as prefill
// FLOPs    4 D per visible pair and head; whole tiles are computed, so up to 128 * 128 D * 4 more
//          per 128 rows at the diagonal
// Bytes    128 query rows read their keys and values once: half of what prefill reads
//
// FlashAttention-3 (Shah et al. 2024) in spirit: two warpgroups have 64 query rows each and share
// tiles of 128 keys. The scores of tile t + 1 and the values of tile t are given to the tensor
// cores together; while these are at the values, the weights of tile t + 1 are computed. Scores
// become weights in the registers they arrive in. Both kinds of tiles have two buffers, and one
// barrier a tile orders everything: it says that tile t + 1 of keys and t of values have come, and
// that all products of the round before are done, so that their buffers may be filled again.
//
// A block of keys is [d][slot] and one of values [slot][d], so the right operands of both products
// lie with their columns contiguous, which wgmma takes for 16-bit types (imm-trans-b). Tiles lie in
// shared memory as
//
//   queries  [warpgroup][D / 64][64 rows][64 dimensions]
//   keys     [2 panels][D][64 keys]
//   values   [D / 64 panels][128 keys][64 dimensions]
//
// in rows of 128 bytes, 8 of which make one part of the 128-byte swizzle: chunk c of row r at
// c ^ (r % 8), as in paged.cuh.
//
// Loads are cp.async by all threads and not TMA: the part of one head of a block of 16 slots is
// [D][16], 32 bytes of each row of a tile, so a box of TMA would bring a fraction of a tile, at an
// address from the block table. Not here: a warpgroup of its own for loading with its registers
// given to the others (setmaxnreg), warpgroups that take turns at the tensor cores, e4m3.
//
// Chunk invariant: as prefill, with tiles at multiples of 128. The bits are not those of prefill:
// sums over keys are in another order.
#include "prefill.cuh"

#ifdef PB_SM90A

// Query rows of a block and of a warpgroup, keys of a tile, threads of a block.
#define PB_SM90_ROWS 128
#define PB_SM90_GROUP_ROWS 64
#define PB_SM90_KEYS 128
#define PB_SM90_THREADS 256

// 8 rows of 128 bytes: the part after which the swizzle begins anew.
#define PB_SM90_PART_BYTES 1024

// Bytes of one tile of keys, of one of values, and of the queries of a warpgroup.
template <int D> struct Sm90 {
    static const u32 kTile = PB_SM90_KEYS * D * 2;
    static const u32 kQueries = PB_SM90_GROUP_ROWS * D * 2;
};

// Queries of all rows of the block, zeros for rows that do not exist.
template <class T, int D>
__device__ __forceinline__ void load_queries_sm90(
    u8* to, const PrefillParams<T, T>& p, const PbSeq& seq, u32 group, u32 first_row) {
    u32 rows = seq.q_len * group;
#pragma unroll 4
    for (u32 step = 0; step < PB_SM90_ROWS * (D / 8) / PB_SM90_THREADS; step++) {
        u32 i = step * PB_SM90_THREADS + threadIdx.x;
        u32 r = i / (D / 8), chunk = i % (D / 8), row = first_row + r;
        bool valid = row < rows;
        u32 token = valid ? row / group : 0;
        u32 head = blockIdx.y * group + (valid ? row % group : 0);
        const T* from = p.q + u64(seq.q_row + token) * p.q_stride + head * D + chunk * 8;
        u32 panel = r / PB_SM90_GROUP_ROWS * (D / 64) + chunk / 8;
        u8* rows_of_panel = to + panel * PB_SM90_GROUP_ROWS * 128;
        cp_async_16(rows_of_panel + swizzled(r % PB_SM90_GROUP_ROWS, chunk % 8, 8), from, valid);
    }
}

// Keys of positions [first, first + 128), of which those from `keys` on do not exist: what stands
// for them is masked later. A thread has 8 keys, which lie in one block, in every 16th dimension:
// it looks up one block, and 16 neighbours write two whole rows of 128 bytes.
template <class T, int D>
__device__ __forceinline__ void load_keys_sm90(
    u8* to, const PagedKv<T>& kv, const u32* table, u32 first, u32 keys) {
    u32 chunk = threadIdx.x % 16, row = threadIdx.x / 16, position = first + chunk * 8;
    bool valid = position < keys;
    u64 block = valid ? table[position >> kv.log2_block] : 0;
    u32 slot = position & ((1u << kv.log2_block) - 1);
    const T* from =
        kv.k + (((block * kv.kv_heads + blockIdx.y) * D + row) << kv.log2_block) + slot;
    // Rows 16 apart have the same place in the swizzle.
    to += chunk / 8 * (D * 128) + swizzled(row, chunk % 8, 8);
#pragma unroll
    for (u32 step = 0; step < D / 16; step++) {
        cp_async_16(to + step * 16 * 128, from, valid);
        from += 16u << kv.log2_block;
    }
}

// Values likewise; zeros where there is no key, because a weight of zero does not silence a NaN. A
// thread has 8 dimensions of a few neighbouring keys, which lie in one block.
template <class T, int D>
__device__ __forceinline__ void load_values_sm90(
    u8* to, const PagedKv<T>& kv, const u32* table, u32 first, u32 keys) {
    const u32 lanes = D / 8, keys_each = PB_SM90_KEYS * lanes / PB_SM90_THREADS;
    u32 chunk = threadIdx.x % lanes, key = threadIdx.x / lanes * keys_each;
    u32 position = first + key;
    u64 block = position < keys ? table[position >> kv.log2_block] : 0;
    u32 slot = position & ((1u << kv.log2_block) - 1);
    const T* from = kv.v +
        ((((block * kv.kv_heads + blockIdx.y) << kv.log2_block) + slot) * D + chunk * 8);
    to += chunk / 8 * (PB_SM90_KEYS * 128);
#pragma unroll
    for (u32 step = 0; step < keys_each; step++) {
        cp_async_16(to + swizzled(key + step, chunk % 8, 8), from + step * D,
            position + step < keys);
    }
}

// Starts s = Q K for the rows of this warpgroup and a tile of keys.
template <class T, int D>
__device__ __forceinline__ void start_scores(
    float (&s)[PB_SM90_KEYS / 8][4], const u8* queries, const u8* keys) {
#pragma unroll
    for (u32 step = 0; step < D / 16; step++) {
        // 16 terms are 32 bytes of each query row, and 16 rows of keys.
        const u8* q = queries + step / 4 * (PB_SM90_GROUP_ROWS * 128) + step % 4 * 32;
#ifdef PB_FAULT_SM90_STRIDE
        u32 panel = D * 64;
#else
        u32 panel = D * 128;
#endif
        wgmma_shared<T, PB_SM90_KEYS>(s, wgmma_operand(q, 16, PB_SM90_PART_BYTES),
            wgmma_operand(keys + step * 16 * 128, panel, PB_SM90_PART_BYTES), step > 0);
    }
    wgmma_commit();
}

// Starts o += P V for weights p and a tile of values.
template <class T, int D>
__device__ __forceinline__ void start_values(
    float (&o)[D / 8][4], const u32 (&p)[PB_SM90_KEYS / 16][4], const u8* values) {
#pragma unroll
    for (u32 step = 0; step < PB_SM90_KEYS / 16; step++) {
        wgmma_registers<T, D>(o, p[step],
            wgmma_operand(
                values + step * 16 * 128, PB_SM90_KEYS * 128, PB_SM90_PART_BYTES),
            true);
    }
    wgmma_commit();
}

// What a thread knows of its two rows, lane / 4 and lane / 4 + 8 of its warp's 16.
struct SoftmaxRows {
    u32 limit[2]; // last visible position
    float max[2]; // of raw scores
    float sum[2]; // of this thread's columns only, until it is finished
};

// Hides the keys after each row's own position.
__device__ __forceinline__ void mask_sm90(
    float (&s)[PB_SM90_KEYS / 8][4], u32 first_key, const u32 (&limit)[2]) {
    u32 column = first_key + 2 * (threadIdx.x % 4);
#pragma unroll
    for (u32 n = 0; n < PB_SM90_KEYS / 8; n++) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
#ifdef PB_FAULT_MASK
            bool hidden = column + 8 * n + (i & 1) > limit[i / 2] + 1;
#else
            bool hidden = column + 8 * n + (i & 1) > limit[i / 2];
#endif
            s[n][i] = hidden ? -PB_INFINITY : s[n][i];
        }
    }
}

// Online softmax: turns masked scores into weights, and gives the factor for what was summed up
// before. A tile in which all keys of a row are hidden changes no bit of the row: the factor is 1.
__device__ __forceinline__ void weigh_sm90(float (&s)[PB_SM90_KEYS / 8][4], SoftmaxRows& rows,
    float (&shrink)[2], float scale_log2) {
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        float top = rows.max[half];
#pragma unroll
        for (u32 n = 0; n < PB_SM90_KEYS / 8; n++) {
            top = fmaxf(top, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        }
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        // Every row sees the first key of the first tile, so `top` is never infinite here.
        float base = top * scale_log2;
        shrink[half] = exp2_flushed(fmaf(rows.max[half], scale_log2, -base));
        rows.max[half] = top;
        float total = rows.sum[half] * shrink[half];
#pragma unroll
        for (u32 n = 0; n < PB_SM90_KEYS / 8; n++) {
#pragma unroll
            for (u32 i = 2 * half; i < 2 * half + 2; i++) {
                s[n][i] = exp2_flushed(fmaf(s[n][i], scale_log2, -base));
                total += s[n][i];
            }
        }
        rows.sum[half] = total;
    }
}

// Weights as left operands: they leave the product in the very layout of one.
template <class T>
__device__ __forceinline__ void pack_weights(
    u32 (&p)[PB_SM90_KEYS / 16][4], const float (&s)[PB_SM90_KEYS / 8][4]) {
#pragma unroll
    for (u32 step = 0; step < PB_SM90_KEYS / 16; step++) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const float(&from)[4] = s[2 * step + i / 2];
            p[step][i] = pack2<T>(from[2 * (i % 2)], from[2 * (i % 2) + 1]);
        }
    }
}

template <int D>
__device__ __forceinline__ void rescale(float (&o)[D / 8][4], const float (&shrink)[2]) {
#pragma unroll
    for (u32 n = 0; n < D / 8; n++) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            o[n][i] *= shrink[i / 2];
        }
    }
}

template <class T, int D>
__device__ __forceinline__ void store_rows_sm90(const PrefillParams<T, T>& p, const PbSeq& seq,
    const float (&o)[D / 8][4], const SoftmaxRows& rows, u32 group, u32 first_row) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        float sum = rows.sum[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        u32 row = first_row + lane / 4 + 8 * half;
        if (row >= seq.q_len * group) {
            continue;
        }
#ifdef PB_FAULT_HEADS
        u32 head = row % group * p.kv.kv_heads + blockIdx.y; // h mod kv_heads, not h / group
#else
        u32 head = blockIdx.y * group + row % group;
#endif
        float factor = p.v_scale / sum;
        T* out = p.out + (u64(seq.q_row + row / group) * p.q_heads + head) * D + 2 * (lane % 4);
#pragma unroll
        for (u32 n = 0; n < D / 8; n++) {
            *reinterpret_cast<u32*>(out + 8 * n) =
                pack2<T>(o[n][2 * half] * factor, o[n][2 * half + 1] * factor);
        }
    }
}

// This thread's copies have come and wgmma may read them; so have those of all others, and what the
// products of the last round read may be written.
__device__ __forceinline__ void arrive_sm90() {
#ifdef PB_FAULT_SM90_COPY
    cp_async_wait<1>();
#else
    cp_async_wait<0>();
#endif
#ifndef PB_FAULT_SM90_PROXY
    fence_for_wgmma();
#endif
#ifndef PB_FAULT_SM90_BARRIER
    __syncthreads();
#endif
}

// Where the tiles of a block come from and lie.
template <class T, int D> struct TilesSm90 {
    const PagedKv<T>& kv;
    const u32* table;
    u8* base; // two tiles of keys, then two of values
    u32 keys, count;

    __device__ __forceinline__ u8* keys_of(u32 t) const { return base + (t & 1) * Sm90<D>::kTile; }

    __device__ __forceinline__ u8* values_of(u32 t) const {
        return base + (2 + (t & 1)) * Sm90<D>::kTile;
    }

    // Starts to bring what round t + 1 needs, while the products of round t are computed.
    __device__ __forceinline__ void load_for_next_round(u32 t) const {
        if (t + 1 < count) {
#ifdef PB_FAULT_SM90_BUFFER
            u8* to = keys_of(t); // which the tensor cores are reading
#else
            u8* to = keys_of(t + 1);
#endif
            load_keys_sm90<T, D>(to, kv, table, (t + 1) * PB_SM90_KEYS, keys);
        }
        load_values_sm90<T, D>(values_of(t), kv, table, t * PB_SM90_KEYS, keys);
        cp_async_commit();
    }
};

// The rounds of a warpgroup: scores of tile t together with values of tile t - 1.
template <class T, int D>
__device__ __forceinline__ void attend_sm90(float (&o)[D / 8][4], SoftmaxRows& rows,
    const TilesSm90<T, D>& tiles, const u8* queries, u32 unmasked, float scale_log2) {
    float s[PB_SM90_KEYS / 8][4];
    float shrink[2];
    u32 weights[PB_SM90_KEYS / 16][4];

    arrive_sm90();
    wgmma_fence();
    start_scores<T, D>(s, queries, tiles.keys_of(0));
    tiles.load_for_next_round(0);
    wgmma_wait<0>(s);
    if (PB_SM90_KEYS > unmasked) {
        mask_sm90(s, 0, rows.limit);
    }
    weigh_sm90(s, rows, shrink, scale_log2);
    pack_weights<T>(weights, s);

    for (u32 t = 1; t < tiles.count; t++) {
        arrive_sm90();
        hold(o);
#ifndef PB_FAULT_SM90_FENCE
        wgmma_fence();
#endif
        start_scores<T, D>(s, queries, tiles.keys_of(t));
        start_values<T, D>(o, weights, tiles.values_of(t - 1));
        tiles.load_for_next_round(t);
#ifdef PB_FAULT_SM90_WAIT
        wgmma_wait<2>(s);
#else
        wgmma_wait<1>(s);
#endif
        if ((t + 1) * PB_SM90_KEYS > unmasked) {
            mask_sm90(s, t * PB_SM90_KEYS, rows.limit);
        }
        weigh_sm90(s, rows, shrink, scale_log2);
        compute_before(fminf(rows.sum[0], rows.sum[1]));
        wgmma_wait<0>(o);
        // Mostly no maximum has grown, and factors of 1 change no bit.
        if (__any_sync(0xffffffffu, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
            rescale<D>(o, shrink);
        }
        pack_weights<T>(weights, s);
    }

    arrive_sm90();
    hold(o);
    wgmma_fence();
    start_values<T, D>(o, weights, tiles.values_of(tiles.count - 1));
    wgmma_wait<0>(o);
}

template <class T, int D>
__device__ __forceinline__ void prefill_sm90(const PrefillParams<T, T>& p) {
    const PrefillTile plan = p.tiles[blockIdx.x];
    if (plan.first_row % PB_SM90_ROWS != 0) {
        return; // in the block of the tile before it
    }
    PB_SHARED_MEMORY(shared);
    const PbSeq seq = p.seqs[plan.seq];
    u32 group = p.q_heads / p.kv.kv_heads, end_row = seq.q_len * group;
    end_row = end_row < plan.first_row + PB_SM90_ROWS ? end_row : plan.first_row + PB_SM90_ROWS;
    u32 keys = seq.start_pos + (end_row - 1) / group + 1;
    const TilesSm90<T, D> tiles = {p.kv, p.kv.tables + seq.table_at,
        shared + 2 * Sm90<D>::kQueries, keys, (keys + PB_SM90_KEYS - 1) / PB_SM90_KEYS};

    load_queries_sm90<T, D>(shared, p, seq, group, plan.first_row);
    load_keys_sm90<T, D>(tiles.keys_of(0), p.kv, tiles.table, 0, keys);
    cp_async_commit();

    // Rows past the end see what the last row sees, and are not stored.
    u32 warpgroup = threadIdx.x / 128;
    u32 group_row = plan.first_row + warpgroup * PB_SM90_GROUP_ROWS;
    u32 warp_row = group_row + threadIdx.x % 128 / 32 * 16;
    SoftmaxRows rows;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        u32 row = warp_row + threadIdx.x % 32 / 4 + 8 * half;
        rows.limit[half] = seq.start_pos + (row < end_row ? row : end_row - 1) / group;
        rows.max[half] = -PB_INFINITY;
        rows.sum[half] = 0.0f;
    }
    // Keys before this need no mask in this warpgroup: what its first row sees.
    u32 unmasked = seq.start_pos + (group_row < end_row ? group_row : end_row - 1) / group + 1;
    float o[D / 8][4] = {};
    attend_sm90<T, D>(
        o, rows, tiles, shared + warpgroup * Sm90<D>::kQueries, unmasked, p.scale_log2);
    store_rows_sm90<T, D>(p, seq, o, rows, group, warp_row);
}

typedef PrefillParams<bf16, bf16> PrefillSm90Bf16;
typedef PrefillParams<f16, f16> PrefillSm90F16;

#define PREFILL_SM90(name, T, D, Params)                                                        \
    __device__ __forceinline__ void name##_body(const Params& p) { prefill_sm90<T, D>(p); }     \
    PB_KERNEL(name, name##_body, Params, PB_SM90_THREADS, 1)

PREFILL_SM90(prefill_sm90_bf16_d64, bf16, 64, PrefillSm90Bf16)
#ifndef PB_ONE_SHAPE
PREFILL_SM90(prefill_sm90_bf16_d128, bf16, 128, PrefillSm90Bf16)
PREFILL_SM90(prefill_sm90_f16_d64, f16, 64, PrefillSm90F16)
PREFILL_SM90(prefill_sm90_f16_d128, f16, 128, PrefillSm90F16)
#endif

#endif // PB_SM90A
