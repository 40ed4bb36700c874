//! The delta in f32, for the packed forward pass.
//!
//! Both products use the exact kernel in every mode: each element is one chain of multiply-adds
//! over its own row, so a sequence's bits do not depend on its companions or its chunks. The
//! adapter's weights stay f32 in the fast mode too; its products are a few percent of the work.

use std::ops::Range;

use pb_kernels_cpu::{Isa, PackedF32, Pool, gemm_exact};

use super::{AdapterSet, LowRank, Projection};
use crate::config::LlamaConfig;
use crate::forward::SeqInput;

/// One delta, packed.
struct PackedDelta {
    a: PackedF32,
    b: PackedF32,
    rank: usize,
    outputs: usize,
    scale: f32,
}

impl PackedDelta {
    fn new(delta: &LowRank, (outputs, inputs): (usize, usize)) -> PackedDelta {
        PackedDelta {
            a: PackedF32::pack_parts(&[&delta.a], inputs),
            b: PackedF32::pack_parts(&[&delta.b], delta.rank),
            rank: delta.rank,
            outputs,
            scale: delta.scale as f32,
        }
    }
}

/// Adapters ready to compute.
pub(crate) struct PackedAdapters {
    /// `[adapter][layer][projection]`.
    adapters: Vec<Vec<[Option<PackedDelta>; 7]>>,
}

/// Intermediate values, kept between calls.
#[derive(Default)]
pub(crate) struct LoraScratch {
    inner: Vec<f32>,
    delta: Vec<f32>,
}

/// A projection's output within rows that may hold several.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Target {
    /// Which projection.
    pub(crate) projection: Projection,
    /// Its first column.
    pub(crate) column: usize,
}

/// Which projections of which layer a product computed.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    /// The layer.
    pub(crate) layer: usize,
    /// The projections, and where each is in a row of the output.
    pub(crate) targets: &'a [Target],
}

/// Rows of a batch with one adapter.
#[derive(Debug, PartialEq)]
struct Run {
    adapter: usize,
    rows: Range<usize>,
}

/// Adjacent rows with the same adapter; rows without one are left out.
fn runs(batch: &[SeqInput<'_>]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut row = 0;
    for seq in batch {
        let rows = row..row + seq.tokens.len();
        row = rows.end;
        let Some(adapter) = seq.adapter else { continue };
        match runs.last_mut() {
            Some(last) if last.adapter == adapter && last.rows.end == rows.start => {
                last.rows.end = rows.end;
            }
            _ => runs.push(Run { adapter, rows }),
        }
    }
    runs
}

impl PackedAdapters {
    /// Packs every adapter of `set`, which fit `config`.
    pub(crate) fn new(set: &AdapterSet, config: &LlamaConfig) -> PackedAdapters {
        let pack = |layer: &super::LayerDeltas| {
            Projection::ALL.map(|p| {
                let delta = layer[p as usize].as_ref()?;
                Some(PackedDelta::new(delta, p.shape(config)))
            })
        };
        let adapters = set.iter().map(|a| a.layers.iter().map(pack).collect());
        PackedAdapters {
            adapters: adapters.collect(),
        }
    }

    /// Adds the changes of the projections at `place` to `out`. `input` holds the rows that the
    /// product took, `out` those that it gave, both dense.
    ///
    /// # Panics
    /// When a sequence names an adapter that does not exist: the engine core resolves names.
    pub(crate) fn add(
        &self,
        (isa, pool): (Isa, &Pool),
        batch: &[SeqInput<'_>],
        place: Place<'_>,
        input: &[f32],
        out: &mut [f32],
        scratch: &mut LoraScratch,
    ) {
        let total: usize = batch.iter().map(|s| s.tokens.len()).sum();
        let (width, stride) = (input.len() / total, out.len() / total);
        for run in runs(batch) {
            let rows = run.rows.len();
            let x = &input[run.rows.start * width..run.rows.end * width];
            let y = &mut out[run.rows.start * stride..run.rows.end * stride];
            for target in place.targets {
                let layer = &self.adapters[run.adapter][place.layer];
                let Some(delta) = &layer[target.projection as usize] else {
                    continue;
                };
                scratch.inner.resize(rows * delta.rank, 0.0);
                scratch.delta.resize(rows * delta.outputs, 0.0);
                gemm_exact(isa, pool, x, rows, &delta.a, &mut scratch.inner);
                scratch.inner.iter_mut().for_each(|v| *v *= delta.scale);
                let (inner, deltas) = (&scratch.inner, &mut scratch.delta);
                gemm_exact(isa, pool, inner, rows, &delta.b, deltas);
                let deltas = deltas.chunks_exact(delta.outputs);
                for (row, add) in y.chunks_exact_mut(stride).zip(deltas) {
                    let out = &mut row[target.column..][..delta.outputs];
                    out.iter_mut().zip(add).for_each(|(o, d)| *o += d);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pb_contract::BlockId;

    use super::*;
    use crate::forward::LogitRows;

    #[test]
    fn adjacent_rows_of_one_adapter_are_one_run() {
        let tokens = [0u32; 3];
        let table = [BlockId(0)];
        let seq = |n: usize, adapter| SeqInput {
            tokens: &tokens[..n],
            start: 0,
            block_table: &table,
            rows: LogitRows::None,
            is_prefill: true,
            adapter,
        };
        let batch = [
            seq(2, Some(1)),
            seq(1, Some(1)),
            seq(3, None),
            seq(1, Some(1)),
            seq(2, Some(0)),
        ];
        let run = |adapter, rows| Run { adapter, rows };
        let want = [run(1, 0..3), run(1, 6..7), run(0, 7..9)];
        assert_eq!(runs(&batch), want);
    }
}
