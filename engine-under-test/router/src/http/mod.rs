//! The router over HTTP: one OpenAI endpoint in front of the workers.
//!
//! Paths: `/v1/completions`, `/v1/chat/completions` (streamed or not), `/v1/models`, `/tokenize`,
//! `/detokenize`, `/reset_prefix_cache` and `/transfers` (of all workers), `/health`, `/metrics`.
//!
//! The body of a request goes to the workers as it came, with `kv_transfer_params` added; see
//! `docs/ROUTER.md` for what is asked of them.

mod ahead;
mod ask;
mod body;
mod client;
mod error;
mod flow;
mod join;
#[cfg(test)]
mod join_tests;
mod naming;
mod options;
mod page;
mod peek;
mod polls;
mod routes;
mod shell;
mod sse;
mod transfers;

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use pb_contract::{Clock, Nanos};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

pub use client::WorkerUrl;
pub use options::RouterOptions;

use self::shell::{Phase, Shared, draining};
use crate::config::ConfigError;
use crate::machine::Router;
use crate::worker::WorkerSpec;

/// Most bytes of a request's head.
const HEAD_BYTES: usize = 64 << 10;

/// How exactly deadlines are kept.
const TICK_NS: Nanos = Nanos::from_millis(20);

/// Why serving did not start.
#[derive(Debug, thiserror::Error)]
pub enum RouterError {
    /// A rule of the router.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Nobody to send requests to.
    #[error("no worker: give at least one with --decode or --mixed")]
    NoWorkers,
    /// Everybody could use the workers' key.
    #[error(
        "the router would use the workers' key for any client: set a key for clients too \
         (--api-key-env)"
    )]
    OpenKey,
    /// A key that no header can carry.
    #[error("a key has characters that a header may not have")]
    Key,
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Bind {
        /// The address asked for.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
}

/// Serves until `shutdown` completes, then lets running requests end within the grace period.
///
/// `ready` is called once with the address, when every worker has been asked once; `say` is told
/// when a worker stops answering or comes back. Must run inside a tokio runtime with timers and
/// networking.
///
/// # Errors
/// See [`RouterError`].
pub async fn serve(
    options: RouterOptions,
    clock: Arc<dyn Clock>,
    say: Box<dyn Fn(&str) + Send + Sync>,
    ready: impl FnOnce(SocketAddr),
    shutdown: impl Future<Output = ()>,
) -> Result<(), RouterError> {
    let router = router_of(&options)?;
    let address = SocketAddr::new(options.host, options.port);
    let bind = |source| RouterError::Bind { address, source };
    let listener = TcpListener::bind(address).await.map_err(bind)?;
    let bound = listener.local_addr().map_err(bind)?;
    let (phase, phases) = watch::channel(Phase::Serving);
    let grace = options.grace_ns.to_duration();
    let workers: Vec<_> = router.workers().iter().map(|worker| worker.id).collect();
    let shared = Arc::new(Shared::new(router, options, clock, phases, say));
    // Dropped with this future, and the tasks with it.
    let mut tasks = JoinSet::new();
    let mut asked = Vec::new();
    for id in workers {
        let (first, seen) = oneshot::channel();
        tasks.spawn(polls::run(Arc::clone(&shared), id, first));
        tasks.spawn(transfers::follow(Arc::clone(&shared), id));
        asked.push(seen);
    }
    tasks.spawn(deadlines(Arc::clone(&shared)));
    for seen in asked {
        // An error means that the poller is gone, and then nobody waits for it.
        let _ = seen.await;
    }
    ready(bound);
    let mut server = pin!(accept(listener, Arc::clone(&shared)));
    tokio::select! {
        () = &mut server => return Ok(()),
        () = shutdown => {}
    }
    phase.send_replace(Phase::Draining);
    // Connections that do not end in time are cut off with the future.
    let _ = timeout(grace, server).await;
    Ok(())
}

fn router_of(options: &RouterOptions) -> Result<Router, RouterError> {
    let decodes = |(pool, _): &(crate::Pool, WorkerUrl)| *pool != crate::Pool::Prefill;
    if !options.workers.iter().any(decodes) {
        return Err(RouterError::NoWorkers);
    }
    if options.worker_key.is_some() && options.api_key.is_none() {
        return Err(RouterError::OpenKey);
    }
    let keys = [&options.worker_key, &options.api_key];
    let plain = |key: &&String| key.chars().all(|c| c.is_ascii_graphic());
    if !keys.into_iter().flatten().all(|key| plain(&key)) {
        return Err(RouterError::Key);
    }
    let mut router = Router::new(options.router.clone())?;
    for (pool, _) in &options.workers {
        router.add_worker(WorkerSpec::new(*pool, options.block_size.max(1)));
    }
    Ok(router)
}

/// Wakes the state machine when only time has passed.
async fn deadlines(shared: Arc<Shared>) {
    let mut ticks = interval(TICK_NS.to_duration());
    loop {
        ticks.tick().await;
        shared.with(|router, now| {
            if router
                .next_deadline()
                .is_some_and(|deadline| now >= deadline)
            {
                router.tick(now);
            }
        });
    }
}

/// Takes connections until the server drains, and serves them to their end.
async fn accept(mut listener: TcpListener, shared: Arc<Shared>) {
    let service = TowerToHyperService::new(routes::router(Arc::clone(&shared)));
    let mut phase = shared.phase.clone();
    let mut connections = JoinSet::new();
    loop {
        let room = connections.len() < shared.options.max_connections.max(1);
        tokio::select! {
            () = draining(&mut phase) => break,
            Some(_) = connections.join_next() => {}
            // The listener itself waits out errors such as a lack of descriptors.
            (stream, _) = Listener::accept(&mut listener), if room => {
                let (service, shared) = (service.clone(), Arc::clone(&shared));
                connections.spawn(connection(stream, service, shared));
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Serves one connection. Its end is the client's business: there is nobody to tell.
async fn connection(
    stream: TcpStream,
    service: TowerToHyperService<axum::Router>,
    shared: Arc<Shared>,
) {
    // A token must not wait in the kernel for the next one.
    drop(stream.set_nodelay(true));
    let mut protocol = http1::Builder::new();
    protocol
        .timer(TokioTimer::new())
        .header_read_timeout(shared.options.head_timeout_ns.to_duration())
        .max_buf_size(HEAD_BYTES);
    let mut connection = pin!(protocol.serve_connection(TokioIo::new(stream), service));
    let mut phase = shared.phase.clone();
    tokio::select! {
        _ = connection.as_mut() => return,
        () = draining(&mut phase) => {}
    }
    connection.as_mut().graceful_shutdown();
    drop(connection.await);
}
