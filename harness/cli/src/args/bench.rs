//! The command line of `bench`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::positive;
use crate::verbs::bench::Objective;

/// Arguments of `bench`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  prefillbench bench --base-url http://127.0.0.1:8000 --model M --request-rate 4 --num-prompts 200
  prefillbench bench --base-url http://127.0.0.1:8000 --model M --max-concurrency 8 --duration 60
  prefillbench bench --base-url http://127.0.0.1:8000 --model M --request-rate 2 --cache cold \\
      --goodput ttft:500,tpot:50 --json

Without --request-rate all requests are due at once. --max-concurrency makes a closed loop. Exit \
code 1: every request failed; 3: the run is not valid, the document says why.")]
pub(crate) struct BenchArgs {
    /// Address of the server, for example http://127.0.0.1:8000.
    #[arg(long, value_name = "URL")]
    pub(crate) base_url: String,
    /// Model name that requests carry.
    #[arg(long)]
    pub(crate) model: String,
    /// Route of the measured requests; default: the usual one of --api.
    #[arg(long, value_name = "PATH", value_parser = route)]
    pub(crate) endpoint: Option<String>,
    /// Interface; default: completions, or chat when --endpoint ends with chat/completions.
    #[arg(long, value_enum)]
    pub(crate) api: Option<Api>,
    /// Requests per second, or `inf`: all at once.
    #[arg(long, value_name = "RATE", default_value = "inf", value_parser = rate)]
    pub(crate) request_rate: f64,
    /// Shape of the gaps between requests: 1 is Poisson, below 1 burstier, above 1 more regular.
    #[arg(long, value_name = "SHAPE", default_value_t = 1.0, value_parser = positive_number)]
    pub(crate) burstiness: f64,
    /// Closed loop: so many requests in flight, each followed by the next one at its end.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) max_concurrency: Option<usize>,
    /// Requests; default: 1000, or with --duration and a rate as many as are due by then.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) num_prompts: Option<usize>,
    /// No request starts later than this after the start.
    #[arg(long, value_name = "SECONDS", value_parser = positive_number)]
    pub(crate) duration: Option<f64>,
    /// Length of each prompt: tokens, or words of a text.
    #[arg(long, value_name = "N", default_value = "1024", value_parser = positive)]
    pub(crate) random_input_len: usize,
    /// Output tokens that each request asks for.
    #[arg(long, value_name = "N", default_value = "128", value_parser = positive)]
    pub(crate) random_output_len: usize,
    /// Token ids that prompts are drawn from, the last one excluded.
    #[arg(long, value_name = "LO..HI", default_value = "1000..16000", value_parser = id_range)]
    pub(crate) random_range_ids: (u32, u32),
    /// What prompts are sent as; default: ids, for a chat text.
    #[arg(long, value_enum)]
    pub(crate) input_unit: Option<InputUnit>,
    /// Seed of the prompts and of the arrivals.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Ask for the whole output length even where the model would stop.
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Header of every request; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    pub(crate) header: Vec<(String, String)>,
    /// Environment variable that holds the API key.
    #[arg(long, value_name = "NAME")]
    pub(crate) api_key_env: Option<String>,
    /// Limits that a good request meets, separated by commas or spaces: ttft:MS, itl:MS (99th
    /// percentile within the request), tpot:MS, e2el:MS.
    #[arg(long, value_name = "LIMIT", value_delimiter = ',', num_args = 1..)]
    pub(crate) goodput: Vec<Objective>,
    /// State of the server's prefix cache: as it is, or emptied and proved to be cold.
    #[arg(long, value_enum, default_value_t = CacheArg::Asis)]
    pub(crate) cache: CacheArg,
    /// Run directory to create; default: results/bench-TIME.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Print one JSON document.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Api {
    /// `/v1/completions`.
    Completions,
    /// `/v1/chat/completions`.
    Chat,
}

/// Forms of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum InputUnit {
    /// Token ids, which the server takes as they are.
    Ids,
    /// Words, which the server turns into tokens.
    Text,
}

/// States of the cache that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CacheArg {
    /// Nothing is done and nothing is claimed.
    Asis,
    /// Emptied, or its keys salted, and shown to hold nothing.
    Cold,
}

fn positive_number(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err("must be a number above 0".into()),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text {
        "inf" => Ok(f64::INFINITY),
        _ => positive_number(text).map_err(|_| "must be a number above 0, or inf".into()),
    }
}

fn route(text: &str) -> Result<String, String> {
    if text.starts_with('/') {
        return Ok(text.to_owned());
    }
    Err("must begin with /, as in /v1/completions".into())
}

/// Fewer ids than these cannot make prompts that differ surely.
const MIN_IDS: u32 = 64;

fn id_range(text: &str) -> Result<(u32, u32), String> {
    let bounds = text.split_once("..");
    let parsed = bounds.and_then(|(lo, hi)| Some((lo.parse().ok()?, hi.parse().ok()?)));
    match parsed {
        Some((lo, hi)) if hi >= lo && hi - lo >= MIN_IDS => Ok((lo, hi)),
        _ => Err(format!(
            "must be LO..HI with at least {MIN_IDS} ids between, as in 1000..16000"
        )),
    }
}

fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("must be NAME=VALUE".into()),
    }
}
