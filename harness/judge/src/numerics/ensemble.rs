//! T2: limits that harmless variants have shown.
//!
//! In bf16, or on a GPU, error tails are heavy and depend on model and kernel, so a limit chosen by
//! hand either alarms falsely or passes anything. Variants that are correct by construction (other
//! chunk sizes, tile sizes, split counts, batch companions, block orders) show how large a
//! harmless maximum gets; the limit is 1.5 times that. Judging each member by limits from the
//! others says how often that would have alarmed falsely.

use serde::{Deserialize, Serialize};

use super::{ConfigStats, Limits, NumericsError, judge};

/// Fewest variants that calibrate limits.
pub const MIN_VARIANTS: usize = 8;

/// How far above the ensemble's maximum a limit lies.
const HEADROOM: f64 = 1.5;

/// A variant that is correct by construction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BenignVariant {
    /// What was varied, such as `chunk 17` or `blocks permuted`.
    pub name: String,
    /// Its statistics against the monolithic pass.
    pub stats: ConfigStats,
}

/// How often a member of the ensemble fails limits set by the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaveOneOut {
    /// Variants judged.
    pub variants: usize,
    /// Names of those that failed.
    pub false_alarms: Vec<String>,
    /// Failed share.
    pub rate: f64,
}

/// Limits from at least [`MIN_VARIANTS`] benign variants: 1.5 times the ensemble's maximum for
/// rho, z, the divergence's tail and the probability change. Margins and levels are `base`'s.
/// Errors on a small ensemble, and on one whose maxima are zero (bit-equal variants: use T0) or
/// infinite.
pub fn calibrate(ensemble: &[BenignVariant], base: &Limits) -> Result<Limits, NumericsError> {
    if ensemble.len() < MIN_VARIANTS {
        let (got, need) = (ensemble.len(), MIN_VARIANTS);
        return Err(NumericsError::SmallEnsemble { got, need });
    }
    let members: Vec<&ConfigStats> = ensemble.iter().map(|v| &v.stats).collect();
    limits_of(&members, base)
}

/// Judges every member by limits calibrated on the others. Errors as [`calibrate`] does.
pub fn leave_one_out(
    ensemble: &[BenignVariant],
    base: &Limits,
) -> Result<LeaveOneOut, NumericsError> {
    calibrate(ensemble, base)?;
    let mut false_alarms = Vec::new();
    for (index, member) in ensemble.iter().enumerate() {
        let others: Vec<&ConfigStats> = ensemble
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != index)
            .map(|(_, v)| &v.stats)
            .collect();
        let limits = limits_of(&others, base)?;
        if judge(&member.name, member.stats.clone(), &limits)?
            .verdict
            .is_fail()
        {
            false_alarms.push(member.name.clone());
        }
    }
    let rate = false_alarms.len() as f64 / ensemble.len() as f64;
    Ok(LeaveOneOut {
        variants: ensemble.len(),
        false_alarms,
        rate,
    })
}

fn limits_of(members: &[&ConfigStats], base: &Limits) -> Result<Limits, NumericsError> {
    // The sign of a harmless rho is chance, so its size sets the limit; a largest rho that happens
    // to be negative must not become an upper limit below zero.
    let rho = largest("rho", members, |s| {
        s.rho.iter().map(|r| r.rho.abs()).reduce(f64::max)
    })?;
    let z = largest("z", members, |s| s.max_z.as_ref().map(|w| w.z))?;
    let kl_p999 = largest("p99.9 KL", members, |s| s.variant_kl.map(|k| k.p999))?;
    let kl_max = largest("largest KL", members, |s| s.variant_kl.map(|k| k.max))?;
    let delta_p = largest("RMS change of probability", members, |s| {
        s.variant_rms_delta_p
    })?;
    Ok(Limits {
        max_rho: HEADROOM * rho,
        max_z: HEADROOM * z,
        kl_p999: Some(HEADROOM * kl_p999),
        kl_max: Some(HEADROOM * kl_max),
        rms_delta_p: Some(HEADROOM * delta_p),
        ..base.clone()
    })
}

fn largest(
    statistic: &'static str,
    members: &[&ConfigStats],
    pick: impl Fn(&ConfigStats) -> Option<f64>,
) -> Result<f64, NumericsError> {
    let value = members
        .iter()
        .filter_map(|stats| pick(stats))
        .fold(0.0, f64::max);
    if value > 0.0 && value.is_finite() {
        Ok(value)
    } else {
        Err(NumericsError::DegenerateEnsemble { statistic, value })
    }
}
