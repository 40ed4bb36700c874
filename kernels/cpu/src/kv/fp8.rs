//! The two 8-bit floats of the OCP specification (OFP8, revision 1.0).
//!
//! Both round to nearest, ties to even, and saturate: what lies beyond the largest finite
//! value, infinities included, becomes that value. NaN stays NaN.

use bytemuck::{Pod, Zeroable};
use half::f16;

/// E4M3: sign, 4 bits of exponent (bias 7), 3 bits of mantissa. Largest value 448, smallest
/// 2^-9; no infinity; `0x7f` and `0xff` are NaN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct Fp8E4m3(
    /// The code.
    pub u8,
);

/// E5M2: sign, 5 bits of exponent (bias 15), 2 bits of mantissa: the upper half of an f16.
/// Largest finite value 57,344, smallest 2^-16. `0x7c` is infinity, which encoding never makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct Fp8E5m2(
    /// The code.
    pub u8,
);

/// What distinguishes the two when encoding.
struct Format {
    mantissa_bits: i32,
    /// Exponent of the smallest normal number, and of all subnormal ones.
    min_exponent: i32,
    largest: f32,
    largest_code: u8,
}

const E4M3: Format = Format {
    mantissa_bits: 3,
    min_exponent: -6,
    largest: 448.0,
    largest_code: 0x7e,
};

const E5M2: Format = Format {
    mantissa_bits: 2,
    min_exponent: -14,
    largest: 57_344.0,
    largest_code: 0x7b,
};

/// `2^n` for a normal f32 exponent.
fn pow2(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

/// The code of `x`, which is not NaN.
fn encode(x: f32, f: &Format) -> u8 {
    let sign = (x.to_bits() >> 24) as u8 & 0x80;
    let magnitude = x.abs();
    if magnitude >= f.largest {
        return sign | f.largest_code;
    }
    let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(f.min_exponent);
    // Neighbours at this exponent are 2^(exponent - mantissa_bits) apart, so the product is
    // exact and its integral part counts them.
    let steps = (magnitude * pow2(f.mantissa_bits - exponent)).round_ties_even() as i32;
    // Codes are consecutive across exponents, so a carry out of the mantissa needs no care.
    let code = ((exponent - f.min_exponent) << f.mantissa_bits) + steps;
    sign | code as u8
}

impl Fp8E4m3 {
    /// Largest finite value.
    pub const MAX: f32 = E4M3.largest;

    /// Nearest code, saturating.
    pub fn from_f32(x: f32) -> Self {
        if x.is_nan() {
            return Fp8E4m3(0x7f);
        }
        Fp8E4m3(encode(x, &E4M3))
    }

    /// The value, exactly.
    pub fn to_f32(self) -> f32 {
        let bits = u16::from(self.0);
        if bits & 0x7f == 0x7f {
            return f32::NAN;
        }
        // As an f16 the same fields mean 2^8 less, subnormal numbers included.
        f16::from_bits((bits & 0x80) << 8 | (bits & 0x7f) << 7).to_f32() * 256.0
    }
}

impl Fp8E5m2 {
    /// Largest finite value.
    pub const MAX: f32 = E5M2.largest;

    /// Nearest code, saturating.
    pub fn from_f32(x: f32) -> Self {
        if x.is_nan() {
            return Fp8E5m2(0x7f);
        }
        Fp8E5m2(encode(x, &E5M2))
    }

    /// The value, exactly.
    pub fn to_f32(self) -> f32 {
        f16::from_bits(u16::from(self.0) << 8).to_f32()
    }
}
