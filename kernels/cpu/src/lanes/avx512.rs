//! One 512-bit register. Eight rows by three vectors use 24 of the 32 registers as
//! accumulators, which keeps the multiply-add pipes full without spilling.

use std::arch::x86_64::*;

use half::bf16;

use super::avx2::{E4M3_OVER_F16, e4m3_as_f16, e5m2_as_f16};
use super::{DotLanes, Lanes, lane_ops};

/// Sixteen lanes in one register.
#[derive(Clone, Copy)]
pub(crate) struct V512(__m512);

impl Lanes for V512 {
    const GEMM_ROWS: usize = 8;
    const GEMM_VECS: usize = 3;
    const ATTN_ROWS: usize = 8;
    const ATTN_VECS: usize = 4;

    lane_ops! {
        fn splat(x: f32) -> Self = V512(_mm512_set1_ps(x));
        fn load(p: *const f32) -> Self = V512(_mm512_loadu_ps(p));
        fn load_bf16(p: *const u16) -> Self = {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            V512(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits)))
        };
        fn load_f16(p: *const u16) -> Self = V512(_mm512_cvtph_ps(_mm256_loadu_si256(p.cast())));
        fn load_e4m3(p: *const u8) -> Self = {
            let scaled = _mm512_cvtph_ps(e4m3_as_f16(p));
            V512(_mm512_mul_ps(scaled, _mm512_set1_ps(E4M3_OVER_F16)))
        };
        fn load_e5m2(p: *const u8) -> Self = V512(_mm512_cvtph_ps(e5m2_as_f16(p)));
        fn load_i8(p: *const i8) -> Self =
            V512(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))));
        fn load_first(p: *const [bf16; 2]) -> Self =
            V512(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_loadu_si512(p.cast()))));
        fn load_second(p: *const [bf16; 2]) -> Self = {
            let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
            V512(_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p.cast()), upper)))
        };
        fn store(x: Self, p: *mut f32) = _mm512_storeu_ps(p, x.0);
        fn add(a: Self, b: Self) -> Self = V512(_mm512_add_ps(a.0, b.0));
        fn sub(a: Self, b: Self) -> Self = V512(_mm512_sub_ps(a.0, b.0));
        fn mul(a: Self, b: Self) -> Self = V512(_mm512_mul_ps(a.0, b.0));
        fn div(a: Self, b: Self) -> Self = V512(_mm512_div_ps(a.0, b.0));
        fn fma(a: Self, b: Self, c: Self) -> Self = V512(_mm512_fmadd_ps(a.0, b.0, c.0));
        fn max(a: Self, b: Self) -> Self = V512(_mm512_max_ps(a.0, b.0));
        fn min(a: Self, b: Self) -> Self = V512(_mm512_min_ps(a.0, b.0));
        fn round(a: Self) -> Self = V512(_mm512_roundscale_ps::<0x08>(a.0));
        fn pow2(n: Self) -> Self = {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n.0), _mm512_set1_epi32(127));
            V512(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased)))
        };
        fn zero_where_below(a: Self, x: Self, limit: f32) -> Self = {
            let keep = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x.0, _mm512_set1_ps(limit));
            V512(_mm512_maskz_mov_ps(keep, a.0))
        };
    }
}

impl DotLanes for V512 {
    type Pairs = __m512bh;

    lane_ops! {
        fn splat_pair(p: *const [bf16; 2]) -> Self::Pairs =
            // Both are 512 bits without structure.
            std::mem::transmute::<__m512i, __m512bh>(
                _mm512_set1_epi32(p.cast::<i32>().read_unaligned()),
            );
        fn load_pairs(p: *const [bf16; 2]) -> Self::Pairs =
            std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(p.cast()));
        fn dot(acc: Self, a: Self::Pairs, b: Self::Pairs) -> Self =
            V512(_mm512_dpbf16_ps(acc.0, b, a));
    }
}
