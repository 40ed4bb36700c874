// sample: the next token of every row of logits; greedy, or by chance under temperature, top-k
// and top-p, in the order of the engine's sampler: mask, temperature, top-k, top-p, draw.
//
// Tokens are ranked by (logit, descending; id, ascending). The weight of a token is
// exp((logit - top) / temperature) in f64, cut to a multiple of 2^-44. Sums of such weights are
// exact integers, so the order of adding shows nowhere and every comparison is sharp; against
// the f64 sums of the CPU sampler this moves a boundary by less than 1e-12 of the mass.
//
// The uniform draw is draw number `draw` of the ChaCha8 stream with the row's key: the stream
// that the engine's sampler holds, addressed by counter instead of kept as state, so a
// recomputed row draws the same again. Greedy rows draw nothing.
//
// Shapes   logits [rows][vocab] f32, rows [rows], forbidden: all lists of forbidden ids,
//          out [rows] u32
// Launch   grid (rows), 256 threads, 256 bytes of shared memory
// Limits   vocab at most 2^18 (weights of a row sum to less than 2^63); logits not NaN
// Bytes    vocab * 4 read from memory once, and again from L2 in each pass: 2 passes when greedy,
//          4 without top-k and top-p, up to 100 with both
//
// Version 1, the one here: thresholds are found bit by bit from the top, one pass over the
// row each. Few tokens lie above a threshold, so few exponentials are taken. Not tried yet: a
// histogram of 8 bits a pass (4 passes instead of 32), and all rows' candidates in shared memory.
#include "device.cuh"

struct SampleRow {
    double temperature; // 0: greedy
    double top_p;       // 1 or more: off
    u64 draw;
    u32 key[8];
    u32 top_k; // 0: off
    u32 forbidden_at, forbidden_count;
    u32 pad;
};

struct SampleParams {
    const float* logits;
    const SampleRow* rows;
    const u32* forbidden;
    u32* out;
    u32 vocab;
};

// What the passes over one row share.
struct Row {
    const float* logits;
    const u32* forbidden;
    u32 forbidden_count, vocab;
    double top, temperature;
    u64* scratch; // [16] shared
};

// Order of floats as order of integers; 0 is below all. Zeros of both signs are one value.
__device__ __forceinline__ u32 order_of(float x) {
    u32 bits = __float_as_uint(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float of_order(u32 key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

__device__ __forceinline__ u32 key_at(const Row& row, u32 id) {
    for (u32 i = 0; i < row.forbidden_count; i++) {
        if (row.forbidden[i] == id) {
            return 0;
        }
    }
    return order_of(row.logits[id]);
}

__device__ __forceinline__ u64 weight_of(const Row& row, u32 key) {
    return u64(exp((double(of_order(key)) - row.top) / row.temperature) * 0x1p44);
}

// Sum over the block, given to all. The buffers of two calls in a row differ, so that one
// barrier is enough: nobody can be a whole call ahead.
__device__ __forceinline__ u64 block_sum(const Row& row, u64 x, u32& call) {
    x = warp_sum(x);
    u64* sums = row.scratch + (call++ & 1u) * 8;
    if (threadIdx.x % 32 == 0) {
        sums[threadIdx.x / 32] = x;
    }
    __syncthreads();
    u64 total = 0;
    for (u32 w = 0; w < 8; w++) {
        total += sums[w];
    }
    return total;
}

// Sum of what the threads before this one have.
__device__ __forceinline__ u64 block_before(const Row& row, u64 x, u32& call) {
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 up_to = x;
    for (u32 step = 1; step < 32; step *= 2) {
        u64 other = shuffle(up_to, lane >= step ? lane - step : lane);
        up_to += lane >= step ? other : 0;
    }
    u64* sums = row.scratch + (call++ & 1u) * 8;
    if (lane == 31) {
        sums[warp] = up_to;
    }
    __syncthreads();
    u64 before = up_to - x;
    for (u32 w = 0; w < warp; w++) {
        before += sums[w];
    }
    return before;
}

__device__ __forceinline__ u32 block_max(const Row& row, u32 x, u32& call) {
    for (u32 step = 16; step > 0; step /= 2) {
        u32 other = __shfl_xor_sync(0xffffffffu, x, step);
        x = other > x ? other : x;
    }
    u64* tops = row.scratch + (call++ & 1u) * 8;
    if (threadIdx.x % 32 == 0) {
        tops[threadIdx.x / 32] = x;
    }
    __syncthreads();
    for (u32 w = 0; w < 8; w++) {
        x = tops[w] > x ? u32(tops[w]) : x;
    }
    return x;
}


template <bool Mass>
__device__ __forceinline__ u64 at_least(const Row& row, u32 key, u32& call) {
    u64 sum = 0;
    for (u32 id = threadIdx.x; id < row.vocab; id += blockDim.x) {
        u32 k = key_at(row, id);
        if (k >= key && k != 0) {
            sum += Mass ? weight_of(row, k) : 1;
        }
    }
    return block_sum(row, sum, call);
}

// The tokens that may be drawn: all with a key above `key`, and the first `ties` of those with
// that very key.
struct Kept {
    u32 key;
    u64 ties;
    u64 above; // mass above `key`
    u64 total; // mass of all
};

// Largest key that at least `wanted` tokens (or that much mass) lie at or above. Keys below the
// floor of what is kept count as the floor.
template <bool Mass>
__device__ __forceinline__ u32 threshold(const Row& row, u64 wanted, u32 floor, u32& call) {
    u32 key = 0;
    for (u32 bit = 0x80000000u; bit != 0; bit /= 2) {
        u32 candidate = key | bit;
        if (candidate <= floor || at_least<Mass>(row, candidate, call) >= wanted) {
            key = candidate;
        }
    }
    return key;
}

__device__ __forceinline__ Kept keep_top_k(const Row& row, u64 top_k, u32& call) {
    Kept kept;
    kept.key = threshold<false>(row, top_k, 0, call);
    kept.ties = top_k - at_least<false>(row, kept.key + 1, call);
    kept.above = at_least<true>(row, kept.key + 1, call);
    kept.total = kept.above + kept.ties * weight_of(row, kept.key);
    return kept;
}

// The fewest tokens of `kept` whose mass reaches `top_p` of all of it; at least one.
__device__ __forceinline__ Kept keep_top_p(const Row& row, Kept kept, double top_p, u32& call) {
    u64 goal = u64(ceil(top_p * double(kept.total)));
    goal = goal == 0 ? 1 : goal;
    goal = goal > kept.total ? kept.total : goal;
    u32 key = threshold<true>(row, goal, kept.key, call);
    u64 above = at_least<true>(row, key + 1, call), weight = weight_of(row, key);
    u64 ties = (goal - above + weight - 1) / weight;
    return Kept{key, ties, above, above + ties * weight};
}

// Id number `index` among the tokens with this key, by ascending id; written by its finder.
__device__ __forceinline__ void find_tie(
    const Row& row, u32 key, u64 index, u32* out, u32& call) {
    u32 each = (row.vocab + blockDim.x - 1) / blockDim.x;
    u32 begin = threadIdx.x * each, end = begin + each < row.vocab ? begin + each : row.vocab;
    u64 mine = 0;
    for (u32 id = begin; id < end; id++) {
        mine += key_at(row, id) == key;
    }
    u64 seen = block_before(row, mine, call);
    for (u32 id = begin; id < end && seen <= index; id++) {
        if (key_at(row, id) == key && seen++ == index) {
            *out = id;
        }
    }
}

// The token at which the mass, added in rank order, first exceeds `target`.
__device__ __forceinline__ void draw_ranked(
    const Row& row, const Kept& kept, u64 target, u32* out, u32& call) {
    u32 key = kept.key;
    u64 above = kept.above;
    if (target < above) {
        key = threshold<true>(row, target + 1, kept.key, call);
        above = at_least<true>(row, key + 1, call);
    }
    find_tie(row, key, (target - above) / weight_of(row, key), out, call);
}

// The same in the order of ids, for rows without top-k and top-p.
__device__ __forceinline__ void draw_by_id(const Row& row, u64 target, u32* out, u32& call) {
    u32 each = (row.vocab + blockDim.x - 1) / blockDim.x;
    u32 begin = threadIdx.x * each, end = begin + each < row.vocab ? begin + each : row.vocab;
    u64 mine = 0;
    for (u32 id = begin; id < end; id++) {
        u32 key = key_at(row, id);
        mine += key == 0 ? 0 : weight_of(row, key);
    }
    u64 sum = block_before(row, mine, call);
    for (u32 id = begin; id < end && sum <= target; id++) {
        u32 key = key_at(row, id);
        sum += key == 0 ? 0 : weight_of(row, key);
        if (sum > target) {
            *out = id;
        }
    }
}

__device__ __forceinline__ void quarter_round(u32& a, u32& b, u32& c, u32& d) {
    a += b, d ^= a, d = d << 16 | d >> 16;
    c += d, b ^= c, b = b << 12 | b >> 20;
    a += b, d ^= a, d = d << 8 | d >> 24;
    c += d, b ^= c, b = b << 7 | b >> 25;
}

// 53 random bits: the upper ones of 64-bit word `draw` of the ChaCha8 keystream (Bernstein 2008;
// 64-bit counter, stream 0). `words` is room for 16.
__device__ __forceinline__ u64 draw_53(const u32 (&key)[8], u64 draw, u32* words) {
    u64 block = draw / 8;
    u32 start[16] = {0x61707865u, 0x3320646eu, 0x79622d32u, 0x6b206574u, key[0], key[1], key[2],
        key[3], key[4], key[5], key[6], key[7], u32(block), u32(block >> 32), 0, 0};
    u32 x[16];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        x[i] = start[i];
    }
#pragma unroll
    for (int round = 0; round < 4; round++) {
        quarter_round(x[0], x[4], x[8], x[12]);
        quarter_round(x[1], x[5], x[9], x[13]);
        quarter_round(x[2], x[6], x[10], x[14]);
        quarter_round(x[3], x[7], x[11], x[15]);
        quarter_round(x[0], x[5], x[10], x[15]);
        quarter_round(x[1], x[6], x[11], x[12]);
        quarter_round(x[2], x[7], x[8], x[13]);
        quarter_round(x[3], x[4], x[9], x[14]);
    }
#pragma unroll
    for (int i = 0; i < 16; i++) {
        words[i] = x[i] + start[i]; // In shared memory, where an index may vary.
    }
    u32 at = u32(draw % 8) * 2;
    return (u64(words[at + 1]) << 32 | words[at]) >> 11;
}

// u / 2^53 of `total`, without rounding.
__device__ __forceinline__ u64 share(u64 u, u64 total) {
    return __umul64hi(u, total) << 11 | u * total >> 53;
}

__device__ __forceinline__ void sample(const SampleParams& p) {
    PB_SHARED_MEMORY(base);
    u32* words = reinterpret_cast<u32*>(base + 128);
    const SampleRow& spec = p.rows[blockIdx.x];
    u32* out = p.out + blockIdx.x;
    Row row = {p.logits + u64(blockIdx.x) * p.vocab, p.forbidden + spec.forbidden_at,
        spec.forbidden_count, p.vocab, 0.0, spec.temperature, reinterpret_cast<u64*>(base)};
    u32 call = 0, top = 0;
    for (u32 id = threadIdx.x; id < p.vocab; id += blockDim.x) {
        u32 key = key_at(row, id);
        top = key > top ? key : top;
    }
    top = block_max(row, top, call);
    bool greedy = row.temperature == 0.0;
    if (top == 0) { // All is forbidden: the engine's sampler has token 0, or the largest.
        if (greedy) {
            if (threadIdx.x == 0) {
                *out = 0;
            }
            return;
        }
        row.forbidden_count = 0;
        for (u32 id = threadIdx.x; id < p.vocab; id += blockDim.x) {
            u32 key = key_at(row, id);
            top = key > top ? key : top;
        }
        top = block_max(row, top, call);
        greedy = true;
    }
    if (greedy) {
        find_tie(row, top, 0, out, call);
        return;
    }
    row.top = double(of_order(top));
    bool ranked = spec.top_k != 0 || spec.top_p < 1.0;
    u64 allowed = at_least<false>(row, 1, call);
    u64 all = at_least<true>(row, 1, call);
    Kept kept = {0, 0, all, all};
    if (spec.top_k != 0 && spec.top_k < allowed) {
        kept = keep_top_k(row, spec.top_k, call);
    }
    if (spec.top_p < 1.0) {
        kept = keep_top_p(row, kept, spec.top_p, call);
    }
    if (threadIdx.x == 0) {
        u64 u = draw_53(spec.key, spec.draw, words);
        reinterpret_cast<u64*>(base)[24] = u;
    }
    __syncthreads();
    u64 target = share(reinterpret_cast<u64*>(base)[24], kept.total);
    if (ranked) {
        draw_ranked(row, kept, target, out, call);
    } else {
        draw_by_id(row, target, out, call);
    }
}

PB_KERNEL(sample_rows, sample, SampleParams, 256, 2)
