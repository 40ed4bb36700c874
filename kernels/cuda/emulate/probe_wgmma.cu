// probe_wgmma: kernels that show the emulated wgmma right or wrong. Tests only; no device build.
//
// `probe_wgmma_*` multiply operands that lie in an image of shared memory at places that the host
// chose, by descriptors that the host made. `probe_wgmma_fault` does one wrong thing, by number.
#include "device.cuh"

struct ProbeWgmmaParams {
    const u32* image; // of shared memory, in words
    float* d;         // [64][N]
    u64 a, b;         // descriptors
    u32 words;
    u32 first; // sums before the product, 0: none
};

__device__ __forceinline__ void fill_shared(u8* base, const u32* image, u32 words) {
    for (u32 i = threadIdx.x; i < words; i += blockDim.x) {
        reinterpret_cast<u32*>(base)[i] = image[i];
    }
    fence_for_wgmma();
    __syncthreads();
}

template <int N> __device__ __forceinline__ void put_sums(float* to, const float (&d)[N / 8][4]) {
    u32 lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
    for (u32 n = 0; n < N / 8; n++) {
        for (u32 i = 0; i < 4; i++) {
            to[(row + 8 * (i / 2)) * N + 8 * n + 2 * (lane % 4) + (i & 1u)] = d[n][i];
        }
    }
}

template <class T, int N>
__device__ __forceinline__ void probe_shared(const ProbeWgmmaParams& p) {
    PB_SHARED_MEMORY(base);
    fill_shared(base, p.image, p.words);
    float d[N / 8][4];
    for (u32 i = 0; i < N / 2; i++) {
        d[i / 4][i % 4] = float(p.first);
    }
    wgmma_fence();
    wgmma_shared<T, N>(d, p.a, p.b, p.first > 0);
    wgmma_commit();
    wgmma_wait<0>(d);
    put_sums<N>(p.d, d);
}

// With the unit matrix as the left operand, in the first 16 rows: they become those of `b`.
template <class T, int N>
__device__ __forceinline__ void probe_registers(const ProbeWgmmaParams& p) {
    PB_SHARED_MEMORY(base);
    fill_shared(base, p.image, p.words);
    u32 lane = threadIdx.x % 32, row = lane / 4, k = 2 * (lane % 4);
    u32 a[4] = {};
    if (threadIdx.x < 32) {
        u32 pair = pack2<T>(row == k ? 1.0f : 0.0f, row == k + 1 ? 1.0f : 0.0f);
        a[0] = pair; // rows 0 to 7, terms 0 to 7
        a[3] = pair; // rows 8 to 15, terms 8 to 15
    }
    float d[N / 8][4];
    wgmma_fence();
    wgmma_registers<T, N>(d, a, p.b, false);
    wgmma_commit();
    wgmma_wait<0>(d);
    put_sums<N>(p.d, d);
}

#define PROBE(kernel, name, T, N)                                                               \
    __device__ __forceinline__ void name##_body(const ProbeWgmmaParams& p) { kernel<T, N>(p); } \
    PB_KERNEL(name, name##_body, ProbeWgmmaParams, 128, 1)

PROBE(probe_shared, probe_wgmma_shared_bf16_64, bf16, 64)
PROBE(probe_shared, probe_wgmma_shared_f16_128, f16, 128)
PROBE(probe_registers, probe_wgmma_registers_bf16_128, bf16, 128)
PROBE(probe_registers, probe_wgmma_registers_f16_64, f16, 64)

struct ProbeWgmmaFaultParams {
    float* out; // [128]
    u32 fault;
    u32 zero; // hides what is going on from the compiler
};

// A product of 2 KiB of ones at the start of shared memory (columns contiguous) with ones in
// registers: every sum is 16. `fault` says what is wrong with it.
__device__ __forceinline__ void probe_wgmma_fault(const ProbeWgmmaFaultParams& p) {
    PB_SHARED_MEMORY(base);
    const u32 ones = 0x3f803f80u, t = threadIdx.x;
    u32 f = p.fault;
    u32* words = reinterpret_cast<u32*>(base);
    for (u32 i = t; i < 512; i += 128) {
        words[i] = ones;
    }
    if (f != 2 && f != 9) {
        fence_for_wgmma();
    }
    if (f != 3) {
        __syncthreads();
    }
    if (f == 9) { // the fence comes too late for the others
        fence_for_wgmma();
    }
    u32 a[4] = {ones, ones, ones, ones};
    float d[8][4];
    u64 b = wgmma_operand(base + (f == 12 ? 2048 : 0), 16, 1024);
    if (f == 11) {
        b |= 1ull << 14;
    }
    if (f == 13 && t == 5) {
        b += 1;
    }
    if (f != 1) {
        wgmma_fence();
    }
    if (f != 8 || t / 32 != 2) { // one warp stays away
        wgmma_registers<bf16, 64>(d, a, b, false);
    }
    if (f != 10) {
        wgmma_commit();
    }
    switch (f) {
    case 4: // sums that are not there yet
        p.out[t] = d[p.zero][0];
        break;
    case 5: // an operand in use
        a[p.zero] = 0;
        break;
    case 6: // shared memory in use
        words[t] = 0;
        break;
    case 14: // the same, after a barrier
        __syncthreads();
        words[t] = 0;
        break;
    case 15: // sums in use
        d[p.zero][1] = 0.0f;
        break;
    }
    if (f != 7) {
        wgmma_wait<0>(d);
        p.out[t] = d[p.zero][0] + d[7][3];
    }
    if (f == 16) { // after the wait, but other warps may still be in theirs
        words[t] = 0;
    }
}

PB_KERNEL(probe_wgmma_fault, probe_wgmma_fault, ProbeWgmmaFaultParams, 128, 1)
