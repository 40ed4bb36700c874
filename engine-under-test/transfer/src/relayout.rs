//! Blocks of one shape made from blocks of another.
//!
//! A token `t` lies in block `t / B`, slot `t % B` on either side; heads keep their number in the
//! model. So an element moves by index alone, and only its type may change. The sink's blocks are
//! written whole for the heads that move: slots without a token become zero, as in a new pool.

use pb_contract::KvDtype;

use crate::convert;
use crate::geometry::{Segment, Side};
use crate::handshake::Agreement;

/// Why a block could not be re-laid out.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RelayoutError {
    /// The sink's element type cannot hold a value.
    #[error(
        "{side} {value} of token {token}, layer {layer}, KV head {head} is out of the range of \
         the sink's {dtype:?} at scale {scale}"
    )]
    OutOfRange {
        /// `key` or `value`.
        side: &'static str,
        /// The value.
        value: f32,
        /// Position in the transferred prefix.
        token: usize,
        /// Layer.
        layer: usize,
        /// KV head of the model.
        head: usize,
        /// The sink's type.
        dtype: KvDtype,
        /// The sink's scale.
        scale: f32,
    },
    /// The scale in a segment is not the one that was agreed on.
    #[error("a segment of layer {layer} has the {side} scale {found}, agreed was {expected}")]
    Scale {
        /// `key` or `value`.
        side: &'static str,
        /// Layer.
        layer: usize,
        /// In the segment.
        found: f32,
        /// In the handshake.
        expected: f32,
    },
}

/// Turns the cells of one leg into its part of the sink's segments.
#[derive(Clone, Debug)]
pub struct Relayout {
    from: Segment,
    to: Segment,
    /// First moving head: its number in the model, and its index in a sink segment.
    first_head: usize,
    first_sink_head: usize,
    source_scales: Vec<[f32; 2]>,
    sink_scales: Vec<[f32; 2]>,
}

/// One side of one layer, as it is worked on.
struct Work<'a> {
    layer: usize,
    side: Side,
    scales: [f32; 2],
    copies: bool,
    tokens: usize,
    cells: &'a dyn Fn(usize) -> &'a [u8],
}

impl Relayout {
    /// For what a handshake agreed on.
    pub fn new(agreement: &Agreement) -> Self {
        Relayout {
            from: agreement.cell(),
            to: agreement.sink.segment(agreement.sink_heads.len()),
            first_head: agreement.heads.start,
            first_sink_head: agreement.heads.start - agreement.sink_heads.start,
            source_scales: agreement.source_scales.clone(),
            sink_scales: agreement.sink_scales.clone(),
        }
    }

    /// Writes this leg's heads into `out`, layer `layer` of block `block` (counted from the first
    /// token) of the sink; `cells` gives the same layer of the source's blocks, counted likewise.
    /// Heads of other legs stay as they are.
    ///
    /// # Errors
    /// [`RelayoutError`]; `out` is then unusable.
    ///
    /// # Panics
    /// When `out` or a cell is not of the agreed size.
    pub fn fill<'a>(
        &self,
        layer: usize,
        block: usize,
        tokens: usize,
        cells: &'a dyn Fn(usize) -> &'a [u8],
        out: &mut [u8],
    ) -> Result<(), RelayoutError> {
        assert_eq!(out.len(), self.to.bytes(), "a segment of the sink");
        let (theirs, ours) = (self.source_scales[layer], self.sink_scales[layer]);
        for (i, side) in Side::ALL.into_iter().enumerate() {
            let scales = [theirs[i], ours[i]];
            let work = Work {
                layer,
                side,
                scales,
                copies: self.from.dtype == self.to.dtype && scales[0] == scales[1],
                tokens,
                cells,
            };
            self.put_layer_scale(&work, out);
            for slot in 0..self.to.block_size {
                self.put_slot(&work, block * self.to.block_size + slot, slot, out)?;
            }
        }
        Ok(())
    }

    /// The scale that the sink's codes of a layer share.
    fn put_layer_scale(&self, work: &Work<'_>, out: &mut [u8]) {
        if matches!(self.to.dtype, KvDtype::Fp8E4m3 | KvDtype::Fp8E5m2)
            && let Some(at) = self.to.scale_at(work.side, 0, 0)
        {
            out[at..at + 4].copy_from_slice(&work.scales[1].to_le_bytes());
        }
    }

    /// One token's heads.
    fn put_slot(
        &self,
        work: &Work<'_>,
        token: usize,
        slot: usize,
        out: &mut [u8],
    ) -> Result<(), RelayoutError> {
        let cell = if token < work.tokens {
            Some((work.cells)(token / self.from.block_size))
        } else {
            None
        };
        let from_slot = token % self.from.block_size;
        if let Some(cell) = cell {
            assert_eq!(cell.len(), self.from.bytes(), "a cell of the source");
            self.check_scale(work, cell)?;
        }
        for head in 0..self.from.heads {
            let to_head = self.first_sink_head + head;
            self.put_token_scale(work, cell, [head, from_slot], [to_head, slot], out);
            for d in 0..self.from.d_head {
                let to = self.to.elem_at(work.side, to_head, slot, d);
                let to = &mut out[to..to + self.to.dtype.bytes()];
                let Some(cell) = cell else {
                    to.fill(0);
                    continue;
                };
                let at = self.from.elem_at(work.side, head, from_slot, d);
                let from = &cell[at..at + self.from.dtype.bytes()];
                if work.copies {
                    to.copy_from_slice(from);
                    continue;
                }
                let value = convert::read(self.from.dtype, from, work.scales[0]);
                if !convert::write(self.to.dtype, value, work.scales[1], to) {
                    return Err(self.out_of_range(work, token, head, value));
                }
            }
        }
        Ok(())
    }

    /// int8 alone: the scale of a token and head moves with its codes.
    fn put_token_scale(
        &self,
        work: &Work<'_>,
        cell: Option<&[u8]>,
        [head, from_slot]: [usize; 2],
        [to_head, slot]: [usize; 2],
        out: &mut [u8],
    ) {
        if self.to.dtype != KvDtype::Int8 {
            return;
        }
        let from = self.from.scale_at(work.side, head, from_slot);
        let to = self.to.scale_at(work.side, to_head, slot);
        let (Some(from), Some(to)) = (from, to) else {
            return;
        };
        match cell {
            Some(cell) => out[to..to + 4].copy_from_slice(&cell[from..from + 4]),
            None => out[to..to + 4].fill(0),
        }
    }

    /// The scale that an fp8 cell carries must be the agreed one, or its codes mean other values.
    fn check_scale(&self, work: &Work<'_>, cell: &[u8]) -> Result<(), RelayoutError> {
        if !matches!(self.from.dtype, KvDtype::Fp8E4m3 | KvDtype::Fp8E5m2) {
            return Ok(());
        }
        let Some(at) = self.from.scale_at(work.side, 0, 0) else {
            return Ok(());
        };
        let found = f32::from_le_bytes([cell[at], cell[at + 1], cell[at + 2], cell[at + 3]]);
        if found == work.scales[0] {
            return Ok(());
        }
        Err(RelayoutError::Scale {
            side: work.side.name(),
            layer: work.layer,
            found,
            expected: work.scales[0],
        })
    }

    fn out_of_range(
        &self,
        work: &Work<'_>,
        token: usize,
        head: usize,
        value: f32,
    ) -> RelayoutError {
        RelayoutError::OutOfRange {
            side: work.side.name(),
            value,
            token,
            layer: work.layer,
            head: self.first_head + head,
            dtype: self.to.dtype,
            scale: work.scales[1],
        }
    }
}
