//! The command line of `mock`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use pb_mock::{Dist, Fault};

use super::positive;

/// Arguments of `mock`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  prefillbench mock --ttft-ms 50 --itl-ms 10
  prefillbench mock --ttft-ms lognormal:40,0.5 --itl-ms exp:8 --tokens exp:200
  prefillbench mock --prefill-us-per-token 100 --max-concurrency 8 --log truth.csv
  prefillbench mock --fault status:503:1@10 --fault close:3@7
  prefillbench mock --script worked-stream     five tokens that tell load generators apart
  prefillbench mock --persona llama-cpp:4      timings, slots, cache_prompt
  prefillbench mock --tls-cert cert.pem --tls-key key.pem
  prefillbench mock --replay golden/streams/vllm_chat_stream_usage.json

Times are one number, exp:MEAN or lognormal:MEDIAN,SIGMA. docs/MOCK.md has the format of scripts, \
the faults and the columns of the log. One line with the address is printed when the server is \
ready; port 0 chooses a free one.")]
pub(crate) struct MockArgs {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) host: std::net::IpAddr,
    /// Port to listen on; 0 chooses one.
    #[arg(long, default_value_t = 8000)]
    pub(crate) port: u16,
    /// Name that requests use for the model.
    #[arg(long, default_value = "mock")]
    pub(crate) model: String,
    /// Time to the first token, beside the cost of the prompt.
    #[arg(long, default_value = "50", value_name = "DIST")]
    pub(crate) ttft_ms: Dist,
    /// Time between tokens.
    #[arg(long, default_value = "10", value_name = "DIST")]
    pub(crate) itl_ms: Dist,
    /// Added to the time to the first token for each prompt token that is not cached.
    #[arg(long, default_value_t = 0.0, value_parser = non_negative)]
    pub(crate) prefill_us_per_token: f64,
    /// Tokens after which the model stops by itself; default: only `max_tokens` ends an answer.
    #[arg(long, value_name = "DIST")]
    pub(crate) tokens: Option<Dist>,
    /// Tokens in one event, from the second event on.
    #[arg(long, default_value = "1", value_parser = positive)]
    pub(crate) bundle: usize,
    /// When the response head goes out; `first` sends it with the first event.
    #[arg(long, default_value = "0", value_name = "MS|first", value_parser = head)]
    pub(crate) head_ms: Head,
    /// When the role-only event of a chat goes out; default: with the first token.
    #[arg(long, value_name = "MS", value_parser = non_negative)]
    pub(crate) role_ms: Option<f64>,
    /// Begin chats with their first token instead of a role-only event.
    #[arg(long)]
    pub(crate) no_role: bool,
    /// What the usage says.
    #[arg(long, value_enum, default_value_t = UsageArg::Full)]
    pub(crate) usage: UsageArg,
    /// Form of the events: crlf, no-space, named-events, comments.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "FORMS")]
    pub(crate) sse: Vec<SseArg>,
    /// A wrong answer: KIND[:NUMBER[:NUMBER]][@EVERY]; may be repeated, the first that applies
    /// decides.
    #[arg(long, value_name = "FAULT")]
    pub(crate) fault: Vec<Fault>,
    /// Answers event by event, from a JSON file; `worked-stream` is built in.
    #[arg(long, value_name = "FILE")]
    pub(crate) script: Option<PathBuf>,
    /// Replay a recorded response for requests of its path; may be repeated.
    #[arg(long, value_name = "FILE")]
    pub(crate) replay: Vec<PathBuf>,
    /// How text becomes tokens.
    #[arg(long, value_enum, default_value_t = TokenizerArg::Bytes)]
    pub(crate) tokenizer: TokenizerArg,
    /// Longest prompt plus output in tokens.
    #[arg(long, default_value = "1048576", value_parser = positive)]
    pub(crate) max_model_len: usize,
    /// No pretended prefix cache.
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// Tokens in a block of the pretended prefix cache.
    #[arg(long, default_value = "16", value_parser = positive)]
    pub(crate) block_size: usize,
    /// Blocks in the pretended prefix cache; default: no limit.
    #[arg(long, value_parser = positive)]
    pub(crate) num_blocks: Option<usize>,
    /// Share cached blocks between requests of different `cache_salt`.
    #[arg(long)]
    pub(crate) ignore_salt: bool,
    /// What the reset endpoints do: when-idle, lie, absent, or how many times they refuse.
    #[arg(long, default_value = "when-idle", value_name = "HOW", value_parser = reset)]
    pub(crate) reset: pb_mock::ResetStyle,
    /// Requests served at once; more wait.
    #[arg(long, value_parser = positive)]
    pub(crate) max_concurrency: Option<usize>,
    /// Threads that read and write.
    #[arg(long, default_value = "1", value_parser = positive)]
    pub(crate) threads: usize,
    /// Before an instant, ask the clock for so long instead of sleeping: more exact, and busy.
    #[arg(long, default_value_t = 0)]
    pub(crate) spin_us: u64,
    /// Seed of drawn times and lengths.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Write what was really sent to this CSV file as requests end; `GET /mock/log` has it too.
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
    /// Requests kept for the log; the oldest leave first.
    #[arg(long, default_value_t = 100_000)]
    pub(crate) log_requests: usize,
    /// Whose habits the answers have: vllm, or llama-cpp:SLOTS.
    #[arg(long, default_value = "vllm", value_name = "WHO", value_parser = persona)]
    pub(crate) persona: pb_mock::Persona,
    /// Speak TLS with the certificate chain of this PEM file.
    #[arg(long, value_name = "PEM", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of the certificate, a PEM file.
    #[arg(long, value_name = "PEM", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Stop when standard input closes, so that no server outlives its harness.
    #[arg(long, hide = true)]
    pub(crate) until_stdin_closes: bool,
}

/// When a response head goes out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Head {
    /// That many milliseconds after the request.
    At(f64),
    /// With the first event.
    First,
}

/// What a usage says.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum UsageArg {
    /// Token counts and cached tokens.
    Full,
    /// Cached tokens only when there are any.
    OmitZeroCached,
    /// Token counts without cached tokens.
    NoCached,
    /// No usage.
    Missing,
}

/// Forms of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SseArg {
    /// Lines end with carriage return and line feed.
    Crlf,
    /// No space after the colon.
    NoSpace,
    /// Each event has an event, an id and a retry line.
    NamedEvents,
    /// A comment line before each event.
    Comments,
}

/// How text becomes tokens.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum TokenizerArg {
    /// One token for each byte.
    Bytes,
    /// One token for each word.
    Words,
}

fn non_negative(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err("must be a number of at least 0".into()),
    }
}

fn head(text: &str) -> Result<Head, String> {
    match text {
        "first" => Ok(Head::First),
        _ => non_negative(text)
            .map(Head::At)
            .map_err(|_| "must be a number of milliseconds, or `first`".into()),
    }
}

fn persona(text: &str) -> Result<pb_mock::Persona, String> {
    let (name, slots) = text.split_once(':').unwrap_or((text, "1"));
    match (name, super::positive(slots)) {
        ("vllm", _) if text == "vllm" => Ok(pb_mock::Persona::Vllm),
        ("llama-cpp", Ok(slots)) if slots <= MOST_SLOTS => Ok(pb_mock::Persona::LlamaCpp { slots }),
        _ => Err(format!(
            "must be vllm or llama-cpp:SLOTS with 1 to {MOST_SLOTS} slots"
        )),
    }
}

/// Slots beyond this are a typing error.
const MOST_SLOTS: usize = 4_096;

fn reset(text: &str) -> Result<pb_mock::ResetStyle, String> {
    match text {
        "when-idle" => Ok(pb_mock::ResetStyle::WhenIdle),
        "lie" => Ok(pb_mock::ResetStyle::Lie),
        "absent" => Ok(pb_mock::ResetStyle::Absent),
        _ => text
            .parse()
            .map(pb_mock::ResetStyle::Refuse)
            .map_err(|_| "must be when-idle, lie, absent or a number of refusals".into()),
    }
}
