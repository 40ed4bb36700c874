//! Everything about one metric that needs no knowledge of the others: estimates, intervals, p.

use pb_stats::{Estimate, SplitMix64, StatError};

use super::metric::{AbRules, Scale};
use super::pairs::Pairs;
use crate::verdict::Interval;

/// The numbers of one metric. All None with fewer than two pairs.
pub(super) struct Measured {
    pub(super) difference: Option<Interval>,
    pub(super) ratio: Option<Interval>,
    pub(super) equivalence: Option<Interval>,
    pub(super) bootstrap: Option<Interval>,
    pub(super) p: Option<f64>,
    pub(super) sign_flip_p: Option<f64>,
    pub(super) detectable: Option<f64>,
}

impl Measured {
    /// `stream` tells the metrics of one run apart, so that each has its own resamples.
    pub(super) fn of(pairs: &Pairs, scale: Scale, rules: &AbRules, stream: u64) -> Self {
        let confidence = 1.0 - rules.alpha;
        let ratio = pb_stats::paired_ratio(&pairs.a, &pairs.b, confidence);
        let difference = pb_stats::paired_difference(&pairs.a, &pairs.b, confidence);
        let units = per_block(pairs, scale);
        let back = |estimate: Estimate| on_scale(estimate, scale);
        let equivalence = pb_stats::mean_interval(&units, 1.0 - 2.0 * rules.alpha).map(back);
        let mut rng = SplitMix64::new(rules.seed.wrapping_add(stream));
        let bootstrap = if rules.resamples == 0 {
            Err(StatError::Degenerate)
        } else {
            pb_stats::bootstrap_t_mean(&units, confidence, rules.resamples, &mut rng).map(back)
        };
        Self {
            difference: kept(difference),
            ratio: kept(ratio),
            equivalence: kept(equivalence),
            bootstrap: kept(bootstrap),
            p: pb_stats::paired_t_test(&units).ok().map(|test| test.p),
            sign_flip_p: pb_stats::sign_flip_p(&units).ok(),
            detectable: detectable(&units, scale, rules),
        }
    }
}

/// The per-block quantity that the tests work on: log ratios or differences.
fn per_block(pairs: &Pairs, scale: Scale) -> Vec<f64> {
    let blocks = pairs.a.iter().zip(&pairs.b);
    match scale {
        Scale::Ratio { .. } => blocks.map(|(a, b)| b.ln() - a.ln()).collect(),
        Scale::Difference { .. } => blocks.map(|(a, b)| b - a).collect(),
    }
}

fn on_scale(estimate: Estimate, scale: Scale) -> Estimate {
    match scale {
        Scale::Difference { .. } => estimate,
        Scale::Ratio { .. } => Estimate {
            point: estimate.point.exp(),
            low: estimate.low.exp(),
            high: estimate.high.exp(),
            ..estimate
        },
    }
}

/// An interval with an end that overflowed says nothing and is left out.
fn kept(estimate: Result<Estimate, StatError>) -> Option<Interval> {
    estimate
        .ok()
        .filter(|e| e.low.is_finite() && e.high.is_finite())
        .map(Interval::from)
}

fn detectable(units: &[f64], scale: Scale, rules: &AbRules) -> Option<f64> {
    let sd = pb_stats::Moments::of(units).sd()?;
    let effect =
        pb_stats::minimum_detectable_effect(units.len(), rules.alpha, rules.power?).ok()?;
    let change = match scale {
        Scale::Ratio { .. } => (effect * sd).exp(),
        Scale::Difference { .. } => effect * sd,
    };
    change.is_finite().then_some(change)
}
