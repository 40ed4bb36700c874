//! HdrHistogram interval logs, for other tools and for merging.
//!
//! Verdicts use the raw nanosecond values; a histogram is a lossy export (3 significant digits,
//! 1 us to 1 h, never resized). Values outside that range are clamped to its ends and counted, so
//! that the loss is visible. One log a metric; the tag is the arm, an interval is a block.
//! Values are nanoseconds; the log's own maxima are milliseconds, as other writers have them.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use pb_contract::{Nanos, RequestRow, RequestStatus};
use serde::{Deserialize, Serialize};

use crate::atomic::write_atomic;
use crate::error::RecordError;
use crate::metrics::{Bundle, Repeated, counted_itl, request_metrics};
use crate::reader::RunData;

/// Smallest value that is told apart from zero: 1 us.
pub const LOWEST_NS: u64 = 1_000;
/// Largest value: 1 h.
pub const HIGHEST_NS: u64 = 3_600_000_000_000;
/// Significant decimal digits.
pub const DIGITS: u8 = 3;

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
    /// `itl.hlog`.
    pub itl: HlogCounts,
}

/// Values of one arm in one block, with the span of time that they come from.
#[derive(Clone, Debug, Default)]
struct Interval {
    start: Option<Nanos>,
    end: Nanos,
    values: Vec<Repeated>,
}

/// Intervals by `(block, arm)`: a log is ordered by time and blocks run one after the other.
type Intervals = BTreeMap<(u32, String), Interval>;

/// Writes `ttft.hlog` and `itl.hlog` (even spreading of bundled tokens) from the successful
/// requests of a run.
///
/// # Errors
/// Whatever the file system says.
pub fn export(data: &RunData) -> Result<HlogReport, RecordError> {
    let mut ttft = Intervals::new();
    let mut itl = Intervals::new();
    for row in data
        .requests
        .iter()
        .filter(|row| row.status == RequestStatus::Ok)
    {
        let metrics = request_metrics(row);
        let ttft_ns = metrics.ttft_ns.map(|ns| Repeated { ns, count: 1 });
        add(&mut ttft, row, ttft_ns);
        add(
            &mut itl,
            row,
            counted_itl(data.tokens_of(row), Bundle::Even),
        );
    }
    Ok(HlogReport {
        ttft: write_log(data, "ttft.hlog", &ttft)?,
        itl: write_log(data, "itl.hlog", &itl)?,
    })
}

fn add(intervals: &mut Intervals, row: &RequestRow, values: impl IntoIterator<Item = Repeated>) {
    let interval = intervals.entry((row.block, row.arm.clone())).or_default();
    let start = interval
        .start
        .unwrap_or(row.intended_ns)
        .min(row.intended_ns);
    interval.start = Some(start);
    interval.end = interval.end.max(row.closed_ns.unwrap_or(row.intended_ns));
    interval.values.extend(values);
}

fn write_log(data: &RunData, name: &str, intervals: &Intervals) -> Result<HlogCounts, RecordError> {
    let path = data.dir.join(name);
    let (bytes, counts) = render(&data.manifest.created, intervals)
        .map_err(|reason| RecordError::json(&path, reason))?;
    write_atomic(&path, &bytes)?;
    Ok(counts)
}

/// The bytes of a log. Timestamps count from the first arrival of the run.
fn render(created: &str, intervals: &Intervals) -> Result<(Vec<u8>, HlogCounts), String> {
    let mut bytes = Vec::new();
    let mut counts = HlogCounts::default();
    let mut serializer = V2DeflateSerializer::new();
    let mut ordered: Vec<_> = intervals.iter().collect();
    ordered.sort_by_key(|(key, interval)| (interval.start, *key));
    let origin = ordered
        .first()
        .and_then(|(_, interval)| interval.start)
        .unwrap_or_default();
    let mut log = IntervalLogWriterBuilder::new()
        .add_comment("[Histogram log format version 1.3]")
        .add_comment(&format!(
            "[seconds count from the first arrival of the run of {created}]"
        ))
        .with_max_value_divisor(1e6)
        .begin_log_with(&mut bytes, &mut serializer)
        .map_err(|error| error.to_string())?;
    for ((_, arm), interval) in ordered {
        let histogram = fill(&interval.values, &mut counts)?;
        let start = interval.start.unwrap_or_default();
        let tag: String = arm
            .chars()
            .map(|c| {
                if c == ',' || c.is_whitespace() {
                    '_'
                } else {
                    c
                }
            })
            .collect();
        log.write_histogram(
            &histogram,
            start.saturating_sub(origin).to_duration(),
            Duration::from_nanos(interval.end.saturating_sub(start).0),
            Tag::new(&tag),
        )
        .map_err(|error| error.to_string())?;
    }
    Ok((bytes, counts))
}

fn fill(values: &[Repeated], counts: &mut HlogCounts) -> Result<Histogram<u64>, String> {
    let mut histogram = Histogram::new_with_bounds(LOWEST_NS, HIGHEST_NS, DIGITS)
        .map_err(|error| error.to_string())?;
    for &Repeated { ns, count } in values {
        let count_if = |condition: bool| if condition { count } else { 0 };
        counts.values += count;
        counts.saturated += count_if(ns > HIGHEST_NS);
        counts.below += count_if(ns < LOWEST_NS);
        histogram.saturating_record_n(ns.min(HIGHEST_NS), count);
    }
    Ok(histogram)
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    use super::*;

    #[test]
    fn a_log_reads_back_within_its_digits_and_counts_what_it_clamps() {
        let values: Vec<u64> = (1..=1_000).map(|i| i * 1_000_000).collect();
        let mut intervals = Intervals::new();
        let interval = |start, values: &[u64]| Interval {
            start: Some(Nanos::from_secs(start)),
            end: Nanos::from_secs(start + 4),
            values: values.iter().map(|&ns| Repeated { ns, count: 1 }).collect(),
        };
        intervals.insert((1, "a b".into()), interval(20, &values));
        intervals.insert((0, "z".into()), interval(10, &[5, HIGHEST_NS + 1]));
        let (bytes, counts) = render("2030-01-01T00:00:00Z", &intervals).unwrap();
        assert_eq!(
            counts,
            HlogCounts {
                values: 1_002,
                saturated: 1,
                below: 1
            }
        );

        let logs: Vec<_> = IntervalLogIterator::new(&bytes)
            .filter_map(|entry| match entry.unwrap() {
                LogEntry::Interval(log) => Some(log),
                _ => None,
            })
            .collect();
        assert_eq!(logs[0].tag().unwrap().as_str(), "z");
        assert_eq!(logs[0].start_timestamp(), Duration::ZERO);
        assert_eq!(logs[1].tag().unwrap().as_str(), "a_b");
        assert_eq!(logs[1].start_timestamp(), Duration::from_secs(10));
        assert_eq!(logs[1].duration(), Duration::from_secs(4));
        let raw = base64::engine::general_purpose::STANDARD
            .decode(logs[1].encoded_histogram())
            .unwrap();
        let back: Histogram<u64> = Deserializer::new().deserialize(&mut &raw[..]).unwrap();
        assert_eq!(back.len(), 1_000);
        // The 500th of 1..=1000 ms, to three digits.
        let median = back.value_at_quantile(0.5) as f64;
        assert!((median / 500e6 - 1.0).abs() < 1e-3, "{median}");
    }
}
