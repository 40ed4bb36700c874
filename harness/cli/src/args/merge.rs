//! The command line of `merge`.

use std::path::PathBuf;

use clap::Args;

/// Arguments of `merge`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  prefillbench bench ... --shard 0/2 --out a      on one machine
  prefillbench bench ... --shard 1/2 --out b      on another one, with the same flags and seed
  prefillbench merge a b --out joined

All shards of one schedule are needed. Their clocks are laid on one another at the start of the \
schedule; the numbers are made again from the joined rows. Exit codes as of bench.")]
pub(crate) struct MergeArgs {
    /// Run directories of the shards, in any order.
    #[arg(required = true, value_name = "RUN")]
    pub(crate) runs: Vec<PathBuf>,
    /// Run directory to create.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Join what is there when shards are missing or did not reach their end; the result says so
    /// and is not valid.
    #[arg(long)]
    pub(crate) allow_partial: bool,
    /// Print one JSON document.
    #[arg(long)]
    pub(crate) json: bool,
}
