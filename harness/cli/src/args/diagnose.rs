//! The command line of `diagnose`.

use std::path::PathBuf;

use clap::Args;

/// Arguments of `diagnose`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  prefillbench diagnose results/slow
  prefillbench diagnose results/quickstart-TIME --arm monolithic --suite-out next.toml
  prefillbench run next.toml --out results/next

A run is a directory that `bench`, `merge` or `quickstart` wrote. Symptoms prove no cause: a
hypothesis that leads is to be tested by the suite. docs/DIAGNOSE.md has the rules.
Exit codes: 0 a hypothesis leads, 2 bad input, 3 insufficient evidence or a void run.")]
pub(crate) struct DiagnoseArgs {
    /// Run directory.
    pub(crate) run: PathBuf,
    /// Arm to look at, where the run has several.
    #[arg(long, value_name = "NAME")]
    pub(crate) arm: Option<String>,
    /// Write the suite of the next experiment; not for a void run.
    #[arg(long, value_name = "FILE")]
    pub(crate) suite_out: Option<PathBuf>,
    /// Print one JSON document.
    #[arg(long)]
    pub(crate) json: bool,
}
