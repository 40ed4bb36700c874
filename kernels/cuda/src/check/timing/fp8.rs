//! Times of rows of 8-bit floats and of their products.

use half::bf16;

use super::{FFN, HIDDEN, SETS, Timer};
use crate::check::found::{Found, NotAvailable};
use crate::check::fp8::{BY_VENDOR, room};
use crate::check::suite::Judged;
use crate::check::values::Rng;
use crate::device::{Device, DeviceExt, VendorGemm};
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
            let shape = format!("{m}x{n}x{k}");
            self.report("gemm_e4m3", shape.clone(), work, |_| {
                ops::gemm_e4m3(d, GemmBy::Kernel, &a, &w, &out)
            })?;
            let said = ops::vendor_gemm_e4m3(d, &a, &w, &out);
            if self.computed(said, &shape)? {
                self.report(BY_VENDOR, shape, work, |_| {
                    ops::gemm_e4m3(d, GemmBy::Vendor, &a, &w, &out)
                })?;
            }
            d.release(inner)?;
        }
        d.release(mark)
    }

    /// Whether the vendor's library computed a product. Why not is reported; a refused call as a
    /// wrong kernel, so that the times of the others are not lost with it.
    fn computed(
        &mut self,
        said: Result<VendorGemm, KernelError>,
        shape: &str,
    ) -> Result<bool, KernelError> {
        let (kernel, shape) = (BY_VENDOR, shape.to_owned());
        match said {
            Ok(VendorGemm::Computed) => return Ok(true),
            Ok(VendorGemm::NoVendor) => {}
            Ok(VendorGemm::Lacks(why)) => {
                (self.each)(Found::NotAvailable(NotAvailable { kernel, shape, why }));
            }
            Err(e @ KernelError::Vendor { .. }) => (self.each)(Found::Judged(Judged {
                kernel: kernel.to_owned(),
                shape,
                outputs: 0,
                outcome: Err(e.to_string()),
            })),
            Err(e) => return Err(e),
        }
        Ok(false)
    }
}
