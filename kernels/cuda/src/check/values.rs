//! Seeded values, and the types of elements by the `half` crate and the CPU's tables: nothing here
//! is shared with the kernels.

use half::{bf16, f16};
use pb_kernels_cpu::Fp8E4m3;

use crate::elem::{E4m3, Elem, StoreElem};

/// SplitMix64.
pub struct Rng(
    /// State: any seed.
    pub u64,
);

impl Rng {
    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next_u64() % n as u64) as usize
    }

    /// Uniform in (-scale, scale).
    pub fn values(&mut self, n: usize, scale: f32) -> Vec<f32> {
        let unit = |x: u64| (x >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        (0..n).map(|_| unit(self.next_u64()) * scale).collect()
    }

    /// Puts `x` in a random order.
    pub fn shuffle<T>(&mut self, x: &mut [T]) {
        for i in (1..x.len()).rev() {
            let j = self.below(i + 1);
            x.swap(i, j);
        }
    }
}

/// Conversions of an activation type, by the `half` crate instead of our headers.
pub trait Value: Elem + PartialEq + std::fmt::Debug {
    /// Unit roundoff.
    const ROUNDOFF: f64;
    /// Half of the smallest subnormal number: the error of a value that underflows.
    const UNDERFLOW: f64;
    /// The nearest value.
    fn of(x: f32) -> Self;
    /// As f64, exactly.
    fn f64(self) -> f64;
    /// Its representation.
    fn bits(self) -> u16;
}

impl Value for bf16 {
    const ROUNDOFF: f64 = 1.0 / 256.0;
    const UNDERFLOW: f64 = 0.0; // Beyond f32 too; the values here stay far away.
    fn of(x: f32) -> Self {
        bf16::from_f32(x)
    }
    fn f64(self) -> f64 {
        bf16::to_f64(self)
    }
    fn bits(self) -> u16 {
        self.to_bits()
    }
}

impl Value for f16 {
    const ROUNDOFF: f64 = 1.0 / 2048.0;
    const UNDERFLOW: f64 = 1.0 / (1u64 << 25) as f64;
    fn of(x: f32) -> Self {
        f16::from_f32(x)
    }
    fn f64(self) -> f64 {
        f16::to_f64(self)
    }
    fn bits(self) -> u16 {
        self.to_bits()
    }
}

/// Conversions of a stored element; `scale` is 1 where there is none.
pub trait Stored<T: Elem>: StoreElem<T> + PartialEq + std::fmt::Debug {
    /// Something that is not a number.
    fn poison() -> Self;
    /// The nearest element to `x / scale`.
    fn encode(x: f32, scale: f32) -> Self;
    /// The value that it stands for.
    fn decode(self, scale: f32) -> f64;
}

impl<T: Value> Stored<T> for T {
    fn poison() -> Self {
        T::of(f32::NAN)
    }
    fn encode(x: f32, _: f32) -> Self {
        T::of(x)
    }
    fn decode(self, _: f32) -> f64 {
        self.f64()
    }
}

impl<T: Value> Stored<T> for E4m3
where
    E4m3: StoreElem<T>,
{
    fn poison() -> Self {
        E4m3(0x7f)
    }
    fn encode(x: f32, scale: f32) -> Self {
        E4m3(Fp8E4m3::from_f32(x / scale).0)
    }
    fn decode(self, scale: f32) -> f64 {
        f64::from(Fp8E4m3(self.0).to_f32()) * f64::from(scale)
    }
}

/// Rounds an f32 to a type and back.
pub fn rounded<T: Value>(x: f32) -> f32 {
    T::of(x).f64() as f32
}

/// Rounds values to a type.
pub fn typed<T: Value>(x: &[f32]) -> Vec<T> {
    x.iter().map(|v| T::of(*v)).collect()
}

/// Values as f64.
pub fn f64s<T: Value>(x: &[T]) -> Vec<f64> {
    x.iter().map(|v| v.f64()).collect()
}

/// Representations of values.
pub fn bits<T: Value>(x: &[T]) -> Vec<u16> {
    x.iter().map(|v| v.bits()).collect()
}
