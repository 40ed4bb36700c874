//! The command line of `trace`.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use pb_workloads::trace::{ServeGenParams, TargetFormat, TimeUnit, TraceFormat, TraceOptions};

use super::positive;

/// Arguments of `trace`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  prefillbench trace inspect conversation_trace.jsonl
  prefillbench trace inspect trace.jsonl --pool 20000 --at-block-size 16 --json
  prefillbench trace validate qwen_traceA_blksz_16.jsonl
  prefillbench trace convert azure_conv.csv --to mooncake --arrivals spread --out t.jsonl

Formats: mooncake, vllm-timed, aiperf, bailian, weka, azure (2023 to 2025), burstgpt, simulator
(Vidur, Etalon, splitwise-sim), lengths, sharegpt, vllm-custom, servegen (a directory).")]
pub(crate) struct TraceArgs {
    /// What to do.
    #[command(subcommand)]
    pub(crate) what: TraceWhat,
}

/// The uses of a trace file.
#[derive(Debug, Subcommand)]
pub(crate) enum TraceWhat {
    /// Print counts, statistics, what was inferred and why, and the ideal reuse.
    Inspect(InspectArgs),
    /// Write a trace in another format.
    Convert(ConvertArgs),
    /// Check the rules that a replay relies on.
    Validate(ValidateTraceArgs),
}

/// A trace file and how to read it.
#[derive(Debug, Args)]
pub(crate) struct TraceFileArgs {
    /// Trace file, or a directory of ServeGen's client models.
    pub(crate) file: PathBuf,
    /// Its format; default: told by its contents.
    #[arg(long, value_parser = formats())]
    pub(crate) format: Option<TraceFormat>,
    /// Unit of its time column; default: as documented or inferred.
    #[arg(long, value_enum)]
    pub(crate) unit: Option<UnitArg>,
    /// Tokens that a name in hash_ids stands for; default: as documented or inferred.
    #[arg(long, value_parser = positive)]
    pub(crate) block_size: Option<usize>,
    /// ServeGen: start within the models' time, in seconds.
    #[arg(long, default_value_t = 0)]
    pub(crate) start: u64,
    /// ServeGen: seconds to generate.
    #[arg(long, default_value_t = 600)]
    pub(crate) duration: u64,
    /// ServeGen: factor on all rates.
    #[arg(long, default_value_t = 1.0)]
    pub(crate) rate_scale: f64,
    /// Seed of everything that is drawn.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Model whose tokenizer counts texts, for files that hold no lengths.
    #[arg(long, value_name = "MODEL")]
    pub(crate) tokenizer: Option<String>,
}

impl TraceFileArgs {
    /// The same for the reader.
    pub(crate) fn options(&self) -> TraceOptions {
        TraceOptions {
            format: self.format,
            unit: self.unit.map(UnitArg::unit),
            block_tokens: self.block_size,
            servegen: ServeGenParams {
                start_s: self.start,
                duration_s: self.duration,
                rate_scale: self.rate_scale,
                seed: self.seed,
            },
        }
    }
}

fn formats() -> impl TypedValueParser<Value = TraceFormat> {
    let names = PossibleValuesParser::new(TraceFormat::ALL.map(TraceFormat::name));
    names.try_map(|name| {
        let found = TraceFormat::ALL
            .into_iter()
            .find(|format| format.name() == name);
        found.ok_or("not a format")
    })
}

/// Units of a time column.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum UnitArg {
    /// Seconds.
    S,
    /// Milliseconds.
    Ms,
    /// Microseconds.
    Us,
    /// Nanoseconds.
    Ns,
}

impl UnitArg {
    fn unit(self) -> TimeUnit {
        match self {
            UnitArg::S => TimeUnit::S,
            UnitArg::Ms => TimeUnit::Ms,
            UnitArg::Us => TimeUnit::Us,
            UnitArg::Ns => TimeUnit::Ns,
        }
    }
}

/// Arguments of `trace inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// The file.
    #[command(flatten)]
    pub(crate) file: TraceFileArgs,
    /// Drop requests whose prompt and output exceed this context, and count them.
    #[arg(long, value_parser = positive)]
    pub(crate) max_model_len: Option<usize>,
    /// Also count what an engine with blocks of this many tokens would find.
    #[arg(long, value_name = "TOKENS", value_parser = positive)]
    pub(crate) at_block_size: Option<usize>,
    /// Blocks of that engine's pool, kept by plain LRU; default: unlimited.
    #[arg(long, value_name = "BLOCKS", value_parser = positive, requires = "at_block_size")]
    pub(crate) pool: Option<usize>,
    /// Print one JSON document.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Formats that can be written.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum TargetArg {
    /// Whole milliseconds, hash_ids.
    Mooncake,
    /// AIPerf's mooncake_trace: lengths, text or messages.
    Aiperf,
    /// vLLM's timed_trace: seconds, hash_ids.
    VllmTimed,
}

impl From<TargetArg> for TargetFormat {
    fn from(arg: TargetArg) -> Self {
        match arg {
            TargetArg::Mooncake => TargetFormat::Mooncake,
            TargetArg::Aiperf => TargetFormat::AiPerf,
            TargetArg::VllmTimed => TargetFormat::VllmTimed,
        }
    }
}

/// What becomes of recorded arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ArrivalsArg {
    /// As recorded.
    AsIs,
    /// Uniform within the recorder's bins, seeded.
    Spread,
}

/// Arguments of `trace convert`.
#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    /// The file.
    #[command(flatten)]
    pub(crate) file: TraceFileArgs,
    /// Format to write.
    #[arg(long, value_enum)]
    pub(crate) to: TargetArg,
    /// File to create; `-` writes to standard output.
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub(crate) out: PathBuf,
    /// Arrivals.
    #[arg(long, value_enum, default_value = "as-is")]
    pub(crate) arrivals: ArrivalsArg,
    /// Factor on arrivals: below 1 the load is higher than recorded.
    #[arg(long, default_value_t = 1.0)]
    pub(crate) time_scale: f64,
    /// Factor on lengths, for small contexts; blocks stay shared as they are.
    #[arg(long)]
    pub(crate) scale_length: Option<f64>,
    /// Drop requests whose prompt and output exceed this context, after scaling.
    #[arg(long, value_parser = positive)]
    pub(crate) max_model_len: Option<usize>,
    /// Keep only the first requests.
    #[arg(long, value_parser = positive)]
    pub(crate) limit: Option<usize>,
}

/// Arguments of `trace validate`.
#[derive(Debug, Args)]
pub(crate) struct ValidateTraceArgs {
    /// The file.
    #[command(flatten)]
    pub(crate) file: TraceFileArgs,
    /// Print one JSON document.
    #[arg(long)]
    pub(crate) json: bool,
}
