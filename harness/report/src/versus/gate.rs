//! The tables of a gate.

use pb_judge::gate::{GateOutcome, GateReport, Kind, RuleResult, State};

use super::comparison::percent_of;
use super::shown;
use crate::format::{ABSENT, percent, percent_change};
use crate::sections::{Section, interval};
use crate::table::Table;
use crate::tone::Tone;

pub(super) fn tone(report: &GateReport) -> Tone {
    match report.outcome {
        GateOutcome::Pass => Tone::Better,
        GateOutcome::Fail => Tone::Fail,
        GateOutcome::Inconclusive => Tone::Inconclusive,
        GateOutcome::Void => Tone::Void,
    }
}

pub(super) fn sections(report: &GateReport) -> Vec<Section> {
    let mut all = Vec::new();
    if !report.void.is_empty() {
        let mut void = Section::new("void", "Why it is void");
        void.text.extend(report.void.iter().cloned());
        all.push(void);
    }
    all.push(rules(report));
    let notes = report.comparison.iter().flat_map(|c| &c.notes);
    let notes: Vec<String> = notes.map(|note| format!("Note: {note}.")).collect();
    if !notes.is_empty() {
        let mut section = Section::new("notes", "Notes");
        section.text = notes;
        all.push(section);
    }
    all
}

fn rules(report: &GateReport) -> Section {
    let mut section = Section::new("rules", "Rules");
    let confidence = percent_of(1.0 - 2.0 * report.policy.alpha);
    let mut table = Table::new(
        "The interval is of the candidate's value, or of the change in % or points",
        2,
        &[
            "rule",
            "result",
            "baseline",
            "candidate",
            &format!("interval {confidence}"),
        ],
    );
    for rule in &report.rules {
        table.push(row(rule));
        if matches!(rule.state, State::Fail | State::Inconclusive) {
            section.text.push(format!(
                "{}: {}: {}.",
                rule.rule,
                rule.state.word(),
                rule.why
            ));
        }
    }
    section.tables.push(table);
    section
}

fn row(rule: &RuleResult) -> Vec<String> {
    let unit = rule.unit.as_deref().unwrap_or("");
    let value = |v: Option<f64>| v.map_or_else(|| ABSENT.to_owned(), |v| shown(v, unit));
    vec![
        rule.rule.clone(),
        rule.state.word().to_owned(),
        value(rule.baseline),
        value(rule.candidate),
        bounds(rule, unit),
    ]
}

fn bounds(rule: &RuleResult, unit: &str) -> String {
    let Some(found) = rule.interval else {
        return ABSENT.to_owned();
    };
    let write = |value: f64| match (rule.kind, unit) {
        (Kind::Change, "share") => {
            let sign = if value > 0.0 { "+" } else { "" };
            format!("{sign}{}", percent(value))
        }
        (Kind::Change, _) => percent_change(value),
        _ => shown(value, unit),
    };
    interval(&write(found.point), &write(found.low), &write(found.high))
}
