//! Rows of 8-bit floats with one scale each, and their products.

use bytemuck::{Pod, Zeroable};

use super::gemm::{GemmBy, SHARED_BYTES, TILE};
use super::launch;
use crate::device::{Buffer, Device, Product, VendorGemm};
use crate::elem::{E4m3, E4m3Out, Elem};
use crate::error::{KernelError, require};

/// A matrix in E4M3: a value is its code times the scale of its row.
#[derive(Clone, Copy, Debug)]
pub struct E4m3Rows {
    /// Codes, `[rows][width]`.
    pub codes: Buffer<E4m3>,
    /// A factor for each row.
    pub scales: Buffer<f32>,
}

impl E4m3Rows {
    /// Values of a row, for an operation that calls the matrix `what`.
    fn width(&self, op: &'static str, what: &'static str) -> Result<usize, KernelError> {
        let (codes, rows) = (self.codes.len(), self.scales.len());
        let whole = rows > 0 && codes.is_multiple_of(rows);
        require(whole, op, what, codes, format!("{rows} rows"))?;
        let width = codes / rows;
        let good = width > 0 && width.is_multiple_of(8) && width < 1 << 31;
        require(good, op, "terms", width, "a multiple of 8")?;
        Ok(width)
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct QuantizeParams {
    x: u64,
    out: u64,
    scales: u64,
    width: u32,
    pad: u32,
}

/// Rows of `x` to E4M3. The scale of a row is its largest magnitude over 448, or 1 where all of it
/// is zero; a code is the nearest to the value over the scale, ties to even.
///
/// # Errors
/// When shapes disagree or rows are no multiple of 8 values.
pub fn quantize_rows<T: Elem>(
    device: &(impl Device + ?Sized),
    x: &Buffer<T>,
    out: &E4m3Rows,
) -> Result<(), KernelError> {
    let op = "quantize_rows";
    let (rows, wanted) = (out.scales.len(), out.codes.len());
    require(x.len() == wanted, op, "x", x.len(), wanted.to_string())?;
    if rows == 0 {
        return require(wanted == 0, op, "codes", wanted, "0");
    }
    let params = QuantizeParams {
        x: x.address(),
        out: out.codes.address(),
        scales: out.scales.address(),
        width: out.width(op, "codes")? as u32,
        pad: 0,
    };
    let kernel = format!("{op}_{}", T::NAME);
    launch(device, &kernel, [rows as u32, 1, 1], 256, 32, &params)
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct GemmE4m3Params {
    a: u64,
    w: u64,
    a_scales: u64,
    w_scales: u64,
    out: u64,
    m: u32,
    n: u32,
    k: u32,
    pad: u32,
}

/// Rows, columns and terms of a product.
fn sizes<O: E4m3Out>(
    a: &E4m3Rows,
    w: &E4m3Rows,
    out: &Buffer<O>,
) -> Result<[usize; 3], KernelError> {
    let op = "gemm_e4m3";
    let (k, of_w) = (a.width(op, "a")?, w.width(op, "w")?);
    require(of_w == k, op, "terms of w", of_w, k.to_string())?;
    let (m, n) = (a.scales.len(), w.scales.len());
    let good = n.is_multiple_of(2) && n.div_ceil(TILE) <= 65_535;
    require(good, op, "columns", n, "even, below 2^22")?;
    let wanted = m * n;
    require(
        out.len() == wanted,
        op,
        "out",
        out.len(),
        wanted.to_string(),
    )?;
    Ok([m, n, k])
}

/// The product of [`gemm_e4m3`] by the vendor's library, if that has it.
///
/// # Errors
/// When shapes disagree, or the library fails or refuses what it must have.
pub fn vendor_gemm_e4m3<O: E4m3Out>(
    device: &(impl Device + ?Sized),
    a: &E4m3Rows,
    w: &E4m3Rows,
    out: &Buffer<O>,
) -> Result<VendorGemm, KernelError> {
    device.vendor_gemm(&Product {
        a: a.codes.address(),
        w: w.codes.address(),
        out: out.address(),
        mnk: sizes(a, w, out)?,
        elem: "e4m3",
        out_elem: O::NAME,
        scales: Some([a.scales.address(), w.scales.address()]),
    })
}

/// `out = a w^T` of the values that codes and scales stand for: `a` has `m` rows, `w` has `n`, and
/// `out` is `[m][n]`. By our kernel the bits of a row do not depend on the other rows.
///
/// # Errors
/// When shapes disagree, rows are no multiple of 8 values, or `n` is odd.
pub fn gemm_e4m3<O: E4m3Out>(
    device: &(impl Device + ?Sized),
    by: GemmBy,
    a: &E4m3Rows,
    w: &E4m3Rows,
    out: &Buffer<O>,
) -> Result<(), KernelError> {
    if a.scales.is_empty() && a.codes.is_empty() && out.is_empty() {
        return Ok(());
    }
    let [m, n, k] = sizes(a, w, out)?;
    if by == GemmBy::Vendor && vendor_gemm_e4m3(device, a, w, out)? == VendorGemm::Computed {
        return Ok(());
    }
    let params = GemmE4m3Params {
        a: a.codes.address(),
        w: w.codes.address(),
        a_scales: a.scales.address(),
        w_scales: w.scales.address(),
        out: out.address(),
        m: m as u32,
        n: n as u32,
        k: k as u32,
        pad: 0,
    };
    let grid = [m.div_ceil(TILE) as u32, n.div_ceil(TILE) as u32, 1];
    let kernel = format!("gemm_e4m3_{}", O::NAME);
    launch(device, &kernel, grid, 128, SHARED_BYTES, &params)
}
