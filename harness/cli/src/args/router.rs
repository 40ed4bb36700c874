//! The command line of `router`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand, ValueEnum};
use pb_router::Pool;
use pb_router::http::WorkerUrl;

use super::{Above0, positive, seed, whole};

/// Arguments of `router`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    allow_negative_numbers = true,
    after_help = "Examples:
  prefillbench router --prefill http://127.0.0.1:8001 --decode http://127.0.0.1:8002
  prefillbench router --prefill http://h1:8000 http://h2:8000 --decode http://h3:8000 \\
    --policy kv-aware --slo-ttft-ms 2000
  prefillbench router --topology 1P1D -- --model synthetic --numerics exact
  prefillbench router simulate --prefill 3 --decode 2

One line with the address is printed when every worker has been asked once."
)]
pub(crate) struct RouterArgs {
    /// Another use of the router.
    #[command(subcommand)]
    pub(crate) what: Option<RouterWhat>,
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) host: std::net::IpAddr,
    /// Port to listen on; 0 chooses one.
    #[arg(long, default_value_t = 8000)]
    pub(crate) port: u16,
    /// Workers that compute prompts for others.
    #[arg(long, value_name = "URL", num_args = 1.., value_parser = WorkerUrl::parse)]
    pub(crate) prefill: Vec<WorkerUrl>,
    /// Workers that continue what others have computed.
    #[arg(long, value_name = "URL", num_args = 1.., value_parser = WorkerUrl::parse)]
    pub(crate) decode: Vec<WorkerUrl>,
    /// Workers that do both.
    #[arg(long, value_name = "URL", num_args = 1.., value_parser = WorkerUrl::parse)]
    pub(crate) mixed: Vec<WorkerUrl>,
    /// Start the workers too: so many of each kind, as 2P1D or 1P1D1M.
    #[arg(long, conflicts_with_all = ["prefill", "decode", "mixed"])]
    pub(crate) topology: Option<Topology>,
    /// Where the logs of these workers go, 16 MiB each at most [default: $PREFILLBENCH_LOG_DIR, or
    /// a new folder in the temporary directory].
    #[arg(long, value_name = "DIR", requires = "topology")]
    pub(crate) log_dir: Option<PathBuf>,
    /// Flags of `serve` for the workers that are started.
    #[arg(last = true)]
    pub(crate) serve: Vec<String>,
    /// Environment variable with the key that clients must send.
    #[arg(long, value_name = "VAR")]
    pub(crate) api_key_env: Option<String>,
    /// Environment variable with the key that the workers want; without it they get the client's
    /// with its requests, and none with the router's own.
    #[arg(long, value_name = "VAR")]
    pub(crate) worker_api_key_env: Option<String>,
    /// Stop when standard input closes, so that no server outlives its harness.
    #[arg(long, hide = true)]
    pub(crate) until_stdin_closes: bool,
    /// The rules.
    #[command(flatten)]
    pub(crate) rules: RuleArgs,
}

/// Other uses of the router.
#[derive(Debug, Subcommand)]
pub(crate) enum RouterWhat {
    /// Route a shared-prefix trace in virtual time: what each policy computes.
    Simulate(Box<RouterSimulateArgs>),
}

/// Policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyArg {
    /// The next worker in turn.
    RoundRobin,
    /// Fewest prompt tokens to compute; for decodes, fewest blocks in use.
    LeastLoaded,
    /// Lowest cost by load and cached prefix, as Dynamo.
    KvAware,
}

/// Rules of the router.
#[derive(Debug, Args)]
#[command(next_help_heading = "Rules")]
pub(crate) struct RuleArgs {
    /// Policy.
    #[arg(long, value_enum, default_value = "kv-aware")]
    pub(crate) policy: PolicyArg,
    /// Weight of a block to prefill against a block in use (kv-aware).
    #[arg(long, value_name = "WEIGHT", default_value_t = 1.0)]
    pub(crate) overlap_weight: f64,
    /// Share of the cached prefix that counts, 0 to 1 (kv-aware).
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    pub(crate) overlap_credit: f64,
    /// How fast that share falls with a worker's backlog (kv-aware).
    #[arg(long, value_name = "RATE", default_value_t = 0.0)]
    pub(crate) credit_decay: f64,
    /// Blocks that a request counts for beside its own (kv-aware).
    #[arg(long, value_name = "BLOCKS", default_value_t = 0.0)]
    pub(crate) active_request_weight: f64,
    /// 0 takes the lowest cost; above, softmax (kv-aware).
    #[arg(long, default_value_t = 0.0)]
    pub(crate) temperature: f64,
    /// Prefill prompts with at most this many uncached tokens where they are decoded.
    #[arg(long, value_name = "TOKENS", default_value_t = 0, value_parser = whole)]
    pub(crate) local_prefill_max_tokens: usize,
    /// The same for all prompts while each prefill worker has more than this to compute.
    #[arg(long, value_name = "TOKENS", value_parser = whole)]
    pub(crate) prefill_backlog_max_tokens: Option<usize>,
    /// Never prefill where it is decoded because no prefill worker answers.
    #[arg(long)]
    pub(crate) enforce_disaggregation: bool,
    /// Refuse a request at once when its first token is predicted later than this.
    #[arg(long, value_name = "MS")]
    pub(crate) slo_ttft_ms: Option<Above0>,
    /// Prefill time of a token, until requests have shown it.
    #[arg(long, value_name = "US")]
    pub(crate) prefill_us_per_token: Option<Above0>,
    /// Requests that may wait for a worker; further ones get 429.
    #[arg(long, value_name = "REQUESTS", default_value_t = 256, value_parser = whole)]
    pub(crate) queue_max: usize,
    /// How long a request may wait for a worker.
    #[arg(long, value_name = "MS", default_value_t = 60_000)]
    pub(crate) queue_timeout_ms: u64,
    /// How long a computed prompt waits for room; must be shorter than the workers' lease.
    #[arg(long, value_name = "MS", default_value_t = 2_000)]
    pub(crate) hold_max_ms: u64,
    /// Requests of a prefill worker at a time, fetched ones not counted.
    #[arg(long, value_name = "REQUESTS", default_value_t = 16, value_parser = positive)]
    pub(crate) max_prefills: usize,
    /// Requests of a decode worker at a time.
    #[arg(long, value_name = "REQUESTS", default_value_t = 256, value_parser = positive)]
    pub(crate) max_decodes: usize,
    /// Share of a decode worker's blocks that requests may take.
    #[arg(long, value_name = "SHARE", default_value_t = 0.95)]
    pub(crate) decode_fill_max: f64,
    /// How often a request of which the client has seen nothing starts again.
    #[arg(long, value_name = "TIMES", default_value_t = 2)]
    pub(crate) max_retries: u32,
    /// Knowledge of a cache that is older than this counts for nothing.
    #[arg(long, value_name = "MS", default_value_t = 5_000)]
    pub(crate) max_staleness_ms: u64,
    /// Let workers of role `both` help in the other pool, as Splitwise.
    #[arg(long)]
    pub(crate) rebalance: bool,
    /// Seed of choices at a temperature above 0.
    #[arg(long, default_value_t = 0, value_parser = seed)]
    pub(crate) router_seed: u64,
}

/// Arguments of `router simulate`.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  prefillbench router simulate --groups 24 --questions 12 --blocks 1000 --json")]
pub(crate) struct RouterSimulateArgs {
    /// Prefill workers.
    #[arg(long, default_value_t = 3, value_parser = whole)]
    pub(crate) prefill: usize,
    /// Decode workers.
    #[arg(long, default_value_t = 2, value_parser = whole)]
    pub(crate) decode: usize,
    /// Workers that do both.
    #[arg(long, default_value_t = 0, value_parser = whole)]
    pub(crate) mixed: usize,
    /// Blocks of each worker.
    #[arg(long, default_value_t = 1000, value_parser = positive)]
    pub(crate) blocks: usize,
    /// Tokens in a block.
    #[arg(long, default_value_t = 16, value_parser = positive)]
    pub(crate) block_size: usize,
    /// How often the router reads events; 0: the workers report none.
    #[arg(long, value_name = "MS", default_value_t = 200)]
    pub(crate) events_ms: u64,
    /// System prompts.
    #[arg(long, default_value_t = 24, value_parser = positive)]
    pub(crate) groups: usize,
    /// Questions behind each.
    #[arg(long, default_value_t = 12, value_parser = positive)]
    pub(crate) questions: usize,
    /// Tokens of a system prompt.
    #[arg(long, default_value_t = 1024, value_parser = positive)]
    pub(crate) system_len: usize,
    /// Tokens of a question.
    #[arg(long, default_value_t = 64, value_parser = positive)]
    pub(crate) question_len: usize,
    /// Tokens of an answer.
    #[arg(long, default_value_t = 32, value_parser = positive)]
    pub(crate) output_len: usize,
    /// Requests a second (Poisson).
    #[arg(long, default_value = "12")]
    pub(crate) request_rate: Above0,
    /// Seed of the trace.
    #[arg(long, default_value_t = 1, value_parser = seed)]
    pub(crate) seed: u64,
    /// Print one JSON document.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Workers to start: `1P1D` is one that prefills and one that decodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Topology(pub(crate) Vec<Pool>);

/// Workers beyond this are a typing error on any machine.
const MOST_WORKERS: usize = 64;

impl FromStr for Topology {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "write counts and kinds (P prefill, D decode, M both), as 1P1D or 2P1D1M, with at \
                 least one D or M and at most {MOST_WORKERS} workers"
            )
        };
        let mut pools = Vec::new();
        let mut digits = String::new();
        for character in text.chars() {
            let pool = match character.to_ascii_uppercase() {
                '0'..='9' => {
                    digits.push(character);
                    continue;
                }
                'P' => Pool::Prefill,
                'D' => Pool::Decode,
                'M' => Pool::Mixed,
                _ => return Err(wrong()),
            };
            let count: usize = digits.parse().map_err(|_| wrong())?;
            if count == 0 || pools.len() + count > MOST_WORKERS {
                return Err(wrong());
            }
            pools.extend(std::iter::repeat_n(pool, count));
            digits.clear();
        }
        let serves = pools.iter().any(|pool| *pool != Pool::Prefill);
        if !digits.is_empty() || !serves {
            return Err(wrong());
        }
        Ok(Topology(pools))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topologies() {
        let (p, d, m) = (Pool::Prefill, Pool::Decode, Pool::Mixed);
        for (text, pools) in [
            ("1P1D", vec![p, d]),
            ("2p3d", vec![p, p, d, d, d]),
            ("1P1D1M", vec![p, d, m]),
            ("2M", vec![m, m]),
        ] {
            assert_eq!(text.parse(), Ok(Topology(pools)), "{text}");
        }
        for text in [
            "",
            "1",
            "P",
            "1P",
            "0P1D",
            "1P1D1",
            "1P-1D",
            "65M",
            "99999999999999999999D",
        ] {
            assert!(text.parse::<Topology>().is_err(), "{text}");
        }
    }
}
