//! The driver in virtual time, against a model of a server.
//!
//! The same state machine that drives a real server runs here on an event queue: hours of load
//! take milliseconds and every run of a seed gives the same rows. A client that hangs can be
//! simulated too, which is how the driver shows that its own delays are counted and not hidden.

use std::collections::{BTreeMap, VecDeque};

use pb_contract::plan::{Plan, PlannedBody};
use pb_contract::wire::{PromptTokensDetails, Usage};
use pb_contract::{Clock, FailKind, Nanos, RequestId, VirtualClock};

use crate::driver::{Action, Driver, PlanError, SendOrder};
use crate::events::{ContentEvent, StreamOutcome};
use crate::rows::{Record, RunContext, blank_row, finish_row, not_offered};

/// What a simulated server tells the client, with the instant at which it leaves the server.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerEvent {
    /// Tokens of a request.
    Tokens {
        /// The request.
        id: RequestId,
        /// When.
        at: Nanos,
        /// How many, in one event.
        tokens: u32,
    },
    /// The end of a request.
    Finished {
        /// The request.
        id: RequestId,
        /// When.
        at: Nanos,
        /// The server's counts.
        usage: Usage,
        /// Why it could not be served, when it could not.
        failure: Option<(FailKind, String)>,
    },
}

impl ServerEvent {
    fn at(&self) -> Nanos {
        match self {
            ServerEvent::Tokens { at, .. } | ServerEvent::Finished { at, .. } => *at,
        }
    }

    fn id(&self) -> RequestId {
        match self {
            ServerEvent::Tokens { id, .. } | ServerEvent::Finished { id, .. } => *id,
        }
    }
}

/// A model of a server.
pub trait SimServer {
    /// A request arrives.
    fn submit(&mut self, now: Nanos, id: RequestId, body: &PlannedBody);

    /// The client hangs up.
    fn abort(&mut self, now: Nanos, id: RequestId);

    /// When the server has something to tell next; `None` when it is idle. Never in the past.
    fn next_event(&self) -> Option<Nanos>;

    /// Moves the server to `now` and appends what it told up to then, in order of time.
    fn advance(&mut self, now: Nanos, out: &mut Vec<ServerEvent>);
}

/// A span in which the client does nothing: it neither sends nor reads. From, until.
pub type Stall = (Nanos, Nanos);

/// Options of a simulated run.
#[derive(Clone, Debug, Default)]
pub struct SimOptions {
    /// Instant of the start.
    pub start: Nanos,
    /// Spans in which the client hangs.
    pub stalls: Vec<Stall>,
}

/// Runs a plan against a model; the records come in order of their ends.
///
/// # Errors
/// A plan that contradicts itself.
pub fn run_sim(
    plan: Plan,
    context: RunContext,
    server: &mut dyn SimServer,
    options: &SimOptions,
) -> Result<Vec<Record>, PlanError> {
    let mut records = Vec::new();
    run_sim_each(plan, context, server, options, |record| {
        records.push(record)
    })?;
    Ok(records)
}

/// [`run_sim`] that hands each record on as soon as its request has ended, so that a run of any
/// length needs no more memory than what is in flight.
///
/// # Errors
/// A plan that contradicts itself.
pub fn run_sim_each(
    plan: Plan,
    context: RunContext,
    server: &mut dyn SimServer,
    options: &SimOptions,
    mut emit: impl FnMut(Record),
) -> Result<(), PlanError> {
    let clock = VirtualClock::new();
    clock.advance_to(options.start);
    let driver = Driver::new(plan, options.start)?;
    let mut shell = Shell {
        driver,
        context,
        clock,
        live: BTreeMap::new(),
        records: Vec::new(),
    };
    let mut wake = Some(options.start);
    while let Some(at) = wake {
        // A hanging client looks at the world again when it has come back.
        shell
            .clock
            .advance_to(after_stall(at.max(shell.clock.now()), &options.stalls));
        wake = shell.turn(server);
        shell.records.drain(..).for_each(&mut emit);
    }
    Ok(())
}

/// The first instant from `at` on at which the client is awake.
fn after_stall(mut at: Nanos, stalls: &[Stall]) -> Nanos {
    while let Some(&(_, until)) = stalls
        .iter()
        .find(|&&(from, until)| from <= at && at < until)
    {
        at = until;
    }
    at
}

/// A request being read.
#[derive(Debug)]
struct Live {
    order: SendOrder,
    sent: Nanos,
    outcome: StreamOutcome,
}

struct Shell {
    driver: Driver,
    context: RunContext,
    clock: VirtualClock,
    live: BTreeMap<RequestId, Live>,
    records: Vec<Record>,
}

impl Shell {
    /// One turn: read what has come, ask the driver, act; the next instant to look again.
    fn turn(&mut self, server: &mut dyn SimServer) -> Option<Nanos> {
        let now = self.clock.now();
        let mut told = Vec::new();
        server.advance(now, &mut told);
        for event in told {
            assert!(
                event.at() <= now,
                "a server told the future: {event:?} at {now}"
            );
            self.receive(event, now);
        }
        let mut wake = None;
        for action in self.driver.poll(now) {
            match action {
                Action::Send(order) => self.send(order, now, server),
                Action::NotOffered(order) => {
                    self.records.push(not_offered(&self.context, &order));
                }
                Action::CutOff(ids) => self.cut_off(&ids, now, server),
                Action::WakeAt(at) => wake = Some(at),
                Action::Done => return None,
            }
        }
        let told_next = server.next_event();
        wake.into_iter().chain(told_next).min()
    }

    fn send(&mut self, order: SendOrder, now: Nanos, server: &mut dyn SimServer) {
        server.submit(now, order.id, &order.body);
        let live = Live {
            sent: now,
            outcome: StreamOutcome::default(),
            order,
        };
        self.live.insert(live.order.id, live);
    }

    /// An event is stamped when the client reads it, as in a real client.
    fn receive(&mut self, event: ServerEvent, now: Nanos) {
        let Some(live) = self.live.get_mut(&event.id()) else {
            return;
        };
        live.outcome.first_event.get_or_insert(now);
        match event {
            ServerEvent::Tokens { tokens, .. } => {
                live.outcome.content.push(ContentEvent { at: now, tokens });
                live.outcome.streamed_tokens += tokens;
            }
            ServerEvent::Finished {
                id, usage, failure, ..
            } => {
                live.outcome.usage = Some(usage);
                live.outcome.finish_reason = failure.is_none().then(|| "length".to_owned());
                live.outcome.failure = failure;
                self.end(id, now);
            }
        }
    }

    fn cut_off(&mut self, ids: &[RequestId], now: Nanos, server: &mut dyn SimServer) {
        for &id in ids {
            server.abort(now, id);
            if let Some(live) = self.live.get_mut(&id) {
                let message = "still running when the run was cut off".to_owned();
                live.outcome.failure = Some((FailKind::Cancelled, message));
            }
            self.end(id, now);
        }
    }

    fn end(&mut self, id: RequestId, now: Nanos) {
        let Some(live) = self.live.remove(&id) else {
            return;
        };
        let mut row = blank_row(&self.context, &live.order);
        row.sent_ns = Some(live.sent);
        row.headers_ns = live.outcome.first_event;
        // A model makes no text: an empty answer stands for it.
        let answer = live.outcome.failure.is_none().then(String::new);
        self.records.push(finish_row(row, live.outcome, now));
        self.driver.ended(id, now, answer);
    }
}

/// A server with a fixed service time: every request waits for one of `slots`, then gives its
/// first token after `ttft` and each further one after `gap`.
#[derive(Debug)]
pub struct FixedServer {
    /// Time from the start of service to the first token.
    pub ttft: Nanos,
    /// Time between tokens.
    pub gap: Nanos,
    /// Requests served at once.
    pub slots: usize,
    waiting: VecDeque<Job>,
    running: Vec<Job>,
}

#[derive(Clone, Debug)]
struct Job {
    id: RequestId,
    prompt: u32,
    total: u32,
    made: u32,
    next: Nanos,
}

impl FixedServer {
    /// An idle server.
    pub fn new(ttft: Nanos, gap: Nanos, slots: usize) -> Self {
        FixedServer {
            ttft,
            gap,
            slots,
            waiting: VecDeque::new(),
            running: Vec::new(),
        }
    }

    fn fill(&mut self, now: Nanos) {
        while self.running.len() < self.slots {
            let Some(mut job) = self.waiting.pop_front() else {
                break;
            };
            job.next = now + self.ttft;
            self.running.push(job);
        }
    }

    /// The running job that tells next; ties by request id.
    fn soonest(&self) -> Option<usize> {
        (0..self.running.len()).min_by_key(|&i| (self.running[i].next, self.running[i].id))
    }
}

impl SimServer for FixedServer {
    fn submit(&mut self, now: Nanos, id: RequestId, body: &PlannedBody) {
        let (prompt, total) = (body.planned_tokens, body.max_tokens.max(1));
        self.waiting.push_back(Job {
            id,
            prompt,
            total,
            made: 0,
            next: now,
        });
        self.fill(now);
    }

    fn abort(&mut self, now: Nanos, id: RequestId) {
        self.waiting.retain(|job| job.id != id);
        self.running.retain(|job| job.id != id);
        self.fill(now);
    }

    fn next_event(&self) -> Option<Nanos> {
        self.soonest().map(|index| self.running[index].next)
    }

    fn advance(&mut self, now: Nanos, out: &mut Vec<ServerEvent>) {
        while let Some(index) = self
            .soonest()
            .filter(|&index| self.running[index].next <= now)
        {
            let (gap, job) = (self.gap, &mut self.running[index]);
            let (id, at) = (job.id, job.next);
            out.push(ServerEvent::Tokens { id, at, tokens: 1 });
            job.made += 1;
            job.next += gap;
            if job.made == job.total {
                let usage = Usage {
                    prompt_tokens: job.prompt,
                    completion_tokens: job.made,
                    total_tokens: job.prompt + job.made,
                    prompt_tokens_details: Some(PromptTokensDetails {
                        cached_tokens: Some(0),
                    }),
                };
                out.push(ServerEvent::Finished {
                    id,
                    at,
                    usage,
                    failure: None,
                });
                self.running.swap_remove(index);
                self.fill(at);
            }
        }
    }
}
