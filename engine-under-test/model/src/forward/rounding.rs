//! What a KV element type keeps of a number, in f64.
//!
//! A quantised cache cannot be judged by the error of an unquantised one: the rounding of what it
//! stores is as large as real defects make. So the reference rounds too, and by rules of its own:
//! it looks a number up among all numbers of the type, where the kernels compute codes from
//! bits. The two share nothing but the definition of the types.

use pb_contract::KvDtype;

/// The rounding of one element type.
pub(super) struct KvRounding {
    dtype: KvDtype,
    /// All finite numbers of the type that are not negative, by code; empty for f64, f32, int8.
    grid: Vec<f64>,
}

/// The numbers of a float type whose codes, sign aside, are `0..codes`, in order.
fn grid(mantissa_bits: i32, min_exponent: i32, codes: u32) -> Vec<f64> {
    let normal = 1u32 << mantissa_bits;
    let number = |code: u32| {
        let (exponent, fraction) = ((code / normal) as i32, code % normal);
        let (significand, exponent) = match exponent {
            0 => (fraction, min_exponent),
            e => (normal + fraction, min_exponent + e - 1),
        };
        f64::from(significand) * 2f64.powi(exponent - mantissa_bits)
    };
    (0..codes).map(number).collect()
}

impl KvRounding {
    /// The rounding of `dtype`.
    pub(super) fn new(dtype: KvDtype) -> Self {
        let grid = match dtype {
            KvDtype::F64 | KvDtype::F32 | KvDtype::Int8 => Vec::new(),
            KvDtype::Bf16 => grid(7, -126, 0x7f80),
            KvDtype::F16 => grid(10, -14, 0x7c00),
            KvDtype::Fp8E4m3 => grid(3, -6, 0x7f),
            KvDtype::Fp8E5m2 => grid(2, -14, 0x7c),
        };
        KvRounding { dtype, grid }
    }

    /// Replaces the values of one token and head by what the cache keeps of them; `scale` is the
    /// layer's, for the fp8 types.
    pub(super) fn round(&self, head: &mut [f64], scale: f32) {
        match self.dtype {
            KvDtype::F64 => {}
            KvDtype::F32 => head.iter_mut().for_each(|x| *x = f64::from(*x as f32)),
            KvDtype::Bf16 | KvDtype::F16 => head.iter_mut().for_each(|x| *x = self.nearest(*x)),
            KvDtype::Fp8E4m3 | KvDtype::Fp8E5m2 => {
                let scale = f64::from(scale);
                head.iter_mut()
                    .for_each(|x| *x = self.nearest(*x / scale) * scale);
            }
            KvDtype::Int8 => {
                let largest = head.iter().map(|x| x.abs()).fold(0.0, f64::max);
                // The cache keeps the scale in f32.
                let scale = f64::from((largest / 127.0) as f32);
                if scale > 0.0 {
                    let code = |x: f64| (x / scale).round_ties_even().clamp(-127.0, 127.0);
                    head.iter_mut().for_each(|x| *x = code(*x) * scale);
                }
            }
        }
    }

    /// The nearest number, of two equally near ones that with the even code. Beyond the largest,
    /// fp8 saturates; the 16-bit types go to infinity from half a step on, as IEEE 754 has it.
    fn nearest(&self, x: f64) -> f64 {
        let (magnitude, last) = (x.abs(), self.grid.len() - 1);
        let above = self.grid.partition_point(|v| *v <= magnitude);
        let rounded = if above > last {
            let step = self.grid[last] - self.grid[last - 1];
            let saturates = matches!(self.dtype, KvDtype::Fp8E4m3 | KvDtype::Fp8E5m2);
            if saturates || magnitude < self.grid[last] + step / 2.0 {
                self.grid[last]
            } else {
                f64::INFINITY
            }
        } else {
            let (low, high) = (self.grid[above - 1], self.grid[above]);
            let (down, up) = (magnitude - low, high - magnitude);
            if down < up || (down == up && above % 2 == 1) {
                low
            } else {
                high
            }
        };
        rounded.copysign(x)
    }

    /// The values of a block image's elements, in the image's order; `scale` gives the scale of
    /// an element by its index.
    pub(super) fn decode(&self, elems: &[u8], scale: impl Fn(usize) -> f32) -> Vec<f64> {
        let width = self.dtype.bytes();
        let code = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
        let value = |(i, bytes): (usize, &[u8])| match self.dtype {
            KvDtype::F64 => f64::from_bits(code(bytes)),
            KvDtype::F32 => f64::from(f32::from_bits(code(bytes) as u32)),
            KvDtype::Int8 => f64::from(bytes[0] as i8) * f64::from(scale(i)),
            KvDtype::Bf16 | KvDtype::F16 => self.number(code(bytes), width),
            KvDtype::Fp8E4m3 | KvDtype::Fp8E5m2 => {
                self.number(code(bytes), width) * f64::from(scale(i))
            }
        };
        elems.chunks_exact(width).enumerate().map(value).collect()
    }

    /// The number with a code of `width` bytes: NaN for codes beyond the finite numbers.
    fn number(&self, code: u64, width: usize) -> f64 {
        let sign = 1u64 << (8 * width - 1);
        let magnitude = self.grid.get((code % sign) as usize);
        let magnitude = magnitude.copied().unwrap_or(f64::NAN);
        if code >= sign { -magnitude } else { magnitude }
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};
    use pb_contract::KvDtype;

    use super::KvRounding;

    fn rounded(dtype: KvDtype, x: f64) -> f64 {
        let mut one = [x];
        KvRounding::new(dtype).round(&mut one, 1.0);
        one[0]
    }

    #[test]
    fn cases_worked_by_hand() {
        use KvDtype::{Bf16, F16, Fp8E4m3, Fp8E5m2};
        let cases = [
            // 17 lies between 16 and 18 (even code 16), 19 between 18 and 20.
            (Fp8E4m3, 17.0, 16.0),
            (Fp8E4m3, 19.0, 20.0),
            (Fp8E4m3, -17.0000001, -18.0),
            // Half of the smallest number is a tie with zero; three halves go to two.
            (Fp8E4m3, 2f64.powi(-10), 0.0),
            (Fp8E4m3, 3.0 * 2f64.powi(-10), 2f64.powi(-8)),
            (Fp8E4m3, 1e9, 448.0),
            (Fp8E5m2, -f64::INFINITY, -57_344.0),
            (Fp8E5m2, 9.0, 8.0),
            (Fp8E5m2, 11.0, 12.0),
            (F16, 2049.0, 2048.0),
            (F16, 65_519.0, 65_504.0),
            (F16, 65_520.0, f64::INFINITY),
            (Bf16, 257.0, 256.0),
            (Bf16, 259.0, 260.0),
        ];
        for (dtype, x, want) in cases {
            assert_eq!(rounded(dtype, x), want, "{dtype:?} {x}");
        }
        let mut head = [254.0, -254.0, 3.0, 5.0, 0.0];
        KvRounding::new(KvDtype::Int8).round(&mut head, 1.0);
        assert_eq!(head, [254.0, -254.0, 4.0, 4.0, 0.0]);
    }

    #[test]
    fn the_16_bit_types_agree_with_another_implementation() {
        let mut x = 1e-9f32;
        let (wide, narrow) = (
            KvRounding::new(KvDtype::Bf16),
            KvRounding::new(KvDtype::F16),
        );
        let mut compared = 0;
        while x < 70_000.0 {
            let mut one = [f64::from(x)];
            wide.round(&mut one, 1.0);
            assert_eq!(one[0], f64::from(bf16::from_f32(x).to_f32()), "bf16 {x}");
            let mut one = [f64::from(-x)];
            narrow.round(&mut one, 1.0);
            assert_eq!(one[0], f64::from(f16::from_f32(-x).to_f32()), "f16 {x}");
            x *= 1.003_1;
            compared += 1;
        }
        assert!(compared > 5000);
        for code in (0..0x7c00u16).step_by(7) {
            let bytes = [code.to_le_bytes(), (code | 0x8000).to_le_bytes()];
            let want = f64::from(f16::from_bits(code).to_f32());
            let got = narrow.decode(bytes.as_flattened(), |_| 1.0);
            assert_eq!(got, [want, -want], "{code:#x}");
        }
    }
}
