//! Waking up on time.
//!
//! The runtime's own timers tick in milliseconds, which is the whole driver lag that a valid run
//! may have. On Linux an absolute timer of the monotonic clock, the clock that all instants come
//! from, wakes the driver within tens of microseconds.

use std::io;

use pb_contract::{Clock, Nanos, WallClock};

/// Waits for instants of the wall clock.
#[derive(Debug)]
pub(crate) struct Timer {
    #[cfg(target_os = "linux")]
    fd: tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>,
}

#[cfg(target_os = "linux")]
impl Timer {
    /// A timer; needs a runtime with I/O enabled.
    pub(crate) fn new() -> io::Result<Timer> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // Deprecated for descriptors that may be closed while they are registered. An `OwnedFd` is
        // not, and the replacement would need an unsafe block for the same promise.
        #[allow(deprecated)]
        let fd = tokio::io::unix::AsyncFd::new(fd)?;
        Ok(Timer { fd })
    }

    /// Returns when the instant has come; at once when it lies in the past.
    pub(crate) async fn until(&self, at: Nanos) -> io::Result<()> {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let value = Timespec {
            tv_sec: (at.0 / 1_000_000_000) as _,
            // A value of zero would disarm the timer.
            tv_nsec: (at.0 % 1_000_000_000).max(1) as _,
        };
        let spec = Itimerspec {
            it_interval: zero,
            it_value: value,
        };
        timerfd_settime(self.fd.get_ref(), TimerfdTimerFlags::ABSTIME, &spec)?;
        while WallClock.now() < at {
            // Readiness may be left from an earlier setting; the clock decides.
            let mut ready = self.fd.readable().await?;
            let mut count = [0u8; 8];
            match rustix::io::read(self.fd.get_ref(), &mut count) {
                Ok(_) => {}
                Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

#[cfg(not(target_os = "linux"))]
impl Timer {
    /// A timer; needs a runtime with time enabled.
    pub(crate) fn new() -> io::Result<Timer> {
        Ok(Timer {})
    }

    /// Returns when the instant has come; at once when it lies in the past.
    pub(crate) async fn until(&self, at: Nanos) -> io::Result<()> {
        tokio::time::sleep(at.saturating_sub(WallClock.now()).to_duration()).await;
        Ok(())
    }
}

/// Waits for a while.
pub(crate) async fn pause(span: Nanos) -> io::Result<()> {
    Timer::new()?.until(WallClock.now() + span).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_wakes_after_the_instant() {
        let timer = Timer::new().unwrap();
        for _ in 0..5 {
            let at = WallClock.now() + Nanos::from_millis(3);
            timer.until(at).await.unwrap();
            // How late belongs to the machine; `bench` measures that and judges by it.
            assert!(WallClock.now() >= at);
        }
        timer.until(Nanos::ZERO).await.unwrap();
    }

    #[tokio::test]
    async fn an_abandoned_wait_does_not_end_the_next_one_early() {
        let timer = Timer::new().unwrap();
        let short = WallClock.now() + Nanos::from_millis(2);
        let never = std::future::pending::<()>();
        tokio::select! {
            result = timer.until(short) => result.unwrap(),
            () = never => {}
        }
        let at = WallClock.now() + Nanos::from_millis(20);
        timer.until(at).await.unwrap();
        assert!(WallClock.now() >= at);
    }
}
