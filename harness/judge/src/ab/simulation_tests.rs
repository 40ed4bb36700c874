//! How often the rule is wrong when there is nothing to find, and right when there is.

use std::collections::BTreeMap;

use pb_stats::{RandomSource, SplitMix64};

use super::*;

/// A standard normal by Box and Muller.
fn normal(rng: &mut SplitMix64) -> f64 {
    let mut unit = || ((rng.next_u64() >> 11) as f64 + 0.5) / 2.0_f64.powi(53);
    let (u, v) = (unit(), unit());
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

/// Blocks share a lognormal drift of 20 %; each arm adds lognormal noise of `sigma`.
fn experiment(blocks: usize, factor: f64, sigma: f64, rng: &mut SplitMix64) -> ArmValues {
    let mut values = ArmValues::default();
    for _ in 0..blocks {
        let drift = 0.2 * normal(rng);
        let mut arm = |scale: f64| Some(scale * (drift + sigma * normal(rng)).exp());
        values.a.push(arm(100.0));
        values.b.push(arm(100.0 * factor));
    }
    values
}

/// Experiments, of `runs`, that make at least one claim for which `counts` holds.
fn claims(
    runs: usize,
    families: usize,
    make: impl Fn(&mut SplitMix64) -> ArmValues,
    counts: impl Fn(Claim) -> bool,
) -> usize {
    // The side shows are left out: they take no part in the rule.
    let rules = AbRules {
        power: None,
        resamples: 0,
        ..AbRules::default()
    };
    let specs: Vec<MetricSpec> = (0..families)
        .map(|i| MetricSpec::latency(&format!("m{i}"), "ms"))
        .collect();
    let mut rng = SplitMix64::new(2024);
    let mut found = 0;
    for _ in 0..runs {
        let values: BTreeMap<_, _> = specs
            .iter()
            .map(|spec| (spec.name.clone(), make(&mut rng)))
            .collect();
        let report = judge_ab(&specs, &values, &[], &rules).unwrap();
        found += usize::from(report.metrics.iter().any(|m| counts(m.claim)));
    }
    found
}

fn difference(claim: Claim) -> bool {
    matches!(claim, Claim::Better | Claim::Worse)
}

#[test]
fn equal_arms_are_rarely_called_different() {
    // 2000 runs at 5 %: 100 expected at most, binomial sd 9.75, so 3 sd above is 129. The noise is
    // large against the margin, so the margin does not do the work here.
    for blocks in [4, 6, 8] {
        for family in [1, 3] {
            let make = |rng: &mut SplitMix64| experiment(blocks, 1.0, 0.3, rng);
            let found = claims(2000, family, make, difference);
            assert!(
                found <= 129,
                "{found} of 2000 with {blocks} blocks, {family} metrics"
            );
            // And the level is used: an exact test of a lone metric is not far below 5 %.
            assert!(
                family > 1 || found >= 60,
                "{found} of 2000 with {blocks} blocks"
            );
        }
    }
}

#[test]
fn a_factor_of_two_is_found_in_the_right_direction() {
    // Log ratios have sd 0.14 against an effect of 0.69: nearly five sd, which n = 4 sees with a
    // power above 0.99 alone; three metrics must all survive a threefold adjustment.
    for blocks in [4, 6, 8] {
        let make = |rng: &mut SplitMix64| experiment(blocks, 0.5, 0.1, rng);
        let better = claims(500, 1, make, |claim| claim == Claim::Better);
        assert!(better >= 490, "{better} of 500 with {blocks} blocks");
        let worse = claims(500, 1, make, |claim| claim == Claim::Worse);
        assert_eq!(worse, 0);
    }
}

#[test]
fn quiet_equal_arms_are_called_equivalent() {
    // Noise of 0.5 % per arm: the 90 % interval of 6 blocks reaches 0.6 %, well within 3 %.
    let make = |rng: &mut SplitMix64| experiment(6, 1.0, 0.005, rng);
    let equal = claims(500, 1, make, |claim| claim == Claim::Equivalent);
    assert!(equal >= 495, "{equal} of 500");
}

#[test]
fn a_change_at_the_margin_is_rarely_called_equivalent() {
    // True ratio exactly 1.03: equivalence may be claimed falsely in 5 % of runs; 50 of 1000, and
    // three binomial sd of 6.9 above that is 70.
    let make = |rng: &mut SplitMix64| experiment(6, 1.03, 0.01, rng);
    let wrong = claims(1000, 1, make, |claim| claim == Claim::Equivalent);
    assert!(wrong <= 70, "{wrong} of 1000");
}
