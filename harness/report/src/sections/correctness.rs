//! Whether the outputs were right, with the share of each limit that was used.

use std::collections::BTreeMap;

use pb_judge::Verdict;
use pb_judge::numerics::{Check, CheckName, ConfigVerdict, grouped, plain};
use pb_judge::run::{NumericsNote, PlantedFault, RunVerdict};

use super::{Detail, Section};
use crate::format::ABSENT;
use crate::table::Table;

pub(super) fn section(verdict: &RunVerdict, detail: Detail) -> Section {
    let correctness = &verdict.correctness;
    let mut section = Section::new("correctness", "Are the outputs right?");
    let word = correctness.state.word();
    section
        .text
        .push(match correctness.is_only_more_accurate() {
            true => format!("Numerics: {word}, the accuracy differs from the monolithic pass's."),
            false => format!("Numerics: {word}."),
        });
    section.text.extend(correctness.reasons.iter().cloned());
    if !correctness.reports.is_empty() {
        section.tables.push(match detail {
            Detail::Full => full_variants(&correctness.reports),
            Detail::Brief => brief_variants(&correctness.reports),
        });
        if detail == Detail::Full {
            section.tables.extend(tolerances(&correctness.reports));
        }
    }
    if !correctness.planted_faults.is_empty() {
        section
            .tables
            .push(faults(&correctness.planted_faults, detail));
    }
    section
}

fn full_variants(reports: &[NumericsNote]) -> Table {
    let headers = [
        "variant",
        "verdict",
        "bits",
        "worst statistic",
        "value",
        "limit",
        "used %",
    ];
    let mut table = Table::new(CAPTION, 4, &headers);
    for note in reports {
        let worst = note.config.as_ref().and_then(ConfigVerdict::worst);
        let mut row = vec![note.label.clone(), word(note).to_owned()];
        row.push(bits(note).unwrap_or_else(|| ABSENT.to_owned()));
        row.push(worst.map_or_else(|| ABSENT.to_owned(), |c| c.name.words().to_owned()));
        row.extend(numbers(worst));
        table.push(row);
    }
    table
}

const CAPTION: &str = "Variants that must agree with the monolithic pass";

/// As [`full_variants`] on fewer lines: variants of one mode whose bits are all equal are one row.
/// What failed or is undecided always has a row of its own.
fn brief_variants(reports: &[NumericsNote]) -> Table {
    let headers = ["variant", "verdict", "evidence", "value", "limit", "used %"];
    let mut table = Table::new(CAPTION, 3, &headers);
    let mut done: Vec<&str> = Vec::new();
    for note in reports {
        let mode = mode(note);
        let same = || {
            reports
                .iter()
                .filter(|n| only_equal_bits(n) && self::mode(n) == mode)
        };
        let count = same().count();
        if only_equal_bits(note) && count > 1 {
            if !done.contains(&mode) {
                done.push(mode);
                let rows: u64 = same().filter_map(|n| n.bits.as_ref()).map(|b| b.rows).sum();
                let colon = if mode.is_empty() { "" } else { ": " };
                let mut row = vec![
                    format!("{mode}{colon}{count} variants"),
                    word(note).to_owned(),
                    format!("all bits equal, {} rows", grouped(rows)),
                ];
                row.extend(numbers(None));
                table.push(row);
            }
            continue;
        }
        let worst = note.config.as_ref().and_then(ConfigVerdict::worst);
        let statistic = worst.map(|check| check.name.words().to_owned());
        let evidence: Vec<String> = bits(note).into_iter().chain(statistic).collect();
        let mut row = vec![note.label.clone(), word(note).to_owned()];
        row.push(match evidence.is_empty() {
            true => ABSENT.to_owned(),
            false => evidence.join("; "),
        });
        row.extend(numbers(worst));
        table.push(row);
    }
    table
}

/// What stands before the colon of a label such as `exact: chunk 16`.
fn mode(note: &NumericsNote) -> &str {
    note.label.split_once(": ").map_or("", |(mode, _)| mode)
}

fn only_equal_bits(note: &NumericsNote) -> bool {
    note.config.is_none() && note.bits.as_ref().is_some_and(|bits| bits.is_equal())
}

/// What was planted, whether it was noticed and how far it is beyond the limits.
fn faults(faults: &[PlantedFault], detail: Detail) -> Table {
    let headers = ["planted fault", "result", "evidence", "used %"];
    let caption = "Faults that the same check must reject";
    let mut table = match detail {
        Detail::Full => {
            let caption = format!("{caption}; used: the worst finite share of a limit");
            Table::new(caption, 3, &headers)
        }
        Detail::Brief => Table::new(caption, 3, &headers[..3]),
    };
    for fault in faults {
        let state = if fault.rejected {
            "rejected"
        } else {
            "NOT NOTICED"
        };
        let mut row = vec![
            fault.label.clone(),
            state.to_owned(),
            evidence(fault, detail),
        ];
        if detail == Detail::Full {
            let worst = fault.config.as_ref().and_then(ConfigVerdict::worst_finite);
            row.push(used(worst));
        }
        table.push(row);
    }
    table
}

/// The broken rules in words. In brief only the one that is furthest beyond its limit.
fn evidence(fault: &PlantedFault, detail: Detail) -> String {
    let Some(config) = &fault.config else {
        return fault.evidence.clone();
    };
    let reasons = match config.restated() {
        Verdict::Fail { reasons } => reasons,
        Verdict::Pass | Verdict::Inconclusive { .. } => return fault.evidence.clone(),
    };
    match (detail, config.worst_finite()) {
        (Detail::Brief, Some(worst)) if reasons.contains(&worst.sentence()) => {
            let more = match reasons.len() - 1 {
                0 => String::new(),
                n => format!("; and {n} more"),
            };
            format!("{}{more}", worst.sentence())
        }
        _ => reasons.join("; "),
    }
}

/// The worst value of each statistic over all variants, against its limit. `None` when no
/// statistical check was made.
fn tolerances(reports: &[NumericsNote]) -> Option<Table> {
    let mut worst: BTreeMap<CheckName, (&Check, &str)> = BTreeMap::new();
    for note in reports {
        for check in note.config.iter().flat_map(|config| &config.checks) {
            let kept = worst.entry(check.name).or_insert((check, &note.label));
            if check.share.unwrap_or(0.0) > kept.0.share.unwrap_or(0.0) {
                *kept = (check, &note.label);
            }
        }
    }
    let headers = ["statistic", "variant", "value", "limit", "used %"];
    let mut table = Table::new("Worst of each statistic over all variants", 2, &headers);
    for (check, label) in worst.into_values() {
        let mut row = vec![check.name.words().to_owned(), label.to_owned()];
        row.extend(numbers(Some(check)));
        table.push(row);
    }
    (!table.rows.is_empty()).then_some(table)
}

fn word(note: &NumericsNote) -> &'static str {
    let verdicts = note.verdicts();
    if verdicts.iter().any(Verdict::is_fail) {
        if note.is_only_more_accurate() {
            "fail (more accurate)"
        } else {
            "fail"
        }
    } else if !verdicts.is_empty() && verdicts.iter().all(Verdict::is_pass) {
        "pass"
    } else {
        "inconclusive"
    }
}

/// What the comparison of bits found; `None` when there was none.
fn bits(note: &NumericsNote) -> Option<String> {
    let bits = note.bits.as_ref()?;
    let rows = grouped(bits.rows);
    Some(match bits.is_equal() {
        true => format!("equal ({rows} rows)"),
        false => format!("{} of {rows} rows differ", grouped(bits.differing_rows)),
    })
}

/// Value, limit and the share of the limit in percent.
fn numbers(check: Option<&Check>) -> [String; 3] {
    let dash = || ABSENT.to_owned();
    let value = check.filter(|check| check.value.is_some());
    [
        value.map_or_else(dash, Check::value_words),
        check.map_or_else(dash, |check| plain(check.limit)),
        used(check),
    ]
}

fn used(check: Option<&Check>) -> String {
    let share = check.and_then(|check| check.share);
    share.map_or_else(|| ABSENT.to_owned(), |share| plain(share * 100.0))
}
