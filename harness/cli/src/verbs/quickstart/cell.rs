//! One cell: one arm runs one plan, every request and every engine step recorded as it happens.

use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result};
use pb_contract::manifest::ArmReceipt;
use pb_contract::plan::Plan;
use pb_contract::{Clock, Nanos, StepRow, WallClock};
use pb_judge::run::ResetProof;
use pb_load::control::Control;
use pb_load::steps::{StepItem, StepReader};
use pb_load::{Endpoint, Limits, RunContext, StopSignal, run_plan_blocking, schedule};
use tokio::runtime::Runtime;

use super::child::EngineChild;
use super::run::{Item, Run};

/// How long a reset may have to wait for the engine to become idle.
const RESET_LIMIT: Duration = Duration::from_secs(20);

/// An arm with its running engine.
pub(crate) struct Arm {
    /// Name.
    pub(crate) name: String,
    engine: EngineChild,
    control: Control,
    runtime: Runtime,
    next_step: u64,
}

impl Arm {
    /// Starts the arm's engine and warms it up with one request that is not part of the run.
    pub(crate) fn start(name: &str, serve_args: &[String], run: &mut Run) -> Result<Self> {
        let log = run.dir().join(format!("engine-{name}.log"));
        let engine = EngineChild::start(serve_args, &log)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the control runtime")?;
        let control = Control::new(engine.endpoint())?;
        let info = runtime.block_on(control.server_info())?.unwrap_or_default();
        run.add_arm(ArmReceipt {
            name: name.to_string(),
            command: engine.command().to_string(),
            config: info.get("config").cloned().unwrap_or_default(),
            version: info["version"].as_str().unwrap_or("unknown").to_string(),
        })?;
        let mut arm = Arm {
            name: name.into(),
            engine,
            control,
            runtime,
            next_step: 0,
        };
        arm.warm_up()?;
        Ok(arm)
    }

    /// Where the engine listens.
    pub(crate) fn endpoint(&self) -> &Endpoint {
        self.engine.endpoint()
    }

    /// Tokenises text with the engine's own tokenizer.
    pub(crate) fn tokenize(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.runtime.block_on(self.control.tokenize(text))?)
    }

    /// One short request that touches every weight, and the number of the next step.
    fn warm_up(&mut self) -> Result<()> {
        let (sender, receiver) = mpsc::channel();
        let reader = self.read_steps(move |row| {
            let _ = sender.send(row.step);
        })?;
        self.runtime
            .block_on(self.control.probe(&[0, 1, 2, 3], 4, Some("warm-up")))?;
        reader.stop()?;
        self.next_step = receiver.iter().max().map_or(0, |step| step + 1);
        Ok(())
    }

    /// How long one token after `prompt` takes on an idle engine: the prefill time.
    pub(crate) fn time_prefill(&mut self, prompt: &[u32]) -> Result<Nanos> {
        let start = WallClock.now();
        self.runtime
            .block_on(self.control.probe(prompt, 1, Some("calibration")))?;
        let elapsed = WallClock.now() - start;
        // The steps of this request are not part of any cell.
        self.warm_up()?;
        Ok(elapsed)
    }

    fn read_steps(&self, mut on: impl FnMut(StepRow) + Send + 'static) -> Result<StepReader> {
        let on_item = move |item| {
            if let StepItem::Row(row) = item {
                on(row);
            }
        };
        Ok(StepReader::spawn(self.endpoint(), self.next_step, on_item)?)
    }

    /// Empties the prefix cache and proves it: the probe's prompt was cached by the probe before
    /// the reset, so a reset that did nothing would show as cached tokens.
    pub(crate) fn prove_cold(&mut self, block: u32, probe: &[u32]) -> Result<ResetProof> {
        let (control, runtime) = (&self.control, &self.runtime);
        runtime.block_on(control.probe(probe, 1, None))?;
        let limit = Nanos(RESET_LIMIT.as_nanos() as u64);
        runtime.block_on(control.reset_prefix_cache(limit))?;
        let seen = runtime.block_on(control.probe(probe, 1, None))?;
        runtime.block_on(control.reset_prefix_cache(limit))?;
        Ok(ResetProof {
            arm: self.name.clone(),
            block,
            accepted: true,
            probe_cached_tokens: seen.cached_tokens,
        })
    }

    /// Runs `plan` and records it under `block`.
    pub(crate) fn run_cell(&mut self, plan: Plan, block: u32, run: &mut Run) -> Result<()> {
        run.begin_cell(&self.name, block, schedule::sha256_hex(&plan))?;
        let (sender, receiver) = mpsc::channel();
        let (step_sender, highest) = (sender.clone(), std::sync::Arc::new(Highest::default()));
        let seen = std::sync::Arc::clone(&highest);
        let from = self.next_step;
        let reader = self.read_steps(move |row| {
            seen.raise(row.step + 1);
            if row.step >= from {
                let _ = step_sender.send(Item::Step(Box::new(row)));
            }
        })?;
        let context = RunContext {
            arm: self.name.clone(),
            block,
        };
        let endpoint = self.endpoint().clone();
        let arm = self.name.clone();
        let outcome = std::thread::scope(|scope| -> Result<()> {
            let writer = scope.spawn(move || run.write_all(&arm, block, receiver));
            let emit = move |record| {
                let _ = sender.send(Item::Request(Box::new(record)));
            };
            let limits = Limits::default();
            let driven =
                run_plan_blocking(plan, context, &endpoint, limits, StopSignal::new(), emit);
            let read = reader.stop();
            // OK because a panic of the writer is a bug that must not be hidden.
            writer.join().expect("the writer thread panicked")?;
            driven?;
            read?;
            Ok(())
        });
        self.next_step = self.next_step.max(highest.get());
        outcome.with_context(|| format!("arm {} block {block}", self.name))
    }
}

/// The highest value seen by another thread.
#[derive(Default)]
struct Highest(std::sync::atomic::AtomicU64);

impl Highest {
    fn raise(&self, value: u64) {
        self.0.fetch_max(value, std::sync::atomic::Ordering::SeqCst);
    }

    fn get(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::SeqCst)
    }
}
