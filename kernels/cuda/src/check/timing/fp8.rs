//! Times of rows of 8-bit floats and of their products.

use half::bf16;

use super::{FFN, HIDDEN, SETS, Timer};
use crate::check::fp8::room;
use crate::check::values::Rng;
use crate::device::{Device, DeviceExt};
use crate::elem::E4m3;
use crate::error::KernelError;
use crate::ops::{self, E4m3Rows, GemmBy};

impl<D: Device + ?Sized> Timer<'_, D> {
    /// Random codes, none of them NaN, and scales of 1.
    fn codes(&self, rows: usize, width: usize) -> Result<E4m3Rows, KernelError> {
        let (mut rng, len) = (Rng(width as u64), rows * width);
        let mut codes: Vec<E4m3> = Vec::with_capacity(len.next_multiple_of(8));
        while codes.len() < len {
            // 0x78 and above, NaN among them, lose a bit of their exponent.
            let eight = rng.next_u64().to_le_bytes();
            codes.extend(eight.map(|c| E4m3(if c & 0x78 == 0x78 { c ^ 0x40 } else { c })));
        }
        Ok(E4m3Rows {
            codes: self.device.upload("codes", &codes[..len])?,
            scales: self.device.upload("scales", &vec![1.0; rows])?,
        })
    }

    /// Rows of the model's width to E4M3, and the model's products.
    pub(super) fn fp8(&mut self, m: usize) -> Result<(), KernelError> {
        let (d, mark) = (self.device, self.device.mark());
        let (x, elems) = (self.random("x", SETS * m * HIDDEN)?, m * HIDDEN);
        let to = room(d, m, HIDDEN)?;
        let work = [2 * elems, elems + 4 * m, 3 * elems];
        self.report("quantize_rows", format!("{m}x{HIDDEN}"), work, |i| {
            ops::quantize_rows(d, &x.slice(i * elems, elems), &to)
        })?;
        for (n, k) in [
            (6144, HIDDEN),
            (HIDDEN, HIDDEN),
            (2 * FFN, HIDDEN),
            (HIDDEN, FFN),
        ] {
            let inner = d.mark();
            let (a, w) = (self.codes(m, k)?, self.codes(n, k)?);
            let out = d.zeroed::<bf16>("out", m * n)?;
            let read = m * k + n * k + 4 * (m + n);
            let work = [read, 2 * m * n, 2 * m * n * k];
            let has_vendor = ops::vendor_gemm_e4m3(d, &a, &w, &out)?;
            for (kernel, by) in [
                ("gemm_e4m3", GemmBy::Kernel),
                ("gemm_e4m3 vendor", GemmBy::Vendor),
            ] {
                if by == GemmBy::Vendor && !has_vendor {
                    continue;
                }
                self.report(kernel, format!("{m}x{n}x{k}"), work, |_| {
                    ops::gemm_e4m3(d, by, &a, &w, &out)
                })?;
            }
            d.release(inner)?;
        }
        d.release(mark)
    }
}
