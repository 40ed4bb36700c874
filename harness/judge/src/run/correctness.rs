//! The second gate: what the logit checks together say.
//!
//! A check that never rejected anything proves nothing, so a pass needs a planted fault that the
//! same check noticed.

use super::notes::RunNotes;
use super::verdict::{Correctness, CorrectnessState};
use crate::Verdict;

/// Concludes from the runner's logit checks and planted faults.
pub(crate) fn judge_correctness(notes: &RunNotes) -> Correctness {
    let (mut failed, mut more_accurate) = (Vec::new(), Vec::new());
    let mut open = Vec::new();
    for report in &notes.numerics {
        let verdicts = report.verdicts();
        if verdicts.is_empty() {
            open.push(format!("{}: nothing was compared", report.label));
        }
        for verdict in verdicts {
            match verdict {
                Verdict::Pass => {}
                Verdict::Fail { reasons } => {
                    let reason = format!("{}: {}", report.label, reasons.join("; "));
                    match report.is_only_more_accurate() {
                        true => more_accurate.push(reason),
                        false => failed.push(reason),
                    }
                }
                Verdict::Inconclusive { why } => {
                    open.push(format!("{}: {}", report.label, why.join("; ")));
                }
            }
        }
    }
    let missed = notes.planted_faults.iter().filter(|fault| !fault.rejected);
    failed.extend(missed.map(|f| format!("planted fault not noticed: {}", f.label)));
    // A difference that is no error comes last: the first reason stands in the headline.
    failed.append(&mut more_accurate);
    if notes.planted_faults.is_empty() && !notes.numerics.is_empty() {
        open.push("no fault was planted, so the power of the checks is unproven".to_owned());
    }
    let nothing = notes.numerics.is_empty() && notes.planted_faults.is_empty();
    let (state, reasons) = match (nothing, failed.is_empty(), open.is_empty()) {
        (true, _, _) => (
            CorrectnessState::NotChecked,
            vec!["no output was checked".to_owned()],
        ),
        (_, false, _) => (CorrectnessState::Failed, failed),
        (_, _, false) => (CorrectnessState::Inconclusive, open),
        _ => (CorrectnessState::Passed, Vec::new()),
    };
    Correctness {
        state,
        reasons,
        reports: notes.numerics.clone(),
        planted_faults: notes.planted_faults.clone(),
    }
}
