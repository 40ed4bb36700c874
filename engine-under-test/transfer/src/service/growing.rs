//! KV that is given away while its prompt is computed.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use pb_contract::{Nanos, RequestId};

use super::export::{Common, Held};
use crate::agent::SourceAgent;
use crate::cells::Span;
use crate::message::{Cause, Granularity, TransferId};
use crate::source::Lend;

/// Layers of the same blocks that are computed meanwhile go together, up to so many cells: each is
/// a frame less. More would have the first wait for the sums of the others.
const TOGETHER_CELLS: u64 = 64;

/// How far the KV of a prompt is, which is given away while it is computed. The engine's thread
/// tells, also from within a step; the connection's thread looks. Neither waits for the other.
#[derive(Debug)]
pub struct Progress {
    /// Of each layer the leading blocks that are computed, lie in memory and will not change.
    layers: Box<[AtomicU32]>,
    ended: OnceLock<Nanos>,
    aborted: AtomicBool,
}

impl Progress {
    /// Of blocks of `layers` layers, none of them computed.
    pub fn new(layers: usize) -> Progress {
        Progress {
            layers: (0..layers).map(|_| AtomicU32::new(0)).collect(),
            ended: OnceLock::new(),
            aborted: AtomicBool::new(false),
        }
    }

    /// The first `blocks` blocks of `layer` are computed, lie in memory and will not change.
    ///
    /// # Panics
    /// When there is no such layer.
    pub fn layer_computed(&self, layer: usize, blocks: u32) {
        // What was written to memory before is seen by whoever sees the number.
        self.layers[layer].fetch_max(blocks, Ordering::Release);
    }

    /// The same for all layers.
    pub fn computed(&self, blocks: u32) {
        (0..self.layers.len()).for_each(|layer| self.layer_computed(layer, blocks));
    }

    /// The prefill has ended, and with it the last block is computed.
    pub fn ended(&self, blocks: u32, now: Nanos) {
        // The second of two ends could only say the same.
        let _ = self.ended.set(now);
        self.computed(blocks);
    }

    /// The prompt will not be computed to its end.
    pub fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
    }

    /// When the prefill ended.
    pub(super) fn ended_at(&self) -> Option<Nanos> {
        self.ended.get().copied()
    }

    fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    /// Computed leading blocks of each layer, of `blocks` in all.
    fn blocks(&self, blocks: u32) -> Vec<u32> {
        let computed = |layer: &AtomicU32| layer.load(Ordering::Acquire).min(blocks);
        self.layers.iter().map(computed).collect()
    }
}

/// Offers what was claimed. What is computed whole is sealed at once; the rest is given back, to
/// be sealed as it comes.
pub(super) fn lend(common: &Common, agent: &mut SourceAgent, held: Held) -> Option<Growing> {
    let blocks = held.blocks.len() as u32;
    let id = agent.lend(Lend {
        request: RequestId(held.ticket),
        tokens: held.tokens,
        blocks: held.blocks,
        mode: common.options.mode,
        granularity: common.options.granularity,
    });
    let Some(progress) = held.progress else {
        agent.prefill_ended_at(id, held.since);
        let (granularity, layers) = (common.options.granularity, common.me.layers as u32);
        for span in spans(granularity, layers, (0, blocks)) {
            if !seal(agent, id, span) {
                break;
            }
        }
        return None;
    };
    Some(Growing {
        id,
        sealed: vec![0; progress.layers.len()],
        progress,
        blocks,
    })
}

/// A transfer whose prompt is still computed.
pub(super) struct Growing {
    pub(super) id: TransferId,
    progress: Arc<Progress>,
    blocks: u32,
    /// Leading blocks of each layer that are sealed.
    sealed: Vec<u32>,
}

impl Growing {
    /// Seals what has been computed since the last time; false when there is no more to come.
    pub(super) fn advance(&mut self, common: &Common, agent: &mut SourceAgent) -> bool {
        if self.progress.is_aborted() {
            agent.abort(self.id, Cause::Cancelled);
            return false;
        }
        let done = self.progress.blocks(self.blocks);
        // Looked at after the blocks: whoever sees the last one sees the end.
        if let Some(end) = self.progress.ended_at() {
            agent.prefill_ended_at(self.id, end);
        }
        for span in self.new_spans(common.options.granularity, &done) {
            if !seal(agent, self.id, span) {
                return false;
            }
        }
        self.sealed.iter().any(|&sealed| sealed < self.blocks)
    }

    /// What is `done` and was not sealed, as far as the granularity can use it.
    fn new_spans(&mut self, granularity: Granularity, done: &[u32]) -> Vec<Span> {
        if granularity != Granularity::Layer {
            let (from, to) = (least(&self.sealed), least(done));
            self.sealed.fill(to);
            return spans(granularity, done.len() as u32, (from, to));
        }
        let mut new: Vec<Span> = Vec::new();
        for (layer, (sealed, &done)) in self.sealed.iter_mut().zip(done).enumerate() {
            if done <= *sealed {
                continue;
            }
            let span = Span {
                block: *sealed,
                blocks: done - *sealed,
                layer: layer as u32,
                layers: 1,
            };
            *sealed = done;
            match new.last_mut() {
                Some(last) if goes_with(last, &span) => last.layers += 1,
                _ => new.push(span),
            }
        }
        new
    }
}

/// Whether `next`, one layer, continues `last`.
fn goes_with(last: &Span, next: &Span) -> bool {
    (last.block, last.blocks, last.layer + last.layers) == (next.block, next.blocks, next.layer)
        && last.cells() + next.cells() <= TOGETHER_CELLS
}

fn least(blocks: &[u32]) -> u32 {
    blocks.iter().copied().min().unwrap_or(0)
}

/// Blocks `from..to` in the order in which the granularity sends them.
fn spans(granularity: Granularity, layers: u32, (from, to): (u32, u32)) -> Vec<Span> {
    let all = Span {
        block: from,
        blocks: to - from,
        ..Span::whole(to, layers)
    };
    let block = |block| Span {
        block,
        blocks: 1,
        ..all
    };
    let layer = |layer| Span {
        layer,
        layers: 1,
        ..all
    };
    match granularity {
        _ if from == to => Vec::new(),
        Granularity::Bulk => vec![all],
        Granularity::Chunk => (from..to).map(block).collect(),
        Granularity::Layer => (0..layers).map(layer).collect(),
    }
}

/// Seals cells; false when the lease has ended, or ends because they cannot be read.
fn seal(agent: &mut SourceAgent, id: TransferId, span: Span) -> bool {
    match agent.seal(id, span) {
        Ok(alive) => alive,
        Err(_) => {
            agent.abort(id, Cause::Memory);
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use pb_contract::Stream;

    use super::*;

    fn growing(blocks: u32, layers: usize) -> Growing {
        Growing {
            id: TransferId(1),
            progress: Arc::new(Progress::new(layers)),
            blocks,
            sealed: vec![0; layers],
        }
    }

    /// Blocks by layer as they are computed, and what is to be sealed then.
    fn step(one: &mut Growing, granularity: Granularity, done: &[u32]) -> Vec<[u32; 4]> {
        let spans = one.new_spans(granularity, done);
        let fields = |s: &Span| [s.block, s.blocks, s.layer, s.layers];
        spans.iter().map(fields).collect()
    }

    #[test]
    fn layers_go_as_they_come_and_together_where_they_have_the_same_blocks() {
        let (mut one, layer) = (growing(9, 3), Granularity::Layer);
        assert_eq!(step(&mut one, layer, &[0, 0, 0]), [[0; 4]; 0]);
        assert_eq!(step(&mut one, layer, &[2, 0, 0]), [[0, 2, 0, 1]]);
        assert_eq!(step(&mut one, layer, &[2, 2, 2]), [[0, 2, 1, 2]]);
        assert_eq!(step(&mut one, layer, &[2, 2, 2]), [[0; 4]; 0]);
        // Two of the next step, and the first one of the step after.
        let both = [[2, 3, 0, 1], [2, 2, 1, 1]];
        assert_eq!(step(&mut one, layer, &[5, 4, 2]), both);
        assert_eq!(step(&mut one, layer, &[5, 4, 4]), [[2, 2, 2, 1]]);
        let mut wide = growing(40, 3);
        let apart = [[0, 40, 0, 1], [0, 40, 1, 1], [0, 40, 2, 1]];
        assert_eq!(
            step(&mut wide, layer, &[40; 3]),
            apart,
            "80 cells are too many"
        );
        // Whole blocks wait for their last layer.
        let (mut one, chunk) = (growing(9, 3), Granularity::Chunk);
        assert_eq!(step(&mut one, chunk, &[2, 2, 0]), [[0; 4]; 0]);
        let two = [[0, 1, 0, 3], [1, 1, 0, 3]];
        assert_eq!(step(&mut one, chunk, &[3, 3, 2]), two);
    }

    #[test]
    fn every_cell_is_sealed_once_and_not_before_it_is_computed() {
        let mut stream = Stream::new(3, "growing");
        for granularity in [Granularity::Bulk, Granularity::Chunk, Granularity::Layer] {
            for _ in 0..200 {
                let (blocks, layers) = (1 + stream.below(20) as u32, 1 + stream.below(6) as usize);
                let mut one = growing(blocks, layers);
                let mut sealed = BTreeSet::new();
                let mut done = vec![0; layers];
                while sealed.len() < blocks as usize * layers {
                    let layer = stream.below(layers as u64) as usize;
                    let more = stream.below(4) as u32;
                    one.progress.layer_computed(layer, done[layer] + more);
                    done = one.progress.blocks(blocks);
                    for span in one.new_spans(granularity, &done) {
                        for (b, l) in span.iter() {
                            assert!(b < done[l as usize] && sealed.insert((b, l)));
                        }
                    }
                }
            }
        }
    }
}
