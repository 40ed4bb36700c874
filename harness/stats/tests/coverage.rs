//! Coverage of the intervals for percentiles on the three shapes of latency, and what becomes of it
//! when samples are taken for independent units. The full table is printed by the example
//! `calibration`.

use pb_stats::simulate::{Experiment, Shape, normal};
use pb_stats::{
    Contrast, Estimate, Method, PooledBlocks, Resampling, SplitMix64, auc, nearest_rank,
    normal_quantile, paired_percentile, paired_ratio,
};

const BLOCKS: usize = 12;
const RATIO: f64 = 1.05;

fn shapes() -> [Experiment; 3] {
    let of = |shape| Experiment {
        shape,
        samples: 1_000,
        median: 10.0,
        machine_sd: 0.10,
        run_sd: 0.03,
    };
    [
        of(Shape::Lognormal { sigma: 0.4 }),
        of(Shape::Stalls {
            sigma: 0.2,
            share: 0.03,
            factor: 8.0,
        }),
        of(Shape::Autocorrelated {
            sigma: 0.4,
            phi: 0.8,
        }),
    ]
}

/// Intervals of `make` that hold the truth, by shape and percentile.
fn covered(
    experiments: usize,
    make: impl Fn(&[Vec<f64>], &[Vec<f64>], f64, &mut SplitMix64) -> Option<Estimate>,
) -> Vec<usize> {
    let mut hits = Vec::new();
    for experiment in shapes() {
        for p in [0.5, 0.95, 0.99] {
            let count = (0..experiments).filter(|seed| {
                let mut rng = SplitMix64::new(*seed as u64);
                let (a, b) = experiment.blocks(BLOCKS, RATIO, &mut rng);
                // An error is a miss: twelve blocks must give an interval.
                make(&a, &b, p, &mut rng).is_some_and(|e| !e.excludes(RATIO))
            });
            hits.push(count.count());
        }
    }
    hits
}

fn per_block(arm: &[Vec<f64>], p: f64) -> Vec<f64> {
    let sorted = arm.iter().map(|block| {
        let mut block = block.clone();
        block.sort_unstable_by(f64::total_cmp);
        block
    });
    sorted.filter_map(|block| nearest_rank(&block, p)).collect()
}

/// Every cell within four binomial deviations of 95 %, with a point of slack below for what the
/// bootstrap is known to lose at twelve blocks.
fn assert_nominal(hits: &[usize], experiments: usize, what: &str) {
    let n = experiments as f64;
    let reach = 4.0 * (n * 0.95 * 0.05).sqrt();
    let good = |h: &usize| (*h as f64) >= 0.94 * n - reach && (*h as f64) <= 0.95 * n + reach;
    assert!(hits.iter().all(good), "{what}: {hits:?} of {experiments}");
}

#[test]
fn t_on_per_block_ratios_keeps_its_level() {
    let hits = covered(600, |a, b, p, _| {
        paired_ratio(&per_block(a, p), &per_block(b, p), 0.95).ok()
    });
    assert_nominal(&hits, 600, "t");
}

fn pooled(experiments: usize, method: Method, resamples: usize) -> Vec<usize> {
    covered(experiments, |a, b, p, rng| {
        let (a, b) = (PooledBlocks::new(a).ok()?, PooledBlocks::new(b).ok()?);
        let plan = Resampling {
            confidence: 0.95,
            resamples,
        };
        paired_percentile(&a, &b, p, Contrast::Ratio, method, plan, rng).ok()
    })
}

#[test]
fn the_jackknife_of_pooled_percentiles_keeps_its_level() {
    assert_nominal(&pooled(400, Method::Jackknife, 0), 400, "jackknife");
}

#[test]
fn bca_of_pooled_percentiles_keeps_its_level() {
    assert_nominal(&pooled(300, Method::Bca, 300), 300, "BCa");
}

#[test]
fn the_studentised_bootstrap_keeps_its_level() {
    assert_nominal(&pooled(200, Method::Studentised, 200), 200, "studentised");
}

#[test]
fn samples_taken_for_units_break_coverage() {
    // The planted fault. 12 blocks of 1,000 samples become 12,000 observations, and the interval
    // forgets that a whole run is fast or slow: on autocorrelated data it holds the truth for the
    // median in less than two of three experiments, not in 95 %.
    let hits = covered(400, |a, b, p, _| {
        let (z, all_samples) = (normal_quantile(0.975), a.iter().map(Vec::len).sum());
        let of = |arm: &[Vec<f64>]| {
            let mut all: Vec<f64> = arm.iter().flatten().map(|v| v.ln()).collect();
            all.sort_unstable_by(f64::total_cmp);
            let reach = z * (p * (1.0 - p) / all.len() as f64).sqrt();
            let at = |p: f64| nearest_rank(&all, p.min(1.0));
            Some((at(p)?, 0.5 * (at(p + reach)? - at(p - reach)?)))
        };
        let ((a, half_a), (b, half_b)) = (of(a)?, of(b)?);
        let (point, half) = (b - a, half_a.hypot(half_b));
        Some(Estimate {
            point: point.exp(),
            low: (point - half).exp(),
            high: (point + half).exp(),
            se: half / z,
            n: all_samples,
            confidence: 0.95,
        })
    });
    let median_autocorrelated = hits[6];
    assert!(median_autocorrelated < 400 * 2 / 3, "{hits:?}");
    // Independent samples do not save it: the run's own 3 % is missing from the interval.
    assert!(hits[0] < 400 * 85 / 100, "{hits:?}");
}

#[test]
fn the_interval_of_the_area_keeps_its_level() {
    for (seed, truth) in (1..).zip([0.5, 0.7, 0.9, 0.97]) {
        let apart = std::f64::consts::SQRT_2 * normal_quantile(truth);
        let mut rng = SplitMix64::new(seed);
        let hits = (0..2_000)
            .filter(|_| {
                let x: Vec<f64> = (0..40).map(|_| apart + normal(&mut rng)).collect();
                let y: Vec<f64> = (0..40).map(|_| normal(&mut rng)).collect();
                let a = auc(&x, &y, 0.95).unwrap();
                a.lower <= truth && truth <= a.upper
            })
            .count();
        // 1,900 expected; at 0.97 the logit interval errs on the safe side.
        assert!((1_860..=1_960).contains(&hits), "{truth}: {hits}");
    }
}

#[test]
fn ten_thousand_resamples_of_half_a_million_samples() {
    // 50 blocks of 10,000 samples. Timed from outside: under a second, the sort included.
    let experiment = Experiment {
        samples: 10_000,
        ..shapes()[0]
    };
    let mut rng = SplitMix64::new(2026);
    let (a, b) = experiment.blocks(50, RATIO, &mut rng);
    let (a, b) = (
        PooledBlocks::new(&a).unwrap(),
        PooledBlocks::new(&b).unwrap(),
    );
    let plan = Resampling {
        confidence: 0.95,
        resamples: 10_000,
    };
    let bca = Method::Bca;
    let e = paired_percentile(&a, &b, 0.99, Contrast::Ratio, bca, plan, &mut rng).unwrap();
    assert!(!e.excludes(RATIO), "{e:?}");
    // A block's p99 log ratio has a deviation near 0.03 sqrt 2 (run) and 0.4 * 3.7 / 100 * sqrt 2
    // (rank), so 0.0067 for 50; slow blocks weigh more in a pooled p99, which adds a little.
    assert!(e.se > 0.005 && e.se < 0.011, "{e:?}");
}
