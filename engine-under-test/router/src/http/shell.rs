//! What the handlers share: the state machine behind a lock, and who waits for its word.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::{HeaderMap, HeaderValue, Method, header};
use bytes::Bytes;
use pb_contract::{Clock, Nanos, RequestId};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use super::body::BodyMemory;
use super::client::{self, Leg, LegError, LegFault, LegLimits, WorkerUrl};
use super::naming::Namings;
use super::options::RouterOptions;
use super::transfers::TransferLog;
use crate::machine::{Command, Router};
use crate::stats::Outcome;
use crate::worker::{Ask, WorkerId};

/// How far the server is on its way to the end; it only ever moves on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Takes requests.
    Serving,
    /// Finishes what it has and takes no more.
    Draining,
}

/// Waits until the server drains.
pub(crate) async fn draining(phase: &mut watch::Receiver<Phase>) {
    // An error means that the server is gone, which also ends the wait.
    let _ = phase.wait_for(|phase| *phase >= Phase::Draining).await;
}

/// The state machine and those who wait for it.
struct Core {
    router: Router,
    waiting: BTreeMap<RequestId, UnboundedSender<Command>>,
    next_id: u64,
}

/// State of the server.
pub(crate) struct Shared {
    core: Mutex<Core>,
    pub(crate) options: RouterOptions,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) bodies: Arc<BodyMemory>,
    pub(crate) namings: Mutex<Namings>,
    pub(crate) transfers: TransferLog,
    /// Where workers' KV is claimed: host and port.
    remotes: Mutex<BTreeMap<WorkerId, (String, u16)>>,
    /// Workers that did not answer when they were asked last.
    outs: watch::Sender<BTreeSet<WorkerId>>,
    pub(crate) phase: watch::Receiver<Phase>,
    /// Tells the operator something.
    pub(crate) say: Box<dyn Fn(&str) + Send + Sync>,
}

impl Shared {
    pub(crate) fn new(
        router: Router,
        options: RouterOptions,
        clock: Arc<dyn Clock>,
        phase: watch::Receiver<Phase>,
        say: Box<dyn Fn(&str) + Send + Sync>,
    ) -> Self {
        Shared {
            core: Mutex::new(Core {
                router,
                waiting: BTreeMap::new(),
                next_id: 0,
            }),
            options,
            clock,
            bodies: Arc::default(),
            namings: Mutex::default(),
            transfers: TransferLog::default(),
            remotes: Mutex::default(),
            outs: watch::Sender::default(),
            phase,
            say,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the state machine, and passes on what it says.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Router, Nanos) -> T) -> T {
        let mut core = self.lock();
        let result = act(&mut core.router, self.clock.now());
        core.deliver();
        result
    }

    pub(crate) fn url(&self, id: WorkerId) -> &WorkerUrl {
        &self.options.workers[id.0 as usize].1
    }

    fn remotes(&self) -> MutexGuard<'_, BTreeMap<WorkerId, (String, u16)>> {
        self.remotes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes where a worker's KV is claimed.
    pub(crate) fn set_remote(&self, id: WorkerId, remote: Option<(String, u16)>) {
        match remote {
            Some(remote) => drop(self.remotes().insert(id, remote)),
            None => drop(self.remotes().remove(&id)),
        }
    }

    /// Where a worker's KV is claimed.
    pub(crate) fn remote(&self, id: WorkerId) -> Option<(String, u16)> {
        self.remotes().get(&id).cloned()
    }

    /// Notes whether a worker answers.
    pub(crate) fn set_out(&self, id: WorkerId, out: bool) {
        self.outs.send_if_modified(|outs| match out {
            true => outs.insert(id),
            false => outs.remove(&id),
        });
    }

    /// Waits until a worker does not answer.
    pub(crate) async fn until_out(&self, id: WorkerId) {
        // No error: the sender is `self`'s.
        let _ = self
            .outs
            .subscribe()
            .wait_for(|outs| outs.contains(&id))
            .await;
    }

    /// Workers that answer, those first that decode, as they know most.
    pub(crate) fn any_worker(&self) -> Option<WorkerId> {
        let workers = self.with(|router, _| router.workers());
        let up = workers.iter().filter(|worker| worker.up);
        up.max_by_key(|worker| (worker.home, std::cmp::Reverse(worker.id)))
            .map(|worker| worker.id)
    }

    pub(crate) fn limits(&self, silence_ns: Nanos) -> LegLimits {
        LegLimits {
            connect: self.options.connect_timeout_ns.to_duration(),
            silence: silence_ns.to_duration(),
            answer_bytes: self.options.answer_limit_bytes,
        }
    }

    /// Headers of a request to a worker, given the client's.
    pub(crate) fn headers(&self, client: Option<&HeaderMap>, json: bool) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let key = match &self.options.worker_key {
            Some(key) => HeaderValue::from_str(&format!("Bearer {key}")).ok(),
            None => client.and_then(|client| client.get(header::AUTHORIZATION).cloned()),
        };
        if let Some(mut key) = key {
            key.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, key);
        }
        if json {
            let kind = HeaderValue::from_static("application/json");
            headers.insert(header::CONTENT_TYPE, kind);
        }
        headers
    }

    /// Sends a request to a worker; one that cannot be reached counts as down from now on.
    pub(crate) async fn send(
        &self,
        to: WorkerId,
        method: Method,
        path: &str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Leg, LegError> {
        let limits = self.limits(self.options.silence_ns);
        let sent = client::send(self.url(to), method, path, headers, body, limits).await;
        if matches!(&sent, Err(error) if error.fault == LegFault::Connect) {
            self.with(|router, now| router.set_up(now, to, false));
        }
        sent
    }
}

impl Core {
    fn deliver(&mut self) {
        while let Some(command) = self.router.poll() {
            let id = match command {
                Command::Start { id, .. }
                | Command::Hand { id, .. }
                | Command::Refuse { id, .. } => id,
            };
            if let Some(waiting) = self.waiting.get(&id) {
                // Whoever has gone says so itself.
                let _ = waiting.send(command);
            }
        }
    }
}

/// One request in the router. When it is dropped before its end was told, its client has gone.
pub(crate) struct Ticket {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: RequestId,
    said: UnboundedReceiver<Command>,
    outcome: Outcome,
}

impl Ticket {
    /// A request arrives.
    pub(crate) fn new(shared: &Arc<Shared>, ask: Ask) -> Ticket {
        let (sender, said) = unbounded_channel();
        let mut core = shared.lock();
        let id = RequestId(core.next_id);
        core.next_id += 1;
        core.waiting.insert(id, sender);
        let now = shared.clock.now();
        core.router.arrive(now, id, ask);
        core.deliver();
        drop(core);
        Ticket {
            shared: Arc::clone(shared),
            id,
            said,
            outcome: Outcome::Cancelled,
        }
    }

    /// What the router says next.
    pub(crate) async fn next(&mut self) -> Command {
        // OK because the sender stays in the list until this ticket is dropped.
        self.said.recv().await.expect("the router speaks")
    }

    /// How it ends, once this is dropped.
    pub(crate) fn set_outcome(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }

    /// Asks to start again after a failure at `at`.
    pub(crate) fn retry(&mut self, at: WorkerId) -> bool {
        self.shared
            .with(|router, now| router.retry(now, self.id, at))
    }

    /// Asks for another decode worker, after the one at `at` was lost before it said anything.
    pub(crate) fn hand_again(&self, at: WorkerId) -> bool {
        self.shared
            .with(|router, now| router.hand_again(now, self.id, at))
    }

    pub(crate) fn prefilled(&self) {
        self.shared
            .with(|router, now| router.prefilled(now, self.id));
    }

    pub(crate) fn fetched(&self) {
        self.shared.with(|router, now| router.fetched(now, self.id));
    }

    pub(crate) fn retries(&self) -> u32 {
        self.shared.with(|router, _| router.retries_of(self.id))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut core = self.shared.lock();
        core.waiting.remove(&self.id);
        let now = self.shared.clock.now();
        core.router.ended(now, self.id, self.outcome);
        core.deliver();
    }
}
