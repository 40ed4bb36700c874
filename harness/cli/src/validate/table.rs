//! The validation as a table for people.

use std::fmt::Write;

use pb_judge::numerics::{Calibration, CheckName, ConfigVerdict, FaultCheck, Validation, plain};
use pb_judge::verdict::Verdict;

use crate::console::wrapped;

/// Planted faults up to which each is shown with all that was found.
const BRIEF: usize = 8;

/// The reasons of a verdict in one sentence.
pub(crate) fn reasons(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Pass => "passed".into(),
        Verdict::Fail { reasons } => reasons.join("; "),
        Verdict::Inconclusive { why } => why.join("; "),
    }
}

/// A verdict in one word.
pub(crate) fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Fail { .. } => "FAIL",
        Verdict::Inconclusive { .. } => "inconclusive",
    }
}

/// Share of its limit that each check of a configuration uses, the largest first.
fn shares(verdict: &ConfigVerdict) -> String {
    let mut used: Vec<(f64, String)> = verdict
        .checks
        .iter()
        .filter_map(|check| {
            let share = check.share?;
            let name = serde_json::to_value(check.name).unwrap_or_default();
            let name = name.as_str().unwrap_or("?").to_owned();
            Some(match share.is_finite() {
                true => (share, format!("{name} {:.1} %", 100.0 * share)),
                false => (share, format!("{name} beyond")),
            })
        })
        .collect();
    if used.is_empty() {
        return "nothing measured".into();
    }
    used.sort_by(|a, b| b.0.total_cmp(&a.0));
    let texts: Vec<String> = used.into_iter().map(|(_, text)| text).collect();
    texts.join(", ")
}

/// `|error| / |monolithic error|` against f64, the geometric mean over prompts.
fn error_ratio(verdict: &ConfigVerdict) -> String {
    let rho: Vec<f64> = verdict.stats.rho.iter().map(|r| r.rho).collect();
    if rho.is_empty() {
        return "-".into();
    }
    plain((rho.iter().sum::<f64>() / rho.len() as f64).exp())
}

/// A planted fault: what it did, and what noticed it.
fn fault_lines(fault: &FaultCheck) -> Vec<String> {
    let word = match (fault.rejected, fault.required) {
        (true, _) => "rejected",
        (false, true) => "NOT REJECTED",
        (false, false) => "not rejected",
    };
    let mut lines = vec![format!("  {:<13} {}", word, fault.label)];
    if let Some(verdict) = &fault.config {
        let z = verdict.stats.max_z.as_ref().map_or(0.0, |worst| worst.z);
        let flips = &verdict.stats.flips;
        lines.push(format!(
            "  {:<13} error ratio {}, worst row {} times the noise, {} of {} decidable rows flip",
            "",
            error_ratio(verdict),
            plain(z),
            flips.decidable_variant,
            flips.decidable_rows
        ));
    }
    lines
}

fn calibration_lines(c: &Calibration) -> Vec<String> {
    let limits = &c.limits;
    let alarms = &c.leave_one_out;
    let or_dash = |value: Option<f64>| value.map_or("-".to_owned(), plain);
    let who = match alarms.false_alarms.is_empty() {
        true => String::new(),
        false => format!(": {}", alarms.false_alarms.join(", ")),
    };
    vec![
        format!(
            "  {:<10} {} {}, {} {}, {} {}, {} {}",
            c.tier,
            CheckName::MaxRho.words(),
            plain(limits.max_rho),
            CheckName::MaxZ.words(),
            plain(limits.max_z),
            CheckName::KlP999.words(),
            or_dash(limits.kl_p999),
            CheckName::KlMax.words(),
            or_dash(limits.kl_max)
        ),
        format!(
            "  {:<10} left out one by one, {} of {} alarm falsely{who}",
            "",
            alarms.false_alarms.len(),
            alarms.variants
        ),
    ]
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
            "  {:<22} {:<13} error ratio {}; of each limit is used:",
            t.config,
            word(&t.verdict),
            error_ratio(t)
        ));
        for words in wrapped(&shares(t), 70) {
            line(format!("  {:<22} {words}", ""));
        }
    }
    line("Planted faults: each that must show must be rejected".into());
    for f in &v.faults {
        fault_lines(f).into_iter().for_each(&mut line);
        // With every fault planted the table alone is to be read.
        if v.faults.len() <= BRIEF {
            for words in wrapped(&f.evidence, 80) {
                line(format!("  {:<13} {words}", ""));
            }
        }
    }
    if !v.calibration.is_empty() {
        line("Limits from these correct variants, 1.5 times their largest values".into());
    }
    for c in &v.calibration {
        calibration_lines(c).into_iter().for_each(&mut line);
    }
    line(conclusion(v.exit_code()).into());
    out
}

/// What the exit code says, in words.
fn conclusion(code: u8) -> &'static str {
    match code {
        0 => {
            "PASS: every variant agrees with the monolithic pass, every fault is seen that must be"
        }
        3 => "INCONCLUSIVE: nothing is wrong, but a mean is undecided; try more --prompts",
        _ => "FAIL: a variant differs or a planted fault was not rejected",
    }
}
