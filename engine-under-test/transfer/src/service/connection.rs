//! One connection of an importer: claims that wait for an answer, and transfers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use pb_contract::{Nanos, RequestId};

use super::Remote;
use super::import::{Claim, Common, ImportEvent, Order};
use crate::agent::{AgentError, SinkAgent, SinkEvent};
use crate::message::{Cause, Offer, TransferId};

/// How long an idle connection sleeps before it looks whether its peer is still there.
const IDLE: Duration = Duration::from_millis(50);
/// How soon an early claim that was declined is sent again. The peer has kept it for a while
/// before.
const AGAIN: Nanos = Nanos::from_millis(1);
/// How long a busy one waits for its peer before it looks for orders.
const BUSY: Duration = Duration::from_millis(1);

/// A claim on its way.
struct Wanted {
    claim: Claim,
    since: Nanos,
    /// Whether it was sent over a connection that then broke.
    retried: bool,
    /// When it is sent again; of an early one that was declined.
    again: Option<Nanos>,
}

/// A transfer.
struct Moving {
    offer: Offer,
    since: Nanos,
    /// When there was room, and how many blocks were to come.
    room: Option<(Nanos, u64)>,
}

/// One exporter.
pub(super) struct Connection {
    common: Arc<Common>,
    to: Remote,
    orders: Receiver<Order>,
    /// By ticket.
    wanted: BTreeMap<u64, Wanted>,
    /// By request.
    moving: BTreeMap<RequestId, Moving>,
    /// Requests by transfer.
    names: BTreeMap<TransferId, RequestId>,
}

impl Connection {
    pub(super) fn new(common: Arc<Common>, to: Remote, orders: Receiver<Order>) -> Connection {
        Connection {
            common,
            to,
            orders,
            wanted: BTreeMap::new(),
            moving: BTreeMap::new(),
            names: BTreeMap::new(),
        }
    }

    /// Serves until the peer is gone; what was claimed and not offered by then is claimed once
    /// more, because an idle connection may have broken long before. So is what is claimed while
    /// the connection ends.
    pub(super) fn run(mut self) {
        let mut why = "the engine is shutting down".to_owned();
        while !self.common.stopped.load(Ordering::Relaxed) {
            match self.connect() {
                Ok(agent) => why = self.serve(agent),
                Err(error) => {
                    why = error.to_string();
                    break;
                }
            }
            let lost: Vec<u64> = self
                .wanted
                .values()
                .filter(|w| w.retried)
                .map(ticket)
                .collect();
            for ticket in lost {
                if let Some(wanted) = self.wanted.remove(&ticket) {
                    let request = wanted.claim.request;
                    self.common.fail(request, Cause::LinkDown, why.clone());
                }
            }
            self.wanted.values_mut().for_each(|w| w.retried = true);
            if !self.goes_on() {
                return;
            }
        }
        let common = Arc::clone(&self.common);
        let mut peers = common.peers();
        peers.orders.remove(&self.to);
        self.take_late_orders();
        drop(peers);
        for wanted in std::mem::take(&mut self.wanted).into_values() {
            let request = wanted.claim.request;
            self.common.fail(request, Cause::LinkDown, why.clone());
        }
    }

    /// Whether there are claims for another connection to this peer. If there are none, the next
    /// claim finds that nobody is connected: who claims holds the same lock.
    fn goes_on(&mut self) -> bool {
        let common = Arc::clone(&self.common);
        let mut peers = common.peers();
        self.take_late_orders();
        if self.wanted.is_empty() {
            peers.orders.remove(&self.to);
        }
        !self.wanted.is_empty()
    }

    /// Takes the orders that came when the connection had ended.
    fn take_late_orders(&mut self) {
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Claim(claim) => {
                    self.want(claim);
                }
                Order::Cancel(request) => self.cancel_claim(request),
                // Its transfer has ended with the connection, and has told so.
                Order::Reserved { .. } => {}
            }
        }
    }

    fn connect(&self) -> Result<SinkAgent, AgentError> {
        let common = &self.common;
        let session = {
            let sessions = common.sessions.lock();
            sessions.unwrap_or_else(PoisonError::into_inner).next_u64()
        };
        let clock = Arc::clone(&common.clock);
        let transport = common
            .options
            .dial
            .connect(&self.to, session, Arc::clone(&clock))?;
        let memory = (Arc::clone(&common.memory), common.region);
        SinkAgent::connect(transport, &common.me, memory, clock, &common.options.sink)
    }

    /// Works until the connection is over; says why it is.
    fn serve(&mut self, mut agent: SinkAgent) -> String {
        for wanted in self.wanted.values() {
            let claim = &wanted.claim;
            agent.claim(claim.ticket, claim.digest, claim.early);
        }
        let mut down = None;
        while down.is_none() && !self.common.stopped.load(Ordering::Relaxed) {
            let idle = self.wanted.is_empty() && self.moving.is_empty();
            for order in self.take_orders(idle) {
                self.obey(order, &mut agent);
            }
            let wait = match self.wanted.is_empty() && self.moving.is_empty() {
                true => Duration::ZERO,
                false => BUSY,
            };
            for event in agent.step(wait) {
                if let SinkEvent::Down(error) = &event {
                    down = Some(error.to_string());
                }
                self.told(event, &mut agent);
            }
            self.claim_again(&mut agent);
            self.expire();
        }
        let why = down.unwrap_or_else(|| "the engine is shutting down".to_owned());
        // The agent has told of each of its transfers; none is left but by a fault of its own.
        for request in std::mem::take(&mut self.moving).into_keys() {
            self.common.fail(request, Cause::LinkDown, why.clone());
        }
        self.names.clear();
        why
    }

    /// Orders that have come; waits for one when there is nothing else to do.
    fn take_orders(&self, idle: bool) -> VecDeque<Order> {
        let mut all = VecDeque::new();
        if idle {
            match self.orders.recv_timeout(IDLE) {
                Ok(order) => all.push_back(order),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
        while let Ok(order) = self.orders.try_recv() {
            all.push_back(order);
        }
        all
    }

    /// Notes a claim. A ticket that is claimed already cannot be claimed by another request.
    fn want(&mut self, claim: Claim) -> bool {
        if self.wanted.contains_key(&claim.ticket) {
            let reason = "another request claims the same transfer";
            self.common.fail(claim.request, Cause::Protocol, reason);
            return false;
        }
        let wanted = Wanted {
            since: self.common.clock.now(),
            retried: false,
            again: None,
            claim,
        };
        self.wanted.insert(wanted.claim.ticket, wanted);
        true
    }

    fn obey(&mut self, order: Order, agent: &mut SinkAgent) {
        match order {
            Order::Claim(claim) => {
                let (ticket, digest, early) = (claim.ticket, claim.digest, claim.early);
                if self.want(claim) {
                    agent.claim(ticket, digest, early);
                }
            }
            Order::Reserved {
                request,
                blocks,
                have,
            } => {
                let now = self.common.clock.now();
                if let Some(moving) = self.moving.get_mut(&request) {
                    let new = blocks.len() as u64 - u64::from(have).min(blocks.len() as u64);
                    moving.room = Some((now, new));
                    // A transfer that is over meanwhile has told so.
                    agent.reserved_beyond(moving.offer.id, blocks, have);
                }
            }
            Order::Cancel(request) => {
                if let Some(moving) = self.moving.get(&request) {
                    agent.cancel(moving.offer.request);
                    return;
                }
                self.cancel_claim(request);
            }
        }
    }

    fn cancel_claim(&mut self, request: RequestId) {
        let claimed = self.wanted.values().find(|w| w.claim.request == request);
        if let Some(ticket) = claimed.map(ticket) {
            // An offer that still comes finds nobody and is cancelled.
            self.wanted.remove(&ticket);
            let reason = "the request was cancelled";
            self.common.fail(request, Cause::Cancelled, reason);
        }
    }

    fn told(&mut self, event: SinkEvent, agent: &mut SinkAgent) {
        match event {
            SinkEvent::Reserve(offer) => self.offered(offer, agent),
            SinkEvent::Started { id, .. } => {
                let moving = self
                    .names
                    .remove(&id)
                    .and_then(|r| self.moving.remove_entry(&r));
                if let Some((request, moving)) = moving {
                    let now = self.common.clock.now();
                    let (room, blocks) = moving.room.unwrap_or((now, 0));
                    let block_bytes =
                        self.common.region.segment_bytes() * agent.agreement().sink.layers as u64;
                    (self.common.tell)(ImportEvent::Started {
                        request,
                        total_ns: now.saturating_sub(moving.since).0,
                        transfer_ns: now.saturating_sub(room).0,
                        bytes: blocks * block_bytes,
                    });
                }
            }
            SinkEvent::Failed {
                id, request, cause, ..
            } => {
                let known = self.names.remove(&id);
                let gone = known.and_then(|r| self.moving.remove(&r).map(|_| r));
                // An offer may be refused before it was shown: then its ticket still waits.
                let gone = gone.or_else(|| Some(self.wanted.remove(&request.0)?.claim.request));
                if let Some(request) = gone {
                    let reason = format!("the transfer failed: {}", cause.name());
                    self.common.fail(request, cause, reason);
                }
            }
            SinkEvent::Declined { ticket, cause } => {
                let early = self.wanted.get_mut(&ticket).filter(|w| w.claim.early);
                if let Some(wanted) = early.filter(|_| cause == Cause::Expired) {
                    wanted.again = Some(self.common.clock.now() + AGAIN);
                    return;
                }
                if let Some(wanted) = self.wanted.remove(&ticket) {
                    let reason = match cause {
                        Cause::Expired => "nothing is held under that transfer_id (any more)",
                        Cause::Mismatch => {
                            "the KV held under that transfer_id is not this prompt's"
                        }
                        other => other.name(),
                    };
                    self.common.fail(wanted.claim.request, cause, reason);
                }
            }
            SinkEvent::Down(_) => {}
        }
    }

    fn offered(&mut self, offer: Offer, agent: &mut SinkAgent) {
        let Some(wanted) = self.wanted.remove(&offer.request.0) else {
            agent.cancel(offer.request);
            return;
        };
        let request = wanted.claim.request;
        self.names.insert(offer.id, request);
        self.moving.insert(
            request,
            Moving {
                offer,
                since: wanted.since,
                room: None,
            },
        );
        (self.common.tell)(ImportEvent::Room {
            request,
            tokens: offer.tokens,
            direct: agent.agreement().is_direct(),
        });
    }

    /// Sends early claims again whose time has come.
    fn claim_again(&mut self, agent: &mut SinkAgent) {
        let now = self.common.clock.now();
        for wanted in self.wanted.values_mut() {
            if wanted.again.is_some_and(|at| at <= now) {
                // Not before it was answered.
                wanted.again = None;
                agent.claim(wanted.claim.ticket, wanted.claim.digest, true);
            }
        }
    }

    /// Fails claims that nobody answers.
    fn expire(&mut self) {
        let (now, limit) = (self.common.clock.now(), self.common.options.claim);
        let due = |wanted: &&Wanted| wanted.since + limit <= now;
        let tickets: Vec<u64> = self.wanted.values().filter(due).map(ticket).collect();
        for ticket in tickets {
            if let Some(wanted) = self.wanted.remove(&ticket) {
                let reason = "the engine that holds the KV does not answer";
                self.common
                    .fail(wanted.claim.request, Cause::Stalled, reason);
            }
        }
    }
}

fn ticket(wanted: &Wanted) -> u64 {
    wanted.claim.ticket
}
