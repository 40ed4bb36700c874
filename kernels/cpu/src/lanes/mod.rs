//! Sixteen f32 lanes, whatever the instruction set.
//!
//! Kernels are written once over this trait. Sixteen is fixed (one AVX-512 register, two AVX2
//! registers, an array elsewhere), because the lane count decides which partial sum a value
//! joins, hence the bits of the result. Every operation rounds exactly as IEEE 754 says, so
//! all implementations agree bit for bit.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod portable;

use half::bf16;

use crate::kv::{KvElem, KvFormat};

/// Number of f32 lanes in every implementation.
pub(crate) const LANES: usize = 16;

/// Sixteen f32 values.
///
/// # Safety
/// Every method may execute instructions of the implementation's instruction set, so callers
/// must run on a CPU that has it (an [`crate::Isa`] value is the proof), and the pointer
/// methods access 16 elements, at any alignment unless a method asks for one.
pub(crate) trait Lanes: Copy {
    /// Most rows of the activation matrix that a GEMM tile holds in registers.
    const GEMM_ROWS: usize;
    /// Vectors of output columns in a GEMM tile: 3 (a whole panel) or 1.
    const GEMM_VECS: usize;
    /// Most query rows that an attention tile holds in registers (8 or 4).
    const ATTN_ROWS: usize;
    /// Vectors of head dimension that a value tile of 4 rows or fewer may hold (4 or 1).
    const ATTN_VECS: usize;

    /// All lanes `x`.
    unsafe fn splat(x: f32) -> Self;
    /// Loads 16 values.
    unsafe fn load(p: *const f32) -> Self;
    /// Loads 16 bf16 bit patterns and widens them exactly.
    unsafe fn load_bf16(p: *const u16) -> Self;
    /// Loads 16 f16 bit patterns and widens them exactly.
    unsafe fn load_f16(p: *const u16) -> Self;
    /// Loads 16 E4M3 codes and widens them exactly.
    unsafe fn load_e4m3(p: *const u8) -> Self;
    /// Loads 16 E5M2 codes and widens them exactly.
    unsafe fn load_e5m2(p: *const u8) -> Self;
    /// Loads 16 integers and converts them exactly.
    unsafe fn load_i8(p: *const i8) -> Self;
    /// Loads 16 pairs of bf16, on a 64-byte boundary, and widens the first of each exactly.
    unsafe fn load_first(p: *const [bf16; 2]) -> Self;
    /// Loads 16 pairs of bf16, on a 64-byte boundary, and widens the second of each exactly.
    unsafe fn load_second(p: *const [bf16; 2]) -> Self;
    /// Stores 16 values.
    unsafe fn store(x: Self, p: *mut f32);
    /// `a + b`.
    unsafe fn add(a: Self, b: Self) -> Self;
    /// `a - b`.
    unsafe fn sub(a: Self, b: Self) -> Self;
    /// `a * b`.
    unsafe fn mul(a: Self, b: Self) -> Self;
    /// `a / b`.
    unsafe fn div(a: Self, b: Self) -> Self;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self, b: Self, c: Self) -> Self;
    /// `a > b ? a : b` per lane, so the second operand wins when either is NaN.
    unsafe fn max(a: Self, b: Self) -> Self;
    /// `a < b ? a : b` per lane, so the second operand wins when either is NaN.
    unsafe fn min(a: Self, b: Self) -> Self;
    /// Nearest integer, ties to even.
    unsafe fn round(a: Self) -> Self;
    /// `2^n` for integral lanes in `-126..=127`.
    unsafe fn pow2(n: Self) -> Self;
    /// `x < limit ? 0 : a` per lane (NaN in `x` keeps `a`).
    unsafe fn zero_where_below(a: Self, x: Self, limit: f32) -> Self;
}

/// Lanes whose CPU multiplies pairs of bf16 in one instruction.
///
/// # Safety
/// As for [`Lanes`]; the CPU must also have the instruction.
pub(crate) trait DotLanes: Lanes {
    /// Sixteen pairs of bf16.
    type Pairs: Copy;

    /// The same pair in all lanes.
    unsafe fn splat_pair(p: *const [bf16; 2]) -> Self::Pairs;
    /// Loads 16 pairs.
    unsafe fn load_pairs(p: *const [bf16; 2]) -> Self::Pairs;
    /// `fma(a.first, b.first, fma(a.second, b.second, acc))` per lane, with subnormal operands
    /// and results taken as zero.
    unsafe fn dot(acc: Self, a: Self::Pairs, b: Self::Pairs) -> Self;
}

/// Loads 16 elements of a key/value store, without their scale.
///
/// # Safety
/// `p` must be valid for 16 reads.
#[inline(always)]
pub(crate) unsafe fn load_elem<L: Lanes, T: KvElem>(p: *const T) -> L {
    // SAFETY: the caller promises 16 readable elements, and the format names their bits: all
    // element types are transparent over the type that is read here.
    unsafe {
        match T::FORMAT {
            KvFormat::F32 => L::load(p.cast()),
            KvFormat::Bf16 => L::load_bf16(p.cast()),
            KvFormat::F16 => L::load_f16(p.cast()),
            KvFormat::E4m3 => L::load_e4m3(p.cast()),
            KvFormat::E5m2 => L::load_e5m2(p.cast()),
            KvFormat::Int8 => L::load_i8(p.cast()),
        }
    }
}

/// Loads `n <= 16` values, zero in the other lanes.
#[inline(always)]
pub(crate) unsafe fn load_partial<L: Lanes>(p: *const f32, n: usize) -> L {
    let mut tmp = [0.0f32; LANES];
    // SAFETY: the caller promises n readable values at p, and n <= 16 fits tmp.
    unsafe {
        std::ptr::copy_nonoverlapping(p, tmp.as_mut_ptr(), n);
        L::load(tmp.as_ptr())
    }
}

/// Stores the first `n <= 16` lanes.
#[inline(always)]
pub(crate) unsafe fn store_partial<L: Lanes>(x: L, p: *mut f32, n: usize) {
    let mut tmp = [0.0f32; LANES];
    // SAFETY: the caller promises n writable values at p, and n <= 16 fits tmp.
    unsafe {
        L::store(x, tmp.as_mut_ptr());
        std::ptr::copy_nonoverlapping(tmp.as_ptr(), p, n);
    }
}

/// Declares trait methods whose body is one unsafe expression.
macro_rules! lane_ops {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? = $body:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: the trait's contract: the CPU has this instruction set and pointers
            // are valid for 16 elements.
            unsafe { $body }
        }
    )*};
}
pub(crate) use lane_ops;

#[cfg(test)]
mod tests {
    use half::f16;

    use super::{LANES, Lanes, load_elem};
    use crate::isa::{Isa, Job};
    use crate::kv::{Fp8E4m3, Fp8E5m2, KvElem};

    /// Loads and stores whole vectors.
    struct Widen<'a, T>(&'a [T], &'a mut [f32]);

    impl<T: KvElem> Job for Widen<'_, T> {
        type Out = ();

        #[inline(always)]
        unsafe fn run<L: Lanes>(self) {
            for (from, to) in self
                .0
                .chunks_exact(LANES)
                .zip(self.1.chunks_exact_mut(LANES))
            {
                // SAFETY: both chunks hold 16 elements.
                unsafe { L::store(load_elem::<L, T>(from.as_ptr()), to.as_mut_ptr()) };
            }
        }
    }

    fn every_code<T: KvElem>(codes: &[T]) {
        for isa in Isa::supported() {
            let mut wide = vec![0.0f32; codes.len()];
            // SAFETY: the job asks for nothing.
            unsafe { isa.dispatch(Widen(codes, &mut wide)) };
            for (i, (got, code)) in wide.iter().zip(codes).enumerate() {
                let want = code.to_f32();
                let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                assert!(same, "code {i}: {got} for {want} on {}", isa.name());
            }
        }
    }

    #[test]
    fn every_instruction_set_widens_every_code_as_the_scalar_code_does() {
        every_code(&(0..=255).map(Fp8E4m3).collect::<Vec<_>>());
        every_code(&(0..=255).map(Fp8E5m2).collect::<Vec<_>>());
        every_code(&(-128..=127i8).collect::<Vec<_>>());
        every_code(&(0..=u16::MAX).map(f16::from_bits).collect::<Vec<_>>());
    }
}
