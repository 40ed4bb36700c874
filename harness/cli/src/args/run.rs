//! The command line of `run`, and of the hidden verb that keeps its servers.

use std::path::PathBuf;

use clap::Args;

/// Arguments of `run`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  prefillbench run workloads/suites/own_chunk_size.toml --dry-run
  prefillbench run workloads/suites/own_chunk_size.toml --out results/chunk-size
  prefillbench run SUITE.toml --out DIR            again: finished cells are not repeated
  prefillbench run SUITE.toml --out DIR --retry-void        again what was not valid
  prefillbench run SUITE.toml --out DIR --only '0/*' --only '*/budget=32'

A suite has arms (servers), conditions (loads) and blocks. In each block every arm runs the same
schedule, in an order drawn from the suite's seed, each in a fresh server process. Hypotheses are
judged over pairs of one block, never over requests. docs/SUITES.md has the format.

Exit codes: 0 every hypothesis has an answer and none speaks against what the suite expects;
1 one does; 2 bad usage, a bad suite, or a directory of another suite; 3 inconclusive, void,
incomplete or interrupted.")]
pub(crate) struct RunArgs {
    /// Suite file.
    #[arg(value_name = "SUITE")]
    pub(crate) suite: PathBuf,
    /// Directory of the suite's run; one that exists is gone on with. Default: results/NAME-TIME.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Print the plan with an estimate of its time; start nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Run only these cells: a block number or *, and an arm, parts of one (budget=32), or *; may
    /// be repeated.
    #[arg(long, value_name = "BLOCK/ARM")]
    pub(crate) only: Vec<String>,
    /// Run the blocks that hold a cell that is not valid again, with all their cells: the two of a
    /// pair must be of one time. What was measured before is kept beside.
    #[arg(long)]
    pub(crate) retry_void: bool,
    /// Print one JSON document.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `guard`.
#[derive(Debug, Args)]
pub(crate) struct GuardArgs {
    /// Signal that asks the command to end.
    #[arg(long, default_value = "TERM")]
    pub(crate) signal: String,
    /// Time that it then has, in milliseconds, before it is killed.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) grace_ms: u64,
    /// The command.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    pub(crate) command: Vec<String>,
}
