//! The ways in and out of a worker that shares requests with others.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use pb_contract::{Clock, Nanos, Stream, WallClock};
use pb_core::Engine;
use pb_core::disagg::{KvEngine, KvOptions, KvPorts, KvShape, OnFailure};
use pb_server::{Core, KvFacts, KvRole};
use pb_transfer::service::{Dial, KvListener, Remote};
use pb_transfer::{
    Granularity, Mode, MooncakeEngine, MooncakeOptions, NixlOptions, ShmOptions, TcpOptions,
    TransportError,
};

use crate::args::{KvArgs, KvFailure, KvGranularity, KvMode, KvTransport, Role, StreamMin};

/// How long a peer may take to connect, or to take bytes.
const STALL: Duration = Duration::from_secs(10);
/// TCP connections between two workers.
const CONNECTIONS: u32 = 2;
const SHM: ShmOptions = ShmOptions {
    slots: 8,
    slot_bytes: 1 << 20,
    stall: STALL,
};

/// Prompt tokens from which on KV is sent while the prompt is computed, where nothing else is
/// said: from there on the time that a transfer added became less by it, at every length measured
/// (results/transfer/exposed.json). Whole steps gain where a prompt takes more than one.
fn default_stream_min_tokens(granularity: Option<KvGranularity>) -> Option<usize> {
    match granularity {
        None | Some(KvGranularity::Bulk) => None,
        Some(KvGranularity::Chunk) => Some(256),
        Some(KvGranularity::Layer) => Some(64),
    }
}

/// A worker's ways in and out, before it has an engine.
pub(super) struct Worker {
    facts: KvFacts,
    ports: KvPorts,
    options: KvOptions,
    clock: Arc<dyn Clock>,
    seed: u64,
}

impl Worker {
    /// Opens them; none without a role.
    ///
    /// # Errors
    /// What was typed makes no sense, an address cannot be had, or what carries KV is not
    /// installed: all of it is found before any weights are loaded.
    pub(super) fn open(args: &KvArgs) -> Result<Option<Worker>> {
        let Some(role) = args.role else {
            return Ok(None);
        };
        let role = match role {
            Role::Both => KvRole::Both,
            Role::Prefill => KvRole::Prefill,
            Role::Decode => KvRole::Decode,
        };
        let clock: Arc<dyn Clock> = Arc::new(WallClock);
        let seed = fresh_seed();
        let engine_id = format!("{:016x}", Stream::new(seed, "engine id").next_u64());
        let transport = args.kv_transport.unwrap_or(KvTransport::Tcp);
        let (ports, remote) = match transport {
            KvTransport::Tcp => tcp(args, role, &clock)?,
            KvTransport::Nixl => nixl(args, role, &clock)?,
            KvTransport::Mooncake => mooncake(args, role, &clock)?,
            KvTransport::Shm => shm(args, role, &engine_id, &clock)?,
            KvTransport::Local => local(args, role)?,
        };
        let options = options(args)?;
        let facts = KvFacts {
            role,
            engine_id,
            transport: match transport {
                KvTransport::Tcp => "tcp",
                KvTransport::Nixl => "nixl",
                KvTransport::Mooncake => "mooncake",
                KvTransport::Shm => "shm",
                KvTransport::Local => "local",
            },
            remote,
            stream_min_tokens: options.stream_min_tokens.filter(|_| role.hands_off()),
        };
        Ok(Some(Worker {
            facts,
            ports,
            options,
            clock,
            seed,
        }))
    }
}

/// The core of a server: the engine, with transfers when it has a role.
pub(super) fn core(
    worker: Option<Worker>,
    engine: Engine,
    shape: KvShape,
) -> Result<(Box<dyn Core>, Option<KvFacts>)> {
    let Some(worker) = worker else {
        return Ok((Box::new(engine), None));
    };
    let Worker { ports, options, .. } = worker;
    let core = KvEngine::new(engine, shape, ports, &options, &worker.clock, worker.seed);
    Ok((Box::new(core.map_err(|e| anyhow!(e))?), Some(worker.facts)))
}

/// Another one in every process: names of transfers must not be used twice, not even after a
/// restart.
fn fresh_seed() -> u64 {
    // The keys of the standard library's hasher are random.
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_i128(jiff::Timestamp::now().as_nanosecond());
    hasher.write_u32(std::process::id());
    hasher.finish()
}

fn options(args: &KvArgs) -> Result<KvOptions> {
    let defaults = KvOptions::default();
    let default = default_stream_min_tokens(args.kv_granularity);
    let stream_min_tokens = match args.kv_stream_min_tokens {
        None => default,
        Some(StreamMin(Some(tokens))) if default.is_none() => bail!(
            "--kv-stream-min-tokens {tokens}: in bulk nothing is sent before all is computed; give \
             --kv-granularity chunk or layer"
        ),
        Some(StreamMin(min)) => min,
    };
    Ok(KvOptions {
        stream_min_tokens,
        mode: match args.kv_mode {
            None => defaults.mode,
            Some(KvMode::Pull) => Mode::Pull,
            Some(KvMode::Push) => Mode::Push,
        },
        granularity: match args.kv_granularity {
            None => defaults.granularity,
            Some(KvGranularity::Bulk) => Granularity::Bulk,
            Some(KvGranularity::Chunk) => Granularity::Chunk,
            Some(KvGranularity::Layer) => Granularity::Layer,
        },
        on_failure: match args.kv_failure {
            None => defaults.on_failure,
            Some(KvFailure::Recompute) => OnFailure::Recompute,
            Some(KvFailure::Fail) => OnFailure::Fail,
        },
        lease: args.kv_lease_ms.map_or(defaults.lease, Nanos::from_millis),
        ..defaults
    })
}

type Ways = (KvPorts, Option<Remote>);

/// The address of `--kv-listen`.
fn address(args: &KvArgs) -> Result<SocketAddr> {
    let text = listen_text(args);
    let mut found = text
        .to_socket_addrs()
        .with_context(|| format!("--kv-listen {text}: write it as HOST:PORT"))?;
    let at: SocketAddr = found
        .next()
        .ok_or_else(|| anyhow!("--kv-listen {text}: the host has no address"))?;
    if at.ip().is_unspecified() {
        let example = match at.ip() {
            IpAddr::V4(_) => "192.0.2.7",
            IpAddr::V6(_) => "[2001:db8::7]",
        };
        bail!(
            "--kv-listen {text}: other workers are told this address; name the one that they \
             reach, for example {example}:{}",
            at.port()
        );
    }
    Ok(at)
}

fn listen_text(args: &KvArgs) -> &str {
    args.kv_listen.as_deref().unwrap_or("127.0.0.1:0")
}

/// The ends that a role has: where it is claimed from, and how it claims.
fn ends(
    args: &KvArgs,
    role: KvRole,
    listen: impl FnOnce() -> Result<(KvListener, Remote), TransportError>,
    dial: impl FnOnce() -> Dial,
) -> Result<Ways> {
    let mut ports = KvPorts::default();
    let mut remote = None;
    if role.hands_off() {
        let opened = listen().with_context(|| format!("--kv-listen {}", listen_text(args)))?;
        ports.listener = Some(opened.0);
        remote = Some(opened.1);
    }
    if role.takes() {
        ports.dial = Some(dial());
    }
    Ok((ports, remote))
}

fn tcp(args: &KvArgs, role: KvRole, clock: &Arc<dyn Clock>) -> Result<Ways> {
    let at = address(args)?;
    let options = TcpOptions {
        connections: CONNECTIONS,
        stall: STALL,
    };
    let loopback_only = at.ip().is_loopback();
    let listen = || KvListener::tcp(at, STALL, Arc::clone(clock));
    ends(args, role, listen, || Dial::Tcp {
        options,
        loopback_only,
    })
}

fn nixl(args: &KvArgs, role: KvRole, clock: &Arc<dyn Clock>) -> Result<Ways> {
    let at = address(args)?;
    let options = NixlOptions {
        library: args.kv_nixl_library.clone(),
        slots: SHM.slots,
        slot_bytes: SHM.slot_bytes,
        stall: STALL,
    };
    options
        .check()
        .context("--kv-transport nixl, --kv-nixl-library")?;
    let loopback_only = at.ip().is_loopback();
    let listen = || KvListener::nixl(at, options.clone(), Arc::clone(clock));
    ends(args, role, listen, || Dial::Nixl {
        options: options.clone(),
        loopback_only,
    })
}

fn mooncake(args: &KvArgs, role: KvRole, clock: &Arc<dyn Clock>) -> Result<Ways> {
    let at = address(args)?;
    let IpAddr::V4(host) = at.ip() else {
        bail!(
            "--kv-listen {}: Mooncake is reached by IPv4 only; name such an address",
            listen_text(args)
        );
    };
    let engine = MooncakeEngine::start(&args.kv_mooncake_python, host)
        .context("--kv-transport mooncake, --kv-mooncake-python")?;
    let options = MooncakeOptions {
        engine,
        slots: SHM.slots,
        slot_bytes: SHM.slot_bytes,
        stall: STALL,
    };
    let loopback_only = host.is_loopback();
    let listen = || KvListener::mooncake(at, options.clone(), Arc::clone(clock));
    ends(args, role, listen, || Dial::Mooncake {
        options: options.clone(),
        loopback_only,
    })
}

fn shm(args: &KvArgs, role: KvRole, engine_id: &str, clock: &Arc<dyn Clock>) -> Result<Ways> {
    let default = || std::env::temp_dir().join(format!("prefillbench-kv-{engine_id}.sock"));
    let path = args.kv_listen.as_ref().map_or_else(default, PathBuf::from);
    let mut ports = KvPorts::default();
    let mut remote = None;
    if role.hands_off() {
        let opened = KvListener::shm(&path, SHM, Arc::clone(clock))
            .with_context(|| format!("--kv-listen {}", path.display()))?;
        ports.listener = Some(opened.0);
        remote = Some(opened.1);
    }
    if role.takes() {
        ports.dial = Some(Dial::Shm(SHM));
    }
    Ok((ports, remote))
}

fn local(args: &KvArgs, role: KvRole) -> Result<Ways> {
    if role != KvRole::Both {
        bail!(
            "--kv-transport local: moves KV within one process, so it needs --role both; use tcp \
             or shm between workers"
        );
    }
    if let Some(address) = &args.kv_listen {
        bail!("--kv-listen {address}: has no effect with --kv-transport local; leave it out");
    }
    let (peers, listener) = channel();
    let ports = KvPorts {
        listener: Some(KvListener::Local(listener)),
        dial: Some(Dial::Local(peers)),
    };
    let remote = Remote {
        host: "local".to_owned(),
        port: 0,
    };
    Ok((ports, Some(remote)))
}
