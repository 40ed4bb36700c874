//! Prompts whose KV is given away while they are computed.
//!
//! Whoever sends such a request names the ticket, and may tell it to a decode engine at once. After
//! each step the blocks that are full are copied out of the pool; from the first one on the ticket
//! can be claimed. The last block, full or not, follows with the first token: what a decode engine
//! has acknowledged is a prompt that was handed off, and no other. If the transfer fails before,
//! the request is handed off under another ticket, as if it had never been streamed.

use std::sync::Arc;

use pb_contract::{BlockId, EngineRequest, Nanos, RequestId};
use pb_transfer::Granularity;
use pb_transfer::service::{Held, Progress};

use super::exports::Export;
use super::{HandedOff, KvEngine};
use crate::engine::HandOff;
use crate::error::AdmitError;

/// What is given away of a prompt that is computed.
pub(super) struct Growing {
    digest: [u8; 32],
    tokens: usize,
    /// Names of its blocks' copies, the first `filled` of which are there.
    slots: Vec<BlockId>,
    pub(super) filled: usize,
    pub(super) progress: Arc<Progress>,
    /// Whether it can be claimed.
    pub(super) held: bool,
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
                progress: Arc::default(),
                held: false,
            };
            self.exports.insert(ticket, Export::growing(id, growing));
            self.streams.insert(id, ticket);
        }
        Ok(())
    }

    /// Gives away what the last step has computed, and ends what will not be computed.
    pub(super) fn grow_streams(&mut self, now: Nanos) {
        let block_size = self.engine.config().block_size;
        let all: Vec<(RequestId, u64)> = self.streams.iter().map(|(&id, &t)| (id, t)).collect();
        for (id, ticket) in all {
            match self.engine.prefilled_tokens(id) {
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

    /// Copies the first `blocks` blocks out of the pool, as far as that was not done, and lets
    /// them go. The last one goes only when the prefill has `ended`.
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
        let all = growing.slots.len();
        let done = blocks.min(if ended { all } else { all - 1 });
        // A request that was preempted has fewer blocks than were copied already.
        let blocks = table.iter().zip(&growing.slots).take(done);
        for (&block, &slot) in blocks.skip(growing.filled) {
            self.staging.fill(slot, self.engine.block_image(block));
        }
        growing.filled = growing.filled.max(done);
        match ended {
            true => growing.progress.ended(all as u32, now),
            false => growing.progress.computed(growing.filled as u32),
        }
        if growing.held || growing.filled == 0 {
            return;
        }
        growing.held = true;
        if let Some(exporter) = &self.exporter {
            exporter.hold(Held {
                ticket,
                digest: growing.digest,
                tokens: growing.tokens as u64,
                blocks: growing.slots.clone(),
                since: now,
                progress: Some(Arc::clone(&growing.progress)),
            });
        }
    }

    /// Lets the rest of a prompt go that was handed off. False when it was not streamed, or its
    /// transfer has failed.
    pub(super) fn finish_stream(&mut self, over: &HandOff, now: Nanos) -> bool {
        let Some(ticket) = self.streams.remove(&over.id) else {
            return false;
        };
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
        for &slot in &growing.slots[..growing.filled] {
            self.staging.take(slot);
        }
    }
}
