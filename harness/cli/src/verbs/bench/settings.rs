//! What a run asks of its target, resolved from the arguments.

use anyhow::{Context, Result, bail};
use pb_contract::Nanos;
use pb_load::Endpoint;
use serde::Serialize;

use super::goodput::Objective;
use crate::args::{Api, BenchArgs, CacheArg, InputUnit};

/// Requests when nothing else says how many.
const PROMPTS: usize = 1000;

/// Requests of an open loop that ends by its duration, at most.
const MAX_PROMPTS: usize = 1_000_000;

/// When requests are due.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Load {
    /// All at once.
    Burst,
    /// At random instants that do not depend on the server.
    Open {
        /// Requests per second.
        rate_per_s: f64,
        /// Shape of the gamma distribution of the gaps.
        burstiness: f64,
    },
    /// Each slot sends its next request at the end of the one before.
    Closed {
        /// Slots.
        streams: usize,
    },
}

/// The resolved settings; part of the manifest.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Settings {
    /// When requests are due.
    pub(crate) load: Load,
    /// Requests, at most.
    pub(crate) num_prompts: usize,
    /// No request starts later than this after the start.
    pub(crate) duration_ns: Option<Nanos>,
    /// Interface.
    pub(crate) api: Api,
    /// Form of the prompts.
    pub(crate) input_unit: InputUnit,
    /// Tokens or words of each prompt.
    pub(crate) input_len: usize,
    /// Tokens that each request asks for.
    pub(crate) output_len: u32,
    /// Token ids of the prompts, the last one excluded.
    pub(crate) ids: (u32, u32),
    /// Whether the end-of-sequence token is ignored.
    pub(crate) ignore_eos: bool,
    /// State of the cache that is asked for.
    pub(crate) cache: CacheArg,
    /// When a request is good.
    pub(crate) objectives: Vec<Objective>,
    /// Seed of the schedule.
    pub(crate) seed: u64,
}

impl Settings {
    /// Resolves the arguments.
    ///
    /// # Errors
    /// Arguments that contradict each other.
    pub(crate) fn new(args: &BenchArgs) -> Result<Settings> {
        let chat_route = |route: &String| route.ends_with("/chat/completions");
        let api = args.api.unwrap_or(match &args.endpoint {
            Some(route) if chat_route(route) => Api::Chat,
            _ => Api::Completions,
        });
        let input_unit = args.input_unit.unwrap_or(match api {
            Api::Completions => InputUnit::Ids,
            Api::Chat => InputUnit::Text,
        });
        if (api, input_unit) == (Api::Chat, InputUnit::Ids) {
            bail!("--input-unit ids: a chat message is a text; use text, or --api completions");
        }
        let load = load(args)?;
        let prompts = match (load, args.duration) {
            (Load::Open { .. }, Some(_)) => MAX_PROMPTS,
            _ => PROMPTS,
        };
        Ok(Settings {
            load,
            num_prompts: args.num_prompts.unwrap_or(prompts),
            duration_ns: args.duration.map(Nanos::from_secs_f64),
            api,
            input_unit,
            input_len: args.random_input_len,
            output_len: u32::try_from(args.random_output_len).context("--random-output-len")?,
            ids: args.random_range_ids,
            ignore_eos: args.ignore_eos,
            cache: args.cache,
            objectives: args.goodput.clone(),
            seed: args.seed,
        })
    }

    /// Connections that are sure to be needed at once, when the plan alone does not show it.
    pub(crate) fn burst_connections(&self) -> Option<usize> {
        (self.load == Load::Burst).then_some(self.num_prompts)
    }
}

fn load(args: &BenchArgs) -> Result<Load> {
    let unlimited = args.request_rate.is_infinite();
    if unlimited && args.burstiness != 1.0 {
        bail!(
            "--burstiness {} shapes the gaps of an open loop: give --request-rate too",
            args.burstiness
        );
    }
    match (args.max_concurrency, unlimited) {
        (Some(_), false) => bail!(
            "--max-concurrency makes a closed loop, which has no --request-rate: leave one out"
        ),
        (Some(streams), true) => Ok(Load::Closed { streams }),
        (None, false) => Ok(Load::Open {
            rate_per_s: args.request_rate,
            burstiness: args.burstiness,
        }),
        (None, true) if args.duration.is_some() => {
            bail!("--duration: give --request-rate or --max-concurrency too")
        }
        (None, true) => Ok(Load::Burst),
    }
}

/// Where the target is and what every request carries.
///
/// # Errors
/// A bad address or header, or an environment variable that is not set.
pub(crate) fn endpoint(args: &BenchArgs) -> Result<Endpoint> {
    let mut endpoint = Endpoint::parse(&args.base_url)?.with_model(&args.model);
    if let Some(route) = &args.endpoint {
        endpoint = endpoint.with_route(route);
    }
    if let Some(name) = &args.api_key_env {
        let key = std::env::var(name)
            .ok()
            .filter(|key| !key.is_empty())
            .with_context(|| format!("--api-key-env {name}: the variable is not set"))?;
        endpoint = endpoint.with_api_key(key);
    }
    for (name, value) in &args.header {
        endpoint = endpoint.with_header(name, value)?;
    }
    Ok(endpoint)
}

/// The command line without the values of headers, which may be keys.
pub(crate) fn shown_command(words: impl IntoIterator<Item = String>) -> Vec<String> {
    let hide = |header: &str| match header.split_once('=') {
        Some((name, _)) => format!("{name}=(hidden)"),
        None => "(hidden)".to_owned(),
    };
    let mut after_header = false;
    let mut shown = Vec::new();
    for word in words {
        let next_is_header = word == "--header";
        shown.push(match word.strip_prefix("--header=") {
            Some(header) => format!("--header={}", hide(header)),
            None if after_header => hide(&word),
            None => word,
        });
        after_header = next_is_header;
    }
    shown
}
