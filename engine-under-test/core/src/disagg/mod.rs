//! An engine whose requests may be prefilled here and decoded elsewhere, or the other way round.
//!
//! [`KvEngine`] is an [`Engine`] with an exporter and an importer of `pb-transfer` beside it. It
//! has no thread of its own: whoever steps the engine calls it, and it takes news from the transfer
//! threads whenever it is called. Every export frees its blocks once, every import starts, is
//! computed again or fails.

mod exports;
mod imports;
mod prefetch;
mod setup;
mod staging;
mod stats;
mod streams;

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pb_contract::{BlockId, Clock, EngineRequest, Nanos, RequestId, Stream, TokenId};
use pb_transfer::service::{
    Dial, ExportEvent, Exporter, ImportEvent, Importer, KvListener, Remote, Tell,
};
use pb_transfer::{Allow, Granularity, Memory, Mode, Region, TransferRow};

use crate::engine::{Engine, StepOutput};
use crate::error::{AdmitError, ExecError};

pub use staging::Staging;
pub use stats::{KvStats, Pace};

use setup::{export_options, import_options, peer, staging};
use stats::Window;

/// Transfers and claims of one connection at a time; what waits costs little.
const TRANSFERS: usize = 1 << 16;
/// Blocks of one transfer.
const TRANSFER_BLOCKS: u32 = 1 << 20;
/// Cells that a pull asks for ahead.
const WINDOW_CELLS: u64 = 256;
/// How often a transfer's corrupt cells are asked for again.
const RETRIES: u32 = 8;
/// Engines from which KV is fetched at a time.
const PEERS: usize = 64;

/// Shape of an executor's block images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Layers.
    pub layers: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Elements of one head's key or value.
    pub d_head: usize,
    /// Bytes in front of the layers.
    pub header_bytes: usize,
}

/// What becomes of a request whose KV does not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// Its prompt is computed here.
    Recompute,
    /// It fails.
    Fail,
}

/// How KV is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvOptions {
    /// Who sets the pace.
    pub mode: Mode,
    /// What is sent as one.
    pub granularity: Granularity,
    /// What becomes of a request whose KV does not come.
    pub on_failure: OnFailure,
    /// Prompts of at least so many tokens are given away while they are computed, where their
    /// sender names a ticket and the granularity is finer than bulk; none: no prompt is.
    pub stream_min_tokens: Option<usize>,
    /// How long KV is held after anything was last heard of it.
    pub lease: Nanos,
    /// How long a peer may be silent: in a handshake, after a claim, between cells.
    pub patience: Nanos,
    /// Which differences between engines are bridged.
    pub allow: Allow,
}

impl Default for KvOptions {
    fn default() -> Self {
        KvOptions {
            mode: Mode::Pull,
            granularity: Granularity::Bulk,
            on_failure: OnFailure::Recompute,
            stream_min_tokens: None,
            lease: Nanos::from_secs(30),
            patience: Nanos::from_secs(10),
            // Both move values as they are.
            allow: Allow {
                block_size: true,
                tp_degree: true,
                ..Allow::default()
            },
        }
    }
}

/// The ways in and out.
#[derive(Default)]
pub struct KvPorts {
    /// Where KV is claimed; none for an engine that hands nothing off.
    pub listener: Option<KvListener>,
    /// How KV is fetched; none for an engine that takes none.
    pub dial: Option<Dial>,
}

/// Where a request's KV is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvSource {
    /// Who holds it.
    pub remote: Remote,
    /// Under which name.
    pub ticket: u64,
    /// Of how many tokens it is.
    pub tokens: usize,
    /// The token that follows them.
    pub first_token: TokenId,
}

/// Where the KV of a prompt will be that is still computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlySource {
    /// Who computes it.
    pub remote: Remote,
    /// Under which name it will be held.
    pub ticket: u64,
}

/// Who computes what of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvTask {
    /// This engine all of it.
    Whole,
    /// This engine the prompt.
    HandOff,
    /// This engine the prompt, whose KV is given away under this ticket while it is computed, see
    /// [`KvOptions::stream_min_tokens`].
    Stream(u64),
    /// Nothing is computed: the KV of the prompt is fetched for a request that comes later and
    /// takes it by the same ticket. [`KvEngine::take_fetched`] tells when that is over.
    Prefetch(EarlySource),
    /// This engine what follows the first token.
    Take(KvSource),
}

/// A request whose KV waits to be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandedOff {
    /// The request.
    pub id: RequestId,
    /// Under this name its KV is held.
    pub ticket: u64,
    /// Prompt tokens.
    pub tokens: usize,
    /// The token that was generated.
    pub first_token: TokenId,
}

/// What a transfer thread tells.
enum News {
    Export(ExportEvent),
    Import(ImportEvent),
}

/// Wakes whoever steps the engine.
type Wake = Box<dyn Fn() + Send + Sync>;

/// An engine with transfers.
pub struct KvEngine {
    engine: Engine,
    exporter: Option<Exporter>,
    importer: Option<Importer>,
    staging: Arc<Staging>,
    news: Receiver<News>,
    wake: Arc<OnceLock<Wake>>,
    tickets: Stream,
    on_failure: OnFailure,
    granularity: Granularity,
    layers: usize,
    stream_min_tokens: Option<usize>,
    exports: BTreeMap<u64, exports::Export>,
    /// Staged blocks of the pool, each with its slot and how many exports have it.
    staged: BTreeMap<BlockId, (BlockId, usize)>,
    /// Requests whose KV is given away while it is computed, with their tickets.
    streams: BTreeMap<RequestId, u64>,
    imports: BTreeMap<RequestId, imports::Import>,
    /// By the id under which they were asked for.
    prefetches: BTreeMap<RequestId, prefetch::Prefetch>,
    /// Imports whose transfers have the name of the prefetch that they began as.
    renamed: BTreeMap<RequestId, RequestId>,
    /// Prefetches that are over or have been taken over.
    fetched: Vec<RequestId>,
    /// Imports that wait for room, first come first served.
    waiting: VecDeque<RequestId>,
    handed_off: Vec<HandedOff>,
    failed: Vec<(RequestId, String)>,
    rows: Vec<TransferRow>,
    stats: KvStats,
    /// Transfers from here, and those to here.
    windows: [Window; 2],
    /// Whether the last step had nothing to compute.
    idle_step: bool,
}

impl KvEngine {
    /// Opens the ways in and out of an engine whose executor has blocks of this shape. `seed` must
    /// be another one after each start of the process: names of transfers are drawn from it.
    ///
    /// # Errors
    /// The shape is not the executor's, or the system gives no thread.
    pub fn new(
        engine: Engine,
        shape: KvShape,
        ports: KvPorts,
        options: &KvOptions,
        clock: &Arc<dyn Clock>,
        seed: u64,
    ) -> Result<KvEngine, String> {
        let me = peer(&engine, shape);
        let staging = Arc::new(staging(&engine, &me, shape)?);
        let (wake, (sender, news)) = (Arc::<OnceLock<Wake>>::default(), channel());
        let tell = {
            let wake = Arc::clone(&wake);
            Arc::new(move |told: News| {
                // An engine that is gone needs no news.
                let _ = sender.send(told);
                if let Some(wake) = wake.get() {
                    wake();
                }
            })
        };
        let memory = || -> (Arc<dyn Memory>, Region) {
            (Arc::clone(&staging) as _, staging.region(shape.layers))
        };
        let exporter = match ports.listener {
            None => None,
            Some(listener) => {
                let tell = Arc::clone(&tell);
                let tell: Tell<ExportEvent> = Arc::new(move |event| tell(News::Export(event)));
                let ids = Stream::new(seed, "kv transfer ids");
                let (me, clock) = (me.clone(), Arc::clone(clock));
                let options = export_options(options);
                let started = Exporter::start(listener, me, memory(), options, clock, ids, tell);
                Some(started.map_err(|e| format!("cannot start the KV exporter: {e}"))?)
            }
        };
        let importer = ports.dial.map(|dial| {
            let tell: Tell<ImportEvent> = Arc::new(move |event| tell(News::Import(event)));
            let sessions = Stream::new(seed, "kv sessions");
            let options = import_options(options, dial);
            Importer::new(me, memory(), options, Arc::clone(clock), sessions, tell)
        });
        Ok(KvEngine {
            engine,
            exporter,
            importer,
            staging,
            news,
            wake,
            tickets: Stream::new(seed, "kv tickets"),
            on_failure: options.on_failure,
            granularity: options.granularity,
            layers: shape.layers,
            stream_min_tokens: options.stream_min_tokens,
            exports: BTreeMap::new(),
            staged: BTreeMap::new(),
            streams: BTreeMap::new(),
            imports: BTreeMap::new(),
            prefetches: BTreeMap::new(),
            renamed: BTreeMap::new(),
            fetched: Vec::new(),
            waiting: VecDeque::new(),
            handed_off: Vec::new(),
            failed: Vec::new(),
            rows: Vec::new(),
            stats: KvStats::default(),
            windows: Default::default(),
            idle_step: false,
        })
    }

    /// Calls `wake` from now on when a transfer has news, from another thread.
    pub fn set_waker(&mut self, wake: Box<dyn Fn() + Send + Sync>) {
        // The second of two could only wake the same engine.
        let _ = self.wake.set(wake);
    }

    /// Lets whoever steps the engine look at what a call has left for it.
    fn wake(&self) {
        if let Some(wake) = self.wake.get() {
            wake();
        }
    }

    /// The engine, for looking at.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The engine. Requests that this was given must be aborted here.
    pub fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Takes a request in.
    ///
    /// # Errors
    /// [`AdmitError`] when it could never be served.
    pub fn add(&mut self, request: EngineRequest, task: KvTask) -> Result<(), AdmitError> {
        match task {
            KvTask::Whole => self.engine.add(request),
            KvTask::HandOff | KvTask::Stream(_) if self.exporter.is_none() => {
                Err(AdmitError::NoTransfer {
                    verb: "hand off",
                    role: "prefill",
                })
            }
            KvTask::HandOff => self.engine.add_prefill(request),
            KvTask::Stream(ticket) => self.add_stream(request, ticket),
            KvTask::Prefetch(source) => self.prefetch(&request, source),
            KvTask::Take(source) => self.import(request, source),
        }
    }

    /// Removes a request in whatever state it is; its blocks are released, or will be by the
    /// transfer that uses them. False when it is not known.
    pub fn abort(&mut self, id: RequestId) -> bool {
        let prefetched = self.cancel_prefetch(id);
        self.cancel_import(id);
        self.cancel_export(id);
        self.engine.abort(id) || prefetched
    }

    /// Whether a step would find a request.
    pub fn has_work(&self) -> bool {
        self.engine.has_work()
    }

    /// Whether the last step computed nothing, because blocks are held for transfers: a step makes
    /// sense again after news, or later.
    pub fn is_blocked(&self) -> bool {
        self.idle_step
    }

    /// Steps the engine, after the news and before what follows from the step.
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub fn step(&mut self, clock: &dyn Clock) -> Result<StepOutput, ExecError> {
        self.take_news();
        let stepped = self.step_engine(clock);
        // A transfer that has failed during the step is not one to hand a prompt off by.
        self.hear_all();
        self.idle_step = stepped.as_ref().is_ok_and(|out| out.scheduled.is_empty());
        self.export(clock.now());
        // Requests that ended have left their places.
        self.make_room();
        stepped
    }

    /// Takes what the transfer threads have told, without waiting.
    pub fn take_news(&mut self) {
        self.hear_all();
        self.make_room();
    }

    fn hear_all(&mut self) {
        while let Ok(news) = self.news.try_recv() {
            self.hear(news);
        }
    }

    /// As [`KvEngine::take_news`], and waits for some if there are none. False when none came.
    pub fn wait_news(&mut self, timeout: Duration) -> bool {
        let first = self.news.recv_timeout(timeout);
        let came = first.is_ok();
        if let Ok(news) = first {
            self.hear(news);
        }
        self.take_news();
        came
    }

    fn hear(&mut self, news: News) {
        match news {
            News::Export(ExportEvent::Freed { ticket, .. }) => self.freed(ticket),
            News::Export(ExportEvent::Row(row)) => {
                self.stats.sent(&mut self.windows[0], &row);
                self.rows.push(*row);
            }
            News::Import(event) => self.imported(event),
        }
    }

    /// Takes back what is held under a ticket because nobody will claim it. False when nothing is,
    /// or somebody has claimed it.
    pub fn release(&mut self, ticket: u64) -> bool {
        self.take_back(ticket)
    }

    /// Requests that were handed off since the last call.
    pub fn take_handed_off(&mut self) -> Vec<HandedOff> {
        std::mem::take(&mut self.handed_off)
    }

    /// Requests that have failed for want of their KV since the last call, and why. They are gone.
    pub fn take_failed(&mut self) -> Vec<(RequestId, String)> {
        std::mem::take(&mut self.failed)
    }

    /// Prefetches that have ended since the last call, because a request has taken them over or
    /// because they do not come.
    pub fn take_fetched(&mut self) -> Vec<RequestId> {
        std::mem::take(&mut self.fetched)
    }

    /// The rows of transfers from here that ended since the last call.
    pub fn take_rows(&mut self) -> Vec<TransferRow> {
        std::mem::take(&mut self.rows)
    }

    /// What has been transferred.
    pub fn stats(&self) -> KvStats {
        let exporter = self.exporter.as_ref();
        KvStats {
            queue_depth: exporter.map_or(0, Exporter::queue_depth)
                + self.waiting.len()
                + self.prefetches_waiting(),
            exports: self.exports.len(),
            imports: self.imports.len() + self.prefetches.len(),
            ..self.stats.clone()
        }
    }

    /// Checks the engine's laws, and that transfers have what they need and no more.
    ///
    /// # Errors
    /// The first law that does not hold.
    pub fn check(&self) -> Result<(), String> {
        self.engine.check()?;
        let new = |import: &imports::Import| import.slots.len() - import.have;
        let growing = self.exports.values().filter_map(|one| one.growing.as_ref());
        let streamed = growing.map(|growing| growing.begun).sum::<usize>();
        let fetched = self.prefetches.values().map(|one| one.slots.len());
        let slots = self.imports.values().map(new).sum::<usize>()
            + self.staged.len()
            + streamed
            + fetched.sum::<usize>();
        let most = self.engine.kv().usable_blocks();
        if streamed > most {
            return Err(format!(
                "streamed prompts: {streamed} copies, {most} blocks"
            ));
        }
        match self.staging.len() {
            found if found == slots => Ok(()),
            found => Err(format!("staging: {found} slots, {slots} in use")),
        }
    }
}
