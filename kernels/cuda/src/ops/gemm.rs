//! Matrix products, and the rows to put into them.

use bytemuck::{Pod, Zeroable};

use super::launch;
use crate::device::{Buffer, Device, DeviceExt, Product, VendorGemm};
use crate::elem::{Elem, GemmOut};
use crate::error::{KernelError, require};

/// Rows and columns of a tile.
pub(super) const TILE: usize = 64;

/// Two buffers of two tiles of 16-bit elements.
pub(super) const SHARED_BYTES: u32 = 4 * (TILE * TILE) as u32 * 2;

/// Who computes a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GemmBy {
    /// Our kernel: the bits of a row do not depend on the other rows.
    Kernel,
    /// The vendor's library where the device has one, else our kernel.
    Vendor,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct GemmParams {
    a: u64,
    w: u64,
    bias: u64,
    out: u64,
    m: u32,
    n: u32,
    k: u32,
    pad: u32,
}

/// `out = a w^T + bias`: `a` is `[m][k]`, `w` is `[n][k]`, `out` is `[m][n]`. A product with a
/// bias is always the kernel's.
///
/// # Errors
/// When shapes disagree, `k` is no multiple of 8, or `n` is odd.
pub fn gemm<T: Elem, O: GemmOut<T>>(
    device: &(impl Device + ?Sized),
    by: GemmBy,
    (a, m): (&Buffer<T>, usize),
    w: &Buffer<T>,
    bias: Option<&Buffer<T>>,
    out: &Buffer<O>,
) -> Result<(), KernelError> {
    let op = "gemm";
    if m == 0 {
        return require(out.is_empty(), op, "out", out.len(), "0");
    }
    let (k, n) = (a.len() / m, out.len() / m);
    let whole = (a.len(), out.len()) == (m * k, m * n);
    require(
        whole,
        op,
        "a and out",
        (a.len(), out.len()),
        format!("{m} rows"),
    )?;
    let good = k > 0 && k.is_multiple_of(8) && k < 1 << 31;
    require(good, op, "terms", k, "a multiple of 8")?;
    let good = n > 0 && n.is_multiple_of(2) && n.div_ceil(TILE) <= 65_535;
    require(good, op, "columns", n, "even, below 2^22")?;
    require(w.len() == n * k, op, "w", w.len(), (n * k).to_string())?;
    if let Some(bias) = bias {
        require(bias.len() == n, op, "bias", bias.len(), n.to_string())?;
    }
    let out_elem = if O::SUFFIX == "_f32" { "f32" } else { T::NAME };
    if by == GemmBy::Vendor && bias.is_none() {
        let product = Product {
            a: a.address(),
            w: w.address(),
            out: out.address(),
            mnk: [m, n, k],
            elem: T::NAME,
            out_elem,
            scales: None,
        };
        if device.vendor_gemm(&product)? == VendorGemm::Computed {
            return Ok(());
        }
    }
    let params = GemmParams {
        a: a.address(),
        w: w.address(),
        bias: bias.map_or(0, Buffer::address),
        out: out.address(),
        m: m as u32,
        n: n as u32,
        k: k as u32,
        pad: 0,
    };
    let grid = [m.div_ceil(TILE) as u32, n.div_ceil(TILE) as u32, 1];
    let kernel = format!("gemm_{}{}", T::NAME, O::SUFFIX);
    launch(device, &kernel, grid, 128, SHARED_BYTES, &params)
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct GatherRowsParams {
    from: u64,
    rows: u64,
    out: u64,
    row_bytes: u32,
    pad: u32,
}

/// `out[i] = from[rows[i]]` for rows of `width` values.
///
/// # Errors
/// When shapes disagree, a row is no multiple of 16 bytes, or does not exist.
pub fn gather_rows<T: Pod>(
    device: &(impl Device + ?Sized),
    from: &Buffer<T>,
    rows: &[u32],
    width: usize,
    out: &Buffer<T>,
) -> Result<(), KernelError> {
    let (op, row_bytes) = ("gather_rows", width * size_of::<T>());
    let good = row_bytes > 0 && row_bytes.is_multiple_of(16) && row_bytes < 1 << 32;
    require(good, op, "bytes of a row", row_bytes, "a multiple of 16")?;
    let whole = from.len().is_multiple_of(width);
    require(whole, op, "from", from.len(), format!("rows of {width}"))?;
    let wanted = rows.len() * width;
    require(
        out.len() == wanted,
        op,
        "out",
        out.len(),
        wanted.to_string(),
    )?;
    let known = from.len() / width;
    if let Some(row) = rows.iter().find(|r| **r as usize >= known) {
        require(false, op, "row", row, format!("below {known}"))?;
    }
    let params = GatherRowsParams {
        from: from.address(),
        rows: device.input("rows", rows)?.address(),
        out: out.address(),
        row_bytes: row_bytes as u32,
        pad: 0,
    };
    launch(device, op, [rows.len() as u32, 1, 1], 128, 0, &params)
}
