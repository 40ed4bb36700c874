//! What `prefillbench validate` found: bits, tolerances, and whether planted faults were noticed.

use serde::{Deserialize, Serialize};

use super::{BitDifference, ConfigVerdict, LeaveOneOut, Limits};
use crate::verdict::Verdict;

/// Bits of one variant of the exact mode against its monolithic pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BitCheck {
    /// Name of the variant.
    pub config: String,
    /// What differs.
    pub bits: BitDifference,
}

/// A planted fault and whether a tier noticed it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultCheck {
    /// The fault and the variant that it was planted in.
    pub label: String,
    /// Whether the check rejected it.
    pub rejected: bool,
    /// Whether it must: not where the fault does nothing, is none, or is known to hide in the
    /// noise of this tier.
    #[serde(default = "yes")]
    pub required: bool,
    /// What the check said.
    pub evidence: String,
    /// The statistics, for T1.
    pub config: Option<ConfigVerdict>,
}

/// What was checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checked {
    /// Name of the model, as a server of it offers it.
    pub model: String,
    /// sha256 of its weights.
    pub model_sha256: String,
    /// Version of this program.
    pub tool_version: String,
    /// Revision of its sources, or `unknown`.
    pub tool_rev: String,
}

fn yes() -> bool {
    true
}

/// Limits that a tier's own clean variants give, and how often these would alarm falsely.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// The tier.
    pub tier: String,
    /// 1.5 times the largest value that a clean variant showed.
    pub limits: Limits,
    /// Each variant judged by the limits of the others.
    pub leave_one_out: LeaveOneOut,
}

/// Everything that was found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Validation {
    /// What was checked; absent in files of earlier versions.
    #[serde(default)]
    pub checked: Option<Checked>,
    /// T0.
    pub bits: Vec<BitCheck>,
    /// T1.
    pub tolerance: Vec<ConfigVerdict>,
    /// Planted faults.
    pub faults: Vec<FaultCheck>,
    /// Limits from the clean variants, where they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calibration: Vec<Calibration>,
}

impl Validation {
    /// Pass when every clean variant passes and every fault is rejected. A check that was shown no
    /// fault has proven nothing, and neither has one that compared nothing.
    pub fn verdict(&self) -> Verdict {
        let bits = self.bits.iter().map(|b| (&b.config, b.bits.verdict()));
        let tolerance = self.tolerance.iter().map(|t| (&t.config, t.restated()));
        let (mut broken, mut open) = (Vec::new(), Vec::new());
        for (config, verdict) in bits.chain(tolerance) {
            let (list, said) = match verdict {
                Verdict::Pass => continue,
                Verdict::Fail { reasons } => (&mut broken, reasons),
                Verdict::Inconclusive { why } => (&mut open, why),
            };
            list.push(format!("{config}: {}", said.join("; ")));
        }
        let missed = self.faults.iter().filter(|f| f.required && !f.rejected);
        broken.extend(missed.map(|fault| format!("planted fault not noticed: {}", fault.label)));
        if self.bits.is_empty() && self.tolerance.is_empty() {
            broken.push("no outputs were compared".to_owned());
        }
        if self.faults.is_empty() {
            open.push("no fault was planted, so the checks may be unable to fail".to_owned());
        }
        Verdict::from_findings(broken, open)
    }

    /// 0 when every clean variant passes and every fault is rejected, 1 when one does not, 3
    /// when the data cannot tell.
    pub fn exit_code(&self) -> u8 {
        self.verdict().exit_code()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Validation {
        let mut bits = BitDifference::new();
        bits.push_row("p", 0, &[1.0_f32, 2.0], &[1.0, 2.0]).unwrap();
        Validation {
            checked: None,
            bits: vec![BitCheck {
                config: "chunk 16".to_owned(),
                bits,
            }],
            tolerance: Vec::new(),
            calibration: Vec::new(),
            faults: vec![FaultCheck {
                label: "RoPE +1".to_owned(),
                rejected: true,
                required: true,
                evidence: "differs".to_owned(),
                config: None,
            }],
        }
    }

    #[test]
    fn all_must_agree_and_a_fault_must_be_noticed() {
        assert_eq!(good().exit_code(), 0);
        let mut differs = good();
        let row = differs.bits[0]
            .bits
            .push_row("p", 1, &[1.0_f32, 2.0], &[1.0, 2.5]);
        row.unwrap();
        assert!(differs.verdict().is_fail());
        let mut blind = good();
        blind.faults[0].rejected = false;
        let Verdict::Fail { reasons } = blind.verdict() else {
            panic!("a fault that passes is a failure");
        };
        assert_eq!(reasons, ["planted fault not noticed: RoPE +1"]);
        blind.faults[0].required = false;
        assert_eq!(blind.exit_code(), 0, "one that need not be seen");
    }

    #[test]
    fn nothing_checked_is_no_pass() {
        assert_eq!(Validation::default().exit_code(), 1);
        let mut unproven = good();
        unproven.faults.clear();
        assert_eq!(unproven.exit_code(), 3);
    }
}
