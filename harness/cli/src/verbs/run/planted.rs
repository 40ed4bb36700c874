//! Faults of performance that are planted in a load, for the judges to find.
//!
//! The load driver, the scheduler, the allocator, the cache, the rows, the files and every rule
//! are the real ones; only the time of a step is a model's. It varies as a machine's does: a run
//! is slower than another by up to 0.4 %, a step by up to 4 %. So what a judge finds here follows
//! from a seed, on any machine.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use pb_bench::{Document, WorkloadFacts};
use pb_contract::plan::{OpenRequest, Plan, PlannedBody, PlannedPrompt};
use pb_contract::wire::Usage;
use pb_contract::{BlockId, Clock, FailKind, Nanos, RequestId, TokenId, VirtualClock};
use pb_core::{Chunk, CostModel, Executor, SimExecutor};
use pb_load::shell_sim::{ServerEvent, SimServer, Stall};
use pb_model::forward::{ForwardTiming, LogitSink};
use pb_stats::simulate::uniform_open;
use pb_stats::{SplitMix64, uniform_index};
use serde_json::json;

use crate::verbs::engine::{EngineServer, Recording, START, VOCAB};

/// Requests of a run.
pub(super) const REQUESTS: u64 = 200;
/// Tokens of a block of the cache.
const BLOCK: usize = 16;
/// Groups of prompts, the tokens that the prompts of a group share, and the most that are a
/// prompt's own.
const GROUPS: usize = 4;
const SHARED: usize = 16 * BLOCK;
const OWN: usize = 128;
/// Tokens of an answer.
const OUTPUT: u32 = 16;
/// Mean time between arrivals.
const MEAN_GAP_NS: f64 = 8e7;

/// What is wrong with a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fault {
    /// Nothing.
    None,
    /// Every step sleeps 3 % of its time.
    Sleep,
    /// Every tenth block that is looked up is not found, nor what comes after it.
    Misses,
    /// Every fiftieth step takes 200 ms more.
    Stall,
    /// The client hangs for 20 ms in every 200 ms.
    LateDriver,
    /// The server has seen all prompts before.
    WarmCache,
    /// Every twentieth request is refused.
    Refusals,
}

/// What is claimed of the cache at the start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Claimed {
    /// Nothing.
    AsIs,
    /// That it is empty.
    Cold,
}

/// The schedule of a block: prompts in groups, at random instants.
fn plan(block: u64) -> Plan {
    let mut rng = SplitMix64::new(1_000 + block);
    let mut at = 0.0;
    let mut request = |id: u64| {
        at -= MEAN_GAP_NS * uniform_open(&mut rng).ln();
        let group = uniform_index(&mut rng, GROUPS);
        let own = 1 + uniform_index(&mut rng, OWN);
        let shared = (0..SHARED).map(|i| token(group, i));
        // No two requests share a token beyond the group's.
        let rest = (0..own).map(|i| token(GROUPS + id as usize, i));
        OpenRequest {
            id: RequestId(id),
            offset_ns: Nanos(at as u64),
            body: PlannedBody::of_ids("planted", shared.chain(rest).collect(), OUTPUT),
        }
    };
    let open: Vec<OpenRequest> = (0..REQUESTS).map(&mut request).collect();
    let last = open.last().map_or(Nanos::ZERO, |request| request.offset_ns);
    Plan {
        open,
        horizon_ns: last + Nanos(1),
        drain_ns: Nanos::from_secs(3600),
        ..Plan::default()
    }
}

/// Token `i` of text `text`; the upper half of the vocabulary is left to faults.
fn token(text: usize, i: usize) -> TokenId {
    ((text * 7_919 + i * 31) % (VOCAB / 2)) as TokenId
}

/// Makes the run of `block` with `fault` in `dir`; `place` tells the two runs of a block apart,
/// which share a schedule and no noise.
pub(super) fn run(dir: &Path, block: u64, place: u64, fault: Fault, claimed: Claimed) -> Document {
    let plan = plan(block);
    let cost = CostModel::builtin(CostModel::builtin_names()[0]).expect("a built-in model");
    let keys = json!({
        "preset": "vllm-v1", "block_size": BLOCK, "num_blocks": 20_000,
        "max_batched_tokens": 512, "max_model_len": 1_024,
    });
    let config = pb_replay::engine_config(&keys).expect("a configuration");
    let clock = Arc::new(VirtualClock::new());
    let executor = Machine {
        inner: SimExecutor::new(cost.clone(), Arc::clone(&clock), VOCAB),
        clock: Arc::clone(&clock),
        rng: SplitMix64::new(17 + 2 * block + place),
        slower: 0.0,
        fault,
        steps: 0,
    };
    let engine = serde_json::to_value(&config).expect("JSON");
    let inner = EngineServer::new(config, Box::new(executor.begun()), clock).expect("an engine");
    let mut server = Faulty {
        inner,
        fault,
        blocks: 0,
        refused: VecDeque::new(),
    };
    if fault == Fault::WarmCache {
        server.primed(&plan);
    }
    let stalls = match fault {
        Fault::LateDriver => hangs(&plan),
        _ => Vec::new(),
    };
    let recording = Recording {
        plan,
        seed: block,
        workload: WorkloadFacts {
            dataset: "planted".to_owned(),
            ..WorkloadFacts::default()
        },
        cost,
        engine,
        cold_block: (claimed == Claimed::Cold).then_some(BLOCK as u32),
        stalls,
        command: Vec::new(),
    };
    let document = recording.write(dir, &mut server).expect("a run");
    server.inner.check().expect("a sound engine");
    document
}

/// Spans in which the client does nothing, over the whole run.
fn hangs(plan: &Plan) -> Vec<Stall> {
    let period = Nanos::from_millis(200);
    let hang = |n: u64| {
        let from = START + Nanos(n * period.0);
        (from, from + Nanos::from_millis(20))
    };
    (0..=plan.horizon_ns.0 / period.0).map(hang).collect()
}

/// The time of steps, with what a machine adds and what a fault does.
struct Machine {
    inner: SimExecutor,
    clock: Arc<VirtualClock>,
    rng: SplitMix64,
    /// By what share this run is slower than the model.
    slower: f64,
    fault: Fault,
    steps: u64,
}

impl Machine {
    fn begun(mut self) -> Machine {
        self.slower = 0.004 * uniform_open(&mut self.rng);
        self
    }
}

impl Executor for Machine {
    fn execute(
        &mut self,
        chunks: &[Chunk<'_>],
        clock: &dyn Clock,
        sink: &mut dyn LogitSink,
    ) -> Result<ForwardTiming, String> {
        let before = self.clock.now();
        let timing = self.inner.execute(chunks, clock, sink)?;
        self.steps += 1;
        let took = (self.clock.now() - before).0 as f64;
        let noisy = took * (1.0 + self.slower) * (1.0 + 0.04 * uniform_open(&mut self.rng));
        let end = match self.fault {
            Fault::Sleep => 1.03 * noisy,
            Fault::Stall if self.steps.is_multiple_of(50) => noisy + 2e8,
            _ => noisy,
        };
        self.clock.advance_to(before + Nanos(end as u64));
        Ok(timing)
    }

    fn own_token(&mut self, id: RequestId, position: usize) -> Option<TokenId> {
        self.inner.own_token(id, position)
    }

    fn resize_kv(&mut self, block_size: usize, num_blocks: usize) {
        self.inner.resize_kv(block_size, num_blocks);
    }

    fn kv_bytes(&self) -> usize {
        self.inner.kv_bytes()
    }

    fn copy_block(&mut self, from: BlockId, to: BlockId) {
        self.inner.copy_block(from, to);
    }

    fn read_block(&self, block: BlockId, out: &mut Vec<u8>) {
        self.inner.read_block(block, out);
    }

    fn write_block(&mut self, block: BlockId, image: &[u8]) -> Result<(), String> {
        self.inner.write_block(block, image)
    }
}

/// The engine behind a door that may refuse, and with a cache that may miss.
struct Faulty {
    inner: EngineServer,
    fault: Fault,
    /// Blocks that were looked up.
    blocks: usize,
    refused: VecDeque<(Nanos, RequestId)>,
}

impl Faulty {
    /// Serves every prompt once, before the run.
    fn primed(&mut self, plan: &Plan) {
        for (request, id) in plan.open.iter().zip(1_u64 << 32..) {
            self.inner.submit(Nanos::ZERO, RequestId(id), &request.body);
        }
        self.inner.advance(START - Nanos(1), &mut Vec::new());
        assert_eq!(
            self.inner.next_event(),
            None,
            "the cache is warm before the start"
        );
    }

    /// The prompt as a cache sees it that does not find every tenth block.
    fn missed(&mut self, body: &PlannedBody) -> PlannedBody {
        let mut ids = body.prompt.ids().unwrap_or_default().to_vec();
        for block in ids.chunks_exact_mut(BLOCK) {
            self.blocks += 1;
            if self.blocks.is_multiple_of(10) {
                // Like no other block, so that it is in no cache.
                block[0] = (VOCAB / 2 + self.blocks / 10) as TokenId;
            }
        }
        PlannedBody {
            prompt: PlannedPrompt::Ids(ids),
            ..body.clone()
        }
    }
}

impl SimServer for Faulty {
    fn submit(&mut self, now: Nanos, id: RequestId, body: &PlannedBody) {
        match self.fault {
            Fault::Refusals if id.0 % 20 == 19 => self.refused.push_back((now, id)),
            Fault::Misses => {
                let body = self.missed(body);
                self.inner.submit(now, id, &body);
            }
            _ => self.inner.submit(now, id, body),
        }
    }

    fn abort(&mut self, now: Nanos, id: RequestId) {
        self.inner.abort(now, id);
    }

    fn next_event(&self) -> Option<Nanos> {
        let refused = self.refused.front().map(|(at, _)| *at);
        refused.into_iter().chain(self.inner.next_event()).min()
    }

    fn advance(&mut self, now: Nanos, out: &mut Vec<ServerEvent>) {
        let refusal = |(at, id)| ServerEvent::Finished {
            id,
            at,
            usage: Usage::default(),
            failure: Some((FailKind::HttpStatus, "no room".to_owned())),
        };
        out.extend(self.refused.drain(..).map(refusal));
        self.inner.advance(now, out);
    }
}
