//! The sections of the numbers themselves.

use pb_bench::offered::{Latency, OfferedSpread};
use pb_bench::{Document, Spread};

use super::BenchReport;
use super::sections::{SPREAD, count, number, percent, spread_row};
use crate::format::{ABSENT, significant};
use crate::sections::Section;
use crate::table::Table;

pub(super) fn latency(document: &Document) -> Section {
    let mut section = Section::new("latency", "Latency");
    let rule = serde_json::to_value(document.itl_rule).unwrap_or_default();
    let itl = format!("ITL ({})", rule.as_str().unwrap_or("?"));
    let caption = format!(
        "Requests that ended well; {} percentiles of raw nanoseconds. From the intended arrival; \
         service TTFT from the first byte sent",
        document.percentile_rule
    );
    let mut table = Table::new(caption, 1, &SPREAD);
    for (name, spread) in [
        ("TTFT", document.ttft_ms),
        ("TTFR", document.ttfr_ms),
        ("service TTFT", document.service_ttft_ms),
        (&itl, document.itl_ms),
        ("event gap", document.event_gap_ms),
        ("TPOT", document.tpot_ms),
        ("E2E", document.e2e_ms),
        ("stream close", document.close_ms),
        ("driver lag", document.driver_lag_ms),
    ] {
        table.push(spread_row(name, spread));
    }
    section.tables.push(table);
    if document.counts.ok < document.counts.offered {
        let caption = "All offered requests: one that did not end well took for ever";
        let headers = ["ms", "n", "p50", "p90", "p95", "p99", "p99.9", "max"];
        let mut table = Table::new(caption, 1, &headers);
        for (name, spread) in [
            ("TTFT", document.offered.ttft_ms),
            ("E2E", document.offered.e2e_ms),
        ] {
            table.push(offered_row(name, spread));
        }
        section.tables.push(table);
    }
    section
}

fn offered_row(name: &str, spread: Option<OfferedSpread>) -> Vec<String> {
    let Some(s) = spread else {
        let mut row = vec![name.to_owned(), "0".to_owned()];
        row.resize(8, ABSENT.to_owned());
        return row;
    };
    let text = |latency| match latency {
        Latency::Ms(ms) => significant(ms),
        Latency::Endless => "∞".to_owned(),
    };
    let values = [s.p50, s.p90, s.p95, s.p99, s.p999, s.max].map(text);
    let head = [name.to_owned(), s.n.to_string()];
    head.into_iter().chain(values).collect()
}

pub(super) fn time(document: &Document) -> Section {
    let mut section = Section::new("time", "Over time");
    let stalls = &document.stalls;
    section.text.push(match stalls.count {
        None => "No stream had two content events: there are no gaps.".to_owned(),
        Some(0) => format!(
            "No gap was a stall, which is one of at least {} ms.",
            number(stalls.threshold_ms)
        ),
        Some(n) => format!(
            "Stalls, gaps of at least {} ms: {n}, {} ms in all, {} % of the streaming time, the \
             longest {} ms.",
            number(stalls.threshold_ms),
            number(stalls.total_ms),
            percent(stalls.share),
            number(stalls.longest_ms)
        ),
    });
    section
}

pub(super) fn classes(document: &Document) -> Option<Section> {
    if document.classes.len() < 2 {
        return None;
    }
    let mut section = Section::new("classes", "Classes of the workload");
    let headers = [
        "class", "offered", "ok", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "E2E p99", "stalls",
    ];
    let mut table = Table::new("Latencies in ms", 1, &headers);
    for (name, class) in &document.classes {
        let at = |spread: Option<Spread>, of: fn(&Spread) -> f64| number(spread.as_ref().map(of));
        table.push(vec![
            name.clone(),
            class.counts.offered.to_string(),
            class.counts.ok.to_string(),
            at(class.ttft_ms, |s| s.p50),
            at(class.ttft_ms, |s| s.p99),
            at(class.itl_ms, |s| s.p50),
            at(class.itl_ms, |s| s.p99),
            at(class.e2e_ms, |s| s.p99),
            count(class.stalls.count),
        ]);
    }
    section.tables.push(table);
    Some(section)
}

pub(super) fn totals(document: &Document) -> Section {
    let mut section = Section::new("totals", "Requests, tokens and rates");
    let counts = &document.counts;
    let headers = [
        "offered",
        "ok",
        "failed",
        "broken off",
        "cut at the end",
        "never sent",
    ];
    let mut table = Table::new("How requests ended; the five sum to offered", 0, &headers);
    let numbers = [
        counts.offered,
        counts.ok,
        counts.failed,
        counts.truncated,
        counts.incomplete,
        counts.not_offered,
    ];
    table.push(numbers.map(|n| n.to_string()).to_vec());
    section.tables.push(table);
    let (tokens, rates) = (&document.tokens, &document.rates);
    let mut table = Table::new(
        "Tokens of the requests that ended well",
        1,
        &["what", "tokens"],
    );
    for (name, value) in [
        ("prompts, as planned", Some(tokens.input_planned)),
        ("prompts, as the server counts", tokens.input_served),
        (
            "output: the server's count, else the stream's",
            Some(tokens.output),
        ),
        (
            "output, of these from the stream",
            Some(tokens.output_estimated),
        ),
        (
            "output that the streams carried",
            Some(tokens.output_streamed),
        ),
        ("content events", Some(tokens.events)),
    ] {
        table.push(vec![name.to_owned(), count(value)]);
    }
    section.tables.push(table);
    let mut table = Table::new("Rates per second of the run", 1, &["what", "per second"]);
    for (name, value) in [
        ("requests due", rates.offered_rps),
        ("requests that ended well", rates.achieved_rps),
        ("requests within every limit", rates.goodput_rps),
        ("output tokens", rates.output_tps),
        (
            "output tokens, failed requests included",
            rates.streamed_tps,
        ),
        ("prompt tokens", rates.input_tps),
    ] {
        table.push(vec![name.to_owned(), number(value)]);
    }
    section.tables.push(table);
    section
}

pub(super) fn demands(document: &Document) -> Option<Section> {
    if document.slo.is_empty() && document.gates.is_empty() {
        return None;
    }
    let mut section = Section::new("demands", "Limits and demands");
    if !document.slo.is_empty() {
        let caption = "Limits; the share is of all offered requests";
        let mut table = Table::new(caption, 1, &["limit", "ms", "met by", "%"]);
        for (name, attained) in &document.slo {
            let limit = significant(attained.limit_ms);
            let share = percent(attained.share);
            table.push(vec![name.clone(), limit, attained.met.to_string(), share]);
        }
        section.tables.push(table);
    }
    if !document.gates.is_empty() {
        let headers = ["demand", "state", "found %", "asked %"];
        let mut table = Table::new("Demands", 2, &headers);
        for gate in &document.gates {
            let word = if gate.pass { "passed" } else { "FAILED" };
            let (found, asked) = (percent(gate.attained), percent(Some(gate.required)));
            table.push(vec![gate.name.clone(), word.to_owned(), found, asked]);
        }
        section.tables.push(table);
    }
    Some(section)
}

pub(super) fn failures(report: &BenchReport<'_>) -> Option<Section> {
    let pictures = report.pictures;
    if pictures.failures.is_empty() {
        return None;
    }
    let mut section = Section::new("failures", "Failures");
    let headers = ["kind", "message", "status", "requests", "first"];
    let mut table = Table::new("By kind, status and message", 2, &headers);
    for failure in &pictures.failures {
        table.push(vec![
            failure.kind.clone(),
            failure.message.clone(),
            failure
                .status
                .map_or_else(|| ABSENT.to_owned(), |s| s.to_string()),
            failure.count.to_string(),
            failure.first.to_string(),
        ]);
    }
    section.tables.push(table);
    if pictures.more_failures > 0 {
        let more = format!(
            "{} further failures are not listed.",
            pictures.more_failures
        );
        section.text.push(more);
    }
    Some(section)
}
