//! The rule on outputs: what `validate` found, and whether it was found of what is judged.

use super::report::{Kind, RuleResult, State};
use crate::compare::{Run, Subject};
use crate::numerics::{Checked, Validation};
use crate::verdict::Verdict;

/// Kind of the server whose outputs `validate` checks.
const OWN_SERVER: &str = "own-engine";

/// The outputs of the candidate. A file that is about another model or build says nothing of it,
/// and neither does one in which a whole kind of check is missing.
pub(super) fn outputs(found: &Validation, candidate: &[Run]) -> RuleResult {
    let mut open = missing(found);
    let subjects = candidate.iter().map(|run| &run.subject);
    open.extend(
        subjects
            .filter_map(|run| stranger(found.checked.as_ref(), run))
            .next(),
    );
    let (state, why) = match found.verdict() {
        Verdict::Fail { reasons } => (State::Fail, reasons.join("; ")),
        Verdict::Inconclusive { why } => (State::Inconclusive, [why, open].concat().join("; ")),
        Verdict::Pass if !open.is_empty() => (State::Inconclusive, open.join("; ")),
        Verdict::Pass => {
            let (variants, faults) = (found.bits.len() + found.tolerance.len(), found.faults.len());
            let why = format!("{variants} variants agree, {faults} planted faults were rejected");
            (State::Pass, why)
        }
    };
    RuleResult {
        rule: "outputs are those of a monolithic prefill".to_owned(),
        kind: Kind::Outputs,
        metric: None,
        unit: None,
        state,
        why,
        limit: None,
        baseline: None,
        candidate: None,
        interval: None,
        blocks_needed: None,
    }
}

/// `validate` always does both: bits of the exact mode, errors of the fast one.
fn missing(found: &Validation) -> Vec<String> {
    let kinds = [
        (
            found.bits.is_empty(),
            "no bits of the exact mode were compared",
        ),
        (
            found.tolerance.is_empty(),
            "no errors of the fast mode were compared",
        ),
    ];
    let missing = kinds.into_iter().filter(|(is_missing, _)| *is_missing);
    missing.map(|(_, what)| what.to_owned()).collect()
}

/// Why what was checked is not what was measured, if so.
fn stranger(checked: Option<&Checked>, run: &Subject) -> Option<String> {
    let Some(checked) = checked else {
        let why = "the file does not say of which model and build it is: run `prefillbench \
                   validate` of this version again";
        return Some(why.to_owned());
    };
    let server = format!("{OWN_SERVER} {}", checked.tool_version);
    let pairs = [
        ("model", &checked.model, &run.model),
        ("server", &server, &run.server),
        ("revision", &checked.tool_rev, &run.tool_rev),
    ];
    let (what, checked, measured) = pairs.into_iter().find(|(_, a, b)| a != b)?;
    Some(format!(
        "the outputs that were checked are of another {what} than the runs: {} and {}",
        said(checked),
        said(measured)
    ))
}

fn said(text: &str) -> String {
    match text {
        "" => "unknown".to_owned(),
        text => format!("`{text}`"),
    }
}
