//! The pairs of cells that a comparison rests on, with one number each.

use serde_json::Value;

use super::Question;
use super::metric::Scale;

/// The two cells of a block, as far as they are finished.
pub type Pair<'a> = (Option<&'a Value>, Option<&'a Value>);

/// The pairs of one comparison, with one number each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pairs {
    /// Values of the baseline, in the order of blocks.
    pub a: Vec<f64>,
    /// Values of the candidate.
    pub b: Vec<f64>,
    /// Differences, or logarithms of ratios.
    pub units: Vec<f64>,
    /// Numbers of the blocks that they are of.
    pub blocks: Vec<usize>,
    /// Pairs that are finished and cannot be used, and why.
    pub left_out: Vec<String>,
    /// What takes every claim away.
    pub void: Vec<String>,
    /// Blocks up to the last one with both cells.
    pub reached: usize,
    /// Driver lag of the worse arm: the 99th percentile within a cell, median over cells, in ms.
    pub lag_ms: f64,
}

impl Pairs {
    /// Of the documents of the cells of a comparison, a pair a block.
    pub fn of(question: &Question, pairs: &[Pair<'_>], least_success: f64) -> Pairs {
        let mut found = Pairs::default();
        let mut lags = [Vec::new(), Vec::new()];
        for (block, pair) in pairs.iter().enumerate() {
            let (Some(a), Some(b)) = *pair else { continue };
            found.reached = block + 1;
            for (lags, cell) in lags.iter_mut().zip([a, b]) {
                lags.extend(cell["driver_lag_ms"]["p99"].as_f64());
            }
            if let Err(why) = found.add(question, block, a, b, least_success) {
                found.left_out.push(format!("block {block}: {why}"));
            }
        }
        let medians = lags.map(|lags| median(&lags).unwrap_or(0.0));
        found.lag_ms = medians[0].max(medians[1]);
        found
    }

    /// Takes the number of a pair, or says why it has none.
    fn add(
        &mut self,
        question: &Question,
        block: usize,
        a: &Value,
        b: &Value,
        least_success: f64,
    ) -> Result<(), String> {
        if schedule(a) != schedule(b) || schedule(a).is_empty() {
            self.void
                .push(format!("block {block}: the arms had different schedules"));
        }
        let metric = &question.metric;
        for (who, cell) in [("baseline", a), ("candidate", b)] {
            if let Some(reason) = reasons(cell).first() {
                return Err(format!("the {who} is not valid: {reason}"));
            }
            let success = success(cell).unwrap_or(0.0);
            if metric.is_of_good_ends() && success < least_success {
                self.void.push(format!(
                    "block {block}: {:.1} % of the {who}'s requests ended well, below \
                     run.least_success; what fails has no latency",
                    100.0 * success
                ));
            }
        }
        let value = |who: &str, cell: &Value| {
            let found = metric.value(cell);
            found.ok_or_else(|| format!("the {who} has no {}", metric.name))
        };
        let (a, b) = (value("baseline", a)?, value("candidate", b)?);
        let unit = match metric.scale {
            Scale::Ratio if a <= 0.0 || b <= 0.0 => {
                return Err("a value is not above 0, so it has no ratio".to_owned());
            }
            Scale::Ratio => b.ln() - a.ln(),
            Scale::Difference => b - a,
        };
        self.a.push(a);
        self.b.push(b);
        self.units.push(unit);
        self.blocks.push(block);
        Ok(())
    }
}

/// What speaks against the numbers of a cell, by its document; nothing when they may be used.
pub fn reasons(document: &Value) -> Vec<String> {
    let validity = &document["validity"];
    let reasons = validity["reasons"].as_array().into_iter().flatten();
    let mut reasons: Vec<String> = reasons
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    if reasons.is_empty() && validity["valid"] != true {
        reasons.push("its document does not say that it is valid".to_owned());
    }
    reasons
}

/// Share of a cell's requests that ended well.
pub fn success(document: &Value) -> Option<f64> {
    document["offered"]["success_rate"].as_f64()
}

/// Hash of a cell's schedule; empty when it is not known.
pub fn schedule(document: &Value) -> &str {
    document["schedule_sha256"].as_str().unwrap_or_default()
}

pub(super) fn median(values: &[f64]) -> Option<f64> {
    let (sorted, _) = pb_stats::sort_finite(values);
    pb_stats::linear(&sorted, 0.5)
}
