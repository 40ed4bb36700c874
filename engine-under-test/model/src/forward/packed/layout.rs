//! A batch resolved into rows, slots and attention work.

use pb_contract::{BlockId, Fault};
use pb_kernels_cpu::{AttnSeq, KvShape, KvSlot};

use crate::forward::{SeqInput, fault};

/// A batch resolved into rows.
pub(super) struct Layout<'a> {
    pub(super) positions: Vec<u32>,
    pub(super) slots: Vec<KvSlot>,
    tables: Vec<Vec<u32>>,
    pub(super) batch: &'a [SeqInput<'a>],
}

impl<'a> Layout<'a> {
    pub(super) fn new(
        batch: &'a [SeqInput<'a>],
        shape: KvShape,
        num_blocks: usize,
        fault: Fault,
    ) -> Self {
        let rows = batch.iter().map(|s| s.tokens.len()).sum();
        let mut layout = Layout {
            positions: Vec::with_capacity(rows),
            slots: Vec::with_capacity(rows),
            tables: Vec::with_capacity(batch.len()),
            batch,
        };
        for s in batch {
            let end = s.start + s.tokens.len();
            assert!(!s.tokens.is_empty(), "an empty run has nothing to compute");
            assert!(
                s.block_table.len() * shape.block_size >= end,
                "{} blocks of {} do not hold {end} tokens",
                s.block_table.len(),
                shape.block_size
            );
            layout
                .tables
                .push(s.block_table.iter().map(|b| b.0).collect());
            for position in s.start..end {
                let BlockId(block) = s.block_table[position / shape.block_size];
                assert!(
                    (block as usize) < num_blocks,
                    "block {block} is outside the pool"
                );
                let slot = (position % shape.block_size) as u32;
                layout.slots.push(KvSlot { block, slot });
                let rotary = fault::rotary_position(fault, s.start, position);
                layout.positions.push(rotary as u32);
            }
        }
        layout
    }

    /// Attention work of the prompt chunks (`prefill`) or of the decode rows.
    pub(super) fn attention_seqs(&self, prefill: bool) -> Vec<AttnSeq<'_>> {
        let mut q_row = 0;
        let mut seqs = Vec::new();
        for (s, table) in self.batch.iter().zip(&self.tables) {
            let q_len = s.tokens.len();
            if s.is_prefill == prefill {
                seqs.push(AttnSeq {
                    q_row,
                    q_len,
                    start_pos: s.start,
                    block_table: table,
                });
            }
            q_row += q_len;
        }
        seqs
    }
}
