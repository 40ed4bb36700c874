//! Which metrics and percentiles a table shows (`--percentile-metrics`, `--metric-percentiles`).

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::distribution::Distribution;
use crate::tally::Part;

/// A latency, by the name that a user writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// First token after the intended arrival.
    Ttft,
    /// First event after the intended arrival.
    Ttfr,
    /// First token after the first byte was sent.
    ServiceTtft,
    /// Token latencies.
    Itl,
    /// Gaps between events with tokens.
    EventGap,
    /// Time per output token after the first.
    Tpot,
    /// Last token after the intended arrival.
    E2el,
    /// As `e2el`, under the name that `vllm bench serve` has for it.
    E2elIncludingClientQueue,
    /// Last token after the first byte was sent.
    ServiceE2el,
    /// Stream closed after the intended arrival.
    Close,
    /// First byte sent after the intended arrival.
    DriverLag,
}

impl Metric {
    /// All of them.
    pub const ALL: [Metric; 11] = [
        Metric::Ttft,
        Metric::Ttfr,
        Metric::ServiceTtft,
        Metric::Itl,
        Metric::EventGap,
        Metric::Tpot,
        Metric::E2el,
        Metric::E2elIncludingClientQueue,
        Metric::ServiceE2el,
        Metric::Close,
        Metric::DriverLag,
    ];

    /// The name as a user writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Metric::Ttft => "ttft",
            Metric::Ttfr => "ttfr",
            Metric::ServiceTtft => "service_ttft",
            Metric::Itl => "itl",
            Metric::EventGap => "event_gap",
            Metric::Tpot => "tpot",
            Metric::E2el => "e2el",
            Metric::E2elIncludingClientQueue => "e2el_including_client_queue",
            Metric::ServiceE2el => "service_e2el",
            Metric::Close => "close",
            Metric::DriverLag => "driver_lag",
        }
    }

    /// The samples of it.
    pub fn of(self, part: Part<'_>) -> Distribution {
        match self {
            Metric::Ttft => part.latency(|m| m.ttft_ns),
            Metric::Ttfr => part.latency(|m| m.ttfr_ns),
            Metric::ServiceTtft => part.latency(|m| m.service_ttft_ns),
            Metric::Itl => part.itl(),
            Metric::EventGap => part.event_gaps(),
            Metric::Tpot => part.latency(|m| m.tpot_ns),
            Metric::E2el | Metric::E2elIncludingClientQueue => part.latency(|m| m.e2e_ns),
            Metric::ServiceE2el => part.latency(|m| m.e2e_ns?.checked_sub(m.driver_lag_ns?)),
            Metric::Close => part.latency(|m| m.close_ns),
            Metric::DriverLag => part.driver_lag(),
        }
    }
}

impl FromStr for Metric {
    type Err = String;

    fn from_str(text: &str) -> Result<Metric, String> {
        // The name of `vllm bench serve` for the driver's lag of a capped open loop.
        let name = match text.trim() {
            "e2e" => "e2el",
            "client_queue_time" => "driver_lag",
            name => name,
        };
        let found = Metric::ALL.into_iter().find(|metric| metric.name() == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = Metric::ALL.iter().map(|metric| metric.name()).collect();
            format!("`{text}` is no metric: write one of {}", names.join(", "))
        })
    }
}

/// Metrics and percentiles that were asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Selection {
    /// In the order of the table.
    pub metrics: Vec<Metric>,
    /// Percentiles, 0 to 100.
    pub percentiles: Vec<f64>,
}

impl Default for Selection {
    /// What `vllm bench serve` takes by default.
    fn default() -> Selection {
        Selection {
            metrics: vec![Metric::Ttft, Metric::Tpot, Metric::Itl],
            percentiles: vec![99.0],
        }
    }
}

impl Selection {
    /// From the values of the two flags, each a list separated by commas; absent ones keep their
    /// defaults.
    ///
    /// # Errors
    /// An unknown metric, a percentile that is no number of 0 to 100: the message says which flag.
    pub fn parse(metrics: Option<&str>, percentiles: Option<&str>) -> Result<Selection, String> {
        let mut selection = Selection::default();
        if let Some(text) = metrics {
            let parsed: Result<Vec<Metric>, String> = text.split(',').map(str::parse).collect();
            selection.metrics = parsed.map_err(|e| format!("--percentile-metrics: {e}"))?;
        }
        if let Some(text) = percentiles {
            let one = |part: &str| match part.trim().parse::<f64>() {
                Ok(p) if (0.0..=100.0).contains(&p) => Ok(p),
                _ => Err(format!(
                    "--metric-percentiles: `{part}` is no percentile: write numbers of 0 to 100, \
                     as in 50,99,99.9"
                )),
            };
            selection.percentiles = text.split(',').map(one).collect::<Result<_, _>>()?;
        }
        Ok(selection)
    }
}

/// A percentile as it stands in a key or a header: `p99`, `p99.9`.
pub(crate) fn percentile_name(percentile: f64) -> String {
    format!("p{percentile}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selections_are_read_and_others_say_what_to_write() {
        let some = Selection::parse(Some("ttft, e2e,driver_lag"), Some("50,99.9,100")).unwrap();
        assert_eq!(
            some.metrics,
            [Metric::Ttft, Metric::E2el, Metric::DriverLag]
        );
        let names: Vec<String> = some
            .percentiles
            .iter()
            .map(|&p| percentile_name(p))
            .collect();
        assert_eq!(names, ["p50", "p99.9", "p100"]);
        assert_eq!(Selection::parse(None, None).unwrap(), Selection::default());
        let error = Selection::parse(Some("ttft,speed"), None).unwrap_err();
        assert!(error.contains("--percentile-metrics: `speed`"), "{error}");
        for bad in ["101", "-1", "x", "", "NaN"] {
            let error = Selection::parse(None, Some(bad)).unwrap_err();
            assert!(error.contains("--metric-percentiles"), "{error}");
        }
    }

    #[test]
    fn every_name_is_read_back() {
        for metric in Metric::ALL {
            assert_eq!(metric.name().parse(), Ok(metric));
        }
    }
}
