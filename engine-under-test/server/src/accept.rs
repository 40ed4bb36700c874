//! Accepting connections, and how long one may be silent.
//!
//! A connection costs a descriptor and a task before it has said anything, so their number is
//! bounded and each has a limited time to send the head of its next request. Beyond the bound
//! the system's own queue holds new ones: they wait, they are not refused.

use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::phase::{Phase, reached};

/// Most bytes of a request's head, and of what is buffered of a body or an answer.
const BUFFER_BYTES: usize = 64 << 10;

/// Bounds on connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Open at the same time.
    pub(crate) connections: usize,
    /// From the moment a request may begin until its head is complete.
    pub(crate) head_timeout: Duration,
}

/// Serves until the server drains and the last connection has ended. Dropped before that, it
/// cuts the connections off.
pub(crate) async fn serve(
    mut listener: TcpListener,
    router: Router,
    limits: Limits,
    mut phase: watch::Receiver<Phase>,
) {
    let service = TowerToHyperService::new(router);
    let mut connections = JoinSet::new();
    loop {
        let room = connections.len() < limits.connections.max(1);
        tokio::select! {
            () = reached(&mut phase, Phase::Draining) => break,
            Some(_) = connections.join_next() => {}
            // The listener itself waits out errors such as a lack of descriptors.
            (stream, _) = Listener::accept(&mut listener), if room => {
                let service = service.clone();
                connections.spawn(connection(stream, service, limits.head_timeout, phase.clone()));
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Serves one connection. Its end is the client's business: there is nobody to tell.
async fn connection(
    stream: TcpStream,
    service: TowerToHyperService<Router>,
    head_timeout: Duration,
    mut phase: watch::Receiver<Phase>,
) {
    // A token must not wait in the kernel for the next one.
    drop(stream.set_nodelay(true));
    let mut protocol = http1::Builder::new();
    protocol
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .max_buf_size(BUFFER_BYTES);
    let mut connection = pin!(protocol.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        _ = connection.as_mut() => return,
        () = reached(&mut phase, Phase::Draining) => {}
    }
    connection.as_mut().graceful_shutdown();
    drop(connection.await);
}
