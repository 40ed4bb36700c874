//! The verdicts once more, from the cells and the plan: what `suite.json` says is not believed.
//!
//! Verdicts are what people copy out of a report, and a word is quickly changed, by hand or by a
//! program that judged otherwise. The rules come from `plan.json`, the numbers from the cells, and
//! both go through the judge that `run` uses.

use pb_judge::suite::{Expect, Metric, Pair, Pairs, Question, Rules, StopRule, judged};
use serde::Deserialize;
use serde_json::Value;

use super::read::{Cell, Comparison, SuiteDir};

/// Relative difference from which on two numbers of one judge are not the same: files keep all
/// digits, and another machine may round a logarithm otherwise.
const SAME: f64 = 1e-9;

/// What the plan says of the judging.
#[derive(Debug, Deserialize)]
struct Planned {
    run: RunRules,
    comparisons: Vec<Asked>,
}

#[derive(Debug, Deserialize)]
struct RunRules {
    blocks: usize,
    stop: StopRule,
    alpha: f64,
    least_success: f64,
}

/// A comparison as it was planned.
#[derive(Debug, Deserialize)]
struct Asked {
    hypothesis: String,
    metric: String,
    baseline: String,
    candidate: String,
    condition: String,
    expect: Option<Expect>,
    margin: f64,
}

/// What came of it.
#[derive(Debug)]
pub(super) enum Again {
    /// Why nothing could be judged again.
    NotChecked(String),
    /// Verdicts that were derived again, and what `suite.json` says otherwise.
    Judged(usize, Vec<String>),
}

/// Judges every comparison again.
pub(super) fn rejudged(suite: &SuiteDir) -> Again {
    if suite.planned.is_null() {
        return Again::NotChecked("plan.json, which has the rules, is not there".to_owned());
    }
    let planned = match Planned::deserialize(&suite.planned) {
        Ok(planned) => planned,
        Err(error) => return Again::NotChecked(format!("plan.json cannot be read: {error}")),
    };
    match against(suite, &planned) {
        Ok(wrong) => Again::Judged(planned.comparisons.len(), wrong),
        Err(why) => Again::NotChecked(why),
    }
}

fn against(suite: &SuiteDir, planned: &Planned) -> Result<Vec<String>, String> {
    let told = &suite.file.comparisons;
    if told.len() != planned.comparisons.len() {
        return Ok(vec![format!(
            "contradiction: suite.json has {} comparisons, plan.json {}",
            told.len(),
            planned.comparisons.len()
        )]);
    }
    let mut wrong = Vec::new();
    let (mut questions, mut pairs) = (Vec::new(), Vec::new());
    for (number, (asked, told)) in (1..).zip(planned.comparisons.iter().zip(told)) {
        if !asked.is_told_by(told) {
            wrong.push(format!(
                "contradiction: comparison {number} of suite.json is not that of plan.json: {} of \
                 {} against {}, margin {}",
                asked.metric, asked.candidate, asked.baseline, asked.margin
            ));
        }
        let question = Question {
            metric: Metric::parse("metric", &asked.metric).map_err(|error| error.to_string())?,
            expect: asked.expect,
            margin: asked.margin,
        };
        pairs.push(paired(suite, asked, &question, &planned.run));
        questions.push(question);
    }
    let rules = Rules {
        stop: planned.run.stop,
        blocks: planned.run.blocks.max(2),
        alpha: planned.run.alpha,
        least_success: planned.run.least_success,
    };
    let again = judged(&questions, &pairs, &rules).map_err(|error| error.to_string())?;
    for (number, (own, told)) in (1..).zip(again.iter().zip(told)) {
        let differs = |what: &str, told: &str, own: &str| {
            format!(
                "contradiction: comparison {number}, {} of {} against {}: suite.json says {what} \
                 {told}, its cells give {own}: stale or changed; run the suite again with the same \
                 --out, which judges its cells anew",
                told_of(&suite.file.comparisons[number - 1]),
                suite.file.comparisons[number - 1].candidate,
                suite.file.comparisons[number - 1].baseline,
            )
        };
        if told.verdict != own.outcome.name() {
            wrong.push(differs("verdict", &told.verdict, own.outcome.name()));
        } else if told.as_expected != own.as_expected {
            let word = |met: Option<bool>| match met {
                Some(true) => "met",
                Some(false) => "not met",
                None => "open",
            };
            let (told, own) = (word(told.as_expected), word(own.as_expected));
            wrong.push(differs("the expectation is", told, own));
        } else if !same_change(told, own.change) {
            let shown = |change: Option<[f64; 3]>| {
                change.map_or("none".to_owned(), |[point, low, high]| {
                    format!("{point} [{low}, {high}]")
                })
            };
            let (told, own) = (ends(told), own.change.map(|c| [c.point, c.low, c.high]));
            wrong.push(differs("change", &shown(told), &shown(own)));
        }
    }
    Ok(wrong)
}

impl Asked {
    /// Whether `suite.json` speaks of the same.
    fn is_told_by(&self, told: &Comparison) -> bool {
        let expect = told.expect.clone().map(Value::String);
        let expect = expect.and_then(|word| serde_json::from_value::<Expect>(word).ok());
        self.hypothesis == told.hypothesis
            && self.metric == told.metric
            && self.baseline == told.baseline
            && self.candidate == told.candidate
            && self.condition == told.condition
            && self.expect == expect
            && self.margin == told.margin
    }
}

/// The pairs of a comparison, from the documents of the cells.
fn paired(suite: &SuiteDir, asked: &Asked, question: &Question, run: &RunRules) -> Pairs {
    let cell = |block: usize, arm: &str| {
        let own = |cell: &&Cell| {
            let note = &cell.note;
            note.block == block && note.arm == arm && note.condition == asked.condition
        };
        let cell = suite.cells.iter().find(own)?;
        cell.document.as_ref()
    };
    let all: Vec<Pair<'_>> = (0..run.blocks)
        .map(|block| (cell(block, &asked.baseline), cell(block, &asked.candidate)))
        .collect();
    Pairs::of(question, &all, run.least_success)
}

fn told_of(comparison: &Comparison) -> String {
    match comparison.condition.as_str() {
        "" => comparison.metric.clone(),
        condition => format!("{} at {condition}", comparison.metric),
    }
}

fn ends(told: &Comparison) -> Option<[f64; 3]> {
    told.change.map(|c| [c.point, c.low, c.high])
}

fn same_change(told: &Comparison, own: Option<pb_stats::Estimate>) -> bool {
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= SAME * a.abs().max(b.abs()).max(1e-3);
    match (ends(told), own) {
        (None, None) => true,
        (Some(told), Some(own)) => told.iter().zip(&[own.point, own.low, own.high]).all(near),
        _ => false,
    }
}
