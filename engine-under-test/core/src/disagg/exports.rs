//! Requests that are handed off, until nobody reads their blocks any more.

use pb_contract::{BlockId, Nanos, RequestId};
use pb_transfer::service::Held;

use super::streams::Growing;
use super::{HandedOff, KvEngine};
use crate::engine::HoldId;

/// Tickets have 53 bits, so that every JSON reader takes them as they are.
const TICKET_SHIFT: u32 = 11;

/// KV that is held.
pub(super) struct Export {
    pub(super) request: RequestId,
    /// What holds the blocks of the pool; none while they are computed.
    pub(super) hold: Option<HoldId>,
    /// Blocks of the pool whose copies are shared.
    table: Vec<BlockId>,
    /// Of what is given away while it is computed.
    pub(super) growing: Option<Growing>,
}

impl Export {
    /// Of what is still computed.
    pub(super) fn growing(request: RequestId, growing: Growing) -> Export {
        Export {
            request,
            hold: None,
            table: Vec::new(),
            growing: Some(growing),
        }
    }
}

impl KvEngine {
    /// Offers what the last step has handed off.
    pub(super) fn export(&mut self, now: Nanos) {
        for over in self.engine.take_handed_off() {
            if self.finish_stream(&over, now) {
                continue;
            }
            let table = self.engine.held_table(over.hold).to_vec();
            if self.exporter.is_none() {
                // Added by somebody else than `add`, who has no way to claim it.
                self.engine.unpin(over.hold);
                continue;
            }
            let blocks = table.iter().map(|&block| self.stage(block)).collect();
            let ticket = self.new_ticket();
            let export = Export {
                request: over.id,
                hold: Some(over.hold),
                table,
                growing: None,
            };
            self.exports.insert(ticket, export);
            self.handed_off.push(HandedOff {
                id: over.id,
                ticket,
                tokens: over.tokens,
                first_token: over.first_token,
            });
            if let Some(exporter) = &self.exporter {
                exporter.hold(Held {
                    ticket,
                    digest: over.digest,
                    tokens: over.tokens as u64,
                    blocks,
                    since: now,
                    progress: None,
                });
            }
        }
        self.grow_streams(now);
    }

    /// Whether a ticket may name something new.
    pub(super) fn is_free(&self, ticket: u64) -> bool {
        ticket != 0
            && ticket >> (u64::BITS - TICKET_SHIFT) == 0
            && !self.exports.contains_key(&ticket)
    }

    fn new_ticket(&mut self) -> u64 {
        loop {
            let ticket = self.tickets.next_u64() >> TICKET_SHIFT;
            if self.is_free(ticket) {
                return ticket;
            }
        }
    }

    /// The slot of a held block. Its data does not change as long as it is held, so one copy does
    /// for all requests that share it.
    fn stage(&mut self, block: BlockId) -> BlockId {
        if let Some((slot, users)) = self.staged.get_mut(&block) {
            *users += 1;
            return *slot;
        }
        let slot = self.staging.put(self.engine.block_image(block));
        self.staged.insert(block, (slot, 1));
        slot
    }

    /// Nobody reads the blocks of an export any more.
    pub(super) fn freed(&mut self, ticket: u64) {
        let Some(export) = self.exports.remove(&ticket) else {
            return;
        };
        self.end_stream(&export);
        if let Some(hold) = export.hold {
            self.engine.unpin(hold);
        }
        for block in export.table {
            let Some((slot, users)) = self.staged.get_mut(&block) else {
                continue;
            };
            *users -= 1;
            if *users == 0 {
                self.staging.take(*slot);
                self.staged.remove(&block);
            }
        }
    }

    /// Takes back the KV of a request that nobody will decode. What is computed and claimed already
    /// ends by itself.
    pub(super) fn cancel_export(&mut self, id: RequestId) {
        self.handed_off.retain(|over| over.id != id);
        let mut exports = self.exports.iter();
        let found = exports.find(|(_, export)| export.request == id);
        let Some((&ticket, _)) = found else {
            return;
        };
        self.take_back(ticket);
    }

    /// Takes back what is held under a ticket. False when nobody holds it, or somebody has claimed
    /// it: then it ends by itself.
    pub(super) fn take_back(&mut self, ticket: u64) -> bool {
        let Some(export) = self.exports.get(&ticket) else {
            return false;
        };
        if let Some(growing) = &export.growing {
            growing.progress.abort();
        }
        let held = export.growing.as_ref().is_none_or(|growing| growing.held);
        let withdrawn = self.exporter.as_ref().is_some_and(|e| e.withdraw(ticket));
        if withdrawn || !held {
            self.freed(ticket);
        }
        withdrawn || !held
    }
}
