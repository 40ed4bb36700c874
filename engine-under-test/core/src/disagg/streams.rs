//! Prompts whose KV is given away while they are computed.
//!
//! Whoever sends such a request names the ticket, and may tell it to a decode engine at once. After
//! each step the blocks that are full are copied out of the pool; from the first one on the ticket
//! can be claimed. With granularity `layer` it is the step itself that copies each layer of the
//! blocks that it fills, as soon as that layer is written: it goes while the layers above are
//! computed. The last block, full or not, follows with the first token: what a decode engine has
//! acknowledged is a prompt that was handed off, and no other. If the transfer fails before, or
//! there is no room for copies, the request is handed off under another ticket, as if it had never
//! been streamed.

use std::collections::BTreeMap;
use std::sync::Arc;

use pb_contract::{BlockId, Clock, EngineRequest, Nanos, RequestId};
use pb_model::forward::LayerKv;
use pb_transfer::Granularity;
use pb_transfer::service::{Exporter, Held, Progress};

use super::exports::Export;
use super::{HandedOff, KvEngine, Staging};
use crate::engine::{HandOff, LayerTap, StepOutput};
use crate::error::{AdmitError, ExecError};
use crate::execute::Chunk;

/// What is given away of a prompt that is computed.
pub(super) struct Growing {
    digest: [u8; 32],
    tokens: usize,
    /// Names of its blocks' copies.
    slots: Vec<BlockId>,
    /// Leading blocks whose copies are whole.
    filled: usize,
    /// Leading blocks that have copies; more than are whole only while a step goes on, and after
    /// one that has failed.
    pub(super) begun: usize,
    pub(super) progress: Arc<Progress>,
    /// Whether it can be claimed.
    pub(super) held: bool,
}

impl Growing {
    /// Leading blocks that may go when the first `blocks` are computed: the last one only when the
    /// prefill has `ended`.
    fn may_go(&self, blocks: usize, ended: bool) -> usize {
        blocks.min(self.slots.len() - usize::from(!ended))
    }

    /// Copies `layer` of those of the first `blocks` blocks that are not whole, and lets it go.
    fn add_layer(
        &mut self,
        (layer, layers): (usize, usize),
        blocks: usize,
        table: &[BlockId],
        kv: &dyn LayerKv,
        (staging, room): (&Staging, &mut usize),
    ) {
        let done = self.may_go(blocks, false);
        if done <= self.filled {
            // A request that was preempted computes again what was copied already.
            return;
        }
        if self.begun == 0 {
            let Some(rest) = room.checked_sub(self.slots.len()) else {
                return;
            };
            *room = rest;
        }
        let new = self.filled..done;
        for &slot in self.slots.iter().take(done).skip(self.begun) {
            staging.begin(slot, layers);
        }
        self.begun = self.begun.max(done);
        let mut part_bytes = 0;
        for (&block, &slot) in table[new.clone()].iter().zip(&self.slots[new]) {
            let mut part = Vec::with_capacity(part_bytes);
            kv.read(block, &mut part);
            part_bytes = part.len();
            staging.add_layer(slot, layer, part);
        }
        self.progress.layer_computed(layer, done as u32);
    }

    /// Lets it be claimed, if there is a cell and it cannot be yet.
    fn offer(&mut self, ticket: u64, exporter: Option<&Exporter>, now: Nanos) {
        if self.held || self.begun == 0 {
            return;
        }
        self.held = true;
        if let Some(exporter) = exporter {
            exporter.hold(Held {
                ticket,
                digest: self.digest,
                tokens: self.tokens as u64,
                blocks: self.slots.clone(),
                since: now,
                progress: Some(Arc::clone(&self.progress)),
            });
        }
    }
}

/// Copies what streamed prompts get in a step, layer by layer.
struct Streaming<'a> {
    streams: &'a BTreeMap<RequestId, u64>,
    exports: &'a mut BTreeMap<u64, Export>,
    staging: &'a Staging,
    exporter: Option<&'a Exporter>,
    clock: &'a dyn Clock,
    layers: usize,
    block_size: usize,
    /// Copies for which prompts have room that have none yet.
    room: usize,
}

impl LayerTap for Streaming<'_> {
    fn layer(&mut self, chunks: &[Chunk<'_>], layer: usize, kv: &dyn LayerKv) {
        for chunk in chunks {
            let Some(ticket) = self.streams.get(&chunk.id) else {
                continue;
            };
            let export = self.exports.get_mut(ticket);
            let Some(growing) = export.and_then(|export| export.growing.as_mut()) else {
                continue;
            };
            let blocks = (chunk.start + chunk.tokens.len()) / self.block_size;
            let at = (layer, self.layers);
            let copies = (self.staging, &mut self.room);
            growing.add_layer(at, blocks, chunk.block_table, kv, copies);
            if !growing.held {
                growing.offer(*ticket, self.exporter, self.clock.now());
            }
        }
    }
}

impl KvEngine {
    /// Takes a request in whose prompt is given away under `ticket` while it is computed, if it is
    /// long enough and the ticket is not in use; else as it is given away otherwise, under a ticket
    /// of this engine's.
    pub(super) fn add_stream(
        &mut self,
        request: EngineRequest,
        ticket: u64,
    ) -> Result<(), AdmitError> {
        let (id, tokens) = (request.id, request.prompt.len());
        let long = self.stream_min_tokens.is_some_and(|min| tokens >= min);
        let streams = long && self.granularity != Granularity::Bulk && self.is_free(ticket);
        let digest = self.engine.prompt_digest(&request)?;
        self.engine.add_prefill(request)?;
        if streams {
            let blocks = tokens.div_ceil(self.engine.config().block_size);
            let growing = Growing {
                digest,
                tokens,
                slots: self.staging.names(blocks),
                filled: 0,
                begun: 0,
                progress: Arc::new(Progress::new(self.layers)),
                held: false,
            };
            self.exports.insert(ticket, Export::growing(id, growing));
            self.streams.insert(id, ticket);
        }
        Ok(())
    }

    /// Steps the engine. With granularity `layer` what streamed prompts get is given away
    /// meanwhile.
    pub(super) fn step_engine(&mut self, clock: &dyn Clock) -> Result<StepOutput, ExecError> {
        if self.granularity != Granularity::Layer || self.streams.is_empty() {
            return self.engine.step(clock);
        }
        let room = self.stream_room();
        let mut streaming = Streaming {
            block_size: self.engine.config().block_size,
            streams: &self.streams,
            exports: &mut self.exports,
            staging: &self.staging,
            exporter: self.exporter.as_ref(),
            clock,
            layers: self.layers,
            room,
        };
        self.engine.step_tapped(clock, Some(&mut streaming))
    }

    /// Copies for which streamed prompts have room that have none yet: all copies together are at
    /// most as many as the pool has blocks. Prompts with a common prefix have it once in the pool,
    /// and each a copy, so the pool alone is no bound.
    fn stream_room(&self) -> usize {
        let growing = self.exports.values().filter_map(|one| one.growing.as_ref());
        let begun = growing.filter(|growing| growing.begun > 0);
        let taken: usize = begun.map(|growing| growing.slots.len()).sum();
        self.engine.kv().usable_blocks().saturating_sub(taken)
    }

    /// Whether a streamed prompt has copies, or there is room for those of all its blocks.
    fn has_room(&self, ticket: u64) -> bool {
        let export = self.exports.get(&ticket);
        export
            .and_then(|export| export.growing.as_ref())
            .is_some_and(|growing| growing.begun > 0 || growing.slots.len() <= self.stream_room())
    }

    /// Gives away what the last step has computed, and ends what will not be computed.
    pub(super) fn grow_streams(&mut self, now: Nanos) {
        let block_size = self.engine.config().block_size;
        let all: Vec<(RequestId, u64)> = self.streams.iter().map(|(&id, &t)| (id, t)).collect();
        for (id, ticket) in all {
            match self.engine.prefilled_tokens(id) {
                Some(tokens) if tokens < block_size || !self.has_room(ticket) => {}
                Some(tokens) => {
                    let table = self.engine.block_table(id).to_vec();
                    self.fill_stream(ticket, &table, tokens / block_size, now, false);
                }
                // Its first token has ended it, or a step has failed.
                None => {
                    self.streams.remove(&id);
                    self.take_back(ticket);
                }
            }
        }
    }

    /// Copies the first `blocks` blocks out of the pool, as far as the step has not done that, and
    /// lets them go. The last one goes only when the prefill has `ended`.
    fn fill_stream(
        &mut self,
        ticket: u64,
        table: &[BlockId],
        blocks: usize,
        now: Nanos,
        ended: bool,
    ) {
        let export = self.exports.get_mut(&ticket);
        let Some(growing) = export.and_then(|export| export.growing.as_mut()) else {
            return;
        };
        let done = growing.may_go(blocks, ended);
        // A request that was preempted has fewer blocks than were copied already.
        let blocks = table.iter().zip(&growing.slots).take(done);
        for (&block, &slot) in blocks.skip(growing.begun) {
            self.staging.fill(slot, self.engine.block_image(block));
        }
        growing.begun = growing.begun.max(done);
        growing.filled = growing.begun;
        match ended {
            true => growing.progress.ended(growing.filled as u32, now),
            false => growing.progress.computed(growing.filled as u32),
        }
        growing.offer(ticket, self.exporter.as_ref(), now);
    }

    /// Lets the rest of a prompt go that was handed off. False when it was not streamed, or its
    /// transfer has failed.
    pub(super) fn finish_stream(&mut self, over: &HandOff, now: Nanos) -> bool {
        let Some(ticket) = self.streams.remove(&over.id) else {
            return false;
        };
        if !self.has_room(ticket) {
            self.freed(ticket);
            return false;
        }
        let table = self.engine.held_table(over.hold).to_vec();
        let Some(export) = self.exports.get_mut(&ticket) else {
            return false;
        };
        export.hold = Some(over.hold);
        self.fill_stream(ticket, &table, table.len(), now, true);
        self.handed_off.push(HandedOff {
            id: over.id,
            ticket,
            tokens: over.tokens,
            first_token: over.first_token,
        });
        true
    }

    /// Nobody reads the copies of a streamed export any more.
    pub(super) fn end_stream(&mut self, export: &Export) {
        let Some(growing) = &export.growing else {
            return;
        };
        self.streams.remove(&export.request);
        for &slot in &growing.slots[..growing.begun] {
            self.staging.take(slot);
        }
    }
}
