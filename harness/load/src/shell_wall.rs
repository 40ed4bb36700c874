//! The driver in real time, over HTTP.
//!
//! The shell reads the clock, asks the state machine, starts a task for each request and waits
//! for whichever comes first: the next due instant, the end of a request, a stop. It decides
//! nothing itself. Records go out as soon as their request ends, so that a killed run has lost
//! only what was running.

use std::sync::Arc;

use pb_contract::plan::Plan;
use pb_contract::{Clock, Nanos, WallClock};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

use crate::connect::ConnectTimes;
use crate::descriptors::{ensure_descriptors, ensure_ports};
use crate::driver::{Action, Driver, SendOrder};
use crate::endpoint::Endpoint;
use crate::error::LoadError;
use crate::http::Pool;
use crate::lag::{Lag, Lags, ReadLag};
use crate::prepare::Prepared;
use crate::request::{Carrier, Ended, Limits, Sending, run_request};
use crate::rows::{Record, RunContext, not_offered};
use crate::timer_wall::Timer;

/// Connections made ahead for the open-loop part, at most.
const OPEN_LOOP_CONNECTIONS: usize = 64;

/// Time between the last preparation and the start of the schedule.
const LEAD: Nanos = Nanos::from_millis(20);

/// Requests made ready between two looks at what is due.
const PREPARE_AT_ONCE: usize = 8;

/// Time until the next request below which none is made ready.
const PREPARE_SLACK: Nanos = Nanos::from_millis(2);

/// A switch that ends something early; clones are the same switch.
#[derive(Clone, Debug)]
pub struct StopSignal {
    state: Arc<watch::Sender<bool>>,
}

impl StopSignal {
    /// A switch that is off.
    pub fn new() -> Self {
        StopSignal {
            state: Arc::new(watch::channel(false).0),
        }
    }

    /// Turns it on for good.
    pub fn stop(&self) {
        self.state.send_replace(true);
    }

    /// Whether it is on.
    pub fn is_stopped(&self) -> bool {
        *self.state.borrow()
    }

    /// Returns when it is on.
    pub async fn stopped(&self) {
        let mut state = self.state.subscribe();
        // The sender lives as long as `self`, so the wait ends by the switch only.
        let _ = state.wait_for(|on| *on).await;
    }
}

impl Default for StopSignal {
    fn default() -> Self {
        Self::new()
    }
}

/// What a run did, beside its records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSummary {
    /// Start of the schedule.
    pub start_ns: Nanos,
    /// Last record.
    pub end_ns: Nanos,
    /// Requests sent.
    pub sent: u64,
    /// Requests that were due but never sent.
    pub not_offered: u64,
    /// Most requests in flight at once.
    pub max_in_flight: usize,
    /// A closed loop ran out of requests before the horizon: the load was lower than planned.
    pub closed_exhausted: bool,
    /// Connections made before the start.
    pub preconnected: usize,
    /// How long the connections took.
    pub connections: ConnectTimes,
    /// How late requests were sent, or a connection for them begun, after nothing but this client
    /// kept them: the intended arrival, or the instant at which a cap gave them a place.
    pub send_lag: Lag,
    /// How late this client read what had arrived.
    pub read_lag: ReadLag,
    /// The run was stopped before its end.
    pub stopped: bool,
}

/// How a plan is executed.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Limits of each request.
    pub limits: Limits,
    /// Ends the run early.
    pub stop: StopSignal,
    /// Requests of the open loop in flight at most; more wait here, and their latency counts from
    /// their intended arrival all the same.
    pub max_in_flight: Option<usize>,
    /// After a stop nothing new is sent, and running requests may take so long to end.
    pub drain_on_stop_ns: Nanos,
    /// Requests take connections that were made before the run or by an earlier request. False:
    /// each request makes one of its own at its instant, and its latency has the time in it. A
    /// kept connection that the server closes while a request is on its way fails that request;
    /// it is not sent again.
    pub reuse_connections: bool,
}

impl Default for RunOptions {
    /// The usual limits, no cap, no drain, and connections that are kept.
    fn default() -> Self {
        RunOptions {
            limits: Limits::default(),
            stop: StopSignal::default(),
            max_in_flight: None,
            drain_on_stop_ns: Nanos::ZERO,
            reuse_connections: true,
        }
    }
}

/// Executes a plan against an endpoint. `emit` gets every record as soon as its request has
/// ended; it runs between two sends, so it must be quick: hand the record to another thread.
///
/// # Errors
/// A plan that contradicts itself, a name that does not resolve, a target that cannot be connected
/// to before the start, or too few file descriptors.
pub async fn run_plan(
    plan: Plan,
    context: RunContext,
    endpoint: &Endpoint,
    limits: Limits,
    stop: StopSignal,
    emit: impl FnMut(Record),
) -> Result<RunSummary, LoadError> {
    let options = RunOptions {
        limits,
        stop,
        ..RunOptions::default()
    };
    run_plan_by(plan, context, endpoint, options, emit).await
}

/// [`run_plan`] with all options.
///
/// # Errors
/// As [`run_plan`].
pub async fn run_plan_by(
    plan: Plan,
    context: RunContext,
    endpoint: &Endpoint,
    options: RunOptions,
    emit: impl FnMut(Record),
) -> Result<RunSummary, LoadError> {
    // What the plan will need for sure, unless the caller knows better.
    let streams: usize = plan.closed.iter().map(|part| part.streams).sum();
    let open = plan
        .open
        .len()
        .min(options.max_in_flight.unwrap_or(usize::MAX));
    let sure = streams + (open + plan.sessions.len()).min(OPEN_LOOP_CONNECTIONS);
    let preconnected = match options.reuse_connections {
        true => endpoint.connections().unwrap_or(sure),
        false => 0,
    };
    ensure_descriptors(preconnected.max(sure))?;
    let unconnected = |failure| LoadError::connect(endpoint, failure);
    let pool = Pool::new(endpoint, options.limits.connect_ns).await;
    let pool = pool.map_err(unconnected)?;
    let pool = Arc::new(pool.reusing(options.reuse_connections));
    ensure_ports(preconnected, pool.addresses())?;
    // The plan is made into bytes first: connections and the start come when it is ready.
    let mut driver = Driver::new(plan, Nanos::ZERO)?;
    if let Some(most) = options.max_in_flight {
        driver.hold_at(most);
    }
    let mut prepared = Prepared::new(endpoint.clone(), &context, &driver);
    prepared.prepare(&driver, usize::MAX);
    pool.preconnect(preconnected).await.map_err(unconnected)?;
    let timer = Timer::new().map_err(|source| LoadError::System {
        what: "cannot create a timer",
        source,
    })?;
    let start = WallClock.now() + LEAD;
    driver.start_at(start);
    let (done, ended) = mpsc::unbounded_channel();
    let (cut_off, cut) = watch::channel(false);
    let shell = Shell {
        driver,
        prepared,
        carrier: Carrier {
            pool,
            secrets: endpoint.secrets().clone(),
            context,
            limits: options.limits,
            cut,
        },
        cut_off,
        done,
        emit,
        send_lags: Lags::default(),
        drain_ns: options.drain_on_stop_ns,
        summary: RunSummary {
            start_ns: start,
            preconnected,
            ..RunSummary::default()
        },
    };
    shell.run(ended, &timer, &options.stop).await
}

struct Shell<E> {
    driver: Driver,
    prepared: Prepared,
    carrier: Carrier,
    cut_off: watch::Sender<bool>,
    done: mpsc::UnboundedSender<Ended>,
    emit: E,
    send_lags: Lags,
    drain_ns: Nanos,
    summary: RunSummary,
}

impl<E: FnMut(Record)> Shell<E> {
    async fn run(
        mut self,
        mut ended: mpsc::UnboundedReceiver<Ended>,
        timer: &Timer,
        stop: &StopSignal,
    ) -> Result<RunSummary, LoadError> {
        while let Some(wake) = self.act() {
            let idle = wake > WallClock.now() + PREPARE_SLACK;
            if idle && self.prepared.prepare(&self.driver, PREPARE_AT_ONCE) {
                // Whoever has bytes to read reads them before more is made ready.
                tokio::task::yield_now().await;
            }
            tokio::select! {
                biased;
                () = stop.stopped(), if !self.summary.stopped => {
                    self.summary.stopped = true;
                    match self.drain_ns {
                        Nanos::ZERO => self.driver.stop(),
                        span => self.driver.drain(WallClock.now(), span),
                    }
                }
                Some(end) = ended.recv() => {
                    self.end(end);
                    // Ends that came together free their slots together.
                    while let Ok(end) = ended.try_recv() {
                        self.end(end);
                    }
                }
                result = timer.until(wake) => result.map_err(|source| LoadError::System {
                    what: "waiting for the next request",
                    source,
                })?,
            }
        }
        // Nothing is sent any more; requests that were cut off still report.
        drop(self.done);
        while let Some(end) = ended.recv().await {
            count_lag(&self.send_lags, &end);
            (self.emit)(end.record);
        }
        self.summary.end_ns = WallClock.now();
        self.summary.connections = self.carrier.pool.times();
        self.summary.send_lag = self.send_lags.summary();
        self.summary.read_lag = self.carrier.pool.read_lag();
        self.summary.closed_exhausted = self.driver.closed_exhausted();
        Ok(self.summary)
    }

    /// Carries out what is due; when to look again, or `None` when nothing will be due.
    fn act(&mut self) -> Option<Nanos> {
        let mut wake = None;
        for action in self.driver.poll(WallClock.now()) {
            match action {
                Action::Send(order) => {
                    self.summary.sent += 1;
                    let sending = self.start(order);
                    let (carrier, done) = (self.carrier.clone(), self.done.clone());
                    tokio::spawn(async move {
                        // A closed channel means that the run itself is gone.
                        let _ = done.send(run_request(carrier, sending).await);
                    });
                }
                Action::NotOffered(order) => {
                    self.summary.not_offered += 1;
                    (self.emit)(not_offered(&self.carrier.context, &order));
                }
                Action::CutOff(_) => {
                    self.cut_off.send_replace(true);
                }
                Action::WakeAt(at) => wake = Some(at),
                Action::Done => {}
            }
        }
        self.summary.max_in_flight = self.summary.max_in_flight.max(self.driver.in_flight());
        wake
    }

    /// Writes a request to an idle connection, here and now, so that a burst leaves together.
    fn start(&mut self, order: SendOrder) -> Sending {
        let wire = self.prepared.take(order.id, &order.body);
        let mut conn = None;
        if let Ok(wire) = &wire {
            conn = self.carrier.pool.take_ready();
            if let Some(conn) = &mut conn {
                conn.start(wire.clone());
            }
        }
        Sending { order, wire, conn }
    }

    fn end(&mut self, end: Ended) {
        count_lag(&self.send_lags, &end);
        let Ended { record, answer, .. } = end;
        let at = record.row.closed_ns.unwrap_or_else(|| WallClock.now());
        self.driver.ended(record.row.request, at, answer);
        (self.emit)(record);
    }
}

/// Counts how late a request was sent, beyond what a cap made it wait and without the time that
/// its connection took.
fn count_lag(lags: &Lags, end: &Ended) {
    if let Some(sent) = end.record.row.sent_ns {
        let begun = end.connecting.unwrap_or(sent);
        lags.add(begun.saturating_sub(end.free));
    }
}

/// [`run_plan`] on a runtime of its own on the calling thread, which is how measured runs are
/// made: one thread, so that no byte waits for a hand-over between threads.
///
/// # Errors
/// As [`run_plan`].
pub fn run_plan_blocking(
    plan: Plan,
    context: RunContext,
    endpoint: &Endpoint,
    limits: Limits,
    stop: StopSignal,
    emit: impl FnMut(Record),
) -> Result<RunSummary, LoadError> {
    runtime()?.block_on(run_plan(plan, context, endpoint, limits, stop, emit))
}

/// [`run_plan_blocking`] with all options.
///
/// # Errors
/// As [`run_plan`].
pub fn run_plan_with(
    plan: Plan,
    context: RunContext,
    endpoint: &Endpoint,
    options: RunOptions,
    emit: impl FnMut(Record),
) -> Result<RunSummary, LoadError> {
    runtime()?.block_on(run_plan_by(plan, context, endpoint, options, emit))
}

/// A runtime on one thread.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, LoadError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| LoadError::System {
            what: "cannot start a runtime",
            source,
        })
}
