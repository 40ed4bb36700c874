//! The settings of a run: flags on the command line, keys with the same names in a suite file.
//!
//! Every option is absent unless it was given, so that a command line can be laid over an arm of
//! a suite and that over the suite's own table; defaults come last, when settings are resolved.

use std::path::PathBuf;

use clap::Args;
use pb_bench::{Objective, Shard, Slo};
use pb_target::ServerKind;
use serde::{Deserialize, Serialize};

use super::names::{
    Api, ArrivalArg, Backend, CacheArg, DatasetName, Format, HttpArg, InputUnit, RampStrategy,
    TraceArrivals, TraceUnit,
};
use super::text::{
    Above0, AtLeast0, IdRange, JsonObject, Nonce, Pair, Positive, Rate, Route, Secret, Share, Text,
    Timeout, Warmup,
};

/// Declares the options once: the struct, and the laying of one over another.
macro_rules! options {
    ($(#[$outer:meta])* pub(crate) struct $name:ident {
        $($(#[$meta:meta])* pub(crate) $field:ident: $type:ty,)*
    }) => {
        $(#[$outer])*
        pub(crate) struct $name {
            $($(#[$meta])* pub(crate) $field: $type,)*
        }

        impl $name {
            /// These options, and those of `base` where these say nothing.
            pub(crate) fn over(self, base: Self) -> Self {
                $name { $($field: self.$field.or(base.$field),)* }
            }
        }
    };
}

options! {
/// Settings of a run; absent where nothing was said.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct BenchOptions {
    /// Address of the server, for example http://127.0.0.1:8000.
    #[arg(long, value_name = "URL", help_heading = TARGET)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) base_url: Option<String>,
    /// Host of the server when there is no --base-url; 127.0.0.1 where --port alone is given.
    #[arg(long, value_name = "HOST", help_heading = TARGET)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<String>,
    /// Port of the server when there is no --base-url; 8000 where --host alone is given.
    #[arg(long, help_heading = TARGET)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<u16>,
    /// Name of the model; default: the first that the server offers.
    #[arg(long, value_parser = super::super::name, help_heading = TARGET)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<String>,
    /// Name that requests carry, when it is not that of --model.
    #[arg(long, value_name = "NAME", value_parser = super::super::name, help_heading = TARGET)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) served_model_name: Option<String>,
    /// Route of the measured requests; default: the usual one of --api.
    #[arg(long, value_name = "PATH", help_heading = TARGET)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) endpoint: Option<Text<Route>>,
    /// Interface; default: completions, or chat when --endpoint ends with chat/completions.
    #[arg(long, value_enum, help_heading = TARGET)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) api: Option<Api>,
    /// Interface by the name that `vllm bench serve` gives it.
    #[arg(long, value_enum, help_heading = TARGET)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) backend: Option<Backend>,
    /// What the server is; default: found out by asking it.
    #[arg(long, value_name = "KIND", value_parser = server_kind, help_heading = TARGET)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) server: Option<ServerKind>,
    /// Version of HTTP; default: 1.1.
    #[arg(long, value_enum, help_heading = TARGET)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) http: Option<HttpArg>,
    /// Keep connections for further requests; default: true, for llama.cpp's server false.
    ///
    /// False: each request makes its own at its instant, and its latency has the time in it.
    #[arg(long, value_name = "BOOL", help_heading = TARGET)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reuse_connections: Option<bool>,
    /// PEM file of root certificates trusted beside the usual ones.
    #[arg(long, value_name = "FILE", help_heading = TARGET)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ca_file: Option<PathBuf>,
    /// Header of every request; may be repeated. Its value is shown nowhere.
    #[arg(long, value_name = "NAME=VALUE", num_args = 1.., help_heading = TARGET)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) header: Option<Vec<Secret>>,
    /// Environment variable that holds the API key.
    #[arg(long, value_name = "NAME", help_heading = TARGET)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) api_key_env: Option<String>,
    /// File that holds the API key.
    #[arg(long, value_name = "FILE", conflicts_with = "api_key_env", help_heading = TARGET)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Seconds for a connection, when a request finds none free; default: 30.
    #[arg(long, value_name = "SECONDS", help_heading = TARGET)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timeout_connect: Option<Text<Timeout>>,
    /// Seconds from sending to the first token; default: 120.
    #[arg(long, value_name = "SECONDS", help_heading = TARGET)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timeout_first_token: Option<Text<Timeout>>,
    /// Seconds of silence in a stream; default: 60.
    #[arg(long, value_name = "SECONDS", help_heading = TARGET)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timeout_idle: Option<Text<Timeout>>,
    /// Seconds from the intended arrival to the end; default: 600.
    #[arg(long, value_name = "SECONDS", help_heading = TARGET)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timeout_total: Option<Text<Timeout>>,

    /// When requests are due.
    ///
    /// Default: poisson with a rate (gamma with --burstiness), closed with --max-concurrency
    ///
    /// alone, trace for a dataset with times, else burst.
    #[arg(long, value_enum, help_heading = LOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) arrival: Option<ArrivalArg>,
    /// Requests per second, or `inf`: all at once; default: inf.
    #[arg(long, value_name = "RATE", help_heading = LOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request_rate: Option<Text<Rate>>,
    /// Shape of the gaps: 1 is Poisson, below 1 burstier, above 1 more regular; default: 1.
    #[arg(long, value_name = "SHAPE", help_heading = LOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) burstiness: Option<Text<Above0>>,
    /// Requests in flight: alone a closed loop of so many slots, with a rate a limit.
    ///
    /// What waits in the client for the limit counts from its intended arrival.
    #[arg(long, value_name = "N", help_heading = LOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_concurrency: Option<Text<Positive>>,
    /// Requests; default: 1000, or with --duration and a rate as many as are due by then.
    #[arg(long, value_name = "N", help_heading = LOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) num_prompts: Option<Text<Positive>>,
    /// No request starts later than this after the start.
    #[arg(long, value_name = "SECONDS", help_heading = LOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) duration: Option<Text<Above0>>,
    /// Stages of rates, separated by commas: RATE:SECONDS, or FROM..TO:SECONDS for a line.
    #[arg(long, value_name = "STAGES", help_heading = LOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ramp: Option<String>,
    /// Let the rate go from --ramp-up-start-rps to --ramp-up-end-rps over the requests.
    #[arg(long, value_enum, help_heading = LOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ramp_up_strategy: Option<RampStrategy>,
    /// Rate at the start of the ramp.
    #[arg(long, value_name = "RATE", help_heading = LOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ramp_up_start_rps: Option<Text<Above0>>,
    /// Rate at its end.
    #[arg(long, value_name = "RATE", help_heading = LOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ramp_up_end_rps: Option<Text<Above0>>,
    /// Requests before the measurement, or seconds of them as in 5s.
    ///
    /// Their rows have the arm `warmup` and enter no number.
    #[arg(long, value_name = "N|SECONDSs", alias = "num-warmups", help_heading = LOAD)]
    #[serde(alias = "num_warmups", skip_serializing_if = "Option::is_none")]
    pub(crate) warmup: Option<Text<Warmup>>,
    /// Send part I of N of the schedule, I from 0; `prefillbench merge` joins the runs.
    #[arg(long, value_name = "I/N", help_heading = LOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) shard: Option<Text<Shard>>,
    /// Seed of the prompts and of the arrivals; default: 1.
    #[arg(long, value_parser = super::super::seed, help_heading = LOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seed: Option<u64>,
    /// Other texts of the prompts for the same lengths and arrivals; default: none.
    ///
    /// So a run that is repeated with its seed does not find its own prompts in the cache.
    #[arg(long, value_name = "TEXT", help_heading = LOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nonce: Option<Text<Nonce>>,

    /// Workload; default: random.
    #[arg(long, value_enum, value_name = "NAME", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dataset_name: Option<DatasetName>,
    /// File of the workload.
    #[arg(long, value_name = "FILE", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dataset_path: Option<PathBuf>,
    /// Any other setting of the workload; may be repeated. docs/WORKLOADS.md lists them.
    #[arg(long, value_name = "KEY=VALUE", num_args = 1.., help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dataset_option: Option<Vec<Text<Pair>>>,
    /// What prompts are sent as; default: ids, for a chat text.
    #[arg(long, value_enum, help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) input_unit: Option<InputUnit>,
    /// Tokenizer of the target: tokenizer.json, a directory with one, or a GGUF file.
    #[arg(long, value_name = "FILE", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tokenizer: Option<PathBuf>,
    /// Allow prompts to come again when there are fewer than requests.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true,
        value_name = "BOOL", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) allow_repeat: Option<bool>,
    /// Length of each prompt, in tokens or words; default: 1024.
    #[arg(long, value_name = "N", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) random_input_len: Option<Text<Positive>>,
    /// Output tokens that each request asks for; default: 128.
    #[arg(long, value_name = "N", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) random_output_len: Option<Text<Positive>>,
    /// Lengths are uniform within so much of themselves; default: 0.
    #[arg(long, value_name = "SHARE", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) random_range_ratio: Option<Text<AtLeast0>>,
    /// Tokens in front of each prompt that all share; default: 0.
    #[arg(long, value_name = "N", value_parser = super::super::whole, help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) random_prefix_len: Option<usize>,
    /// Token ids that prompts are drawn from, the last one excluded; default: 1000..16000.
    #[arg(long, value_name = "LO..HI", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) random_range_ids: Option<Text<IdRange>>,
    /// prefix-repetition: tokens of a prefix; default: 256.
    #[arg(long, value_name = "N", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prefix_repetition_prefix_len: Option<Text<Positive>>,
    /// prefix-repetition: tokens after it; default: 256.
    #[arg(long, value_name = "N", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prefix_repetition_suffix_len: Option<Text<Positive>>,
    /// prefix-repetition: prefixes; default: 10.
    #[arg(long, value_name = "N", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prefix_repetition_num_prefixes: Option<Text<Positive>>,
    /// prefix-repetition: output tokens; default: 128.
    #[arg(long, value_name = "N", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prefix_repetition_output_len: Option<Text<Positive>>,
    /// shared-prefix: groups; default: 64.
    #[arg(long, value_name = "N", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gsp_num_groups: Option<Text<Positive>>,
    /// shared-prefix: prompts of a group; default: 16.
    #[arg(long, value_name = "N", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gsp_prompts_per_group: Option<Text<Positive>>,
    /// shared-prefix: tokens of a group's system prompt; default: 2048.
    #[arg(long, value_name = "N", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gsp_system_prompt_len: Option<Text<Positive>>,
    /// shared-prefix: tokens of a question; default: 128.
    #[arg(long, value_name = "N", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gsp_question_len: Option<Text<Positive>>,
    /// shared-prefix: output tokens; default: 256.
    #[arg(long, value_name = "N", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gsp_output_len: Option<Text<Positive>>,
    /// shared-prefix: lengths are uniform from this share of themselves up; default: 1.
    #[arg(long, value_name = "SHARE", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gsp_range_ratio: Option<Text<Share>>,
    /// shared-prefix: questions of a conversation; default: 1.
    #[arg(long, value_name = "N", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gsp_num_turns: Option<Text<Positive>>,
    /// shared-prefix: one group after the other instead of mixed.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true,
        value_name = "BOOL", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gsp_ordered: Option<bool>,
    /// sharegpt: output tokens; default: as long as the recorded answer.
    #[arg(long, value_name = "N", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sharegpt_output_len: Option<Text<Positive>>,
    /// custom: output tokens where a line has none; default: 256.
    #[arg(long, value_name = "N", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) custom_output_len: Option<Text<Positive>>,
    /// sessions, agent: conversations; default: as the workload has them.
    #[arg(long, value_name = "N", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sessions: Option<Text<Positive>>,
    /// trace: format of the file; default: told by its contents.
    #[arg(long, value_name = "FORMAT", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trace_format: Option<String>,
    /// trace: unit of its times; default: as documented or inferred.
    #[arg(long, value_enum, help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trace_unit: Option<TraceUnit>,
    /// trace: tokens that a name in hash_ids stands for; default: as documented or inferred.
    #[arg(long, value_name = "TOKENS", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trace_block_size: Option<Text<Positive>>,
    /// trace: what becomes of recorded arrivals; default: as-is.
    #[arg(long, value_enum, help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trace_arrivals: Option<TraceArrivals>,
    /// trace: factor on times; below 1 the load is higher than recorded; default: 1.
    #[arg(long, value_name = "FACTOR", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) time_scale: Option<Text<Above0>>,
    /// trace: factor on lengths, for small contexts; blocks stay shared as they are; default: 1.
    #[arg(long, value_name = "FACTOR", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scale_length: Option<Text<Above0>>,
    /// Drop requests whose prompt and output exceed this context, and count them.
    #[arg(long, value_name = "TOKENS", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_model_len: Option<Text<Positive>>,
    /// Make prompts so much shorter as the target's template adds, measured by one request.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true,
        value_name = "BOOL", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) adapt_input: Option<bool>,
    /// trace: conversations as single requests or as sessions (open or sessions).
    #[arg(long, value_name = "HOW", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trace_turns: Option<String>,
    /// Tokens of the target's cache blocks, for the hits that are planned; default: of its kind.
    #[arg(long, value_name = "TOKENS", help_heading = WORKLOAD)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) block_size: Option<Text<Positive>>,

    /// Ask for the whole output length even where the model would stop.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true,
        value_name = "BOOL", help_heading = REQUEST)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ignore_eos: Option<bool>,
    /// Temperature of the answers; default: 0.
    #[arg(long, value_name = "T", help_heading = REQUEST)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) temperature: Option<Text<AtLeast0>>,
    /// Nucleus mass of the answers.
    #[arg(long, value_name = "P", help_heading = REQUEST)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) top_p: Option<Text<Share>>,
    /// Fields of every request body, as a JSON object; a null takes a field away.
    #[arg(long, value_name = "JSON", help_heading = REQUEST)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) extra_body: Option<Text<JsonObject>>,
    /// State of the server's prefix cache; default: asis.
    #[arg(long, value_enum, help_heading = REQUEST)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cache: Option<CacheArg>,

    /// Limits that a good request meets: ttft:MS, itl:MS, tpot:MS, e2el:MS.
    ///
    /// Separated by commas or spaces. itl is the 99th percentile within the request.
    #[arg(long, value_name = "LIMIT", value_delimiter = ',', num_args = 1..,
        help_heading = RESULT)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) goodput: Option<Vec<Text<Objective>>>,
    /// Gates: NAME:MS@SHARE, so much of what was offered meets the limit, or success:SHARE.
    ///
    /// Without a share it is 0.99. A gate that fails makes exit code 1.
    #[arg(long, value_name = "GATE", value_delimiter = ',', num_args = 1..,
        help_heading = RESULT)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) slo: Option<Vec<Text<Slo>>>,
    /// Latencies of the table and the vllm format, separated by commas.
    ///
    /// Of ttft, ttfr, itl, tpot, e2el, event_gap, service_ttft, service_e2el, close, driver_lag.
    #[arg(long, value_name = "NAMES", help_heading = RESULT)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) percentile_metrics: Option<String>,
    /// Percentiles of the table and the vllm format, separated by commas.
    #[arg(long, value_name = "PERCENTILES", help_heading = RESULT)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metric_percentiles: Option<String>,
    /// Leave out the calibration of the client against the ground-truth server.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true,
        value_name = "BOOL", help_heading = RESULT)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) no_calibration: Option<bool>,
    /// Time between two readings of the server's metrics page; default: 1000.
    #[arg(long, value_name = "MS", help_heading = RESULT)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scrape_interval_ms: Option<Text<Positive>>,
    /// The server's metrics page; default: the usual one of its kind.
    #[arg(long, value_name = "URL", help_heading = RESULT)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metrics_url: Option<String>,
    /// Do not read the server's metrics page.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true,
        value_name = "BOOL", help_heading = RESULT)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) no_scrape: Option<bool>,
    /// Run directory to create; default: results/bench-TIME.
    #[arg(long, value_name = "DIR", help_heading = RESULT)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) out: Option<PathBuf>,
    /// Form of the result on standard output; default: table.
    #[arg(long, value_enum, help_heading = RESULT)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) format: Option<Format>,
    /// Write a file as `vllm bench serve` does, beside the run directory.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true,
        value_name = "BOOL", help_heading = RESULT)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) save_result: Option<bool>,
    /// With the lists of every request in that file.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true,
        value_name = "BOOL", help_heading = RESULT)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) save_detailed: Option<bool>,
    /// Directory of that file; default: the current one.
    #[arg(long, value_name = "DIR", help_heading = RESULT)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) result_dir: Option<PathBuf>,
    /// Name of that file; default: as `vllm bench serve` makes it.
    #[arg(long, value_name = "FILE", help_heading = RESULT)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) result_filename: Option<String>,
    /// Label of the run in that file's name; default: the backend.
    #[arg(long, help_heading = RESULT)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<String>,
    /// Facts to keep with the run; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", num_args = 1.., help_heading = RESULT)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<Vec<Text<Pair>>>,
}
}

const TARGET: &str = "Target";
const LOAD: &str = "Load";
const WORKLOAD: &str = "Workload";
const REQUEST: &str = "Requests";
const RESULT: &str = "Measurement and result";

fn server_kind(text: &str) -> Result<ServerKind, String> {
    text.parse()
}
