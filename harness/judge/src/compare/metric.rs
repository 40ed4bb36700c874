//! What can be compared and gated: one list, with unit, direction, scale and usual margin.
//!
//! TTFT and E2E are percentiles over all requests that were offered, so that a server that refuses
//! half of them does not look fast; a percentile that falls on one of those is endless.

use pb_bench::{Document, Latency};

use crate::ab::{Direction, MetricSpec, Scale};

/// Relative change of a time or rate that matters, unless the user says otherwise.
pub const RATIO_MARGIN: f64 = 0.03;
/// Change of a share that matters: one percentage point.
pub const SHARE_MARGIN: f64 = 0.01;

/// Memory of the server, read from its metrics page, in bytes; absent where it does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Memory {
    /// Largest use of the KV cache: its size times the largest used share.
    pub kv_max_bytes: Option<f64>,
    /// Largest resident memory of the server's process.
    pub host_max_bytes: Option<f64>,
}

/// A run's numbers, as a metric reads them.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The document.
    pub document: &'a Document,
    /// Memory of the server.
    pub memory: &'a Memory,
}

/// The metric that is not read from one run alone: all runs are measured by one threshold.
pub const STALL_SHARE: &str = "stall_share";

/// A metric that can be compared.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name on the command line, in policies and in JSON.
    pub name: &'static str,
    /// Its name in tables.
    pub words: &'static str,
    /// `ms`, `1/s`, `share` (0 to 1) or `bytes`.
    pub unit: &'static str,
    /// Which way is an improvement.
    pub direction: Direction,
    /// How arms are compared, with the usual margin.
    pub scale: Scale,
    /// Whether it belongs to the primary family unless the user names one.
    pub primary: bool,
    /// Whether a late client makes it longer: times from the intended arrival.
    pub from_arrival: bool,
    read: fn(Source<'_>) -> Option<f64>,
}

impl Metric {
    /// The value of a run: infinite where it falls on a request that did not end well, absent
    /// where nothing was measured.
    pub fn of(&self, source: Source<'_>) -> Option<f64> {
        (self.read)(source).filter(|value| !value.is_nan())
    }

    /// The declaration for the judge, with a margin of its own or the usual one.
    pub fn spec(&self, margin: Option<f64>, primary: bool) -> MetricSpec {
        let scale = match (self.scale, margin) {
            (scale, None) => scale,
            (Scale::Ratio { .. }, Some(margin)) => Scale::Ratio { margin },
            (Scale::Difference { .. }, Some(margin)) => Scale::Difference { margin },
        };
        MetricSpec {
            name: self.name.to_owned(),
            unit: self.unit.to_owned(),
            direction: self.direction,
            scale,
            primary,
        }
    }

    /// Whether it is measured on the requests that ended well alone, or on their place among the
    /// offered ones: fewer answers then make it no better.
    pub fn of_answers(&self) -> bool {
        self.unit == "ms" || self.name == STALL_SHARE
    }

    /// Whether arms are compared by ratio.
    pub fn is_ratio(&self) -> bool {
        matches!(self.scale, Scale::Ratio { .. })
    }
}

/// The metric of a name.
pub fn metric(name: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.name == name)
}

/// All names, separated by commas, for messages.
pub fn metric_names() -> String {
    let names: Vec<&str> = METRICS.iter().map(|metric| metric.name).collect();
    names.join(", ")
}

const fn time(
    name: &'static str,
    words: &'static str,
    read: fn(Source<'_>) -> Option<f64>,
) -> Metric {
    Metric {
        name,
        words,
        unit: "ms",
        direction: Direction::LowerIsBetter,
        scale: Scale::Ratio {
            margin: RATIO_MARGIN,
        },
        primary: false,
        from_arrival: false,
        read,
    }
}

const fn rate(
    name: &'static str,
    words: &'static str,
    read: fn(Source<'_>) -> Option<f64>,
) -> Metric {
    Metric {
        unit: "1/s",
        direction: Direction::HigherIsBetter,
        ..time(name, words, read)
    }
}

const fn share(
    name: &'static str,
    words: &'static str,
    direction: Direction,
    read: fn(Source<'_>) -> Option<f64>,
) -> Metric {
    Metric {
        unit: "share",
        direction,
        scale: Scale::Difference {
            margin: SHARE_MARGIN,
        },
        ..time(name, words, read)
    }
}

const fn bytes(
    name: &'static str,
    words: &'static str,
    read: fn(Source<'_>) -> Option<f64>,
) -> Metric {
    Metric {
        unit: "bytes",
        ..time(name, words, read)
    }
}

const fn primary(metric: Metric) -> Metric {
    Metric {
        primary: true,
        ..metric
    }
}

const fn from_arrival(metric: Metric) -> Metric {
    Metric {
        from_arrival: true,
        ..metric
    }
}

fn ms(latency: Latency) -> f64 {
    match latency {
        Latency::Ms(ms) => ms,
        Latency::Endless => f64::INFINITY,
    }
}

use Direction::{HigherIsBetter as Higher, LowerIsBetter as Lower};

/// Every metric, in the order of tables.
pub static METRICS: [Metric; 24] = [
    primary(share("success_rate", "success rate", Higher, |s| {
        s.document.offered.success_rate
    })),
    primary(from_arrival(time("ttft_p50", "TTFT p50", |s| {
        s.document.offered.ttft_ms.map(|t| ms(t.p50))
    }))),
    from_arrival(time("ttft_p95", "TTFT p95", |s| {
        s.document.offered.ttft_ms.map(|t| ms(t.p95))
    })),
    primary(from_arrival(time("ttft_p99", "TTFT p99", |s| {
        s.document.offered.ttft_ms.map(|t| ms(t.p99))
    }))),
    time("itl_p50", "ITL p50", |s| s.document.itl_ms.map(|t| t.p50)),
    time("itl_p95", "ITL p95", |s| s.document.itl_ms.map(|t| t.p95)),
    primary(time("itl_p99", "ITL p99", |s| {
        s.document.itl_ms.map(|t| t.p99)
    })),
    time("itl_max", "ITL max", |s| s.document.itl_ms.map(|t| t.max)),
    // Filled in by the comparison; see `STALL_SHARE`.
    share(STALL_SHARE, "stall share", Lower, |_| None),
    time("tpot_p50", "TPOT p50", |s| {
        s.document.tpot_ms.map(|t| t.p50)
    }),
    time("tpot_p95", "TPOT p95", |s| {
        s.document.tpot_ms.map(|t| t.p95)
    }),
    time("tpot_p99", "TPOT p99", |s| {
        s.document.tpot_ms.map(|t| t.p99)
    }),
    from_arrival(time("e2e_p50", "E2E p50", |s| {
        s.document.offered.e2e_ms.map(|t| ms(t.p50))
    })),
    from_arrival(time("e2e_p95", "E2E p95", |s| {
        s.document.offered.e2e_ms.map(|t| ms(t.p95))
    })),
    from_arrival(time("e2e_p99", "E2E p99", |s| {
        s.document.offered.e2e_ms.map(|t| ms(t.p99))
    })),
    rate("goodput_rps", "goodput, requests/s", |s| {
        s.document.rates.goodput_rps
    }),
    share("goodput_share", "good requests", Higher, |s| {
        s.document.rates.goodput_share
    }),
    rate("request_rps", "requests/s", |s| {
        s.document.rates.achieved_rps
    }),
    primary(rate("output_tps", "output tokens/s", |s| {
        s.document.rates.output_tps
    })),
    rate("input_tps", "prompt tokens/s", |s| {
        s.document.rates.input_tps
    }),
    share("hit_rate", "hit rate", Higher, |s| {
        s.document.cache.hit_rate
    }),
    share("kv_usage_max", "KV cache used, max", Lower, |s| {
        let server = s.document.server.as_ref()?;
        server.gauges.kv_usage.map(|gauge| gauge.max)
    }),
    bytes("kv_bytes_max", "KV cache, max", |s| s.memory.kv_max_bytes),
    bytes("host_bytes_max", "server memory, max", |s| {
        s.memory.host_max_bytes
    }),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        let names: BTreeSet<&str> = METRICS.iter().map(|m| m.name).collect();
        assert_eq!(names.len(), METRICS.len());
        assert!(metric("ttft_p99").is_some_and(|m| m.primary && m.from_arrival));
        assert!(metric("itl_p99").is_some_and(|m| m.primary && !m.from_arrival));
        assert!(metric("latency").is_none());
    }

    #[test]
    fn margins_are_on_the_metrics_own_scale() {
        let of = |name: &str| metric(name).unwrap().spec(Some(0.2), true).scale;
        assert_eq!(of("itl_p50"), Scale::Ratio { margin: 0.2 });
        assert_eq!(of("hit_rate"), Scale::Difference { margin: 0.2 });
        let usual = metric("hit_rate").unwrap().spec(None, false);
        assert_eq!(usual.scale, Scale::Difference { margin: 0.01 });
        assert_eq!(usual.direction, Direction::HigherIsBetter);
    }
}
