//! The sections of a load run's report.

use pb_bench::{Document, Spread, Steady};

use super::BenchReport;
use super::numbers::{classes, demands, failures, latency, time, totals};
use super::origin::{calibration, load, server, shards};
use crate::format::{ABSENT, significant};
use crate::sections::Section;
use crate::table::Table;
use crate::tone::Tone;

pub(super) fn title(document: &Document) -> String {
    let identity = &document.identity;
    match (identity.model.is_empty(), identity.base_url.is_empty()) {
        (false, false) => format!("bench: {} at {}", identity.model, identity.base_url),
        (false, true) => format!("bench: {}", identity.model),
        (true, _) => "bench".to_owned(),
    }
}

pub(super) fn receipt(document: &Document) -> String {
    let identity = &document.identity;
    let workload = &document.workload.facts.dataset;
    let schedule: String = document.schedule_sha256.chars().take(12).collect();
    let parts = [
        identity.created.clone(),
        identity.label.clone().unwrap_or_default(),
        named("server", &identity.server),
        named("workload", workload),
        named("arrivals", &document.load.asked.arrival),
        format!("seed {}", document.seed),
        named("schedule", &schedule),
        identity.tool.clone(),
    ];
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join(" · ")
}

fn named(name: &str, value: &str) -> String {
    match value {
        "" => String::new(),
        value => format!("{name} {value}"),
    }
}

pub(super) fn headline(document: &Document) -> &'static str {
    let met = document.gates.iter().all(|gate| gate.pass);
    match (document.counts.ok, document.validity.valid, met) {
        (0, ..) => "No request ended well",
        (_, false, _) => "Not valid",
        (_, true, false) => "Valid, and a demand was not met",
        (_, true, true) => "Valid",
    }
}

pub(super) fn tone(document: &Document) -> Tone {
    match headline(document) {
        "Valid" => Tone::Plain,
        "Valid, and a demand was not met" => Tone::Fail,
        _ => Tone::Void,
    }
}

pub(super) fn sentence(document: &Document) -> String {
    let counts = &document.counts;
    let mut text = format!("{} of {} requests ended well", counts.ok, counts.offered);
    for (name, spread) in [
        ("TTFT", document.ttft_ms),
        ("ITL", document.itl_ms),
        ("E2E", document.e2e_ms),
    ] {
        if let Some(spread) = spread {
            let (p50, p99) = (significant(spread.p50), significant(spread.p99));
            text.push_str(&format!("; {name} p50 {p50} ms, p99 {p99} ms"));
        }
    }
    text + "."
}

/// All sections, validity first.
pub(super) fn sections(report: &BenchReport<'_>) -> Vec<Section> {
    let document = report.document;
    let mut all = vec![validity(report), latency(document), time(document)];
    all.extend(classes(document));
    all.push(totals(document));
    all.extend(demands(document));
    all.extend(failures(report));
    all.push(load(document));
    all.extend(document.server.as_ref().map(server));
    all.extend(super::transfers::section(&report.pictures.transfers));
    all.push(calibration(document.calibration.as_ref()));
    all.extend(shards(&document.shards));
    all.push(Section::new("requests", "Each request"));
    let drawn = all.last_mut();
    if let Some(section) = drawn {
        section.text.push(
            "The first requests and the slowest ones are drawn one by one in report.html; \
                 every row is in requests.csv."
                .to_owned(),
        );
    }
    all
}

/// What a reason against the run begins with.
pub(super) const REASON: &str = "Reason: ";

fn validity(report: &BenchReport<'_>) -> Section {
    let document = report.document;
    let validity = &document.validity;
    let mut section = Section::new("validity", "May these numbers be used?");
    section.text.push(match validity.valid {
        true => "Yes: no reason speaks against them.".to_owned(),
        false => "No. The numbers below are shown for diagnosis and support no claim.".to_owned(),
    });
    let reasons = validity
        .reasons
        .iter()
        .map(|reason| format!("{REASON}{reason}."));
    section.text.extend(reasons);
    section
        .text
        .extend(document.warnings.iter().map(|w| format!("Note: {w}.")));
    section
        .text
        .extend(report.notes.iter().map(|n| format!("Note: {n}.")));
    section.tables.push(checks(document));
    section
}

/// How the prefix cache stood, as a state and in words.
fn cache_state(document: &Document) -> (&'static str, String) {
    let cache = &document.cache;
    let word = match cache.state.as_str() {
        "asis" => "not checked",
        "unproven" => "NOT PROVEN",
        _ => "proven",
    };
    let mut found = format!(
        "{}; {} prompt tokens planned to be found, {} found, {} requests say so",
        cache.state,
        count(cache.planned_hit_tokens),
        count(cache.measured_hit_tokens),
        cache.known_rows
    );
    if let Some(rate) = cache.hit_rate {
        found.push_str(&format!("; hit rate {} %", percent(Some(rate))));
    }
    (word, found)
}

/// What was checked, with what was found.
fn checks(document: &Document) -> Table {
    let mut table = Table::new("What was checked", 3, &["condition", "state", "found"]);
    let state = |held: bool| if held { "held" } else { "BROKEN" }.to_owned();
    let load = &document.load;
    let limit = load
        .asked
        .lag_limit_ms
        .unwrap_or(pb_bench::load::LAG_LIMIT_MS);
    for (name, spread, limit) in [
        ("driver lag p99", load.untied_lag_ms, limit),
        (
            "send spread p99",
            load.send_spread_ms,
            pb_bench::load::SPREAD_LIMIT_MS,
        ),
    ] {
        let found = spread.map_or_else(
            || "no such request".to_owned(),
            |s| {
                format!(
                    "{} ms of at most {limit} ms, {} requests",
                    significant(s.p99),
                    s.n
                )
            },
        );
        let word = spread.map_or("not checked".to_owned(), |s| state(s.p99 <= limit));
        table.push(vec![name.to_owned(), word, found]);
    }
    let counts = &document.counts;
    let unsent = format!("{} of {} never sent", counts.not_offered, counts.offered);
    table.push(vec![
        "all sent".into(),
        state(counts.not_offered == 0),
        unsent,
    ]);
    let ended = document.state.clone();
    table.push(vec![
        "reached its end".into(),
        state(ended == "complete"),
        ended,
    ]);
    let contradictions = document.validity.reasons.iter();
    let contradictions = contradictions.filter(|reason| reason.contains("contradiction: "));
    let found = match contradictions.count() {
        0 => "no file contradicts another one".to_owned(),
        n => format!("contradictions of {n} kinds"),
    };
    let agree = state(found.starts_with("no "));
    table.push(vec!["files agree".into(), agree, found]);
    for one in &document.steadiness {
        let word = match one.verdict {
            Steady::Steady => "held",
            Steady::Drifts | Steady::Start => "NOT HELD",
            Steady::NotChecked => "not checked",
        };
        table.push(vec!["steady state".into(), word.into(), one.words()]);
    }
    let (word, found) = cache_state(document);
    table.push(vec!["prefix cache".into(), word.to_owned(), found]);
    let (word, fixed) = lengths(document.length_controlled);
    table.push(vec!["output length".into(), word.into(), fixed.to_owned()]);
    table
}

/// Whether answers have the length asked for.
fn lengths(controlled: Option<bool>) -> (&'static str, &'static str) {
    match controlled {
        None => ("not checked", "no answer"),
        Some(true) => ("held", "every answer has the length asked for"),
        // Allowed, but the lengths of two runs then differ.
        Some(false) => (
            "not held",
            "answers ended where the model or the server ended them",
        ),
    }
}

pub(super) const SPREAD: [&str; 9] = [
    "ms", "n", "mean", "p50", "p90", "p95", "p99", "p99.9", "max",
];

pub(super) fn spread_row(name: &str, spread: Option<Spread>) -> Vec<String> {
    let Some(s) = spread else {
        let mut row = vec![name.to_owned(), "0".to_owned()];
        row.resize(SPREAD.len(), ABSENT.to_owned());
        return row;
    };
    let values = [s.mean, s.p50, s.p90, s.p95, s.p99, s.p999, s.max].map(significant);
    let head = [name.to_owned(), s.n.to_string()];
    head.into_iter().chain(values).collect()
}

pub(super) fn number(value: Option<f64>) -> String {
    value.map_or_else(|| ABSENT.to_owned(), significant)
}

pub(super) fn count(value: Option<u64>) -> String {
    value.map_or_else(|| ABSENT.to_owned(), |n| n.to_string())
}

pub(super) fn percent(share: Option<f64>) -> String {
    crate::format::percent_or_dash(share)
}
