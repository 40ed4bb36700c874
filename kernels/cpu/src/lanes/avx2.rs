//! Two 256-bit registers. Sixteen registers in all, so a GEMM tile is six rows by one vector
//! (12 accumulators) and a panel is walked in three column passes.

use std::arch::x86_64::*;

use half::bf16;

use super::{Lanes, lane_ops};

/// Sixteen lanes in two registers, lower half first.
#[derive(Clone, Copy)]
pub(crate) struct V256(__m256, __m256);

#[inline(always)]
unsafe fn widen(p: *const u16) -> __m256 {
    // SAFETY: the caller promises 8 readable elements and an AVX2 CPU.
    unsafe {
        let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
    }
}

/// How much more an E4M3 number is than the f16 number with the same fields (bias 15, not 7).
pub(super) const E4M3_OVER_F16: f32 = 256.0;

/// Loads 16 E4M3 codes and moves their fields to where an f16 has them. The NaN code, which
/// would read as a number, becomes a NaN.
///
/// # Safety
/// `p` must be valid for 16 reads, on an AVX2 CPU.
#[inline(always)]
pub(super) unsafe fn e4m3_as_f16(p: *const u8) -> __m256i {
    // SAFETY: passed on from the caller.
    unsafe {
        let codes = _mm256_cvtepu8_epi16(_mm_loadu_si128(p.cast()));
        let magnitude = _mm256_and_si256(codes, _mm256_set1_epi16(0x7f));
        let sign = _mm256_slli_epi16::<8>(_mm256_andnot_si256(_mm256_set1_epi16(0x7f), codes));
        let nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f));
        let number = _mm256_or_si256(sign, _mm256_slli_epi16::<7>(magnitude));
        _mm256_or_si256(number, nan)
    }
}

/// Loads 16 E5M2 codes as the f16 numbers whose upper halves they are.
///
/// # Safety
/// `p` must be valid for 16 reads, on an AVX2 CPU.
#[inline(always)]
pub(super) unsafe fn e5m2_as_f16(p: *const u8) -> __m256i {
    // SAFETY: passed on from the caller.
    unsafe { _mm256_slli_epi16::<8>(_mm256_cvtepu8_epi16(_mm_loadu_si128(p.cast()))) }
}

/// Widens 16 f16.
#[inline(always)]
unsafe fn widen_f16(halves: __m256i) -> V256 {
    // SAFETY: the caller promises an AVX2 CPU with F16C.
    unsafe {
        V256(
            _mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
            _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(halves)),
        )
    }
}

/// Converts 8 integers.
#[inline(always)]
unsafe fn convert_i8(p: *const i8) -> __m256 {
    // SAFETY: the caller promises 8 readable elements and an AVX2 CPU.
    unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()))) }
}

/// Loads 8 pairs. Volatile, so that a tile loads its weights anew for each half of the pairs:
/// keeping them for the second half takes two of the sixteen registers, and then accumulators
/// spill (a third of the speed).
#[inline(always)]
unsafe fn pairs(p: *const [bf16; 2]) -> __m256i {
    // SAFETY: the caller promises 8 readable pairs on a 32-byte boundary and an AVX2 CPU.
    unsafe { p.cast::<__m256i>().read_volatile() }
}

/// The first elements of 8 pairs: the lower half of each 32-bit word, moved up.
#[inline(always)]
unsafe fn first(p: *const [bf16; 2]) -> __m256 {
    // SAFETY: passed on from the caller.
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs(p))) }
}

/// The second elements of 8 pairs: the upper half of each 32-bit word, where it is.
#[inline(always)]
unsafe fn second(p: *const [bf16; 2]) -> __m256 {
    // SAFETY: passed on from the caller.
    unsafe {
        let upper = _mm256_set1_epi32(0xffff_0000_u32 as i32);
        _mm256_castsi256_ps(_mm256_and_si256(pairs(p), upper))
    }
}

#[inline(always)]
unsafe fn pow2_half(n: __m256) -> __m256 {
    // SAFETY: the caller promises an AVX2 CPU.
    unsafe {
        let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
    }
}

impl Lanes for V256 {
    const GEMM_ROWS: usize = 6;
    const GEMM_VECS: usize = 1;
    const ATTN_ROWS: usize = 4;
    const ATTN_VECS: usize = 1;

    lane_ops! {
        fn splat(x: f32) -> Self = V256(_mm256_set1_ps(x), _mm256_set1_ps(x));
        fn load(p: *const f32) -> Self = V256(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8)));
        fn load_bf16(p: *const u16) -> Self = V256(widen(p), widen(p.add(8)));
        fn load_f16(p: *const u16) -> Self = widen_f16(_mm256_loadu_si256(p.cast()));
        fn load_e4m3(p: *const u8) -> Self = {
            let scale = _mm256_set1_ps(E4M3_OVER_F16);
            let scaled = widen_f16(e4m3_as_f16(p));
            V256(_mm256_mul_ps(scaled.0, scale), _mm256_mul_ps(scaled.1, scale))
        };
        fn load_e5m2(p: *const u8) -> Self = widen_f16(e5m2_as_f16(p));
        fn load_i8(p: *const i8) -> Self = V256(convert_i8(p), convert_i8(p.add(8)));
        fn load_first(p: *const [bf16; 2]) -> Self = V256(first(p), first(p.add(8)));
        fn load_second(p: *const [bf16; 2]) -> Self = V256(second(p), second(p.add(8)));
        fn store(x: Self, p: *mut f32) = {
            _mm256_storeu_ps(p, x.0);
            _mm256_storeu_ps(p.add(8), x.1);
        };
        fn add(a: Self, b: Self) -> Self =
            V256(_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1));
        fn sub(a: Self, b: Self) -> Self =
            V256(_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1));
        fn mul(a: Self, b: Self) -> Self =
            V256(_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1));
        fn div(a: Self, b: Self) -> Self =
            V256(_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1));
        fn fma(a: Self, b: Self, c: Self) -> Self =
            V256(_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1));
        fn max(a: Self, b: Self) -> Self =
            V256(_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1));
        fn min(a: Self, b: Self) -> Self =
            V256(_mm256_min_ps(a.0, b.0), _mm256_min_ps(a.1, b.1));
        fn round(a: Self) -> Self =
            V256(_mm256_round_ps::<0x08>(a.0), _mm256_round_ps::<0x08>(a.1));
        fn pow2(n: Self) -> Self = V256(pow2_half(n.0), pow2_half(n.1));
        fn zero_where_below(a: Self, x: Self, limit: f32) -> Self = {
            let limit = _mm256_set1_ps(limit);
            let lower = _mm256_cmp_ps::<_CMP_NLT_UQ>(x.0, limit);
            let upper = _mm256_cmp_ps::<_CMP_NLT_UQ>(x.1, limit);
            V256(_mm256_and_ps(lower, a.0), _mm256_and_ps(upper, a.1))
        };
    }
}
