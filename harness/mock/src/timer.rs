//! Waking up on time.
//!
//! The runtime's timers tick in milliseconds. On Linux an absolute timer of the monotonic clock
//! wakes within tens of microseconds, and the last stretch may be spent asking the clock.

use std::io;

use pb_contract::{Clock, Nanos, WallClock};

/// Waits for instants of the wall clock.
#[derive(Debug)]
pub(crate) struct Timer {
    #[cfg(target_os = "linux")]
    fd: tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>,
    /// Length of the last stretch.
    spin: Nanos,
}

impl Timer {
    /// A timer; must be made inside the runtime that waits for it.
    pub(crate) fn new(spin: Nanos) -> io::Result<Timer> {
        #[cfg(target_os = "linux")]
        {
            use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            // Deprecated for descriptors that may be closed while they are registered. An
            // `OwnedFd` is not, and the replacement would need an unsafe block for the same
            // promise.
            #[allow(deprecated)]
            let fd = tokio::io::unix::AsyncFd::new(fd)?;
            Ok(Timer { fd, spin })
        }
        #[cfg(not(target_os = "linux"))]
        Ok(Timer { spin })
    }

    /// Returns when the instant has come; at once when it lies in the past. Other tasks run
    /// meanwhile, in the last stretch too.
    pub(crate) async fn until(&self, at: Nanos) -> io::Result<()> {
        let asleep_until = at.saturating_sub(self.spin);
        if WallClock.now() < asleep_until {
            self.sleep(asleep_until).await?;
        }
        while WallClock.now() < at {
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    #[cfg(target_os = "linux")]
    async fn sleep(&self, at: Nanos) -> io::Result<()> {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        let value = Timespec {
            tv_sec: (at.0 / 1_000_000_000) as _,
            // A value of zero would disarm the timer.
            tv_nsec: (at.0 % 1_000_000_000).max(1) as _,
        };
        let spec = Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
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

    #[cfg(not(target_os = "linux"))]
    async fn sleep(&self, at: Nanos) -> io::Result<()> {
        tokio::time::sleep(at.saturating_sub(WallClock.now()).to_duration()).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_is_never_early_with_and_without_a_last_stretch() {
        for spin in [Nanos::ZERO, Nanos::from_millis(1), Nanos::from_secs(9)] {
            let timer = Timer::new(spin).unwrap();
            for _ in 0..3 {
                let at = WallClock.now() + Nanos::from_millis(3);
                timer.until(at).await.unwrap();
                assert!(WallClock.now() >= at);
            }
            timer.until(Nanos::ZERO).await.unwrap();
        }
    }
}
