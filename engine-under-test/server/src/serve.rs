//! Starting, serving and stopping.

use std::future::{Future, IntoFuture};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex};

use axum::serve::ListenerExt;
use pb_contract::{Clock, Nanos, Stream};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::app::App;
use crate::core_api::Core;
use crate::engine::EngineHandle;
use crate::options::ServerOptions;
use crate::routes;
use crate::text::ModelAssets;

/// How long connections may take to deliver the end of aborted requests.
const ABORT_GRACE: Nanos = Nanos::from_secs(2);

/// Why serving ended early.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The address asked for.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// The engine thread cannot be started.
    #[error("cannot start the engine thread: {0}")]
    Thread(std::io::Error),
    /// Accepting connections failed.
    #[error("serving failed: {0}")]
    Serve(std::io::Error),
}

/// Serves until `shutdown` completes, then lets running requests end within the grace period,
/// aborts what is left and stops the engine thread.
///
/// `ready` is called once with the address that is listened on. Must run inside a tokio runtime
/// with timers and networking.
///
/// # Errors
/// See [`ServeError`].
pub async fn serve(
    core: Box<dyn Core>,
    assets: ModelAssets,
    clock: Arc<dyn Clock>,
    options: ServerOptions,
    ready: impl FnOnce(SocketAddr),
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let address = SocketAddr::new(options.host, options.port);
    let bind = |source| ServeError::Bind { address, source };
    let listener = TcpListener::bind(address).await.map_err(bind)?;
    let bound = listener.local_addr().map_err(bind)?;
    let (step_rows, live) = (options.step_rows, options.max_live_choices);
    let (engine, config, thread) = EngineHandle::start(core, Arc::clone(&clock), step_rows, live)
        .map_err(ServeError::Thread)?;
    let (drain, draining) = watch::channel(false);
    let grace = options.grace;
    let ids = Mutex::new(Stream::new(options.id_seed, "response ids"));
    let started = clock.now();
    let app = App {
        engine: engine.clone(),
        config,
        assets,
        options,
        clock,
        started,
        draining: draining.clone(),
        ids,
    };
    // A token must not wait in the kernel for the next one.
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
    let router = routes::router(Arc::new(app));
    let server = axum::serve(listener, router).with_graceful_shutdown(drained(draining));
    let served = run(
        server.into_future(),
        shutdown,
        &drain,
        &engine,
        grace,
        ready,
        bound,
    )
    .await;
    // Also when serving failed: nobody may keep waiting for the engine.
    drain.send_replace(true);
    engine.stop();
    let joined = tokio::task::spawn_blocking(move || thread.join()).await;
    assert!(
        matches!(joined, Ok(Ok(()))),
        "the engine thread catches every panic of the core"
    );
    served.map_err(ServeError::Serve)
}

async fn run(
    server: impl Future<Output = std::io::Result<()>>,
    shutdown: impl Future<Output = ()>,
    drain: &watch::Sender<bool>,
    engine: &EngineHandle,
    grace: Nanos,
    ready: impl FnOnce(SocketAddr),
    bound: SocketAddr,
) -> std::io::Result<()> {
    let mut server = pin!(server);
    ready(bound);
    tokio::select! {
        served = &mut server => return served,
        () = shutdown => {}
    }
    drain.send_replace(true);
    if let Ok(served) = timeout(grace.to_duration(), &mut server).await {
        return served;
    }
    engine.abort_all();
    // A client that does not read cannot hold the server up.
    timeout(ABORT_GRACE.to_duration(), &mut server)
        .await
        .unwrap_or(Ok(()))
}

async fn drained(mut draining: watch::Receiver<bool>) {
    // An error means that the server is gone, which also ends the wait.
    let _ = draining.wait_for(|draining| *draining).await;
}
