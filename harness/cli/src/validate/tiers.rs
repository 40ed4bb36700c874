//! The statistical tiers: variants of the fast mode beside its own monolithic pass.

use anyhow::Result;
use pb_contract::{Fault, TokenId};
use pb_judge::numerics::{
    BenignVariant, Calibration, ConfigVerdict, FaultCheck, Limits, Validation, calibrate,
    leave_one_out,
};
use pb_kernels_cpu::{Dot, Isa};

use super::capture::{Subject, Variant};
use super::scores::{self, Reference, Scores};
use super::{FAULTY, fault_name, shows, table};

/// A statistical tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TierKind {
    /// T1: activations in f32.
    F32,
    /// T2: activations rounded to bf16, as the fast mode does where that is faster.
    Bf16,
}

impl TierKind {
    /// The tiers that mean something here: T2 only where the served mode rounds activations, and
    /// then T1 beside it unless `served_only`.
    pub(super) fn of_this_machine(served_only: bool) -> Vec<TierKind> {
        match Isa::detect().preferred_dot() {
            Dot::F32 => vec![TierKind::F32],
            Dot::Bf16 if served_only => vec![TierKind::Bf16],
            Dot::Bf16 => vec![TierKind::F32, TierKind::Bf16],
        }
    }

    /// How the tier's subject multiplies.
    pub(super) fn dot(self) -> Dot {
        match self {
            TierKind::F32 => Dot::F32,
            TierKind::Bf16 => Dot::Bf16,
        }
    }

    fn label(self) -> &'static str {
        match self {
            TierKind::F32 => "fast f32",
            TierKind::Bf16 => "fast bf16",
        }
    }

    /// Whether the tier is answerable for a fault. What bf16's noise hides is published, not
    /// demanded: f32 is the tier that catches.
    fn must_see(self, fault: Fault) -> bool {
        self == TierKind::F32 || fault == Fault::RopePlusOneAfterFirstChunk
    }

    /// The limits. T1's are the judge's own. T2's NLL margin is the size that published bf16 runs
    /// are held to; its maxima are 1.5 times those of a benign ensemble on SmolLM2, with prompts
    /// that no other check uses:
    /// `prefillbench validate --model smollm2-135m --seed 1000 --prompts 24 --chunks
    /// 1,2,9,10,17,18,25,26,33,34`
    fn limits(self) -> Limits {
        match self {
            TierKind::F32 => Limits::default(),
            TierKind::Bf16 => Limits {
                delta_nll_margin: 5e-3,
                max_rho: BF16_MAX_RHO,
                max_z: BF16_MAX_Z,
                ..Limits::default()
            },
        }
    }
}

/// 1.5 times the ensemble's largest error ratio.
const BF16_MAX_RHO: f64 = 0.36;
/// 1.5 times the ensemble's largest z.
const BF16_MAX_Z: f64 = 11.7;

/// One subject with the scores of its variants, correct and faulty.
pub(super) struct Tier {
    kind: TierKind,
    subject: Subject,
    clean: Vec<Scores>,
    faulty: Vec<(Fault, Vec<Scores>)>,
}

impl Tier {
    pub(super) fn new(
        kind: TierKind,
        subject: Subject,
        variants: &[Variant],
        faults: &[Fault],
    ) -> Self {
        let faulty = |&fault: &Fault| (fault, FAULTY.iter().map(Scores::new).collect());
        Tier {
            kind,
            subject,
            clean: variants.iter().map(Scores::new).collect(),
            faulty: faults.iter().map(faulty).collect(),
        }
    }

    /// Computes one prompt in every variant and scores it.
    pub(super) fn add(
        &mut self,
        index: usize,
        prompt: &[TokenId],
        reference: &Reference<'_>,
    ) -> Result<()> {
        let Tier {
            subject,
            clean,
            faulty,
            ..
        } = self;
        let mono = subject.logits::<f32>(prompt, Variant::Monolithic, Fault::None)?;
        let mono_scores = reference.score_monolithic(&mono)?;
        let faulty = faulty.iter_mut().map(|(fault, scores)| (scores, *fault));
        for (scores, fault) in std::iter::once((clean, Fault::None)).chain(faulty) {
            for score in scores.iter_mut() {
                let got = subject.logits::<f32>(prompt, score.variant(), fault)?;
                score.add(index, reference, (&mono, &mono_scores), &got)?;
            }
        }
        Ok(())
    }

    /// Adds the verdicts of the correct variants, whether the faulty ones were rejected, and, if
    /// `calibrating`, the limits that the correct ones give.
    pub(super) fn judge(self, calibrating: bool, into: &mut Validation) -> Result<()> {
        let (label, limits) = (self.kind.label(), self.kind.limits());
        let mut clean = scores::judge(&self.clean, &limits)?;
        if calibrating {
            let member = |verdict: &ConfigVerdict| BenignVariant {
                name: verdict.config.clone(),
                stats: verdict.stats.clone(),
            };
            let ensemble: Vec<BenignVariant> = clean.iter().map(member).collect();
            into.calibration.push(Calibration {
                tier: label.to_owned(),
                limits: calibrate(&ensemble, &limits)?,
                leave_one_out: leave_one_out(&ensemble, &limits)?,
            });
        }
        for verdict in &mut clean {
            verdict.config = format!("{label}: {}", verdict.config);
        }
        into.tolerance.extend(clean);
        for (fault, scores) in self.faulty {
            for (variant, verdict) in FAULTY.iter().zip(scores::judge(&scores, &limits)?) {
                into.faults.push(FaultCheck {
                    label: format!("{label}: {}, {}", fault_name(fault), verdict.config),
                    rejected: verdict.verdict.is_fail(),
                    required: self.kind.must_see(fault) && shows(fault, *variant),
                    evidence: table::reasons(&verdict.verdict),
                    config: Some(verdict),
                });
            }
        }
        Ok(())
    }
}
