//! The sink's shell.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use pb_contract::{BlockId, Clock, Nanos, RequestId};

use super::{AgentError, MESSAGES_PER_STEP, Role, shake};
use crate::cells::Span;
use crate::handshake::{Agreement, Allow, Peer, Refusal};
use crate::memory::{Memory, MemoryError, Region, scatter};
use crate::message::{Cause, DataHead, Message, Offer, TransferId};
use crate::relayout::Relayout;
use crate::row::Defect;
use crate::sink::{Sink, SinkAction, SinkConfig, Unused};
use crate::transport::{Incoming, Transport};

/// What a sink agent is set up with.
#[derive(Clone, Copy, Debug)]
pub struct SinkOptions {
    /// Which differences are bridged.
    pub allow: Allow,
    /// Most blocks of the source in a transfer.
    pub blocks: u32,
    /// Most transfers at a time. With the blocks this bounds memory: where blocks are re-laid out,
    /// a transfer's cells are kept until all are here.
    pub transfers: usize,
    /// Cells that a pull asks for ahead of what has come.
    pub window_cells: u64,
    /// How long a transfer that has room may go without a cell.
    pub stall: Nanos,
    /// How often a transfer's corrupt cells are asked for again, in all.
    pub retries: u32,
    /// How long the handshake may take.
    pub handshake: Duration,
    /// A planted defect.
    pub defect: Defect,
}

/// What happened.
#[derive(Debug)]
pub enum SinkEvent {
    /// Find room for the request and call [`SinkAgent::reserved`], now or later.
    Reserve(Offer),
    /// All of this rank pair's KV is in the blocks. A rank with several legs may decode when each
    /// of them has started, see [`crate::Assembly`] and [`Agreement::sink_legs`].
    Started {
        /// The transfer.
        id: TransferId,
        /// The request.
        request: RequestId,
        /// Its blocks.
        blocks: Vec<BlockId>,
    },
    /// The request has no KV here; compute it again or fail it.
    Failed {
        /// The transfer.
        id: TransferId,
        /// The request.
        request: RequestId,
        /// Why.
        cause: Cause,
        /// Blocks that were reserved for it and are the pool's again.
        blocks: Vec<BlockId>,
    },
    /// What was claimed is not offered.
    Declined {
        /// The ticket.
        ticket: u64,
        /// Why.
        cause: Cause,
    },
    /// The connection is over; the failures of its transfers are told beside this. Told once.
    Down(AgentError),
}

/// A sink with its transport and memory.
pub struct SinkAgent {
    sink: Sink,
    transport: Box<dyn Transport>,
    memory: Arc<dyn Memory>,
    region: Region,
    relayout: Relayout,
    agreement: Agreement,
    cell_bytes: usize,
    /// Cells of transfers that are to be re-laid out, in the order of blocks and layers.
    staged: BTreeMap<TransferId, Vec<u8>>,
    claims: Vec<(u64, [u8; 32], bool)>,
    clock: Arc<dyn Clock>,
    down: bool,
}

impl SinkAgent {
    /// Shakes hands. `region` says where in `memory` the blocks of this rank lie.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn connect(
        mut transport: Box<dyn Transport>,
        me: &Peer,
        (memory, region): (Arc<dyn Memory>, Region),
        clock: Arc<dyn Clock>,
        options: &SinkOptions,
    ) -> Result<SinkAgent, AgentError> {
        let agreement = shake(
            transport.as_mut(),
            Role::Sink,
            me,
            &options.allow,
            options.handshake,
        )?;
        let segment = agreement.sink.segment(agreement.sink_heads.len());
        if region.segment_bytes() != segment.bytes() as u64 {
            let (found, expected) = (region.segment_bytes(), segment.bytes());
            let problem = format!("segments of {found} bytes, the engine's have {expected}");
            return Err(AgentError::Region { problem });
        }
        let config = SinkConfig {
            layers: agreement.source.layers as u32,
            source_block_size: agreement.source.block_size as u64,
            blocks: options.blocks,
            transfers: options.transfers,
            window_cells: options.window_cells,
            stall: options.stall,
            retries: options.retries,
            defect: options.defect,
        };
        Ok(SinkAgent {
            sink: Sink::new(config),
            transport,
            memory,
            region,
            relayout: Relayout::new(&agreement),
            cell_bytes: agreement.cell().bytes(),
            agreement,
            staged: BTreeMap::new(),
            claims: Vec::new(),
            clock,
            down: false,
        })
    }

    /// What was agreed on.
    pub fn agreement(&self) -> &Agreement {
        &self.agreement
    }

    /// Blocks that a transfer needs here for the KV alone; decoding may need one more, see
    /// [`crate::KvGeometry::decode_blocks_for`].
    pub fn blocks_for(&self, offer: &Offer) -> usize {
        self.agreement.sink.blocks_for(offer.tokens as usize)
    }

    /// Asks, with the next step, for what the source holds under a ticket. An offer that has the
    /// ticket as its request follows, or [`SinkEvent::Declined`]. An `early` claim is declined only
    /// after a while, if nothing comes to be held.
    pub fn claim(&mut self, ticket: u64, digest: [u8; 32], early: bool) {
        self.claims.push((ticket, digest, early));
    }

    /// There is room. False when the transfer is over; the blocks are the caller's then.
    ///
    /// # Panics
    /// When there are fewer blocks than [`SinkAgent::blocks_for`] says.
    pub fn reserved(&mut self, id: TransferId, blocks: Vec<BlockId>) -> bool {
        self.reserved_beyond(id, blocks, 0)
    }

    /// As [`SinkAgent::reserved`], and the first `have` blocks need not be sent: their data is here
    /// already. Heeded only where blocks are the same on both sides.
    ///
    /// # Panics
    /// As [`SinkAgent::reserved`].
    pub fn reserved_beyond(&mut self, id: TransferId, blocks: Vec<BlockId>, have: u32) -> bool {
        let Some(offer) = self.sink.offer(id).copied() else {
            return false;
        };
        assert!(
            blocks.len() >= self.blocks_for(&offer),
            "room for all tokens"
        );
        let direct = self.agreement.is_direct();
        let have = if direct { have } else { 0 };
        let now = self.clock.now();
        let taken = self.sink.reserved_beyond(now, id, blocks, have);
        if taken && !direct {
            let cells = Span::whole(offer.blocks, self.layers()).cells() as usize;
            self.staged.insert(id, vec![0; cells * self.cell_bytes]);
        }
        taken
    }

    /// Ends the transfer of a request that is not wanted any more. False when there is none.
    pub fn cancel(&mut self, request: RequestId) -> bool {
        self.sink.cancel(request)
    }

    fn layers(&self) -> u32 {
        self.agreement.source.layers as u32
    }

    /// Waits up to `timeout` for the peer, and does what is to be done.
    pub fn step(&mut self, timeout: Duration) -> Vec<SinkEvent> {
        let mut events = Vec::new();
        self.act(&mut events);
        let mut wait = timeout;
        for _ in 0..MESSAGES_PER_STEP {
            if self.down || !self.take(wait, &mut events) {
                break;
            }
            wait = Duration::ZERO;
        }
        self.sink.tick(self.clock.now());
        self.act(&mut events);
        events
    }

    /// Takes one message; false when there was none.
    fn take(&mut self, timeout: Duration, events: &mut Vec<SinkEvent>) -> bool {
        let taken: Result<(), AgentError> = match self.transport.poll(timeout) {
            Ok(None) => return false,
            Ok(Some(Incoming::Message(Message::Refuse { reason }))) => {
                Err(Refusal::ByPeer { reason }.into())
            }
            Ok(Some(Incoming::Message(Message::Decline { ticket, cause }))) => {
                events.push(SinkEvent::Declined { ticket, cause });
                Ok(())
            }
            Ok(Some(Incoming::Message(message))) => {
                let now = self.clock.now();
                self.sink.on_message(now, &message).map_err(Into::into)
            }
            Ok(Some(Incoming::Data(head, payload))) => {
                self.cells(&head, &payload);
                Ok(())
            }
            Ok(Some(Incoming::Sent { .. })) => Ok(()),
            Err(error) => Err(error.into()),
        };
        match taken {
            Ok(()) => self.act(events),
            Err(error) => self.go_down(error, events),
        }
        true
    }

    /// Judges cells before they are written anywhere.
    fn cells(&mut self, head: &DataHead, payload: &[u8]) {
        let now = self.clock.now();
        let mut good = vec![false; head.sums.len()];
        if let Some(table) = self.sink.admit(head.id, head.span) {
            good = self.sink.judge(head, self.cell_bytes, payload);
            let stored = match self.staged.get_mut(&head.id) {
                Some(staged) => {
                    stage(staged, self.agreement.source.layers, head, &good, payload);
                    Ok(())
                }
                None => put(
                    self.memory.as_ref(),
                    &self.region,
                    table,
                    head,
                    &good,
                    payload,
                ),
            };
            if stored.is_err() {
                self.sink.give_up(head.id, Cause::Memory);
                return;
            }
        }
        self.sink.arrived(now, head.id, head.span, &good);
    }

    fn act(&mut self, events: &mut Vec<SinkEvent>) {
        for (ticket, digest, early) in std::mem::take(&mut self.claims) {
            let claim = Message::Claim {
                ticket,
                digest,
                early,
            };
            if !self.down
                && let Err(error) = self.transport.send(&claim)
            {
                self.go_down(error.into(), events);
            }
        }
        while let Some(action) = self.sink.next_action() {
            match action {
                SinkAction::Send(message) => {
                    if self.down {
                        continue;
                    }
                    if let Err(error) = self.transport.send(&message) {
                        self.go_down(error.into(), events);
                    }
                }
                SinkAction::Reserve(offer) => events.push(SinkEvent::Reserve(offer)),
                SinkAction::Place { id } => {
                    let placed = self.place(id);
                    self.sink.placed(id, placed);
                }
                SinkAction::Start {
                    id,
                    request,
                    blocks,
                } => events.push(SinkEvent::Started {
                    id,
                    request,
                    blocks,
                }),
                SinkAction::Fail {
                    id,
                    request,
                    cause,
                    blocks,
                } => {
                    self.staged.remove(&id);
                    events.push(SinkEvent::Failed {
                        id,
                        request,
                        cause,
                        blocks,
                    });
                }
            }
        }
    }

    /// Re-lays out a transfer whose cells are all here.
    fn place(&mut self, id: TransferId) -> Result<(), Cause> {
        let Some(staged) = self.staged.remove(&id) else {
            return Ok(()); // Its cells lie where they belong.
        };
        let (Some(offer), Some(table)) = (self.sink.offer(id), self.sink.table(id)) else {
            return Ok(());
        };
        let tokens = offer.tokens as usize;
        let layers = self.agreement.source.layers;
        let whole = self.agreement.sink.segment(self.agreement.sink_heads.len());
        // Only this leg's heads: another leg may be writing the others.
        let pieces: Vec<Range<usize>> = self.agreement.sink_pieces();
        let mut segment = vec![0; whole.bytes()];
        for block in 0..self.agreement.sink.blocks_for(tokens) {
            for layer in 0..layers {
                let cell = |b: usize| {
                    let at = (b * layers + layer) * self.cell_bytes;
                    &staged[at..at + self.cell_bytes]
                };
                let filled = self
                    .relayout
                    .fill(layer, block, tokens, &cell, &mut segment);
                filled.map_err(|_| Cause::OutOfRange)?;
                let part: Vec<u8> = pieces
                    .iter()
                    .flat_map(|p| &segment[p.clone()])
                    .copied()
                    .collect();
                let one = Span::cell(block as u32, layer as u32);
                let ranges = self.region.descriptors(table, one, &pieces);
                let put = scatter(self.memory.as_ref(), &ranges, &part);
                put.map_err(|_| Cause::Memory)?;
            }
        }
        Ok(())
    }

    fn go_down(&mut self, error: AgentError, events: &mut Vec<SinkEvent>) {
        if !std::mem::replace(&mut self.down, true) {
            self.transport.close();
            self.sink.link_down();
            events.push(SinkEvent::Down(error));
        }
    }

    /// Transfers that are not over.
    pub fn transfers(&self) -> usize {
        self.sink.transfers()
    }

    /// When a lease is to be renewed or a transfer stalls next; a step should not wait for longer.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.sink.next_deadline()
    }

    /// Transfers that wait for room.
    pub fn queue_depth(&self) -> usize {
        self.sink.queue_depth()
    }

    /// Cells that were of no use so far.
    pub fn unused(&self) -> Unused {
        self.sink.unused()
    }
}

/// Keeps good cells until all are here.
fn stage(staged: &mut [u8], layers: usize, head: &DataHead, good: &[bool], payload: &[u8]) {
    let cell_bytes = payload.len() / good.len().max(1);
    let cells = head
        .span
        .iter()
        .zip(payload.chunks_exact(cell_bytes.max(1)));
    for (((block, layer), cell), good) in cells.zip(good) {
        if *good {
            let at = (block as usize * layers + layer as usize) * cell_bytes;
            staged[at..at + cell_bytes].copy_from_slice(cell);
        }
    }
}

/// Writes good cells to where they belong, all at once if all are good.
fn put(
    memory: &dyn Memory,
    region: &Region,
    table: &[BlockId],
    head: &DataHead,
    good: &[bool],
    payload: &[u8],
) -> Result<(), MemoryError> {
    let bytes = region.segment_bytes() as usize;
    let segment = 0..bytes;
    let whole = std::slice::from_ref(&segment);
    if good.iter().all(|good| *good) {
        return scatter(
            memory,
            &region.descriptors(table, head.span, whole),
            payload,
        );
    }
    let cells = head.span.iter().zip(payload.chunks_exact(bytes));
    for (((block, layer), cell), _) in cells.zip(good).filter(|(_, good)| **good) {
        let one = Span::cell(block, layer);
        scatter(memory, &region.descriptors(table, one, whole), cell)?;
    }
    Ok(())
}
