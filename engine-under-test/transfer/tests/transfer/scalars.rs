//! Element types by brute force: widening from the definition, rounding by search.

use pb_contract::KvDtype;

#[allow(dead_code)] // The lists of ties are for the kernels.
#[path = "../../../../kernels/cpu/tests/common/fp8_table.rs"]
mod fp8_table;

/// The f64 value of a 16-bit float with `mantissa` bits and the exponent bias `bias`.
fn small_float(bits: u16, mantissa: i32, bias: i32) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let fields = i32::from(bits & 0x7fff);
    let (exponent, fraction) = (fields >> mantissa, fields & ((1 << mantissa) - 1));
    let largest = (1 << (15 - mantissa)) - 1;
    let fraction = f64::from(fraction) / f64::from(1 << mantissa);
    match exponent {
        0 => sign * fraction * 2f64.powi(1 - bias),
        e if e == largest && fraction == 0.0 => sign * f64::INFINITY,
        e if e == largest => f64::NAN,
        e => sign * (1.0 + fraction) * 2f64.powi(e - bias),
    }
}

/// What the code `bits` stands for, scale aside.
pub(crate) fn widen(dtype: KvDtype, bits: u32) -> f64 {
    match dtype {
        KvDtype::F32 => f64::from(f32::from_bits(bits)),
        KvDtype::Bf16 => small_float(bits as u16, 7, 127),
        KvDtype::F16 => small_float(bits as u16, 10, 15),
        KvDtype::Fp8E4m3 => f64::from(f32::from_bits(fp8_table::E4M3[bits as usize])),
        KvDtype::Fp8E5m2 => f64::from(f32::from_bits(fp8_table::E5M2[bits as usize])),
        KvDtype::F64 | KvDtype::Int8 => panic!("moves as it is"),
    }
}

/// The code nearest to `x`, of two the one with an even code, found by looking at all of them.
/// The step above the largest value counts as a code that cannot be had.
pub(crate) fn nearest(dtype: KvDtype, x: f64) -> Option<u32> {
    let codes = match dtype {
        KvDtype::F32 => return Some((x as f32).to_bits()),
        KvDtype::Bf16 | KvDtype::F16 => 1u32 << 15,
        _ => 1 << 7,
    };
    let sign = if x.is_sign_negative() { codes } else { 0 };
    let value = |code: u32| {
        // Beyond the largest finite code the sequence goes on by its last step.
        let v = widen(dtype, code);
        if v.is_finite() {
            return v;
        }
        let last = (0..codes).rev().find(|&c| widen(dtype, c).is_finite());
        let last = last.expect("a finite code");
        let step = widen(dtype, last) - widen(dtype, last - 1);
        widen(dtype, last) + step * f64::from(code - last)
    };
    // Magnitudes grow with the code.
    let (mut low, mut high) = (0, codes - 1);
    while high - low > 1 {
        let middle = (low + high) / 2;
        if value(middle) <= x.abs() {
            low = middle;
        } else {
            high = middle;
        }
    }
    let (below, above) = (x.abs() - value(low), value(high) - x.abs());
    let code = match below.partial_cmp(&above)? {
        std::cmp::Ordering::Less => low,
        std::cmp::Ordering::Greater => high,
        std::cmp::Ordering::Equal => low + low % 2,
    };
    widen(dtype, code).is_finite().then_some(sign | code)
}

#[test]
fn the_oracle_knows_the_corners_of_the_formats() {
    // OFP8 1.0 and IEEE 754: largest values, the ties above them, smallest values.
    let table = [
        (KvDtype::Fp8E4m3, 448.0, Some(0x7e)),
        (KvDtype::Fp8E4m3, 464.0, Some(0x7e)),
        (KvDtype::Fp8E4m3, 464.1, None),
        (KvDtype::Fp8E4m3, -0.001_953_125, Some(0x81)),
        (KvDtype::Fp8E5m2, 57_344.0, Some(0x7b)),
        (KvDtype::Fp8E5m2, 61_439.0, Some(0x7b)),
        (KvDtype::Fp8E5m2, 61_440.0, None),
        (KvDtype::F16, 65_504.0, Some(0x7bff)),
        (KvDtype::F16, 65_519.0, Some(0x7bff)),
        (KvDtype::F16, 65_520.0, None),
        (KvDtype::F16, 1.0, Some(0x3c00)),
        (KvDtype::Bf16, 1.0, Some(0x3f80)),
        (KvDtype::Bf16, 1.003_906_25, Some(0x3f80)),
    ];
    for (dtype, x, code) in table {
        assert_eq!(nearest(dtype, x), code, "{dtype:?} {x}");
    }
}
