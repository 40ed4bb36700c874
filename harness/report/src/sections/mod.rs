//! What a report says, section by section, before it is drawn.

mod comparison;
mod correctness;
mod engine;
mod latency;
mod validity;

pub(crate) use comparison::{conclusion_word, interval, name as metric_name, p_value};

use pb_judge::run::{ArmSummary, RunVerdict};

use crate::table::Table;

/// A section: heading, a list, sentences, tables. `key` says which pictures belong to it.
pub(crate) struct Section {
    pub(crate) key: &'static str,
    pub(crate) title: String,
    /// A list before the sentences.
    pub(crate) points: Vec<String>,
    pub(crate) text: Vec<String>,
    pub(crate) tables: Vec<Table>,
    /// On the page, tables and pictures are folded behind these words.
    pub(crate) folded: Option<String>,
}

impl Section {
    pub(crate) fn new(key: &'static str, title: &str) -> Section {
        Section {
            key,
            title: title.to_owned(),
            points: Vec::new(),
            text: Vec::new(),
            tables: Vec::new(),
            folded: None,
        }
    }
}

/// How much a report shows. What `Brief` leaves out agrees with what it shows; nothing that is
/// broken, failed or undecided is ever left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// For a terminal: a few screens.
    Brief,
    /// For a file: every row.
    Full,
}

/// All sections in the order of the gates.
pub(crate) fn sections(verdict: &RunVerdict, detail: Detail) -> Vec<Section> {
    let mut all = vec![
        validity::section(verdict, detail),
        correctness::section(verdict, detail),
    ];
    all.extend(comparison::section(verdict, detail));
    all.push(latency::section(verdict, detail));
    all.push(engine::steps(verdict));
    all.push(engine::buckets(verdict));
    all.extend(engine::cache(verdict));
    // When all is well, the first condition of validity has said how requests ended.
    let all_ok = |arm: &ArmSummary| arm.all.counts.ok == arm.all.counts.offered;
    if detail == Detail::Full || !verdict.performance.arms.iter().all(all_ok) {
        all.push(requests(verdict, detail));
    }
    all.push(about(verdict, detail));
    all
}

/// The heading of the report.
pub(crate) fn title(verdict: &RunVerdict) -> String {
    match &verdict.performance.comparison {
        Some(c) if !c.subject.is_empty() => format!("{}: {}", verdict.kind, c.subject),
        Some(c) => format!("{}: {} against {}", verdict.kind, c.candidate, c.baseline),
        None => verdict.kind.clone(),
    }
}

/// One line that says what was measured on what.
pub(crate) fn receipt(verdict: &RunVerdict) -> String {
    let parts = [
        verdict.created.clone(),
        verdict.model.clone(),
        verdict.machine.clone(),
        verdict.tool.clone(),
        format!("seed {}", verdict.seed),
    ];
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join(" · ")
}

/// The arms that tables of latencies show: the compared ones, or all without a comparison.
pub(crate) fn shown_arms(verdict: &RunVerdict) -> Vec<&ArmSummary> {
    let performance = &verdict.performance;
    match &performance.comparison {
        None => performance.arms.iter().collect(),
        Some(c) => [&c.baseline, &c.candidate]
            .into_iter()
            .filter_map(|n| performance.arm(n))
            .collect(),
    }
}

fn requests(verdict: &RunVerdict, detail: Detail) -> Section {
    let mut section = Section::new("requests", "Requests and tokens");
    let headers = [
        "arm", "class", "offered", "ok", "failed", "broken", "cut", "unsent", "prompt", "cached",
        "output",
    ];
    let caption = match detail {
        Detail::Full => {
            "How requests ended, and their tokens. Broken: the stream broke off; cut: still \
             running at the end; unsent: due but never sent. The five kinds sum to offered"
        }
        Detail::Brief => "How requests ended, and their tokens",
    };
    let mut table = Table::new(caption, 2, &headers);
    for arm in &verdict.performance.arms {
        let all = std::iter::once(("all", &arm.all));
        let classes = arm
            .classes
            .iter()
            .map(|(name, summary)| (name.as_str(), summary))
            .filter(|_| detail == Detail::Full);
        for (class, summary) in all.chain(classes) {
            let counts = &summary.counts;
            let mut row = vec![arm.name.clone(), class.to_owned()];
            let numbers = [
                counts.offered,
                counts.ok,
                counts.failed,
                counts.truncated,
                counts.incomplete,
                counts.not_offered,
                summary.prompt_tokens,
            ];
            row.extend(numbers.map(|n| n.to_string()));
            row.push(crate::format::count_or_dash(summary.cached_tokens));
            row.push(summary.output_tokens.to_string());
            table.push(row);
        }
        let failures = arm.all.counts.failures.iter();
        let named: Vec<String> = failures.map(|(kind, n)| format!("{kind} {n}")).collect();
        if !named.is_empty() {
            section
                .text
                .push(format!("Failures of {}: {}.", arm.name, named.join(", ")));
        }
    }
    section.tables.push(table);
    section
}

fn about(verdict: &RunVerdict, detail: Detail) -> Section {
    let mut section = Section::new("about", "About this run");
    if detail == Detail::Full {
        section.text.push(receipt(verdict));
    }
    if let Some(reason) = &verdict.substitute_reason {
        section
            .text
            .push(format!("The model is a substitute: {reason}"));
    }
    if !verdict.finished {
        section.text.push(
            "The run did not reach its end; every request that had finished is counted.".to_owned(),
        );
    }
    section.text.extend(verdict.remarks.iter().cloned());
    let performance = &verdict.performance;
    section.text.push(format!(
        "Latency counts from the intended arrival. Percentiles: {} on raw nanoseconds. Token gaps: \
         the gap before a bundle of tokens is spread by the rule \"{}\". A dash means that there \
         is no value.",
        performance.quantile_rule, performance.bundle_rule
    ));
    if detail == Detail::Brief {
        let more = "More rows, statistics and pictures are in report.md and report.html.";
        section.text.push(more.to_owned());
    }
    section
}
