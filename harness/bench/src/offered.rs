//! The view of whoever sent the load: a request that did not end well took for ever.
//!
//! Percentiles over the successes alone make a server that refuses half of its requests look
//! fast (SemiAnalysis InferenceX #357). Here every request that was offered counts; one that
//! failed, broke off, was cut at the end or was never sent counts as an endless latency. A
//! percentile that falls on such a request is the word `inf`.

use pb_contract::RequestRow;
use pb_record::metrics::{Counts, RequestMetrics, request_metrics};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::distribution::{Distribution, ms, rank};
use crate::tally::Part;

/// A latency that may be endless.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Latency {
    /// In milliseconds.
    Ms(f64),
    /// The request did not end well.
    Endless,
}

impl Serialize for Latency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Latency::Ms(ms) => serializer.serialize_f64(*ms),
            Latency::Endless => serializer.serialize_str("inf"),
        }
    }
}

impl<'de> Deserialize<'de> for Latency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        match (value.as_f64(), value.as_str()) {
            (Some(ms), _) => Ok(Latency::Ms(ms)),
            (_, Some("inf")) => Ok(Latency::Endless),
            _ => Err(D::Error::custom("a latency is a number or \"inf\"")),
        }
    }
}

/// Percentiles over all requests that were offered; nearest-rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfferedSpread {
    /// Requests offered.
    pub n: u64,
    /// Median.
    pub p50: Latency,
    /// 90th percentile.
    pub p90: Latency,
    /// 95th percentile.
    pub p95: Latency,
    /// 99th percentile.
    pub p99: Latency,
    /// 99.9th percentile.
    pub p999: Latency,
    /// Largest.
    pub max: Latency,
}

/// The run as whoever offered the load saw it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offered {
    /// Requests that ended well of those offered, 0 to 1; absent when none was offered.
    pub success_rate: Option<f64>,
    /// Time to first token.
    pub ttft_ms: Option<OfferedSpread>,
    /// Time to last token.
    pub e2e_ms: Option<OfferedSpread>,
}

impl Offered {
    /// Of all requests, or of those of a class.
    pub fn of(part: Part<'_>) -> Offered {
        let counts = Counts::of(part.rows());
        let share = counts.ok as f64 / counts.offered as f64;
        Offered {
            success_rate: (counts.offered > 0).then_some(share),
            ttft_ms: spread(part, counts.offered, |m| m.ttft_ns),
            e2e_ms: spread(part, counts.offered, |m| m.e2e_ns),
        }
    }
}

fn spread(
    part: Part<'_>,
    offered: u64,
    of: fn(&RequestMetrics) -> Option<u64>,
) -> Option<OfferedSpread> {
    let value = |row: &RequestRow| of(&request_metrics(row));
    let finite = Distribution::of(part.ok().filter_map(value).collect());
    let at = |p: f64| {
        let rank = rank(offered, p)?;
        // The endless ones come after all others.
        if rank > finite.n() {
            return Some(Latency::Endless);
        }
        finite.at_rank(rank).map(|ns| Latency::Ms(ms(ns)))
    };
    Some(OfferedSpread {
        n: offered,
        p50: at(0.5)?,
        p90: at(0.9)?,
        p95: at(0.95)?,
        p99: at(0.99)?,
        p999: at(0.999)?,
        max: at(1.0)?,
    })
}
