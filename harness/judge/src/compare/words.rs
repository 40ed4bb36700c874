//! What is said of a comparison: the headline, what to do about void blocks, notes.

use std::collections::BTreeMap;

use super::beside::{Beside, contradiction};
use super::judgement::Outcome;
use super::metric::metric;
use super::run::Run;
use crate::ab::{AbReport, Claim, MetricVerdict, Scale};

/// Blocks that a sentence names.
const TOLD_BLOCKS: usize = 3;
/// Metrics that a sentence names.
const TOLD_METRICS: usize = 4;
/// Samples below which a p99 is the largest value.
const P99_SAMPLES: u64 = 100;

/// Blocks, from 1, with a run that must not be used.
pub(super) fn void_blocks(blocks: &[(&Run, &Run)]) -> Vec<usize> {
    let is_void = |(a, b): &(&Run, &Run)| !a.problems.is_empty() || !b.problems.is_empty();
    let numbered = (1..).zip(blocks);
    let void = numbered.filter(|(_, block)| is_void(block));
    void.map(|(number, _)| number).collect()
}

/// What to do about the blocks that make all of it void.
fn remedy(blocks: &[(&Run, &Run)]) -> String {
    let void = void_blocks(blocks);
    let pair = |number: &usize| {
        let (a, b) = blocks[number - 1];
        format!("block {number} ({} and {})", a.name, b.name)
    };
    let shown: Vec<String> = void.iter().take(TOLD_BLOCKS).map(pair).collect();
    let more = match void.len().saturating_sub(TOLD_BLOCKS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    match void.len() == blocks.len() {
        true => "every block has a run that must not be used: run them again".to_owned(),
        false => format!("run again, or leave out, {}{more}", shown.join(", ")),
    }
}

/// The result in one sentence.
pub(super) fn sentence(outcome: Outcome, report: &AbReport, blocks: &[(&Run, &Run)]) -> String {
    let count = |claim| {
        let primary = report.metrics.iter().filter(|m| m.spec.primary);
        primary.filter(|m| m.claim == claim).count()
    };
    let n = blocks.len();
    let plural = if n == 1 { "" } else { "s" };
    match outcome {
        Outcome::Void => format!(
            "VOID: {}. No difference may be claimed; {}",
            report.void.first().map_or("", String::as_str),
            remedy(blocks)
        ),
        Outcome::Inconclusive if n < report.rules.min_pairs.max(2) => format!(
            "INCONCLUSIVE: {n} block{plural}; a claim needs at least {}",
            report.rules.min_pairs.max(2)
        ),
        Outcome::Inconclusive => {
            format!("INCONCLUSIVE: {n} blocks do not tell for any primary metric")
        }
        Outcome::Answered => {
            let (better, worse) = (count(Claim::Better), count(Claim::Worse));
            let mut text = format!("VALID: {better} better, {worse} worse");
            let rest = [
                (Claim::Equivalent, "unchanged"),
                (Claim::Inconclusive, "undecided"),
            ];
            for (claim, word) in rest {
                if count(claim) > 0 {
                    text.push_str(&format!(", {} {word}", count(claim)));
                }
            }
            let claimed = claimed(report);
            format!("{text} of the primary metrics, over {n} block{plural}{claimed}")
        }
    }
}

/// The primary metrics that changed, the worse ones first: `: ITL p99 worse (+20.1 %)`.
fn claimed(report: &AbReport) -> String {
    let of = |claim, word: &str| -> Vec<String> {
        let metrics = report.metrics.iter();
        let changed = metrics.filter(|m| m.spec.primary && m.claim == claim);
        let text = |verdict: &MetricVerdict| {
            let name = metric(&verdict.spec.name).map_or(&*verdict.spec.name, |m| m.words);
            match change_words(verdict) {
                Some((point, _)) => format!("{name} {word} ({point})"),
                None => format!("{name} {word}"),
            }
        };
        changed.map(text).collect()
    };
    let all = [of(Claim::Worse, "worse"), of(Claim::Better, "better")].concat();
    let more = match all.len().saturating_sub(TOLD_METRICS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let shown: Vec<String> = all.into_iter().take(TOLD_METRICS).collect();
    match shown.is_empty() {
        true => String::new(),
        false => format!(": {}{more}", shown.join(", ")),
    }
}

/// A change in percent, or in points of a share, and the interval that claims look at.
pub(crate) fn change_words(verdict: &MetricVerdict) -> Option<(String, String)> {
    let percent = |ratio: f64| format!("{:+.1} %", 100.0 * (ratio - 1.0));
    let points = |difference: f64| format!("{:+.2} points", 100.0 * difference);
    let (found, words): (_, &dyn Fn(f64) -> String) = match verdict.spec.scale {
        Scale::Ratio { .. } => (verdict.ratio?, &percent),
        Scale::Difference { .. } => (verdict.difference?, &points),
    };
    let interval = format!(
        "{:.0} % interval {} to {}",
        100.0 * found.confidence,
        words(found.low),
        words(found.high)
    );
    Some((words(found.point), interval))
}

/// What a reader has to know.
pub(super) fn notes(
    blocks: &[(&Run, &Run)],
    report: &AbReport,
    beside: &BTreeMap<String, Beside>,
) -> Vec<String> {
    let mut notes = Vec::new();
    if blocks.len() < report.rules.min_pairs.max(2) {
        notes.push(
            "a pair of runs is one observation, however many requests and tokens it holds: its \
             change has no interval, and two runs of the same server differ too. `gate init` \
             measures by how much, and how many blocks a change needs"
                .to_owned(),
        );
    }
    notes.extend(not_interleaved(blocks));
    let metrics = report.metrics.iter();
    notes.extend(metrics.filter_map(|one| contradiction(one, beside.get(&one.spec.name)?)));
    let fewest = blocks
        .iter()
        .flat_map(|(a, b)| [a.ok, b.ok])
        .min()
        .unwrap_or(0);
    if (1..P99_SAMPLES).contains(&fewest) {
        notes.push(format!(
            "a run has only {fewest} answers: a p99 of fewer than {P99_SAMPLES} requests is their \
             largest value"
        ));
    }
    for (a, b) in blocks {
        for run in [a, b] {
            notes.extend(run.notes.iter().map(|note| format!("{}: {note}", run.name)));
        }
    }
    notes
}

/// Runs that were not interleaved: what drifted between them looks like a difference.
fn not_interleaved(blocks: &[(&Run, &Run)]) -> Option<String> {
    let (a, b): (Vec<&str>, Vec<&str>) = blocks
        .iter()
        .map(|(a, b)| (a.created.as_str(), b.created.as_str()))
        .unzip();
    if blocks.len() < 2 {
        return None;
    }
    let apart = |first: &[&str], then: &[&str]| first.iter().max() < then.iter().min();
    let words = match (apart(&a, &b), apart(&b, &a)) {
        (true, _) => "baseline were made before all of the candidate",
        (_, true) => "candidate were made before all of the baseline",
        _ => return None,
    };
    Some(format!(
        "all runs of the {words}: a drift of the machine would look like a difference; make them \
         in turn (A B B A)"
    ))
}
