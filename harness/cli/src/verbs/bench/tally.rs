//! From the records of a run to its numbers. Pure: no clock, no file.
//!
//! The definitions of a single request's latencies are those of `pb_record::metrics`. Here they
//! are pooled: over the requests that ended well, because a failure has no latency that means
//! anything, and a fast error would make a server look quick.

use pb_contract::{Nanos, RequestRow, RequestStatus, TokenRow};
use pb_record::metrics::{
    Bundle, RequestMetrics, bundled_tokens, event_gaps, request_metrics, token_itl,
};
use pb_stats::{StallRule, nearest_rank, stalls};
use serde::Serialize;

use super::goodput::{Objective, is_good};

/// A set of latencies, in milliseconds. Percentiles are nearest-rank on the nanosecond values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    /// Samples.
    pub(crate) n: usize,
    /// Mean.
    pub(crate) mean: f64,
    /// Median.
    pub(crate) p50: f64,
    /// 90th percentile.
    pub(crate) p90: f64,
    /// 95th percentile.
    pub(crate) p95: f64,
    /// 99th percentile.
    pub(crate) p99: f64,
    /// 99.9th percentile.
    pub(crate) p999: f64,
    /// Largest.
    pub(crate) max: f64,
}

impl Spread {
    /// Of samples in nanoseconds; nothing when there are none.
    pub(crate) fn of(mut samples_ns: Vec<u64>) -> Option<Spread> {
        samples_ns.sort_unstable();
        let at = |p| nearest_rank(&samples_ns, p).map(ms);
        let sum: u128 = samples_ns.iter().map(|&ns| u128::from(ns)).sum();
        Some(Spread {
            n: samples_ns.len(),
            p50: at(0.5)?,
            p90: at(0.9)?,
            p95: at(0.95)?,
            p99: at(0.99)?,
            p999: at(0.999)?,
            max: at(1.0)?,
            mean: sum as f64 / samples_ns.len() as f64 / 1e6,
        })
    }
}

/// Nanoseconds in milliseconds.
fn ms(ns: u64) -> f64 {
    Nanos(ns).as_millis_f64()
}

/// Gaps that a reader notices: at least 50 ms and five times the median gap.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Stalls {
    /// How many; absent when there was no gap at all.
    pub(crate) count: Option<u64>,
    /// Their sum in ms.
    pub(crate) total_ms: Option<f64>,
    /// Their share of the time of all gaps, 0 to 1.
    pub(crate) share: Option<f64>,
}

/// Token counts over the requests that ended well.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Tokens {
    /// Prompt tokens as planned.
    pub(crate) input_planned: u64,
    /// Prompt tokens as the server counts them; absent when an answer does not say.
    pub(crate) input_served: Option<u64>,
    /// Output tokens: as the server counts them, else as the stream carried them.
    pub(crate) output: u64,
    /// Of `output`, tokens that were counted from the stream because the server does not say.
    pub(crate) output_estimated: u64,
    /// Share of tokens that came in an event with others, 0 to 1.
    pub(crate) bundled_share: Option<f64>,
}

/// The records of a run, as far as its numbers need them.
#[derive(Debug)]
pub(crate) struct Tally {
    rows: Vec<RequestRow>,
    objectives: Vec<Objective>,
    itl_ns: Vec<u64>,
    gaps_ns: Vec<u64>,
    bundled: (u64, u64),
    good: u64,
}

impl Tally {
    /// An empty one; a good request meets `objectives`.
    pub(crate) fn new(objectives: Vec<Objective>) -> Tally {
        Tally {
            rows: Vec::new(),
            objectives,
            itl_ns: Vec::new(),
            gaps_ns: Vec::new(),
            bundled: (0, 0),
            good: 0,
        }
    }

    /// Takes a record in.
    pub(crate) fn add(&mut self, row: RequestRow, tokens: &[TokenRow]) {
        if row.status == RequestStatus::Ok {
            self.itl_ns.extend(token_itl(tokens, Bundle::Even));
            self.gaps_ns
                .extend(event_gaps(tokens).iter().map(|gap| gap.gap_ns));
            let (bundled, all) = bundled_tokens(tokens);
            self.bundled.0 += bundled;
            self.bundled.1 += all;
            self.good += u64::from(is_good(&row, tokens, &self.objectives));
        }
        self.rows.push(row);
    }

    /// All rows, in the order in which their requests ended.
    pub(crate) fn rows(&self) -> &[RequestRow] {
        &self.rows
    }

    /// Requests that ended well.
    pub(crate) fn ok(&self) -> impl Iterator<Item = &RequestRow> {
        let ok = |row: &&RequestRow| row.status == RequestStatus::Ok;
        self.rows.iter().filter(ok)
    }

    /// One latency of every request that ended well and has it.
    pub(crate) fn latency(&self, of: fn(&RequestMetrics) -> Option<u64>) -> Option<Spread> {
        let samples = self.ok().filter_map(|row| of(&request_metrics(row)));
        Spread::of(samples.collect())
    }

    /// The client's own delay, of every request that was sent, however it ended.
    pub(crate) fn driver_lag(&self) -> Option<Spread> {
        let lag = |row| request_metrics(row).driver_lag_ns;
        Spread::of(self.rows.iter().filter_map(lag).collect())
    }

    /// Token latencies, a bundle spread evenly.
    pub(crate) fn itl(&self) -> Option<Spread> {
        Spread::of(self.itl_ns.clone())
    }

    /// Gaps between events with tokens.
    pub(crate) fn event_gaps(&self) -> Option<Spread> {
        Spread::of(self.gaps_ns.clone())
    }

    /// Stalls among the gaps.
    pub(crate) fn stalls(&self) -> Stalls {
        let found = stalls(&self.gaps_ns, StallRule::default());
        let any = found.gaps > 0;
        Stalls {
            count: any.then_some(found.count),
            total_ms: any.then(|| ms(found.total_ns)),
            share: found.time_share,
        }
    }

    /// Token counts.
    pub(crate) fn tokens(&self) -> Tokens {
        let served = |row: &RequestRow| row.prompt_tokens.map(u64::from);
        let any = self.ok().next().is_some();
        let mut tokens = Tokens {
            input_planned: 0,
            input_served: self.ok().map(served).sum::<Option<u64>>().filter(|_| any),
            output: 0,
            output_estimated: 0,
            bundled_share: None,
        };
        for row in self.ok() {
            tokens.input_planned += u64::from(row.prompt_tokens_planned);
            let output = u64::from(row.completion_tokens.unwrap_or(row.streamed_tokens));
            tokens.output += output;
            if row.completion_tokens.is_none() {
                tokens.output_estimated += output;
            }
        }
        let (bundled, all) = self.bundled;
        tokens.bundled_share = (all > 0).then(|| bundled as f64 / all as f64);
        tokens
    }

    /// Requests within every objective; absent when none was named.
    pub(crate) fn good(&self) -> Option<u64> {
        (!self.objectives.is_empty()).then_some(self.good)
    }

    /// When the last stream closed.
    pub(crate) fn last_closed(&self) -> Option<Nanos> {
        self.rows.iter().filter_map(|row| row.closed_ns).max()
    }
}
