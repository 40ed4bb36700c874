//! Rows of E4M3 and their products. Codes and the rounding to them are written out here, by a
//! search through all values: nothing is shared with the kernels.

use half::{bf16, f16};
use pb_kernels_cpu::Fp8E4m3;

use super::formulas::{ScaledRow, scaled_codes};
use super::judge::Expected;
use super::suite::{Compared, Suite, equal};
use super::values::{Rng, Value, f64s, rounded, typed};
use crate::device::{Buffer, Device, DeviceExt, VendorGemm};
use crate::elem::{E4m3, E4m3Out};
use crate::error::KernelError;
use crate::ops::{self, E4m3Rows, GemmBy};

/// What a code stands for (OCP OFP8, revision 1.0): 4 bits of exponent, bias 7, 3 of mantissa.
pub fn value(code: u8) -> f64 {
    let (exponent, mantissa) = (i32::from((code >> 3) & 15), f64::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f64::NAN,
        (0, _) => mantissa * 2f64.powi(-9),
        _ => (8.0 + mantissa) * 2f64.powi(exponent - 10),
    };
    if code < 0x80 { magnitude } else { -magnitude }
}

/// The code nearest to `x`, of two the even one; 448 and above is 448, and NaN is `0x7f`.
pub fn nearest(x: f64) -> u8 {
    if x.is_nan() {
        return 0x7f;
    }
    let wanted = x.abs().min(value(0x7e));
    let distance = |code: &u8| (value(*code) - wanted).abs();
    let code = (0..0x7fu8).min_by(|a, b| {
        let nearer = distance(a).total_cmp(&distance(b));
        nearer.then((a & 1).cmp(&(b & 1)))
    });
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    sign | code.unwrap_or_default()
}

/// The codes of a row and its scale, as `quantize_rows` defines them.
pub fn quantized<T: Value>(row: &[T]) -> (Vec<u8>, f32) {
    let values: Vec<f32> = row.iter().map(|x| x.f64() as f32).collect();
    let largest = values.iter().fold(0.0f32, |top, x| top.max(x.abs()));
    let scale = if largest > 0.0 { largest / 448.0 } else { 1.0 };
    let code = |x: &f32| nearest(f64::from(x / scale));
    (values.iter().map(code).collect(), scale)
}

/// Rows on a device, with room for `rows` times `width` codes.
///
/// # Errors
/// As [`Device::alloc`].
pub fn room<D: Device + ?Sized>(
    device: &D,
    rows: usize,
    width: usize,
) -> Result<E4m3Rows, KernelError> {
    Ok(E4m3Rows {
        codes: device.empty("codes", rows * width)?,
        scales: device.empty("scales", rows)?,
    })
}

/// What `quantize_rows` makes of `x`, `[rows][width]`, and what it must.
///
/// # Errors
/// Those of the operation.
pub fn compare_rows<T: Value, D: Device + ?Sized>(
    device: &D,
    x: &[T],
    width: usize,
) -> Result<(Vec<f64>, Vec<Expected>), KernelError> {
    let there = device.input("x", x)?;
    let out = room(device, x.len() / width, width)?;
    ops::quantize_rows(device, &there, &out)?;
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for (row, scale) in x.chunks_exact(width).map(quantized) {
        codes.extend(row.into_iter().map(E4m3));
        scales.push(scale);
    }
    let (mut got, mut want): Compared = equal(&device.download(&out.codes)?, &codes);
    let (scales_got, scales_want) = equal(&device.download(&out.scales)?, &scales);
    got.extend(scales_got);
    want.extend(scales_want);
    Ok((got, want))
}

/// Quantization at a few widths: exact, or wrong.
pub(super) fn rows<T: Value, D: Device + ?Sized>(
    suite: &mut Suite<'_, D>,
) -> Result<(), KernelError> {
    for (rows, width) in [(1, 8), (3, 576), (4, 4096)] {
        let mut x: Vec<T> = typed(&Rng(width as u64).values(rows * width, 4.0));
        if rows > 1 {
            // A row of zeros, and one whose largest value is far above the others.
            x[width..2 * width].fill(T::of(0.0));
            x[3 * width - 1] = T::of(-1000.0);
        }
        let shape = format!("{} {rows}x{width}", T::NAME);
        suite.one("quantize_rows", shape, |d| compare_rows(d, &x, width))?;
    }
    Ok(())
}

/// A share of the sum of magnitudes that a product of E4M3 may lose in tensor cores of compute
/// capability 9.0. These keep about 14 bits of the largest number that they add (DeepSeek-V3,
/// arXiv:2412.19437, section 3.3.2), so each addend loses up to 2^-13 of it; and the largest is at
/// most the sum of magnitudes. The library does not say after how many terms it moves a sum to
/// f32. Here it is taken to be 128, as in that report: 128 products, and the sum for each 32.
pub const VENDOR_LOSS: f64 = (128.0 + 4.0) / 8192.0;

/// The vendor's product, as tables call it.
pub(super) const BY_VENDOR: &str = "gemm_e4m3 vendor";

/// A product on the host.
pub struct E4m3Case {
    /// Rows, columns and terms.
    pub mnk: [usize; 3],
    a: Vec<u8>,
    w: Vec<u8>,
    a_scales: Vec<f32>,
    w_scales: Vec<f32>,
}

impl E4m3Case {
    /// Random codes of the whole range, and scales that differ from row to row.
    pub fn new(mnk: [usize; 3]) -> Self {
        let [m, n, k] = mnk;
        let mut rng = Rng((m + n * k) as u64);
        let mut codes = |rows: usize| -> Vec<u8> {
            let values = rng.values(rows * k, 448.0);
            values.into_iter().map(|x| Fp8E4m3::from_f32(x).0).collect()
        };
        let (a, w) = (codes(m), codes(n));
        let mut scales = |rows: usize| -> Vec<f32> {
            let spread = rng.values(rows, 0.003);
            spread.into_iter().map(|x| 0.004 + x).collect()
        };
        E4m3Case {
            mnk,
            a,
            w,
            a_scales: scales(m),
            w_scales: scales(n),
        }
    }

    /// The rows of the left matrix from `first` on, with the same weights.
    pub fn tail(&self, first: usize) -> Self {
        let [m, n, k] = self.mnk;
        E4m3Case {
            mnk: [m - first, n, k],
            a: self.a[first * k..].to_vec(),
            w: self.w.clone(),
            a_scales: self.a_scales[first..].to_vec(),
            w_scales: self.w_scales.clone(),
        }
    }

    /// Both matrices and room for the result.
    fn place<O: E4m3Out, D: Device + ?Sized>(
        &self,
        device: &D,
    ) -> Result<(E4m3Rows, E4m3Rows, Buffer<O>), KernelError> {
        let [m, n, _] = self.mnk;
        let rows = |codes: &[u8], scales: &[f32]| -> Result<E4m3Rows, KernelError> {
            Ok(E4m3Rows {
                codes: device.input::<u8>("codes", codes)?.of(),
                scales: device.input("scales", scales)?,
            })
        };
        let a = rows(&self.a, &self.a_scales)?;
        let w = rows(&self.w, &self.w_scales)?;
        Ok((a, w, device.empty("out", m * n)?))
    }

    /// The product on a device.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn run<O: E4m3Out, D: Device + ?Sized>(
        &self,
        device: &D,
        by: GemmBy,
    ) -> Result<Vec<O>, KernelError> {
        let (a, w, out) = self.place(device)?;
        ops::gemm_e4m3(device, by, &a, &w, &out)?;
        device.download(&out)
    }

    /// What the vendor's library says to it.
    fn ask_vendor<O: E4m3Out, D: Device + ?Sized>(
        &self,
        device: &D,
    ) -> Result<VendorGemm, KernelError> {
        let mark = device.mark();
        let (a, w, out) = self.place::<O, D>(device)?;
        let said = ops::vendor_gemm_e4m3(device, &a, &w, &out);
        device.release(mark)?;
        said
    }

    /// What must come out, rounded to `T` unless `wide`; `lost` as in [`scaled_codes`].
    pub fn expected<T: Value>(&self, lost: f64, wide: bool) -> Vec<Expected> {
        let [m, n, k] = self.mnk;
        let both = |codes: &[u8], scales: &[f32]| -> (Vec<f64>, Vec<f64>) {
            let values: Vec<f64> = codes.iter().map(|c| value(*c)).collect();
            let low = |(i, v): (usize, &f64)| {
                f64::from(rounded::<T>((v * f64::from(scales[i / k])) as f32))
            };
            let rows = values.iter().enumerate().map(low).collect();
            (values, rows)
        };
        let (a, a_low) = both(&self.a, &self.a_scales);
        let (w, w_low) = both(&self.w, &self.w_scales);
        let one = |at: usize| {
            let (i, j) = (at / n, at % n);
            let row = ScaledRow {
                codes: &a[i * k..][..k],
                low: &a_low[i * k..][..k],
                scale: f64::from(self.a_scales[i]),
            };
            let column = ScaledRow {
                codes: &w[j * k..][..k],
                low: &w_low[j * k..][..k],
                scale: f64::from(self.w_scales[j]),
            };
            scaled_codes::<T>(row, column, lost, wide)
        };
        (0..m * n).map(one).collect()
    }
}

/// Products, by our kernel and by the vendor's library where it takes them.
pub(super) fn products<D: Device + ?Sized>(
    suite: &mut Suite<'_, D>,
    full: bool,
) -> Result<(), KernelError> {
    let mut shapes: Vec<[usize; 3]> =
        vec![[1, 64, 64], [17, 66, 72], [65, 130, 200], [3, 960, 576]];
    if full {
        shapes.extend([[512, 576, 1536], [200, 1024, 4096]]);
    }
    for mnk in shapes {
        let case = E4m3Case::new(mnk);
        product::<bf16, bf16, D>(suite, &case, |out| f64s(&out))?;
        product::<f16, f16, D>(suite, &case, |out| f64s(&out))?;
        let wide = |out: Vec<f32>| -> Vec<f64> { out.into_iter().map(f64::from).collect() };
        product::<bf16, f32, D>(suite, &case, wide)?;
    }
    Ok(())
}

/// One product to `O`; `T` is what the naive evaluation rounds to.
fn product<T: Value, O: E4m3Out, D: Device + ?Sized>(
    suite: &mut Suite<'_, D>,
    case: &E4m3Case,
    wide: impl Fn(Vec<O>) -> Vec<f64> + Copy,
) -> Result<(), KernelError> {
    let [m, n, k] = case.mnk;
    let shape = format!("{m}x{n}x{k} to {}", O::NAME);
    let out_f32 = O::NAME == "f32";
    suite.one("gemm_e4m3", shape.clone(), |d| {
        let got = wide(case.run::<O, D>(d, GemmBy::Kernel)?);
        Ok((got, case.expected::<T>(0.0, out_f32)))
    })?;
    match case.ask_vendor::<O, D>(suite.device) {
        Ok(VendorGemm::Computed) => suite.one(BY_VENDOR, shape, |d| {
            let got = wide(case.run::<O, D>(d, GemmBy::Vendor)?);
            Ok((got, case.expected::<T>(VENDOR_LOSS, out_f32)))
        }),
        Ok(VendorGemm::Lacks(why)) => {
            suite.not_available(BY_VENDOR, shape, why);
            Ok(())
        }
        Ok(VendorGemm::NoVendor) => Ok(()),
        Err(e) => suite.one(BY_VENDOR, shape, |_| Err(e)),
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::{nearest, quantized, value};

    #[test]
    fn codes_worked_by_hand() {
        for (code, of) in [
            (0x00, 0.0),
            (0x01, 1.0 / 512.0),
            (0x07, 7.0 / 512.0),
            (0x08, 1.0 / 64.0),
            (0x38, 1.0),
            (0x39, 1.125),
            (0x7e, 448.0),
            (0xfe, -448.0),
        ] {
            assert_eq!((value(code), nearest(of)), (of, code));
        }
        assert!(value(0x7f).is_nan() && value(0xff).is_nan());
        // Ties go to the even code; what is too large to the largest; zero has a sign.
        for (x, code) in [
            (1.0625, 0x38),
            (1.1875, 0x3a),
            (1.0 / 1024.0, 0x00),
            (3.0 / 1024.0, 0x02),
            (17.0, 0x58),
            (-19.0, 0xda),
            (1e9, 0x7e),
            (f64::NEG_INFINITY, 0xfe),
            (-0.0, 0x80),
            (f64::NAN, 0x7f),
        ] {
            assert_eq!(nearest(x), code, "{x}");
        }
    }

    #[test]
    fn the_largest_of_a_row_becomes_the_largest_code() {
        let (codes, scale) = quantized(&[0.5, -2.0, 0.0].map(bf16::from_f32));
        // 0.5 is 112 times the scale, which is 7 * 16.
        assert_eq!((codes, scale), (vec![0x6e, 0xfe, 0x00], 2.0 / 448.0));
        let (codes, scale) = quantized(&[bf16::ZERO; 2]);
        assert_eq!((codes, scale), (vec![0, 0], 1.0));
    }
}
