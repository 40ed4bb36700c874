//! All figures of a candidate side by side: what it wins, what it pays.

use super::gains::{attributes, class};
use super::grid::{Attributes, Grid, parts};
use super::measure::Measure;
use super::read::{Comparison, SuiteDir};
use crate::format::ABSENT;
use crate::table::Table;

/// A candidate against a baseline under one load.
struct Pair<'a> {
    key: (&'a str, &'a str, &'a str),
    /// A comparison for each figure, where there is one.
    figures: Vec<Option<&'a Comparison>>,
}

/// For each kind of contrast (what candidate and baseline differ in) a table: a row for each
/// candidate, a column for each figure that is compared, and what they come to. None for a kind
/// with a single figure.
pub(super) fn tables(suite: &SuiteDir) -> Vec<Table> {
    kinds(suite)
        .iter()
        .filter_map(|(_, all)| table(all))
        .collect()
}

/// Comparisons by the factors in which candidate and baseline differ, in the order of the suite.
pub(super) fn kinds(suite: &SuiteDir) -> Vec<(Vec<String>, Vec<&Comparison>)> {
    let mut kinds: Vec<(Vec<String>, Vec<&Comparison>)> = Vec::new();
    for one in &suite.file.comparisons {
        let kind = contrast(one);
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, all)) => all.push(one),
            None => kinds.push((kind, vec![one])),
        }
    }
    kinds
}

/// Names of the factors in which candidate and baseline differ.
fn contrast(one: &Comparison) -> Vec<String> {
    let (candidate, baseline) = (parts("arm", &one.candidate), parts("arm", &one.baseline));
    let other = |own: &Attributes, others: &Attributes| -> Vec<String> {
        let only = own.iter().filter(|part| !others.contains(part));
        only.map(|(name, _)| name.clone()).collect()
    };
    let mut names = other(&candidate, &baseline);
    names.extend(other(&baseline, &candidate));
    names.sort();
    names.dedup();
    names
}

fn table(all: &[&Comparison]) -> Option<Table> {
    let mut metrics: Vec<&str> = Vec::new();
    for one in all {
        if !metrics.contains(&one.metric.as_str()) {
            metrics.push(&one.metric);
        }
    }
    if metrics.len() < 2 {
        return None;
    }
    let pairs = pairs(all, &metrics);
    let first = |pair: &Pair<'_>| {
        pair.figures
            .iter()
            .flatten()
            .next()
            .map(|one| attributes(one))
    };
    let things: Vec<Attributes> = pairs.iter().filter_map(first).collect();
    let grid = Grid::of(&things);
    let mut order: Vec<usize> = (0..pairs.len()).collect();
    order.sort_by_key(|&i| grid.places[i]);
    let mut headers = vec!["candidate".to_owned()];
    headers.extend(metrics.iter().map(|name| Measure::new(name).words()));
    headers.push("in all".to_owned());
    let constant = match grid.constant.as_str() {
        "" => String::new(),
        constant => format!(" ({constant})"),
    };
    let caption = format!("Each candidate by every figure that was asked about{constant}");
    let mut table = Table::new(caption, headers.len(), &headers);
    for i in order {
        let (row, column) = grid.places[i];
        let labels = [grid.rows[row].as_str(), grid.columns[column].as_str()];
        let labels: Vec<&str> = labels
            .into_iter()
            .filter(|label| !label.is_empty())
            .collect();
        let mut cells = vec![match labels.is_empty() {
            true => format!("{} against {}", pairs[i].key.0, pairs[i].key.1),
            false => labels.join(", "),
        }];
        let number = table.rows.len();
        for (place, one) in pairs[i].figures.iter().enumerate() {
            let Some(one) = one else {
                cells.push(ABSENT.to_owned());
                continue;
            };
            cells.push(short(one));
            let style = class(&one.verdict);
            table.classes.insert((number, place + 1), style);
        }
        let (word, style) = in_all(&pairs[i].figures);
        cells.push(word);
        table.classes.insert((number, metrics.len() + 1), style);
        table.push(cells);
    }
    table.kind = "gains";
    Some(table)
}

fn pairs<'a>(all: &[&'a Comparison], metrics: &[&str]) -> Vec<Pair<'a>> {
    let mut pairs: Vec<Pair<'a>> = Vec::new();
    for one in all {
        let key = (
            one.candidate.as_str(),
            one.baseline.as_str(),
            one.condition.as_str(),
        );
        let at = match pairs.iter().position(|pair| pair.key == key) {
            Some(at) => at,
            None => {
                let figures = vec![None; metrics.len()];
                pairs.push(Pair { key, figures });
                pairs.len() - 1
            }
        };
        if let Some(metric) = metrics.iter().position(|metric| *metric == one.metric) {
            pairs[at].figures[metric] = Some(one);
        }
    }
    pairs
}

/// The verdict's mark with the change alone; the interval stands in the table of the hypothesis.
fn short(one: &Comparison) -> String {
    let change = one.change.map(|_| one.change_text());
    let point = change.as_deref().and_then(|text| text.split(" [").next());
    let marked = one.marked();
    match point {
        Some(point) => format!("{marked} {point}"),
        None => marked,
    }
}

/// What several verdicts come to, with its style.
fn in_all(figures: &[Option<&Comparison>]) -> (String, &'static str) {
    let count = |words: &[&str]| {
        let known = figures.iter().flatten();
        known
            .filter(|one| words.contains(&one.verdict.as_str()))
            .count()
    };
    let (better, worse) = (count(&["better"]), count(&["worse"]));
    let open = count(&["inconclusive", "void"]);
    let (word, style) = match (better > 0, worse > 0) {
        (true, false) => ("wins", "good"),
        (false, true) => ("loses", "bad"),
        (true, true) => ("trades", "even"),
        (false, false) if open == 0 => ("the same", "even"),
        (false, false) => ("not settled", "unsettled"),
    };
    match open {
        0 => (word.to_owned(), style),
        _ if word == "not settled" => (word.to_owned(), style),
        n => (format!("{word}, {n}\u{a0}not\u{a0}settled"), style),
    }
}
