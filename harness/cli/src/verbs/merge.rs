//! `prefillbench merge RUN...`: shards of one schedule become one run.

use std::process::ExitCode;

use anyhow::{Context, Result};
use pb_bench::files::{JoinOptions, join};
use pb_bench::table;

use crate::args::MergeArgs;
use crate::{console, output};

/// Joins the shards and prints the numbers of the whole.
pub(crate) fn run(args: &MergeArgs) -> Result<ExitCode> {
    let options = JoinOptions {
        allow_partial: args.allow_partial,
        command: std::env::args().collect(),
    };
    let document = join(&args.runs, &args.out, &options)
        .with_context(|| format!("cannot join into {}", args.out.display()))?;
    match args.json {
        true => output::json(&document)?,
        false => output::table(&table::text(&document))?,
    }
    console::say(format!("run directory: {}", args.out.display()));
    Ok(ExitCode::from(document.exit_code()))
}
