//! The statistical tiers: variants of the fast mode beside its own monolithic pass.

use anyhow::Result;
use pb_contract::{Fault, TokenId};
use pb_judge::numerics::{ConfigVerdict, Limits};
use pb_kernels_cpu::{Dot, Isa};

use super::capture::{Captured, Subject, Variant};
use super::scores::{self, Scores};
use super::{FaultCheck, table};

/// Where a tier's limits come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimitRule {
    /// T1: the limits for f32.
    F32,
    /// T2: for each variant, from the other correct variants.
    LeaveOneOut,
}

impl LimitRule {
    /// The tiers that mean something here: T2 only where the served mode rounds activations.
    pub(super) fn of_this_machine() -> Vec<LimitRule> {
        match Isa::detect().preferred_dot() {
            Dot::F32 => vec![LimitRule::F32],
            Dot::Bf16 => vec![LimitRule::F32, LimitRule::LeaveOneOut],
        }
    }

    /// How the tier's subject multiplies.
    pub(super) fn dot(self) -> Dot {
        match self {
            LimitRule::F32 => Dot::F32,
            LimitRule::LeaveOneOut => Dot::Bf16,
        }
    }

    fn label(self) -> &'static str {
        match self {
            LimitRule::F32 => "fast f32",
            LimitRule::LeaveOneOut => "fast bf16",
        }
    }
}

/// One subject with the scores of its variants, correct and faulty.
pub(super) struct Tier {
    rule: LimitRule,
    subject: Subject,
    clean: Vec<Scores>,
    faulty: Vec<Scores>,
}

impl Tier {
    pub(super) fn new(
        rule: LimitRule,
        subject: Subject,
        variants: &[Variant],
        faulty: &[Variant],
    ) -> Self {
        Tier {
            rule,
            subject,
            clean: variants.iter().map(Scores::new).collect(),
            faulty: faulty.iter().map(Scores::new).collect(),
        }
    }

    /// Computes one prompt in every variant and scores it against `truth`.
    pub(super) fn add(
        &mut self,
        index: usize,
        prompt: &[TokenId],
        truth: &Captured<f64>,
    ) -> Result<()> {
        let Tier {
            subject,
            clean,
            faulty,
            ..
        } = self;
        let mono = subject.logits::<f32>(prompt, Variant::Monolithic, Fault::None)?;
        let passes = [
            (clean, Fault::None),
            (faulty, Fault::RopePlusOneAfterFirstChunk),
        ];
        for (scores, fault) in passes {
            for score in scores.iter_mut() {
                let got = subject.logits::<f32>(prompt, score.variant(), fault)?;
                score.add(index, prompt, truth, &mono, &got)?;
            }
        }
        Ok(())
    }

    /// The verdicts of the correct variants, and whether the faulty ones were rejected.
    pub(super) fn judge(self) -> Result<(Vec<ConfigVerdict>, Vec<FaultCheck>)> {
        let label = self.rule.label();
        let (mut clean, faulty) = match self.rule {
            LimitRule::F32 => {
                let limits = Limits::default();
                (
                    scores::judge(&self.clean, &limits)?,
                    scores::judge(&self.faulty, &limits)?,
                )
            }
            LimitRule::LeaveOneOut => {
                let limits = scores::limits_from(&self.clean)?;
                (
                    scores::judge_by_others(&self.clean)?,
                    scores::judge(&self.faulty, &limits)?,
                )
            }
        };
        for verdict in &mut clean {
            verdict.config = format!("{label}: {}", verdict.config);
        }
        let faults = faulty.into_iter().map(|verdict| FaultCheck {
            label: format!("{label}: RoPE +1 from chunk 2, {}", verdict.config),
            rejected: verdict.verdict.is_fail(),
            evidence: table::reasons(&verdict.verdict),
            config: Some(verdict),
        });
        Ok((clean, faults.collect()))
    }
}
