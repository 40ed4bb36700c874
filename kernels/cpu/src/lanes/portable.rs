//! Plain arrays: the definition of what every lane operation means, and the path for CPUs
//! without a special implementation. `mul_add` is exact everywhere, though slow where the
//! hardware has no fused multiply-add.

use half::{bf16, f16};

use super::{LANES, Lanes, lane_ops};
use crate::kv::{Fp8E4m3, Fp8E5m2};

/// Sixteen lanes in an array.
#[derive(Clone, Copy)]
pub(crate) struct VArray([f32; LANES]);

/// Applies `f` lane by lane to one, two or three vectors.
macro_rules! each {
    (|$x:ident| $f:expr, $a:expr) => {{
        let mut out = $a.0;
        for $x in &mut out {
            *$x = $f;
        }
        VArray(out)
    }};
    (|$x:ident, $y:ident| $f:expr, $a:expr, $b:expr) => {{
        let mut out = [0.0f32; LANES];
        for i in 0..LANES {
            let ($x, $y) = ($a.0[i], $b.0[i]);
            out[i] = $f;
        }
        VArray(out)
    }};
}

impl Lanes for VArray {
    const GEMM_ROWS: usize = 4;
    const GEMM_VECS: usize = 1;
    const ATTN_ROWS: usize = 4;
    const ATTN_VECS: usize = 1;

    lane_ops! {
        fn load(p: *const f32) -> Self = VArray(p.cast::<[f32; LANES]>().read_unaligned());
        fn store(x: Self, p: *mut f32) = p.cast::<[f32; LANES]>().write_unaligned(x.0);
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        VArray([x; LANES])
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        // SAFETY: the caller promises 16 readable elements.
        let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        VArray(bits.map(|b| f32::from_bits(u32::from(b) << 16)))
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: the caller promises 16 readable elements.
        let codes = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        VArray(codes.map(|b| f16::from_bits(b).to_f32()))
    }

    #[inline(always)]
    unsafe fn load_e4m3(p: *const u8) -> Self {
        // SAFETY: the caller promises 16 readable elements.
        let codes = unsafe { p.cast::<[u8; LANES]>().read_unaligned() };
        VArray(codes.map(|b| Fp8E4m3(b).to_f32()))
    }

    #[inline(always)]
    unsafe fn load_e5m2(p: *const u8) -> Self {
        // SAFETY: the caller promises 16 readable elements.
        let codes = unsafe { p.cast::<[u8; LANES]>().read_unaligned() };
        VArray(codes.map(|b| Fp8E5m2(b).to_f32()))
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self {
        // SAFETY: the caller promises 16 readable elements.
        let codes = unsafe { p.cast::<[i8; LANES]>().read_unaligned() };
        VArray(codes.map(f32::from))
    }

    #[inline(always)]
    unsafe fn load_first(p: *const [bf16; 2]) -> Self {
        // SAFETY: the caller promises 16 readable pairs.
        let pairs = unsafe { p.cast::<[[bf16; 2]; LANES]>().read_unaligned() };
        VArray(pairs.map(|[x, _]| f32::from_bits(u32::from(x.to_bits()) << 16)))
    }

    #[inline(always)]
    unsafe fn load_second(p: *const [bf16; 2]) -> Self {
        // SAFETY: the caller promises 16 readable pairs.
        let pairs = unsafe { p.cast::<[[bf16; 2]; LANES]>().read_unaligned() };
        VArray(pairs.map(|[_, x]| f32::from_bits(u32::from(x.to_bits()) << 16)))
    }

    #[inline(always)]
    unsafe fn add(a: Self, b: Self) -> Self {
        each!(|x, y| x + y, a, b)
    }

    #[inline(always)]
    unsafe fn sub(a: Self, b: Self) -> Self {
        each!(|x, y| x - y, a, b)
    }

    #[inline(always)]
    unsafe fn mul(a: Self, b: Self) -> Self {
        each!(|x, y| x * y, a, b)
    }

    #[inline(always)]
    unsafe fn div(a: Self, b: Self) -> Self {
        each!(|x, y| x / y, a, b)
    }

    #[inline(always)]
    unsafe fn fma(a: Self, b: Self, c: Self) -> Self {
        let mut out = [0.0f32; LANES];
        for (i, o) in out.iter_mut().enumerate() {
            *o = a.0[i].mul_add(b.0[i], c.0[i]);
        }
        VArray(out)
    }

    #[inline(always)]
    unsafe fn max(a: Self, b: Self) -> Self {
        each!(|x, y| if x > y { x } else { y }, a, b)
    }

    #[inline(always)]
    unsafe fn min(a: Self, b: Self) -> Self {
        each!(|x, y| if x < y { x } else { y }, a, b)
    }

    #[inline(always)]
    unsafe fn round(a: Self) -> Self {
        each!(|x| x.round_ties_even(), a)
    }

    #[inline(always)]
    unsafe fn pow2(n: Self) -> Self {
        each!(
            |x| f32::from_bits(((*x as i32).wrapping_add(127) as u32) << 23),
            n
        )
    }

    #[inline(always)]
    unsafe fn zero_where_below(a: Self, x: Self, limit: f32) -> Self {
        each!(|v, t| if t < limit { 0.0 } else { v }, a, x)
    }
}
