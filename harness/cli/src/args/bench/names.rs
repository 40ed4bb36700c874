//! The names that options of `bench` choose from, the same in a suite file.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Api {
    /// `/v1/completions`.
    Completions,
    /// `/v1/chat/completions`.
    Chat,
}

/// Backends by the names that `vllm bench serve` gives to the two interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Backend {
    /// `--api completions`.
    Openai,
    /// `--api completions`.
    Vllm,
    /// `--api chat`.
    OpenaiChat,
}

/// Forms of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum InputUnit {
    /// Token ids, which the server takes as they are.
    Ids,
    /// Words, which the server turns into tokens.
    Text,
}

/// States of the cache that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CacheArg {
    /// Nothing is done and nothing is claimed.
    Asis,
    /// Emptied, or its keys salted, and shown to hold nothing.
    Cold,
    /// Made cold, then given every prompt that the workload repeats, and shown to hold it.
    Warm,
}

/// When requests are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ArrivalArg {
    /// Exponential gaps at --request-rate.
    Poisson,
    /// Gamma gaps at --request-rate, of shape --burstiness.
    Gamma,
    /// Equal gaps at --request-rate.
    Constant,
    /// All at once.
    Burst,
    /// As the trace says.
    Trace,
    /// Each of --max-concurrency slots sends its next request when one ends.
    Closed,
}

/// How a rate goes from its start to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RampStrategy {
    /// By the same number each second.
    Linear,
    /// By the same factor each second.
    Exponential,
}

/// Workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum DatasetName {
    /// Prompts that share nothing.
    Random,
    /// Groups with a common system prompt (SGLang's generated-shared-prefix).
    #[value(alias = "generated-shared-prefix")]
    #[serde(alias = "generated-shared-prefix")]
    SharedPrefix,
    /// Prefixes that come again and again (vLLM's prefix_repetition).
    #[value(alias = "prefix_repetition")]
    #[serde(alias = "prefix_repetition")]
    PrefixRepetition,
    /// Conversations with growing history.
    Sessions,
    /// Agents: a growing prefix and the times that tools take.
    Agent,
    /// Background decodes and long prompts that come into them.
    Interference,
    /// Prompts that share nothing, with lengths from distributions.
    Synthetic,
    /// A ShareGPT file.
    Sharegpt,
    /// A file of prompts, one JSON object a line.
    Custom,
    /// A file of times and lengths (vLLM's timed_trace).
    #[value(alias = "timed_trace")]
    #[serde(alias = "timed_trace")]
    TimedTrace,
    /// A recorded workload in any format that `prefillbench trace` reads.
    Trace,
    /// ServeGen's client models.
    Servegen,
}

impl DatasetName {
    /// The name as a user writes it.
    pub(crate) fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Units of a trace's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TraceUnit {
    /// Seconds.
    S,
    /// Milliseconds.
    Ms,
    /// Microseconds.
    Us,
    /// Nanoseconds.
    Ns,
}

/// What becomes of recorded arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TraceArrivals {
    /// As recorded.
    AsIs,
    /// Uniform within the recorder's bins, seeded.
    Spread,
}

/// Versions of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub(crate) enum HttpArg {
    /// HTTP/1.1.
    #[value(name = "1.1")]
    #[serde(rename = "1.1")]
    Http1,
    /// HTTP/2.
    #[value(name = "2")]
    #[serde(rename = "2")]
    Http2,
}

/// Forms of the result on standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Format {
    /// A table for people.
    Table,
    /// The document, as JSON.
    Json,
    /// metric,statistic,value,unit.
    Csv,
    /// The keys that `vllm bench serve` saves.
    Vllm,
}
