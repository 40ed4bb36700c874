//! The validation as a table for people.

use std::fmt::Write;

use pb_judge::numerics::{ConfigVerdict, Validation};
use pb_judge::verdict::Verdict;

use crate::console::wrapped;

/// The reasons of a verdict in one sentence.
pub(crate) fn reasons(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Pass => "passed".into(),
        Verdict::Fail { reasons } => reasons.join("; "),
        Verdict::Inconclusive { why } => why.join("; "),
    }
}

fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Fail { .. } => "FAIL",
        Verdict::Inconclusive { .. } => "inconclusive",
    }
}

/// Share of its limit that the worst check of a configuration uses.
fn worst_share(verdict: &ConfigVerdict) -> String {
    match verdict.worst() {
        Some(check) => {
            let name = serde_json::to_value(check.name).unwrap_or_default();
            let share = 100.0 * check.share.unwrap_or(0.0);
            format!(
                "{share:.1} % of the limit ({})",
                name.as_str().unwrap_or("?")
            )
        }
        None => "nothing measured".into(),
    }
}

/// The whole table, at most 100 columns wide.
pub(crate) fn text(v: &Validation) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        // OK because writing to a string cannot fail.
        writeln!(out, "{text}").expect("a string takes every line");
    };
    line("T0  exact mode: bits of every logit against the monolithic pass".into());
    for b in &v.bits {
        let verdict = b.bits.verdict();
        let (differ, values) = (b.bits.differing_values, b.bits.values);
        line(format!(
            "  {:<22} {:<13} {differ} of {values} differ",
            b.config,
            word(&verdict)
        ));
    }
    line("T1, T2  fast mode: error against f64, variant beside monolithic".into());
    for t in &v.tolerance {
        line(format!(
            "  {:<22} {:<13} {}",
            t.config,
            word(&t.verdict),
            worst_share(t)
        ));
    }
    line("Planted faults: each must be rejected".into());
    for f in &v.faults {
        let word = if f.rejected {
            "rejected"
        } else {
            "NOT REJECTED"
        };
        line(format!("  {:<13} {}", word, f.label));
        for words in wrapped(&f.evidence, 80) {
            line(format!("  {:<13} {words}", ""));
        }
    }
    line(conclusion(v.exit_code()).into());
    out
}

/// What the exit code says, in words.
fn conclusion(code: u8) -> &'static str {
    match code {
        0 => "PASS: every variant agrees with the monolithic pass and every fault was rejected",
        3 => "INCONCLUSIVE: nothing is wrong, but a mean is undecided; try more --prompts",
        _ => "FAIL: a variant differs or a planted fault was not rejected",
    }
}
