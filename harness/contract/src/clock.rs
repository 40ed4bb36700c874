//! Time, injected.
//!
//! Every duration in this project is an integer count of nanoseconds of one monotonic clock.
//! State machines never read a clock: a shell reads it for them and hands the instant in, so
//! the same code runs under the wall clock and under a virtual one.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// An instant or a duration in integer nanoseconds of the run's monotonic clock.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The zero instant or the empty duration.
    pub const ZERO: Nanos = Nanos(0);

    /// From whole microseconds.
    pub const fn from_micros(us: u64) -> Self {
        Nanos(us * 1_000)
    }

    /// From whole milliseconds.
    pub const fn from_millis(ms: u64) -> Self {
        Nanos(ms * 1_000_000)
    }

    /// From whole seconds.
    pub const fn from_secs(s: u64) -> Self {
        Nanos(s * 1_000_000_000)
    }

    /// From fractional seconds, rounded to the nearest nanosecond; negative and non-finite
    /// values become zero, values past the range saturate.
    pub fn from_secs_f64(s: f64) -> Self {
        Nanos((s * 1e9).round().max(0.0) as u64)
    }

    /// As fractional milliseconds, for display only.
    pub fn as_millis_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// As fractional seconds, for display and for rates only.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// `self - earlier`, or zero when `earlier` is later.
    pub const fn saturating_sub(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }

    /// `self - earlier`, or `None` when `earlier` is later.
    pub fn checked_sub(self, earlier: Nanos) -> Option<Nanos> {
        self.0.checked_sub(earlier.0).map(Nanos)
    }

    /// As a [`std::time::Duration`], for timers.
    pub const fn to_duration(self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0)
    }
}

impl Add for Nanos {
    type Output = Nanos;
    fn add(self, rhs: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(rhs.0))
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, rhs: Nanos) {
        *self = *self + rhs;
    }
}

impl Sub for Nanos {
    type Output = Nanos;
    /// Panics when the result would be negative: an interval that runs backwards is our bug.
    fn sub(self, rhs: Nanos) -> Nanos {
        assert!(self.0 >= rhs.0, "negative interval: {} - {}", self.0, rhs.0);
        Nanos(self.0 - rhs.0)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n < 1_000 => write!(f, "{n} ns"),
            n if n < 1_000_000 => write!(f, "{:.1} us", n as f64 / 1e3),
            n if n < 1_000_000_000 => write!(f, "{:.1} ms", n as f64 / 1e6),
            n => write!(f, "{:.2} s", n as f64 / 1e9),
        }
    }
}

/// A source of monotonic instants.
pub trait Clock: Send + Sync {
    /// The current instant. Never decreases.
    fn now(&self) -> Nanos;
}

/// The machine's monotonic clock (`CLOCK_MONOTONIC`).
///
/// Its origin is the machine's, not the process's, so that instants taken by the harness and by
/// an engine child process on the same machine lie on one axis.
#[derive(Clone, Copy, Debug, Default)]
pub struct WallClock;

impl Clock for WallClock {
    fn now(&self) -> Nanos {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Nanos(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
    }
}

/// A clock that moves only when told to.
#[derive(Debug, Default)]
pub struct VirtualClock {
    now_ns: AtomicU64,
}

impl VirtualClock {
    /// A virtual clock at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the clock to `at`. Panics when `at` lies in the past: an event queue that runs
    /// backwards is our bug.
    pub fn advance_to(&self, at: Nanos) {
        let before = self.now_ns.swap(at.0, Ordering::SeqCst);
        assert!(
            before <= at.0,
            "virtual clock moved back from {before} to {}",
            at.0
        );
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Nanos {
        Nanos(self.now_ns.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_clock_does_not_run_backwards() {
        let clock = WallClock;
        let mut last = clock.now();
        for _ in 0..10_000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
    }

    #[test]
    #[should_panic(expected = "negative interval")]
    fn a_negative_interval_is_a_bug() {
        let _ = Nanos(1) - Nanos(2);
    }

    #[test]
    fn seconds_round_to_the_nearest_nanosecond() {
        assert_eq!(Nanos::from_secs_f64(27.482), Nanos(27_482_000_000));
        assert_eq!(Nanos::from_secs_f64(-1.0), Nanos::ZERO);
    }
}
