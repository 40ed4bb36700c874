//! The prefill side: what is held, and the connections over which it is claimed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use pb_contract::{BlockId, Clock, Nanos, RequestId, Stream};

use super::growing::{Growing, Progress, lend};
use super::parked::Parked;
use super::{KvListener, Tell};
use crate::agent::{SourceAgent, SourceEvent, SourceOptions};
use crate::handshake::{Allow, Peer};
use crate::memory::{Memory, Region};
use crate::message::{Cause, Granularity, Mode, TransferId};
use crate::row::{self, Defect, Ended, TransferRow};
use crate::transport::Arrival;

/// How long a thread sleeps at most before it looks whether it is to end.
const NAP: Duration = Duration::from_millis(50);

/// How often progress is looked at while a prompt is given away that is still computed.
const LOOK: Duration = Duration::from_millis(1);

/// Peers at a time; each has a thread here and some in its transport.
const CONNECTIONS: usize = 256;

/// How KV is given away.
#[derive(Clone, Copy, Debug)]
pub struct ExportOptions {
    /// Which differences are bridged.
    pub allow: Allow,
    /// How long blocks are held after anything was last heard of them.
    pub lease: Nanos,
    /// Who sets the pace.
    pub mode: Mode,
    /// What is sent as one.
    pub granularity: Granularity,
    /// How long a handshake may take.
    pub handshake: Duration,
}

/// KV that is held.
#[derive(Clone, Debug)]
pub struct Held {
    /// Its name, never used twice.
    pub ticket: u64,
    /// What it is the KV of.
    pub digest: [u8; 32],
    /// Tokens.
    pub tokens: u64,
    /// The blocks in the exporter's memory, which do not change while they are held.
    pub blocks: Vec<BlockId>,
    /// When the prefill ended; of what is still computed, since when it is held.
    pub since: Nanos,
    /// How far it is; none when all of it is computed.
    pub progress: Option<Arc<Progress>>,
}

impl Held {
    /// Since when its lease runs; none while it is computed.
    fn idle_since(&self) -> Option<Nanos> {
        match &self.progress {
            Some(progress) => progress.ended_at(),
            None => Some(self.since),
        }
    }
}

/// What happened to something that was held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportEvent {
    /// Nobody reads its blocks any more. Told once for each.
    Freed {
        /// Its ticket.
        ticket: u64,
        /// Why.
        ended: Ended,
    },
    /// What its transfer took; the request is the ticket. Told before `Freed`.
    Row(Box<TransferRow>),
}

/// What is held and was not claimed.
pub(super) struct Shelf {
    held: Mutex<BTreeMap<u64, Held>>,
    /// Claimed, and the sink has not asked for a cell yet.
    queued: AtomicUsize,
    connections: AtomicUsize,
    stopped: AtomicBool,
    lease: Nanos,
}

impl Shelf {
    pub(super) fn new(lease: Nanos) -> Shelf {
        Shelf {
            held: Mutex::new(BTreeMap::new()),
            queued: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
            lease,
        }
    }

    pub(super) fn hold(&self, held: Held) {
        self.held().insert(held.ticket, held);
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<u64, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what is held under a ticket, if it is what the claimant takes it for.
    pub(super) fn claim(&self, ticket: u64, digest: &[u8; 32]) -> Result<Held, Cause> {
        self.open().claim(ticket, digest)
    }

    /// Several claims at once.
    pub(super) fn open(&self) -> Claims<'_> {
        Claims(self.held())
    }

    /// Takes what nobody has claimed in the time of the lease.
    fn expired(&self, now: Nanos) -> Vec<Held> {
        let mut held = self.held();
        let over = |held: &&Held| held.idle_since().is_some_and(|at| at + self.lease <= now);
        let tickets: Vec<u64> = held.values().filter(over).map(|h| h.ticket).collect();
        tickets.iter().filter_map(|t| held.remove(t)).collect()
    }

    fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

/// The shelf while nobody else takes anything from it.
pub(super) struct Claims<'a>(MutexGuard<'a, BTreeMap<u64, Held>>);

impl Claims<'_> {
    /// As [`Shelf::claim`].
    pub(super) fn claim(&mut self, ticket: u64, digest: &[u8; 32]) -> Result<Held, Cause> {
        match self.0.get(&ticket) {
            None => Err(Cause::Expired),
            Some(found) if found.digest != *digest => Err(Cause::Mismatch),
            // OK because it was found under the same lock.
            Some(_) => self.0.remove(&ticket).ok_or(Cause::Expired),
        }
    }
}

/// What every connection of an exporter needs.
pub(super) struct Common {
    shelf: Shelf,
    pub(super) me: Peer,
    memory: Arc<dyn Memory>,
    region: Region,
    pub(super) options: ExportOptions,
    clock: Arc<dyn Clock>,
    /// Where the next connection's transfer ids begin.
    ids: Mutex<Stream>,
    refused: AtomicU64,
    tell: Tell<ExportEvent>,
}

/// Gives away what an engine holds.
pub struct Exporter {
    common: Arc<Common>,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    /// Starts to accept connections. `ids` must be another stream after each start of the process:
    /// ids of transfers are drawn from it.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(
        listener: KvListener,
        me: Peer,
        (memory, region): (Arc<dyn Memory>, Region),
        options: ExportOptions,
        clock: Arc<dyn Clock>,
        ids: Stream,
        tell: Tell<ExportEvent>,
    ) -> std::io::Result<Exporter> {
        let common = Arc::new(Common {
            shelf: Shelf::new(options.lease),
            me,
            memory,
            region,
            options,
            clock,
            ids: Mutex::new(ids),
            refused: AtomicU64::new(0),
            tell,
        });
        let shared = Arc::clone(&common);
        let thread = std::thread::Builder::new().name("kv-export".to_owned());
        let thread = thread.spawn(move || accept(&shared, listener))?;
        Ok(Exporter {
            common,
            thread: Some(thread),
        })
    }

    /// Holds KV for whoever claims it.
    pub fn hold(&self, held: Held) {
        self.common.shelf.hold(held);
    }

    /// Takes back what nobody has claimed; no event follows then. False when it was claimed or has
    /// ended.
    pub fn withdraw(&self, ticket: u64) -> bool {
        self.common.shelf.held().remove(&ticket).is_some()
    }

    /// What is held and waits: for a claim, or for room at the sink that has claimed it.
    pub fn queue_depth(&self) -> usize {
        let shelf = &self.common.shelf;
        shelf.held().len() + shelf.queued.load(Ordering::Relaxed)
    }

    /// Connections open now.
    pub fn connections(&self) -> usize {
        self.common.shelf.connections.load(Ordering::Relaxed)
    }

    /// Connections that came to nothing: strangers, and engines that do not fit.
    pub fn refused(&self) -> u64 {
        self.common.refused.load(Ordering::Relaxed)
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.common.shelf.stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of that thread has nothing to say that is of use here.
            let _ = thread.join();
        }
    }
}

/// Accepts connections, and ends holds that nobody claims.
fn accept(common: &Arc<Common>, mut listener: KvListener) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    while !common.shelf.stopped() {
        match listener.accept(NAP) {
            // Whoever is turned away finds the connection closed.
            Ok(Some(_)) if threads.len() >= CONNECTIONS => {
                common.refused.fetch_add(1, Ordering::Relaxed);
            }
            Ok(Some(arrival)) => {
                let shared = Arc::clone(common);
                let thread = std::thread::Builder::new().name("kv-source".to_owned());
                match thread.spawn(move || connection(&shared, arrival)) {
                    Ok(thread) => threads.push(thread),
                    Err(_) => drop(common.refused.fetch_add(1, Ordering::Relaxed)),
                }
            }
            Ok(None) => {}
            Err(_) => {
                common.refused.fetch_add(1, Ordering::Relaxed);
                // A stranger, or no descriptor is left: then trying again at once would only spin.
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        threads.retain(|thread| !thread.is_finished());
        for held in common.shelf.expired(common.clock.now()) {
            unclaimed(common, &held);
        }
    }
    for thread in threads {
        let _ = thread.join();
    }
}

/// Tells of a hold that ended without a claim.
fn unclaimed(common: &Common, held: &Held) {
    let options = &common.options;
    let names = [options.mode.name(), options.granularity.name()];
    let (ticket, blocks) = (held.ticket, held.blocks.len() as u32);
    let request = RequestId(ticket);
    let (id, since) = (TransferId(0), held.since);
    let mut row = row::start(id, request, names, held.tokens, blocks, since);
    row::set_end(&mut row, Ended::Expired, Some(Cause::Expired));
    let now = common.clock.now();
    row.total_ns = now.saturating_sub(held.since).0;
    row.exposed_ns = held.idle_since().map(|at| now.saturating_sub(at).0);
    (common.tell)(ExportEvent::Row(Box::new(row)));
    let ended = Ended::Expired;
    (common.tell)(ExportEvent::Freed { ticket, ended });
}

/// One peer, from the handshake to the end.
fn connection(common: &Common, arrival: Arrival) {
    // A stranger that says nothing is waited for here, where it keeps nobody waiting.
    let Ok(transport) = arrival.meet() else {
        common.refused.fetch_add(1, Ordering::Relaxed);
        return;
    };
    let first_id = {
        let mut ids = common.ids.lock().unwrap_or_else(PoisonError::into_inner);
        ids.next_u64() >> 1
    };
    let options = SourceOptions {
        allow: common.options.allow,
        lease: common.options.lease,
        first_id,
        handshake: common.options.handshake,
        defect: Defect::None,
    };
    let memory = (Arc::clone(&common.memory), common.region);
    let clock = Arc::clone(&common.clock);
    let Ok(mut agent) = SourceAgent::connect(transport, &common.me, memory, clock, &options) else {
        common.refused.fetch_add(1, Ordering::Relaxed);
        return;
    };
    common.shelf.connections.fetch_add(1, Ordering::Relaxed);
    let (mut down, mut queued) = (false, 0);
    let mut growing: Vec<Growing> = Vec::new();
    let mut parked = Parked::default();
    while !common.shelf.stopped() && (!down || agent.leases() > 0) {
        growing.retain_mut(|one| one.advance(common, &mut agent));
        for (ticket, answer) in parked.answers(&common.shelf, common.clock.now()) {
            growing.extend(answered(common, &mut agent, ticket, answer));
        }
        let idle = growing.is_empty() && parked.is_empty();
        let most = if idle { NAP } else { LOOK };
        for event in agent.step(nap(&agent, common.clock.as_ref()).min(most)) {
            match event {
                SourceEvent::Claimed {
                    ticket,
                    digest,
                    early,
                } => {
                    let now = common.clock.now();
                    let answer = parked.claim(&common.shelf, (ticket, digest), early, now);
                    growing.extend(answer.and_then(|a| answered(common, &mut agent, ticket, a)));
                }
                SourceEvent::Freed {
                    id, request, ended, ..
                } => {
                    // Of what has ended nobody tells any more that it goes on.
                    growing.retain(|one| one.id != id);
                    let rows = agent.take_rows();
                    rows.into_iter()
                        .for_each(|row| (common.tell)(ExportEvent::Row(Box::new(row))));
                    let ticket = request.0;
                    (common.tell)(ExportEvent::Freed { ticket, ended });
                }
                SourceEvent::Down(_) => down = true,
            }
        }
        let now = agent.queue_depth();
        common.shelf.queued.fetch_add(now, Ordering::Relaxed);
        common.shelf.queued.fetch_sub(queued, Ordering::Relaxed);
        queued = now;
    }
    common.shelf.queued.fetch_sub(queued, Ordering::Relaxed);
    common.shelf.connections.fetch_sub(1, Ordering::Relaxed);
}

/// Offers what was claimed, or declines.
fn answered(
    common: &Common,
    agent: &mut SourceAgent,
    ticket: u64,
    answer: Result<Held, Cause>,
) -> Option<Growing> {
    match answer {
        Ok(held) => lend(common, agent, held),
        Err(cause) => {
            agent.decline(ticket, cause);
            None
        }
    }
}

/// How long a step may wait.
fn nap(agent: &SourceAgent, clock: &dyn Clock) -> Duration {
    let due = agent
        .next_deadline()
        .map(|at| at.saturating_sub(clock.now()));
    due.map_or(NAP, |due| due.to_duration().min(NAP))
}
