//! Where a candidate wins and where it loses: a table a hypothesis, and a sentence.

use super::grid::{Attributes, Grid, parts, written};
use super::measure::Measure;
use super::read::{Comparison, SuiteDir};
use crate::format::ABSENT;
use crate::table::Table;

/// The comparisons of one hypothesis on one figure.
pub(super) struct Hypothesis<'a> {
    /// What is claimed.
    pub(super) name: &'a str,
    /// What is the same for all of them, in words.
    pub(super) constant: String,
    /// Its comparisons, by row and column of its table.
    pub(super) placed: Vec<Placed<'a>>,
    grid: Grid,
}

/// A comparison with its place among those of its hypothesis.
pub(super) struct Placed<'a> {
    row: usize,
    column: usize,
    /// What the comparisons of its row have in common; empty when there is one row only.
    pub(super) group: String,
    /// What tells it from the others of its row; empty when it is alone.
    pub(super) label: String,
    /// The comparison.
    pub(super) one: &'a Comparison,
}

impl Placed<'_> {
    /// What it is among all of its hypothesis; empty when it is the only one.
    pub(super) fn whole_label(&self) -> String {
        let parts = [self.group.as_str(), self.label.as_str()];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        parts.join(", ")
    }
}

/// Verdicts in the order in which they are counted.
const VERDICTS: [&str; 5] = ["better", "worse", "equivalent", "inconclusive", "void"];

/// A verdict with a mark that is seen without colour.
pub(super) fn marked(verdict: &str) -> String {
    let mark = match verdict {
        "better" => "▲\u{a0}",
        "worse" => "▼\u{a0}",
        "equivalent" => "=\u{a0}",
        "inconclusive" => "?\u{a0}",
        "void" => "✕\u{a0}",
        _ => "",
    };
    format!("{mark}{verdict}")
}

/// The style of a verdict.
pub(super) fn class(verdict: &str) -> &'static str {
    match verdict {
        "better" => "good",
        "worse" | "void" => "bad",
        "inconclusive" => "open",
        _ => "even",
    }
}

/// All hypotheses in the order of the suite.
pub(super) fn hypotheses(suite: &SuiteDir) -> Vec<Hypothesis<'_>> {
    let all = &suite.file.comparisons;
    let mut names: Vec<(&str, &str)> = Vec::new();
    for one in all {
        let name = (one.hypothesis.as_str(), one.metric.as_str());
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
        .iter()
        .map(|(name, metric)| {
            let own = all.iter();
            let own = own.filter(|one| one.hypothesis == *name && one.metric == *metric);
            Hypothesis::of(suite, name, own.collect())
        })
        .collect()
}

/// What tells a comparison from others: the candidate, the load, and of the baseline what is
/// otherwise there.
pub(super) fn attributes(one: &Comparison) -> Attributes {
    let candidate = parts("arm", &one.candidate);
    let baseline = parts("arm", &one.baseline);
    let mut all = candidate.clone();
    all.extend(parts("condition", &one.condition));
    let other = baseline
        .into_iter()
        .filter(|part| !candidate.contains(part));
    all.extend(other.map(|(name, level)| (format!("against {name}"), level)));
    all
}

impl<'a> Hypothesis<'a> {
    fn of(suite: &SuiteDir, name: &'a str, mut own: Vec<&'a Comparison>) -> Hypothesis<'a> {
        let rank = |names: &[String], name: &str| names.iter().position(|n| n == name);
        own.sort_by_key(|one| {
            let arm = rank(&suite.arms, &one.candidate);
            (
                rank(&suite.conditions, &one.condition),
                arm,
                rank(&suite.arms, &one.baseline),
            )
        });
        let things: Vec<Attributes> = own.iter().map(|one| attributes(one)).collect();
        let grid = Grid::of(&things);
        let placed = grid
            .places
            .iter()
            .zip(own.iter().copied())
            .map(|(&(row, column), one)| Placed {
                row,
                column,
                group: grid.rows[row].clone(),
                label: grid.columns[column].clone(),
                one,
            });
        let mut placed: Vec<Placed<'a>> = placed.collect();
        placed.sort_by_key(|placed| (placed.row, placed.column));
        Hypothesis {
            name,
            constant: constant(&own),
            placed,
            grid,
        }
    }

    /// The figure that is compared.
    pub(super) fn measure(&self) -> Measure {
        let first = self.placed.first();
        first.map_or_else(|| Measure::new(""), |placed| placed.one.measure())
    }

    /// The verdicts as a table: columns are the levels of what varies most.
    pub(super) fn table(&self) -> Table {
        let grid = &self.grid;
        let caption = format!(
            "{}: {} ({})",
            self.measure().words(),
            self.name,
            self.constant
        );
        let corner = grid.rows.iter().any(|row| !row.is_empty());
        let mut headers = vec![if corner { "setting" } else { "" }.to_owned()];
        headers.extend(grid.columns.iter().map(|column| match column.as_str() {
            "" => "verdict".to_owned(),
            column => column.to_owned(),
        }));
        let mut table = Table::new(caption, headers.len(), &headers);
        for row in 0..grid.rows.len() {
            let mut cells = vec![grid.row_heading(row, "verdict and change")];
            cells.resize(headers.len(), ABSENT.to_owned());
            for placed in self.placed.iter().filter(|placed| placed.row == row) {
                let one = placed.one;
                let change = one.change.map_or_else(String::new, |_| one.change_text());
                let text = format!("{} {change}", marked(&one.verdict));
                let cell = &mut cells[placed.column + 1];
                if cell == ABSENT {
                    *cell = text.trim().to_owned();
                } else {
                    cell.push_str(&format!("; {}", text.trim()));
                }
                let class = class(&one.verdict);
                table.classes.insert((row, placed.column + 1), class);
            }
            table.push(cells);
        }
        table.kind = "gains";
        table
    }

    /// How often each verdict, and where it wins and loses.
    pub(super) fn sentence(&self) -> String {
        let n = self.placed.len();
        if let [placed] = &self.placed[..] {
            let one = placed.one;
            let change = one.change.map_or_else(String::new, |_| {
                format!(", {} ({} pairs)", one.change_text(), one.pairs)
            });
            return format!("{}: {}{change}.", self.name, one.verdict);
        }
        let mut parts = Vec::new();
        for verdict in VERDICTS {
            let own = self
                .placed
                .iter()
                .filter(|placed| placed.one.verdict == verdict);
            let own: Vec<&Placed<'_>> = own.collect();
            // Where all are alike, which ones they are is clear; of what is open, the table tells.
            let listed = own.len() < n && ["better", "worse"].contains(&verdict);
            let which = match listed {
                true => format!(" ({})", listing(&own)),
                false => String::new(),
            };
            if !own.is_empty() {
                parts.push(format!("{verdict} in {}{which}", own.len()));
            }
        }
        format!("{}: of {n} comparisons {}.", self.name, parts.join(", "))
    }
}

/// Comparisons by row: what the row is, then its columns.
fn listing(placed: &[&Placed<'_>]) -> String {
    let mut rows: Vec<(usize, String, Vec<&str>)> = Vec::new();
    for one in placed {
        match rows.last_mut().filter(|(row, ..)| *row == one.row) {
            Some((.., labels)) => labels.push(&one.label),
            None => rows.push((one.row, one.group.clone(), vec![one.label.as_str()])),
        }
    }
    let row = |(_, group, labels): &(usize, String, Vec<&str>)| {
        let labels: Vec<&str> = labels
            .iter()
            .copied()
            .filter(|label| !label.is_empty())
            .collect();
        let parts = [group.clone(), labels.join(", ")];
        let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        parts.join(": ")
    };
    rows.iter().map(row).collect::<Vec<String>>().join("; ")
}

/// What is the same for all comparisons: arms, load, margin.
fn constant(own: &[&Comparison]) -> String {
    let same = |of: &dyn Fn(&Comparison) -> Attributes| -> Vec<String> {
        let mut all = own.iter().map(|one| of(one));
        let first = all.next().unwrap_or_default();
        let others: Vec<Attributes> = all.collect();
        let kept = first
            .into_iter()
            .filter(|part| others.iter().all(|o| o.contains(part)));
        kept.map(|(name, level)| written(&name, &level)).collect()
    };
    let candidate = same(&|one: &Comparison| {
        let baseline = parts("arm", &one.baseline);
        let all = parts("arm", &one.candidate).into_iter();
        all.filter(|part| !baseline.contains(part)).collect()
    });
    let baseline = same(&|one: &Comparison| {
        let candidate = parts("arm", &one.candidate);
        let all = parts("arm", &one.baseline).into_iter();
        all.filter(|part| !candidate.contains(part)).collect()
    });
    let load = same(&|one: &Comparison| parts("condition", &one.condition));
    let mut words = Vec::new();
    match (candidate.is_empty(), baseline.is_empty()) {
        (false, false) => {
            words.push(format!(
                "{} against {}",
                candidate.join(", "),
                baseline.join(", ")
            ));
        }
        (true, false) => words.push(format!("against {}", baseline.join(", "))),
        (false, true) => words.push(candidate.join(", ")),
        (true, true) => {}
    }
    if !load.is_empty() {
        words.push(format!("at {}", load.join(", ")));
    }
    if let Some(first) = own
        .first()
        .filter(|f| own.iter().all(|one| one.margin == f.margin))
    {
        let margin = match first.scale.as_str() {
            "ratio" => format!("{} %", crate::svg::scale::tick_label(100.0 * first.margin)),
            _ => first.measure().shown(first.margin),
        };
        words.push(format!("margin {margin}"));
    }
    words.join("; ")
}
