//! Choosing the next token of every row.

use bytemuck::{Pod, Zeroable};

use super::launch;
use crate::device::{Buffer, Device, DeviceExt};
use crate::error::{KernelError, require};

/// Largest vocabulary: weights of 2^44 at most then sum to less than 2^63.
pub const SAMPLE_VOCAB_MAX: usize = 1 << 18;

/// How to choose the token of one row.
#[derive(Clone, Copy, Debug)]
pub struct SampleRow<'a> {
    /// 0 is greedy: the largest logit, ties to the lower id.
    pub temperature: f64,
    /// Draw among the most likely `top_k`; 0 is off.
    pub top_k: u32,
    /// Draw among the fewest whose probability reaches this; 1 is off.
    pub top_p: f64,
    /// Never chosen while anything else can be.
    pub forbidden: &'a [u32],
    /// Key of the ChaCha8 stream.
    pub key: [u8; 32],
    /// Which of the stream's 64-bit words to use.
    pub draw: u64,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct RowParams {
    temperature: f64,
    top_p: f64,
    draw: u64,
    key: [u32; 8],
    top_k: u32,
    forbidden_at: u32,
    forbidden_count: u32,
    pad: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct SampleParams {
    logits: u64,
    rows: u64,
    forbidden: u64,
    out: u64,
    vocab: u32,
    pad: u32,
}

/// Chooses a token for every row of `logits`, `[rows][vocab]`.
///
/// # Errors
/// When shapes disagree, the vocabulary is larger than 2^18, or a setting is out of range.
pub fn sample(
    device: &(impl Device + ?Sized),
    logits: &Buffer<f32>,
    rows: &[SampleRow<'_>],
    out: &Buffer<u32>,
) -> Result<(), KernelError> {
    let op = "sample";
    require(
        out.len() == rows.len(),
        op,
        "out",
        out.len(),
        rows.len().to_string(),
    )?;
    if rows.is_empty() {
        return Ok(());
    }
    let vocab = logits.len() / rows.len();
    let whole = vocab * rows.len() == logits.len();
    require(
        whole,
        op,
        "logits",
        logits.len(),
        format!("{} rows", rows.len()),
    )?;
    let fits = vocab > 0 && vocab <= SAMPLE_VOCAB_MAX;
    require(
        fits,
        op,
        "vocabulary",
        vocab,
        format!("1 to {SAMPLE_VOCAB_MAX}"),
    )?;
    let (specs, forbidden) = specs(rows)?;
    let params = SampleParams {
        logits: logits.address(),
        rows: device.input("rows", &specs)?.address(),
        forbidden: device.input("forbidden", &forbidden)?.address(),
        out: out.address(),
        vocab: vocab as u32,
        pad: 0,
    };
    launch(
        device,
        "sample_rows",
        [rows.len() as u32, 1, 1],
        256,
        256,
        &params,
    )
}

/// The settings of rows as the kernel has them, and all forbidden tokens.
fn specs(rows: &[SampleRow<'_>]) -> Result<(Vec<RowParams>, Vec<u32>), KernelError> {
    let op = "sample";
    // An empty list still needs an address.
    let mut forbidden = vec![u32::MAX];
    let mut specs = Vec::with_capacity(rows.len());
    for row in rows {
        let t = row.temperature;
        require(t >= 0.0 && t.is_finite(), op, "temperature", t, "0 or more")?;
        require(row.top_p >= 0.0, op, "top_p", row.top_p, "0 or more")?;
        let word = |i: usize| [0, 1, 2, 3].map(|b| row.key[4 * i + b]);
        specs.push(RowParams {
            temperature: t,
            top_p: row.top_p,
            draw: row.draw,
            key: std::array::from_fn(|i| u32::from_le_bytes(word(i))),
            top_k: row.top_k,
            forbidden_at: forbidden.len() as u32,
            forbidden_count: row.forbidden.len() as u32,
            pad: 0,
        });
        forbidden.extend(row.forbidden);
    }
    Ok((specs, forbidden))
}
