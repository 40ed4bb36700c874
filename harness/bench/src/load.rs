//! The load as it became, from the rows: how many requests were in flight, how late they were.

use std::collections::BTreeMap;

use pb_contract::{Nanos, RequestRow};
use serde::{Deserialize, Serialize};

use crate::conditions::LoadFacts;
use crate::distribution::{Distribution, Spread};

/// Largest driver lag at the 99th percentile of a valid run, in ms.
pub const LAG_LIMIT_MS: f64 = 1.0;

/// Largest spread of the send times of requests that are due at the same instant, at the 99th
/// percentile, in ms: one client cannot send a hundred requests at once, but within this
/// (guidellm #1041).
pub const SPREAD_LIMIT_MS: f64 = 5.0;

/// The load that was asked for and what it became.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// What was asked for.
    pub asked: LoadFacts,
    /// Requests sent per second of the arrivals, or of the run of a closed loop.
    pub achieved_rps: Option<f64>,
    /// Most requests in flight at once, from first byte sent to stream closed.
    pub max_in_flight: u64,
    /// Send time after the intended arrival, of requests that are due at the same instant as
    /// others: a burst, the start of a closed loop, ties of a coarse trace.
    pub send_spread_ms: Option<Spread>,
    /// Send time after the intended arrival, of all others that the cap did not hold back.
    pub untied_lag_ms: Option<Spread>,
    /// Requests that waited in the client because the cap of an open loop was reached: their wait
    /// counts into their latencies and is no fault of the client.
    pub held_back: u64,
}

impl Load {
    /// From the rows of a run whose arrivals (or whole time) took `span`.
    pub fn of(rows: &[RequestRow], asked: &LoadFacts, span: Option<Nanos>) -> Load {
        let lags = Lags::of(rows, asked.max_concurrency.filter(|_| asked.capped));
        let sent = rows.iter().filter(|row| row.sent_ns.is_some()).count();
        let seconds = span.map(|span| span.as_secs_f64()).filter(|s| *s > 0.0);
        Load {
            asked: asked.clone(),
            achieved_rps: seconds.map(|seconds| sent as f64 / seconds),
            max_in_flight: max_in_flight(rows),
            send_spread_ms: Distribution::of(lags.tied).spread(),
            untied_lag_ms: Distribution::of(lags.free).spread(),
            held_back: lags.held,
        }
    }
}

/// Driver lags by what they are judged by.
struct Lags {
    tied: Vec<u64>,
    free: Vec<u64>,
    held: u64,
}

impl Lags {
    fn of(rows: &[RequestRow], cap: Option<u64>) -> Lags {
        let mut due: BTreeMap<Nanos, u32> = BTreeMap::new();
        for row in rows {
            *due.entry(row.intended_ns).or_default() += 1;
        }
        let held = cap.map_or_else(|| vec![false; rows.len()], |cap| held_back(rows, cap));
        let mut lags = Lags {
            tied: Vec::new(),
            free: Vec::new(),
            held: held.iter().filter(|held| **held).count() as u64,
        };
        for (row, held) in rows.iter().zip(held) {
            let Some(sent) = row.sent_ns.filter(|_| !held) else {
                continue;
            };
            let lag = sent.saturating_sub(row.intended_ns).0;
            match due[&row.intended_ns] {
                1 => lags.free.push(lag),
                _ => lags.tied.push(lag),
            }
        }
        lags
    }
}

/// For each row whether `cap` requests were in flight or waiting when it was due.
fn held_back(rows: &[RequestRow], cap: u64) -> Vec<bool> {
    let mut order: Vec<usize> = (0..rows.len())
        .filter(|&i| rows[i].sent_ns.is_some())
        .collect();
    order.sort_by_key(|&i| (rows[i].intended_ns, rows[i].request));
    let mut ends: Vec<Nanos> = rows.iter().filter_map(|row| row.closed_ns).collect();
    ends.sort_unstable();
    let (mut held, mut ended) = (vec![false; rows.len()], 0);
    for (before, &i) in order.iter().enumerate() {
        // A request that ended at this very instant holds nobody back.
        ended += ends[ended..].partition_point(|end| *end <= rows[i].intended_ns);
        held[i] = (before.saturating_sub(ended)) as u64 >= cap;
    }
    held
}

/// Most requests in flight at once; one that ends at an instant makes room for one that starts
/// then.
pub(crate) fn max_in_flight(rows: &[RequestRow]) -> u64 {
    in_flight(rows)
        .into_iter()
        .map(|(_, n)| n)
        .max()
        .unwrap_or(0)
}

/// Requests in flight after each change, in order of time. One that never ended stays in flight.
pub fn in_flight(rows: &[RequestRow]) -> Vec<(Nanos, u64)> {
    let never = Nanos(u64::MAX);
    let span = |row: &RequestRow| Some((row.sent_ns?, row.closed_ns.unwrap_or(never)));
    let mut all = steps(rows.iter().filter_map(span));
    all.retain(|(at, _)| *at < never);
    all
}

/// Most of these half-open spans at once.
pub(crate) fn peak(spans: impl IntoIterator<Item = (Nanos, Nanos)>) -> u64 {
    steps(spans).into_iter().map(|(_, n)| n).max().unwrap_or(0)
}

fn steps(spans: impl IntoIterator<Item = (Nanos, Nanos)>) -> Vec<(Nanos, u64)> {
    let ends = |(start, end): (Nanos, Nanos)| [(start, true), (end, false)];
    let some = spans.into_iter().filter(|(start, end)| start < end);
    let mut changes: Vec<(Nanos, bool)> = some.flat_map(ends).collect();
    changes.sort_unstable();
    let mut now = 0_u64;
    let step = |(at, starts)| {
        now = if starts {
            now + 1
        } else {
            now.saturating_sub(1)
        };
        (at, now)
    };
    changes.into_iter().map(step).collect()
}
