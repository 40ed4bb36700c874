//! The command line of `validate` and `validate tasks`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::leak::header;
use super::{name, positive, seconds, seed, threads, whole};

/// Arguments of `validate`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:
  prefillbench validate --model smollm2-135m
  prefillbench validate --model synthetic --prompts 16 --json
  prefillbench validate --base-url http://127.0.0.1:8000 --model M
  prefillbench validate --base-url http://a:8000 --against http://b:8000 --model M
  prefillbench validate tasks --base-url http://a:8000 --against http://b:8000 --model M \\
      --tasks gsm8k/test.jsonl

Without --base-url the reference engine is checked, logit by logit. With it a server is asked for
log-probabilities: cold against warm cache, alone against a full batch, and one server against
another one (say of another chunk budget).

Exit codes: 0 pass, 1 fail, 2 bad usage or unreachable, 3 inconclusive."
)]
pub(crate) struct ValidateArgs {
    /// Downstream scores instead.
    #[command(subcommand)]
    pub(crate) what: Option<ValidateWhat>,
    /// Model: `smollm2-135m`, `synthetic`, a GGUF file or a Hugging Face directory; with
    /// --base-url its name in requests.
    #[arg(long, required = true, value_parser = name)]
    pub(crate) model: Option<String>,
    /// Prompts, the units of the statistics.
    #[arg(long, default_value_t = 24)]
    pub(crate) prompts: usize,
    /// Tokens in each prompt; default: 128, and 288 with --base-url, above two of any server's
    /// blocks.
    #[arg(long)]
    pub(crate) prompt_len: Option<usize>,
    /// Chunk sizes, separated by commas; default: 1, around the block size, a prime, around the
    /// prompt length.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "SIZES",
        conflicts_with = "base_url"
    )]
    pub(crate) chunks: Option<Vec<usize>>,
    /// Plant every numerical fault, not RoPE +1 alone, and show what each looks like.
    #[arg(long, conflicts_with = "base_url")]
    pub(crate) all_faults: bool,
    /// Show the limits that the correct variants give, and how often these would alarm falsely.
    #[arg(long, conflicts_with = "base_url")]
    pub(crate) calibrate: bool,
    /// Compute threads; default: all cores.
    #[arg(long, value_parser = threads, conflicts_with = "base_url")]
    pub(crate) threads: Option<usize>,
    /// Seed of the choice of prompts.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// A server to check.
    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
    /// Print one JSON document.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What else can be validated.
#[derive(Debug, Subcommand)]
pub(crate) enum ValidateWhat {
    /// Scores of two servers on the same questions, paired.
    Tasks(Box<TasksArgs>),
}

/// Arguments of `validate --base-url`.
#[derive(Debug, Args)]
pub(crate) struct RemoteArgs {
    /// Check this server instead, such as http://127.0.0.1:8000.
    #[arg(long, value_name = "URL")]
    pub(crate) base_url: Option<String>,
    /// Compare it with this server, which should give the same.
    #[arg(long, value_name = "URL", requires = "base_url")]
    pub(crate) against: Option<String>,
    /// Precision of the servers' activations, which sets the limits; default: bf16.
    #[arg(long, value_enum, requires = "base_url")]
    pub(crate) precision: Option<PrecisionArg>,
    /// Most likely tokens to ask for at each position; default: 20.
    #[arg(long, value_name = "K", requires = "base_url", value_parser = listed)]
    pub(crate) top_logprobs: Option<usize>,
    /// Greedy tokens after each prompt; default: 16.
    #[arg(long, value_name = "N", requires = "base_url", value_parser = positive)]
    pub(crate) output_len: Option<usize>,
    /// Requests in flight beside the one that is checked; 0 leaves this out; default: 4.
    #[arg(long, value_name = "N", requires = "base_url", value_parser = companions)]
    pub(crate) background: Option<usize>,
    /// Preference between two tokens that counts as none, nats.
    #[arg(long, value_name = "NATS", requires = "base_url", value_parser = above_zero)]
    pub(crate) tie_margin: Option<f64>,
    /// Margin of the mean change of NLL, nats per token.
    #[arg(long, value_name = "NATS", requires = "base_url", value_parser = above_zero)]
    pub(crate) nll_margin: Option<f64>,
    /// Text that prompts are cut from; default: a public-domain novel.
    #[arg(long, value_name = "FILE", requires = "base_url")]
    pub(crate) text: Option<PathBuf>,
    /// Makes cache salts new; default: from the time.
    #[arg(long, value_name = "N", requires = "base_url", value_parser = seed)]
    pub(crate) nonce: Option<u64>,
    /// How servers are spoken to.
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
}

/// How servers are spoken to.
#[derive(Debug, Args)]
pub(crate) struct ConnectArgs {
    /// Environment variable that holds the API key.
    #[arg(long, value_name = "NAME")]
    pub(crate) api_key_env: Option<String>,
    /// Header of every request; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    pub(crate) header: Vec<(String, String)>,
    /// Longest wait for an answer.
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = seconds)]
    pub(crate) timeout: f64,
}

/// Arguments of `validate tasks`.
#[derive(Debug, Args)]
#[command(after_help = "A file of items has one JSON object a line:
  {\"question\": ..., \"answer\": \"... #### 18\"}                     answered by a number (GSM8K)
  {\"question\": ..., \"choices\": [\"a\", \"b\"], \"answer\": 1 or \"B\"}  by the likeliest choice

Arm B passes when the share of items that it loses is shown to be below --margin, and fails when
McNemar's exact test shows more losses than gains. A perplexity passes when its mean change is
shown to be within --nll-margin, with windows of the text as units.")]
pub(crate) struct TasksArgs {
    /// Arm A, such as http://127.0.0.1:8000.
    #[arg(long, value_name = "URL")]
    pub(crate) base_url: String,
    /// Arm B.
    #[arg(long, value_name = "URL")]
    pub(crate) against: String,
    /// Name of the model in requests.
    #[arg(long, value_parser = name)]
    pub(crate) model: String,
    /// Items, one JSON object a line.
    #[arg(long, value_name = "FILE", required_unless_present = "perplexity")]
    pub(crate) tasks: Option<PathBuf>,
    /// Items used, from the start of the file after the examples.
    #[arg(long, default_value = "100", value_parser = positive)]
    pub(crate) items: usize,
    /// Solved items in front of each question.
    #[arg(long, default_value = "4", value_parser = whole)]
    pub(crate) shots: usize,
    /// Longest answer to a question with a number, tokens.
    #[arg(long, default_value = "256", value_parser = positive)]
    pub(crate) output_len: usize,
    /// Share of the items that may be lost.
    #[arg(long, default_value = "0.05", value_parser = share)]
    pub(crate) margin: f64,
    /// A text whose perplexity is compared too.
    #[arg(long, value_name = "FILE")]
    pub(crate) perplexity: Option<PathBuf>,
    /// Windows of the text, the units of its test.
    #[arg(long, default_value = "32", value_parser = positive)]
    pub(crate) windows: usize,
    /// Tokens of a window.
    #[arg(long, default_value = "256", value_parser = positive)]
    pub(crate) window_len: usize,
    /// Margin of the mean change of NLL, nats per token.
    #[arg(long, value_name = "NATS", default_value = "0.005", value_parser = above_zero)]
    pub(crate) nll_margin: f64,
    /// Seed of the places where windows are cut.
    #[arg(long, default_value = "1", value_parser = seed)]
    pub(crate) seed: u64,
    /// How servers are spoken to.
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,
    /// Print one JSON document.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Precisions of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PrecisionArg {
    /// f32 or more.
    F32,
    /// bf16 or f16.
    Bf16,
    /// 8 bits in blocks: llama.cpp with quantised weights.
    Int8,
}

/// Lists beyond this are refused by every server that is known.
const MAX_LISTED: usize = 1000;

/// Requests beside the checked one: beyond this the machine of the client is what is loaded.
const MAX_COMPANIONS: usize = 256;

fn listed(text: &str) -> Result<usize, String> {
    match positive(text)? {
        k if (2..=MAX_LISTED).contains(&k) => Ok(k),
        _ => Err(format!("must be between 2 and {MAX_LISTED}")),
    }
}

fn companions(text: &str) -> Result<usize, String> {
    match whole(text)? {
        n if n <= MAX_COMPANIONS => Ok(n),
        _ => Err(format!("must be at most {MAX_COMPANIONS}")),
    }
}

fn above_zero(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value.is_finite() => Ok(value),
        _ => Err("must be a number above 0".into()),
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value < 0.5 => Ok(value),
        _ => Err("must lie between 0 and 0.5, as 0.05".into()),
    }
}
