//! Element types of a key/value store, and how each scales what it stores.

use bytemuck::Pod;
use half::{bf16, f16};

use super::KvShape;
use super::fp8::{Fp8E4m3, Fp8E5m2};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::bf16 {}
    impl Sealed for half::f16 {}
    impl Sealed for super::Fp8E4m3 {}
    impl Sealed for super::Fp8E5m2 {}
    impl Sealed for i8 {}
}

/// The bits of an element, as the kernels tell them apart at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvFormat {
    /// `f32`.
    F32,
    /// `half::bf16`.
    Bf16,
    /// `half::f16`.
    F16,
    /// [`Fp8E4m3`].
    E4m3,
    /// [`Fp8E5m2`].
    E5m2,
    /// `i8`, codes -127..=127.
    Int8,
}

/// Which values share a scale. A store holds `x / scale`, rounded; it reads as that times the
/// scale, rounded to f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvScaling {
    /// Values are stored as they are.
    None,
    /// One given scale for all keys of a layer and one for all values.
    PerLayer,
    /// One scale for each token and key/value head, for keys and for values:
    /// `max |x| / 127` over the head's dimension. It depends on that token alone, so no way of
    /// cutting a prompt changes it.
    PerToken,
}

impl KvScaling {
    /// Scales of one side (keys or values) of a store with `blocks` blocks.
    pub fn scales(self, shape: KvShape, blocks: usize) -> usize {
        match self {
            KvScaling::None => 0,
            KvScaling::PerLayer => 1,
            KvScaling::PerToken => blocks * self.block_scales(shape),
        }
    }

    /// Scales of one side that belong to one block.
    pub fn block_scales(self, shape: KvShape) -> usize {
        match self {
            KvScaling::None | KvScaling::PerLayer => 0,
            KvScaling::PerToken => shape.block_size * shape.kv_heads,
        }
    }
}

/// Element type of a key/value store: rounded to nearest even on write, widened exactly on
/// read.
pub trait KvElem: Pod + Send + Sync + sealed::Sealed {
    /// Bits.
    const FORMAT: KvFormat;
    /// Scales.
    const SCALING: KvScaling;

    /// Rounds to the element type; the scale is the caller's.
    fn from_f32(x: f32) -> Self;
    /// Widens exactly; the scale is the caller's.
    fn to_f32(self) -> f32;
}

/// Implements [`KvElem`] with a pair of conversions.
macro_rules! elem {
    ($ty:ty, $format:ident, $scaling:ident, $from:expr, $to:expr) => {
        impl KvElem for $ty {
            const FORMAT: KvFormat = KvFormat::$format;
            const SCALING: KvScaling = KvScaling::$scaling;

            #[inline]
            fn from_f32(x: f32) -> Self {
                $from(x)
            }

            #[inline]
            fn to_f32(self) -> f32 {
                $to(self)
            }
        }
    };
}

elem!(f32, F32, None, |x| x, |x| x);
elem!(bf16, Bf16, None, bf16::from_f32, bf16::to_f32);
elem!(f16, F16, None, f16::from_f32, f16::to_f32);
elem!(Fp8E4m3, E4m3, PerLayer, Fp8E4m3::from_f32, Fp8E4m3::to_f32);
elem!(Fp8E5m2, E5m2, PerLayer, Fp8E5m2::from_f32, Fp8E5m2::to_f32);
elem!(i8, Int8, PerToken, int8_code, f32::from);

/// Largest code of an `i8` element: symmetric, so -128 is not used.
pub(super) const INT8_MAX: f32 = 127.0;

/// Nearest integer in -127..=127; 0 for NaN, whose scale is NaN.
fn int8_code(x: f32) -> i8 {
    x.round_ties_even().clamp(-INT8_MAX, INT8_MAX) as i8
}

/// The scale of one head's values under [`KvScaling::PerToken`]. A value that is not finite
/// makes it NaN, so that all of the head reads as NaN instead of something plausible.
pub(super) fn token_scale(head: &[f32]) -> f32 {
    if head.iter().any(|x| !x.is_finite()) {
        return f32::NAN;
    }
    head.iter().fold(0.0f32, |m, x| m.max(x.abs())) / INT8_MAX
}

/// `x / scale`, where nothing is left of a value whose scale is zero.
pub(super) fn unscaled(x: f32, scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { x / scale }
}

/// The value that an element stands for, as the tiles compute it; `scale_at` is used by elements
/// with a scale per token.
pub(crate) fn decode<T: KvElem>(x: T, scales: &[f32], scale_at: usize) -> f32 {
    match T::SCALING {
        KvScaling::None => x.to_f32(),
        KvScaling::PerLayer => x.to_f32() * scales[0],
        KvScaling::PerToken => x.to_f32() * scales[scale_at],
    }
}
