//! Element types, as the kernels' names spell them.

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};

/// A code of the 8-bit float E4M3 (OCP OFP8); conversions are the kernels' affair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct E4m3(
    /// The code.
    pub u8,
);

/// Type of activations and weights.
pub trait Elem: Pod {
    /// In names of kernels.
    const NAME: &'static str;

    /// The nearest value, ties to even.
    fn round(x: f32) -> Self;
}

impl Elem for bf16 {
    const NAME: &'static str = "bf16";

    fn round(x: f32) -> Self {
        bf16::from_f32(x)
    }
}

impl Elem for f16 {
    const NAME: &'static str = "f16";

    fn round(x: f32) -> Self {
        f16::from_f32(x)
    }
}

/// Type of the result of a matrix product of type `T`: `T` itself, or f32.
pub trait GemmOut<T: Elem>: Pod {
    /// What it adds to the name of a kernel.
    const SUFFIX: &'static str;
}

impl<T: Elem> GemmOut<T> for T {
    const SUFFIX: &'static str = "";
}

impl GemmOut<bf16> for f32 {
    const SUFFIX: &'static str = "_f32";
}

impl GemmOut<f16> for f32 {
    const SUFFIX: &'static str = "_f32";
}

/// Type of the result of a product of E4M3 matrices: bf16, f16 or f32.
pub trait E4m3Out: Pod {
    /// In names of kernels.
    const NAME: &'static str;
}

impl E4m3Out for bf16 {
    const NAME: &'static str = "bf16";
}

impl E4m3Out for f16 {
    const NAME: &'static str = "f16";
}

impl E4m3Out for f32 {
    const NAME: &'static str = "f32";
}

/// Type of stored keys and values, beside activations of type `T`.
pub trait StoreElem<T: Elem>: Pod {
    /// What it adds to the name of a kernel.
    const SUFFIX: &'static str;
    /// Whether stored values are divided by a scale.
    const SCALED: bool;
}

impl<T: Elem> StoreElem<T> for T {
    const SUFFIX: &'static str = "";
    const SCALED: bool = false;
}

impl StoreElem<bf16> for E4m3 {
    const SUFFIX: &'static str = "_e4m3";
    const SCALED: bool = true;
}

impl StoreElem<f16> for E4m3 {
    const SUFFIX: &'static str = "_e4m3";
    const SCALED: bool = true;
}
