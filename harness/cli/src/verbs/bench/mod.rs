//! `prefillbench bench`: one workload on any OpenAI-compatible endpoint.
//!
//! The schedule is made from a seed before anything is sent, and its hash is printed. Every
//! request becomes a row of the run directory as soon as it ends; the numbers are derived from
//! the rows, and say themselves when they must not be used.

mod cold;
mod document;
mod goodput;
mod settings;
mod table;
mod tally;
#[cfg(test)]
mod tests;
mod workload;

use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc;

use anyhow::{Context, Result};
use pb_contract::manifest::{ArmReceipt, ModelReceipt, RUN_SCHEMA_VERSION, RunState};
use pb_contract::plan::Plan;
use pb_contract::{Nanos, RunManifest};
use pb_load::control::{Control, Method};
use pb_load::{
    Endpoint, Limits, Record, RunContext, RunSummary, StopSignal, run_plan_blocking,
    schedule::sha256_hex,
};
use pb_record::{RunWriter, visible};
use serde_json::{Value, json};

pub(crate) use goodput::Objective;

use crate::args::{BenchArgs, CacheArg};
use crate::progress::Progress;
use crate::{machine, output, paths};
use cold::Cold;
use document::{Document, Frame};
use settings::{Load, Settings};
use tally::Tally;

/// Name of the one arm.
const ARM: &str = "target";

/// Name of the file with the document.
const DOCUMENT_FILE: &str = "bench.json";

/// Runs the verb.
pub(crate) fn run(args: &BenchArgs) -> Result<ExitCode> {
    let progress = Progress::new();
    let settings = Settings::new(args)?;
    let mut endpoint = settings::endpoint(args)?;
    let planned = workload::schedule(&settings)?;
    let schedule = sha256_hex(&planned.plan);
    progress.note(format!("schedule sha256 {schedule}"));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start a runtime")?;
    runtime.block_on(greet(&endpoint))?;
    let arrivals_ns = arrivals(&settings, &planned.plan);
    let (mut plan, mut cold) = (planned.plan, None);
    if settings.cache == CacheArg::Cold {
        progress.phase("making the prefix cache cold");
        // Unlike in every run, so that no run finds what an earlier one left.
        let nonce = jiff::Timestamp::now().as_nanosecond() as u64;
        let state = runtime.block_on(cold::prepare(&endpoint, &settings, nonce))?;
        (plan, endpoint) = state.dress(plan, endpoint)?;
        cold = Some(state);
    }
    if let Some(connections) = settings.burst_connections() {
        endpoint = endpoint.with_connections(connections);
    }
    let dir = paths::new_run_dir(args.out.as_deref(), "bench")?;
    let manifest = manifest(args, &settings, &schedule, cold.as_ref())?;
    let mut writer = RunWriter::create(&dir, manifest)
        .with_context(|| format!("cannot create the run directory {}", dir.display()))?;
    progress.phase(format!("measuring; run directory: {}", dir.display()));
    let mut tally = Tally::new(settings.objectives.clone());
    let summary = measure(plan, &endpoint, &mut writer, &mut tally)?;
    let (cache, cache_reasons) = match &cold {
        Some(cold) => cold.judge(&tally),
        None => (cold::as_it_is(&tally), Vec::new()),
    };
    let frame = Frame {
        start: summary.start_ns,
        arrivals_ns,
        // Without a duration the number of requests is what was asked for.
        exhausted: settings.duration_ns.is_some()
            && (planned.cut_short || summary.closed_exhausted),
        cache,
        cache_reasons,
        schedule_sha256: schedule,
        seed: settings.seed,
    };
    let document = Document::new(&tally, frame);
    writer.write_json(DOCUMENT_FILE, &document)?;
    writer.finish(RunState::Complete)?;
    progress.clear();
    if let Some(failure) = first_failure(&tally) {
        eprintln!("{failure}");
    }
    finish(args, &dir, &document)
}

/// The first request that failed, in the words of the server or of the client.
fn first_failure(tally: &Tally) -> Option<String> {
    let failed = tally.rows().iter().filter(|row| row.fail.is_some());
    let row = failed.min_by_key(|row| row.request)?;
    let message = row.fail_message.as_deref().unwrap_or("no message");
    Some(format!(
        "first failure, request {}: {}",
        row.request.0,
        visible(message)
    ))
}

fn finish(args: &BenchArgs, dir: &Path, document: &Document) -> Result<ExitCode> {
    let text = match args.json {
        true => serde_json::to_string_pretty(document)?,
        false => table::text(document),
    };
    output::line(&text)?;
    eprintln!("run directory: {}", dir.display());
    Ok(ExitCode::from(document.exit_code()))
}

/// Asks the server for its models, so that one that cannot be reached is told before anything is
/// written. What it answers does not matter.
async fn greet(endpoint: &Endpoint) -> Result<()> {
    let control = Control::new(endpoint)?;
    let asked = control.exchange(Method::GET, "/v1/models", None).await;
    asked.with_context(|| format!("--base-url {}", endpoint.url("")))?;
    Ok(())
}

/// From the start to the last arrival of an open loop.
fn arrivals(settings: &Settings, plan: &Plan) -> Option<Nanos> {
    match settings.load {
        Load::Closed { .. } => None,
        Load::Burst | Load::Open { .. } => plan.open.last().map(|request| request.offset_ns),
    }
}

/// Runs the plan; every record goes to the directory and into the tally.
fn measure(
    plan: Plan,
    endpoint: &Endpoint,
    writer: &mut RunWriter,
    tally: &mut Tally,
) -> Result<RunSummary> {
    let context = RunContext {
        arm: ARM.to_owned(),
        block: 0,
    };
    let (sender, receiver) = mpsc::channel::<Record>();
    std::thread::scope(|scope| {
        // Writing must not delay the next send.
        let written = scope.spawn(move || -> Result<()> {
            for record in receiver {
                writer.request(&record.row, &record.tokens)?;
                tally.add(record.row, &record.tokens);
            }
            Ok(())
        });
        let emit = move |record| {
            // A writer that failed says so at the end.
            let _ = sender.send(record);
        };
        let limits = Limits::default();
        let driven = run_plan_blocking(plan, context, endpoint, limits, StopSignal::new(), emit);
        // OK because a panic of the writer is a bug that must not be hidden.
        written.join().expect("the writer thread panicked")?;
        Ok(driven?)
    })
}

fn manifest(
    args: &BenchArgs,
    settings: &Settings,
    schedule: &str,
    cold: Option<&Cold>,
) -> Result<RunManifest> {
    let cell = format!("0:{ARM}");
    let config = cold.map_or(Value::Null, |cold| json!({ "cache": cold.receipt }));
    Ok(RunManifest {
        schema_version: RUN_SCHEMA_VERSION,
        kind: "bench".into(),
        state: RunState::Running,
        created: jiff::Timestamp::now()
            .strftime("%Y-%m-%dT%H:%M:%SZ")
            .to_string(),
        command: settings::shown_command(std::env::args()),
        tool: machine::tool(),
        machine: machine::machine(),
        model: ModelReceipt {
            name: args.model.clone(),
            kind: "remote".into(),
            ..ModelReceipt::default()
        },
        seed: settings.seed,
        schedule_sha256: [(cell.clone(), schedule.to_owned())].into(),
        arms: vec![ArmReceipt {
            name: ARM.into(),
            command: args.base_url.clone(),
            config,
            version: "unknown".into(),
        }],
        order: vec![cell],
        workload: serde_json::to_value(settings)?,
    })
}
