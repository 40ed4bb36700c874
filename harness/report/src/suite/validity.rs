//! Whether the numbers of a suite may be used: checked again from the cells, and told first.

use std::collections::BTreeMap;

use super::bias::kind;
use super::measure::Measure;
use super::read::{Cell, SuiteDir};
use super::rejudge::{Again, rejudged};
use super::settings::{Over, Setting};
use crate::format::{ABSENT, percent, significant};
use crate::sections::Section;
use crate::table::Table;

/// What a reason against a cell holds when its client was late.
const LATE: &str = "driver lag";

/// Kinds of reasons that are told.
const TOLD: usize = 8;

/// Relative difference from which on two values are not the same number.
const SAME: f64 = 1e-9;

/// What was found, for the panel and the head of the report.
#[derive(Debug)]
pub(super) struct Validity {
    /// What is checked, its state, what was found.
    pub(super) checks: Vec<[String; 3]>,
    /// What speaks against some of the numbers.
    pub(super) reasons: Vec<String>,
    /// Files that contradict one another: nothing of the report may be claimed.
    pub(super) broken: bool,
}

/// Whether what must be so is so: if not, nothing may be claimed.
fn held(yes: bool) -> &'static str {
    if yes { "held" } else { "BROKEN" }
}

/// Whether what should be so is so; if not, how many are out, which costs data and no claim.
fn met(out: usize, what: &str) -> String {
    match out {
        0 => "ok".to_owned(),
        1 => format!("1 {what} out"),
        n => format!("{n} {what}s out"),
    }
}

fn check(what: &str, state: &str, found: String) -> [String; 3] {
    [what.to_owned(), state.to_owned(), found]
}

/// Checks a suite.
pub(super) fn validity(suite: &SuiteDir) -> Validity {
    let mut checks = cells_there(suite);
    let contradictory = suite
        .cells
        .iter()
        .filter(|cell| !cell.contradictions.is_empty());
    let contradictory = contradictory.count();
    let from_rows = suite.cells.iter().filter(|cell| cell.from_rows).count();
    let found = match contradictory {
        0 => format!("{from_rows} documents made again from their rows"),
        n => format!("{n} cells contradict themselves or suite.json"),
    };
    let state = held(contradictory == 0);
    checks.push(check("cells agree with their files", state, found));
    let (values, wrong) = recomputed(suite);
    let (state, n) = (held(wrong.is_empty()), wrong.len());
    let found = format!("{values} values of compared cells looked up again, {n} differ");
    checks.push(check("suite.json agrees with its cells", state, found));
    let (again, stale) = verdicts_again(suite);
    checks.extend(again);
    let unlike = unlike_schedules(suite);
    let found = match unlike.len() {
        0 => "within each block all arms had the same schedule".to_owned(),
        n => format!("in {n} blocks the arms had different schedules"),
    };
    let state = held(unlike.is_empty());
    checks.push(check("same requests for all arms", state, found));
    checks.push(successes(suite));
    checks.extend(client(suite));
    checks.extend(steady(suite));
    checks.extend(demands(suite));
    let comparisons = &suite.file.comparisons;
    if !comparisons.is_empty() {
        let left_out: usize = comparisons.iter().map(|one| one.left_out.len()).sum();
        let used: usize = comparisons.iter().map(|one| one.pairs).sum();
        let found = format!("{used} pairs used, {left_out} left out, over all comparisons");
        checks.push(check(
            "every pair could be used",
            &met(left_out, "pair"),
            found,
        ));
    }
    let mut reasons: Vec<String> = wrong;
    reasons.extend(stale);
    reasons.extend(unlike);
    let broken = contradictory > 0 || !reasons.is_empty();
    reasons.extend(cell_reasons(&suite.cells));
    Validity {
        checks,
        reasons,
        broken,
    }
}

/// Cells whose run came to its end.
fn finished(suite: &SuiteDir) -> impl Iterator<Item = &Cell> {
    let cells = suite.cells.iter();
    cells.filter(|cell| cell.note.state == "complete")
}

/// Documents of the finished cells, with their block.
fn documents(suite: &SuiteDir) -> impl Iterator<Item = (usize, &serde_json::Value)> {
    finished(suite).filter_map(|cell| Some((cell.note.block, cell.document.as_ref()?)))
}

fn cells_there(suite: &SuiteDir) -> Vec<[String; 3]> {
    let (file, all) = (&suite.file, suite.cells.len());
    let finished = finished(suite).count();
    let found = format!(
        "{finished} of {all} cells, {} of {} blocks; the run is {}",
        file.blocks_run, file.blocks_planned, file.state
    );
    let there = match (all - finished, file.state.as_str()) {
        (0, state) if state != "complete" => state.to_owned(),
        (out, _) => met(out, "cell"),
    };
    let valid = suite.cells.iter().filter(|cell| cell.is_valid()).count();
    let usable = format!("{valid} of {finished}; others are left out of every number below");
    let out = met(finished.saturating_sub(valid), "cell");
    vec![
        check("every cell is finished", &there, found),
        check("finished cells are valid", &out, usable),
    ]
}

fn successes(suite: &SuiteDir) -> [String; 3] {
    let what = "requests ended well";
    let rates: Vec<f64> = finished(suite)
        .filter_map(|cell| cell.note.success_rate)
        .collect();
    let Some(least) = rates.iter().copied().min_by(f64::total_cmp) else {
        return check(what, "not checked", "no cell says".to_owned());
    };
    let below = rates
        .iter()
        .filter(|rate| **rate < suite.least_success)
        .count();
    let found = format!(
        "at least {} % in every cell; {below} cells below the {} % that latencies need",
        percent(least),
        percent(suite.least_success)
    );
    check(what, &met(below, "cell"), found)
}

/// How late the client was; each cell was judged by its own limits already.
fn client(suite: &SuiteDir) -> Option<[String; 3]> {
    let lag = Measure::new("driver_lag_ms.p99");
    let values = documents(suite).filter_map(|(block, d)| Some((block, lag.value(d)?)));
    let lags = Over {
        values: values.collect(),
        cells: suite.cells.len(),
    };
    let (median, (_, most)) = (lags.median()?, lags.range()?);
    let calibrated = documents(suite).filter(|(_, d)| !d["calibration"].is_null());
    let calibrated = match (calibrated.count(), documents(suite).count()) {
        (0, _) => "it was not calibrated before the cells".to_owned(),
        (n, all) => format!("calibrated before {n} of {all} cells"),
    };
    let found = format!(
        "p99 of its lag {} ms in the median cell, {} ms in the worst; {calibrated}",
        significant(median),
        significant(most),
    );
    let late = |cell: &&Cell| cell.note.reasons.iter().any(|reason| reason.contains(LATE));
    let late = finished(suite).filter(late).count();
    Some(check("the client was in time", &met(late, "cell"), found))
}

/// Cells by whose figures later requests are not like earlier ones. Some loads drift by design, so
/// this takes no number away.
fn steady(suite: &SuiteDir) -> Option<[String; 3]> {
    let told = documents(suite).filter_map(|(_, document)| {
        let all = document.get("steadiness")?.clone();
        let all: Vec<pb_bench::Steadiness> = serde_json::from_value(all).ok()?;
        Some(all)
    });
    let told: Vec<Vec<pb_bench::Steadiness>> = told.collect();
    if told.is_empty() {
        return None;
    }
    let count = |word: fn(&pb_bench::Steadiness) -> bool| {
        told.iter().filter(|all| all.iter().any(word)).count()
    };
    let drifting = count(|one| one.is_flagged());
    let unknown = count(|one| one.verdict == pb_bench::Steady::NotChecked);
    let found = format!(
        "{drifting} of {} cells drift or settle late by a figure; {unknown} have one that has too \
         few requests to tell",
        told.len()
    );
    // They stay in every number: a word to the reader, nothing that is left out.
    let state = match drifting {
        0 if unknown == told.len() => "not checked".to_owned(),
        0 => "ok".to_owned(),
        1 => "1 cell flagged".to_owned(),
        n => format!("{n} cells flagged"),
    };
    Some(check("cells have a steady state", &state, found))
}

/// The verdicts derived again, and those that `suite.json` has otherwise.
fn verdicts_again(suite: &SuiteDir) -> (Option<[String; 3]>, Vec<String>) {
    let what = "verdicts follow from the cells";
    if suite.file.comparisons.is_empty() && suite.planned.is_null() {
        return (None, Vec::new());
    }
    match rejudged(suite) {
        Again::NotChecked(why) => (Some(check(what, "not checked", why)), Vec::new()),
        Again::Judged(all, wrong) => {
            let found = format!("{all} verdicts derived again, {} differ", wrong.len());
            let row = check(what, held(wrong.is_empty()), found);
            let more = wrong.len().saturating_sub(TOLD);
            let mut told: Vec<String> = wrong.into_iter().take(TOLD).collect();
            told.extend((more > 0).then(|| format!("contradiction: and {more} further verdicts")));
            (Some(row), told)
        }
    }
}

fn demands(suite: &SuiteDir) -> Option<[String; 3]> {
    let failed: usize = suite
        .cells
        .iter()
        .map(|cell| cell.note.gates_failed.len())
        .sum();
    let mut documents = documents(suite);
    let asked = documents.any(|(_, d)| d["gates"].as_array().is_some_and(|g| !g.is_empty()));
    let found = format!("{failed} demands (slo) were not met, over all cells");
    let state = met(failed, "demand");
    (asked || failed > 0).then(|| check("demands on the cells", &state, found))
}

/// How many values of comparisons were found again in the cells, and those that are others there.
fn recomputed(suite: &SuiteDir) -> (usize, Vec<String>) {
    let mut found = 0;
    let mut wrong = Vec::new();
    for one in &suite.file.comparisons {
        let measure = one.measure();
        for (arm, values) in [
            (&one.baseline, &one.baseline_values),
            (&one.candidate, &one.candidate_values),
        ] {
            for (block, value) in one.blocks.iter().zip(values) {
                let own = |cell: &&Cell| {
                    let note = &cell.note;
                    note.block == *block && note.arm == *arm && note.condition == one.condition
                };
                let cell = suite.cells.iter().find(own);
                let document = cell.and_then(|cell| cell.document.as_ref());
                let own = document.and_then(|document| measure.value(document));
                match own {
                    Some(own) if (own - value).abs() <= SAME * value.abs() => found += 1,
                    own => wrong.push(format!(
                        "contradiction: {} of {arm} in block {block} is {value} in suite.json and \
                         {} in its cell",
                        one.metric,
                        own.map_or_else(|| "absent".to_owned(), |own| own.to_string()),
                    )),
                }
            }
        }
    }
    (found, wrong)
}

/// Blocks in which the arms of a condition had different schedules.
fn unlike_schedules(suite: &SuiteDir) -> Vec<String> {
    let mut schedules: BTreeMap<(usize, &str), Vec<&str>> = BTreeMap::new();
    for cell in &suite.cells {
        if let Some(schedule) = &cell.note.schedule_sha256 {
            let key = (cell.note.block, cell.note.condition.as_str());
            schedules.entry(key).or_default().push(schedule);
        }
    }
    let unlike = schedules
        .into_iter()
        .filter(|(_, all)| all.iter().any(|one| *one != all[0]));
    let told = |((block, condition), _): ((usize, &str), _)| {
        let at = if condition.is_empty() {
            String::new()
        } else {
            format!(" at {condition}")
        };
        format!("contradiction: in block {block}{at} the arms had different schedules")
    };
    unlike.map(told).collect()
}

/// Reasons of cells that cannot be used, alike ones together.
fn cell_reasons(cells: &[Cell]) -> Vec<String> {
    let mut kinds: Vec<(String, usize, String)> = Vec::new();
    for cell in cells {
        let own = cell.note.reasons.iter().chain(&cell.contradictions);
        for reason in own.filter(|_| !cell.is_valid()) {
            let key = kind(reason).to_owned();
            match kinds.iter_mut().find(|(known, ..)| *known == key) {
                Some((_, count, _)) => *count += 1,
                None => kinds.push((key, 1, format!("{}: {reason}", cell.note.dir))),
            }
        }
    }
    kinds.sort_by_key(|(_, count, _)| std::cmp::Reverse(*count));
    let more = kinds.len().saturating_sub(TOLD);
    let told = kinds
        .into_iter()
        .take(TOLD)
        .map(|(_, count, first)| match count {
            1 => first,
            n => format!("{n} times, first {first}"),
        });
    let mut told: Vec<String> = told.collect();
    if more > 0 {
        told.push(format!(
            "and {more} further kinds of reasons; the table of cells has all"
        ));
    }
    told
}

/// The section of the report.
pub(super) fn section(suite: &SuiteDir, validity: &Validity, settings: &[Setting<'_>]) -> Section {
    let mut section = Section::new("validity", "May these numbers be used?");
    section.text.push(words(suite, validity));
    let mut table = Table::new("What was checked", 3, &["check", "state", "found"]);
    for (number, row) in validity.checks.iter().enumerate() {
        table.push(row.to_vec());
        if row[1].ends_with(" out") || ["interrupted", "incomplete"].contains(&row[1].as_str()) {
            table.classes.insert((number, 1), "open");
        }
    }
    // What is as it should be need not be read.
    if validity
        .checks
        .iter()
        .all(|row| ["held", "ok"].contains(&row[1].as_str()))
    {
        section.folded = Some(format!("All {} checks held", validity.checks.len()));
    }
    section.tables.push(table);
    if suite.cells.iter().any(|cell| !cell.is_valid()) {
        section.tables.push(by_setting(settings));
        section.text.extend(super::bias::bias(suite));
    }
    let mut notes = Vec::new();
    if suite.file.tool["git_dirty"] == true {
        notes.push("the program was built from a changed working tree".to_owned());
    }
    if suite.attempts > 0 {
        let n = suite.attempts;
        notes.push(format!(
            "{n} earlier attempts lie beside the cells and count for nothing"
        ));
    }
    let thinned = suite
        .cells
        .iter()
        .filter(|c| c.document.is_some() && !c.from_rows)
        .count();
    if thinned > 0 {
        notes.push(format!(
            "{thinned} cells have no rows of tokens here: their numbers are those of bench.json \
             and were not made again"
        ));
    }
    section
        .text
        .extend(notes.into_iter().map(|note| format!("Note: {note}.")));
    section
}

fn words(suite: &SuiteDir, validity: &Validity) -> String {
    let usable = suite.cells.iter().filter(|cell| cell.is_valid()).count();
    match (validity.broken, usable, suite.cells.len()) {
        (true, ..) => "No. Files of this directory contradict one another; the numbers below are \
                       shown for diagnosis and support no claim."
            .to_owned(),
        (_, 0, _) => "No: there is no valid cell.".to_owned(),
        (_, usable, all) if usable == all => {
            "Yes: every cell is finished and valid, and nothing contradicts itself.".to_owned()
        }
        (_, usable, all) => {
            format!("In part: {usable} of {all} cells are valid, and only they enter a number.")
        }
    }
}

/// Cells by how they stand, a row a setting that lost some.
fn by_setting(settings: &[Setting<'_>]) -> Table {
    let headers = [
        "arm",
        "condition",
        "cells",
        "valid",
        "void",
        "failed",
        "missing",
        "first reason",
    ];
    let mut table = Table::new(
        "Settings that lost cells; all others have every cell",
        2,
        &headers,
    );
    let lost = |setting: &&Setting<'_>| setting.cells.iter().any(|cell| !cell.is_valid());
    for setting in settings.iter().filter(lost) {
        let count = |words: &[&str]| {
            let own = setting
                .cells
                .iter()
                .filter(|cell| words.contains(&cell.word()));
            own.count().to_string()
        };
        let unusable = setting.cells.iter().find(|cell| !cell.is_valid());
        let reason = unusable.and_then(|cell| {
            let all = cell.contradictions.iter().chain(&cell.note.reasons);
            all.map(|reason| reason.lines().next().unwrap_or_default().to_owned())
                .next()
        });
        table.push(vec![
            setting.arm.to_owned(),
            setting.condition.to_owned(),
            setting.cells.len().to_string(),
            count(&["valid"]),
            count(&["void", "BROKEN"]),
            count(&["FAILED"]),
            count(&["missing", "interrupted", "unfinished"]),
            reason.unwrap_or_else(|| ABSENT.to_owned()),
        ]);
    }
    table.wraps_last = true;
    table
}
