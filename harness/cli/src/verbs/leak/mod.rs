//! `prefillbench leak`: can one tenant see what another one sent?
//!
//! The design is fixed before the first request: how many trials, with which power, in which
//! order. Every request becomes a row of the run directory; the verdict is a pure function of the
//! rows ([`pb_judge::leak`]).

mod document;
mod probe;
mod prompts;
pub(crate) mod tenants;

use std::process::ExitCode;

use anyhow::{Context, Result};
use pb_contract::RunManifest;
use pb_contract::manifest::{ArmReceipt, ModelReceipt, RUN_SCHEMA_VERSION, RunState};
use pb_judge::leak::{LeakRules, judge, power_of_trials, trials_for_power};
use pb_load::control::{Control, Method};
use pb_record::RunWriter;
use pb_target::{Patience, Target};

use crate::args::LeakArgs;
use crate::interrupt::{EXIT_INTERRUPTED, Interrupt, Interrupted};
use crate::progress::Progress;
use crate::{console, machine, output, paths};
use document::{Design, Document};
use probe::Prober;
use prompts::PromptMaker;
use tenants::Tenants;

/// Name of the file with the document.
const DOCUMENT_FILE: &str = "leak.json";

/// Runs the verb.
pub(crate) fn run(args: &LeakArgs) -> Result<ExitCode> {
    let rules = LeakRules::default();
    let nonce = args
        .nonce
        .unwrap_or_else(|| jiff::Timestamp::now().as_nanosecond() as u64);
    let design = design(args, &rules, nonce)?;
    let maker = PromptMaker::new(args, nonce)?;
    let tenants = Tenants::new(args, nonce)?;
    let interrupt = Interrupt::install()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start a runtime")?;
    let server = match runtime.block_on(interrupt.guard(greet(&tenants))) {
        Ok(server) => server?,
        Err(interrupted) => return Ok(nothing_measured(args, interrupted)),
    };
    let progress = Progress::new();
    let dir = paths::new_run_dir(args.out.as_deref(), "leak")?;
    let manifest = manifest(args, &design, &tenants, &server)?;
    let mut writer = RunWriter::create(&dir, manifest)
        .with_context(|| format!("cannot create the run directory {}", dir.display()))?;
    progress.note(format!(
        "{} trials of 4 requests, {} {} each; run directory: {}",
        design.trials,
        args.prompt_len,
        maker.unit(),
        dir.display()
    ));
    let mut prober = Prober::new(args, &tenants, maker, &mut writer, interrupt.signal());
    let trials = runtime.block_on(prober.run(&design, &progress));
    let first_failure = prober.first_failure().map(str::to_owned);
    progress.clear();
    let trials = match trials {
        Ok(trials) => trials,
        Err(error) => {
            // What had ended is kept; the reason is told.
            writer.finish(RunState::Interrupted)?;
            return Err(error);
        }
    };
    let finding = judge(&trials, &rules);
    let (finding, state) = match trials.len() < design.trials {
        true => (finding.interrupted(design.trials), RunState::Interrupted),
        false => (finding, RunState::Complete),
    };
    let document = Document::new(&tenants, server, design, rules, finding, first_failure);
    writer.write_json(DOCUMENT_FILE, &document)?;
    writer.finish(state)?;
    console::say(format!("run directory: {}", dir.display()));
    match args.json {
        true => output::json(&document)?,
        false => output::table(&document.text())?,
    }
    Ok(ExitCode::from(document.finding.verdict.exit_code()))
}

/// Tells that somebody stopped it before the first request.
fn nothing_measured(args: &LeakArgs, interrupted: Interrupted) -> ExitCode {
    let message = interrupted.to_string();
    console::say(&message);
    if args.json {
        output::error(&message, EXIT_INTERRUPTED);
    }
    ExitCode::from(EXIT_INTERRUPTED)
}

/// The design, which no result may change.
fn design(args: &LeakArgs, rules: &LeakRules, nonce: u64) -> Result<Design> {
    let (limit, confidence) = (rules.silent_below, rules.confidence);
    let needed = trials_for_power(args.power, limit, confidence)
        .with_context(|| format!("--power {}: no number of trials reaches it", args.power))?;
    let trials = args.trials.unwrap_or(needed);
    Ok(Design {
        trials,
        power: power_of_trials(trials, limit, confidence),
        requests: trials * 4 + args.warmup,
        prompt_len: args.prompt_len,
        seed: args.seed,
        nonce,
    })
}

/// Finds out what the server is, so that one that cannot be reached is told before anything is
/// written.
async fn greet(tenants: &Tenants) -> Result<String> {
    let control = Control::new(&tenants.a)?;
    let asked = control.exchange(Method::GET, "/v1/models", None).await;
    asked.with_context(|| format!("--base-url {}", tenants.a.url("")))?;
    let target = Target::connect(&tenants.a, None, Patience::default()).await?;
    Ok(target.detection().to_string())
}

fn manifest(
    args: &LeakArgs,
    design: &Design,
    tenants: &Tenants,
    server: &str,
) -> Result<RunManifest> {
    let arm = |name: &str| ArmReceipt {
        name: name.to_owned(),
        command: args.base_url.clone(),
        config: serde_json::json!({ "tenants": tenants.told_apart_by }),
        version: server.to_owned(),
    };
    Ok(RunManifest {
        schema_version: RUN_SCHEMA_VERSION,
        kind: "leak".into(),
        state: RunState::Running,
        created: jiff::Timestamp::now()
            .strftime("%Y-%m-%dT%H:%M:%SZ")
            .to_string(),
        command: tenants::shown_command(std::env::args()),
        tool: machine::tool(),
        machine: machine::machine(),
        model: ModelReceipt {
            name: args.model.clone(),
            kind: "remote".into(),
            ..ModelReceipt::default()
        },
        seed: args.seed,
        schedule_sha256: std::collections::BTreeMap::new(),
        arms: ["prime", "same", "other", "unprimed"].map(arm).to_vec(),
        order: Vec::new(),
        workload: serde_json::to_value(design)?,
    })
}
