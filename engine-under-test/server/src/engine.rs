//! The engine thread: one thread owns the core, everyone else sends it commands.
//!
//! Commands are taken between steps. The thread sleeps in the channel while the core has no
//! work, so an idle server uses no processor. A core that panics, or that fails without saying
//! which requests it gave up, is not used again: its requests end with an error, `/health` turns
//! to 503, and the process stays up to say so.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use pb_contract::{Clock, EngineConfig, EngineRequest, RequestId, StepRow, TransferLine};
use pb_core::DeviceMemory;
use pb_core::disagg::KvTask;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::collector::{Collector, Failure, Reader};
use crate::core_api::{Core, CoreStatus};
use crate::kv::KvFacts;
use crate::kv_routes::CacheLine;
use crate::live::{LiveRequests, StepTimes};
use crate::metrics::Metrics;
use crate::options::ServerOptions;
use crate::output::OutputState;
use crate::steps::Ring;
use crate::waits::LockWaits;

/// How long the engine thread sleeps when all that it could do waits for blocks.
const BLOCKED: Duration = Duration::from_millis(20);

/// How long a page of metrics waits for the engine thread to look at its device. A step may take
/// longer: then the page has what was seen before.
const DEVICE_PATIENCE: Duration = Duration::from_millis(50);

/// One choice of a request on its way to the engine.
pub(crate) struct Member {
    /// What the core gets; its id is set on submission. Until then `fork_of` is the place of
    /// the origin among the choices.
    pub(crate) request: EngineRequest,
    /// The text side.
    pub(crate) output: OutputState,
    /// What of it is computed here.
    pub(crate) task: KvTask,
}

enum Command {
    Add {
        members: Vec<Member>,
        collector: Arc<Collector>,
    },
    Abort(Vec<RequestId>),
    Reset(oneshot::Sender<bool>),
    /// Takes back what is held under a ticket.
    Release(u64, oneshot::Sender<bool>),
    /// Looks where the device's memory stands.
    Look(oneshot::Sender<bool>),
    /// The core has been told something by another thread.
    Hear,
    AbortAll,
    Stop,
}

/// What the engine thread shows to the handlers without being asked.
pub(crate) struct Shared {
    status: Mutex<CoreStatus>,
    metrics: Mutex<Metrics>,
    /// Of the device, when it was looked at last.
    memory: Mutex<Option<DeviceMemory>>,
    live_choices: AtomicUsize,
    dead: OnceLock<String>,
    pub(crate) ring: Ring<StepRow>,
    pub(crate) transfers: Ring<TransferLine>,
    pub(crate) cache_events: Ring<CacheLine>,
    /// What others must know of this server, and the size of its blocks.
    pub(crate) kv: Option<(KvFacts, usize)>,
    /// What handlers cost the engine thread.
    pub(crate) waits: LockWaits,
}

impl Shared {
    /// What was counted, for a handler.
    pub(crate) fn metrics(&self) -> MutexGuard<'_, Metrics> {
        self.metrics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same for the engine thread, which keeps account of its waits.
    pub(crate) fn count(&self) -> MutexGuard<'_, Metrics> {
        self.waits.lock(&self.metrics)
    }

    /// State of the core after the last step or command.
    pub(crate) fn status(&self) -> CoreStatus {
        let status = self.status.lock();
        status.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where the memory of the device stood when it was looked at last.
    pub(crate) fn memory(&self) -> Option<DeviceMemory> {
        let memory = self.memory.lock();
        memory.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Shows the state of the core from now on. For the engine thread.
    pub(crate) fn publish(&self, core: &dyn Core) {
        let status = core.status();
        *self.waits.lock(&self.status) = status;
    }

    /// Makes room for new requests.
    pub(crate) fn released(&self, choices: usize) {
        self.live_choices.fetch_sub(choices, Ordering::Relaxed);
    }
}

/// The way to the engine thread.
#[derive(Clone)]
pub(crate) struct EngineHandle {
    commands: Sender<Command>,
    shared: Arc<Shared>,
    next_id: Arc<AtomicU64>,
    max_live_choices: usize,
}

impl EngineHandle {
    /// Starts the engine thread.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn start(
        mut core: Box<dyn Core>,
        clock: Arc<dyn Clock>,
        options: &ServerOptions,
    ) -> std::io::Result<(EngineHandle, EngineConfig, JoinHandle<()>)> {
        let config = core.config().clone();
        let (commands, inbox) = channel();
        let waker = commands.clone();
        core.record_cache_events();
        core.set_waker(Box::new(move || {
            // A stopped engine hears nothing.
            let _ = waker.send(Command::Hear);
        }));
        let kv = options.kv.clone();
        let shared = Arc::new(Shared {
            status: Mutex::new(core.status()),
            metrics: Mutex::new(Metrics::new()),
            memory: Mutex::new(core.device_memory()),
            live_choices: AtomicUsize::new(0),
            dead: OnceLock::new(),
            ring: Ring::new(options.step_rows),
            transfers: Ring::new(options.kv_rows),
            cache_events: Ring::new(options.kv_rows),
            kv: kv.map(|facts| (facts, config.block_size)),
            waits: LockWaits::new(Arc::clone(&clock)),
        });
        let live = LiveRequests::new(Arc::clone(&shared));
        let engine = EngineLoop {
            core,
            inbox,
            clock,
            live,
            shared: Arc::clone(&shared),
            told: [0; 2],
        };
        let thread = std::thread::Builder::new()
            .name("engine".to_owned())
            .spawn(|| engine.run())?;
        let next_id = Arc::new(AtomicU64::new(0));
        Ok((
            EngineHandle {
                commands,
                shared,
                next_id,
                max_live_choices: options.max_live_choices,
            },
            config,
            thread,
        ))
    }

    /// Sends the choices of one request; the answer arrives through the reader.
    pub(crate) fn submit(
        &self,
        mut members: Vec<Member>,
        streaming: bool,
    ) -> Result<Reader, Failure> {
        let choices = members.len();
        if let Some(reason) = self.dead() {
            return Err(Failure::Engine(reason.to_owned()));
        }
        let before = self
            .shared
            .live_choices
            .fetch_add(choices, Ordering::Relaxed);
        if before + choices > self.max_live_choices {
            self.shared.released(choices);
            return Err(Failure::Overloaded);
        }
        let first = self.next_id.fetch_add(choices as u64, Ordering::Relaxed);
        for (member, id) in members.iter_mut().zip(first..) {
            member.request.id = RequestId(id);
            let fork_of = member.request.fork_of;
            member.request.fork_of = fork_of.map(|place| RequestId(first + place.0));
        }
        let collector = Arc::new(Collector::new(choices, streaming));
        let ids = (first..first + choices as u64).map(RequestId);
        let reader = Reader::new(&collector, self.clone(), ids);
        if self
            .commands
            .send(Command::Add { members, collector })
            .is_err()
        {
            self.shared.released(choices);
            return Err(Failure::Engine("the engine has stopped".to_owned()));
        }
        Ok(reader)
    }

    /// Drops requests. A stopped engine has dropped them already.
    pub(crate) fn abort(&self, ids: Vec<RequestId>) {
        let _ = self.commands.send(Command::Abort(ids));
    }

    /// Ends every running request with the reason `abort`.
    pub(crate) fn abort_all(&self) {
        let _ = self.commands.send(Command::AbortAll);
    }

    /// Lets the engine thread end.
    pub(crate) fn stop(&self) {
        let _ = self.commands.send(Command::Stop);
    }

    /// Empties the prefix cache between two steps.
    pub(crate) async fn reset_prefix_cache(&self) -> Result<bool, Failure> {
        self.ask(Command::Reset).await
    }

    /// Takes back KV that is held for another server; false when nobody holds any under `ticket`,
    /// or somebody has claimed it.
    pub(crate) async fn release(&self, ticket: u64) -> Result<bool, Failure> {
        self.ask(|answer| Command::Release(ticket, answer)).await
    }

    /// Where the memory of the device stands, between two steps; where it stood before while a
    /// step is long or the engine is dead. `None` without a device.
    pub(crate) async fn device_memory(&self) -> Option<DeviceMemory> {
        if self.shared.memory().is_some() {
            let looked = timeout(DEVICE_PATIENCE, self.ask(Command::Look)).await;
            // An engine that does not answer has told before what it can.
            drop(looked);
        }
        self.shared.memory()
    }

    /// Sends a command that is answered.
    async fn ask(
        &self,
        command: impl FnOnce(oneshot::Sender<bool>) -> Command,
    ) -> Result<bool, Failure> {
        let (answer, answered) = oneshot::channel();
        let gone = |()| Failure::Engine(self.dead().unwrap_or("the engine has stopped").to_owned());
        self.commands.send(command(answer)).map_err(|_| gone(()))?;
        answered.await.map_err(|_| gone(()))
    }

    /// Why the engine is no longer usable, if so.
    pub(crate) fn dead(&self) -> Option<&str> {
        self.shared.dead.get().map(String::as_str)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

struct EngineLoop {
    core: Box<dyn Core>,
    inbox: Receiver<Command>,
    clock: Arc<dyn Clock>,
    live: LiveRequests,
    shared: Arc<Shared>,
    /// Numbers of the next row of a transfer and of the next change of the cache.
    told: [u64; 2],
}

impl EngineLoop {
    fn run(mut self) {
        loop {
            match catch_unwind(AssertUnwindSafe(|| self.turn())) {
                Ok(true) => {}
                Ok(false) => break,
                Err(panic) => {
                    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
                    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
                    let text = text.unwrap_or_default();
                    self.die(format!("the engine panicked: {text}"));
                }
            }
        }
        // Whoever still waits is told rather than left waiting.
        self.live
            .fail_all(&Failure::Engine("the server is shutting down".to_owned()));
    }

    /// Takes the commands that are there (waits for one when idle) and runs one step. False when
    /// it is time to end.
    fn turn(&mut self) -> bool {
        let mut next = if self.shared.dead.get().is_some() || !self.core.has_work() {
            // An error means that no handle is left.
            let Ok(command) = self.inbox.recv() else {
                return false;
            };
            Some(command)
        } else if self.core.is_blocked() {
            // Trying again at once would only spin; whoever gives blocks back tells so.
            self.inbox.recv_timeout(BLOCKED).ok()
        } else {
            self.inbox.try_recv().ok()
        };
        let before = self.clock.now();
        // Waits after the step before; those from here on are within the time until the step.
        let waited = self.shared.waits.take();
        while let Some(command) = next {
            if !self.obey(command) {
                return false;
            }
            next = self.inbox.try_recv().ok();
        }
        if self.shared.dead.get().is_none() {
            self.report();
            if self.core.has_work() {
                self.shared.waits.take();
                self.core
                    .set_lock_wait(waited + (self.clock.now() - before));
                self.step();
                if self.shared.dead.get().is_none() {
                    self.hear();
                }
            }
        }
        true
    }

    fn step(&mut self) {
        match self.core.step(&*self.clock) {
            Ok(step) => {
                let now = self.clock.now();
                self.shared.count().step(&step.row);
                let times = StepTimes {
                    start: step.row.start_ns,
                    end: now,
                };
                // Who has read a token finds the state and the row of the step that made it.
                self.report();
                self.shared.ring.push(step.row, &self.shared.waits);
                self.live.deliver(step.events, times, &mut *self.core);
            }
            Err(failure) if failure.failed.is_empty() => {
                self.die(format!("the engine failed: {failure}"));
            }
            Err(failure) => {
                let reason = Failure::Engine(failure.message);
                for id in failure.failed {
                    self.live.fail(id, &reason);
                }
                self.shared.publish(&*self.core);
            }
        }
    }

    /// Shows where the core stands, and what it tells of its cache and its transfers.
    fn report(&mut self) {
        self.shared.publish(&*self.core);
        let [transfer, change] = &mut self.told;
        for row in self.core.take_transfers() {
            let line = TransferLine {
                seq: *transfer,
                told_ns: self.clock.now(),
                worker: None,
                row,
            };
            self.shared.transfers.push(line, &self.shared.waits);
            *transfer += 1;
        }
        for event in self.core.take_cache_events() {
            let line = CacheLine {
                seq: *change,
                event,
            };
            self.shared.cache_events.push(line, &self.shared.waits);
            *change += 1;
        }
    }

    /// Lets the core take what other threads have told, and ends the requests that fail by it.
    fn hear(&mut self) {
        for (id, reason) in self.core.hear() {
            self.live.fail(id, &Failure::Transfer(reason));
        }
        for id in self.core.take_fetched() {
            self.live.fetched(id, self.clock.now());
        }
    }

    fn obey(&mut self, command: Command) -> bool {
        if let Some(reason) = self.shared.dead.get() {
            return self.obey_dead(command, reason.clone());
        }
        match command {
            Command::Add { members, collector } => self.add(members, collector),
            Command::Abort(ids) => {
                let now = self.clock.now();
                for id in ids {
                    self.live.drop_one(id, now, &mut *self.core);
                }
            }
            Command::Reset(answer) => {
                let success = self.core.reset_prefix_cache();
                // Whoever asked finds the state after the reset, and after what came before it.
                self.report();
                // The client may have gone; the cache is empty all the same.
                let _ = answer.send(success);
            }
            Command::Release(ticket, answer) => {
                let released = self.core.release(ticket);
                self.report();
                // Whoever asked may have gone; what was held is free all the same.
                let _ = answer.send(released);
            }
            Command::Look(answer) => {
                let memory = self.core.device_memory();
                *self.shared.waits.lock(&self.shared.memory) = memory;
                // The page may have gone on without it.
                let _ = answer.send(true);
            }
            Command::Hear => self.hear(),
            Command::AbortAll => {
                let now = self.clock.now();
                self.live.abort_all(now, &mut *self.core);
            }
            Command::Stop => return false,
        }
        true
    }

    fn obey_dead(&mut self, command: Command, reason: String) -> bool {
        match command {
            Command::Add { members, collector } => {
                self.shared.released(members.len());
                collector.fail(Failure::Engine(reason));
            }
            Command::Abort(_)
            | Command::AbortAll
            | Command::Reset(_)
            | Command::Release(..)
            | Command::Look(_)
            | Command::Hear => {}
            Command::Stop => return false,
        }
        true
    }

    /// A request is taken in whole or not at all.
    fn add(&mut self, members: Vec<Member>, collector: Arc<Collector>) {
        let mut requests = Vec::with_capacity(members.len());
        for (choice, member) in members.into_iter().enumerate() {
            let Member {
                request,
                output,
                task,
            } = member;
            let collector = Arc::clone(&collector);
            self.live.insert(&request, choice, output, &task, collector);
            requests.push((request, task));
        }
        let ids: Vec<RequestId> = requests.iter().map(|(request, _)| request.id).collect();
        for (request, task) in requests {
            if let Err(refusal) = self.core.add_part(request, task) {
                for id in ids {
                    self.core.abort(id);
                    self.live.forget(id);
                }
                collector.fail(Failure::Refused(refusal.0));
                return;
            }
        }
    }

    fn die(&mut self, reason: String) {
        let reason = self.shared.dead.get_or_init(|| reason).clone();
        self.live.fail_all(&Failure::Engine(reason));
    }
}
