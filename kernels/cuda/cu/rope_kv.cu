// rope_kv: rotary embedding of queries and keys, and the write of keys and values into blocks.
//
//   (a, b) -> (a cos - b sin, b cos + a sin)   for dimensions i and i + d/2 of every q and k head
//
// Queries are rotated in place; rotated keys and the values go to the paged store of the layer. A
// row whose block is PB_NO_BLOCK is there to fill up a batch: it is rotated and stored nowhere.
//
// Shapes   qkv [rows][(q_heads + 2 kv_heads) d] T, cos and sin [positions][d/2] f32,
//          positions [rows] u32, slots [rows][2] u32 (block, slot in block)
// Layout   as the CPU engine's, so a block means the same on both: a block of keys is
//          [kv_head][d][slot], one of values [kv_head][slot][d]
// Stored   S = T as it is, S = e4m3 as the code nearest to x / scale (one scale for the keys of
//          the layer, one for its values). Keys are rounded once, from the f32 rotation.
// Launch   grid (rows), 128 threads, no shared memory
// Bytes    per row (q_heads + 2 kv_heads) d sizeof T read, q_heads d sizeof T and 2 kv_heads d
//          sizeof S written. A key's elements lie `block_size` apart, so its stores fill 1/16 of
//          a 32-byte sector each; neighbouring tokens of a chunk complete the sectors in L2. For
//          a lone decode row that costs 16 times the bytes of one key row, about 1/1000 of what
//          attention then reads at 4k tokens; the transposed store is what lets attention feed
//          both its products through the same ldmatrix.
#include "device.cuh"

#define PB_NO_BLOCK 0xffffffffu

template <class T, class S> struct RopeKvParams {
    T* qkv;
    const float* cos;
    const float* sin;
    const u32* positions;
    const u32* slots;
    S* k;
    S* v;
    u32 q_heads, kv_heads, d_head, block_size;
    float k_scale, v_scale;
};

// `scale` is 1 where elements have none, and dividing by it changes nothing.
template <class S> __device__ __forceinline__ S stored(float x, float scale) {
    return from_f32<S>(x / scale);
}

template <class T, class S> __device__ __forceinline__ void rope_kv(const RopeKvParams<T, S>& p) {
    u32 row = blockIdx.x, half = p.d_head / 2;
    u32 width = (p.q_heads + 2 * p.kv_heads) * p.d_head;
    T* x = p.qkv + u64(row) * width;
    const float* cos = p.cos + u64(p.positions[row]) * half;
    const float* sin = p.sin + u64(p.positions[row]) * half;
    u32 slot = p.slots[2 * row + 1];
#ifdef PB_FAULT_ROPE_FILL
    bool kept = true;
#else
    bool kept = p.slots[2 * row] != PB_NO_BLOCK;
#endif
    u64 block = u64(p.slots[2 * row]) * p.kv_heads * p.d_head * p.block_size;

    for (u32 i = threadIdx.x; i < (p.q_heads + p.kv_heads) * half; i += blockDim.x) {
        u32 head = i / half, pair = i % half;
        T* low = x + head * p.d_head + pair;
        float a = to_f32(low[0]), b = to_f32(low[half]), c = cos[pair], s = sin[pair];
        float rotated_a = fmaf(a, c, -(b * s)), rotated_b = fmaf(b, c, a * s);
        if (head < p.q_heads) {
            low[0] = from_f32<T>(rotated_a);
            low[half] = from_f32<T>(rotated_b);
        } else if (kept) {
            u64 column = u64(head - p.q_heads) * p.d_head + pair;
            S* key = p.k + block + column * p.block_size + slot;
            key[0] = stored<S>(rotated_a, p.k_scale);
            key[u64(half) * p.block_size] = stored<S>(rotated_b, p.k_scale);
        }
    }
    const T* values = x + (p.q_heads + p.kv_heads) * p.d_head;
    for (u32 i = threadIdx.x; kept && i < p.kv_heads * p.d_head; i += blockDim.x) {
        u32 head = i / p.d_head, j = i % p.d_head;
        u64 at = block + (u64(head) * p.block_size + slot) * p.d_head + j;
        p.v[at] = stored<S>(to_f32(values[i]), p.v_scale);
    }
}

template <class T> __device__ __forceinline__ void rope_kv_same(const RopeKvParams<T, T>& p) {
    rope_kv<T, T>(p);
}

template <class T> __device__ __forceinline__ void rope_kv_e4m3(const RopeKvParams<T, e4m3>& p) {
    rope_kv<T, e4m3>(p);
}

typedef RopeKvParams<bf16, bf16> RopeKvBf16;
typedef RopeKvParams<f16, f16> RopeKvF16;
typedef RopeKvParams<bf16, e4m3> RopeKvBf16E4m3;
typedef RopeKvParams<f16, e4m3> RopeKvF16E4m3;

PB_KERNEL(rope_kv_bf16, rope_kv_same<bf16>, RopeKvBf16, 128, 8)
PB_KERNEL(rope_kv_f16, rope_kv_same<f16>, RopeKvF16, 128, 8)
PB_KERNEL(rope_kv_bf16_e4m3, rope_kv_e4m3<bf16>, RopeKvBf16E4m3, 128, 8)
PB_KERNEL(rope_kv_f16_e4m3, rope_kv_e4m3<f16>, RopeKvF16E4m3, 128, 8)
