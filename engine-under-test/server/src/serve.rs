//! Starting, serving and stopping.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use pb_contract::{Clock, Nanos, Stream};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::accept::{self, Limits};
use crate::app::App;
use crate::budget::BodyBudget;
use crate::core_api::Core;
use crate::engine::EngineHandle;
use crate::options::ServerOptions;
use crate::phase::Phase;
use crate::routes;
use crate::text::ModelAssets;
use crate::text_work::TextWork;

/// How long connections may take to deliver the end of aborted requests.
const ABORT_GRACE: Nanos = Nanos::from_secs(2);

/// Why serving did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Bind {
        /// The address asked for.
        address: SocketAddr,
        /// What the system says.
        source: std::io::Error,
    },
    /// The engine thread cannot be started.
    #[error("cannot start the engine thread")]
    Thread(#[source] std::io::Error),
}

/// Serves until `shutdown` completes, then lets running requests end and promised KV be fetched
/// within the grace period, aborts what is left and stops the engine thread.
///
/// `abort` ends all of this at once, whenever it completes: connections are cut off, and the
/// engine thread is left to end after the step that it is in. A caller whose process ends then
/// must not wait for that thread or for work that its runtime still does
/// ([`tokio::runtime::Runtime::shutdown_background`]).
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
    abort: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let address = SocketAddr::new(options.host, options.port);
    let bind = |source| ServeError::Bind { address, source };
    let listener = TcpListener::bind(address).await.map_err(bind)?;
    let bound = listener.local_addr().map_err(bind)?;
    let kv_pool_bytes = core.kv_pool_bytes();
    let identity = core.identity();
    let started = EngineHandle::start(core, Arc::clone(&clock), &options);
    let (engine, config, thread) = started.map_err(ServeError::Thread)?;
    let (phase, phases) = watch::channel(Phase::Serving);
    let limits = Limits {
        connections: options.max_connections,
        head_timeout: options.head_timeout.to_duration(),
    };
    let grace = options.grace;
    let held = options.held_bodies_bytes.max(options.body_limit_bytes);
    let app = App {
        started: clock.now(),
        bodies: BodyBudget::new(held),
        texts: TextWork::new(),
        side_texts: TextWork::new(),
        longest_token_bytes: assets.text.longest_token_bytes(),
        ids: Mutex::new(Stream::new(options.id_seed, "response ids")),
        engine: engine.clone(),
        config,
        kv_pool_bytes,
        identity,
        assets,
        options,
        clock,
        phase: phases.clone(),
    };
    let router = routes::router(Arc::new(app));
    let server = accept::serve(listener, router, limits, phases);
    let mut abort = pin!(abort);
    ready(bound);
    let stopping = Stopping {
        phase,
        engine,
        grace,
    };
    let aborted = stopping.run(server, shutdown, abort.as_mut()).await;
    // Nobody may keep waiting for the engine.
    stopping.phase.send_replace(Phase::Ending);
    stopping.engine.stop();
    if !aborted {
        join(thread, abort).await;
    }
    Ok(())
}

/// What it takes to bring the server to its end.
struct Stopping {
    phase: watch::Sender<Phase>,
    engine: EngineHandle,
    grace: Nanos,
}

impl Stopping {
    /// Serves to the end; true when `abort` brought it.
    async fn run(
        &self,
        server: impl Future<Output = ()>,
        shutdown: impl Future<Output = ()>,
        abort: Pin<&mut impl Future<Output = ()>>,
    ) -> bool {
        let mut server = pin!(server);
        let in_order = async {
            tokio::select! {
                () = &mut server => return,
                () = shutdown => {}
            }
            self.phase.send_replace(Phase::Draining);
            let mut closed = false;
            let drain = async {
                server.as_mut().await;
                closed = true;
                self.given_away().await;
            };
            let drained = timeout(self.grace.to_duration(), drain).await;
            if drained.is_ok() || closed {
                return;
            }
            self.phase.send_replace(Phase::Ending);
            self.engine.abort_all();
            // A client that does not read cannot hold the server up.
            let _ = timeout(ABORT_GRACE.to_duration(), &mut server).await;
        };
        tokio::select! {
            () = in_order => false,
            () = abort => true,
        }
    }
}

/// How often it is looked whether KV is still held.
const LOOK: Nanos = Nanos::from_millis(10);

impl Stopping {
    /// Waits until nobody can want KV from here any more: answers that were given promise it.
    async fn given_away(&self) {
        let holds = || {
            let kv = self.engine.shared().status().kv;
            kv.is_some_and(|kv| kv.exports > 0) && self.engine.dead().is_none()
        };
        while holds() {
            tokio::time::sleep(LOOK.to_duration()).await;
        }
    }
}

/// Waits for the engine thread, which may be in a long step, or until `abort`.
async fn join(thread: JoinHandle<()>, abort: Pin<&mut impl Future<Output = ()>>) {
    let joined = tokio::task::spawn_blocking(move || thread.join());
    tokio::select! {
        joined = joined => assert!(
            matches!(joined, Ok(Ok(()))),
            "the engine thread catches every panic of the core"
        ),
        () = abort => {}
    }
}
