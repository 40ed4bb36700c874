//! KV that is given away while its prompt is computed.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use pb_contract::{Nanos, RequestId};

use super::export::{Common, Held};
use crate::agent::SourceAgent;
use crate::cells::Span;
use crate::message::{Cause, Granularity, TransferId};
use crate::source::Lend;

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
        for span in spans(common, (0, blocks)) {
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
    id: TransferId,
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
        for span in self.new_spans(common, &done) {
            if !seal(agent, self.id, span) {
                return false;
            }
        }
        self.sealed.iter().any(|&sealed| sealed < self.blocks)
    }

    /// What is `done` and was not sealed, as far as the granularity can use it.
    fn new_spans(&mut self, common: &Common, done: &[u32]) -> Vec<Span> {
        if common.options.granularity != Granularity::Layer {
            let (from, to) = (least(&self.sealed), least(done));
            self.sealed.fill(to);
            return spans(common, (from, to));
        }
        let mut new = Vec::new();
        for (layer, (sealed, &done)) in self.sealed.iter_mut().zip(done).enumerate() {
            if done > *sealed {
                new.push(Span {
                    block: *sealed,
                    blocks: done - *sealed,
                    layer: layer as u32,
                    layers: 1,
                });
                *sealed = done;
            }
        }
        new
    }
}

fn least(blocks: &[u32]) -> u32 {
    blocks.iter().copied().min().unwrap_or(0)
}

/// Blocks `from..to` in the order in which the granularity sends them.
fn spans(common: &Common, (from, to): (u32, u32)) -> Vec<Span> {
    let layers = common.me.layers as u32;
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
    match common.options.granularity {
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
