//! Two runs of suites side by side: what was planned differently, what became of the verdicts, and
//! the figures of the settings that both have.
//!
//! Two runs of one suite are two experiments, on two days: nothing pairs their blocks. So figures
//! stand beside one another with their change and without a verdict of their own, and the verdicts
//! are those that each suite gave itself.

use std::collections::BTreeSet;
use std::path::Path;

use pb_record::visible;
use serde::Serialize;

use super::read::Comparison;
use super::settings::{Setting as Cells, settings, shown};
use super::{SuiteError, SuiteReport};
use crate::diff::{Setting, differences, flat, listed};
use crate::format::{ABSENT, percent_change};
use crate::sections::Section;
use crate::table::Table;
use crate::text::{Paint, in_terminal, wrapped};

/// What differs between two runs of suites.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SuiteDiff {
    /// Version of the keys.
    pub schema_version: u32,
    /// Their directories.
    pub suites: [String; 2],
    /// Whether both were planned as one and the same, program and machine included.
    pub same_plan: bool,
    /// How each of them stands: the headline of its report.
    pub headlines: [String; 2],
    /// Settings of the plans that differ.
    pub settings: Vec<Setting>,
    /// Program, machine and seed, where they differ.
    pub conditions: Vec<Setting>,
    /// Every comparison of either.
    pub verdicts: Vec<Verdicts>,
    /// Medians over blocks of what both have.
    pub figures: Vec<Medians>,
}

/// A comparison in both. What one of them has not is null.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdicts {
    /// The hypothesis.
    pub hypothesis: String,
    /// The figure.
    pub metric: String,
    /// Arm that is compared with.
    pub baseline: String,
    /// Arm that is judged.
    pub candidate: String,
    /// Condition, empty when there is one only.
    pub condition: String,
    /// The words.
    pub verdicts: [Option<String>; 2],
    /// The changes with their intervals, in words.
    pub changes: [Option<String>; 2],
}

/// A figure of an arm under a condition that both have. What was not measured is null.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Medians {
    /// The arm.
    pub arm: String,
    /// The condition.
    pub condition: String,
    /// The figure, as a suite writes it.
    pub metric: String,
    /// Medians over the blocks whose cell may be used.
    pub values: [Option<f64>; 2],
    /// Second over first; null when one is missing or not above 0.
    pub ratio: Option<f64>,
}

/// Reads and compares the runs of two suites.
///
/// # Errors
/// A directory that is no run of a suite.
pub fn suite_diff(first: &Path, second: &Path) -> Result<SuiteDiff, SuiteError> {
    let reports = [SuiteReport::open(first)?, SuiteReport::open(second)?];
    let [a, b] = &reports;
    let planned = |report: &SuiteReport| {
        let mut all = flat(&report.suite.planned);
        // Comparisons are listed by themselves.
        all.retain(|key, _| !key.starts_with("comparisons."));
        all
    };
    let conditions = |report: &SuiteReport| {
        let file = &report.suite.file;
        let all = serde_json::json!({
            "tool": file.tool, "machine": file.machine, "seed": file.seed, "state": file.state,
            "blocks_run": file.blocks_run,
        });
        flat(&all)
    };
    Ok(SuiteDiff {
        schema_version: 1,
        suites: [first, second].map(|dir| dir.display().to_string()),
        same_plan: a.suite.file.suite_sha256 == b.suite.file.suite_sha256,
        headlines: [a, b].map(|report| report.headline().to_owned()),
        settings: differences(&planned(a), &planned(b)),
        conditions: differences(&conditions(a), &conditions(b)),
        verdicts: verdicts(a, b),
        figures: figures(a, b),
    })
}

/// What tells a comparison from the others of its suite.
fn key(one: &Comparison) -> [&str; 5] {
    [
        &one.hypothesis,
        &one.metric,
        &one.baseline,
        &one.candidate,
        &one.condition,
    ]
}

fn verdicts(a: &SuiteReport, b: &SuiteReport) -> Vec<Verdicts> {
    let of = |report: &'_ SuiteReport, wanted: [&str; 5]| {
        let mut all = report.suite.file.comparisons.iter();
        all.find(|one| key(one) == wanted).cloned()
    };
    let mut seen = BTreeSet::new();
    let all = [a, b].into_iter().flat_map(|r| &r.suite.file.comparisons);
    all.filter(|one| seen.insert(key(one)))
        .map(|one| {
            let both = [of(a, key(one)), of(b, key(one))];
            let [hypothesis, metric, baseline, candidate, condition] = key(one).map(str::to_owned);
            Verdicts {
                hypothesis,
                metric,
                baseline,
                candidate,
                condition,
                changes: [0, 1].map(|i| {
                    let change = both[i].as_ref().filter(|one| one.change.is_some());
                    change.map(Comparison::change_text)
                }),
                verdicts: both.map(|one| one.map(|one| one.verdict)),
            }
        })
        .collect()
}

fn figures(a: &SuiteReport, b: &SuiteReport) -> Vec<Medians> {
    let (own, others) = (settings(&a.suite), settings(&b.suite));
    let mut measures = shown(&a.suite).maps;
    for measure in shown(&b.suite).maps {
        if !measures.contains(&measure) {
            measures.push(measure);
        }
    }
    let mut all = Vec::new();
    for setting in &own {
        let same =
            |other: &&Cells<'_>| other.arm == setting.arm && other.condition == setting.condition;
        let Some(other) = others.iter().find(same) else {
            continue;
        };
        for measure in &measures {
            let values = [setting, other].map(|one| one.over(measure).median());
            if values.iter().all(Option::is_none) {
                continue;
            }
            let both = values[0].zip(values[1]);
            all.push(Medians {
                arm: setting.arm.to_owned(),
                condition: setting.condition.to_owned(),
                metric: measure.name.clone(),
                values,
                ratio: both
                    .filter(|(a, b)| *a > 0.0 && *b > 0.0)
                    .map(|(a, b)| b / a),
            });
        }
    }
    all
}

impl SuiteDiff {
    /// For a terminal of `width` columns (at least 40); colours only when asked for.
    pub fn terminal(&self, width: u16, color: bool) -> String {
        let (paint, width) = (Paint { color }, width.max(40));
        let mut out = wrapped(&paint, "1", &self.sentence(), usize::from(width));
        for section in self.sections() {
            out.push('\n');
            out.push_str(&in_terminal(&section, &paint, width));
        }
        out
    }

    fn sentence(&self) -> String {
        let changed = self.verdicts.iter();
        let changed = changed.filter(|one| one.verdicts[0] != one.verdicts[1]);
        let plan = match self.same_plan {
            true => "the same plan",
            false => "different plans",
        };
        visible(&format!(
            "{} and {}: {plan}; {} of {} verdicts differ.",
            self.suites[0],
            self.suites[1],
            changed.count(),
            self.verdicts.len()
        ))
    }

    fn sections(&self) -> Vec<Section> {
        let mut validity = Section::new("validity", "May these numbers be used?");
        for (suite, headline) in self.suites.iter().zip(&self.headlines) {
            validity.text.push(format!("{suite}: {headline}."));
        }
        validity.text.push(
            "Two suites are two experiments, and nothing pairs their blocks: the changes from the \
             first to the second are shown, and nothing is claimed. The verdicts are their own. \
             To compare two servers, name both as arms of one suite."
                .to_owned(),
        );
        let mut all = vec![validity, self.verdict_section()];
        for (key, title, rows) in [
            ("settings", "What was planned differently", &self.settings),
            ("conditions", "What else was different", &self.conditions),
        ] {
            all.push(listed(key, title, rows));
        }
        all.push(self.figure_section());
        all
    }

    fn verdict_section(&self) -> Section {
        let mut section = Section::new("verdicts", "Verdicts");
        if self.verdicts.is_empty() {
            section.text.push("Neither has a hypothesis.".to_owned());
            return section;
        }
        let mut table = Table::new(
            "Every comparison of either; ≠ marks those that ended otherwise",
            2,
            &["#", "", "first", "change", "second", "change"],
        );
        for (number, one) in (1..).zip(&self.verdicts) {
            let text = |value: &Option<String>| value.clone().unwrap_or_else(|| ABSENT.to_owned());
            let differs = one.verdicts[0] != one.verdicts[1];
            table.push(vec![
                number.to_string(),
                if differs { "≠" } else { "" }.to_owned(),
                text(&one.verdicts[0]),
                text(&one.changes[0]),
                text(&one.verdicts[1]),
                text(&one.changes[1]),
            ]);
            let at = match one.condition.as_str() {
                "" => String::new(),
                condition => format!(" at {condition}"),
            };
            section.text.push(format!(
                "{number}. {} ({} of {} against {}{at})",
                one.hypothesis, one.metric, one.candidate, one.baseline
            ));
        }
        section.tables.push(table);
        section
    }

    fn figure_section(&self) -> Section {
        let mut section = Section::new("figures", "Figures of the settings that both have");
        let headers = ["arm", "condition", "figure", "first", "second", "change, %"];
        let mut table = Table::new(
            "Medians over blocks; change of the second against the first",
            3,
            &headers,
        );
        for one in &self.figures {
            let measure = super::Measure::new(&one.metric);
            let text = |value: Option<f64>| {
                value.map_or_else(|| ABSENT.to_owned(), |value| measure.shown(value))
            };
            let [first, second] = one.values.map(text);
            table.push(vec![
                one.arm.clone(),
                one.condition.clone(),
                measure.words(),
                first,
                second,
                one.ratio.map_or_else(|| ABSENT.to_owned(), percent_change),
            ]);
        }
        if table.is_empty() {
            let none = "No arm under a condition is in both.";
            section.text.push(none.to_owned());
        } else {
            section.tables.push(table);
        }
        section
    }
}
