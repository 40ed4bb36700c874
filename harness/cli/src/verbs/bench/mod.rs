//! `prefillbench bench`: one workload on any OpenAI-compatible endpoint.
//!
//! The schedule is made from a seed before anything is sent, and its hash is printed. Then, in
//! this order: the client is calibrated, the server is warmed up, its cache is brought into the
//! state that was asked for and that state is proved, and the schedule is run while the server's
//! own figures are read. Every request becomes a row of the run directory as soon as it ends; the
//! numbers are derived from the rows, and say themselves when they must not be used.

mod calibrate;
mod dataset;
mod dry;
mod endpoint;
mod interference;
mod live;
mod manifest;
mod observe;
mod offer;
mod preflight;
mod print;
mod settings;
mod stages;
mod steps;
mod template;
mod tokenizer;
mod transfers;
mod unsent;
mod warm;
mod warmup;
mod workload;

use std::process::ExitCode;

use anyhow::Result;

use pb_bench::Document;

pub(crate) use observe::SCRAPES_FILE;
pub(crate) use settings::Settings;
pub(crate) use tokenizer::TargetTokenizer;
pub(crate) use warm::CacheCell;
pub(crate) use workload::{Known, classes, schedule};

use crate::args::{BenchArgs, BenchOptions, Format};
use crate::interrupt::{EXIT_INTERRUPTED, Interrupt, Interrupted};
use crate::progress::Progress;
use crate::verbs::suite::{self, SuiteReceipt};
use crate::{console, failure, output};

/// Name of the one measured arm.
pub(crate) const ARM: &str = "target";

/// Runs the verb.
pub(crate) fn run(args: &BenchArgs) -> Result<ExitCode> {
    let (options, suite) = match &args.suite {
        Some(path) => {
            let (base, receipt) = suite::cell(path, args.arm.as_deref())?;
            (args.options.clone().over(base), Some(receipt))
        }
        None => (args.options.clone(), None),
    };
    let settings = Settings::new(options, args.json)?;
    // A suite may ask for JSON too, which nobody knew until here.
    let as_json = settings.format == Format::Json;
    resolved(settings, suite, args.dry_run).or_else(|error| Ok(failure::told(&error, as_json)))
}

/// Runs what the settings ask for.
fn resolved(settings: Settings, suite: Option<SuiteReceipt>, dry: bool) -> Result<ExitCode> {
    let tokenizer = settings
        .options
        .tokenizer
        .as_deref()
        .map(TargetTokenizer::read);
    let tokenizer = tokenizer.transpose()?;
    if dry {
        return dry::run(&settings, suite.as_ref(), tokenizer.as_ref());
    }
    preflight::check(&settings)?;
    let as_json = settings.format == Format::Json;
    let stages = stages::Stages {
        interrupt: Interrupt::install()?,
        progress: Progress::new(),
        settings,
        suite,
        tokenizer,
    };
    let result = stages.run();
    stages.progress.clear();
    match result {
        // Whatever went wrong after the wish to stop went wrong because of it.
        Err(error) if error.is::<Interrupted>() || stages.interrupt.signal().is_stopped() => {
            let message = format!("{error:#}");
            console::say(&message);
            if as_json {
                output::error(&message, EXIT_INTERRUPTED);
            }
            Ok(ExitCode::from(EXIT_INTERRUPTED))
        }
        result => result,
    }
}

/// Measures one cell of a suite in this process. Nothing is printed but to `progress`.
///
/// # Errors
/// As the verb: [`Interrupted`] before the measurement, and anything that stands against a run.
pub(crate) fn measure(
    options: BenchOptions,
    suite: SuiteReceipt,
    interrupt: &Interrupt,
    progress: Progress,
) -> Result<Document> {
    let settings = Settings::new(options, true)?;
    let tokenizer = settings.options.tokenizer.as_deref();
    let stages = stages::Stages {
        tokenizer: tokenizer.map(TargetTokenizer::read).transpose()?,
        suite: Some(suite),
        interrupt: interrupt.clone(),
        progress,
        settings,
    };
    Ok(stages.measure()?.document)
}
