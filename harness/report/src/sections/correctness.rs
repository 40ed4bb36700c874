//! Whether the outputs were right, with the share of each limit that was used.

use std::collections::BTreeMap;

use pb_judge::Verdict;
use pb_judge::numerics::{Check, CheckName, ConfigVerdict};
use pb_judge::run::{NumericsNote, RunVerdict};

use super::Section;
use crate::format::{ABSENT, significant};
use crate::plots::numerics::check_name;
use crate::table::Table;

pub(super) fn section(verdict: &RunVerdict) -> Section {
    let correctness = &verdict.correctness;
    let mut section = Section::new("correctness", "Are the outputs right?");
    section
        .text
        .push(format!("Numerics: {}.", correctness.state.word()));
    section.text.extend(correctness.reasons.iter().cloned());
    if !correctness.reports.is_empty() {
        let headers = [
            "variant",
            "verdict",
            "bits",
            "worst statistic",
            "value",
            "limit",
            "used %",
        ];
        let caption = "Variants that must agree with the monolithic pass";
        let mut table = Table::new(caption, 4, &headers);
        correctness
            .reports
            .iter()
            .for_each(|note| table.push(report_row(note)));
        section.tables.push(table);
        section.tables.extend(tolerances(&correctness.reports));
    }
    if !correctness.planted_faults.is_empty() {
        let headers = ["planted fault", "the check", "evidence", "used %"];
        let mut table = Table::new("Faults that the same check must reject", 3, &headers);
        for fault in &correctness.planted_faults {
            let worst = fault.config.as_ref().and_then(ConfigVerdict::worst);
            table.push(vec![
                fault.label.clone(),
                if fault.rejected {
                    "rejected"
                } else {
                    "NOT NOTICED"
                }
                .to_owned(),
                fault.evidence.clone(),
                used(worst),
            ]);
        }
        section.tables.push(table);
    }
    section
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
        table.push(vec![
            check_name(check.name).to_owned(),
            label.to_owned(),
            check.value.map_or_else(|| ABSENT.to_owned(), significant),
            significant(check.limit),
            used(Some(check)),
        ]);
    }
    (!table.rows.is_empty()).then_some(table)
}

fn report_row(note: &NumericsNote) -> Vec<String> {
    let verdicts = note.verdicts();
    let word = if verdicts.iter().any(Verdict::is_fail) {
        "fail"
    } else if !verdicts.is_empty() && verdicts.iter().all(Verdict::is_pass) {
        "pass"
    } else {
        "inconclusive"
    };
    let bits = note.bits.as_ref().map_or_else(
        || ABSENT.to_owned(),
        |bits| match bits.is_equal() {
            true => format!("equal ({} rows)", bits.rows),
            false => format!("{} of {} rows differ", bits.differing_rows, bits.rows),
        },
    );
    let worst = note.config.as_ref().and_then(ConfigVerdict::worst);
    let dash = || ABSENT.to_owned();
    vec![
        note.label.clone(),
        word.to_owned(),
        bits,
        worst.map_or_else(dash, |check| check_name(check.name).to_owned()),
        worst
            .and_then(|check| check.value)
            .map_or_else(dash, significant),
        worst.map_or_else(dash, |check| significant(check.limit)),
        used(worst),
    ]
}

fn used(check: Option<&Check>) -> String {
    let share = check.and_then(|check| check.share);
    share.map_or_else(|| ABSENT.to_owned(), |share| significant(share * 100.0))
}
