//! The result of a run as one document.

use std::collections::BTreeMap;

use pb_contract::{FailKind, Nanos};
use pb_record::metrics::{Counts, failures};
use serde::Serialize;

use super::tally::{Spread, Stalls, Tally, Tokens};

/// A run whose own delay is above this at the 99th percentile is not valid.
const LAG_LIMIT_MS: f64 = 1.0;

/// The result of a run. What was not measured is null.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Document {
    /// Requests by how they ended; they sum to `offered`.
    pub(crate) counts: Counts,
    /// Requests that did not end well, by kind.
    pub(crate) failures: BTreeMap<FailKind, u64>,
    /// First token after the intended arrival.
    pub(crate) ttft_ms: Option<Spread>,
    /// First event after the intended arrival.
    pub(crate) ttfr_ms: Option<Spread>,
    /// First token after the first byte was sent.
    pub(crate) service_ttft_ms: Option<Spread>,
    /// Token latencies, a bundle spread evenly.
    pub(crate) itl_ms: Option<Spread>,
    /// Gaps between events with tokens.
    pub(crate) event_gap_ms: Option<Spread>,
    /// Time per output token after the first, one value a request.
    pub(crate) tpot_ms: Option<Spread>,
    /// Last token after the intended arrival.
    pub(crate) e2e_ms: Option<Spread>,
    /// First byte sent after the intended arrival.
    pub(crate) driver_lag_ms: Option<Spread>,
    /// Gaps that a reader notices.
    pub(crate) stalls: Stalls,
    /// Token counts.
    pub(crate) tokens: Tokens,
    /// Rates.
    pub(crate) rates: Rates,
    /// The prefix cache.
    pub(crate) cache: Cache,
    /// Whether the numbers may be used.
    pub(crate) validity: Validity,
    /// sha256 of the schedule.
    pub(crate) schedule_sha256: String,
    /// Seed of the schedule.
    pub(crate) seed: u64,
}

/// Rates per second of the run: from its start to the end of the last stream.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Rates {
    /// Requests due; absent when all were due at once.
    pub(crate) offered_rps: Option<f64>,
    /// Requests that ended well.
    pub(crate) achieved_rps: Option<f64>,
    /// Their output tokens.
    pub(crate) output_tps: Option<f64>,
    /// Requests that met every objective; absent when none was named.
    pub(crate) goodput_rps: Option<f64>,
}

/// The prefix cache, as planned and as found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Cache {
    /// `asis`, `cold` or `unproven`.
    pub(crate) state: &'static str,
    /// Prompt tokens planned to be found; absent when the state was not controlled.
    pub(crate) planned_hit_tokens: Option<u64>,
    /// Prompt tokens found; absent when the server does not say.
    pub(crate) measured_hit_tokens: Option<u64>,
    /// Requests whose answer says what was found.
    pub(crate) known_rows: usize,
}

/// Whether the numbers may be used.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Validity {
    /// No reason speaks against it.
    pub(crate) valid: bool,
    /// What speaks against it.
    pub(crate) reasons: Vec<String>,
}

/// What the document needs beside the records.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    /// Start of the schedule.
    pub(crate) start: Nanos,
    /// From the start to the last arrival of an open loop; absent for a closed loop, which offers
    /// until its end.
    pub(crate) arrivals_ns: Option<Nanos>,
    /// The schedule ended before the duration that was asked for.
    pub(crate) exhausted: bool,
    /// The prefix cache.
    pub(crate) cache: Cache,
    /// What is known to be wrong with the cache.
    pub(crate) cache_reasons: Vec<String>,
    /// sha256 of the schedule.
    pub(crate) schedule_sha256: String,
    /// Seed of the schedule.
    pub(crate) seed: u64,
}

impl Document {
    /// The numbers of a run.
    pub(crate) fn new(tally: &Tally, frame: Frame) -> Document {
        let counts = Counts::of(tally.rows());
        let lag = tally.driver_lag();
        let validity = validity(&counts, lag, &frame);
        Document {
            counts,
            failures: failures(tally.rows()),
            ttft_ms: tally.latency(|m| m.ttft_ns),
            ttfr_ms: tally.latency(|m| m.ttfr_ns),
            service_ttft_ms: tally.latency(|m| m.service_ttft_ns),
            itl_ms: tally.itl(),
            event_gap_ms: tally.event_gaps(),
            tpot_ms: tally.latency(|m| m.tpot_ns),
            e2e_ms: tally.latency(|m| m.e2e_ns),
            // A run in which nothing was answered has no percentiles.
            driver_lag_ms: lag.filter(|_| counts.ok > 0),
            stalls: tally.stalls(),
            tokens: tally.tokens(),
            rates: rates(tally, &counts, &frame),
            cache: frame.cache,
            validity,
            schedule_sha256: frame.schedule_sha256,
            seed: frame.seed,
        }
    }

    /// Exit code: 1 when every request failed, 3 when the run is not valid.
    pub(crate) fn exit_code(&self) -> u8 {
        match (self.counts.ok, self.validity.valid) {
            (0, _) => 1,
            (_, false) => 3,
            (_, true) => 0,
        }
    }
}

fn rates(tally: &Tally, counts: &Counts, frame: &Frame) -> Rates {
    let run = tally
        .last_closed()
        .map(|end| end.saturating_sub(frame.start));
    let per_second = |count: u64, span: Option<Nanos>| {
        let seconds = span?.as_secs_f64();
        (seconds > 0.0).then(|| count as f64 / seconds)
    };
    Rates {
        offered_rps: per_second(counts.offered, frame.arrivals_ns.or(run)),
        achieved_rps: per_second(counts.ok, run),
        output_tps: per_second(tally.tokens().output, run),
        goodput_rps: tally.good().and_then(|good| per_second(good, run)),
    }
}

fn validity(counts: &Counts, lag: Option<Spread>, frame: &Frame) -> Validity {
    let mut reasons = Vec::new();
    if let Some(lag) = lag.filter(|lag| lag.p99 > LAG_LIMIT_MS) {
        reasons.push(format!(
            "the client itself was late: driver lag p99 {:.3} ms is above {LAG_LIMIT_MS} ms; lower \
             the rate or free the client's cores",
            lag.p99
        ));
    }
    if frame.exhausted {
        reasons.push(
            "the schedule ended before --duration, so the load was lower than asked for; raise \
             --num-prompts"
                .to_owned(),
        );
    }
    if counts.ok == 0 {
        reasons.push("no request ended well".to_owned());
    }
    if counts.not_offered > 0 {
        reasons.push(format!("{} requests were never sent", counts.not_offered));
    }
    reasons.extend(frame.cache_reasons.iter().cloned());
    Validity {
        valid: reasons.is_empty(),
        reasons,
    }
}
