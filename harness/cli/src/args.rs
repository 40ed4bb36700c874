//! The command line as typed. Nothing here reads a file or the machine.

mod bench;
mod compare;
mod diagnose;
mod engine;
mod golden;
mod kernels;
mod kv;
mod leak;
mod merge;
mod mock;
mod names;
mod report;
mod router;
mod run;
mod serve;
mod trace;
mod validate;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::size::LinkRate;

pub(crate) use bench::{
    Above0, Api, ArrivalArg, Backend, BenchArgs, BenchOptions, CacheArg, DatasetName, Format,
    HttpArg, InputUnit, RampStrategy, Secret, Text, Timeout, Warmup,
};
pub(crate) use compare::{CompareArgs, GateArgs, GateInitArgs, GateWhat};
pub(crate) use diagnose::DiagnoseArgs;
pub(crate) use engine::{EngineArgs, EngineWhat, PresetArg, ReplayArgs, SimulateArgs, TraceFormat};
pub(crate) use golden::{GoldenArgs, GoldenWhat};
pub(crate) use kernels::{KernelDevice, KernelsArgs};
pub(crate) use kv::{KvArgs, KvFailure, KvGranularity, KvMode, KvTransport, Role, StreamMin};
pub(crate) use leak::{LeakApi, LeakArgs, LeakUnit};
pub(crate) use merge::MergeArgs;
pub(crate) use mock::{Head, MockArgs, SseArg, TokenizerArg, UsageArg};
pub(crate) use report::{DiffArgs, ReportArgs, ReportWhat};
pub(crate) use router::{
    PolicyArg, RouterArgs, RouterSimulateArgs, RouterWhat, RuleArgs, Topology,
};
pub(crate) use run::{GuardArgs, RunArgs};
pub(crate) use serve::{LoraModule, ServeArgs, ServeEngineArgs, Switch};
pub(crate) use trace::{
    ArrivalsArg, ConvertArgs, InspectArgs, TraceArgs, TraceWhat, ValidateTraceArgs,
};
pub(crate) use validate::{ConnectArgs, PrecisionArg, TasksArgs, ValidateArgs, ValidateWhat};

/// Measures chunked prefill and prefix caching in LLM serving, and says how sure it is.
#[derive(Debug, Parser)]
#[command(version, about, long_about = None, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

const EXAMPLES: &str = "Examples:
  prefillbench quickstart                      chunked against monolithic prefill, real model
  prefillbench quickstart --aa                 the same engine twice: must claim no difference
  prefillbench serve --model smollm2-135m      an OpenAI-compatible server on 127.0.0.1:8000
  prefillbench validate --model synthetic      does chunking or caching change the logits?
  prefillbench validate --base-url http://127.0.0.1:8000 --model M     the same of any server
  prefillbench bench --base-url http://127.0.0.1:8000 --request-rate 4 --num-prompts 40
  prefillbench run SUITE.toml --dry-run        a whole experiment: arms, blocks, verdicts
  prefillbench compare --a old1 old2 old3 --b new1 new2 new3
  prefillbench gate --policy gate.toml --baseline old* --candidate new*
  prefillbench calc chunks --budget 512 --decodes 4 --prompt 2048
  prefillbench engine replay --script s.jsonl  the scheduler and cache alone, step by step
  prefillbench kernels                         every kernel against f64, and its speed
  prefillbench trace inspect trace.jsonl       what a recorded workload holds
  prefillbench report results/RUN              render a run again, finished or not

Exit codes: 0 pass, 1 a check failed, 2 bad usage or unreadable input, 3 inconclusive or void.";

/// Threads beyond this are a typing error on any machine.
const MAX_THREADS: usize = 1024;

/// Parses a number of threads.
fn threads(text: &str) -> Result<usize, String> {
    match positive(text)? {
        n if n <= MAX_THREADS => Ok(n),
        _ => Err(format!("must be at most {MAX_THREADS}")),
    }
}

/// Parses a number of at least 1.
fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if n > 0 => Ok(n),
        _ => Err("must be a whole number, at least 1".into()),
    }
}

/// Parses a number of at least 0.
fn whole(text: &str) -> Result<usize, String> {
    let bad = |_| "must be a whole number, at least 0".into();
    text.parse().map_err(bad)
}

/// Parses a seed.
fn seed(text: &str) -> Result<u64, String> {
    let bad = |_| format!("must be a whole number from 0 to {}", u64::MAX);
    text.parse().map_err(bad)
}

/// Parses a number of seconds above 0, with a fraction or without.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(Above0(seconds)) => Ok(seconds),
        Err(error) => Err(format!("{error}, in seconds")),
    }
}

/// Parses a name that may not be empty.
fn name(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("must not be empty".into()),
        _ => Ok(text.to_owned()),
    }
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Chunked against monolithic prefill on a real model, with numerics and a report.
    Quickstart(QuickstartArgs),
    /// Get, make or inspect a model.
    Model(ModelArgs),
    /// Serve a model over the OpenAI-compatible HTTP interface.
    Serve(Box<ServeArgs>),
    /// Check that chunking and prefix caching do not change the outputs, here or of a server.
    Validate(Box<ValidateArgs>),
    /// Check or renew the expected values in a folder of golden files.
    Golden(GoldenArgs),
    /// One endpoint in front of prefill and decode workers.
    Router(Box<RouterArgs>),
    /// Print the arithmetic of chunking, prefix reuse and KV transfer.
    Calc(CalcArgs),
    /// Replay schedules and simulate traces on the reference engine, without a model.
    Engine(EngineArgs),
    /// Validate every kernel against f64, and time it beside what the machine can do.
    Kernels(KernelsArgs),
    /// Inspect, check or convert a recorded workload.
    Trace(TraceArgs),
    /// Measure any OpenAI-compatible endpoint under a seeded load.
    Bench(Box<BenchArgs>),
    /// Run a suite: its arms in matched blocks, with a verdict for each hypothesis.
    Run(RunArgs),
    /// Join the shards of one schedule into one run.
    Merge(MergeArgs),
    /// Compare runs: what changed, with intervals, and how sure that is.
    Compare(CompareArgs),
    /// Put runs to a policy: pass, fail, or cannot tell.
    Gate(GateArgs),
    /// Weigh hypotheses about a slow server against the rows of a run; propose an experiment.
    Diagnose(DiagnoseArgs),
    /// Show whether one tenant can see what another one sent, by timing or by usage.
    Leak(Box<LeakArgs>),
    /// Serve scripted streams with known times, faults and a pretended cache.
    Mock(Box<MockArgs>),
    /// Render a run or a suite again, also an interrupted one; show how two runs differ.
    Report(ReportArgs),
    /// Print a shell completion script.
    Completions(CompletionsArgs),
    /// Keep a server, and end it when standard input closes.
    #[command(hide = true)]
    Guard(GuardArgs),
}

/// Arguments of `quickstart`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  prefillbench quickstart
  prefillbench quickstart --model ./my-llama.gguf --blocks 8
  prefillbench quickstart --aa --skip-numerics")]
pub(crate) struct QuickstartArgs {
    /// Model: `smollm2-135m`, `synthetic`, a GGUF file or a Hugging Face directory.
    #[arg(long, default_value = "smollm2-135m")]
    pub(crate) model: String,
    /// Run directory to create; default: results/quickstart-TIME.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Seed of every random stream of the run.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Matched blocks: in each, both arms run the same schedule.
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) blocks: u32,
    /// Compute threads of each engine; default: one core is left to the load driver.
    #[arg(long, value_parser = threads)]
    pub(crate) threads: Option<usize>,
    /// Token budget of the chunked arm.
    #[arg(long, default_value = "128", value_parser = positive)]
    pub(crate) budget: usize,
    /// Mean time between long prompts; default: 1.15 times the measured prefill time of one, so
    /// that every machine is loaded alike.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    pub(crate) mean_gap_ms: Option<u64>,
    /// Run the monolithic configuration in both arms: a difference claimed then is false.
    #[arg(long)]
    pub(crate) aa: bool,
    /// Leave out the check of the logits.
    #[arg(long)]
    pub(crate) skip_numerics: bool,
    /// Shorter blocks: for a smoke test, not for a result.
    #[arg(long)]
    pub(crate) smoke: bool,
    /// Print the verdict as one JSON document.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `model`.
#[derive(Debug, Args)]
pub(crate) struct ModelArgs {
    /// What to do with a model.
    #[command(subcommand)]
    pub(crate) action: ModelAction,
}

/// Actions of `model`.
#[derive(Debug, Subcommand)]
pub(crate) enum ModelAction {
    /// Download a model into the cache directory.
    Fetch {
        /// Name: `smollm2-135m`.
        name: String,
        /// Print one JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Write a generated model as safetensors that transformers can load.
    Synth {
        /// Directory to create.
        dir: PathBuf,
        /// Size.
        #[arg(long, value_enum, default_value_t = SynthSize::Tiny)]
        size: SynthSize,
        /// Kind of weights: `sharp` shows positional faults, `hf-init` hides them.
        #[arg(long, value_enum, default_value_t = SynthKind::Sharp)]
        kind: SynthKind,
        /// Seed.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Print what a model file holds.
    Info {
        /// GGUF file, Hugging Face directory or a name.
        model: String,
        /// Print one JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Write a model as a bf16 GGUF file.
    ExportBf16 {
        /// GGUF file or a name.
        model: String,
        /// File to create.
        out: PathBuf,
    },
}

/// Sizes of generated models.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum SynthSize {
    /// Two layers.
    Tiny,
    /// Four layers.
    Small,
}

/// Kinds of generated weights.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum SynthKind {
    /// Standard deviation 1/sqrt(fan-in), doubled on q, k and the head.
    Sharp,
    /// Standard deviation 0.02 everywhere.
    HfInit,
}

/// Arguments of `calc`.
#[derive(Debug, Args)]
pub(crate) struct CalcArgs {
    /// What to compute.
    #[command(subcommand)]
    pub(crate) what: CalcWhat,
}

/// Calculations. None of them predicts a time to first token: each is a formula, printed beside its
/// value.
#[derive(Debug, Subcommand)]
pub(crate) enum CalcWhat {
    /// Chunks of a prompt under a token budget.
    Chunks {
        /// Token budget of a step.
        #[arg(long)]
        budget: usize,
        /// Active decodes, one token each.
        #[arg(long, default_value_t = 0)]
        decodes: usize,
        /// Prompt length in tokens.
        #[arg(long)]
        prompt: usize,
        /// Largest chunk, beside the budget.
        #[arg(long)]
        chunk: Option<usize>,
        /// Print one JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Work that a cached prefix avoids.
    Prefix {
        /// Prompt length in tokens.
        #[arg(long)]
        prompt: u64,
        /// Tokens of the prompt that an earlier one shares.
        #[arg(long)]
        shared: u64,
        /// Tokens in a KV block.
        #[arg(long, default_value_t = 16)]
        block_size: u64,
        /// Print one JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Floating-point work and the compute or bandwidth bound of a step.
    Flops {
        /// Tokens computed.
        #[arg(long)]
        tokens: u64,
        /// Active parameters, for example 8e9.
        #[arg(long)]
        parameters: f64,
        /// Bytes of one weight.
        #[arg(long, default_value_t = 2.0)]
        bytes_per_weight: f64,
        /// Memory bandwidth in bytes per second, for example 3.35e12.
        #[arg(long, default_value_t = 3.35e12)]
        bandwidth: f64,
        /// Peak arithmetic in FLOP per second, for example 989e12.
        #[arg(long, default_value_t = 989e12)]
        peak: f64,
        /// Output width of the linear layer for its intensity.
        #[arg(long, default_value_t = 4096)]
        width: u64,
        /// Print one JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Size of the KV cache.
    #[command(after_help = "Example:
  prefillbench calc kv --layers 32 --kv-heads 8 --d-head 128 --tokens 8192")]
    Kv(KvShapeArgs),
    /// Ideal time to move the KV cache, in bulk and layer by layer.
    #[command(after_help = "Examples:
  prefillbench calc transfer --layers 32 --kv-heads 8 --d-head 128 --tokens 2048 --link 100Gb/s
  prefillbench calc transfer --layers 32 --kv-heads 8 --d-head 128 --tokens 2048 --link 10Gb/s \\
    --layer-ms 4.1 --post-us 8           can streaming hide it, and from which prompt on
  prefillbench calc transfer --layers 30 --kv-heads 3 --d-head 64 --bytes 4 --tokens 1024 \\
    --run results/disaggregation/cells/block-000/disaggregated     measured beside the ideal")]
    Transfer {
        /// Shape of the cache.
        #[command(flatten)]
        shape: KvShapeArgs,
        /// Link speed: bytes per second, or with a unit (`100Gb/s`, `12.5GB/s`).
        #[arg(long, default_value = "100Gb/s")]
        link: LinkRate,
        /// Prefill time of one layer in milliseconds, to judge layer-wise streaming.
        #[arg(long)]
        layer_ms: Option<f64>,
        /// What sealing and posting one layer by itself keeps the prefill, in microseconds, to say
        /// from which prompt on streaming pays. Nothing else counts it. About 8 on a
        /// shaped link with nothing but this to do (docs/TRANSFER.md).
        #[arg(long)]
        post_us: Option<f64>,
        /// Run directory with transfers.csv: what transfers took, beside the ideal.
        #[arg(long, value_name = "DIR")]
        run: Option<PathBuf>,
    },
}

/// The shape of a KV cache.
#[derive(Clone, Debug, Args)]
pub(crate) struct KvShapeArgs {
    /// Decoder layers.
    #[arg(long)]
    pub(crate) layers: u64,
    /// Key/value heads (not query heads).
    #[arg(long)]
    pub(crate) kv_heads: u64,
    /// Width of a head.
    #[arg(long)]
    pub(crate) d_head: u64,
    /// Bytes of one element.
    #[arg(long, default_value_t = 2)]
    pub(crate) bytes: u64,
    /// Tokens.
    #[arg(long)]
    pub(crate) tokens: u64,
    /// Print one JSON document.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  prefillbench completions bash > ~/.local/share/bash-completion/completions/prefillbench")]
pub(crate) struct CompletionsArgs {
    /// Shell.
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}
