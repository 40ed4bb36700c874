//! How late this client sends and reads.
//!
//! The kernel's time of arrival (see [`crate::arrival`]) makes the client's own delay visible:
//! the time that bytes lay in the socket. It is part of no latency, but a client that lags far
//! behind reads several events at once and loses the gaps between them, so it is reported.

use std::sync::atomic::{AtomicU64, Ordering};

use pb_contract::Nanos;
use serde::{Deserialize, Serialize};

use crate::arrival::Received;

/// Buckets in one doubling.
const STEPS: usize = 8;
/// Buckets: eight for each doubling of a count of nanoseconds.
const BUCKETS: usize = 64 * STEPS;

/// Delays of this client, counted into buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lag {
    /// Delays counted.
    pub count: u64,
    /// Median, not more than an eighth above the true value.
    pub p50_ns: Option<Nanos>,
    /// 99th percentile, likewise.
    pub p99_ns: Option<Nanos>,
    /// The longest, likewise.
    pub max_ns: Option<Nanos>,
}

/// Time between arrival and read, over all reads of a run whose arrival the kernel told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadLag {
    /// Reads that brought bytes; those that the kernel did not stamp were stamped after the read.
    pub reads: u64,
    /// Delays of those that the kernel stamped.
    pub kernel: Lag,
}

/// Delays, counted as they happen.
#[derive(Debug)]
pub(crate) struct Lags {
    buckets: Box<[AtomicU64]>,
}

impl Default for Lags {
    fn default() -> Self {
        Lags {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

impl Lags {
    /// Counts a delay.
    pub(crate) fn add(&self, lag: Nanos) {
        self.buckets[bucket(lag)].fetch_add(1, Ordering::Relaxed);
    }

    /// What has been counted so far.
    pub(crate) fn summary(&self) -> Lag {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts: Vec<u64> = self.buckets.iter().map(load).collect();
        let count: u64 = counts.iter().sum();
        let at = |percent: u64| {
            let (rank, mut below) = ((count * percent).div_ceil(100).max(1), 0);
            let reached = |count: &u64| {
                below += count;
                below >= rank
            };
            counts.iter().position(reached).map(upper)
        };
        Lag {
            count,
            p50_ns: at(50),
            p99_ns: at(99),
            max_ns: at(100),
        }
    }
}

/// The reads of a run.
#[derive(Debug, Default)]
pub(crate) struct ReadLags {
    unknown: AtomicU64,
    kernel: Lags,
}

impl ReadLags {
    /// Counts a read.
    pub(crate) fn add(&self, received: &Received) {
        match received.read {
            Some(read) => self.kernel.add(read.saturating_sub(received.at)),
            None => drop(self.unknown.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// What has been counted so far.
    pub(crate) fn summary(&self) -> ReadLag {
        let kernel = self.kernel.summary();
        ReadLag {
            reads: kernel.count + self.unknown.load(Ordering::Relaxed),
            kernel,
        }
    }
}

/// The bucket of a lag: its leading bit and the three bits after it.
fn bucket(lag: Nanos) -> usize {
    let lag = lag.0.max(STEPS as u64);
    let power = lag.ilog2() as usize;
    let step = (lag >> (power - 3)) as usize & (STEPS - 1);
    power * STEPS + step
}

/// The largest lag of a bucket.
fn upper(bucket: usize) -> Nanos {
    let (power, step) = (bucket / STEPS, bucket % STEPS);
    let first = u128::from((STEPS + step + 1) as u64) << power >> 3;
    Nanos(u64::try_from(first - 1).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lag_is_in_a_bucket_that_is_at_most_an_eighth_wide() {
        for lag in [
            8,
            9,
            15,
            16,
            17,
            100,
            999,
            1_000_000,
            u64::MAX / 2,
            u64::MAX,
        ] {
            let top = upper(bucket(Nanos(lag))).0;
            assert!(
                top >= lag && (top - lag) as f64 <= lag as f64 / 8.0,
                "{lag}: {top}"
            );
        }
        // Below the resolution everything is the smallest bucket.
        assert_eq!(upper(bucket(Nanos::ZERO)), Nanos(8));
    }

    #[test]
    fn percentiles_are_nearest_rank_and_absent_without_delays() {
        let lags = ReadLags::default();
        assert_eq!(lags.summary(), ReadLag::default());
        for lag in 1..=100_u64 {
            lags.add(&Received {
                bytes: 1,
                at: Nanos(1_000),
                read: Some(Nanos(1_000 + lag * 1_000)),
            });
        }
        lags.add(&Received {
            bytes: 1,
            at: Nanos(1),
            read: None,
        });
        let summary = lags.summary();
        assert_eq!((summary.reads, summary.kernel.count), (101, 100));
        for (value, exact) in [
            (summary.kernel.p50_ns, 50_000),
            (summary.kernel.p99_ns, 99_000),
            (summary.kernel.max_ns, 100_000),
        ] {
            let value = value.unwrap().0;
            assert!(
                value >= exact && value <= exact * 9 / 8,
                "{value} for {exact}"
            );
        }
    }
}
