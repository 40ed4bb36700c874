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
mod interrupt;
mod live;
mod manifest;
mod observe;
mod offer;
mod print;
mod settings;
mod stages;
mod suite;
mod template;
mod tokenizer;
mod warm;
mod warmup;
mod workload;

use std::process::ExitCode;

use anyhow::Result;

use crate::args::BenchArgs;
use crate::progress::Progress;
use interrupt::{Interrupt, Interrupted};
pub(crate) use observe::SCRAPES_FILE;
use settings::Settings;
use tokenizer::TargetTokenizer;

/// Name of the one measured arm.
const ARM: &str = "target";

/// Exit code of a run that was interrupted.
const EXIT_INTERRUPTED: u8 = 3;

/// Runs the verb.
pub(crate) fn run(args: &BenchArgs) -> Result<ExitCode> {
    let (options, suite) = match &args.suite {
        Some(path) => {
            let (base, receipt) = suite::read(path, args.arm.as_deref())?;
            (args.options.clone().over(base), Some(receipt))
        }
        None => (args.options.clone(), None),
    };
    let settings = Settings::new(options, args.json)?;
    let tokenizer = settings
        .options
        .tokenizer
        .as_deref()
        .map(TargetTokenizer::read);
    let tokenizer = tokenizer.transpose()?;
    if args.dry_run {
        return dry::run(&settings, suite.as_ref(), tokenizer.as_ref());
    }
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
            eprintln!("{error:#}");
            Ok(ExitCode::from(EXIT_INTERRUPTED))
        }
        result => result,
    }
}
