//! Operations on rows: embedding, norms, the gate of the feed-forward part.

use bytemuck::{Pod, Zeroable};

use super::launch;
use crate::device::{Buffer, Device};
use crate::elem::Elem;
use crate::error::{KernelError, require};

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct EmbedParams {
    table: u64,
    tokens: u64,
    out: u64,
    hidden: u32,
    pad: u32,
}

/// `out[i] = table[tokens[i]]`, widened: `table` is `[vocab][hidden]`, `out` is
/// `[tokens][hidden]`. `host_tokens` are the tokens in `tokens`, to be checked.
///
/// # Errors
/// When shapes disagree, `hidden` is no multiple of 8, or a token is not in the table.
pub fn embed<T: Elem>(
    device: &(impl Device + ?Sized),
    table: &Buffer<T>,
    tokens: &Buffer<u32>,
    host_tokens: &[u32],
    hidden: usize,
    out: &Buffer<f32>,
) -> Result<(), KernelError> {
    let op = "embed";
    require(
        hidden > 0 && hidden.is_multiple_of(8),
        op,
        "hidden",
        hidden,
        "a multiple of 8",
    )?;
    let whole = table.len().is_multiple_of(hidden);
    require(whole, op, "table", table.len(), format!("rows of {hidden}"))?;
    let rows = tokens.len();
    require(
        host_tokens.len() == rows,
        op,
        "host tokens",
        host_tokens.len(),
        rows.to_string(),
    )?;
    require(
        out.len() == rows * hidden,
        op,
        "out",
        out.len(),
        (rows * hidden).to_string(),
    )?;
    check_tokens(host_tokens, table.len() / hidden)?;
    let params = EmbedParams {
        table: table.address(),
        tokens: tokens.address(),
        out: out.address(),
        hidden: hidden as u32,
        pad: 0,
    };
    let kernel = format!("embed_{}", T::NAME);
    launch(device, &kernel, [rows as u32, 1, 1], 128, 0, &params)
}

/// Checks that every token is below `vocab`, as [`embed`] does.
///
/// # Errors
/// When one is not.
pub fn check_tokens(tokens: &[u32], vocab: usize) -> Result<(), KernelError> {
    match tokens.iter().find(|t| **t as usize >= vocab) {
        Some(token) => require(false, "embed", "token", token, format!("below {vocab}")),
        None => Ok(()),
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct RmsNormParams {
    residual: u64,
    delta: u64,
    weight: u64,
    out: u64,
    hidden: u32,
    eps: f32,
}

/// `out = x * weight / sqrt(mean(x^2) + eps)` for rows of `weight.len()` values.
///
/// # Errors
/// When shapes disagree or the rows are no multiple of 4.
pub fn rmsnorm<T: Elem>(
    device: &(impl Device + ?Sized),
    x: &Buffer<f32>,
    weight: &Buffer<T>,
    eps: f32,
    out: &Buffer<T>,
) -> Result<(), KernelError> {
    norm(device, "rmsnorm", x, None, weight, eps, out)
}

/// `residual += delta`, then the norm of `residual`.
///
/// # Errors
/// As [`rmsnorm`].
pub fn add_rmsnorm<T: Elem>(
    device: &(impl Device + ?Sized),
    residual: &Buffer<f32>,
    delta: &Buffer<T>,
    weight: &Buffer<T>,
    eps: f32,
    out: &Buffer<T>,
) -> Result<(), KernelError> {
    norm(
        device,
        "add_rmsnorm",
        residual,
        Some(delta),
        weight,
        eps,
        out,
    )
}

fn norm<T: Elem>(
    device: &(impl Device + ?Sized),
    op: &'static str,
    residual: &Buffer<f32>,
    delta: Option<&Buffer<T>>,
    weight: &Buffer<T>,
    eps: f32,
    out: &Buffer<T>,
) -> Result<(), KernelError> {
    let (hidden, len) = (weight.len(), residual.len());
    require(
        hidden > 0 && hidden.is_multiple_of(4),
        op,
        "weight",
        hidden,
        "a multiple of 4",
    )?;
    require(
        len.is_multiple_of(hidden),
        op,
        "rows",
        len,
        format!("rows of {hidden}"),
    )?;
    require(out.len() == len, op, "out", out.len(), len.to_string())?;
    if let Some(delta) = delta {
        require(
            delta.len() == len,
            op,
            "delta",
            delta.len(),
            len.to_string(),
        )?;
    }
    require(eps >= 0.0, op, "eps", eps, "0 or more")?;
    let params = RmsNormParams {
        residual: residual.address(),
        delta: delta.map_or(0, Buffer::address),
        weight: weight.address(),
        out: out.address(),
        hidden: hidden as u32,
        eps,
    };
    let kernel = format!("{op}_{}", T::NAME);
    launch(
        device,
        &kernel,
        [(len / hidden) as u32, 1, 1],
        256,
        32,
        &params,
    )
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct SiluMulParams {
    gate_up: u64,
    out: u64,
    ffn: u32,
    pad: u32,
}

/// `out = silu(gate) * up` for rows `[gate | up]` of `2 * ffn` values.
///
/// # Errors
/// When shapes disagree or `ffn` is no multiple of 8.
pub fn silu_mul<T: Elem>(
    device: &(impl Device + ?Sized),
    gate_up: &Buffer<T>,
    ffn: usize,
    out: &Buffer<T>,
) -> Result<(), KernelError> {
    let op = "silu_mul";
    require(
        ffn > 0 && ffn.is_multiple_of(8),
        op,
        "ffn",
        ffn,
        "a multiple of 8",
    )?;
    require(
        out.len().is_multiple_of(ffn),
        op,
        "out",
        out.len(),
        format!("rows of {ffn}"),
    )?;
    let wanted = 2 * out.len();
    require(
        gate_up.len() == wanted,
        op,
        "gate_up",
        gate_up.len(),
        wanted.to_string(),
    )?;
    let rows = out.len() / ffn;
    require(rows <= 65_535, op, "rows", rows, "at most 65535")?;
    let params = SiluMulParams {
        gate_up: gate_up.address(),
        out: out.address(),
        ffn: ffn as u32,
        pad: 0,
    };
    let grid = [ffn.div_ceil(1024) as u32, rows as u32, 1];
    launch(
        device,
        &format!("silu_mul_{}", T::NAME),
        grid,
        128,
        0,
        &params,
    )
}
