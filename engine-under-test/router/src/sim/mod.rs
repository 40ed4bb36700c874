//! The router in virtual time, in front of simulated workers.
//!
//! A simulated worker has the real block memory and prefix cache ([`pb_kv`]) and a model of time: a
//! step costs something anyway, each prompt token and each query-key pair cost something, and so
//! does each decoding sequence. It does one thing at a time, prompts first. What this shows is what
//! the router's decisions do to the work (tokens computed, blocks evicted) and who waits for whom;
//! the times are those of the model and of no machine.

mod worker;

use std::collections::BTreeMap;

use pb_contract::{Nanos, RequestId, TokenId};
use pb_kv::{CacheScope, HashedTokens, KvConfig, KvError};

use crate::config::{ConfigError, RouterConfig};
use crate::index::EventPage;
use crate::machine::{Command, Router};
use crate::stats::{Outcome, Stats};
use crate::worker::{Ask, Pool, WorkerId, WorkerSpec};
use worker::{Done, Job, SimWorker};

/// A request of the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimRequest {
    /// When it comes.
    pub at_ns: Nanos,
    /// Its prompt.
    pub prompt: Vec<TokenId>,
    /// Tokens that it produces, at least 1.
    pub output_tokens: u32,
}

/// How long a step takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimTimes {
    /// Any step.
    pub step_ns: f64,
    /// A prompt token.
    pub prompt_token_ns: f64,
    /// A query-key pair of a prompt.
    pub prompt_pair_ns: f64,
    /// A decoding sequence.
    pub sequence_ns: f64,
    /// Moving the KV of a token to another worker.
    pub transfer_token_ns: f64,
}

impl Default for SimTimes {
    /// Of the order of an 8 B model on one accelerator with a 100 Gb/s link: 2048 tokens in about
    /// 0.1 s, 10 ms a decode step, 128 KiB of KV a token.
    fn default() -> Self {
        SimTimes {
            step_ns: 8e6,
            prompt_token_ns: 45e3,
            prompt_pair_ns: 1.0,
            sequence_ns: 50e3,
            transfer_token_ns: 10.5e3,
        }
    }
}

/// What stands behind the router.
#[derive(Clone, Debug, PartialEq)]
pub struct SimOptions {
    /// Pools of the workers.
    pub pools: Vec<Pool>,
    /// Whether they may help in other pools.
    pub flexible: bool,
    /// Tokens in a block.
    pub block_size: usize,
    /// Blocks of each worker.
    pub blocks: usize,
    /// How long a step takes.
    pub times: SimTimes,
    /// How often the router reads the workers' events; none: they report none.
    pub events_every_ns: Option<Nanos>,
    /// Verify the router's laws after every event, for tests.
    pub check_laws: bool,
}

/// How one request fared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimRow {
    /// From arrival to first token; none when it was refused.
    pub ttft_ns: Option<u64>,
    /// From arrival to the last token; none when it was refused.
    pub e2e_ns: Option<u64>,
    /// Prompt tokens that a worker computed for it.
    pub computed_tokens: u64,
    /// Tokens that it produced.
    pub output_tokens: u32,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimReport {
    /// One row a request, in the order of the trace.
    pub rows: Vec<SimRow>,
    /// The router's counts.
    pub stats: Stats,
    /// Prompt tokens of all requests that were not refused.
    pub prompt_tokens: u64,
    /// Of these, computed: the others were found in a worker's cache.
    pub computed_tokens: u64,
    /// Most computed prompts that one prefill worker kept at a time.
    pub most_kept: usize,
    /// Most requests that waited in the router.
    pub most_queued: usize,
    /// When the last request ended.
    pub end_ns: Nanos,
}

/// Why nothing was simulated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SimError {
    /// A rule of the router.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The workers' memory.
    #[error("the workers' block memory: {0}")]
    Memory(#[from] KvError),
    /// A request that no worker could ever hold.
    #[error("request {index}: {tokens} tokens do not fit into a worker's {blocks} blocks")]
    TooLarge {
        /// Its place in the trace.
        index: usize,
        /// Tokens of prompt and output.
        tokens: usize,
        /// Blocks of a worker.
        blocks: usize,
    },
    /// A request that produces nothing.
    #[error("request {index}: needs a prompt and at least one output token")]
    Empty {
        /// Its place in the trace.
        index: usize,
    },
}

/// Something that happens at a time.
#[derive(Clone, Copy, Debug)]
enum Happens {
    Arrives(usize),
    /// A worker has done what it was doing.
    Done(WorkerId),
    /// A worker has all of a request's KV.
    Moved(RequestId),
    /// The router reads events.
    Reads,
    /// A deadline of the router.
    Tick,
}

struct Sim<'a> {
    now: Nanos,
    router: Router,
    workers: Vec<SimWorker>,
    requests: &'a [SimRequest],
    options: &'a SimOptions,
    /// Ordered by time, then by creation.
    agenda: BTreeMap<(Nanos, u64), Happens>,
    created: u64,
    /// When the next [`Happens::Tick`] is, or the last one was.
    woken: Option<Nanos>,
    /// Where each request's prompt was computed, while its KV is there.
    sources: BTreeMap<RequestId, WorkerId>,
    /// Where each request decodes.
    sinks: BTreeMap<RequestId, WorkerId>,
    report: SimReport,
}

/// Runs a trace to its end.
///
/// # Errors
/// See [`SimError`].
pub fn simulate(
    config: &RouterConfig,
    options: &SimOptions,
    requests: &[SimRequest],
) -> Result<SimReport, SimError> {
    for (index, request) in requests.iter().enumerate() {
        let tokens = request.prompt.len() + request.output_tokens as usize;
        if request.prompt.is_empty() || request.output_tokens == 0 {
            return Err(SimError::Empty { index });
        }
        if tokens.div_ceil(options.block_size) > options.blocks {
            let blocks = options.blocks;
            return Err(SimError::TooLarge {
                index,
                tokens,
                blocks,
            });
        }
    }
    let mut sim = Sim::new(config, options, requests)?;
    sim.run();
    Ok(sim.report)
}

impl<'a> Sim<'a> {
    fn new(
        config: &RouterConfig,
        options: &'a SimOptions,
        requests: &'a [SimRequest],
    ) -> Result<Self, SimError> {
        let mut router = Router::new(config.clone())?;
        let mut workers = Vec::new();
        for &pool in &options.pools {
            router.add_worker(WorkerSpec {
                flexible: options.flexible,
                blocks_total: Some(options.blocks),
                ..WorkerSpec::new(pool, options.block_size)
            });
            workers.push(SimWorker::new(options)?);
        }
        let mut sim = Sim {
            now: Nanos::ZERO,
            router,
            workers,
            requests,
            options,
            agenda: BTreeMap::new(),
            created: 0,
            woken: None,
            sources: BTreeMap::new(),
            sinks: BTreeMap::new(),
            report: SimReport {
                rows: vec![SimRow::default(); requests.len()],
                ..SimReport::default()
            },
        };
        for (index, request) in requests.iter().enumerate() {
            sim.plan(request.at_ns, Happens::Arrives(index));
        }
        if options.events_every_ns.is_some() {
            sim.plan(Nanos::ZERO, Happens::Reads);
        }
        Ok(sim)
    }

    fn plan(&mut self, at: Nanos, what: Happens) {
        self.agenda.insert((at, self.created), what);
        self.created += 1;
    }

    fn run(&mut self) {
        let mut arrived = 0;
        while let Some(((at, _), what)) = self.agenda.pop_first() {
            self.now = at;
            match what {
                Happens::Arrives(index) => {
                    arrived += 1;
                    self.arrives(index);
                }
                Happens::Done(worker) => self.done(worker),
                Happens::Moved(id) => self.moved(id),
                Happens::Reads => {
                    self.read_events();
                    // After the last request nothing remains to be read for.
                    if arrived < self.requests.len() || self.router.live() > 0 {
                        let every = self.options.events_every_ns.unwrap_or(Nanos::from_secs(1));
                        self.plan(at + every.max(Nanos(1)), Happens::Reads);
                    }
                }
                Happens::Tick => self.router.tick(at),
            }
            self.obey();
            self.begin_work();
            if self.options.check_laws {
                assert_eq!(self.router.check(), Ok(()));
            }
        }
        assert_eq!(self.router.live(), 0, "every request ends");
        self.report.stats = *self.router.stats();
    }

    fn arrives(&mut self, index: usize) {
        let request = &self.requests[index];
        let names = self.sequence(&request.prompt).hashes().into();
        let ask = Ask {
            prompt_tokens: request.prompt.len(),
            names: vec![names],
            splittable: request.output_tokens > 1,
        };
        self.router.arrive(self.now, RequestId(index as u64), ask);
    }

    fn sequence(&self, tokens: &[TokenId]) -> HashedTokens {
        let config = KvConfig::new(
            self.options.block_size,
            self.options.blocks,
            pb_contract::PrefixCacheKind::HashChain,
        );
        let mut sequence = config.sequence(&CacheScope::default());
        sequence.extend(tokens);
        sequence
    }

    /// Prompt and output of a request. No two requests answer alike.
    fn whole_sequence(&self, id: RequestId) -> HashedTokens {
        let request = &self.requests[id.0 as usize];
        let mut sequence = self.sequence(&request.prompt);
        let answer = (0..request.output_tokens).map(|n| (1 << 31) | ((id.0 as u32) ^ (n << 20)));
        sequence.extend(&answer.collect::<Vec<TokenId>>());
        sequence
    }

    /// Carries out what the router says, and makes sure that it is woken.
    fn obey(&mut self) {
        while let Some(command) = self.router.poll() {
            match command {
                Command::Start { id, at, whole, .. } => {
                    let tokens = self.requests[id.0 as usize].prompt.len();
                    let sequence = if whole {
                        self.whole_sequence(id)
                    } else {
                        self.sequence(&self.requests[id.0 as usize].prompt)
                    };
                    let job = Job {
                        id,
                        sequence,
                        prompt_tokens: tokens,
                        whole,
                        hit_tokens: 0,
                    };
                    self.workers[at.0 as usize].prompts.push_back(job);
                    self.sources.insert(id, at);
                }
                Command::Hand { id, to } => {
                    self.sinks.insert(id, to);
                    let tokens = self.requests[id.0 as usize].prompt.len();
                    let job = Job {
                        id,
                        sequence: self.whole_sequence(id),
                        prompt_tokens: tokens,
                        whole: false,
                        hit_tokens: 0,
                    };
                    self.workers[to.0 as usize].arriving.push_back(job);
                }
                Command::Refuse { id, .. } => {
                    self.report.rows[id.0 as usize] = SimRow::default();
                    if let Some(source) = self.sources.remove(&id) {
                        self.workers[source.0 as usize].release(id);
                    }
                }
            }
        }
        if let Some(deadline) = self.router.next_deadline()
            && deadline > self.now
            && self.woken.is_none_or(|at| at <= self.now || at > deadline)
        {
            self.woken = Some(deadline);
            self.plan(deadline, Happens::Tick);
        }
        let (queued, _) = self.router.waiting();
        self.report.most_queued = self.report.most_queued.max(queued);
        let kept = self.router.workers().into_iter().map(|view| view.kept);
        self.report.most_kept = self.report.most_kept.max(kept.max().unwrap_or(0));
    }

    /// Lets every idle worker begin what it can.
    fn begin_work(&mut self) {
        for index in 0..self.workers.len() {
            let worker = &mut self.workers[index];
            for id in worker.admit_arriving() {
                let tokens = self.requests[id.0 as usize].prompt.len() as f64;
                let takes = self.options.times.transfer_token_ns * tokens;
                self.plan(self.now + Nanos(takes as u64), Happens::Moved(id));
            }
            if let Some(takes) = self.workers[index].begin(&self.options.times) {
                let at = self.now + takes.max(Nanos(1));
                self.plan(at, Happens::Done(WorkerId(index as u32)));
            }
        }
    }

    fn done(&mut self, at: WorkerId) {
        match self.workers[at.0 as usize].finish_step() {
            Done::Prompt {
                id,
                computed_tokens,
            } => {
                let row = &mut self.report.rows[id.0 as usize];
                let arrived = self.requests[id.0 as usize].at_ns;
                row.ttft_ns = Some((self.now - arrived).0);
                row.computed_tokens = computed_tokens;
                row.output_tokens = 1;
                self.report.computed_tokens += computed_tokens;
                self.report.prompt_tokens += self.requests[id.0 as usize].prompt.len() as u64;
                self.router.prefilled(self.now, id);
                self.maybe_end(at, id);
            }
            Done::Tokens(ids) => {
                for id in ids {
                    self.report.rows[id.0 as usize].output_tokens += 1;
                    self.maybe_end(at, id);
                }
            }
        }
    }

    fn maybe_end(&mut self, at: WorkerId, id: RequestId) {
        let (request, row) = (
            &self.requests[id.0 as usize],
            &mut self.report.rows[id.0 as usize],
        );
        if row.output_tokens < request.output_tokens {
            return;
        }
        row.e2e_ns = Some((self.now - request.at_ns).0);
        self.report.end_ns = self.now;
        self.workers[at.0 as usize].release(id);
        self.sources.remove(&id);
        self.sinks.remove(&id);
        self.router.ended(self.now, id, Outcome::Completed);
    }

    fn moved(&mut self, id: RequestId) {
        if let Some(source) = self.sources.remove(&id) {
            self.workers[source.0 as usize].release(id);
        }
        let sink = self.sinks[&id];
        self.workers[sink.0 as usize].decode(id);
        self.router.fetched(self.now, id);
    }

    fn read_events(&mut self) {
        for (index, worker) in self.workers.iter().enumerate() {
            let id = WorkerId(index as u32);
            let since = self.router.next_event(id) as usize;
            let page = EventPage {
                engine: index.to_string(),
                oldest_seq: 0,
                next_seq: worker.events.len() as u64,
                events: worker.events[since..].to_vec(),
            };
            self.router.read_events(self.now, id, &page);
        }
    }
}
