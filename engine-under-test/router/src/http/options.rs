//! What the caller chooses about the router's HTTP side.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use pb_contract::Nanos;

use super::client::WorkerUrl;
use crate::config::RouterConfig;
use crate::worker::Pool;

/// How to serve.
#[derive(Clone)]
pub struct RouterOptions {
    /// Address to listen on; loopback by default.
    pub host: IpAddr,
    /// Port to listen on; 0 chooses a free one.
    pub port: u16,
    /// The workers and their pools, in order of number.
    pub workers: Vec<(Pool, WorkerUrl)>,
    /// Rules of the router.
    pub router: RouterConfig,
    /// When set, every path but `/health` wants `Authorization: Bearer KEY`.
    pub api_key: Option<String>,
    /// Key that the workers want. Without it they get what the client sent.
    pub worker_key: Option<String>,
    /// Largest request body.
    pub body_limit_bytes: usize,
    /// Bytes of request bodies held at one time, beyond which requests are turned away with 503.
    pub held_bodies_bytes: usize,
    /// How long a request body may take to arrive.
    pub body_timeout_ns: Nanos,
    /// How long the head of a request may take to arrive, and a connection be idle.
    pub head_timeout_ns: Nanos,
    /// Most open connections; further ones wait to be accepted.
    pub max_connections: usize,
    /// How long a connection to a worker may take.
    pub connect_timeout_ns: Nanos,
    /// Longest silence of a worker that has a request.
    pub silence_ns: Nanos,
    /// Largest event of a worker, and largest answer that is not a stream.
    pub answer_limit_bytes: usize,
    /// How often workers are asked how they are and what happened to their caches.
    pub poll_every_ns: Nanos,
    /// Tokens in a block of a worker that does not say.
    pub block_size: usize,
    /// How long running requests may go on after the shutdown signal.
    pub grace_ns: Nanos,
}

impl RouterOptions {
    /// The defaults, for these workers.
    pub fn new(workers: Vec<(Pool, WorkerUrl)>) -> Self {
        RouterOptions {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 0,
            workers,
            router: RouterConfig::default(),
            api_key: None,
            worker_key: None,
            body_limit_bytes: 32 << 20,
            held_bodies_bytes: 128 << 20,
            body_timeout_ns: Nanos::from_secs(30),
            head_timeout_ns: Nanos::from_secs(30),
            max_connections: 4096,
            connect_timeout_ns: Nanos::from_secs(5),
            silence_ns: Nanos::from_secs(300),
            answer_limit_bytes: 16 << 20,
            poll_every_ns: Nanos::from_millis(200),
            block_size: 16,
            grace_ns: Nanos::from_secs(10),
        }
    }
}

/// The keys themselves are left out: options end up in logs.
impl fmt::Debug for RouterOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouterOptions")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("workers", &self.workers)
            .field("router", &self.router)
            .field("api_key_set", &self.api_key.is_some())
            .field("worker_key_set", &self.worker_key.is_some())
            .finish_non_exhaustive()
    }
}
