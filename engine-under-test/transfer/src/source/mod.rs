//! The side that has the blocks: leases, and what is sent when.
//!
//! A lease ends once, by acknowledgement, silence, abort or a dead connection, and its blocks are
//! freed once, when no transport reads them any more. Everything that names a lease which has ended
//! is late: counted, and otherwise without effect.

mod types;

use std::collections::{BTreeMap, VecDeque};

use pb_contract::{BlockId, Nanos};

use crate::cells::{CellSet, Span};
use crate::message::{Cause, Granularity, Message, Offer, TransferId};
use crate::row::{self, Defect, Ended, TransferRow};

/// A cell may be asked for again this many times on average; a sink that wants more is broken.
const RESENDS_PER_CELL: u64 = 4;

pub use types::{Late, Lend, Posted, ProtocolError, SourceAction, SourceConfig};

struct Lease {
    lend: Lend,
    offered: Nanos,
    deadline: Nanos,
    prefill_ended: Option<Nanos>,
    sealed: CellSet,
    sums: Vec<u64>,
    wanted: CellSet,
    /// Wanted, computed as far as the granularity asks for, not handed to the transport yet.
    pending: CellSet,
    posted: CellSet,
    in_flight: u32,
    ending: bool,
    row: TransferRow,
}

/// The source's end of one connection.
pub struct Source {
    config: SourceConfig,
    next_id: u64,
    leases: BTreeMap<TransferId, Lease>,
    actions: VecDeque<SourceAction>,
    rows: Vec<TransferRow>,
    in_flight: u32,
    late: Late,
}

impl Source {
    /// A source whose first transfer is called `first_id`. Ids must not be used twice, over
    /// restarts of the connection included.
    pub fn new(config: SourceConfig, first_id: u64) -> Source {
        Source {
            config,
            next_id: first_id,
            leases: BTreeMap::new(),
            actions: VecDeque::new(),
            rows: Vec::new(),
            in_flight: 0,
            late: Late::default(),
        }
    }

    /// Takes the blocks on lease and offers them. They need not be computed yet.
    pub fn lend(&mut self, now: Nanos, lend: Lend) -> TransferId {
        let id = TransferId(self.next_id);
        self.next_id += 1;
        let (blocks, layers) = (lend.blocks.len() as u32, self.config.layers);
        let empty = CellSet::new(blocks, layers);
        self.actions
            .push_back(SourceAction::Send(Message::Offer(Offer {
                id,
                request: lend.request,
                tokens: lend.tokens,
                blocks,
                mode: lend.mode,
                granularity: lend.granularity,
                lease_ns: self.config.lease.0,
            })));
        let names = [lend.mode.name(), lend.granularity.name()];
        let lease = Lease {
            row: row::start(id, lend.request, names, lend.tokens, blocks, now),
            offered: now,
            deadline: now + self.config.lease,
            prefill_ended: None,
            sums: vec![0; Span::whole(blocks, layers).cells() as usize],
            sealed: empty.clone(),
            wanted: empty.clone(),
            pending: empty.clone(),
            posted: empty,
            in_flight: 0,
            ending: false,
            lend,
        };
        self.leases.insert(id, lease);
        id
    }

    /// The cells of `span` are computed and will not change; `sums` are their checksums. False
    /// when the lease has ended.
    ///
    /// # Panics
    /// When the span is not within the transfer or the sums are not one for each cell.
    pub fn seal(&mut self, id: TransferId, span: Span, sums: &[u64]) -> bool {
        let layers = self.config.layers;
        let Some(lease) = self.leases.get_mut(&id).filter(|lease| !lease.ending) else {
            return false;
        };
        assert!(
            span.is_within(lease.lend.blocks.len() as u32, layers),
            "{span:?}"
        );
        assert_eq!(sums.len() as u64, span.cells(), "a sum for each cell");
        for ((b, l), sum) in span.iter().zip(sums) {
            lease.sums[(b * layers + l) as usize] = *sum;
            lease.sealed.insert(b, l);
        }
        let whole = Span::whole(lease.lend.blocks.len() as u32, layers);
        let freed = match lease.lend.granularity {
            Granularity::Bulk => whole,
            Granularity::Chunk => Span {
                layer: 0,
                layers,
                ..span
            },
            Granularity::Layer => span,
        };
        lease.release(freed, self.config.defect);
        self.post();
        true
    }

    /// The prefill of the request ended at `now`; for the time that is exposed after it.
    pub fn prefill_ended(&mut self, now: Nanos, id: TransferId) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.prefill_ended = Some(now);
        }
    }

    /// Takes a message of the sink.
    ///
    /// # Errors
    /// The message makes no sense; close the connection and call [`Source::link_down`].
    pub fn on_message(&mut self, now: Nanos, message: &Message) -> Result<(), ProtocolError> {
        let (id, is_ack) = match message {
            Message::Want { id, .. } | Message::Renew { id } | Message::Abort { id, .. } => {
                (*id, false)
            }
            Message::Ack { id, .. } => (*id, true),
            _ => {
                return Err(ProtocolError {
                    id: TransferId(0),
                    problem: "a message that a source does not get",
                });
            }
        };
        if id.0 >= self.next_id {
            let problem = "an id that was never offered";
            return Err(ProtocolError { id, problem });
        }
        let live = self.leases.get_mut(&id).filter(|lease| !lease.ending);
        let Some(lease) = live else {
            self.late.acks += u64::from(is_ack);
            self.late.others += u64::from(!is_ack);
            return Ok(());
        };
        lease.deadline = now + self.config.lease;
        match message {
            Message::Want { span, .. } => self.want(now, id, *span)?,
            Message::Ack { cells, .. } => {
                // A sink need not ask for what it has, but what it asked for it must have got.
                let wanted = lease.wanted.len();
                if *cells == 0 || *cells != wanted || lease.posted.len() != wanted {
                    let problem = "acknowledges cells that were not sent";
                    return Err(ProtocolError { id, problem });
                }
                self.end(now, id, Ended::Acknowledged, None);
            }
            Message::Abort { cause, .. } => self.end(now, id, Ended::Aborted, Some(*cause)),
            _ => {}
        }
        Ok(())
    }

    fn want(&mut self, now: Nanos, id: TransferId, span: Span) -> Result<(), ProtocolError> {
        let defect = self.config.defect;
        let Some(lease) = self.leases.get_mut(&id) else {
            return Ok(());
        };
        let blocks = lease.lend.blocks.len() as u32;
        if !span.is_within(blocks, self.config.layers) {
            let problem = "wants cells that the transfer does not have";
            return Err(ProtocolError { id, problem });
        }
        let waited = now.saturating_sub(lease.offered).0;
        lease.row.queue_wait_ns.get_or_insert(waited);
        for (b, l) in span.iter() {
            lease.wanted.insert(b, l);
            lease.row.resent_cells += u64::from(lease.posted.remove(b, l));
        }
        let whole = Span::whole(blocks, self.config.layers);
        if lease.row.resent_cells > RESENDS_PER_CELL * whole.cells() {
            let problem = "wants cells again and again";
            return Err(ProtocolError { id, problem });
        }
        lease.release(span, defect);
        self.post();
        Ok(())
    }

    /// The transport has taken the frame; it may still read the blocks.
    pub fn posted(&mut self, id: TransferId, span: Span, posted: Posted) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.row.frames += 1;
            lease.row.cells += span.cells();
            lease.row.bytes += posted.bytes;
            if lease.prefill_ended.is_none() {
                lease.row.early_bytes += posted.bytes;
            }
            lease.row.descriptors += posted.descriptors;
            lease.row.copy_ns += posted.copy_ns;
        }
    }

    /// The transport is done with a frame of this transfer, which took it `wire_ns`.
    pub fn sent(&mut self, now: Nanos, id: TransferId, wire_ns: u64) {
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        lease.in_flight -= 1;
        lease.row.wire_ns += wire_ns;
        self.in_flight -= 1;
        if lease.ending && lease.in_flight == 0 {
            self.finish(now, id);
        }
        self.post();
    }

    /// Ends a lease from this side: the request was cancelled, or memory could not be read. False
    /// when it has ended.
    pub fn abort(&mut self, now: Nanos, id: TransferId, cause: Cause) -> bool {
        let live = self.leases.get(&id).is_some_and(|lease| !lease.ending);
        if live {
            self.tell(id, cause);
            self.end(now, id, Ended::Aborted, Some(cause));
        }
        live
    }

    /// The connection is gone, and the transport reads nothing any more.
    pub fn link_down(&mut self, now: Nanos) {
        self.in_flight = 0;
        let freed = |action: &SourceAction| matches!(action, SourceAction::Free { .. });
        self.actions.retain(freed);
        for lease in self.leases.values_mut() {
            lease.in_flight = 0;
            lease.pending = lease.empty(self.config.layers);
        }
        let ids: Vec<(TransferId, bool)> = self
            .leases
            .iter()
            .map(|(id, lease)| (*id, lease.ending))
            .collect();
        for (id, ending) in ids {
            if ending {
                self.finish(now, id);
            } else {
                self.end(now, id, Ended::PeerDead, Some(Cause::LinkDown));
            }
        }
    }

    /// Ends what has been silent for too long.
    pub fn tick(&mut self, now: Nanos) {
        let due = |lease: &&Lease| !lease.ending && lease.deadline <= now;
        let ids: Vec<TransferId> = self
            .leases
            .iter()
            .filter(|(_, lease)| due(lease))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            self.tell(id, Cause::Expired);
            self.end(now, id, Ended::Expired, Some(Cause::Expired));
        }
    }

    /// When [`Source::tick`] has something to do next.
    pub fn next_deadline(&self) -> Option<Nanos> {
        let live = self.leases.values().filter(|lease| !lease.ending);
        live.map(|lease| lease.deadline).min()
    }

    /// What to do next.
    pub fn next_action(&mut self) -> Option<SourceAction> {
        self.actions.pop_front()
    }

    /// The blocks of a transfer, for an action; none when it is over.
    pub fn table(&self, id: TransferId) -> Option<&[BlockId]> {
        Some(&self.leases.get(&id)?.lend.blocks)
    }

    /// The checksums of cells that were sealed.
    pub fn sums(&self, id: TransferId, span: Span) -> Option<Vec<u64>> {
        let sums = &self.leases.get(&id)?.sums;
        let at = |(b, l): (u32, u32)| sums[(b * self.config.layers + l) as usize];
        Some(span.iter().map(at).collect())
    }

    /// Leases that have not ended, those included that wait for the transport.
    pub fn leases(&self) -> usize {
        self.leases.len()
    }

    /// Leases whose sink has not asked for anything yet.
    pub fn queue_depth(&self) -> usize {
        let waits = |lease: &&Lease| lease.row.queue_wait_ns.is_none();
        self.leases.values().filter(waits).count()
    }

    /// What came too late so far.
    pub fn late(&self) -> Late {
        self.late
    }

    /// The rows of transfers that ended since the last call.
    pub fn take_rows(&mut self) -> Vec<TransferRow> {
        std::mem::take(&mut self.rows)
    }

    /// Checks the bookkeeping.
    ///
    /// # Errors
    /// What does not add up.
    pub fn check(&self) -> Result<(), String> {
        let sum: u32 = self.leases.values().map(|lease| lease.in_flight).sum();
        if sum != self.in_flight || sum > self.config.frames_in_flight {
            return Err(format!(
                "{sum} frames in flight, counted {}",
                self.in_flight
            ));
        }
        for (id, lease) in &self.leases {
            if lease.ending && lease.in_flight == 0 && self.config.defect == Defect::None {
                return Err(format!("transfer {id} has ended and was not freed"));
            }
        }
        Ok(())
    }

    /// Hands pending cells to the transport, oldest transfer first, as far as it takes them.
    fn post(&mut self) {
        for (&id, lease) in &mut self.leases {
            while self.in_flight < self.config.frames_in_flight {
                let next = lease
                    .pending
                    .next_span(self.config.order, self.config.frame_cells);
                let Some(span) = next else {
                    break;
                };
                for (b, l) in span.iter() {
                    lease.pending.remove(b, l);
                    lease.posted.insert(b, l);
                }
                lease.in_flight += 1;
                self.in_flight += 1;
                self.actions.push_back(SourceAction::Post { id, span });
            }
        }
    }

    fn tell(&mut self, id: TransferId, cause: Cause) {
        let message = Message::Abort { id, cause };
        self.actions.push_back(SourceAction::Send(message));
    }

    fn end(&mut self, now: Nanos, id: TransferId, ended: Ended, cause: Option<Cause>) {
        let defect = self.config.defect;
        let Some(lease) = self.leases.get_mut(&id) else {
            return;
        };
        self.actions.retain(|action| match action {
            // Not handed over yet, so nobody reads these.
            SourceAction::Post { id: posted, .. } if *posted == id => {
                lease.in_flight -= 1;
                self.in_flight -= 1;
                false
            }
            _ => true,
        });
        lease.ending = true;
        row::set_end(&mut lease.row, ended, cause);
        lease.pending = lease.empty(self.config.layers);
        if lease.in_flight == 0 || defect == Defect::FreeInFlight {
            self.finish(now, id);
        }
        self.post();
    }

    /// Gives the blocks back: the one place where that happens.
    fn finish(&mut self, now: Nanos, id: TransferId) {
        let Some(mut lease) = self.leases.remove(&id) else {
            return;
        };
        self.in_flight -= lease.in_flight;
        lease.row.total_ns = now.saturating_sub(lease.offered).0;
        let exposed = lease.prefill_ended.map(|end| now.saturating_sub(end).0);
        lease.row.exposed_ns = exposed;
        let ended = lease.row.ended;
        self.rows.push(lease.row);
        let free = SourceAction::Free {
            id,
            request: lease.lend.request,
            blocks: lease.lend.blocks,
            ended,
        };
        match self.config.defect {
            Defect::FreeTwice => self.actions.extend([free.clone(), free]),
            Defect::LeakOnAbort if ended == Ended::Aborted => {}
            _ => self.actions.push_back(free),
        }
    }
}

impl Lease {
    fn empty(&self, layers: u32) -> CellSet {
        CellSet::new(self.lend.blocks.len() as u32, layers)
    }

    /// Makes those cells of `span` pending that are wanted, computed and not sent.
    fn release(&mut self, span: Span, defect: Defect) {
        let bulk_waits = self.lend.granularity == Granularity::Bulk && !self.sealed.is_full();
        if bulk_waits && defect != Defect::SendUnsealed {
            return;
        }
        for (b, l) in span.iter() {
            let computed = match self.lend.granularity {
                Granularity::Bulk => !bulk_waits,
                Granularity::Chunk => self.sealed.has_block(b),
                Granularity::Layer => self.sealed.contains(b, l),
            };
            let free = self.wanted.contains(b, l) && !self.posted.contains(b, l);
            if free && (computed || defect == Defect::SendUnsealed) {
                self.pending.insert(b, l);
            }
        }
    }
}
