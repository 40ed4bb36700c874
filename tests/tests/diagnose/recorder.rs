//! Recordings of the engine in virtual time: scheduler, allocator and cache are the ones that
//! serve, the time of a step comes from a model of costs, and faults are planted around the engine
//! where a host would have them. The same scenario gives the same bytes on any machine.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use pb_bench::server::Server;
use pb_bench::{Conditions, Frame, Identity, LoadFacts, WorkloadFacts};
use pb_contract::manifest::{ArmReceipt, ModelReceipt, RUN_SCHEMA_VERSION, RunState};
use pb_contract::rng::Stream;
use pb_contract::{
    Clock, EngineConfig, EngineEvent, EngineRequest, FinishReason, Nanos, RequestId, RequestRow,
    RequestStatus, RunManifest, SamplingParams, StepRow, TokenId, TokenRow, VirtualClock,
};
use pb_core::sim::{CostModel, SimExecutor};
use pb_core::{Engine, EngineSpec};
use pb_record::RunWriter;
use serde_json::json;
use sha2::{Digest, Sha256};

/// Arm of every recording.
pub(crate) const ARM: &str = "target";
/// Start of every schedule.
const START: Nanos = Nanos::from_secs(1);
/// From the intended arrival to the first byte, and from the end of a step to the client.
const SEND: Nanos = Nanos::from_micros(20);
const WIRE: Nanos = Nanos::from_micros(50);

/// One request of a schedule.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    /// After the start.
    pub(crate) at: Nanos,
    /// Prompt tokens of its own, after the shared ones.
    pub(crate) prompt: usize,
    /// Group whose beginning it shares, and the length of that.
    pub(crate) shared: Option<(u64, usize)>,
    /// Output tokens that it asks for.
    pub(crate) max_tokens: u32,
    /// Class.
    pub(crate) class: &'static str,
}

/// What is wrong around the engine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// The engine waits so long for its lock before a step, times the square of the requests in
    /// flight.
    pub(crate) lock_ns: u64,
    /// Every look at the clock while planning costs so much: a slow allocator, without a lock.
    pub(crate) planning_ns: u64,
    /// The client does not read during the last part of each second.
    pub(crate) reader_stalls: Option<Nanos>,
}

/// A recording to be made.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// Hypothesis that must lead.
    pub(crate) leads: Option<&'static str>,
    /// Hypotheses that must not lead, each with words that must speak against it or be missing.
    pub(crate) not: Vec<(&'static str, &'static str)>,
    pub(crate) config: EngineConfig,
    pub(crate) cost: CostModel,
    pub(crate) load: Vec<Arrival>,
    pub(crate) faults: Faults,
    /// Token ids; the first one ends an answer when `ends` is set.
    pub(crate) vocab: usize,
    pub(crate) ends: bool,
    /// Whether the steps are told, as this project's server does.
    pub(crate) tells_steps: bool,
    /// What the metrics page said.
    pub(crate) server: Option<Server>,
}

/// A clock on which looking takes time.
struct Costly {
    clock: Arc<VirtualClock>,
    look_ns: u64,
}

impl Clock for Costly {
    fn now(&self) -> Nanos {
        if self.look_ns > 0 {
            self.clock
                .advance_to(self.clock.now() + Nanos(self.look_ns));
        }
        self.clock.now()
    }
}

/// A request on its way.
#[derive(Debug)]
struct Live {
    row: RequestRow,
    tokens: Vec<TokenRow>,
}

/// A finished simulation.
struct Recorded {
    /// In the order of their ends.
    requests: Vec<(RequestRow, Vec<TokenRow>)>,
    steps: Vec<StepRow>,
}

/// Makes the recording in a new directory.
pub(crate) fn record(scenario: &Scenario, dir: &Path) {
    let recorded = simulate(scenario);
    let schedule = schedule_sha256(&scenario.load);
    let mut writer =
        RunWriter::create(dir, manifest(scenario, &schedule)).expect("a new directory");
    for (row, tokens) in &recorded.requests {
        writer.request(row, tokens).expect("written");
    }
    if scenario.tells_steps {
        writer.steps(ARM, 0, &recorded.steps).expect("written");
    }
    let conditions = conditions(scenario, &schedule);
    writer
        .write_json(pb_bench::conditions::CONDITIONS_FILE, &conditions)
        .expect("written");
    writer.finish(RunState::Complete).expect("written");
}

fn schedule_sha256(load: &[Arrival]) -> String {
    let digest = Sha256::digest(format!("{load:?}"));
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn manifest(scenario: &Scenario, schedule: &str) -> RunManifest {
    let cell = format!("0:{ARM}");
    let config = serde_json::to_value(&scenario.config).expect("a configuration");
    RunManifest {
        schema_version: RUN_SCHEMA_VERSION,
        kind: "bench".into(),
        state: RunState::Running,
        created: "2026-11-30T00:00:00Z".into(),
        command: ["cargo", "test", "-p", "pb-tests", "--test", "diagnose"]
            .map(str::to_owned)
            .to_vec(),
        tool: Default::default(),
        machine: Default::default(),
        model: ModelReceipt {
            name: "synthetic".into(),
            kind: "simulated".into(),
            ..ModelReceipt::default()
        },
        seed: 1,
        schedule_sha256: [(cell.clone(), schedule.to_owned())].into(),
        arms: vec![ArmReceipt {
            name: ARM.into(),
            command: format!(
                "the engine in virtual time; costs: {}",
                scenario.cost.source
            ),
            config: match scenario.tells_steps {
                true => config,
                // A server that does not tell its steps does not tell this either.
                false => json!({ "server": "unknown" }),
            },
            version: env!("CARGO_PKG_VERSION").into(),
        }],
        order: vec![cell],
        workload: json!({ "scenario": scenario.name }),
    }
}

fn conditions(scenario: &Scenario, schedule: &str) -> Conditions {
    Conditions {
        frame: Frame {
            start: START,
            schedule_sha256: schedule.to_owned(),
            seed: 1,
            ..Frame::default()
        },
        identity: Identity {
            model: "synthetic".into(),
            server: "simulated".into(),
            created: "2026-11-30T00:00:00Z".into(),
            ..Identity::default()
        },
        load: LoadFacts {
            arrival: "trace".into(),
            ..LoadFacts::default()
        },
        workload: WorkloadFacts {
            dataset: "scenario".into(),
            ideal_hit_tokens: Some(ideal_hit_tokens(scenario)),
            ..WorkloadFacts::default()
        },
        server: scenario.server.clone(),
        ..Conditions::default()
    }
}

/// What an endless cache of full blocks would find: every group but its first visit.
fn ideal_hit_tokens(scenario: &Scenario) -> u64 {
    let mut seen = std::collections::BTreeSet::new();
    let shared = scenario.load.iter().filter_map(|arrival| arrival.shared);
    let found = shared.filter(|(group, _)| !seen.insert(*group));
    let block = scenario.config.block_size;
    found.map(|(_, len)| (len / block * block) as u64).sum()
}

fn prompt(arrival: &Arrival, id: u64, vocab: usize) -> Vec<TokenId> {
    let draw = |label: &str, n: usize| -> Vec<TokenId> {
        let mut stream = Stream::new(1, label);
        let token = |_| 1 + stream.below(vocab as u64 - 1) as TokenId;
        (0..n).map(token).collect()
    };
    let mut tokens = arrival
        .shared
        .map_or_else(Vec::new, |(group, n)| draw(&format!("group {group}"), n));
    tokens.extend(draw(&format!("request {id}"), arrival.prompt));
    tokens
}

/// When the client reads what was sent at `at`.
fn read_at(faults: &Faults, at: Nanos) -> Nanos {
    let second = Nanos::from_secs(1).0;
    let into = (at.0 - START.0) % second;
    match faults.reader_stalls {
        Some(stall) if into >= second - stall.0 => Nanos(at.0 - into + second),
        _ => at,
    }
}

/// A simulation on its way.
struct Simulation<'a> {
    scenario: &'a Scenario,
    clock: Arc<VirtualClock>,
    engine: Engine,
    live: BTreeMap<RequestId, Live>,
    arrived: usize,
    recorded: Recorded,
}

fn simulate(scenario: &Scenario) -> Recorded {
    let clock = Arc::new(VirtualClock::new());
    clock.advance_to(START);
    let executor = SimExecutor::new(scenario.cost.clone(), Arc::clone(&clock), scenario.vocab);
    let mut spec = EngineSpec::simulated(scenario.vocab, usize::MAX);
    if scenario.ends {
        spec.eos_ids = vec![0];
    }
    let engine = Engine::new(scenario.config.clone(), spec, Box::new(executor));
    let mut simulation = Simulation {
        scenario,
        clock,
        engine: engine.expect("an engine"),
        live: BTreeMap::new(),
        arrived: 0,
        recorded: Recorded {
            requests: Vec::new(),
            steps: Vec::new(),
        },
    };
    while simulation.step() {}
    simulation.engine.check().expect("no broken law");
    simulation.recorded
}

impl Simulation<'_> {
    /// One step of the engine. Whether there was one.
    fn step(&mut self) -> bool {
        self.admit();
        if !self.engine.has_work() {
            let Some(next) = self.scenario.load.get(self.arrived) else {
                return false;
            };
            self.clock.advance_to(START + next.at + SEND);
            self.admit();
        }
        let faults = &self.scenario.faults;
        let in_flight = self.live.len() as u64;
        let waited = Nanos(faults.lock_ns * in_flight * in_flight);
        self.clock.advance_to(self.clock.now() + waited);
        self.engine.set_lock_wait(waited);
        let clock = Costly {
            clock: Arc::clone(&self.clock),
            look_ns: faults.planning_ns,
        };
        let out = self.engine.step(&clock).expect("a step");
        self.recorded.steps.push(out.row);
        for event in &out.events {
            self.event(event);
        }
        true
    }

    fn admit(&mut self) {
        let now = self.clock.now();
        while let Some(next) = self.scenario.load.get(self.arrived) {
            let intended = START + next.at;
            let sent = intended + SEND;
            if sent > now {
                break;
            }
            let id = RequestId(self.arrived as u64);
            self.arrived += 1;
            let prompt = prompt(next, id.0, self.scenario.vocab);
            let row = row(id, next, prompt.len() as u32, intended, sent);
            let tokens = Vec::new();
            self.live.insert(id, Live { row, tokens });
            let request = EngineRequest {
                id,
                prompt,
                sampling: SamplingParams {
                    temperature: 0.0,
                    ignore_eos: !self.scenario.ends,
                    max_tokens: next.max_tokens,
                    ..SamplingParams::default()
                },
                cache_salt: None,
                adapter: None,
                priority: 0,
                fork_of: None,
                arrival: sent,
            };
            self.engine.add(request).expect("a request that fits");
        }
    }

    fn event(&mut self, event: &EngineEvent) {
        let at = read_at(&self.scenario.faults, self.clock.now() + WIRE);
        match event {
            EngineEvent::Admitted { id, cached_tokens } => {
                let live = self.live.get_mut(id).expect("a live request");
                live.row.cached_tokens = Some(*cached_tokens as u32);
            }
            EngineEvent::Token { id, .. } => {
                let live = self.live.get_mut(id).expect("a live request");
                live.token(at);
            }
            EngineEvent::Finished { id, reason, .. } => {
                let live = self.live.remove(id).expect("a live request");
                self.recorded.requests.push(live.ended(*reason, at));
            }
            EngineEvent::PromptLogprobs { .. } => {}
        }
    }
}

fn row(id: RequestId, next: &Arrival, prompt: u32, intended: Nanos, sent: Nanos) -> RequestRow {
    RequestRow {
        arm: ARM.into(),
        block: 0,
        request: id,
        class: next.class.into(),
        intended_ns: intended,
        sent_ns: Some(sent),
        headers_ns: Some(sent + WIRE),
        first_event_ns: None,
        first_token_ns: None,
        last_token_ns: None,
        closed_ns: None,
        status: RequestStatus::Ok,
        fail: None,
        http_status: Some(200),
        fail_message: None,
        finish_reason: None,
        prompt_tokens_planned: prompt,
        prompt_tokens: Some(prompt),
        cached_tokens: None,
        max_tokens: next.max_tokens,
        completion_tokens: None,
        streamed_tokens: 0,
    }
}

impl Live {
    fn token(&mut self, at: Nanos) {
        self.tokens.push(TokenRow {
            arm: ARM.into(),
            block: 0,
            request: self.row.request,
            event: self.tokens.len() as u32,
            at_ns: at,
            tokens: 1,
        });
    }

    fn ended(mut self, reason: FinishReason, at: Nanos) -> (RequestRow, Vec<TokenRow>) {
        let row = &mut self.row;
        let first = self.tokens.first().map(|token| token.at_ns);
        (row.first_event_ns, row.first_token_ns) = (first, first);
        row.last_token_ns = self.tokens.last().map(|token| token.at_ns);
        row.closed_ns = Some(at);
        row.finish_reason = Some(reason.as_str().to_owned());
        row.streamed_tokens = self.tokens.len() as u32;
        row.completion_tokens = Some(row.streamed_tokens);
        (self.row, self.tokens)
    }
}
