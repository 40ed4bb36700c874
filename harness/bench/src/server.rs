//! The server's own view of the run's window, in one vocabulary.
//!
//! A histogram's quantile is given as the bounds of its bucket, never as an interpolated value;
//! where the buckets are too coarse the document says so (`pb_target::histogram` has the rule).

use pb_contract::Nanos;
pub use pb_target::histogram::Histogram;
use pb_target::{Recovered, TtftGap};
use serde::{Deserialize, Serialize};

/// File of the server's gauges over time in a run directory: columns as in [`ServerPoint`].
pub const SERVER_FILE: &str = "server.csv";

/// The gauges at one instant, on the client's clock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerPoint {
    /// When the page was read.
    pub at_ns: Nanos,
    /// Requests being computed.
    pub running: Option<f64>,
    /// Requests in the queue.
    pub waiting: Option<f64>,
    /// Used share of the KV cache, 0 to 1.
    pub kv_usage: Option<f64>,
}

/// A gauge over the window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gauge {
    /// Readings.
    pub n: u64,
    /// Mean of the readings.
    pub mean: f64,
    /// Largest reading.
    pub max: f64,
}

impl Gauge {
    /// Of readings; nothing when there are none. Readings that are no number are left out.
    pub fn of(readings: impl IntoIterator<Item = Option<f64>>) -> Option<Gauge> {
        let known = readings
            .into_iter()
            .flatten()
            .filter(|value| value.is_finite());
        let known: Vec<f64> = known.collect();
        let max = known.iter().copied().reduce(f64::max)?;
        Some(Gauge {
            n: known.len() as u64,
            mean: known.iter().sum::<f64>() / known.len() as f64,
            max,
        })
    }
}

/// Gauges over the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gauges {
    /// Requests being computed.
    pub running: Option<Gauge>,
    /// Requests in the queue.
    pub waiting: Option<Gauge>,
    /// Used share of the KV cache, 0 to 1.
    pub kv_usage: Option<Gauge>,
}

/// Counters: what was added within the window. Absent: the server does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WindowCounters {
    /// Prompt tokens found in the device's prefix cache.
    pub hit_tokens: Option<u64>,
    /// Prompt tokens looked up.
    pub query_tokens: Option<u64>,
    /// Prompt tokens taken from another tier.
    pub external_hit_tokens: Option<u64>,
    /// Requests that lost their blocks and were put back.
    pub preemptions: Option<u64>,
    /// Prompt tokens.
    pub prompt_tokens: Option<u64>,
    /// Output tokens.
    pub generation_tokens: Option<u64>,
}

/// A quantile of a histogram.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Bounds {
    /// Greater than `low_ms` and at most `high_ms`.
    Between {
        /// Lower bound, excluded.
        low_ms: f64,
        /// Upper bound.
        high_ms: f64,
    },
    /// The buckets are too coarse.
    Not {
        /// Why.
        not_recoverable: String,
    },
}

/// A histogram of the server over the window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerLatency {
    /// Values.
    pub n: u64,
    /// Mean, exact: sum over count.
    pub mean_ms: Option<f64>,
    /// Median.
    pub p50: Option<Bounds>,
    /// 90th percentile.
    pub p90: Option<Bounds>,
    /// 99th percentile.
    pub p99: Option<Bounds>,
    /// The buckets.
    pub buckets: Histogram,
}

impl From<&Histogram> for ServerLatency {
    fn from(buckets: &Histogram) -> ServerLatency {
        let at = |q: f64| match buckets.quantile(q) {
            Recovered::Empty => None,
            Recovered::Between { low_s, high_s } => Some(Bounds::Between {
                low_ms: low_s * 1e3,
                high_ms: high_s * 1e3,
            }),
            Recovered::NotRecoverable { why } => Some(Bounds::Not {
                not_recoverable: why,
            }),
        };
        ServerLatency {
            n: buckets.count,
            mean_ms: buckets.mean_s().map(|s| s * 1e3),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            buckets: buckets.clone(),
        }
    }
}

/// What the server said of the window of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Server {
    /// Where the pages came from.
    pub metrics_url: String,
    /// Pages read.
    pub scrapes: u64,
    /// Pages that could not be read.
    pub failed_scrapes: u64,
    /// Time between two pages, in ms.
    pub interval_ms: Option<f64>,
    /// Counters over the window.
    pub counters: WindowCounters,
    /// Gauges over the window.
    pub gauges: Gauges,
    /// From the request's arrival at the server to its first token.
    pub ttft: Option<ServerLatency>,
    /// Between tokens, or between events of several tokens: the server decides.
    pub itl: Option<ServerLatency>,
    /// In the queue.
    pub queue: Option<ServerLatency>,
    /// Whole request.
    pub e2e: Option<ServerLatency>,
    /// The client's service TTFT minus the server's TTFT.
    pub client_minus_server_ttft: Option<TtftGap>,
    /// What contradicts itself or is missing.
    pub notes: Vec<String>,
}

impl Server {
    /// Requests were preempted within the window, so that blocks found again may be called hits.
    /// Absent: the server does not say.
    pub fn preempted(&self) -> Option<bool> {
        self.counters.preemptions.map(|count| count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(bounds_s: &[f64], cumulative: &[u64], count: u64) -> Histogram {
        Histogram {
            bounds_s: bounds_s.to_vec(),
            cumulative: cumulative.to_vec(),
            count,
            sum_s: 0.5,
        }
    }

    /// sglang #12064, vllm #55276: nearly all values in the lowest bucket tell no percentile.
    #[test]
    fn row_11_a_coarse_histogram_has_no_percentile() {
        let view = ServerLatency::from(&histogram(&[0.01, 0.1], &[995, 1000], 1000));
        assert_eq!((view.n, view.mean_ms), (1000, Some(0.5)));
        let text = serde_json::to_value(&view).unwrap();
        assert!(text["p99"]["not_recoverable"].is_string(), "{text}");
        assert!(text["p50"]["not_recoverable"].is_string(), "{text}");
        assert_eq!(serde_json::from_value::<ServerLatency>(text).unwrap(), view);
    }

    #[test]
    fn a_percentile_is_the_bounds_of_its_bucket() {
        let view = ServerLatency::from(&histogram(&[0.01, 0.1, 1.0], &[1, 6, 10], 10));
        // The fifth of ten lies in (10, 100] ms, the ninth in (100, 1000] ms.
        let between = |low_ms, high_ms| Some(Bounds::Between { low_ms, high_ms });
        assert_eq!(view.p50, between(10.0, 100.0));
        assert_eq!(view.p90, between(100.0, 1000.0));
        let none = ServerLatency::from(&histogram(&[0.01], &[0], 0));
        assert_eq!((none.p50, none.mean_ms), (None, None));
    }

    #[test]
    fn gauges_leave_out_what_is_no_number() {
        let gauge = Gauge::of([Some(1.0), None, Some(f64::NAN), Some(4.0)]).unwrap();
        assert_eq!((gauge.n, gauge.mean, gauge.max), (2, 2.5, 4.0));
        assert_eq!(Gauge::of([None, Some(f64::INFINITY)]), None);
    }
}
