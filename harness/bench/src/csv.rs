//! The document as one long table: a line for each number.
//!
//! `metric,statistic,value,unit`. Numbers of a class have its name after a dot (`ttft.random`).
//! What was not measured has an empty value.

use std::fmt::Write;

use crate::distribution::Spread;
use crate::document::{Class, Document};
use crate::offered::{Latency, Offered, OfferedSpread};

/// The header.
const HEADER: &str = "metric,statistic,value,unit\n";

/// The document as CSV.
pub fn text(document: &Document) -> String {
    let mut table = Table {
        out: HEADER.to_owned(),
        suffix: String::new(),
    };
    for (name, spread) in spreads(document) {
        table.spread(name, spread);
    }
    table.offered(&document.offered);
    table.stalls_and_tokens(document);
    let counts = serde_json::to_value(document.counts).unwrap_or_default();
    table.object("requests", &counts, "requests");
    let failures = serde_json::to_value(&document.failures).unwrap_or_default();
    table.object("failures", &failures, "requests");
    table.rates(document);
    for (limit, attained) in &document.slo {
        table.line("slo", limit, attained.share, "share");
    }
    for (name, class) in &document.classes {
        table.suffix = format!(".{name}");
        for (metric, spread) in class_spreads(class) {
            table.spread(metric, spread);
        }
        table.offered(&class.offered);
        let counts = serde_json::to_value(class.counts).unwrap_or_default();
        table.object("requests", &counts, "requests");
    }
    table.out
}

/// The latencies of a document with their names.
pub(crate) fn spreads(document: &Document) -> [(&'static str, Option<Spread>); 9] {
    [
        ("ttft", document.ttft_ms),
        ("ttfr", document.ttfr_ms),
        ("service_ttft", document.service_ttft_ms),
        ("itl", document.itl_ms),
        ("event_gap", document.event_gap_ms),
        ("tpot", document.tpot_ms),
        ("e2e", document.e2e_ms),
        ("close", document.close_ms),
        ("driver_lag", document.driver_lag_ms),
    ]
}

fn class_spreads(class: &Class) -> [(&'static str, Option<Spread>); 9] {
    [
        ("ttft", class.ttft_ms),
        ("ttfr", class.ttfr_ms),
        ("service_ttft", class.service_ttft_ms),
        ("itl", class.itl_ms),
        ("event_gap", class.event_gap_ms),
        ("tpot", class.tpot_ms),
        ("e2e", class.e2e_ms),
        ("close", class.close_ms),
        ("driver_lag", class.driver_lag_ms),
    ]
}

struct Table {
    out: String,
    suffix: String,
}

impl Table {
    fn put(&mut self, metric: &str, statistic: &str, value: &str, unit: &str) {
        let metric = quoted(&format!("{metric}{}", self.suffix));
        let statistic = quoted(statistic);
        // Writing into a String cannot fail.
        let _ = writeln!(self.out, "{metric},{statistic},{value},{unit}");
    }

    fn line(&mut self, metric: &str, statistic: &str, value: Option<f64>, unit: &str) {
        let value = value.map_or_else(String::new, |value| value.to_string());
        self.put(metric, statistic, &value, unit);
    }

    fn spread(&mut self, metric: &str, spread: Option<Spread>) {
        self.line(
            metric,
            "n",
            Some(spread.map_or(0.0, |s| s.n as f64)),
            "samples",
        );
        for (statistic, value) in [
            ("mean", spread.map(|s| s.mean)),
            ("p50", spread.map(|s| s.p50)),
            ("p90", spread.map(|s| s.p90)),
            ("p95", spread.map(|s| s.p95)),
            ("p99", spread.map(|s| s.p99)),
            ("p999", spread.map(|s| s.p999)),
            ("max", spread.map(|s| s.max)),
        ] {
            self.line(metric, statistic, value, "ms");
        }
    }

    fn offered(&mut self, offered: &Offered) {
        self.line("offered", "success_rate", offered.success_rate, "share");
        for (metric, spread) in [
            ("offered_ttft", offered.ttft_ms),
            ("offered_e2e", offered.e2e_ms),
        ] {
            let at = |pick: fn(&OfferedSpread) -> Latency| spread.as_ref().map(pick);
            for (statistic, latency) in [
                ("p50", at(|s| s.p50)),
                ("p90", at(|s| s.p90)),
                ("p95", at(|s| s.p95)),
                ("p99", at(|s| s.p99)),
                ("p999", at(|s| s.p999)),
                ("max", at(|s| s.max)),
            ] {
                match latency {
                    Some(Latency::Endless) => self.put(metric, statistic, "inf", "ms"),
                    Some(Latency::Ms(ms)) => self.line(metric, statistic, Some(ms), "ms"),
                    None => self.line(metric, statistic, None, "ms"),
                }
            }
        }
    }

    fn stalls_and_tokens(&mut self, document: &Document) {
        let (stalls, tokens) = (&document.stalls, &document.tokens);
        self.line("stalls", "count", stalls.count.map(|n| n as f64), "stalls");
        self.line("stalls", "total", stalls.total_ms, "ms");
        self.line("stalls", "share", stalls.share, "share");
        let tokens = serde_json::to_value(tokens).unwrap_or_default();
        self.object("tokens", &tokens, "tokens");
    }

    fn rates(&mut self, document: &Document) {
        let rates = &document.rates;
        for (statistic, value, unit) in [
            ("offered", rates.offered_rps, "requests/s"),
            ("achieved", rates.achieved_rps, "requests/s"),
            ("goodput", rates.goodput_rps, "requests/s"),
            ("output", rates.output_tps, "tokens/s"),
            ("streamed", rates.streamed_tps, "tokens/s"),
            ("input", rates.input_tps, "tokens/s"),
        ] {
            self.line("rate", statistic, value, unit);
        }
    }

    /// Each key of a flat object as a statistic; a share keeps its own unit.
    fn object(&mut self, metric: &str, object: &serde_json::Value, unit: &str) {
        for (key, value) in object.as_object().into_iter().flatten() {
            let unit = if key.ends_with("share") {
                "share"
            } else {
                unit
            };
            self.line(metric, key, value.as_f64(), unit);
        }
    }
}

/// A field that stays one field and drives no terminal, whatever is in it.
fn quoted(field: &str) -> String {
    let field = pb_record::visible(field);
    if field.contains([',', '"']) {
        return format!("\"{}\"", field.replace('"', "\"\""));
    }
    field
}
