//! Waiting with limits, at no cost for a stream that flows.
//!
//! A limit for every read would set and clear a timer for every token. One timer is armed for a
//! whole request instead: when it fires, the limit that holds by then decides, and a limit that
//! has moved on arms it again.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use pb_contract::{Clock, FailKind, Nanos, WallClock};
use tokio::sync::watch;
use tokio::time::Sleep;

/// The end of a wait.
#[derive(Debug)]
pub(crate) enum Waited<T> {
    /// What was waited for.
    Got(T),
    /// Given up, with the reason.
    Gave(FailKind, String),
}

/// The patience of one request.
pub(crate) struct Patience {
    /// Ends when running requests are to be given up.
    cut: Pin<Box<dyn Future<Output = ()> + Send>>,
    timer: Pin<Box<Sleep>>,
    /// When the timer fires, at the earliest.
    armed: Nanos,
    /// The end of the whole request.
    deadline: Nanos,
}

impl Patience {
    /// Patience until `deadline`, or until `cut` becomes true.
    pub(crate) fn new(mut cut: watch::Receiver<bool>, deadline: Nanos) -> Patience {
        let cut = async move {
            // A switch that is gone means that the run is gone.
            let _ = cut.wait_for(|on| *on).await;
        };
        let span = deadline.saturating_sub(WallClock.now());
        Patience {
            cut: Box::pin(cut),
            timer: Box::pin(tokio::time::sleep(span.to_duration())),
            armed: deadline,
            deadline,
        }
    }

    /// Waits for `future` until `limit`, the request's deadline or the end of the run. After
    /// `Gave` nothing is to be waited for any more.
    pub(crate) async fn wait<T>(
        &mut self,
        limit: Nanos,
        kind: FailKind,
        future: impl Future<Output = T>,
    ) -> Waited<T> {
        let (at, kind) = if self.deadline < limit {
            (self.deadline, FailKind::TimeoutTotal)
        } else {
            (limit, kind)
        };
        if at < self.armed {
            self.arm(at);
        }
        let mut future = pin!(future);
        poll_fn(|cx| {
            if let Poll::Ready(value) = future.as_mut().poll(cx) {
                return Poll::Ready(Waited::Got(value));
            }
            if self.cut.as_mut().poll(cx).is_ready() {
                let message = "still running when the run was cut off".to_owned();
                return Poll::Ready(Waited::Gave(FailKind::Cancelled, message));
            }
            while self.timer.as_mut().poll(cx).is_ready() {
                if WallClock.now() >= at {
                    let message = format!("given up {}", reason_of(kind));
                    return Poll::Ready(Waited::Gave(kind, message));
                }
                self.arm(at);
            }
            Poll::Pending
        })
        .await
    }

    fn arm(&mut self, at: Nanos) {
        let span = at.saturating_sub(WallClock.now());
        self.timer.set(tokio::time::sleep(span.to_duration()));
        self.armed = at;
    }
}

fn reason_of(kind: FailKind) -> &'static str {
    match kind {
        FailKind::TimeoutFirstToken => "without a first token in time",
        FailKind::TimeoutIdle => "after the stream had been silent too long",
        FailKind::TimeoutTotal => "after the limit of the whole request",
        _ => "without a connection in time",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn never() {
        std::future::pending().await
    }

    fn soon(ms: u64) -> Nanos {
        WallClock.now() + Nanos::from_millis(ms)
    }

    #[tokio::test]
    async fn a_limit_that_moves_on_does_not_fire_at_its_old_place() {
        let (_switch, cut) = watch::channel(false);
        let mut patience = Patience::new(cut, soon(60_000));
        // Arms the timer for 20 ms, then waits on with a later limit.
        let quick = patience
            .wait(soon(20), FailKind::TimeoutIdle, async {})
            .await;
        assert!(matches!(quick, Waited::Got(())));
        let at = soon(80);
        let end = patience.wait(at, FailKind::TimeoutIdle, never()).await;
        assert!(WallClock.now() >= at);
        assert!(matches!(end, Waited::Gave(FailKind::TimeoutIdle, _)));
    }

    #[tokio::test]
    async fn the_deadline_and_the_cut_end_every_wait() {
        let (switch, cut) = watch::channel(false);
        let mut patience = Patience::new(cut.clone(), soon(20));
        let end = patience
            .wait(soon(60_000), FailKind::TimeoutIdle, never())
            .await;
        assert!(matches!(end, Waited::Gave(FailKind::TimeoutTotal, _)));

        let mut patience = Patience::new(cut, soon(60_000));
        switch.send_replace(true);
        let end = patience
            .wait(soon(60_000), FailKind::TimeoutIdle, never())
            .await;
        assert!(matches!(end, Waited::Gave(FailKind::Cancelled, _)));
    }
}
