//! An exact toy language model over paged memory, for testing everything around a model.
//!
//! What a layer keeps for a position is one 64-bit number, made from what the layer below gives for
//! it (the lowest: from the token), the position, the adapter and all numbers before it in the
//! layer's cache. The logits are a function of the highest layer's numbers of the whole context,
//! and each layer is computed for the whole batch before the next. So a stale, foreign, lost or
//! misplaced block gives other tokens, as it would with a real model, and unlike there every
//! correct schedule gives the same bits, at a cost that lets thousands of schedules be tried.

use pb_contract::{BlockId, Clock};
use pb_model::forward::{ForwardTiming, LayerKv, LogitRow, LogitRows, LogitSink};

use crate::disagg::KvShape;
use crate::execute::{Chunk, Executor};

/// What a slot holds that nothing was written to.
const EMPTY: u64 = 0x5555_aaaa_5555_aaaa;

/// The toy model with its memory.
pub struct ToyExecutor {
    vocab: usize,
    block_size: usize,
    layers: Vec<Layer>,
}

/// What one layer keeps.
struct Layer {
    block_size: usize,
    slots: Vec<u64>,
}

impl Layer {
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
}

impl LayerKv for Layer {
    fn read(&self, block: BlockId, out: &mut Vec<u8>) {
        let slots = &self.slots[self.range(block)];
        out.extend(slots.iter().flat_map(|slot| slot.to_le_bytes()));
    }
}

impl ToyExecutor {
    /// A toy of `vocab` tokens and one layer. Its memory is made when an engine takes it.
    pub fn new(vocab: usize) -> Self {
        ToyExecutor::layered(vocab, 1)
    }

    /// A toy of `layers` layers, at least one.
    pub fn layered(vocab: usize, layers: usize) -> Self {
        let layer = |_| Layer {
            block_size: 1,
            slots: Vec::new(),
        };
        ToyExecutor {
            vocab,
            block_size: 1,
            layers: (0..layers.max(1)).map(layer).collect(),
        }
    }

    /// Shape of its blocks with one layer, in the terms of a model's: with f32 as the element type,
    /// a position has eight bytes in each.
    pub const SHAPE: KvShape = KvShape {
        layers: 1,
        kv_heads: 1,
        d_head: 1,
        header_bytes: 0,
    };

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

/// What is kept of a position whose context digests to `context`; `input` is its token, or what the
/// layer below gives for it.
fn entry(context: u64, input: u64, position: usize, adapter: Option<usize>) -> u64 {
    let adapter = adapter.map_or(0, |index| index as u64 + 1);
    mix(mix(mix(context, input), position as u64), adapter)
}

impl Executor for ToyExecutor {
    fn execute(
        &mut self,
        chunks: &[Chunk<'_>],
        _clock: &dyn Clock,
        sink: &mut dyn LogitSink,
    ) -> Result<ForwardTiming, String> {
        // What each position gives to the layer above.
        let tokens = |chunk: &Chunk<'_>| chunk.tokens.iter().map(|&t| u64::from(t)).collect();
        let mut given: Vec<Vec<u64>> = chunks.iter().map(tokens).collect();
        for (index, layer) in self.layers.iter_mut().enumerate() {
            for (chunk, given) in chunks.iter().zip(&mut given) {
                let table = chunk.block_table;
                let before = (0..chunk.start).map(|p| layer.slots[layer.slot(table, p)]);
                let mut context = before.fold(0, mix);
                for (position, value) in (chunk.start..).zip(given) {
                    let slot = layer.slot(table, position);
                    layer.slots[slot] = entry(context, *value, position, chunk.adapter);
                    context = mix(context, layer.slots[slot]);
                    *value = context;
                }
            }
            sink.layer_written(index, layer);
        }
        for (seq, (chunk, given)) in chunks.iter().zip(given).enumerate() {
            for (i, &context) in given.iter().enumerate() {
                let position = chunk.start + i;
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
        for layer in &mut self.layers {
            layer.block_size = block_size;
            layer.slots = vec![EMPTY; block_size * num_blocks];
        }
    }

    fn kv_bytes(&self) -> usize {
        self.layers.iter().map(|l| size_of_val(&l.slots[..])).sum()
    }

    fn copy_block(&mut self, from: BlockId, to: BlockId) {
        for layer in &mut self.layers {
            let (from, to) = (layer.range(from), layer.range(to));
            layer.slots.copy_within(from, to.start);
        }
    }

    fn read_block(&self, block: BlockId, out: &mut Vec<u8>) {
        self.layers.iter().for_each(|layer| layer.read(block, out));
    }

    fn write_block(&mut self, block: BlockId, image: &[u8]) -> Result<(), String> {
        let (found, part) = (image.len(), 8 * self.block_size);
        let expected = part * self.layers.len();
        if found != expected {
            return Err(format!(
                "a block image of {found} bytes: must be {expected}"
            ));
        }
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |x, &b| x << 8 | u64::from(b));
        for (layer, part) in self.layers.iter_mut().zip(image.chunks_exact(part)) {
            let range = layer.range(block);
            let words = part.chunks_exact(8).map(word);
            layer.slots[range]
                .iter_mut()
                .zip(words)
                .for_each(|(slot, word)| *slot = word);
        }
        Ok(())
    }
}
