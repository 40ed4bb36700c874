//! The result for people.

use std::fmt::Write;

use pb_record::visible;

use super::document::Document;
use super::tally::Spread;

/// What stands for an absent value.
const ABSENT: &str = "-";

/// The document as a table, at most 100 columns wide but for reasons and paths.
pub(crate) fn text(document: &Document) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        // OK because writing into a String cannot fail.
        writeln!(out, "{text}").expect("a String takes any text");
    };
    let counts = &document.counts;
    line(format!(
        "requests: {} offered, {} ok, {} failed, {} truncated, {} incomplete, {} not offered",
        counts.offered,
        counts.ok,
        counts.failed,
        counts.truncated,
        counts.incomplete,
        counts.not_offered
    ));
    for (kind, count) in &document.failures {
        let name = serde_json::to_value(kind).unwrap_or_default();
        line(format!("  {}: {count}", name.as_str().unwrap_or("?")));
    }
    line(String::new());
    line(format!(
        "{:<16}{:>9}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
        "ms", "n", "mean", "p50", "p90", "p95", "p99", "p99.9", "max"
    ));
    for (name, spread) in [
        ("TTFT", document.ttft_ms),
        ("TTFR", document.ttfr_ms),
        ("service TTFT", document.service_ttft_ms),
        ("ITL (even)", document.itl_ms),
        ("event gap", document.event_gap_ms),
        ("TPOT", document.tpot_ms),
        ("E2E", document.e2e_ms),
        ("driver lag", document.driver_lag_ms),
    ] {
        line(format!("{name:<16}{}", columns(spread)));
    }
    line(String::new());
    for text in totals(document) {
        line(text);
    }
    line(validity(document));
    out.pop();
    out
}

fn columns(spread: Option<Spread>) -> String {
    let Some(s) = spread else {
        return format!("{:>9}", ABSENT);
    };
    let mut text = format!("{:>9}", s.n);
    for value in [s.mean, s.p50, s.p90, s.p95, s.p99, s.p999, s.max] {
        text.push_str(&format!("{value:>10.3}"));
    }
    text
}

fn totals(document: &Document) -> Vec<String> {
    let count = |value: Option<u64>| value.map_or(ABSENT.to_owned(), |n| n.to_string());
    let number = |value: Option<f64>| value.map_or(ABSENT.to_owned(), |n| format!("{n:.3}"));
    let percent = |share: Option<f64>| number(share.map(|share| 100.0 * share));
    let (stalls, tokens) = (&document.stalls, &document.tokens);
    let (rates, cache) = (&document.rates, &document.cache);
    vec![
        format!(
            "stalls: {}, {} ms in all, {} % of the streaming time",
            count(stalls.count),
            number(stalls.total_ms),
            percent(stalls.share)
        ),
        format!(
            "tokens: {} input planned, {} served; {} output, {} of them estimated, {} % bundled",
            tokens.input_planned,
            count(tokens.input_served),
            tokens.output,
            tokens.output_estimated,
            percent(tokens.bundled_share)
        ),
        format!(
            "rates: {} requests/s offered, {} achieved, {} good; {} output tokens/s",
            number(rates.offered_rps),
            number(rates.achieved_rps),
            number(rates.goodput_rps),
            number(rates.output_tps)
        ),
        format!(
            "cache: {}; {} prompt tokens planned to be found, {} found, {} requests say so",
            cache.state,
            count(cache.planned_hit_tokens),
            count(cache.measured_hit_tokens),
            cache.known_rows
        ),
        format!(
            "schedule sha256 {}, seed {}",
            document.schedule_sha256, document.seed
        ),
    ]
}

fn validity(document: &Document) -> String {
    let validity = &document.validity;
    if validity.valid {
        return "valid".to_owned();
    }
    let reasons = validity.reasons.iter().map(|reason| visible(reason));
    format!("NOT VALID: {}", reasons.collect::<Vec<_>>().join("; "))
}
