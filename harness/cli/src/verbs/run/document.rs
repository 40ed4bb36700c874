//! The result of a suite: `suite.json`, and what is printed.

use std::fmt::Write;

use pb_judge::suite::{Expect, Metric, Scale, StopRule, looks};
use pb_stats::Estimate;
use serde::Serialize;
use serde_json::Value;

use super::plan::{Plan, counted, wrapped};
use super::verdict::{Judged, Pairs};
use crate::verbs::suite::Comparison;

/// Version of the document's keys.
const SCHEMA_VERSION: u32 = 1;

/// Cells whose reasons are printed; all are in the document.
const TOLD: usize = 6;

/// The result of a suite. What was not measured is null.
#[derive(Debug, Serialize)]
pub(crate) struct Document {
    schema_version: u32,
    name: String,
    question: String,
    reading: String,
    suite_sha256: String,
    seed: u64,
    tool: Value,
    machine: Value,
    /// How far the run came.
    pub(crate) state: State,
    stop: StopRule,
    alpha: f64,
    blocks_planned: usize,
    blocks_run: usize,
    /// Cells that were run or should have been.
    pub(crate) cells: Vec<CellNote>,
    comparisons: Vec<ComparisonNote>,
    /// Of the process.
    pub(crate) exit_code: u8,
}

/// How far a run came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    /// Every cell that the stopping rule asks for is finished.
    Complete,
    /// Some are missing.
    Incomplete,
    /// It was stopped by hand.
    Interrupted,
}

/// A cell in the document.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CellNote {
    /// Number of its block.
    pub(crate) block: usize,
    /// Name of its condition, empty when there is one only.
    pub(crate) condition: String,
    /// Name of its arm.
    pub(crate) arm: String,
    /// Seed of its schedule.
    pub(crate) seed: u64,
    /// Its run directory below that of the suite.
    pub(crate) dir: String,
    /// `complete`, `failed`, `interrupted`, `running` or `missing`.
    pub(crate) state: String,
    /// Whether its numbers may be used.
    pub(crate) valid: Option<bool>,
    /// What speaks against them, or why there are none.
    pub(crate) reasons: Vec<String>,
    /// Figures by which later requests are not like earlier ones, with the number. A drift may be
    /// what the load asks for, so it takes no cell out.
    pub(crate) drifts: Vec<String>,
    /// Hash of its schedule.
    pub(crate) schedule_sha256: Option<String>,
    /// Share of its requests that ended well.
    pub(crate) success_rate: Option<f64>,
    /// Demands on it (`bench.slo`) that were not met.
    pub(crate) gates_failed: Vec<String>,
    /// What it took with its server, in seconds.
    pub(crate) wall_s: Option<f64>,
}

/// A comparison in the document.
#[derive(Debug, Serialize)]
struct ComparisonNote {
    hypothesis: String,
    metric: String,
    baseline: String,
    candidate: String,
    condition: String,
    expect: Option<Expect>,
    margin: f64,
    scale: &'static str,
    pairs: usize,
    blocks: Vec<usize>,
    left_out: Vec<String>,
    baseline_values: Vec<f64>,
    candidate_values: Vec<f64>,
    baseline_median: Option<f64>,
    candidate_median: Option<f64>,
    change: Option<Interval>,
    p: Option<f64>,
    holm_p: f64,
    verdict: &'static str,
    why: String,
    as_expected: Option<bool>,
}

/// A change with its interval.
#[derive(Debug, Serialize)]
struct Interval {
    point: f64,
    low: f64,
    high: f64,
    confidence: f64,
}

impl From<Estimate> for Interval {
    fn from(estimate: Estimate) -> Interval {
        Interval {
            point: estimate.point,
            low: estimate.low,
            high: estimate.high,
            confidence: estimate.confidence,
        }
    }
}

/// What a document is made of.
pub(crate) struct Found<'a> {
    /// The plan.
    pub(crate) plan: &'a Plan,
    /// How far the run came.
    pub(crate) state: State,
    /// The cells.
    pub(crate) cells: Vec<CellNote>,
    /// The pairs of each comparison.
    pub(crate) pairs: &'a [Pairs],
    /// The verdict on each comparison.
    pub(crate) judged: &'a [Judged],
}

impl Document {
    /// Of what was found.
    pub(crate) fn of(found: Found<'_>) -> Document {
        let (plan, suite) = (found.plan, &found.plan.suite);
        let each = suite.comparisons.iter().zip(found.pairs).zip(found.judged);
        let notes = each.map(|((comparison, pairs), judged)| note(plan, comparison, pairs, judged));
        let run = found.cells.iter().filter(|cell| cell.state == "complete");
        let blocks: std::collections::BTreeSet<usize> = run.map(|cell| cell.block).collect();
        let mut document = Document {
            schema_version: SCHEMA_VERSION,
            name: suite.name.clone(),
            question: suite.question.clone(),
            reading: suite.reading.clone(),
            suite_sha256: plan.sha256.clone(),
            seed: plan.seed,
            tool: plan.facts["tool"].clone(),
            machine: plan.facts["machine"].clone(),
            state: found.state,
            stop: suite.run.stop,
            alpha: suite.run.alpha,
            blocks_planned: plan.blocks.len(),
            blocks_run: blocks.len(),
            comparisons: notes.collect(),
            cells: found.cells,
            exit_code: 0,
        };
        document.exit_code = document.code();
        document
    }

    /// 1 when something is against what was expected or a demand of `bench.slo` was not met, 3
    /// when something is open or missing.
    fn code(&self) -> u8 {
        let against = |one: &ComparisonNote| one.as_expected == Some(false);
        let open = |one: &ComparisonNote| one.as_expected.is_none();
        let unusable = |cell: &CellNote| cell.valid != Some(true);
        // Without a hypothesis the question is whether all of it could be measured.
        let measured = !self.comparisons.is_empty() || !self.cells.iter().any(unusable);
        let missed = self.cells.iter().any(|cell| !cell.gates_failed.is_empty());
        if missed || self.comparisons.iter().any(against) {
            1
        } else if self.state != State::Complete || self.comparisons.iter().any(open) || !measured {
            3
        } else {
            0
        }
    }

    /// For people, in lines of at most 100 characters.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        // Writing into a String cannot fail.
        let _ = writeln!(
            out,
            "{}",
            wrapped(&format!("suite {}:", self.name), &self.question, 2)
        );
        let count = |state: &str| self.cells.iter().filter(|cell| cell.state == state).count();
        let void = self
            .cells
            .iter()
            .filter(|cell| cell.valid == Some(false))
            .count();
        let state = match self.state {
            State::Complete => "complete",
            State::Incomplete => "incomplete",
            State::Interrupted => "interrupted",
        };
        let _ = writeln!(
            out,
            "{state}: {} of {}; {} finished, {void} of them not valid, {} failed, {} missing",
            self.blocks_run,
            counted(self.blocks_planned, "block"),
            counted(count("complete"), "cell"),
            count("failed"),
            self.cells.len() - count("complete") - count("failed"),
        );
        self.comparison_lines(&mut out);
        self.cell_lines(&mut out);
        let _ = write!(out, "{}", wrapped("reading:", &self.reading, 2));
        out
    }

    /// The flags that run what is not there or not valid yet; absent when all is.
    pub(crate) fn way_on(&self) -> Option<&'static str> {
        if self.cells.iter().any(|cell| cell.valid == Some(false)) {
            return Some(" --retry-void");
        }
        (self.state != State::Complete).then_some("")
    }

    fn comparison_lines(&self, out: &mut String) {
        if self.comparisons.is_empty() {
            let _ = writeln!(out, "no hypothesis, so nothing is compared");
            return;
        }
        let _ = writeln!(
            out,
            "\n{:>3}  {:<12} {:<10} {:>5} {:>11} {:>11}  {:<26} {:>8}",
            "#",
            "verdict",
            "expected",
            "pairs",
            "baseline",
            "candidate",
            "change [interval]",
            "Holm p"
        );
        for (i, one) in self.comparisons.iter().enumerate() {
            let _ = writeln!(out, "{:>3}  {}", i + 1, one.row());
        }
        out.push('\n');
        for (i, one) in self.comparisons.iter().enumerate() {
            one.explain(i + 1, out);
        }
        let confidence = 100.0 * (1.0 - self.alpha);
        let valid = match self.stop {
            StopRule::Fixed => String::new(),
            StopRule::Sequential => " valid at every block".to_owned(),
            StopRule::Spending => {
                let looks = looks(self.blocks_planned).into_iter();
                let looks: Vec<String> = looks.map(|look| look.to_string()).collect();
                format!(" valid at looks after {} blocks together", looks.join(", "))
            }
        };
        let _ = writeln!(
            out,
            "medians over blocks; {confidence} % intervals{valid}; Holm over {}",
            counted(self.comparisons.len(), "comparison")
        );
    }

    fn cell_lines(&self, out: &mut String) {
        let mut told_of = 0;
        for cell in &self.cells {
            for gate in &cell.gates_failed {
                let _ = writeln!(out, "{}: the gate {gate} was not met", cell.dir);
            }
            let told = match cell.state.as_str() {
                "failed" => "failed",
                "complete" if cell.valid == Some(false) => "not valid",
                "missing" if !cell.reasons.is_empty() => "missing",
                _ => continue,
            };
            told_of += 1;
            if told_of > TOLD {
                continue;
            }
            let head = format!("{}: {told}:", cell.dir);
            let _ = writeln!(out, "{}", wrapped(&head, &cell.reasons.join("; "), 2));
        }
        if told_of > TOLD {
            let _ = writeln!(out, "and {} more", counted(told_of - TOLD, "cell"));
        }
        self.drift_lines(out);
    }
}

impl Document {
    /// Cells without a steady state: how many, and the first of each arm and condition.
    fn drift_lines(&self, out: &mut String) {
        let drifting = || self.cells.iter().filter(|cell| !cell.drifts.is_empty());
        let (count, of) = (drifting().count(), self.cells.len());
        if count == 0 {
            return;
        }
        let _ = writeln!(
            out,
            "{} of {of} without a steady state; see the report of a cell:",
            counted(count, "cell")
        );
        let mut told = std::collections::BTreeSet::new();
        let first = drifting().filter(|cell| told.insert((&cell.arm, &cell.condition)));
        for cell in first.take(TOLD) {
            let head = format!("  {}:", cell.dir);
            let _ = writeln!(out, "{}", wrapped(&head, &cell.drifts.join("; "), 4));
        }
    }
}

impl ComparisonNote {
    /// The numbers of its row.
    fn row(&self) -> String {
        let expected = match self.as_expected {
            Some(true) if self.expect.is_none() => "-",
            Some(true) => "yes",
            Some(false) => "NO",
            None => "open",
        };
        let value = |value: Option<f64>| value.map_or("-".to_owned(), |v| shown(&self.metric, v));
        let change = self.change.as_ref();
        let holm = match self.p {
            Some(_) if self.holm_p < 0.0001 => "<0.0001".to_owned(),
            Some(_) => format!("{:.4}", self.holm_p),
            None => "-".to_owned(),
        };
        format!(
            "{:<12} {expected:<10} {:>5} {:>11} {:>11}  {:<26} {holm:>8}",
            self.verdict,
            self.pairs,
            value(self.baseline_median),
            value(self.candidate_median),
            change.map_or("-".to_owned(), |change| interval(self, change)),
        )
    }

    /// What was compared, and why the verdict is what it is.
    fn explain(&self, number: usize, out: &mut String) {
        let condition = match self.condition.as_str() {
            "" => String::new(),
            name => format!(" at {name}"),
        };
        let text = format!(
            "{} ({} of {} against {}{condition}): {}",
            self.hypothesis, self.metric, self.candidate, self.baseline, self.why
        );
        let _ = writeln!(out, "{}", wrapped(&format!("{number:>3}."), &text, 5));
        if let Some(first) = self.left_out.first() {
            let pairs = counted(self.left_out.len(), "pair");
            let head = format!("     {pairs} left out; the first,");
            let _ = writeln!(out, "{}", wrapped(&head, first, 7));
        }
    }
}

fn note(plan: &Plan, one: &Comparison, pairs: &Pairs, judged: &Judged) -> ComparisonNote {
    let suite = &plan.suite;
    // A value that cannot be written as JSON was not found.
    let finite = |p: f64| Some(p).filter(|p| p.is_finite());
    ComparisonNote {
        hypothesis: one.hypothesis.clone(),
        metric: one.question.metric.name.clone(),
        baseline: suite.arms[one.baseline].name.clone(),
        candidate: suite.arms[one.candidate].name.clone(),
        condition: suite.conditions[one.condition].name.clone(),
        expect: one.question.expect,
        margin: one.question.margin,
        scale: match one.question.metric.scale {
            Scale::Ratio => "ratio",
            Scale::Difference => "difference",
        },
        pairs: pairs.units.len(),
        blocks: pairs.blocks.clone(),
        left_out: pairs.left_out.clone(),
        baseline_values: pairs.a.clone(),
        candidate_values: pairs.b.clone(),
        baseline_median: judged.medians.map(|(a, _)| a),
        candidate_median: judged.medians.map(|(_, b)| b),
        change: judged.change.map(Interval::from),
        p: judged.p.and_then(finite),
        holm_p: judged.holm_p,
        verdict: judged.outcome.name(),
        why: judged.why.clone(),
        as_expected: judged.as_expected,
    }
}

/// A value in its unit.
fn shown(metric: &str, value: f64) -> String {
    if Metric::is_share(metric) {
        return format!("{:.1} %", 100.0 * value);
    }
    let digits = match value.abs() {
        v if v >= 1000.0 => 0,
        v if v >= 100.0 => 1,
        v if v >= 10.0 => 2,
        _ => 3,
    };
    let unit = if metric.contains("_ms.") { " ms" } else { "" };
    format!("{value:.digits$}{unit}")
}

/// A change: in percent, in points of a share, or as it is.
fn interval(one: &ComparisonNote, change: &Interval) -> String {
    let percent = |ratio: f64| format!("{:+.1}", 100.0 * (ratio - 1.0));
    let points = |difference: f64| format!("{:+.1}", 100.0 * difference);
    let plain = |difference: f64| format!("{difference:+.1}");
    let is_share = Metric::is_share(&one.metric);
    let (show, unit): (&dyn Fn(f64) -> String, &str) = match one.scale {
        "ratio" => (&percent, " %"),
        _ if is_share => (&points, " pt"),
        _ => (&plain, ""),
    };
    let [point, low, high] = [change.point, change.low, change.high].map(show);
    format!("{point}{unit} [{low}, {high}]")
}
