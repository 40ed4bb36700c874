//! The command line of `leak`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use pb_judge::leak::MAX_TRIALS;

use super::{name, positive, seconds, seed, whole};

/// Arguments of `leak`.
#[derive(Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:
  prefillbench leak --base-url http://127.0.0.1:8000 --model M
  prefillbench leak --base-url http://127.0.0.1:8000 --model M --no-salt
  prefillbench leak --base-url http://gateway --model M --tenant-header x-tenant
  prefillbench leak --base-url http://gateway --model M --api-key-env KEY_A --other-key-env KEY_B

Each trial primes a prompt of the tool's own making as tenant A, then sends in random order: the
prompt again as tenant A, the prompt as tenant B, and a prompt that nobody sent. Tenant A must be
seen to hit (or the cache is off), tenant B must not. Nobody else's prompts are used or guessed.

Exit codes: 0 isolated, 1 leaks, 2 bad usage or unreachable, 3 cache off or inconclusive."
)]
pub(crate) struct LeakArgs {
    /// Address of the server, such as http://127.0.0.1:8000.
    #[arg(long, value_name = "URL")]
    pub(crate) base_url: String,
    /// Name of the model in requests.
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub(crate) model: String,
    /// Interface.
    #[arg(long, value_enum, default_value_t = LeakApi::Completions)]
    pub(crate) api: LeakApi,
    /// Route, when it is not the usual one of the interface.
    #[arg(long, value_name = "PATH")]
    pub(crate) endpoint: Option<String>,
    /// What prompts are sent as; default: ids, for a chat text.
    #[arg(long, value_enum)]
    pub(crate) input_unit: Option<LeakUnit>,
    /// Nothing tells the callers apart: shows what one caller can see of any other.
    #[arg(long, conflicts_with_all = ["tenant_header", "other_key_env"])]
    pub(crate) no_salt: bool,
    /// A header that names the tenant, instead of the field `cache_salt`.
    #[arg(long, value_name = "NAME", conflicts_with = "other_key_env")]
    pub(crate) tenant_header: Option<String>,
    /// Values of the tenant header, for a gateway that knows its tenants; default: random ones.
    #[arg(long, value_name = "A,B", requires = "tenant_header", value_parser = two)]
    pub(crate) tenant_values: Option<(String, String)>,
    /// Environment variable that holds the API key.
    #[arg(long, value_name = "NAME")]
    pub(crate) api_key_env: Option<String>,
    /// Environment variable that holds the API key of the other tenant, who is told apart by it.
    #[arg(long, value_name = "NAME", requires = "api_key_env")]
    pub(crate) other_key_env: Option<String>,
    /// Header of every request; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    pub(crate) header: Vec<(String, String)>,
    /// Trials of four requests; default: as many as the power needs.
    #[arg(long, value_name = "N", value_parser = trials)]
    pub(crate) trials: Option<usize>,
    /// Chance to show that an isolating server isolates, by timing alone.
    #[arg(long, value_name = "P", default_value_t = 0.9, value_parser = share)]
    pub(crate) power: f64,
    /// Length of each prompt, several of the server's blocks: tokens, or words of a text.
    #[arg(long, value_name = "N", default_value = "512", value_parser = prompt_len)]
    pub(crate) prompt_len: usize,
    /// Token ids that prompts are drawn from, the last one excluded.
    #[arg(long, value_name = "LO..HI", default_value = "1000..16000", value_parser = id_range)]
    pub(crate) random_range_ids: (u32, u32),
    /// Requests sent first, which count for nothing.
    #[arg(long, value_name = "N", default_value = "4", value_parser = warmup)]
    pub(crate) warmup: usize,
    /// Pause between two requests.
    #[arg(long, value_name = "MS", default_value = "0", value_parser = pause_ms)]
    pub(crate) pause_ms: u64,
    /// Longest wait for a first token.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub(crate) timeout_first_token: f64,
    /// Longest wait for a connection.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub(crate) timeout_connect: f64,
    /// Longest time of a request from its intended arrival on.
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    pub(crate) timeout_total: f64,
    /// Seed of the prompts and of the order.
    #[arg(long, default_value = "1", value_parser = seed)]
    pub(crate) seed: u64,
    /// Makes the prompts new; default: from the time, so that no run finds what an earlier left.
    #[arg(long, value_name = "N", value_parser = seed)]
    pub(crate) nonce: Option<u64>,
    /// Run directory to create; default: results/leak-TIME.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Print one JSON document.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LeakApi {
    /// `/v1/completions`.
    Completions,
    /// `/v1/chat/completions`.
    Chat,
}

/// Forms of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LeakUnit {
    /// Token ids, which the server takes as they are.
    Ids,
    /// Words, which the server turns into tokens.
    Text,
}

/// Longest prompt, in tokens or words: beyond the context of any server.
const MAX_PROMPT_LEN: usize = 1 << 22;

/// Requests of a warm-up: more warm nothing further.
const MAX_WARMUP: usize = 10_000;

/// An hour between two requests is no pause but a mistake.
const MAX_PAUSE_MS: usize = 3_600_000;

fn trials(text: &str) -> Result<usize, String> {
    at_most(positive(text)?, MAX_TRIALS)
}

fn prompt_len(text: &str) -> Result<usize, String> {
    at_most(positive(text)?, MAX_PROMPT_LEN)
}

fn warmup(text: &str) -> Result<usize, String> {
    at_most(whole(text)?, MAX_WARMUP)
}

fn pause_ms(text: &str) -> Result<u64, String> {
    at_most(whole(text)?, MAX_PAUSE_MS).map(|ms| ms as u64)
}

fn at_most(value: usize, most: usize) -> Result<usize, String> {
    match value <= most {
        true => Ok(value),
        false => Err(format!("must be at most {most}")),
    }
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

pub(super) fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("must be NAME=VALUE".into()),
    }
}

fn two(text: &str) -> Result<(String, String), String> {
    match text.split_once(',') {
        Some((a, b)) if !a.is_empty() && !b.is_empty() && a != b => {
            Ok((a.to_owned(), b.to_owned()))
        }
        _ => Err("must be two different values, as in team-a,team-b".into()),
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value < 1.0 => Ok(value),
        _ => Err("must lie between 0 and 1, as 0.9".into()),
    }
}
