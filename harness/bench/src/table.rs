//! The result for people.

use std::fmt::Write;

use pb_record::metrics::Bundle;
use pb_record::{visible, wrapped};

use crate::distribution::{Distribution, Spread};
use crate::document::Document;
use crate::offered::{Latency, OfferedSpread};
use crate::select::{Metric, Selection, percentile_name};
use crate::tally::Tally;

/// What stands for an absent value.
const ABSENT: &str = "-";

/// Widest line, in characters.
const WIDTH: usize = 100;

/// Of the further lines of a long note or reason.
const INDENT: usize = 2;

/// Percentile columns that fit beside the name, the count and the mean.
const COLUMNS: usize = 6;

/// The document as a table, at most 100 columns wide.
pub fn text(document: &Document) -> String {
    let mut lines = heads(document);
    lines.push(format!(
        "{:<16}{:>9}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
        "ms", "n", "mean", "p50", "p90", "p95", "p99", "p99.9", "max"
    ));
    let itl = itl_name(document.itl_rule);
    for (name, spread) in [
        ("TTFT", document.ttft_ms),
        ("TTFR", document.ttfr_ms),
        ("service TTFT", document.service_ttft_ms),
        (itl, document.itl_ms),
        ("event gap", document.event_gap_ms),
        ("TPOT", document.tpot_ms),
        ("E2E", document.e2e_ms),
        ("driver lag", document.driver_lag_ms),
    ] {
        lines.push(format!("{name:<16}{}", columns(spread)));
    }
    let offered = &document.offered;
    // The view of all offered requests says more only where some did not end well.
    if document.counts.ok < document.counts.offered {
        for (name, spread) in [
            ("TTFT, offered", offered.ttft_ms),
            ("E2E, offered", offered.e2e_ms),
        ] {
            lines.push(format!("{name:<16}{}", offered_columns(spread)));
        }
    }
    finish(document, lines)
}

/// As [`text`] with the metrics and percentiles that were asked for.
pub fn text_with(document: &Document, tally: &Tally, selection: &Selection) -> String {
    let mut lines = heads(document);
    for percentiles in selection.percentiles.chunks(COLUMNS) {
        let mut head = format!("{:<16}{:>9}{:>10}", "ms", "n", "mean");
        for &percentile in percentiles {
            head.push_str(&format!("{:>10}", percentile_name(percentile)));
        }
        lines.push(head);
        for metric in &selection.metrics {
            let samples = metric.of(tally.all());
            let name = match metric {
                Metric::Itl => itl_name(document.itl_rule),
                Metric::E2elIncludingClientQueue => "e2el, queued",
                other => other.name(),
            };
            lines.push(format!("{name:<16}{}", chosen(&samples, percentiles)));
        }
    }
    finish(document, lines)
}

fn itl_name(rule: Bundle) -> &'static str {
    match rule {
        Bundle::Even => "ITL (even)",
        Bundle::Burst => "ITL (burst)",
    }
}

fn heads(document: &Document) -> Vec<String> {
    let counts = &document.counts;
    let mut lines = vec![format!(
        "requests: {} offered, {} ok, {} failed, {} truncated, {} incomplete, {} not offered",
        counts.offered,
        counts.ok,
        counts.failed,
        counts.truncated,
        counts.incomplete,
        counts.not_offered
    )];
    for (kind, count) in &document.failures {
        let name = serde_json::to_value(kind).unwrap_or_default();
        lines.push(format!("  {}: {count}", name.as_str().unwrap_or("?")));
    }
    lines.push(String::new());
    lines
}

fn finish(document: &Document, mut lines: Vec<String>) -> String {
    lines.push(format!("percentiles: {}", document.percentile_rule));
    lines.push(String::new());
    lines.extend(class_lines(document));
    lines.extend(totals(document));
    lines.extend(more(document));
    let notes = document.warnings.iter();
    lines.extend(notes.flat_map(|note| wrapped(&format!("note: {note}"), WIDTH, INDENT)));
    lines.extend(validity(document));
    let mut out = String::new();
    for line in &lines {
        let line = visible(line);
        // A table is narrower; what is longer holds a text from elsewhere.
        let lines = match line.chars().count() > WIDTH {
            true => wrapped(&line, WIDTH, INDENT),
            false => vec![line],
        };
        for line in lines {
            // Writing into a String cannot fail.
            let _ = writeln!(out, "{}", line.trim_end());
        }
    }
    out.pop();
    out
}

fn columns(spread: Option<Spread>) -> String {
    let Some(s) = spread else {
        return format!("{ABSENT:>9}");
    };
    let mut text = format!("{:>9}", s.n);
    for value in [s.mean, s.p50, s.p90, s.p95, s.p99, s.p999, s.max] {
        text.push_str(&cell(value));
    }
    text
}

/// A value in ten columns: fewer decimals rather than a wider line.
fn cell(value: f64) -> String {
    let decimals = match value {
        v if v < 99_999.0 => 3,
        v if v < 9_999_999.0 => 1,
        _ => 0,
    };
    format!(" {value:>9.decimals$}")
}

fn offered_columns(spread: Option<OfferedSpread>) -> String {
    let Some(s) = spread else {
        return format!("{ABSENT:>9}");
    };
    let mut text = format!("{:>9}{ABSENT:>10}", s.n);
    for value in [s.p50, s.p90, s.p95, s.p99, s.p999, s.max] {
        text.push_str(&match value {
            Latency::Ms(ms) => cell(ms),
            Latency::Endless => format!("{:>10}", "inf"),
        });
    }
    text
}

fn chosen(samples: &Distribution, percentiles: &[f64]) -> String {
    let Some(mean) = samples.mean_ns() else {
        return format!("{ABSENT:>9}");
    };
    let mut text = format!("{:>9}{}", samples.n(), cell(mean / 1e6));
    for &percentile in percentiles {
        let value = samples.nearest_rank(percentile / 100.0).unwrap_or(0);
        text.push_str(&cell(value as f64 / 1e6));
    }
    text
}

/// A line for each class, when there are several.
fn class_lines(document: &Document) -> Vec<String> {
    if document.classes.len() < 2 {
        return Vec::new();
    }
    let mut lines = vec![format!(
        "{:<24}{:>9}{:>9}{:>13}{:>13}{:>13}{:>13}",
        "class, ms", "offered", "ok", "TTFT p50", "TTFT p99", "ITL p99", "E2E p99"
    )];
    for (name, class) in &document.classes {
        let at = |spread: Option<Spread>, of: fn(&Spread) -> f64| {
            let value = spread.as_ref().map(of);
            value.map_or_else(|| format!("{ABSENT:>13}"), |ms| format!("   {}", cell(ms)))
        };
        let name: String = visible(name).chars().take(23).collect();
        lines.push(format!(
            "{name:<24}{:>9}{:>9}{}{}{}{}",
            class.counts.offered,
            class.counts.ok,
            at(class.ttft_ms, |s| s.p50),
            at(class.ttft_ms, |s| s.p99),
            at(class.itl_ms, |s| s.p99),
            at(class.e2e_ms, |s| s.p99),
        ));
    }
    lines.push(String::new());
    lines
}

fn count(value: Option<u64>) -> String {
    value.map_or(ABSENT.to_owned(), |n| n.to_string())
}

fn number(value: Option<f64>) -> String {
    value.map_or(ABSENT.to_owned(), |n| format!("{n:.3}"))
}

fn percent(share: Option<f64>) -> String {
    number(share.map(|share| 100.0 * share))
}

fn totals(document: &Document) -> Vec<String> {
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
    ]
}

/// What only some runs have.
fn more(document: &Document) -> Vec<String> {
    let mut lines = Vec::new();
    let prompts = &document.workload;
    if let Some(mean) = prompts.template_overhead_mean.filter(|mean| *mean != 0.0) {
        lines.push(format!(
            "prompts: the server counts {mean:+.1} tokens against the plan on average ({:+} to \
             {:+})",
            prompts.template_overhead_min.unwrap_or(0),
            prompts.template_overhead_max.unwrap_or(0)
        ));
    }
    for (limit, attained) in &document.slo {
        let share = percent(attained.share);
        lines.push(format!(
            "limit {limit} ms: met by {share} % of the offered requests"
        ));
    }
    for gate in &document.gates {
        let word = if gate.pass { "passed" } else { "FAILED" };
        let (found, asked) = (percent(gate.attained), percent(Some(gate.required)));
        lines.push(format!(
            "gate {}: {word}, {found} % of {asked} %",
            gate.name
        ));
    }
    let server = document.server.as_ref();
    if let Some(gap) = server.and_then(|s| s.client_minus_server_ttft.as_ref()) {
        let means = [gap.client_mean_ms, gap.server_mean_ms, gap.mean_ms].map(number);
        let [client, own, difference] = means;
        lines.push(format!(
            "service TTFT, mean: {client} ms at the client, {own} ms at the server, \
             {difference} ms apart"
        ));
    }
    if let Some(c) = document
        .calibration
        .as_ref()
        .filter(|c| c.problem.is_none())
    {
        let p99 = |spread: Option<Spread>| number(spread.map(|s| s.p99));
        lines.push(format!(
            "client error, p99: TTFT {} ms, ITL {} ms, lag {} ms",
            p99(c.ttft_error_ms),
            p99(c.itl_error_ms),
            p99(c.driver_lag_ms)
        ));
    }
    for shard in &document.shards {
        lines.push(format!(
            "shard {}: {}, {} rows",
            shard.shard, shard.state, shard.rows
        ));
    }
    lines.push(format!(
        "schedule sha256 {}, seed {}",
        document.schedule_sha256, document.seed
    ));
    lines
}

fn validity(document: &Document) -> Vec<String> {
    let validity = &document.validity;
    if validity.valid {
        return vec!["valid".to_owned()];
    }
    let mut lines = vec!["NOT VALID:".to_owned()];
    let reasons = validity.reasons.iter();
    lines.extend(reasons.flat_map(|reason| wrapped(&format!("- {reason}"), WIDTH, INDENT)));
    lines
}
