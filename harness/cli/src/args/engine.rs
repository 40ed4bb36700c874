//! The command line of `engine`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::positive;

/// Arguments of `engine`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  prefillbench engine replay --script schedule.jsonl --json
  prefillbench engine simulate --trace conversation_trace.jsonl --num-blocks 200000
  prefillbench engine simulate --trace t.jsonl --preset sglang --block-size 16 --json
  prefillbench engine simulate --trace t.jsonl --limit 50 --out run    for compare and gate")]
pub(crate) struct EngineArgs {
    /// What to do.
    #[command(subcommand)]
    pub(crate) what: EngineWhat,
}

/// The uses of the engine without a model.
#[derive(Debug, Subcommand)]
pub(crate) enum EngineWhat {
    /// Run a script against the real scheduler, allocator and prefix cache, line by line.
    Replay(ReplayArgs),
    /// Serve a trace in virtual time: the real engine over a model of step times.
    Simulate(Box<SimulateArgs>),
}

/// Arguments of `engine replay`.
#[derive(Debug, Args)]
#[command(
    after_help = "The lines are described in docs/REPLAY.md. A line that cannot be done \
answers with an error and the script goes on. Exit codes: 0 done, 1 a law of the engine is \
broken, 2 unreadable script.

Example:
  printf '%s\\n' '{\"op\":\"config\",\"preset\":\"vllm-v1\",\"num_blocks\":11}' \\
    '{\"op\":\"add\",\"id\":\"r0\",\"tokens\":{\"range\":[1,56]}}' '{\"op\":\"step\"}' \\
    '{\"op\":\"state\"}' | prefillbench engine replay --script - --json"
)]
pub(crate) struct ReplayArgs {
    /// Script, one JSON object a line; `-` reads standard input.
    #[arg(long, value_name = "FILE")]
    pub(crate) script: PathBuf,
    /// Print one JSON document a line of the script.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Named sets of rules.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum PresetArg {
    /// Plain vLLM V1.
    VllmV1,
    /// Plain SGLang.
    Sglang,
}

/// Formats of traces.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum TraceFormat {
    /// JSON lines with `timestamp` (ms), `input_length`, `output_length` and `hash_ids`.
    Mooncake,
}

/// Arguments of `engine simulate`.
#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    /// Trace file.
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: PathBuf,
    /// Its format.
    #[arg(long, value_enum, default_value = "mooncake")]
    pub(crate) format: TraceFormat,
    /// Serve at most this many requests of the trace.
    #[arg(long, value_parser = positive)]
    pub(crate) limit: Option<usize>,
    /// Leave this many requests of the trace out before the first one.
    #[arg(long, default_value_t = 0)]
    pub(crate) skip: usize,
    /// Named set of rules.
    #[arg(long, value_enum)]
    pub(crate) preset: Option<PresetArg>,
    /// Prefix cache: none, hash-chain, radix or oracle.
    #[arg(long)]
    pub(crate) cache: Option<String>,
    /// Policy: monolithic, prefill_first, decode_priority_monolithic, token_budget,
    /// adaptive_load, shrinking or time_budget.
    #[arg(long)]
    pub(crate) policy: Option<String>,
    /// Order of the waiting queue: fcfs, priority, lpm or dfs-weight.
    #[arg(long)]
    pub(crate) queue: Option<String>,
    /// Tokens in a KV block.
    #[arg(long, default_value = "16", value_parser = positive)]
    pub(crate) block_size: usize,
    /// Blocks in the pool; default: enough that nothing is ever evicted.
    #[arg(long, value_parser = positive)]
    pub(crate) num_blocks: Option<usize>,
    /// Token budget of a step.
    #[arg(long, default_value = "8192", value_parser = positive)]
    pub(crate) max_batched_tokens: usize,
    /// Sequences that may run at once.
    #[arg(long, default_value = "256", value_parser = positive)]
    pub(crate) max_num_seqs: usize,
    /// Model of step times: a TOML file; default: the built-in one.
    #[arg(long, value_name = "FILE")]
    pub(crate) cost: Option<PathBuf>,
    /// Write one row a step to this CSV file.
    #[arg(long, value_name = "FILE", conflicts_with = "out")]
    pub(crate) steps: Option<PathBuf>,
    /// Send the trace with the load driver of `bench` and write a run directory, which `report`,
    /// `compare` and `gate` take. The same arguments write the same bytes on any machine.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Print one JSON document.
    #[arg(long)]
    pub(crate) json: bool,
}
