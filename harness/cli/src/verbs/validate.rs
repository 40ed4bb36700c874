//! `prefillbench validate`: does chunking or prefix caching change what comes out?

mod answer;
mod ask;
mod background;
mod document;
mod evidence;
mod plant;
mod prompts;
mod remote;
mod tasks;

use std::process::ExitCode;

use anyhow::{Context, Result};
use pb_judge::numerics::Checked;

use crate::args::{ValidateArgs, ValidateWhat};
use crate::interrupt::{EXIT_INTERRUPTED, Interrupt};
use crate::progress::Progress;
use crate::validate::{self, ValidateSettings, table};
use crate::{console, machine, model_source, output};

/// Runs the check and prints its table.
pub(crate) fn run(args: &ValidateArgs) -> Result<ExitCode> {
    match (&args.what, &args.remote.base_url) {
        (Some(ValidateWhat::Tasks(args)), _) => tasks::run(args),
        (None, Some(url)) => over_http(args, url),
        (None, None) => here(args),
    }
}

/// Runs `work` on one thread to its end, or until somebody stops it; `None` then.
fn waited<T>(work: impl Future<Output = Result<T>>) -> Result<Option<T>> {
    let interrupt = Interrupt::install()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start a runtime")?;
    match runtime.block_on(interrupt.guard(work)) {
        Ok(done) => done.map(Some),
        Err(_) => Ok(None),
    }
}

/// Tells that somebody stopped it: half of the prompts would be another design.
fn stopped(as_json: bool) -> ExitCode {
    let message = "interrupted: nothing is judged before every prompt has been asked";
    console::say(message);
    if as_json {
        output::error(message, EXIT_INTERRUPTED);
    }
    ExitCode::from(EXIT_INTERRUPTED)
}

fn over_http(args: &ValidateArgs, url: &str) -> Result<ExitCode> {
    let progress = Progress::new();
    let document = waited(remote::run(args, url, &progress));
    progress.clear();
    let Some(document) = document? else {
        return Ok(stopped(args.json));
    };
    if args.json {
        output::json(&document)?;
    } else {
        output::table(&document.text())?;
    }
    Ok(ExitCode::from(document.exit_code()))
}

fn here(args: &ValidateArgs) -> Result<ExitCode> {
    let progress = Progress::new();
    let name = args.model.as_deref().context("--model is missing")?;
    let model = model_source::obtain(name, &progress)?;
    let settings = ValidateSettings {
        prompts: args.prompts,
        prompt_len: args.prompt_len.unwrap_or(validate::PROMPT_LEN),
        chunks: args.chunks.clone(),
        served_only: false,
        all_faults: args.all_faults,
        calibrate: args.calibrate,
        threads: args.threads.unwrap_or_else(machine::cores),
        seed: args.seed,
    };
    let tool = machine::tool();
    let checked = Checked {
        // As `serve` offers it.
        model: name.to_owned(),
        model_sha256: model.receipt.sha256.clone(),
        tool_version: tool.version,
        tool_rev: tool.git_rev,
    };
    let outcome = validate::run(model, &settings, &progress);
    progress.clear();
    let mut outcome = outcome?;
    outcome.checked = Some(checked);
    let text = if args.json {
        serde_json::to_string_pretty(&outcome)?
    } else {
        table::text(&outcome)
    };
    output::line(&text)?;
    Ok(ExitCode::from(outcome.exit_code()))
}
