//! An exact toy language model over paged memory, for testing everything around a model.
//!
//! What it keeps for a position is one 64-bit number, made from the token, the position, the
//! adapter and all numbers before it in the cache. The logits are a function of the numbers of
//! the whole context. So a stale, foreign, lost or misplaced block gives other tokens, as it
//! would with a real model, and unlike there every correct schedule gives the same bits, at a
//! cost that lets thousands of schedules be tried.

use pb_contract::{BlockId, Clock, TokenId};
use pb_model::forward::{ForwardTiming, LogitRow, LogitRows, LogitSink};

use crate::disagg::KvShape;
use crate::execute::{Chunk, Executor};

/// What a slot holds that nothing was written to.
const EMPTY: u64 = 0x5555_aaaa_5555_aaaa;

/// The toy model with its memory.
pub struct ToyExecutor {
    vocab: usize,
    block_size: usize,
    slots: Vec<u64>,
}

impl ToyExecutor {
    /// A toy of `vocab` tokens. Its memory is made when an engine takes it.
    pub fn new(vocab: usize) -> Self {
        ToyExecutor {
            vocab,
            block_size: 1,
            slots: Vec::new(),
        }
    }

    /// Shape of its blocks, in the terms of a model's: with f32 as the element type, a position has
    /// eight bytes.
    pub const SHAPE: KvShape = KvShape {
        layers: 1,
        kv_heads: 1,
        d_head: 1,
        header_bytes: 0,
    };

    /// Where position `position` of a table lies.
    fn slot(&self, table: &[BlockId], position: usize) -> usize {
        let block = table[position / self.block_size].0 as usize;
        block * self.block_size + position % self.block_size
    }

    /// The slots of `block`.
    fn range(&self, block: BlockId) -> std::ops::Range<usize> {
        let first = block.0 as usize * self.block_size;
        first..first + self.block_size
    }

    fn logits(&self, context: u64) -> Vec<f64> {
        let spread = |token| (mix(context, token as u64) >> 40) as f64 / (1u64 << 22) as f64;
        (0..self.vocab).map(spread).collect()
    }
}

/// One step of a digest (the multiply and shift steps of SplitMix64).
fn mix(a: u64, b: u64) -> u64 {
    let x = (a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x2545_f491_4f6c_dd1d);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// What is kept of a token whose context digests to `context`.
fn entry(context: u64, token: TokenId, position: usize, adapter: Option<usize>) -> u64 {
    let adapter = adapter.map_or(0, |index| index as u64 + 1);
    mix(
        mix(mix(context, u64::from(token)), position as u64),
        adapter,
    )
}

impl Executor for ToyExecutor {
    fn execute(
        &mut self,
        chunks: &[Chunk<'_>],
        _clock: &dyn Clock,
        sink: &mut dyn LogitSink,
    ) -> Result<ForwardTiming, String> {
        for (seq, chunk) in chunks.iter().enumerate() {
            let table = chunk.block_table;
            let before = (0..chunk.start).map(|p| self.slots[self.slot(table, p)]);
            let mut context = before.fold(0, mix);
            for (i, &token) in chunk.tokens.iter().enumerate() {
                let position = chunk.start + i;
                let slot = self.slot(table, position);
                self.slots[slot] = entry(context, token, position, chunk.adapter);
                context = mix(context, self.slots[slot]);
                let last = i + 1 == chunk.tokens.len();
                let wanted = match chunk.rows {
                    LogitRows::None => false,
                    LogitRows::Last => last,
                    LogitRows::All => true,
                };
                if wanted {
                    sink.row(seq, position, LogitRow::F64(&self.logits(context)));
                }
            }
        }
        Ok(ForwardTiming::default())
    }

    fn resize_kv(&mut self, block_size: usize, num_blocks: usize) {
        self.block_size = block_size;
        self.slots = vec![EMPTY; block_size * num_blocks];
    }

    fn kv_bytes(&self) -> usize {
        size_of_val(&self.slots[..])
    }

    fn copy_block(&mut self, from: BlockId, to: BlockId) {
        let (from, to) = (self.range(from), self.range(to));
        self.slots.copy_within(from, to.start);
    }

    fn read_block(&self, block: BlockId, out: &mut Vec<u8>) {
        let slots = &self.slots[self.range(block)];
        out.extend(slots.iter().flat_map(|slot| slot.to_le_bytes()));
    }

    fn write_block(&mut self, block: BlockId, image: &[u8]) -> Result<(), String> {
        let range = self.range(block);
        if image.len() != 8 * range.len() {
            return Err(format!(
                "a block image of {} bytes: must be {}",
                image.len(),
                8 * range.len()
            ));
        }
        for (slot, bytes) in self.slots[range].iter_mut().zip(image.chunks_exact(8)) {
            *slot = bytes
                .iter()
                .rev()
                .fold(0, |x, &byte| x << 8 | u64::from(byte));
        }
        Ok(())
    }
}
