//! Two engines and a router between them, on one thread.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use pb_contract::{
    Clock, EngineConfig, EngineEvent, EngineRequest, Nanos, RequestId, TokenId, WallClock,
};
use pb_core::disagg::{
    EarlySource, HandedOff, KvEngine, KvOptions, KvPorts, KvShape, KvSource, KvTask, OnFailure,
};
use pb_core::{Engine, ToyExecutor};
use pb_transfer::service::{Dial, KvListener, Remote};
use pb_transfer::{Granularity, Mode, ShmOptions, TcpOptions};

use crate::common;

/// Turns without news, of a millisecond at least, before a hang is called a hang.
const PATIENCE_TURNS: usize = 60_000;
const STALL: Duration = Duration::from_secs(120);

/// Shape of the toys' blocks.
pub(crate) const SHAPE: KvShape = KvShape {
    layers: crate::LAYERS,
    ..ToyExecutor::SHAPE
};

static SOCKETS: AtomicU32 = AtomicU32::new(0);

/// What carries the KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rig {
    Local,
    Shm,
    Tcp,
}

pub(crate) const RIGS: [Rig; 3] = [Rig::Local, Rig::Shm, Rig::Tcp];

const SHM: ShmOptions = ShmOptions {
    slots: 4,
    slot_bytes: 64 << 10,
    stall: STALL,
};

/// The defaults, with patience for a slow machine.
pub(crate) fn options(mode: Mode, granularity: Granularity, on_failure: OnFailure) -> KvOptions {
    KvOptions {
        mode,
        granularity,
        on_failure,
        lease: Nanos::from_secs(120),
        patience: Nanos::from_secs(120),
        ..KvOptions::default()
    }
}

pub(crate) fn recompute() -> KvOptions {
    options(Mode::Pull, Granularity::Bulk, OnFailure::Recompute)
}

pub(crate) fn clock() -> Arc<dyn Clock> {
    Arc::new(WallClock)
}

/// Exporter's and importer's ends, and where the exporter is.
pub(crate) fn ports(rig: Rig) -> (KvPorts, KvPorts, Remote) {
    let (listener, remote, dial) = match rig {
        Rig::Local => {
            let (peers, accepted) = channel();
            let remote = Remote {
                host: "local".to_owned(),
                port: 0,
            };
            (KvListener::Local(accepted), remote, Dial::Local(peers))
        }
        Rig::Shm => {
            // The listener takes its socket away at its end.
            let number = SOCKETS.fetch_add(1, Ordering::Relaxed);
            let name = format!("pb-core-kv-{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let (listener, remote) = KvListener::shm(&path, SHM, clock()).unwrap();
            (listener, remote, Dial::Shm(SHM))
        }
        Rig::Tcp => {
            let any = SocketAddr::from(([127, 0, 0, 1], 0));
            let (listener, remote) = KvListener::tcp(any, STALL, clock()).unwrap();
            let options = TcpOptions {
                connections: 2,
                stall: STALL,
            };
            let dial = Dial::Tcp {
                options,
                loopback_only: true,
            };
            (listener, remote, dial)
        }
    };
    let out = KvPorts {
        listener: Some(listener),
        dial: None,
    };
    let into = KvPorts {
        listener: None,
        dial: Some(dial),
    };
    (out, into, remote)
}

/// A toy engine with ways in or out.
pub(crate) fn toy(config: EngineConfig, ports: KvPorts, options: &KvOptions) -> KvEngine {
    with_ports(common::toy(config), SHAPE, ports, options)
}

pub(crate) fn with_ports(
    engine: Engine,
    shape: KvShape,
    ports: KvPorts,
    options: &KvOptions,
) -> KvEngine {
    KvEngine::new(engine, shape, ports, options, &clock(), 5).unwrap()
}

/// A prefill engine, a decode engine, and what became of their requests.
pub(crate) struct Pair {
    pub(crate) prefill: Option<KvEngine>,
    pub(crate) decode: Option<KvEngine>,
    pub(crate) remote: Remote,
    pub(crate) requests: BTreeMap<RequestId, EngineRequest>,
    pub(crate) tokens: BTreeMap<RequestId, Vec<TokenId>>,
    pub(crate) finished: BTreeSet<RequestId>,
    pub(crate) failed: BTreeMap<RequestId, String>,
    /// Prompt tokens that the decode engine had already.
    pub(crate) cached: BTreeMap<RequestId, usize>,
    /// Most blocks of the prefill engine that were active after a turn.
    pub(crate) most_active: usize,
    /// Handed off, and not given to the decode engine.
    pub(crate) kept: Vec<HandedOff>,
    /// Whether handed-off requests are kept rather than given on.
    pub(crate) keep: bool,
    /// Whether the decode engine hears news and makes no step.
    pub(crate) frozen: bool,
    /// Whether requests are streamed: their KV is fetched while it is computed.
    pub(crate) streams: bool,
    /// Requests that were handed off under the ticket that they were streamed under.
    pub(crate) streamed: BTreeSet<RequestId>,
    /// Requests that the prefill engine has preempted when it had given away their first blocks.
    pub(crate) preempted: BTreeSet<RequestId>,
}

impl Pair {
    pub(crate) fn new(prefill: KvEngine, decode: KvEngine, remote: Remote) -> Pair {
        Pair {
            prefill: Some(prefill),
            decode: Some(decode),
            remote,
            requests: BTreeMap::new(),
            tokens: BTreeMap::new(),
            finished: BTreeSet::new(),
            failed: BTreeMap::new(),
            cached: BTreeMap::new(),
            most_active: 0,
            kept: Vec::new(),
            keep: false,
            frozen: false,
            streams: false,
            streamed: BTreeSet::new(),
            preempted: BTreeSet::new(),
        }
    }

    /// Two toy engines.
    pub(crate) fn toys(
        rig: Rig,
        prefill: EngineConfig,
        decode: EngineConfig,
        options: &KvOptions,
    ) -> Pair {
        let (out, into, remote) = ports(rig);
        let (prefill, decode) = (toy(prefill, out, options), toy(decode, into, options));
        Pair::new(prefill, decode, remote)
    }

    pub(crate) fn send(&mut self, request: EngineRequest) {
        let prefill = self.prefill.as_mut().expect("a living prefill engine");
        let task = match self.streams {
            true => KvTask::Stream(ticket(request.id)),
            false => KvTask::HandOff,
        };
        prefill.add(request.clone(), task).unwrap();
        if self.streams {
            self.prefetch(&request);
        }
        self.requests.insert(request.id, request);
    }

    /// Has the decode engine fetch the KV of a request that it does not have yet.
    pub(crate) fn prefetch(&mut self, request: &EngineRequest) {
        let Some(decode) = &mut self.decode else {
            return;
        };
        let source = EarlySource {
            remote: self.remote.clone(),
            ticket: ticket(request.id),
        };
        let mut ahead = request.clone();
        ahead.id = prefetch_id(request.id);
        decode.add(ahead, KvTask::Prefetch(source)).unwrap();
    }

    /// Gives a request to the decode engine.
    pub(crate) fn pass_on(&mut self, over: HandedOff) {
        if over.ticket == ticket(over.id) {
            self.streamed.insert(over.id);
        }
        let Some(decode) = &mut self.decode else {
            return;
        };
        let source = KvSource {
            remote: self.remote.clone(),
            ticket: over.ticket,
            tokens: over.tokens,
            first_token: over.first_token,
        };
        let request = self.requests[&over.id].clone();
        decode.add(request, KvTask::Take(source)).unwrap();
        // As a router does that has no more use for it; what was taken over stays.
        decode.abort(prefetch_id(over.id));
    }

    /// One step of each engine that has something to do; waits for news when none has.
    pub(crate) fn turn(&mut self) {
        let mut busy = false;
        let mut handed = Vec::new();
        if let Some(prefill) = &mut self.prefill {
            prefill.take_news();
            if prefill.has_work() {
                let tokens = |&id: &RequestId| prefill.engine().prefilled_tokens(id);
                let block_size = prefill.engine().config().block_size;
                let given = |id: &RequestId| tokens(id).is_some_and(|n| n >= block_size);
                let given: BTreeSet<RequestId> =
                    self.requests.keys().copied().filter(given).collect();
                let out = prefill.step(&WallClock).unwrap();
                busy |= !out.scheduled.is_empty();
                let preempted = out.preempted.iter().filter(|id| given.contains(id));
                self.preempted.extend(preempted);
                handed = prefill.take_handed_off();
                let over: BTreeSet<RequestId> = handed.iter().map(|over| over.id).collect();
                for event in out.events {
                    take_event(&mut self.tokens, &mut self.finished, event, &over);
                }
            }
            prefill.check().unwrap();
            let active = prefill.engine().buckets().active;
            self.most_active = self.most_active.max(active);
        }
        match self.keep {
            true => self.kept.extend(handed),
            false => handed.into_iter().for_each(|over| self.pass_on(over)),
        }
        if let Some(decode) = &mut self.decode {
            decode.take_news();
            if decode.has_work() && !self.frozen {
                let out = decode.step(&WallClock).unwrap();
                busy |= !out.scheduled.is_empty();
                for event in out.events {
                    if let EngineEvent::Admitted { id, cached_tokens } = event {
                        self.cached.insert(id, cached_tokens);
                    }
                    take_event(
                        &mut self.tokens,
                        &mut self.finished,
                        event,
                        &BTreeSet::new(),
                    );
                }
            }
            decode.check().unwrap();
            self.failed.extend(decode.take_failed());
        }
        if !busy {
            let nap = Duration::from_millis(1);
            match (&mut self.decode, &mut self.prefill) {
                (Some(engine), _) | (None, Some(engine)) => drop(engine.wait_news(nap)),
                (None, None) => {}
            }
        }
    }

    /// Turns until `done`.
    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&Pair) -> bool) {
        for _ in 0..PATIENCE_TURNS {
            if done(self) {
                return;
            }
            self.turn();
        }
        panic!("no {what}");
    }

    /// Turns until some requests wait for room at the decode engine, and others have arrived there
    /// and not begun.
    pub(crate) fn until_queued(&mut self) {
        self.frozen = true;
        self.until("queue", |pair| {
            let stats = pair.decode.as_ref().map(KvEngine::stats);
            stats.is_some_and(|s| s.queue_depth >= 2 && s.received_transfers >= 1)
        });
        self.frozen = false;
    }

    /// Turns until every request has finished or failed.
    pub(crate) fn settle(&mut self) {
        self.until("end of all requests", |pair| {
            let over = |id| pair.finished.contains(id) || pair.failed.contains_key(id);
            pair.requests.keys().all(over)
        });
    }

    /// Turns until no engine has a block that anybody uses.
    pub(crate) fn until_idle(&mut self) {
        self.until("idle engines", |pair| {
            [&pair.prefill, &pair.decode]
                .into_iter()
                .flatten()
                .all(idle)
        });
    }

    /// Runs requests one after the other or all at once and expects what one engine alone gives.
    pub(crate) fn expect(&mut self, requests: &[EngineRequest]) {
        for request in requests {
            self.send(request.clone());
        }
        self.settle();
        assert_eq!(self.failed, BTreeMap::new());
        self.assert_expected();
    }

    /// Every finished request has the tokens that the toy gives alone.
    pub(crate) fn assert_expected(&self) {
        for id in &self.finished {
            let request = &self.requests[id];
            let expected = common::expected(request);
            assert_eq!(
                self.tokens.get(id),
                Some(&expected),
                "tokens of request {id}"
            );
        }
    }
}

/// The ticket under which a request is streamed.
pub(crate) fn ticket(id: RequestId) -> u64 {
    1_000_000 + id.0
}

/// The name of the prefetch of a request.
pub(crate) fn prefetch_id(id: RequestId) -> RequestId {
    RequestId(2_000_000 + id.0)
}

/// Whether an engine holds nothing.
fn idle(engine: &KvEngine) -> bool {
    let stats = engine.stats();
    engine.engine().buckets().active == 0
        && (stats.exports, stats.imports, stats.queue_depth) == (0, 0, 0)
        && !engine.has_work()
}

/// Notes an event; the end of a request that is handed `over` is none.
fn take_event(
    tokens: &mut BTreeMap<RequestId, Vec<TokenId>>,
    finished: &mut BTreeSet<RequestId>,
    event: EngineEvent,
    over: &BTreeSet<RequestId>,
) {
    match event {
        EngineEvent::Token { id, token, .. } => tokens.entry(id).or_default().push(token),
        EngineEvent::Finished { id, .. } if !over.contains(&id) => {
            assert!(finished.insert(id), "request {id} ended twice");
        }
        _ => {}
    }
}
