// probe: small kernels that show the machine itself right or wrong. Tests only; no device build.
//
// `probe_mma` multiplies one 16 x 16 by one 16 x 8 matrix through shared memory, ldmatrix and
// mma, in the way that attention does. `probe_fault` does one wrong thing, by number.
#include "device.cuh"

template <class T> struct ProbeMmaParams {
    const T* a; // [16][16]
    const T* b; // [16][8], its 16 rows padded to 16 columns
    float* c;   // [16][8]
};

template <class T> __device__ __forceinline__ void probe_mma(const ProbeMmaParams<T>& p) {
    PB_SHARED_MEMORY(base);
    T* a = reinterpret_cast<T*>(base);
    T* b = a + 256;
    u32 lane = threadIdx.x;
    for (u32 i = lane; i < 32; i += 32) {
        cp_async_16(a + 8 * i, p.a + 8 * i, true);
        cp_async_16(b + 8 * i, p.b + 8 * i, true);
    }
    cp_async_commit();
    cp_async_wait<0>();
    __syncwarp();
    u32 left[4], right[4];
    ldmatrix_x4(left, a + (lane & 15u) * 16 + (lane >> 4) * 8);
    ldmatrix_x4_trans(right, b + (lane & 15u) * 16 + (lane >> 4) * 8);
    float c[4] = {};
    mma_m16n8k16<T>(c, left, right[0], right[1]);
    for (u32 i = 0; i < 4; i++) {
        p.c[(lane / 4 + 8 * (i / 2)) * 8 + 2 * (lane % 4) + (i & 1u)] = c[i];
    }
}

PB_KERNEL(probe_mma_bf16, probe_mma<bf16>, ProbeMmaParams<bf16>, 32, 1)
PB_KERNEL(probe_mma_f16, probe_mma<f16>, ProbeMmaParams<f16>, 32, 1)

// Bits to f32 and back, for all kinds of elements: conversions against other implementations.
struct ProbeConvertParams {
    const float* from;
    u16* bf16_bits;
    u16* f16_bits;
    u8* e4m3_bits;
    float* back; // [3][n]
    u32 n;
};

__device__ __forceinline__ void probe_convert(const ProbeConvertParams& p) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.n) {
        bf16 a = from_f32<bf16>(p.from[i]);
        f16 b = from_f32<f16>(p.from[i]);
        e4m3 c = from_f32<e4m3>(p.from[i]);
        p.bf16_bits[i] = a.bits;
        p.f16_bits[i] = b.bits;
        p.e4m3_bits[i] = c.bits;
        p.back[i] = to_f32(a);
        p.back[p.n + i] = to_f32(b);
        p.back[2 * p.n + i] = to_f32(c);
    }
}

PB_KERNEL(probe_convert, probe_convert, ProbeConvertParams, 256, 1)

struct ProbeFaultParams {
    const float* in; // [256]
    float* out;      // [256]
    u32 fault;
    u32 zero; // hides what is going on from the compiler
};

__device__ __forceinline__ void probe_fault(const ProbeFaultParams& p) {
    PB_SHARED_MEMORY(base);
    float* shared = reinterpret_cast<float*>(base); // [64]
    u32 t = threadIdx.x;
    switch (p.fault) {
    case 0: // nothing wrong: neighbours exchange over a barrier, and lanes over a warp barrier
        shared[t] = p.in[t];
        __syncthreads();
        p.out[t] = shared[(t + 1) % 64];
        __syncthreads();
        shared[t] = p.in[t];
        __syncwarp();
        p.out[64 + t] = shared[t ^ 1u];
        break;
    case 1: // past the end of a buffer
        p.out[t] = p.in[256 + t];
        break;
    case 2: // past the end of shared memory
        shared[64 + t] = 1.0f;
        break;
    case 3: // never written
        p.out[t] = shared[t];
        break;
    case 4: // never written, in a buffer
        p.out[t] = p.out[128 + t];
        break;
    case 5: // neighbour read without a barrier
        shared[t] = p.in[t];
        p.out[t] = shared[(t + 1) % 64];
        break;
    case 6: // written by all
        shared[p.zero] = p.in[t];
        break;
    case 7: // a warp barrier where a block's is needed
        shared[t] = p.in[t];
        __syncwarp();
        p.out[t] = shared[63 - t];
        break;
    case 8: // read, then overwritten by another thread
        shared[t] = p.in[t];
        __syncthreads();
        p.out[t] = shared[t];
        shared[(t + 1) % 64] = 0.0f;
        break;
    case 9: // a barrier that half of the block misses
        if (t < 32) {
            __syncthreads();
        }
        break;
    case 10: // a shuffle that half of the warp misses
        if (t % 32 < 16) {
            p.out[t] = warp_sum(p.in[t]);
        }
        break;
    case 11: // a vector at an odd address
        *reinterpret_cast<float4*>(p.out + 4 * (t % 16) + 1) = make_float4(0, 0, 0, 0);
        break;
    case 12: // a write to an input
        const_cast<float*>(p.in)[t] = 0.0f;
        break;
    case 13: // an asynchronous copy read before it was waited for
        cp_async_16(shared + 4 * (t % 16), p.in + 4 * (t % 16), true);
        cp_async_commit();
        p.out[t] = shared[4 * (t % 16)];
        cp_async_wait<0>();
        break;
    case 14: // two blocks, one element
        p.out[t] = float(blockIdx.x);
        break;
    case 15: // an asynchronous copy seen by another thread without a barrier
        if (t < 16) {
            cp_async_16(shared + 4 * t, p.in + 4 * t, true);
        }
        cp_async_commit();
        cp_async_wait<0>();
        p.out[t] = shared[t];
        break;
    }
}

PB_KERNEL(probe_fault, probe_fault, ProbeFaultParams, 64, 1)
