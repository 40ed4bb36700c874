//! Where a candidate wins and where it loses: a table a hypothesis, and a sentence.

use super::grid::{AGAINST, Attributes, Grid, parts, written};
use super::measure::Measure;
use super::read::{Comparison, SuiteDir};
use super::spoken::{Chosen, capital};
use crate::format::ABSENT;
use crate::sections::p_value;
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

impl Comparison {
    /// Its verdict with a mark. A change that is beyond the margin and whose own interval excludes
    /// no change, and that Holm over all comparisons does not confirm, is told apart from one of
    /// which the data say nothing.
    pub(super) fn marked(&self) -> String {
        match self.seen {
            true => "?\u{a0}seen, not\u{a0}claimed".to_owned(),
            false => marked(&self.verdict),
        }
    }

    /// The same with the change and its interval, and with what keeps a change that is seen from
    /// being claimed.
    pub(super) fn marked_change(&self) -> String {
        let change = self.change.map_or_else(String::new, |_| self.change_text());
        let holm = match self.seen {
            true => format!(" (Holm\u{a0}p\u{a0}{})", p_value(self.holm_p)),
            false => String::new(),
        };
        format!("{} {change}{holm}", self.marked())
            .trim()
            .to_owned()
    }

    /// The arms that are compared.
    pub(super) fn arms(&self) -> String {
        format!("{} against {}", self.candidate, self.baseline)
    }
}

/// The style of a verdict.
pub(super) fn class(verdict: &str) -> &'static str {
    match verdict {
        "better" => "good",
        "worse" | "void" => "bad",
        "inconclusive" => "unsettled",
        _ => "even",
    }
}

/// Names of the factors that are of the load.
pub(super) fn loads(own: &[&Comparison]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (name, _) in own
        .iter()
        .flat_map(|one| parts("condition", &one.condition))
    {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
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
    all.extend(other.map(|(name, level)| (format!("{AGAINST}{name}"), level)));
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
            let alone = self
                .placed
                .first()
                .map_or_else(String::new, |p| p.one.arms());
            let mut cells = vec![grid.row_heading(row, &alone)];
            cells.resize(headers.len(), ABSENT.to_owned());
            for placed in self.placed.iter().filter(|placed| placed.row == row) {
                let one = placed.one;
                let text = one.marked_change();
                let cell = &mut cells[placed.column + 1];
                if cell == ABSENT {
                    *cell = text;
                } else {
                    cell.push_str(&format!("; {text}"));
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
        let (name, n) = (capital(self.name), self.placed.len());
        if let [placed] = &self.placed[..] {
            let one = placed.one;
            let pairs = format!("{} pairs; {}", one.pairs, one.arms());
            return match one.change {
                None => format!("{name}: {} ({}).", one.marked(), one.arms()),
                Some(_) => format!("{name}: {} ({pairs}).", one.marked_change()),
            };
        }
        let own: Vec<&Comparison> = self.placed.iter().map(|placed| placed.one).collect();
        let things: Vec<Attributes> = own.iter().map(|one| attributes(one)).collect();
        let mut parts = Vec::new();
        for verdict in VERDICTS {
            let numbers: Vec<usize> = (0..n).filter(|&i| own[i].verdict == verdict).collect();
            if numbers.is_empty() {
                continue;
            }
            // Where all are alike, which ones they are is clear; of what is open, the table tells.
            let listed = numbers.len() < n && ["better", "worse"].contains(&verdict);
            let which = listed.then(|| {
                let words = Chosen::of(&things, &numbers).words(&loads(&own));
                words.filter(|words| !words.is_empty()).unwrap_or_else(|| {
                    let placed = numbers.iter().map(|&i| &self.placed[i]);
                    listing(&placed.collect::<Vec<_>>())
                })
            });
            let which = which.map_or_else(String::new, |which| format!(": {which}"));
            let seen = numbers.iter().filter(|&&i| own[i].seen).count();
            let seen = match seen {
                0 => String::new(),
                seen => format!(" ({seen} of them seen, not claimed)"),
            };
            parts.push(format!(
                "{verdict} in {} of {n}{seen}{which}",
                numbers.len()
            ));
        }
        format!("{name}: {}.", parts.join("; "))
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
