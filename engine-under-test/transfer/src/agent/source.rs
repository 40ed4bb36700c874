//! The source's shell.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use pb_contract::{BlockId, Clock, Nanos, RequestId};

use super::{AgentError, MESSAGES_PER_STEP, Role, frame_cells, shake};
use crate::cells::Span;
use crate::frame::checksum;
use crate::handshake::{Agreement, Allow, Peer, Refusal};
use crate::memory::{Memory, Region, gather};
use crate::message::{Cause, DataHead, Message, TransferId};
use crate::row::{Defect, Ended, TransferRow};
use crate::source::{Late, Lend, Source, SourceAction, SourceConfig};
use crate::transport::{Incoming, MemoryId, Transport};

/// What a source agent is set up with.
#[derive(Clone, Copy, Debug)]
pub struct SourceOptions {
    /// Which differences are bridged.
    pub allow: Allow,
    /// How long blocks are held after the sink was last heard of.
    pub lease: Nanos,
    /// Id of the first transfer; see [`Source::new`].
    pub first_id: u64,
    /// How long the handshake may take.
    pub handshake: Duration,
    /// A planted defect.
    pub defect: Defect,
}

/// What happened.
#[derive(Debug)]
pub enum SourceEvent {
    /// The blocks are the pool's again.
    Freed {
        /// The transfer.
        id: TransferId,
        /// The request.
        request: RequestId,
        /// The blocks.
        blocks: Vec<BlockId>,
        /// Why.
        ended: Ended,
    },
    /// The sink asks for what is held under a ticket: [`SourceAgent::lend`] it under that number,
    /// or [`SourceAgent::decline`].
    Claimed {
        /// The ticket.
        ticket: u64,
        /// What the sink takes it for.
        digest: [u8; 32],
        /// Whether it may wait for something to be held.
        early: bool,
    },
    /// The connection is over, and with it all leases. Told once.
    Down(AgentError),
}

/// A source with its transport and memory.
pub struct SourceAgent {
    source: Source,
    transport: Box<dyn Transport>,
    memory: Arc<dyn Memory>,
    registered: MemoryId,
    region: Region,
    pieces: Vec<Range<usize>>,
    agreement: Agreement,
    declined: Vec<(u64, Cause)>,
    clock: Arc<dyn Clock>,
    down: bool,
}

impl SourceAgent {
    /// Shakes hands. `region` says where in `memory` the blocks of this rank lie.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn connect(
        mut transport: Box<dyn Transport>,
        me: &Peer,
        (memory, region): (Arc<dyn Memory>, Region),
        clock: Arc<dyn Clock>,
        options: &SourceOptions,
    ) -> Result<SourceAgent, AgentError> {
        let agreement = shake(
            transport.as_mut(),
            Role::Source,
            me,
            &options.allow,
            options.handshake,
        )?;
        let cell_bytes = agreement.cell().bytes();
        let segment = agreement.source.segment(agreement.source_heads.len());
        if region.segment_bytes() != segment.bytes() as u64 {
            let (found, expected) = (region.segment_bytes(), segment.bytes());
            let problem = format!("segments of {found} bytes, the engine's have {expected}");
            return Err(AgentError::Region { problem });
        }
        let config = SourceConfig {
            layers: agreement.source.layers as u32,
            order: region.order(),
            lease: options.lease,
            frame_cells: frame_cells(transport.as_ref(), cell_bytes)?,
            frames_in_flight: transport.frames_in_flight(),
            defect: options.defect,
        };
        Ok(SourceAgent {
            source: Source::new(config, options.first_id),
            registered: transport.register(Arc::clone(&memory))?,
            transport,
            memory,
            region,
            pieces: agreement.source_pieces(),
            agreement,
            declined: Vec::new(),
            clock,
            down: false,
        })
    }

    /// What was agreed on.
    pub fn agreement(&self) -> &Agreement {
        &self.agreement
    }

    /// Takes the blocks on lease and offers them. After [`SourceEvent::Down`] the lease ends at the
    /// next step.
    pub fn lend(&mut self, lend: Lend) -> TransferId {
        self.source.lend(self.clock.now(), lend)
    }

    /// The cells are computed, lie in memory, and will not change. False when the lease has ended.
    ///
    /// # Errors
    /// Memory could not be read.
    pub fn seal(&mut self, id: TransferId, span: Span) -> Result<bool, AgentError> {
        let Some(table) = self.source.table(id) else {
            return Ok(false);
        };
        let (mut cell, mut sums) = (Vec::new(), Vec::with_capacity(span.cells() as usize));
        for (block, layer) in span.iter() {
            let one = Span::cell(block, layer);
            let ranges = self.region.descriptors(table, one, &self.pieces);
            cell.clear();
            gather(self.memory.as_ref(), &ranges, &mut cell)?;
            sums.push(checksum(id, block, layer, &cell));
        }
        Ok(self.source.seal(id, span, &sums))
    }

    /// The prefill has ended; for the time that is exposed after it.
    pub fn prefill_ended(&mut self, id: TransferId) {
        self.prefill_ended_at(id, self.clock.now());
    }

    /// The prefill ended at `at`, before the blocks were lent.
    pub fn prefill_ended_at(&mut self, id: TransferId, at: Nanos) {
        self.source.prefill_ended(at, id);
    }

    /// Tells the sink, with the next step, that a claim is not answered with an offer.
    pub fn decline(&mut self, ticket: u64, cause: Cause) {
        self.declined.push((ticket, cause));
    }

    /// Ends a lease from this side. False when it has ended.
    pub fn abort(&mut self, id: TransferId, cause: Cause) -> bool {
        self.source.abort(self.clock.now(), id, cause)
    }

    /// Waits up to `timeout` for the peer, and does what is to be done.
    pub fn step(&mut self, timeout: Duration) -> Vec<SourceEvent> {
        let mut events = Vec::new();
        self.act(&mut events);
        let mut wait = timeout;
        for _ in 0..MESSAGES_PER_STEP {
            if self.down || !self.take(wait, &mut events) {
                break;
            }
            wait = Duration::ZERO;
        }
        self.source.tick(self.clock.now());
        self.act(&mut events);
        events
    }

    /// Takes one message; false when there was none.
    fn take(&mut self, timeout: Duration, events: &mut Vec<SourceEvent>) -> bool {
        let taken: Result<(), AgentError> = match self.transport.poll(timeout) {
            Ok(None) => return false,
            Ok(Some(Incoming::Message(Message::Refuse { reason }))) => {
                Err(Refusal::ByPeer { reason }.into())
            }
            Ok(Some(Incoming::Message(Message::Claim {
                ticket,
                digest,
                early,
            }))) => {
                events.push(SourceEvent::Claimed {
                    ticket,
                    digest,
                    early,
                });
                Ok(())
            }
            Ok(Some(Incoming::Message(message))) => {
                let now = self.clock.now();
                self.source.on_message(now, &message).map_err(Into::into)
            }
            Ok(Some(Incoming::Sent { id, wire_ns })) => {
                let now = self.clock.now();
                self.source.sent(now, id, wire_ns);
                Ok(())
            }
            // A sink sends no cells; these are of no use, and harmless.
            Ok(Some(Incoming::Data(..))) => Ok(()),
            Err(error) => Err(error.into()),
        };
        match taken {
            Ok(()) => self.act(events),
            Err(error) => self.go_down(error, events),
        }
        true
    }

    fn act(&mut self, events: &mut Vec<SourceEvent>) {
        if self.down {
            // Whatever was lent since ends as well.
            self.source.link_down(self.clock.now());
        }
        for (ticket, cause) in std::mem::take(&mut self.declined) {
            let decline = Message::Decline { ticket, cause };
            if !self.down
                && let Err(error) = self.transport.send(&decline)
            {
                self.go_down(error.into(), events);
            }
        }
        while let Some(action) = self.source.next_action() {
            let done: Result<(), AgentError> = match action {
                SourceAction::Free {
                    id,
                    request,
                    blocks,
                    ended,
                } => {
                    events.push(SourceEvent::Freed {
                        id,
                        request,
                        blocks,
                        ended,
                    });
                    Ok(())
                }
                _ if self.down => Ok(()),
                SourceAction::Send(message) => self.transport.send(&message).map_err(Into::into),
                SourceAction::Post { id, span } => self.post(id, span),
            };
            if let Err(error) = done {
                self.go_down(error, events);
            }
        }
    }

    fn post(&mut self, id: TransferId, span: Span) -> Result<(), AgentError> {
        let (Some(table), Some(sums)) = (self.source.table(id), self.source.sums(id, span)) else {
            return Ok(());
        };
        let ranges = self.region.descriptors(table, span, &self.pieces);
        let head = DataHead { id, span, sums };
        let posted = self.transport.post(head, self.registered, &ranges)?;
        self.source.posted(id, span, posted);
        Ok(())
    }

    fn go_down(&mut self, error: AgentError, events: &mut Vec<SourceEvent>) {
        if !std::mem::replace(&mut self.down, true) {
            // First the transport, so that nothing reads blocks that are freed next.
            self.transport.close();
            self.source.link_down(self.clock.now());
            events.push(SourceEvent::Down(error));
        }
    }

    /// Leases that have not ended.
    pub fn leases(&self) -> usize {
        self.source.leases()
    }

    /// When a lease ends next if its sink stays silent; a step should not wait for longer.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.source.next_deadline()
    }

    /// Leases whose sink has not asked for anything yet.
    pub fn queue_depth(&self) -> usize {
        self.source.queue_depth()
    }

    /// What came too late so far.
    pub fn late(&self) -> Late {
        self.source.late()
    }

    /// The rows of transfers that ended since the last call.
    pub fn take_rows(&mut self) -> Vec<TransferRow> {
        self.source.take_rows()
    }
}
