//! The side that needs the blocks: what is asked for, what is believed, when decode may start.
//!
//! Each offered request ends here once: it starts with every cell verified, or it fails with a
//! cause. Blocks of the sink that were reserved for one that fails are released once, and cells
//! that come for it afterwards are not written anywhere.

use std::collections::{BTreeMap, VecDeque};

use pb_contract::{BlockId, Nanos, RequestId};

use crate::cells::{CellSet, Span};
use crate::frame::checksum;
use crate::message::{Cause, DataHead, Granularity, Message, Mode, Offer, TransferId};
use crate::row::Defect;
use crate::source::ProtocolError;

/// What a sink is set up with.
#[derive(Clone, Copy, Debug)]
pub struct SinkConfig {
    /// Layers.
    pub layers: u32,
    /// Tokens in a block of the source.
    pub source_block_size: u64,
    /// Most blocks of the source in a transfer.
    pub blocks: u32,
    /// Most transfers at a time.
    pub transfers: usize,
    /// Cells that a pull asks for ahead of what has come; with granularity `layer` of each layer.
    pub window_cells: u64,
    /// How long a transfer that has room may go without a cell. Where cells are sent while the
    /// prompt is computed, longer than a step.
    pub stall: Nanos,
    /// How often a transfer's corrupt cells are asked for again, in all.
    pub retries: u32,
    /// A planted defect.
    pub defect: Defect,
}

/// What the shell must do.
#[derive(Clone, Debug, PartialEq)]
pub enum SinkAction {
    /// Send a message.
    Send(Message),
    /// Find room for the request and call [`Sink::reserved`], now or later.
    Reserve(Offer),
    /// All cells are verified: re-lay them out, if need be, and call [`Sink::placed`].
    Place {
        /// The transfer.
        id: TransferId,
    },
    /// The request may decode.
    Start {
        /// The transfer.
        id: TransferId,
        /// The request.
        request: RequestId,
        /// Its blocks, which are the caller's from here on.
        blocks: Vec<BlockId>,
    },
    /// The request has no KV here; compute it again or fail it.
    Fail {
        /// The transfer.
        id: TransferId,
        /// The request.
        request: RequestId,
        /// Why.
        cause: Cause,
        /// Blocks that were reserved for it and are the pool's again.
        blocks: Vec<BlockId>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// For room.
    Waiting,
    Receiving,
    /// Complete and verified.
    Placing,
}

struct Inbound {
    offer: Offer,
    state: State,
    table: Vec<BlockId>,
    /// Leading blocks that are not asked for.
    skipped: u32,
    have: CellSet,
    asked: CellSet,
    retries: u32,
    progressed: Nanos,
    renewed: Nanos,
}

/// Cells that came and were not what was expected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unused {
    /// Without their checksum.
    pub corrupt: u64,
    /// For transfers that are over, or that have them.
    pub late: u64,
}

/// The sink's end of one connection.
pub struct Sink {
    config: SinkConfig,
    inbound: BTreeMap<TransferId, Inbound>,
    newest: Option<TransferId>,
    actions: VecDeque<SinkAction>,
    unused: Unused,
}

impl Sink {
    /// A sink without transfers.
    pub fn new(config: SinkConfig) -> Sink {
        Sink {
            config,
            inbound: BTreeMap::new(),
            newest: None,
            actions: VecDeque::new(),
            unused: Unused::default(),
        }
    }

    /// Takes a message of the source; cells are for [`Sink::admit`] and [`Sink::arrived`].
    ///
    /// # Errors
    /// The message makes no sense; close the connection and call [`Sink::link_down`].
    pub fn on_message(&mut self, now: Nanos, message: &Message) -> Result<(), ProtocolError> {
        match message {
            Message::Offer(offer) => self.offered(now, offer),
            Message::Abort { id, cause } => {
                // Unknown: it is over here too.
                self.fail(*id, *cause);
                Ok(())
            }
            _ => Err(ProtocolError {
                id: TransferId(0),
                problem: "a message that a sink does not get",
            }),
        }
    }

    fn offered(&mut self, now: Nanos, offer: &Offer) -> Result<(), ProtocolError> {
        let id = offer.id;
        if self.newest.is_some_and(|newest| id <= newest) {
            let problem = "an id that was offered before";
            return Err(ProtocolError { id, problem });
        }
        let needed = offer.tokens.div_ceil(self.config.source_block_size);
        if offer.tokens == 0 || needed != u64::from(offer.blocks) {
            let problem = "a number of blocks that does not hold the tokens";
            return Err(ProtocolError { id, problem });
        }
        self.newest = Some(id);
        if offer.blocks > self.config.blocks || self.inbound.len() >= self.config.transfers {
            self.actions.push_back(SinkAction::Fail {
                id,
                request: offer.request,
                cause: Cause::NoRoom,
                blocks: Vec::new(),
            });
            self.tell(id, Cause::NoRoom);
            return Ok(());
        }
        let empty = CellSet::new(offer.blocks, self.config.layers);
        let inbound = Inbound {
            offer: *offer,
            state: State::Waiting,
            table: Vec::new(),
            skipped: 0,
            have: empty.clone(),
            asked: empty,
            retries: self.config.retries,
            progressed: now,
            renewed: now,
        };
        self.inbound.insert(id, inbound);
        self.actions.push_back(SinkAction::Reserve(*offer));
        Ok(())
    }

    /// There is room: `blocks` are the request's. False when the transfer is over; the blocks are
    /// the caller's then.
    pub fn reserved(&mut self, now: Nanos, id: TransferId, blocks: Vec<BlockId>) -> bool {
        self.reserved_beyond(now, id, blocks, 0)
    }

    /// As [`Sink::reserved`], and the data of the first `have` blocks is here already. At least one
    /// block is asked for, so that the source learns of the end by an acknowledgement of cells.
    pub fn reserved_beyond(
        &mut self,
        now: Nanos,
        id: TransferId,
        blocks: Vec<BlockId>,
        have: u32,
    ) -> bool {
        let waits = |inbound: &&mut Inbound| inbound.state == State::Waiting;
        let Some(inbound) = self.inbound.get_mut(&id).filter(waits) else {
            return false;
        };
        inbound.state = State::Receiving;
        inbound.table = blocks;
        inbound.skipped = have.min(inbound.offer.blocks.saturating_sub(1));
        for (b, l) in Span::whole(inbound.skipped, self.config.layers).iter() {
            inbound.asked.insert(b, l);
            inbound.have.insert(b, l);
        }
        inbound.progressed = now;
        self.ask(now, id);
        true
    }

    /// The sink's blocks for cells that are about to arrive; none when nothing must be written.
    pub fn admit(&self, id: TransferId, span: Span) -> Option<&[BlockId]> {
        let inbound = self.inbound.get(&id)?;
        let fits = span.is_within(inbound.offer.blocks, self.config.layers);
        let wanted = span
            .iter()
            .all(|(b, l)| fits && inbound.asked.contains(b, l));
        // What is here already is shared with others and not written.
        let new = span.block >= inbound.skipped;
        (fits && wanted && new && inbound.state == State::Receiving).then_some(&inbound.table)
    }

    /// Which cells of a frame have their checksums. `payload` is the cells one after the other; one
    /// of another length has none.
    pub fn judge(&self, head: &DataHead, cell_bytes: usize, payload: &[u8]) -> Vec<bool> {
        let cells = head.sums.len();
        if payload.len() != cells * cell_bytes || head.span.cells() != cells as u64 {
            return vec![false; cells];
        }
        let cells = head
            .span
            .iter()
            .zip(payload.chunks_exact(cell_bytes.max(1)));
        let sums = cells.zip(&head.sums);
        sums.map(|(((b, l), cell), sum)| {
            self.config.defect == Defect::SkipChecksum || checksum(head.id, b, l, cell) == *sum
        })
        .collect()
    }

    /// Cells have arrived; `good` says for each whether it was as it was sent, and only those lie
    /// where [`Sink::admit`] said.
    pub fn arrived(&mut self, now: Nanos, id: TransferId, span: Span, good: &[bool]) {
        let receiving = |inbound: &&mut Inbound| inbound.state == State::Receiving;
        let Some(inbound) = self.inbound.get_mut(&id).filter(receiving) else {
            self.unused.late += span.cells();
            return;
        };
        let mut again = Vec::new();
        for ((b, l), good) in span.iter().zip(good) {
            if *good {
                let new = inbound.have.insert(b, l);
                self.unused.late += u64::from(!new);
            } else if !inbound.have.contains(b, l) {
                self.unused.corrupt += 1;
                again.push(Span::cell(b, l));
            }
        }
        inbound.progressed = now;
        if again.len() > inbound.retries as usize {
            self.give_up(id, Cause::Corrupt);
            return;
        }
        inbound.retries -= again.len() as u32;
        let missing = u64::from(self.config.defect == Defect::StartIncomplete);
        let whole = Span::whole(inbound.offer.blocks, self.config.layers).cells();
        if inbound.have.len() + missing >= whole {
            inbound.state = State::Placing;
            self.actions.push_back(SinkAction::Place { id });
            return;
        }
        for span in again {
            let want = Message::Want { id, span };
            self.actions.push_back(SinkAction::Send(want));
        }
        self.ask(now, id);
    }

    /// The cells lie in the blocks of the request, or could not be put there.
    pub fn placed(&mut self, id: TransferId, result: Result<(), Cause>) {
        let placing = |inbound: &&mut Inbound| inbound.state == State::Placing;
        let Some(inbound) = self.inbound.get_mut(&id).filter(placing) else {
            return;
        };
        if let Err(cause) = result {
            self.give_up(id, cause);
            return;
        }
        let sent = inbound.offer.blocks - inbound.skipped;
        let cells = Span::whole(sent, self.config.layers).cells();
        let (request, blocks) = (inbound.offer.request, std::mem::take(&mut inbound.table));
        self.inbound.remove(&id);
        let ack = Message::Ack { id, cells };
        self.actions.push_back(SinkAction::Send(ack));
        self.actions.push_back(SinkAction::Start {
            id,
            request,
            blocks,
        });
    }

    /// Ends the transfers of a request that is not wanted any more. False when there is none, as
    /// when it has started.
    pub fn cancel(&mut self, request: RequestId) -> bool {
        let of = |inbound: &Inbound| inbound.offer.request == request;
        let found = self.inbound.iter().find(|(_, inbound)| of(inbound));
        let Some((&id, _)) = found else {
            return false;
        };
        self.give_up(id, Cause::Cancelled);
        true
    }

    /// Ends a transfer from this side.
    pub fn give_up(&mut self, id: TransferId, cause: Cause) {
        if self.inbound.contains_key(&id) {
            self.tell(id, cause);
            self.fail(id, cause);
        }
    }

    /// The connection is gone. What is complete goes on.
    pub fn link_down(&mut self) {
        let lost = |inbound: &Inbound| inbound.state != State::Placing;
        let ids = self.ids(lost);
        ids.into_iter()
            .for_each(|id| self.fail(id, Cause::LinkDown));
        self.newest = None;
    }

    /// Renews leases, and gives up transfers that do not move.
    pub fn tick(&mut self, now: Nanos) {
        for id in self.ids(|inbound| inbound.renew_at() <= now) {
            if let Some(inbound) = self.inbound.get_mut(&id) {
                inbound.renewed = now;
                let renew = Message::Renew { id };
                self.actions.push_back(SinkAction::Send(renew));
            }
        }
        let stall = self.config.stall;
        for id in self.ids(|inbound| inbound.stalls_at(stall).is_some_and(|at| at <= now)) {
            self.give_up(id, Cause::Stalled);
        }
    }

    /// When [`Sink::tick`] has something to do next.
    pub fn next_deadline(&self) -> Option<Nanos> {
        let all = self.inbound.values();
        let due = |inbound: &Inbound| {
            let stalls = inbound.stalls_at(self.config.stall);
            stalls.map_or(inbound.renew_at(), |at| at.min(inbound.renew_at()))
        };
        all.map(due).min()
    }

    /// What to do next.
    pub fn next_action(&mut self) -> Option<SinkAction> {
        self.actions.pop_front()
    }

    /// What was offered under an id that is not over.
    pub fn offer(&self, id: TransferId) -> Option<&Offer> {
        Some(&self.inbound.get(&id)?.offer)
    }

    /// The sink's blocks of a transfer that is not over.
    pub fn table(&self, id: TransferId) -> Option<&[BlockId]> {
        Some(&self.inbound.get(&id)?.table)
    }

    /// Transfers that are not over.
    pub fn transfers(&self) -> usize {
        self.inbound.len()
    }

    /// Transfers that wait for room.
    pub fn queue_depth(&self) -> usize {
        self.ids(|inbound| inbound.state == State::Waiting).len()
    }

    /// Cells that were of no use so far.
    pub fn unused(&self) -> Unused {
        self.unused
    }

    fn ids(&self, of: impl Fn(&Inbound) -> bool) -> Vec<TransferId> {
        let found = self.inbound.iter().filter(|(_, inbound)| of(inbound));
        found.map(|(id, _)| *id).collect()
    }

    /// Asks for what is due: everything, or as much as the window lacks.
    fn ask(&mut self, now: Nanos, id: TransferId) {
        let Some(inbound) = self.inbound.get_mut(&id) else {
            return;
        };
        let whole = Span::whole(inbound.offer.blocks, self.config.layers);
        let window = match inbound.offer.mode {
            Mode::Push => whole.cells(),
            // The layers above come later, and must not hold up the lowest one of more blocks.
            Mode::Pull if inbound.offer.granularity == Granularity::Layer => {
                self.config.window_cells.max(1) * u64::from(whole.layers)
            }
            // At least a block, so that every window can be asked for in whole blocks.
            Mode::Pull => self.config.window_cells.max(u64::from(whole.layers)),
        };
        let open = inbound.asked.len() - inbound.have.len();
        let room = window.saturating_sub(open) / u64::from(whole.layers);
        let first = (inbound.asked.len() / u64::from(whole.layers)) as u32;
        let blocks = room.min(u64::from(whole.blocks - first)) as u32;
        // Asking for single blocks again and again would cost a message each.
        let worthwhile = room * u64::from(whole.layers) * 2 >= window;
        if blocks == 0 || (!worthwhile && open > 0) {
            return;
        }
        let span = Span {
            block: first,
            blocks,
            ..whole
        };
        span.iter().for_each(|(b, l)| {
            inbound.asked.insert(b, l);
        });
        inbound.renewed = now;
        let want = Message::Want { id, span };
        self.actions.push_back(SinkAction::Send(want));
    }

    fn tell(&mut self, id: TransferId, cause: Cause) {
        let message = Message::Abort { id, cause };
        self.actions.push_back(SinkAction::Send(message));
    }

    /// Ends a transfer without its KV: the one place where that happens.
    fn fail(&mut self, id: TransferId, cause: Cause) {
        let Some(inbound) = self.inbound.remove(&id) else {
            return;
        };
        let (request, mut blocks) = (inbound.offer.request, inbound.table);
        // Not yet done, and about a transfer that is over.
        self.actions.retain(|action| match action {
            SinkAction::Reserve(offer) => offer.id != id,
            SinkAction::Place { id: placing } => *placing != id,
            _ => true,
        });
        match self.config.defect {
            Defect::LoseRequest => return,
            Defect::KeepOnFailure => blocks.clear(),
            _ => {}
        }
        self.actions.push_back(SinkAction::Fail {
            id,
            request,
            cause,
            blocks,
        });
    }
}

impl Inbound {
    /// A third of the lease after it was renewed: two renewals may be lost.
    fn renew_at(&self) -> Nanos {
        self.renewed + Nanos((self.offer.lease_ns / 3).max(1))
    }

    /// When it has not moved for too long; a transfer that waits for room does not move.
    fn stalls_at(&self, stall: Nanos) -> Option<Nanos> {
        (self.state == State::Receiving).then_some(self.progressed + stall)
    }
}
