// What the kernels of paged prefill are given.
#pragma once
#include "paged.cuh"

// 64 query rows of a sequence, fewer at its end. A row is a token and a head of the group, token
// first.
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
