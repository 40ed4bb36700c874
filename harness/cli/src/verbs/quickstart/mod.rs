//! `prefillbench quickstart`: one command from nothing to a verdict.
//!
//! It gets a real model, starts the project's own engine as child processes, drives both arms
//! over HTTP in matched blocks, proves the prefix cache cold and warm, checks the logits, and
//! writes a run directory with a report.

mod ab;
mod cell;
mod child;
mod prefix;
mod run;
mod settings;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use pb_judge::run::{NumericsNote, PlantedFault};

pub(crate) use child::{EngineChild, READY_PREFIX, log_tail};
pub(crate) use run::NOTES_FILE;

use crate::args::QuickstartArgs;
use crate::model_source::{self, Obtained};
use crate::progress::Progress;
use crate::validate::{self, ValidateSettings};
use crate::verbs::report;
use crate::{console, paths};
use run::Run;
use settings::Settings;

/// Runs the quickstart.
pub(crate) fn run(args: &QuickstartArgs) -> Result<ExitCode> {
    let progress = Progress::new();
    let model = model_source::obtain_or_generate(&args.model, &progress)?;
    let dir = paths::new_run_dir(args.out.as_deref(), "quickstart")?;
    let mut settings = Settings::new(args, model.model.config.max_position);
    let workload = serde_json::to_value(&settings)?;
    let mut run = Run::create(&dir, args.seed, model.receipt.clone(), workload)?;
    progress.note(format!("run directory: {}", dir.display()));
    ab::run(
        &mut settings,
        args.seed,
        &model.argument,
        &mut run,
        &progress,
    )?;
    prefix::run(&settings, args.seed, &model.argument, &mut run, &progress)?;
    if !args.skip_numerics {
        check_numerics(args, model, &mut run, &progress)?;
    }
    run.finish()?;
    progress.phase("judging");
    let rendered = report::render(&dir);
    progress.clear();
    finish(args, &dir, rendered?)
}

fn check_numerics(
    args: &QuickstartArgs,
    model: Obtained,
    run: &mut Run,
    progress: &Progress,
) -> Result<()> {
    let settings = ValidateSettings {
        prompts: if args.smoke {
            2
        } else {
            validate::enough_prompts()
        },
        chunks: None,
        all_faults: false,
        calibrate: false,
        served_only: true,
        prompt_len: if args.smoke { 41 } else { 128 },
        threads: crate::machine::cores(),
        seed: args.seed,
    };
    let outcome = validate::run(model, &settings, progress).context("checking the logits")?;
    for check in outcome.bits {
        let label = format!("exact: {}", check.config);
        run.notes.numerics.push(NumericsNote {
            label,
            bits: Some(check.bits),
            config: None,
        });
    }
    for check in outcome.tolerance {
        let label = check.config.clone();
        run.notes.numerics.push(NumericsNote {
            label,
            bits: None,
            config: Some(check),
        });
    }
    for fault in outcome.faults {
        run.notes.planted_faults.push(PlantedFault {
            label: fault.label,
            rejected: fault.rejected,
            evidence: fault.evidence,
            config: fault.config,
        });
    }
    run.save_notes()
}

fn finish(args: &QuickstartArgs, dir: &Path, rendered: report::Rendered) -> Result<ExitCode> {
    report::print(&rendered, args.json)?;
    console::say(format!("report: {}", dir.join(report::HTML_FILE).display()));
    Ok(ExitCode::from(rendered.verdict.outcome.exit_code()))
}
