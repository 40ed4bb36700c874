//! `prefillbench merge RUN...`: shards of one schedule become one run.

use std::process::ExitCode;

use anyhow::{Context, Result};
use pb_bench::files::{JoinOptions, join};
use pb_bench::table;

use crate::args::MergeArgs;
use crate::output;

/// Joins the shards and prints the numbers of the whole.
pub(crate) fn run(args: &MergeArgs) -> Result<ExitCode> {
    let options = JoinOptions {
        allow_partial: args.allow_partial,
        command: std::env::args().collect(),
    };
    let document = join(&args.runs, &args.out, &options)
        .with_context(|| format!("cannot join into {}", args.out.display()))?;
    let text = match args.json {
        true => serde_json::to_string_pretty(&document)?,
        false => table::text(&document),
    };
    output::line(&text)?;
    eprintln!("run directory: {}", args.out.display());
    Ok(ExitCode::from(document.exit_code()))
}
