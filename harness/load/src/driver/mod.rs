//! The load driver: when which request is sent, as a pure state machine.
//!
//! A driver that waits for the server before it sends hides the queue that it causes. Here every
//! arrival has an intended instant that is fixed without looking at lateness: for the open loop
//! the plan's offset, for a closed loop the moment in which its slot became free, for a session
//! the end of its last turn and the time that its user thinks. However late
//! the driver is asked, it sends what is due, late and with that instant; nothing is skipped. What
//! was due and could not be sent before the run was cut off is reported as not offered.
//!
//! There is no clock in here: a shell says what time it is, when a request has ended, and carries
//! out the actions. The wall shell and the simulation shell run this same code.

mod sessions;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use pb_contract::plan::{Plan, PlannedBody, PlannedPrompt, Session};
use pb_contract::{Nanos, RequestId};

use self::sessions::Sessions;

/// A plan that cannot be executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Two requests have the same id.
    #[error("request id {0} occurs twice in the plan")]
    DuplicateId(RequestId),
    /// Open-loop requests are not in order.
    #[error("open-loop request {0} is out of order: sort by (offset, id)")]
    Unsorted(RequestId),
    /// An open-loop request is due after the horizon.
    #[error("open-loop request {id} is due at {offset_ns} ns, after the horizon {horizon_ns} ns")]
    PastHorizon {
        /// The request.
        id: RequestId,
        /// Its offset.
        offset_ns: u64,
        /// The plan's horizon.
        horizon_ns: u64,
    },
    /// A turn needs the earlier ones in front of it and is no chat.
    #[error("turn {0} takes its history over, so its prompt must be a chat")]
    HistoryNeedsChat(RequestId),
    /// A closed loop without a slot.
    #[error("a closed loop needs at least one stream")]
    NoStreams,
}

/// A request to send.
#[derive(Clone, Debug, PartialEq)]
pub struct SendOrder {
    /// The request.
    pub id: RequestId,
    /// When it was due: latency counts from here.
    pub intended: Nanos,
    /// When nothing but this client kept it any more: later than `intended` for a request that
    /// was held back because enough others were in flight.
    pub free: Nanos,
    /// What to send, the history of its session included.
    pub body: Arc<PlannedBody>,
    /// [`Driver::ended`] is to be given the text of the answer.
    pub wants_answer: bool,
}

/// What a shell has to do, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Send now.
    Send(SendOrder),
    /// Record as not offered: it was due, and the run was cut off before it was sent.
    NotOffered(SendOrder),
    /// Give these requests up and record them as incomplete.
    CutOff(Vec<RequestId>),
    /// Poll again at this instant, or earlier when a request has ended.
    WakeAt(Nanos),
    /// Nothing will ever be due again.
    Done,
}

/// A part of a plan whose requests are known before they are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The open loop.
    Schedule,
    /// The closed loop of this number.
    Loop(usize),
}

/// One closed loop.
#[derive(Debug)]
struct Loop {
    first_id: u64,
    streams: usize,
    bodies: VecDeque<Arc<PlannedBody>>,
    taken: u64,
    /// Instants at which slots became free, oldest first.
    free: VecDeque<Nanos>,
}

/// What a running request belongs to.
#[derive(Clone, Copy, Debug)]
enum Owner {
    Schedule,
    Loop(usize),
    Session(usize),
}

/// The state machine of one run.
#[derive(Debug)]
pub struct Driver {
    open: VecDeque<SendOrder>,
    loops: Vec<Loop>,
    sessions: Sessions,
    /// Requests sent and not ended.
    live: BTreeMap<RequestId, Owner>,
    horizon: Nanos,
    cut_off: Nanos,
    exhausted: bool,
    stopped: bool,
    /// Nothing new is sent any more; what runs may end.
    draining: bool,
    /// Instants at which places of the open loop became free, when it has only so many.
    places: Option<VecDeque<Nanos>>,
}

impl Driver {
    /// A driver of `plan` that starts at `start`.
    ///
    /// # Errors
    /// A plan that contradicts itself.
    pub fn new(plan: Plan, start: Nanos) -> Result<Driver, PlanError> {
        check(&plan)?;
        let order = |request: pb_contract::plan::OpenRequest| SendOrder {
            id: request.id,
            intended: start + request.offset_ns,
            free: start + request.offset_ns,
            body: Arc::new(request.body),
            wants_answer: false,
        };
        let closed = |part: pb_contract::plan::ClosedLoop| Loop {
            first_id: part.first_id.0,
            streams: part.streams,
            free: vec![start; part.streams].into(),
            bodies: part.bodies.into_iter().map(Arc::new).collect(),
            taken: 0,
        };
        let horizon = start + plan.horizon_ns;
        Ok(Driver {
            open: plan.open.into_iter().map(order).collect(),
            sessions: Sessions::new(plan.sessions, start),
            loops: plan.closed.into_iter().map(closed).collect(),
            live: BTreeMap::new(),
            horizon,
            cut_off: horizon + plan.drain_ns,
            exhausted: false,
            stopped: false,
            draining: false,
            places: None,
        })
    }

    /// Moves a driver that started at zero and was not polled yet to another start.
    pub fn start_at(&mut self, start: Nanos) {
        for order in &mut self.open {
            order.intended += start;
            order.free += start;
        }
        for part in &mut self.loops {
            part.free.iter_mut().for_each(|free| *free += start);
        }
        self.sessions.start_at(start);
        self.horizon += start;
        self.cut_off += start;
    }

    /// What to do at `now`. Call it at the start, whenever an instant of [`Action::WakeAt`] has
    /// come, and after [`Driver::ended`]. The last action is `WakeAt` or `Done`.
    pub fn poll(&mut self, now: Nanos) -> Vec<Action> {
        let mut actions = Vec::new();
        let over = self.stopped || now >= self.cut_off;
        for order in self.take_due(now) {
            if over || self.draining {
                actions.push(Action::NotOffered(order));
            } else {
                actions.push(Action::Send(order));
            }
        }
        let lost = self.sessions.take_lost();
        actions.extend(lost.into_iter().map(Action::NotOffered));
        if over {
            if !self.live.is_empty() {
                let ids = std::mem::take(&mut self.live).into_keys().collect();
                actions.push(Action::CutOff(ids));
            }
            actions.push(Action::Done);
            return actions;
        }
        actions.push(match self.next_due() {
            Some(at) => Action::WakeAt(at.min(self.cut_off)),
            None if self.live.is_empty() => Action::Done,
            None => Action::WakeAt(self.cut_off),
        });
        actions
    }

    /// A request has ended at `at`, well (with the text of its answer, when its order wants that)
    /// or not; its slot is free and its session goes on from that instant. A request that was cut
    /// off or never sent is not known any more, and nothing happens.
    pub fn ended(&mut self, id: RequestId, at: Nanos, answer: Option<String>) {
        match self.live.remove(&id) {
            Some(Owner::Loop(index)) => becomes_free(&mut self.loops[index].free, at),
            Some(Owner::Session(index)) => self.sessions.ended(index, at, answer),
            Some(Owner::Schedule) => {
                if let Some(places) = &mut self.places {
                    becomes_free(places, at);
                }
            }
            None => {}
        }
    }

    /// Holds requests of the open loop back while so many of them are in flight. Their latency
    /// counts from their intended arrival all the same.
    pub fn hold_at(&mut self, max_in_flight: usize) {
        self.places = Some(vec![Nanos::ZERO; max_in_flight].into());
    }

    /// Sends nothing new from `now` on and cuts off after `span` what still runs then. What was
    /// due and is not sent is told as not offered; what was not due yet is not told.
    pub fn drain(&mut self, now: Nanos, span: Nanos) {
        self.draining = true;
        self.open.retain(|order| order.intended <= now);
        self.horizon = self.horizon.min(now);
        self.cut_off = self.cut_off.min(now + span);
    }

    /// The run is to end now: the next poll cuts off what is running.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// The request of a part of the plan that comes after its next `skip`. Of a closed loop no
    /// more than one for each of its slots is told.
    pub fn upcoming(&self, part: Part, skip: usize) -> Option<(RequestId, &PlannedBody)> {
        match part {
            Part::Schedule => {
                let order = self.open.get(skip)?;
                Some((order.id, &order.body))
            }
            Part::Loop(index) => {
                let part = self.loops.get(index)?;
                let body = part.bodies.get(skip).filter(|_| skip < part.streams)?;
                let id = RequestId(part.first_id + part.taken + skip as u64);
                Some((id, body))
            }
        }
    }

    /// The parts of the plan whose requests are known before they are due.
    pub fn parts(&self) -> impl Iterator<Item = Part> + use<> {
        let loops = (0..self.loops.len()).map(Part::Loop);
        std::iter::once(Part::Schedule).chain(loops)
    }

    /// Requests sent and not ended.
    pub fn in_flight(&self) -> usize {
        self.live.len()
    }

    /// Whether a closed loop had a free slot before the horizon and no request left for it: the
    /// load was then lower than planned.
    pub fn closed_exhausted(&self) -> bool {
        self.exhausted
    }

    /// The next instant at which something will be due whatever the server does.
    fn next_due(&self) -> Option<Nanos> {
        let full = self.places.as_ref().is_some_and(VecDeque::is_empty);
        let open = self.open.front().filter(|_| !full);
        let open = open.map(|order| order.intended);
        let loops = self.loops.iter().filter(|part| !part.bodies.is_empty());
        let slots = loops.filter_map(|part| part.free.front().copied());
        let turns = self.sessions.next_due(self.horizon);
        let slots = slots.filter(|&free| free <= self.horizon);
        slots.chain(open).chain(turns).min()
    }

    /// Takes everything that is due at `now`, ordered by `(intended, id)`, and marks it live.
    fn take_due(&mut self, now: Nanos) -> Vec<SendOrder> {
        let mut due = Vec::new();
        let over = self.stopped || now >= self.cut_off;
        let sending = !over && !self.draining;
        while let Some(order) = self.open.front().filter(|order| order.intended <= now) {
            let mut free = order.intended;
            if let Some(places) = self.places.as_mut().filter(|_| sending) {
                let Some(place) = places.pop_front() else {
                    break;
                };
                free = free.max(place);
            }
            due.extend(self.open.pop_front().map(|order| {
                let order = SendOrder { free, ..order };
                (order, Owner::Schedule)
            }));
        }
        for (index, part) in self.loops.iter_mut().enumerate() {
            // A slot that became free after the horizon starts nothing any more.
            while let Some(intended) = part
                .free
                .pop_front_if(|free| *free <= now && *free <= self.horizon)
            {
                let Some(body) = part.bodies.pop_front() else {
                    self.exhausted |= intended < self.horizon;
                    continue;
                };
                let id = RequestId(part.first_id + part.taken);
                part.taken += 1;
                let order = SendOrder {
                    id,
                    intended,
                    free: intended,
                    body,
                    wants_answer: false,
                };
                due.push((order, Owner::Loop(index)));
            }
        }
        while let Some((order, index)) = self.sessions.take_due(now, self.horizon) {
            due.push((order, Owner::Session(index)));
        }
        due.sort_by_key(|(order, _)| (order.intended, order.id));
        let mut orders = Vec::with_capacity(due.len());
        for (order, owner) in due {
            if sending {
                self.live.insert(order.id, owner);
            }
            orders.push(order);
        }
        orders
    }
}

/// Adds an instant to those at which a slot became free. Ends may be told out of order; the slot
/// that has waited longest goes first.
fn becomes_free(free: &mut VecDeque<Nanos>, at: Nanos) {
    let place = free.partition_point(|&earlier| earlier <= at);
    free.insert(place, at);
}

fn check(plan: &Plan) -> Result<(), PlanError> {
    let mut ids = BTreeSet::new();
    let mut previous = None;
    for request in &plan.open {
        if !ids.insert(request.id) {
            return Err(PlanError::DuplicateId(request.id));
        }
        let key = (request.offset_ns, request.id);
        if previous.is_some_and(|previous| previous > key) {
            return Err(PlanError::Unsorted(request.id));
        }
        if request.offset_ns > plan.horizon_ns {
            return Err(PlanError::PastHorizon {
                id: request.id,
                offset_ns: request.offset_ns.0,
                horizon_ns: plan.horizon_ns.0,
            });
        }
        previous = Some(key);
    }
    for session in &plan.sessions {
        check_session(session, plan.horizon_ns, &mut ids)?;
    }
    for part in &plan.closed {
        if part.streams == 0 {
            return Err(PlanError::NoStreams);
        }
        for index in 0..part.bodies.len() as u64 {
            let id = RequestId(part.first_id.0.wrapping_add(index));
            if !ids.insert(id) {
                return Err(PlanError::DuplicateId(id));
            }
        }
    }
    Ok(())
}

fn check_session(
    session: &Session,
    horizon: Nanos,
    ids: &mut BTreeSet<RequestId>,
) -> Result<(), PlanError> {
    for turn in &session.turns {
        if !ids.insert(turn.id) {
            return Err(PlanError::DuplicateId(turn.id));
        }
        if turn.history && !matches!(turn.body.prompt, PlannedPrompt::Chat(_)) {
            return Err(PlanError::HistoryNeedsChat(turn.id));
        }
        if session.offset_ns > horizon {
            return Err(PlanError::PastHorizon {
                id: turn.id,
                offset_ns: session.offset_ns.0,
                horizon_ns: horizon.0,
            });
        }
    }
    Ok(())
}
