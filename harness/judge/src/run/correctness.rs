//! The second gate: what the logit checks together say.
//!
//! A check that never rejected anything proves nothing, so a pass needs a planted fault that the
//! same check noticed.

use super::notes::RunNotes;
use super::verdict::{Correctness, CorrectnessState};
use crate::Verdict;

/// Concludes from the runner's logit checks and planted faults.
pub(crate) fn judge_correctness(notes: &RunNotes) -> Correctness {
    let mut failed = Vec::new();
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
                    failed.push(format!("{}: {}", report.label, reasons.join("; ")));
                }
                Verdict::Inconclusive { why } => {
                    open.push(format!("{}: {}", report.label, why.join("; ")));
                }
            }
        }
    }
    let missed = notes.planted_faults.iter().filter(|fault| !fault.rejected);
    failed.extend(missed.map(|f| format!("planted fault not noticed: {}", f.label)));
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
