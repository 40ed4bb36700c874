//! What the caller chooses about the server, as against what it chooses about the engine.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use pb_contract::Nanos;

use crate::kv::KvFacts;

/// How to serve.
#[derive(Clone)]
pub struct ServerOptions {
    /// Address to listen on; loopback by default.
    pub host: IpAddr,
    /// Port to listen on; 0 chooses a free one.
    pub port: u16,
    /// Name that requests call the model by.
    pub model_name: String,
    /// When set, every path but `/health` wants `Authorization: Bearer KEY`.
    pub api_key: Option<String>,
    /// Largest request body.
    pub body_limit_bytes: usize,
    /// Largest request body of `/tokenize` and `/detokenize`, whose work no context length bounds.
    pub text_limit_bytes: usize,
    /// Bytes of request bodies held at one time, beyond which requests are turned away with 503;
    /// at least one body of the largest size always fits.
    pub held_bodies_bytes: usize,
    /// How long a request body may take to arrive.
    pub body_timeout: Nanos,
    /// How long the head of a request may take to arrive. On a kept connection the time runs from
    /// the end of the answer before, so this is also how long a connection may be idle.
    pub head_timeout: Nanos,
    /// Most open connections; further ones wait to be accepted.
    pub max_connections: usize,
    /// Most candidates that `logprobs` and its kin may ask for.
    pub max_logprobs: u32,
    /// Most choices of one request (prompts times `n`).
    pub max_choices: usize,
    /// Choices in flight beyond which requests are turned away with 503.
    pub max_live_choices: usize,
    /// Step rows kept for `/steps/stream`.
    pub step_rows: usize,
    /// How long running requests may go on after the shutdown signal.
    pub grace: Nanos,
    /// Calendar time at the start, in Unix seconds; the caller reads the calendar so that this
    /// crate does not have to.
    pub unix_at_start_s: u64,
    /// Seed of the response ids.
    pub id_seed: u64,
    /// How the server takes part in disaggregation, if it does; the core must be able to.
    pub kv: Option<KvFacts>,
    /// Changes of the prefix cache and rows of transfers kept for those who ask.
    pub kv_rows: usize,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 0,
            model_name: "model".to_owned(),
            api_key: None,
            body_limit_bytes: 32 << 20,
            text_limit_bytes: 2 << 20,
            held_bodies_bytes: 128 << 20,
            body_timeout: Nanos::from_secs(30),
            head_timeout: Nanos::from_secs(30),
            max_connections: 4096,
            max_logprobs: 20,
            max_choices: 256,
            max_live_choices: 4096,
            step_rows: 65_536,
            grace: Nanos::from_secs(10),
            unix_at_start_s: 0,
            id_seed: 0,
            kv: None,
            kv_rows: 65_536,
        }
    }
}

/// The key itself is left out: options end up in logs.
impl fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerOptions")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("model_name", &self.model_name)
            .field("api_key_set", &self.api_key.is_some())
            .field("body_limit_bytes", &self.body_limit_bytes)
            .field("text_limit_bytes", &self.text_limit_bytes)
            .field("held_bodies_bytes", &self.held_bodies_bytes)
            .field("body_timeout", &self.body_timeout)
            .field("head_timeout", &self.head_timeout)
            .field("max_connections", &self.max_connections)
            .field("max_logprobs", &self.max_logprobs)
            .field("max_choices", &self.max_choices)
            .field("max_live_choices", &self.max_live_choices)
            .field("step_rows", &self.step_rows)
            .field("grace", &self.grace)
            .field("unix_at_start_s", &self.unix_at_start_s)
            .field("id_seed", &self.id_seed)
            .field("kv", &self.kv)
            .field("kv_rows", &self.kv_rows)
            .finish()
    }
}
