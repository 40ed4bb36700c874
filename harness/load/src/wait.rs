//! Waiting with limits, at no cost for a stream that flows.
//!
//! A limit for every read would set and clear a timer for every token. One timer is armed for a
//! whole request instead: when it fires, the limit that holds by then decides, and a limit that
//! has moved on arms it again. A stream that never pauses never waits: who reads it asks
//! [`Patience::over`] after each read, with the instant of arrival that the read has anyway.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use pb_contract::{Clock, FailKind, Nanos, WallClock};
use tokio::sync::watch;
use tokio::task::unconstrained;
use tokio::time::Sleep;

/// Why a wait was given up.
pub(crate) type Reason = (FailKind, String);

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
    /// The same switch, to look at without waiting.
    switch: watch::Receiver<bool>,
    /// Both waits know whom to wake.
    registered: bool,
    timer: Pin<Box<Sleep>>,
    /// When the timer fires, at the earliest.
    armed: Nanos,
    /// The end of the whole request.
    deadline: Nanos,
}

impl Patience {
    /// Patience until `deadline`, or until `cut` becomes true.
    pub(crate) fn new(mut cut: watch::Receiver<bool>, deadline: Nanos) -> Patience {
        let switch = cut.clone();
        let cut = async move {
            // A switch that is gone means that the run is gone.
            let _ = cut.wait_for(|on| *on).await;
        };
        let span = deadline.saturating_sub(WallClock.now());
        Patience {
            cut: Box::pin(cut),
            switch,
            registered: false,
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
        // A stream that flows asks once more in the wake-up that ended the wait before.
        let mut same_wake = self.registered;
        poll_fn(|cx| {
            if let Poll::Ready(value) = future.as_mut().poll(cx) {
                return Poll::Ready(Waited::Got(value));
            }
            if std::mem::take(&mut same_wake) && self.is_calm() {
                return Poll::Pending;
            }
            // A future that always finds something to do leaves nothing of what the runtime grants
            // a task in one turn; these are asked all the same.
            if pin!(unconstrained(self.cut.as_mut())).poll(cx).is_ready() {
                return Poll::Ready(self.cut_off(WallClock.now()));
            }
            while pin!(unconstrained(self.timer.as_mut())).poll(cx).is_ready() {
                if WallClock.now() >= at {
                    return Poll::Ready(gave(kind));
                }
                self.arm(at);
            }
            self.registered = true;
            Poll::Pending
        })
        .await
    }

    /// Why what arrived at `at` came too late: the run was cut off, the request's deadline or the
    /// `limit` of this kind had passed.
    pub(crate) fn over(&self, at: Nanos, limit: Nanos, kind: FailKind) -> Option<Reason> {
        let waited = match () {
            () if at >= self.deadline => gave::<()>(FailKind::TimeoutTotal),
            () if at >= limit => gave(kind),
            () if self.is_cut() => self.cut_off(at),
            () => return None,
        };
        match waited {
            Waited::Gave(kind, message) => Some((kind, message)),
            Waited::Got(()) => None,
        }
    }

    /// The end of the whole request.
    pub(crate) fn deadline(&self) -> Nanos {
        self.deadline
    }

    /// The end of the run. A request whose own time was up by then has failed, whatever the run
    /// does at the same instant.
    fn cut_off<T>(&self, now: Nanos) -> Waited<T> {
        if now >= self.deadline {
            return gave(FailKind::TimeoutTotal);
        }
        let message = "still running when the run was cut off".to_owned();
        Waited::Gave(FailKind::Cancelled, message)
    }

    fn is_cut(&self) -> bool {
        // The switch changes once, and one that is gone means that the run is gone.
        !matches!(self.switch.has_changed(), Ok(false))
    }

    /// Neither the switch nor the timer has fired: whichever fires later wakes the task again.
    fn is_calm(&self) -> bool {
        !self.timer.is_elapsed() && !self.is_cut()
    }

    fn arm(&mut self, at: Nanos) {
        self.registered = false;
        let span = at.saturating_sub(WallClock.now());
        self.timer.set(tokio::time::sleep(span.to_duration()));
        self.armed = at;
    }
}

/// Given up because a limit has passed.
fn gave<T>(kind: FailKind) -> Waited<T> {
    Waited::Gave(kind, format!("given up {}", reason_of(kind)))
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

        let mut patience = Patience::new(cut.clone(), soon(60_000));
        switch.send_replace(true);
        let end = patience
            .wait(soon(60_000), FailKind::TimeoutIdle, never())
            .await;
        assert!(matches!(end, Waited::Gave(FailKind::Cancelled, _)));

        // Both at once: the request had its time.
        let mut patience = Patience::new(cut, WallClock.now());
        let end = patience
            .wait(soon(60_000), FailKind::TimeoutIdle, never())
            .await;
        assert!(matches!(end, Waited::Gave(FailKind::TimeoutTotal, _)));
    }

    /// The switch turns, and the timer fires, while the task is awake for another reason.
    #[tokio::test]
    async fn a_stream_that_flows_misses_neither_the_cut_nor_its_limit() {
        let (switch, cut) = watch::channel(false);
        let mut patience = Patience::new(cut.clone(), soon(60_000));
        let mut turn = 0;
        // Pending once, so that both waits are registered; then the switch turns in the wake-up.
        let woken = poll_fn(|cx| {
            turn += 1;
            cx.waker().wake_by_ref();
            if turn < 2 {
                return Poll::Pending;
            }
            switch.send_replace(true);
            Poll::Ready(())
        });
        let got = patience
            .wait(soon(60_000), FailKind::TimeoutIdle, woken)
            .await;
        assert!(matches!(got, Waited::Got(())));
        let end = patience
            .wait(soon(60_000), FailKind::TimeoutIdle, never())
            .await;
        assert!(matches!(end, Waited::Gave(FailKind::Cancelled, _)));

        let (_switch, cut) = watch::channel(false);
        let mut patience = Patience::new(cut, soon(60_000));
        let limit = soon(30);
        let mut turn = 0;
        let slow = poll_fn(|cx| {
            turn += 1;
            cx.waker().wake_by_ref();
            if turn < 2 {
                return Poll::Pending;
            }
            // The limit passes while this task keeps the thread.
            std::thread::sleep(std::time::Duration::from_millis(40));
            Poll::Ready(())
        });
        let got = patience.wait(limit, FailKind::TimeoutIdle, slow).await;
        // A machine so slow that the limit had passed before the second turn may end it there.
        if !matches!(got, Waited::Got(())) {
            assert!(WallClock.now() >= limit);
            return;
        }
        let end = patience.wait(limit, FailKind::TimeoutIdle, never()).await;
        assert!(matches!(end, Waited::Gave(FailKind::TimeoutIdle, _)));
    }

    /// Always busy and never done, as a connection that reads bytes without a meaning: all that
    /// the runtime grants a task in one turn is used up at each poll.
    async fn busy() {
        loop {
            tokio::task::consume_budget().await;
        }
    }

    #[tokio::test]
    async fn what_is_always_busy_ends_by_its_deadline_and_by_the_cut() {
        let (switch, cut) = watch::channel(false);
        let mut patience = Patience::new(cut.clone(), soon(60_000));
        let end = patience.wait(soon(30), FailKind::TimeoutIdle, busy()).await;
        assert!(matches!(end, Waited::Gave(FailKind::TimeoutIdle, _)));
        let mut patience = Patience::new(cut.clone(), soon(30));
        let end = patience
            .wait(soon(60_000), FailKind::TimeoutIdle, busy())
            .await;
        assert!(matches!(end, Waited::Gave(FailKind::TimeoutTotal, _)));
        let mut patience = Patience::new(cut, soon(60_000));
        let turn = async {
            tokio::task::yield_now().await;
            switch.send_replace(true);
        };
        let wait = patience.wait(soon(60_000), FailKind::TimeoutIdle, busy());
        let (end, ()) = tokio::join!(wait, turn);
        assert!(matches!(end, Waited::Gave(FailKind::Cancelled, _)));
    }

    #[test]
    fn what_arrives_is_over_by_its_own_instant() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let _inside = runtime.enter();
        let (switch, cut) = watch::channel(false);
        let deadline = soon(60_000);
        let patience = Patience::new(cut, deadline);
        let over = |at: Nanos, limit: Nanos| {
            let reason = patience.over(at, limit, FailKind::TimeoutFirstToken);
            reason.map(|(kind, _)| kind)
        };
        let (before, limit) = (deadline - Nanos(2), deadline - Nanos(1));
        assert_eq!(over(before, limit), None);
        assert_eq!(over(limit, limit), Some(FailKind::TimeoutFirstToken));
        assert_eq!(over(deadline, limit), Some(FailKind::TimeoutTotal));
        switch.send_replace(true);
        assert_eq!(over(before, limit), Some(FailKind::Cancelled));
        assert_eq!(over(limit, limit), Some(FailKind::TimeoutFirstToken));
    }
}
