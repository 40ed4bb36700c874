//! `prefillbench engine simulate`: a trace through the real engine in virtual time.
//!
//! Scheduler, allocator and cache are the ones that serve; only the time of a step comes from a
//! model of costs. The same arguments give the same bytes on any machine.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use pb_contract::{
    Clock, EngineConfig, EngineEvent, EngineRequest, Nanos, RequestId, TokenId, VirtualClock,
};
use pb_core::sim::{CostModel, SimExecutor};
use pb_core::{Engine, EngineSpec, StepOutput};
use pb_workloads::trace::{self, PromptTokens, TraceReader, TraceRow};
use serde_json::{Map, Value, json};

use super::{VOCAB, record, served};
use crate::args::{PresetArg, SimulateArgs, TraceFormat};
use crate::output;
use crate::progress::Progress;
use crate::verbs::engine::summary::Summary;

/// Thirty years: far from where the clock, in nanoseconds, would run over.
const LATEST_ARRIVAL: Nanos = Nanos::from_secs(1_000_000_000);

/// Steps between two looks at the display.
const STEPS_PER_REPORT: u64 = 4096;

/// Serves the trace.
pub(crate) fn run(args: &SimulateArgs) -> Result<ExitCode> {
    let rows = read_trace(args)?;
    let config = config(args, &rows)?;
    let cost = cost(args)?;
    if let Some(out) = &args.out {
        return record::run(args, out, &rows, config, cost);
    }
    let mut steps = args.steps.as_deref().map(step_file).transpose()?;
    let progress = Progress::new();
    progress.phase(format!("serving {} requests in virtual time", rows.len()));
    let mut simulation = Simulation::new(config, cost.clone(), &rows)?;
    while let Some(output) = simulation.step()? {
        if let Some(file) = &mut steps {
            file.serialize(output.row)?;
        }
        if output.row.step.is_multiple_of(STEPS_PER_REPORT) {
            let (done, at) = (simulation.summary.finished(), simulation.clock.now());
            progress.phase(format!(
                "{done} of {} requests done at {:.0} s of the trace",
                rows.len(),
                at.0 as f64 / 1e9
            ));
        }
    }
    progress.clear();
    if let Some(mut file) = steps {
        file.flush().context("--steps")?;
    }
    simulation
        .engine
        .check()
        .map_err(|law| anyhow!("broken law: {law}"))?;
    let document = simulation.document(args, &cost, &rows);
    match args.json {
        true => output::json(&document)?,
        false => output::table(&super::summary::table(&document))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn read_trace(args: &SimulateArgs) -> Result<Vec<TraceRow>> {
    let format = match args.format {
        TraceFormat::Mooncake => trace::TraceFormat::Mooncake,
    };
    let reader = TraceReader::open(&args.trace, format)?;
    // What is passed over is read all the same: a row of it may be none.
    let all = reader.take(args.skip.saturating_add(args.limit.unwrap_or(usize::MAX)));
    let mut rows: Vec<TraceRow> = Vec::new();
    for (number, row) in all.enumerate() {
        let row = row?;
        if number >= args.skip {
            rows.push(row);
        }
    }
    ensure!(
        !rows.is_empty(),
        "{}: no request in it{}",
        args.trace.display(),
        match args.skip {
            0 => String::new(),
            skip => format!(" after the first {skip} (--skip)"),
        }
    );
    if args.skip > 0 {
        // The first that is served opens the run.
        let first = rows[0].arrival_ns;
        for row in &mut rows {
            row.arrival_ns = row.arrival_ns.saturating_sub(first);
        }
    }
    if let Some(late) = rows.iter().find(|row| row.arrival_ns > LATEST_ARRIVAL) {
        bail!(
            "{}: a request arrives {} s after the start; at most {} s can be simulated",
            args.trace.display(),
            late.arrival_ns.0 / 1_000_000_000,
            LATEST_ARRIVAL.0 / 1_000_000_000
        );
    }
    Ok(rows)
}

fn cost(args: &SimulateArgs) -> Result<CostModel> {
    let Some(path) = &args.cost else {
        let name = CostModel::builtin_names()[0];
        return CostModel::builtin(name).map_err(anyhow::Error::msg);
    };
    let text =
        std::fs::read_to_string(path).with_context(|| format!("--cost {}", path.display()))?;
    CostModel::from_toml(&text).map_err(|e| anyhow!("--cost {}: {e}", path.display()))
}

fn step_file(path: &std::path::Path) -> Result<csv::Writer<std::fs::File>> {
    csv::Writer::from_path(path).with_context(|| format!("--steps {}", path.display()))
}

/// The engine that the arguments ask for. Without `--num-blocks` nothing is ever evicted.
fn config(args: &SimulateArgs, rows: &[TraceRow]) -> Result<EngineConfig> {
    let tokens = |row: &TraceRow| row.input_tokens + row.output_tokens;
    let longest = rows.iter().map(tokens).max().unwrap_or(0);
    let everything: usize = rows
        .iter()
        .map(|row| tokens(row).div_ceil(args.block_size))
        .sum();
    let mut keys = Map::new();
    let mut set = |key: &str, value: Value| keys.insert(key.to_owned(), value);
    if let Some(preset) = args.preset {
        let name = match preset {
            PresetArg::VllmV1 => "vllm-v1",
            PresetArg::Sglang => "sglang",
        };
        set("preset", json!(name));
    }
    let names = [
        ("cache", &args.cache),
        ("policy", &args.policy),
        ("queue", &args.queue),
    ];
    for (key, name) in names {
        if let Some(name) = name {
            set(key, json!(name));
        }
    }
    set("block_size", json!(args.block_size));
    // One for the null block.
    set(
        "num_blocks",
        json!(args.num_blocks.unwrap_or(everything + 1)),
    );
    let whole = ["monolithic", "decode_priority_monolithic"];
    // Policies of whole prompts need steps that hold the longest.
    let budget = match args
        .policy
        .as_deref()
        .is_some_and(|name| whole.contains(&name))
    {
        true => {
            set("chunked", json!(false));
            args.max_batched_tokens.max(longest + 1)
        }
        false => args.max_batched_tokens,
    };
    set("max_batched_tokens", json!(budget));
    set("max_num_seqs", json!(args.max_num_seqs));
    set("max_model_len", json!(longest + 1));
    Ok(pb_replay::engine_config(&Value::Object(keys))?)
}

/// A trace on its way through an engine.
struct Simulation<'a> {
    engine: Engine,
    clock: Arc<VirtualClock>,
    rows: &'a [TraceRow],
    prompts: PromptTokens,
    /// Requests of the trace that have arrived.
    arrived: usize,
    /// Requests that could never be served, by reason.
    refused: BTreeMap<String, u64>,
    summary: Summary,
}

impl<'a> Simulation<'a> {
    fn new(config: EngineConfig, cost: CostModel, rows: &'a [TraceRow]) -> Result<Self> {
        let clock = Arc::new(VirtualClock::new());
        let executor = SimExecutor::new(cost, Arc::clone(&clock), VOCAB);
        let spec = EngineSpec::simulated(VOCAB, usize::MAX);
        let engine = Engine::new(config, spec, Box::new(executor)).map_err(anyhow::Error::msg)?;
        Ok(Simulation {
            engine,
            clock,
            rows,
            prompts: PromptTokens::new(0..VOCAB as TokenId, 0)?,
            arrived: 0,
            refused: BTreeMap::new(),
            summary: Summary::default(),
        })
    }

    /// Runs the engine until its next step; `None` when the trace is served.
    fn step(&mut self) -> Result<Option<StepOutput>> {
        self.admit_arrived()?;
        while !self.engine.has_work() {
            let Some(next) = self.rows.get(self.arrived) else {
                return Ok(None);
            };
            self.clock.advance_to(next.arrival_ns);
            self.admit_arrived()?;
        }
        let before = self.clock.now();
        let output = self.engine.step(&*self.clock)?;
        let now = self.clock.now();
        for event in &output.events {
            match event {
                EngineEvent::Token { id, .. } => self.summary.token(*id, now),
                EngineEvent::Finished { id, .. } => self.summary.finish(*id, now),
                EngineEvent::Admitted { .. } | EngineEvent::PromptLogprobs { .. } => {}
            }
        }
        if output.scheduled.is_empty() && before == now && self.engine.has_work() {
            bail!(
                "the engine has work and schedules nothing at {} ns: a deadlock",
                now.0
            );
        }
        Ok(Some(output))
    }

    fn admit_arrived(&mut self) -> Result<()> {
        let now = self.clock.now();
        while let Some(row) = self.rows.get(self.arrived).filter(|r| r.arrival_ns <= now) {
            let id = RequestId(self.arrived as u64);
            self.arrived += 1;
            match self.engine.add(self.request(id, row)?) {
                Ok(()) => self.summary.arrive(id, row.arrival_ns),
                Err(refusal) => *self.refused.entry(refusal.to_string()).or_default() += 1,
            }
        }
        Ok(())
    }

    /// The request of a row, by the rule of every replay. One row at a time: the prompts of a long
    /// trace take more memory than there is.
    fn request(&self, id: RequestId, row: &TraceRow) -> Result<EngineRequest> {
        let made = trace::open_requests(std::slice::from_ref(row), &self.prompts);
        let body = made.into_iter().next().map(|request| request.body);
        let body = body.context("a row makes one request")?;
        let prompt = body.prompt.ids().unwrap_or_default().to_vec();
        let (most, salt) = (body.max_tokens, &body.cache_salt);
        Ok(served::request(id, prompt, most, row.arrival_ns, salt))
    }

    fn document(&self, args: &SimulateArgs, cost: &CostModel, rows: &[TraceRow]) -> Value {
        let counters = self.engine.counters();
        let config = self.engine.config();
        let ms = |samples: &[Nanos]| super::summary::milliseconds(samples);
        json!({
            "trace": args.trace.display().to_string(),
            "cost": cost.source,
            "config": config,
            "counts": {
                "offered": rows.len(),
                "finished": self.summary.finished(),
                "refused": self.refused,
            },
            "span_s": self.clock.now().0 as f64 / 1e9,
            "steps": self.summary.steps(&self.engine),
            "prompt_tokens": counters.prompt_tokens,
            "generation_tokens": counters.generation_tokens,
            "hits": {
                "queried_tokens": counters.queried_tokens,
                "hit_tokens": counters.hit_tokens,
                "hit_blocks": counters.hit_tokens / config.block_size as u64,
                "preempted_hit_tokens": counters.preempted_hit_tokens,
            },
            "preemptions": counters.preemptions,
            "evicted_blocks": counters.evicted_blocks,
            "ttft_ms": ms(&self.summary.ttft_ns),
            "itl_ms": ms(&self.summary.itl_ns),
            "e2e_ms": ms(&self.summary.e2e_ns),
        })
    }
}
