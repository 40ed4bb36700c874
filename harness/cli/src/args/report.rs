//! The command line of `report`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Arguments of `report`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true,
    after_help = "Examples:
  prefillbench report results/RUN                    numbers, report.md and report.html
  prefillbench report results/SUITE --open           the page of a whole suite, in a browser
  prefillbench report results/SUITE --cells          and a page for each of its cells
  prefillbench report results/RUN --perfetto t.json  for https://ui.perfetto.dev
  prefillbench report diff results/A results/B       what differs between two runs

Exit codes: those of the run or the suite that is reported; 2 for a directory that cannot be \
read."
)]
pub(crate) struct ReportArgs {
    /// Something else than a report of one directory.
    #[command(subcommand)]
    pub(crate) what: Option<ReportWhat>,
    /// Directory of a run, or of a suite's run.
    #[arg(required = true)]
    pub(crate) run: Option<PathBuf>,
    /// Print the verdict as one JSON document.
    #[arg(long)]
    pub(crate) json: bool,
    /// Open the page in a browser. Refused where the variable CI is set.
    #[arg(long)]
    pub(crate) open: bool,
    /// Of a suite: make the report of each finished cell too.
    #[arg(long)]
    pub(crate) cells: bool,
    /// Of a run: write steps and requests as a trace for ui.perfetto.dev and chrome://tracing.
    #[arg(long, value_name = "FILE")]
    pub(crate) perfetto: Option<PathBuf>,
}

/// What `report` does beside reporting a directory.
#[derive(Debug, Subcommand)]
pub(crate) enum ReportWhat {
    /// Show what differs between two runs of bench, or of suites: settings, conditions, figures.
    /// Of suites the verdicts too.
    Diff(DiffArgs),
}

/// Arguments of `report diff`.
#[derive(Debug, Args)]
#[command(
    after_help = "Two single runs decide nothing: their figures are shown with their change \
and no verdict. --verdict asks the rules of `compare` all the same, which say so. Exit codes: 0, \
with --verdict those of compare."
)]
pub(crate) struct DiffArgs {
    /// Run directory, or that of a suite's run.
    pub(crate) first: PathBuf,
    /// The other one.
    pub(crate) second: PathBuf,
    /// Judge the pair by the rules of `compare`.
    #[arg(long)]
    pub(crate) verdict: bool,
    /// Print one JSON document.
    #[arg(long)]
    pub(crate) json: bool,
}
