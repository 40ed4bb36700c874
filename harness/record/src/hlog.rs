//! HdrHistogram interval logs, for other tools and for merging.
//!
//! Verdicts use the raw nanosecond values; a histogram is a lossy export (3 significant digits,
//! 1 us to 1 h, never resized). Values outside that range are clamped to its ends and counted, so
//! that the loss is visible. One log a metric; the tag is the arm, an interval is a block.
//! Values are nanoseconds; the log's own maxima are milliseconds, as other writers have them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use base64::Engine;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::interval_log::{
    IntervalLogIterator, IntervalLogWriterBuilder, LogEntry, Tag,
};
use hdrhistogram::serialization::{Deserializer, V2DeflateSerializer};
use pb_contract::{Nanos, RequestRow, RequestStatus, TokenRow};
use serde::{Deserialize, Serialize};

use crate::atomic::write_atomic;
use crate::error::RecordError;
use crate::metrics::{Bundle, Repeated, counted_itl, event_gaps, request_metrics};
use crate::reader::RunData;

/// Smallest value that is told apart from zero: 1 us.
pub const LOWEST_NS: u64 = 1_000;
/// Largest value: 1 h.
pub const HIGHEST_NS: u64 = 3_600_000_000_000;
/// Significant decimal digits.
pub const DIGITS: u8 = 3;

/// Files of the logs.
const FILES: [&str; 5] = [
    "ttft.hlog",
    "itl.hlog",
    "event_gap.hlog",
    "tpot.hlog",
    "e2e.hlog",
];

/// What went into a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HlogCounts {
    /// Values.
    pub values: u64,
    /// Of these, values above 1 h, recorded as 1 h.
    pub saturated: u64,
    /// Of these, values below 1 us, recorded as 0 or 1 us.
    pub below: u64,
}

/// What went into the logs of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HlogReport {
    /// `ttft.hlog`.
    pub ttft: HlogCounts,
    /// `itl.hlog`: token latencies, bundles spread evenly.
    pub itl: HlogCounts,
    /// `event_gap.hlog`.
    #[serde(default)]
    pub event_gap: HlogCounts,
    /// `tpot.hlog`.
    #[serde(default)]
    pub tpot: HlogCounts,
    /// `e2e.hlog`.
    #[serde(default)]
    pub e2e: HlogCounts,
}

/// Values of one arm in one block, with the span of time that they come from.
#[derive(Clone, Debug)]
struct Interval {
    start: Nanos,
    end: Nanos,
    histogram: Histogram<u64>,
}

/// One log under construction; intervals by `(block, arm)`.
#[derive(Clone, Debug, Default)]
struct Log {
    intervals: BTreeMap<(u32, String), Interval>,
    counts: HlogCounts,
}

impl Log {
    fn add(
        &mut self,
        row: &RequestRow,
        values: impl IntoIterator<Item = Repeated>,
    ) -> Result<(), String> {
        let key = (row.block, row.arm.clone());
        if !self.intervals.contains_key(&key) {
            let histogram = Histogram::new_with_bounds(LOWEST_NS, HIGHEST_NS, DIGITS)
                .map_err(|error| error.to_string())?;
            let interval = Interval {
                start: row.intended_ns,
                end: row.intended_ns,
                histogram,
            };
            self.intervals.insert(key.clone(), interval);
        }
        let Some(interval) = self.intervals.get_mut(&key) else {
            return Ok(());
        };
        interval.start = interval.start.min(row.intended_ns);
        interval.end = interval.end.max(row.closed_ns.unwrap_or(row.intended_ns));
        for Repeated { ns, count } in values {
            let count_if = |condition: bool| if condition { count } else { 0 };
            self.counts.values = self.counts.values.saturating_add(count);
            let saturated = count_if(ns > HIGHEST_NS);
            self.counts.saturated = self.counts.saturated.saturating_add(saturated);
            self.counts.below = self.counts.below.saturating_add(count_if(ns < LOWEST_NS));
            interval
                .histogram
                .saturating_record_n(ns.min(HIGHEST_NS), count);
        }
        Ok(())
    }

    /// The bytes of the log. Timestamps count from the first arrival of the run.
    fn render(&self, created: &str) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        let mut serializer = V2DeflateSerializer::new();
        let mut ordered: Vec<_> = self.intervals.iter().collect();
        ordered.sort_by_key(|(key, interval)| (interval.start, *key));
        let origin = ordered.first().map_or(Nanos(0), |(_, first)| first.start);
        let mut log = IntervalLogWriterBuilder::new()
            .add_comment("[Histogram log format version 1.3]")
            .add_comment(&format!(
                "[seconds count from the first arrival of the run of {created}]"
            ))
            .with_max_value_divisor(1e6)
            .begin_log_with(&mut bytes, &mut serializer)
            .map_err(|error| error.to_string())?;
        for ((_, arm), interval) in ordered {
            log.write_histogram(
                &interval.histogram,
                interval.start.saturating_sub(origin).to_duration(),
                Duration::from_nanos(interval.end.saturating_sub(interval.start).0),
                Tag::new(&tag(arm)),
            )
            .map_err(|error| error.to_string())?;
        }
        Ok(bytes)
    }
}

/// An arm as a tag, which has neither commas nor blanks nor control characters.
fn tag(arm: &str) -> String {
    let plain = |c: char| match c == ',' || c.is_whitespace() || c.is_control() {
        true => '_',
        false => c,
    };
    arm.chars().map(plain).collect()
}

/// The logs of a run under construction, one request after the other: their size does not depend
/// on the length of the run.
#[derive(Clone, Debug, Default)]
pub struct Logs {
    ttft: Log,
    itl: Log,
    event_gap: Log,
    tpot: Log,
    e2e: Log,
}

impl Logs {
    /// Empty ones.
    pub fn new() -> Logs {
        Logs::default()
    }

    /// Takes a request in; one that did not end well has no latencies.
    ///
    /// # Errors
    /// None in practice: the bounds of the histograms are constants.
    pub fn add(&mut self, row: &RequestRow, tokens: &[TokenRow]) -> Result<(), String> {
        if row.status != RequestStatus::Ok {
            return Ok(());
        }
        let metrics = request_metrics(row);
        let one = |ns: Option<u64>| ns.map(|ns| Repeated { ns, count: 1 });
        self.ttft.add(row, one(metrics.ttft_ns))?;
        self.tpot.add(row, one(metrics.tpot_ns))?;
        self.e2e.add(row, one(metrics.e2e_ns))?;
        self.itl.add(row, counted_itl(tokens, Bundle::Even))?;
        let gaps = event_gaps(tokens).into_iter().map(|gap| Repeated {
            ns: gap.gap_ns,
            count: 1,
        });
        self.event_gap.add(row, gaps)
    }

    fn named(&self) -> [(&'static str, &Log); 5] {
        let [ttft, itl, event_gap, tpot, e2e] = FILES;
        [
            (ttft, &self.ttft),
            (itl, &self.itl),
            (event_gap, &self.event_gap),
            (tpot, &self.tpot),
            (e2e, &self.e2e),
        ]
    }

    /// Values that were taken in, by the file of their metric.
    pub fn values(&self) -> [(&'static str, u64); 5] {
        self.named().map(|(name, log)| (name, log.counts.values))
    }

    /// Writes `ttft.hlog`, `itl.hlog`, `event_gap.hlog`, `tpot.hlog` and `e2e.hlog`. `created` is
    /// when the run began, for people.
    ///
    /// # Errors
    /// Whatever the file system says.
    pub fn write(&self, dir: &Path, created: &str) -> Result<HlogReport, RecordError> {
        for (name, log) in self.named() {
            let path = dir.join(name);
            let bytes = log
                .render(created)
                .map_err(|reason| RecordError::json(&path, reason))?;
            write_atomic(&path, &bytes)?;
        }
        Ok(HlogReport {
            ttft: self.ttft.counts,
            itl: self.itl.counts,
            event_gap: self.event_gap.counts,
            tpot: self.tpot.counts,
            e2e: self.e2e.counts,
        })
    }
}

/// Values in the log of each metric of a run directory, or what is wrong with the file. Metrics
/// without a file are left out.
pub fn values_in(dir: &Path) -> Vec<(&'static str, Result<u64, String>)> {
    let counted = |name: &'static str| match std::fs::read(dir.join(name)) {
        Ok(bytes) => Some((name, values_of(&bytes))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => Some((name, Err(error.to_string()))),
    };
    FILES.into_iter().filter_map(counted).collect()
}

fn values_of(log: &[u8]) -> Result<u64, String> {
    let mut values = 0_u64;
    for entry in IntervalLogIterator::new(log) {
        let LogEntry::Interval(interval) = entry.map_err(|error| format!("{error:?}"))? else {
            continue;
        };
        let encoded = base64::engine::general_purpose::STANDARD
            .decode(interval.encoded_histogram())
            .map_err(|error| error.to_string())?;
        let histogram: Histogram<u64> = Deserializer::new()
            .deserialize(&mut encoded.as_slice())
            .map_err(|error| format!("{error:?}"))?;
        values = values.saturating_add(histogram.len());
    }
    Ok(values)
}

/// Writes the logs of a run from its successful requests.
///
/// # Errors
/// Whatever the file system says.
pub fn export(data: &RunData) -> Result<HlogReport, RecordError> {
    let mut logs = Logs::new();
    for row in &data.requests {
        logs.add(row, data.tokens_of(row))
            .map_err(|reason| RecordError::json(&data.dir, reason))?;
    }
    logs.write(&data.dir, &data.manifest.created)
}

#[cfg(test)]
#[path = "hlog_tests.rs"]
mod tests;
