//! What the server pretends to be.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use pb_contract::Nanos;

use crate::dist::Dist;
use crate::fault::Fault;
use crate::recording::Recording;
use crate::script::Script;
use crate::tokens::Tokenizer;

/// Tokens in a block of the pretended prefix cache, as vLLM has them.
pub const DEFAULT_BLOCK_SIZE: usize = 16;

/// Everything that decides what the server answers and when.
#[derive(Clone, Debug)]
pub struct MockOptions {
    /// Address to listen on.
    pub host: IpAddr,
    /// Port to listen on; 0 chooses one.
    pub port: u16,
    /// Threads that read and write; each connection belongs to one of them.
    pub threads: usize,
    /// The last stretch before an instant is spent asking the clock instead of sleeping.
    pub spin_ns: Nanos,
    /// Name that requests use for the model.
    pub model: String,
    /// Longest prompt plus output in tokens.
    pub max_model_len: usize,
    /// How text becomes tokens.
    pub tokenizer: Tokenizer,
    /// Seed of all drawn times and lengths.
    pub seed: u64,
    /// Times and lengths of answers that no script describes.
    pub timing: Timing,
    /// How events are written.
    pub style: Style,
    /// Requests with a wrong answer; the first that applies decides.
    pub faults: Vec<Fault>,
    /// Answers event by event; the first rule that fits a request decides.
    pub script: Option<Script>,
    /// Recorded responses, replayed for requests of their path; they come before the script.
    pub recordings: Vec<Recording>,
    /// The pretended prefix cache.
    pub cache: CacheModel,
    /// Requests served at once; more wait in order of arrival.
    pub max_concurrency: Option<usize>,
    /// Requests whose writes are kept for the log; the oldest leave first.
    pub log_requests: usize,
    /// File to which the log is written as requests end.
    pub log_file: Option<PathBuf>,
    /// Which server's habits the answers have.
    pub persona: Persona,
    /// Speak TLS.
    pub tls: Option<Tls>,
}

impl Default for MockOptions {
    fn default() -> Self {
        MockOptions {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 0,
            threads: 1,
            spin_ns: Nanos::ZERO,
            model: "mock".into(),
            max_model_len: 1 << 20,
            tokenizer: Tokenizer::Bytes,
            seed: 1,
            timing: Timing::default(),
            style: Style::default(),
            faults: Vec::new(),
            script: None,
            recordings: Vec::new(),
            cache: CacheModel::default(),
            max_concurrency: None,
            log_requests: 100_000,
            log_file: None,
            persona: Persona::Vllm,
            tls: None,
        }
    }
}

/// Which server's habits the answers have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Persona {
    /// vLLM: a cache of blocks, usage in an event of its own, `/reset_prefix_cache`.
    #[default]
    Vllm,
    /// llama.cpp's server: one remembered prompt for each slot, reused token by token unless the
    /// request says `cache_prompt: false`; the finish reason in an event of its own, with
    /// `timings`; `/slots` and `/slots/N?action=erase`; as many requests at once as slots.
    LlamaCpp {
        /// Slots.
        slots: usize,
    },
}

/// Certificate and key of a server that encrypts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// PEM file of the certificate chain.
    pub cert: PathBuf,
    /// PEM file of the private key.
    pub key: PathBuf,
}

/// Times and lengths of generated answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// From the request's first byte (or from its turn, when it had to wait) to the first token,
    /// in nanoseconds, beside the cost of the prompt.
    pub ttft_ns: Dist,
    /// Added to the time of the first token for each prompt token that is not cached.
    pub prefill_ns_per_token: f64,
    /// Between consecutive tokens, in nanoseconds.
    pub itl_ns: Dist,
    /// Tokens after which the model stops by itself; none: only `max_tokens` ends an answer. A
    /// request with `ignore_eos` is never stopped by it.
    pub stop_tokens: Option<Dist>,
    /// Tokens when a request names no `max_tokens`.
    pub default_max_tokens: u32,
    /// When the response head goes out (vLLM: at once); none: with the first event, as llama.cpp
    /// does.
    pub head_ns: Option<Nanos>,
    /// When the role-only event of a chat goes out; none: with the first token.
    pub role_ns: Option<Nanos>,
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            ttft_ns: Dist::Fixed(50e6),
            prefill_ns_per_token: 0.0,
            itl_ns: Dist::Fixed(10e6),
            stop_tokens: None,
            default_max_tokens: 16,
            head_ns: Some(Nanos::ZERO),
            role_ns: None,
        }
    }
}

/// How generated events look on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Style {
    /// Tokens in one event.
    pub bundle: u32,
    /// Begin a chat with an event that has a role and no content.
    pub role_first: bool,
    /// What the usage says.
    pub usage: UsageStyle,
    /// End lines with carriage return and line feed.
    pub crlf: bool,
    /// Leave out the space after `data:`.
    pub no_space: bool,
    /// Put an `event:`, an `id:` and a `retry:` line into each event.
    pub named_events: bool,
    /// Put a comment line before each event.
    pub comments: bool,
}

impl Default for Style {
    fn default() -> Self {
        Style {
            bundle: 1,
            role_first: true,
            usage: UsageStyle::Full,
            crlf: false,
            no_space: false,
            named_events: false,
            comments: false,
        }
    }
}

/// What the usage of a response says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageStyle {
    /// Token counts and cached tokens.
    Full,
    /// Cached tokens only when there are any (vllm #44377).
    OmitZeroCached,
    /// Token counts without cached tokens.
    NoCached,
    /// No usage even when it is asked for.
    Missing,
}

/// The pretended prefix cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheModel {
    /// Whether there is one.
    pub enabled: bool,
    /// Tokens in a block.
    pub block_size: usize,
    /// Blocks kept, least recently used leave first; none: all.
    pub blocks: Option<usize>,
    /// Whether `cache_salt` separates requests; a server that forgets it leaks between tenants.
    pub salted: bool,
    /// What the reset endpoint does.
    pub reset: ResetStyle,
}

impl Default for CacheModel {
    fn default() -> Self {
        CacheModel {
            enabled: true,
            block_size: DEFAULT_BLOCK_SIZE,
            blocks: None,
            salted: true,
            reset: ResetStyle::WhenIdle,
        }
    }
}

/// What `/reset_prefix_cache` and `/flush_cache` do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetStyle {
    /// Empties the cache; refused while requests run: `{"success":false}` at status 200, or
    /// status 400 from `/flush_cache`.
    WhenIdle,
    /// Refuses that many times, then as `WhenIdle`.
    Refuse(u32),
    /// Says that it did and does nothing.
    Lie,
    /// There are no such endpoints.
    Absent,
}
