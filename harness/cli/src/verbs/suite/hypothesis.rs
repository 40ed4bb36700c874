//! Hypotheses, and the pairs of arms that each of them is about.

use anyhow::{Context, Result, bail};
use pb_judge::suite::{Metric, Question};

use super::file::HypothesisTable;
use super::resolve::{Arm, Condition};
use super::select::{Parts, Selector, subject};

/// Most comparisons of a suite.
const MOST: usize = 500;

/// One pair of arms under one condition, compared by one figure.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    /// Name of its hypothesis.
    pub(crate) hypothesis: String,
    /// Number of the arm that is compared with.
    pub(crate) baseline: usize,
    /// Number of the arm that is judged.
    pub(crate) candidate: usize,
    /// Number of the condition.
    pub(crate) condition: usize,
    /// What is asked of them.
    pub(crate) question: Question,
}

/// The comparisons of all hypotheses.
///
/// # Errors
/// A hypothesis that names nothing, or no pair.
pub(crate) fn comparisons(
    hypotheses: &[HypothesisTable],
    arms: &[Arm],
    conditions: &[Condition],
) -> Result<Vec<Comparison>> {
    let of_arms: Parts = arms.iter().flat_map(|arm| arm.parts.clone()).collect();
    let of_conditions: Parts = conditions.iter().flat_map(|c| c.parts.clone()).collect();
    let mut all = Vec::new();
    for (i, written) in hypotheses.iter().enumerate() {
        let key = |part: &str| format!("hypothesis {}: {part}", i + 1);
        let metric = Metric::parse(&key("metric"), &written.metric)?;
        let margin = written.margin.unwrap_or(metric.usual_margin());
        if !(0.0..=metric.most_margin()).contains(&margin) {
            bail!(
                "{} = {margin}: give a number from 0 to {}",
                key("margin"),
                match metric.most_margin() {
                    f64::MAX => "any count".to_owned(),
                    most => format!("{most}, as 0.03 for 3 %"),
                }
            );
        }
        let baseline = Selector::parse(&key("baseline"), &written.baseline, &of_arms)?;
        let candidate = Selector::parse(&key("candidate"), &written.candidate, &of_arms)?;
        let when = written.when.as_deref().unwrap_or("*");
        let when = Selector::parse(&key("when"), when, &of_conditions)?;
        let pairs = pairs(arms, &baseline, &candidate);
        if pairs.is_empty() {
            bail!(
                "hypothesis {}: no two arms are {} and {} and alike in all else",
                i + 1,
                written.baseline,
                written.candidate
            );
        }
        for (baseline, candidate) in pairs {
            for (condition, _) in matching(conditions, &when) {
                all.push(Comparison {
                    hypothesis: written.name.clone(),
                    baseline,
                    candidate,
                    condition,
                    question: Question {
                        metric: metric.clone(),
                        expect: written.expect,
                        margin,
                    },
                });
            }
        }
        if all.len() > MOST {
            bail!(
                "hypothesis {}: more than {MOST} comparisons; name arms more closely",
                i + 1
            );
        }
    }
    Ok(all)
}

fn matching<'a>(
    conditions: &'a [Condition],
    when: &Selector,
) -> impl Iterator<Item = (usize, &'a Condition)> {
    let all = conditions.iter().enumerate();
    all.filter(|(_, condition)| when.matches(&condition.parts))
}

/// Pairs of arms that differ in what the selectors speak of and agree in all else.
fn pairs(arms: &[Arm], baseline: &Selector, candidate: &Selector) -> Vec<(usize, usize)> {
    let spoken: std::collections::BTreeSet<&str> = baseline
        .speaks_of()
        .union(&candidate.speaks_of())
        .copied()
        .collect();
    let rest = |arm: &Arm| -> Parts {
        let others = arm
            .parts
            .iter()
            .filter(|part| !spoken.contains(subject(part)));
        others.cloned().collect()
    };
    let mut pairs = Vec::new();
    for (i, a) in arms
        .iter()
        .enumerate()
        .filter(|(_, a)| baseline.matches(&a.parts))
    {
        for (j, b) in arms
            .iter()
            .enumerate()
            .filter(|(_, b)| candidate.matches(&b.parts))
        {
            if i != j && rest(a) == rest(b) {
                pairs.push((i, j));
            }
        }
    }
    pairs
}

/// The number of the one that is exactly `name`, or the only one that has all of its parts.
///
/// # Errors
/// None, or several.
pub(crate) fn only(key: &str, name: &str, sets: &[Parts]) -> Result<usize> {
    let known: Parts = sets.iter().flatten().cloned().collect();
    let selector = Selector::parse(key, name, &known)?;
    let found: Vec<usize> = (0..sets.len())
        .filter(|&i| selector.matches(&sets[i]))
        .collect();
    match found[..] {
        [only] => Ok(only),
        [] => bail!("{key} {name}: no cell is all of that"),
        _ => Err(anyhow::anyhow!(
            "{} cells are that; add more parts",
            found.len()
        ))
        .with_context(|| format!("{key} {name}")),
    }
}
