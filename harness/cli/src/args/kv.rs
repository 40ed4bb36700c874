//! The part of the command line of `serve` that is about other workers.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};

/// What a worker does of other workers' requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// Computes prompts for others, and goes on with theirs.
    Both,
    /// Computes prompts for others.
    Prefill,
    /// Goes on with others' prompts.
    Decode,
}

/// What carries KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvTransport {
    /// Sockets.
    Tcp,
    /// Shared memory of one machine.
    Shm,
    /// NIXL: RDMA, shared memory or sockets, as UCX chooses.
    Nixl,
    /// Mooncake's transfer engine, over sockets.
    Mooncake,
    /// This process.
    Local,
}

/// Who sets the pace of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvMode {
    /// The decode worker, a window at a time.
    Pull,
    /// The prefill worker, once the other has room.
    Push,
}

/// What is sent as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvGranularity {
    /// All of it.
    Bulk,
    /// Block by block.
    Chunk,
    /// Layer by layer.
    Layer,
}

/// From how many prompt tokens on KV is sent while the prompt is computed; none: never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamMin(pub(crate) Option<usize>);

impl FromStr for StreamMin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(StreamMin(None)),
            _ => super::whole(text)
                .map(|tokens| StreamMin(Some(tokens)))
                .map_err(|why| format!("{why}; or off")),
        }
    }
}

/// What becomes of a request whose KV does not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvFailure {
    /// Its prompt is computed here.
    Recompute,
    /// It fails with 503.
    Fail,
}

/// Prefill and decode on different workers.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Disaggregation")]
pub(crate) struct KvArgs {
    /// Take part in disaggregation: what is done here of requests that several workers share.
    #[arg(long, value_enum)]
    pub(crate) role: Option<Role>,
    /// Where KV is claimed: HOST:PORT [default: 127.0.0.1:0], with shm a path [default: one in the
    /// temporary directory]. A worker on a loopback address fetches from loopback only.
    #[arg(long, value_name = "ADDRESS", requires = "role")]
    pub(crate) kv_listen: Option<String>,
    /// What carries KV; the same on all workers [default: tcp].
    #[arg(long, value_enum, requires = "role")]
    pub(crate) kv_transport: Option<KvTransport>,
    /// With nixl: its libnixl_capi.so. NIXL_PLUGIN_DIR must name its plugins.
    #[arg(
        long,
        value_name = "FILE",
        env = "PB_NIXL_LIBRARY",
        hide_env_values = true,
        default_value = "libnixl_capi.so"
    )]
    pub(crate) kv_nixl_library: PathBuf,
    /// With mooncake: the Python that has it.
    #[arg(
        long,
        value_name = "FILE",
        env = "PB_MOONCAKE_PYTHON",
        hide_env_values = true,
        default_value = "python3"
    )]
    pub(crate) kv_mooncake_python: PathBuf,
    /// Who sets the pace of what is sent from here [default: pull].
    #[arg(long, value_enum, requires = "role")]
    pub(crate) kv_mode: Option<KvMode>,
    /// What is sent from here as one [default: bulk].
    #[arg(long, value_enum, requires = "role")]
    pub(crate) kv_granularity: Option<KvGranularity>,
    /// Send KV while the prompt is computed, from so many prompt tokens on; off: never [default:
    /// 256 with --kv-granularity chunk, 64 with layer, else off].
    #[arg(long, value_name = "TOKENS", requires = "role")]
    pub(crate) kv_stream_min_tokens: Option<StreamMin>,
    /// What becomes of a request whose KV does not come [default: recompute].
    #[arg(long, value_enum, requires = "role")]
    pub(crate) kv_failure: Option<KvFailure>,
    /// How long KV is held after anything was last heard of it [default: 30000].
    #[arg(
        long,
        value_name = "MS",
        requires = "role",
        value_parser = clap::value_parser!(u64).range(1..=86_400_000)
    )]
    pub(crate) kv_lease_ms: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds() {
        assert_eq!("off".parse(), Ok(StreamMin(None)));
        assert_eq!("0".parse(), Ok(StreamMin(Some(0))));
        for text in ["", "-1", "1.5", "never"] {
            let error = text.parse::<StreamMin>().unwrap_err();
            assert!(error.ends_with("or off"), "{error}");
        }
    }
}
