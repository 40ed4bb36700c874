//! How far the server is on its way to the end.
//!
//! Ordered, so that whoever waits for one phase is also woken by a later one.

use tokio::sync::watch;

/// Where the server stands; it only ever moves on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Takes requests.
    Serving,
    /// Finishes the requests that it has and takes no more.
    Draining,
    /// The grace period is over: nothing is waited for any longer.
    Ending,
}

/// Waits until the server is at `phase` or past it.
pub(crate) async fn reached(current: &mut watch::Receiver<Phase>, phase: Phase) {
    // An error means that the server is gone, which also ends the wait.
    let _ = current.wait_for(|now| *now >= phase).await;
}
