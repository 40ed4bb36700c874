//! The stopping rules over thousands of simulated experiments: error rates, power, and what the
//! rules protect against.

use pb_stats::simulate::{normal, uniform_open};
use pb_stats::{Bound, CompiledRule, Reason, Rule, Spending, SplitMix64};

const EXPERIMENTS: usize = 2_000;
/// 5 % of 2,000 is 100, its binomial deviation 9.75: three of them above.
const MOST_FALSE: usize = 129;

fn rule(bound: Bound, margin: f64) -> CompiledRule {
    let looks = match bound {
        Bound::AlwaysValid => vec![],
        Bound::Spending(_) => vec![4, 8, 12, 16, 20],
    };
    let rule = Rule {
        looks,
        alpha: 0.05,
        margin,
        max_blocks: 20,
        target_halfwidth: None,
        bound,
    };
    rule.compile().unwrap()
}

/// Why and after how many blocks each experiment stopped.
fn run(
    rule: &CompiledRule,
    seed: u64,
    unit: impl Fn(&mut SplitMix64) -> f64,
) -> Vec<(Reason, usize)> {
    let mut rng = SplitMix64::new(seed);
    (0..EXPERIMENTS)
        .map(|_| {
            let units: Vec<f64> = (0..20).map(|_| unit(&mut rng)).collect();
            let stopped = (1..=20).find_map(|n| {
                let decision = rule.decide(&units[..n]).unwrap();
                decision.stop.then_some((decision.reason, n))
            });
            stopped.expect("a rule ends at its last block")
        })
        .collect()
}

fn count(ends: &[(Reason, usize)], reason: Reason) -> usize {
    ends.iter().filter(|(r, _)| *r == reason).count()
}

const BOUNDS: [Bound; 3] = [
    Bound::Spending(Spending::OBrienFleming),
    Bound::Spending(Spending::Pocock),
    Bound::AlwaysValid,
];

#[test]
fn equal_arms_are_called_different_no_more_often_than_stated() {
    for (seed, bound) in (1..).zip(BOUNDS) {
        let rule = rule(bound, 0.0);
        let normal_units = run(&rule, seed, normal);
        // Heavier tails than a normal: the difference of two exponentials (Laplace).
        let laplace = run(&rule, 10 + seed, |rng| {
            (uniform_open(rng) / uniform_open(rng)).ln()
        });
        for ends in [normal_units, laplace] {
            let claims = count(&ends, Reason::Difference);
            assert!(claims <= MOST_FALSE, "{bound:?}: {claims} of {EXPERIMENTS}");
        }
    }
}

#[test]
fn looking_at_plain_intervals_breaks_the_level() {
    // The planted fault: the same looks with the plain 95 % t interval.
    let mut rng = SplitMix64::new(77);
    let claims = (0..EXPERIMENTS)
        .filter(|_| {
            let units: Vec<f64> = (0..20).map(|_| normal(&mut rng)).collect();
            [4, 8, 12, 16, 20].iter().any(|&n| {
                let plain = pb_stats::mean_interval(&units[..n], 0.95).unwrap();
                plain.excludes(0.0)
            })
        })
        .count();
    // Armitage, McPherson and Rowe (1969): 14.2 % for five looks at known variance.
    assert!(claims > 2 * MOST_FALSE - 30, "{claims} of {EXPERIMENTS}");
}

#[test]
fn power_is_near_that_of_a_single_test_and_blocks_are_saved() {
    let effect = pb_stats::minimum_detectable_effect(20, 0.05, 0.8).unwrap();
    let ends = run(&rule(BOUNDS[0], 0.0), 5, |rng| effect + normal(rng));
    let found = count(&ends, Reason::Difference) as f64 / EXPERIMENTS as f64;
    // A single look finds 80 %; five looks may cost 5 points at most.
    assert!((0.75..=0.83).contains(&found), "{found}");
    let blocks: usize = ends.iter().map(|(_, n)| n).sum();
    let mean = blocks as f64 / EXPERIMENTS as f64;
    assert!(mean < 17.5, "{mean}");
    // An effect of three deviations ends it at the second look at the latest; the always valid
    // sequence, which looks at every block, needs no more.
    for bound in [BOUNDS[1], BOUNDS[2]] {
        let ends = run(&rule(bound, 0.0), 6, |rng| 3.0 + normal(rng));
        assert!(
            ends.iter().filter(|(_, n)| *n <= 8).count() > 1_900,
            "{bound:?}"
        );
    }
}

#[test]
fn a_single_test_has_the_power_stated() {
    for (n, target) in [(6, 0.8), (12, 0.8), (20, 0.9)] {
        let effect = pb_stats::minimum_detectable_effect(n, 0.05, target).unwrap();
        let mut rng = SplitMix64::new(n as u64);
        let found = (0..EXPERIMENTS)
            .filter(|_| {
                let units: Vec<f64> = (0..n).map(|_| effect + normal(&mut rng)).collect();
                pb_stats::mean_interval(&units, 0.95).unwrap().excludes(0.0)
            })
            .count() as f64
            / EXPERIMENTS as f64;
        // Binomial deviation 0.9 points.
        assert!((found - target).abs() < 0.03, "{n}: {found}");
    }
}

#[test]
fn arms_that_differ_by_the_margin_are_rarely_equivalent() {
    // The worst case for a claim of equivalence: the true difference is the margin itself.
    for (seed, bound) in (20..).zip(BOUNDS) {
        let ends = run(&rule(bound, 1.0), seed, |rng| 1.0 + normal(rng));
        let claims = count(&ends, Reason::Equivalent);
        assert!(claims <= MOST_FALSE, "{bound:?}: {claims} of {EXPERIMENTS}");
        // And equal arms are mostly shown to be equivalent.
        let equal = run(&rule(bound, 1.0), seed, normal);
        let shown = count(&equal, Reason::Equivalent);
        assert!(shown > EXPERIMENTS * 8 / 10, "{bound:?}: {shown}");
    }
}

#[test]
fn the_repeated_intervals_cover_at_all_looks_together() {
    for bound in BOUNDS {
        let rule = rule(bound, 0.0);
        let mut rng = SplitMix64::new(8);
        let mut missed = 0;
        for _ in 0..EXPERIMENTS {
            let units: Vec<f64> = (0..20).map(|_| 0.4 + normal(&mut rng)).collect();
            let miss = |n: usize| {
                let interval = rule.decide(&units[..n]).unwrap().interval;
                interval.is_some_and(|e| e.excludes(0.4))
            };
            missed += usize::from((1..=20).any(miss));
        }
        assert!(missed <= MOST_FALSE, "{bound:?}: {missed} of {EXPERIMENTS}");
    }
}
