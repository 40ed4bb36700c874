//! Judging a quantised cache: what it stores, and what is computed from that.
//!
//! A number that lies almost midway between two codes may be rounded up by one arithmetic and
//! down by another: a relative difference of 1e-7 becomes one of 1e-1 for fp8, and later rows
//! feel it. So two decoders with quantised caches cannot be held to the noise of f32 by comparing
//! their logits, whatever reference is used. Here the claim is split in two that can be:
//!
//! - every stored number is a nearest one, up to noise, to what the f64 pass computes at that
//!   place ([`StoredKv::worst_excess`]);
//! - the logits, against an f64 pass that attends to the *stored* numbers, err as an f32 pass
//!   without quantisation does (compare the rows that go to the sink).
//!
//! The f64 pass takes the stored numbers in every layer, so the second claim covers all
//! arithmetic but the rounding, and the first covers that.

use std::sync::Arc;

use pb_contract::{BlockId, KvDtype, Numerics, TokenId, VirtualClock};
use pb_kernels_cpu::Pool;

use super::reference::ReferenceDecoder;
use super::{Decoder, ForwardError, ForwardOptions, LogitRows, LogitSink, SeqInput};
use crate::lora::AdapterSet;
use crate::weights::Weights;

/// Relative difference, to the largest value of the head, from which two numbers count as
/// different codes: far above the noise of f32, far below a step of fp8 or int8.
const OTHER_CODE: f64 = 1e-4;

/// How stored keys and values compare with those of the f64 pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoredKv {
    /// Numbers compared.
    pub values: usize,
    /// Numbers whose code is another than the f64 pass would store. Ties decide these; few are
    /// expected, and none is an error by itself.
    pub other_codes: usize,
    /// How much farther a stored number is from the f64 value than the nearest number of the
    /// type, as a share of the largest value of its token and head; the worst of all. A correct
    /// cache is at the noise of its arithmetic here; a code that is one off is at half a step or
    /// more. NaN counts as infinitely far.
    pub worst_excess: f64,
    /// Layer of the worst.
    pub worst_layer: usize,
}

impl StoredKv {
    /// Compares one head: what is `stored`, the f64 values, and what the f64 pass would have
    /// `kept` of them.
    pub(super) fn compare(&mut self, layer: usize, stored: &[f64], own: &[f64], kept: &[f64]) {
        // A head of zeros must be stored as such; any number is infinitely far then.
        let largest = own.iter().fold(0.0f64, |m, x| m.max(x.abs()));
        for ((stored, own), kept) in stored.iter().zip(own).zip(kept) {
            self.values += 1;
            if stored == kept {
                continue;
            }
            self.other_codes += usize::from((stored - kept).abs() > OTHER_CODE * largest);
            let excess = ((stored - own).abs() - (kept - own).abs()) / largest;
            let excess = if excess.is_nan() {
                f64::INFINITY
            } else {
                excess
            };
            if excess > self.worst_excess {
                (self.worst_excess, self.worst_layer) = (excess, layer);
            }
        }
    }
}

/// Judges the cache that a decoder built with `options` left behind after computing `tokens` from
/// position 0: `images` are those of the sequence's blocks, in the order of its block table. The
/// logits of every position, from an f64 pass on the stored numbers, go to `sink`.
///
/// For `fast`, give weights rounded as it rounds them (see
/// [`round_matrices_to_bf16`](super::round_matrices_to_bf16)).
///
/// # Errors
/// [`ForwardError`] when there are no tokens, an image does not fit `options`, or the threads
/// cannot be had.
///
/// # Panics
/// When the images do not cover the tokens, or a token is not below the vocabulary size.
pub fn judge_stored_kv(
    weights: &Arc<Weights>,
    options: &ForwardOptions,
    tokens: &[TokenId],
    images: &[Vec<u8>],
    sink: &mut dyn LogitSink,
) -> Result<StoredKv, ForwardError> {
    if tokens.is_empty() {
        return Err(ForwardError::EmptySample);
    }
    let reference = ForwardOptions {
        numerics: Numerics::F64,
        kv_dtype: KvDtype::F64,
        kv_rounding: options.kv_dtype,
        num_blocks: images.len(),
        ..options.clone()
    };
    let pool = Pool::new(options.threads).map_err(|e| ForwardError::Threads {
        threads: options.threads,
        problem: e.to_string(),
    })?;
    let adapters = Arc::new(AdapterSet::default());
    let mut decoder = ReferenceDecoder::new(Arc::clone(weights), adapters, &reference, pool);
    let blocks: Vec<BlockId> = (0..images.len() as u32).map(BlockId).collect();
    for (block, image) in blocks.iter().zip(images) {
        decoder.hold(options.kv_dtype, *block, image)?;
    }
    let run = SeqInput {
        tokens,
        start: 0,
        block_table: &blocks,
        rows: LogitRows::All,
        is_prefill: true,
        adapter: None,
    };
    decoder.forward(&[run], &VirtualClock::new(), sink);
    Ok(decoder.judged())
}
