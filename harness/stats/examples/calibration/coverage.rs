//! How often an interval that says 95 % holds the truth.

use std::thread;

use pb_stats::simulate::{Experiment, Shape, normal};
use pb_stats::{
    Contrast, Estimate, Method, PooledBlocks, Resampling, SplitMix64, StatError, auc, nearest_rank,
    normal_cdf, normal_quantile, paired_percentile, paired_ratio,
};

use crate::{experiment, percent, shapes};

/// The percentiles of every table.
const PERCENTILES: [f64; 3] = [0.5, 0.95, 0.99];
/// The truth: arm B takes 5 % longer.
const RATIO: f64 = 1.05;

/// How an interval is made; the last is wrong on purpose.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    PerBlock,
    Pooled(Method, Contrast, usize),
    SamplesAsUnits,
}

const WAYS: [(&str, Way); 7] = [
    ("t, per-block ratios", Way::PerBlock),
    (
        "jackknife, ratio",
        Way::Pooled(Method::Jackknife, Contrast::Ratio, 0),
    ),
    (
        "studentised, ratio",
        Way::Pooled(Method::Studentised, Contrast::Ratio, 399),
    ),
    ("BCa, ratio", Way::Pooled(Method::Bca, Contrast::Ratio, 499)),
    (
        "BCa, difference",
        Way::Pooled(Method::Bca, Contrast::Difference, 499),
    ),
    (
        "Bayesian HDI, ratio",
        Way::Pooled(Method::BayesianHdi, Contrast::Ratio, 499),
    ),
    ("samples as units", Way::SamplesAsUnits),
];

/// Coverage of every way on every shape, by percentile and number of blocks.
pub(crate) fn intervals(experiments: usize, cell: &str) {
    println!("### Coverage of 95 % intervals, in %, {experiments} experiments each\n");
    table(&shapes(), &WAYS, experiments, cell);
}

/// The case no method survives: the percentile lies in the gap between the modes.
pub(crate) fn edge(experiments: usize, cell: &str) {
    println!("### Coverage with 1 % stalls, where the p99 lies in the gap between the modes\n");
    let shape = Shape::Stalls {
        sigma: 0.2,
        share: 0.01,
        factor: 8.0,
    };
    table(&[("1 % stalls x8", shape)], &WAYS[..4], experiments, cell);
}

fn table(shapes: &[(&str, Shape)], ways: &[(&str, Way)], experiments: usize, cell: &str) {
    println!("| data | blocks | method | p50 | p95 | p99 |\n|---|---|---|---|---|---|");
    for (name, shape) in shapes {
        for blocks in [8, 12, 20] {
            if !format!("{name} {blocks}").contains(cell) {
                continue;
            }
            let hits = count(experiment(*shape), blocks, ways, experiments);
            for ((way, _), hits) in ways.iter().zip(hits) {
                let cells: Vec<String> = hits.iter().map(|(h, of)| percent(*h, *of)).collect();
                println!("| {name} | {blocks} | {way} | {} |", cells.join(" | "));
            }
        }
    }
    println!();
}

/// For each way and percentile: intervals that hold the truth, and intervals made.
type Hits = Vec<[(usize, usize); 3]>;

/// Two threads share the experiments; each experiment has a seed of its own.
fn count(experiment: Experiment, blocks: usize, ways: &[(&str, Way)], experiments: usize) -> Hits {
    let half = |first: usize| {
        let mut hits = vec![[(0, 0); 3]; ways.len()];
        for seed in (first..experiments).step_by(2) {
            one(experiment, blocks, ways, seed as u64, &mut hits);
        }
        hits
    };
    let (mut hits, other) = thread::scope(|scope| {
        let other = scope.spawn(|| half(1));
        (half(0), other.join())
    });
    let Ok(other) = other else {
        panic!("the second half of the experiments failed");
    };
    for (mine, theirs) in hits.iter_mut().flatten().zip(other.iter().flatten()) {
        mine.0 += theirs.0;
        mine.1 += theirs.1;
    }
    hits
}

fn one(e: Experiment, blocks: usize, ways: &[(&str, Way)], seed: u64, hits: &mut Hits) {
    let mut rng = SplitMix64::new(seed);
    let (a, b) = e.blocks(blocks, RATIO, &mut rng);
    let (Ok(pooled_a), Ok(pooled_b)) = (PooledBlocks::new(&a), PooledBlocks::new(&b)) else {
        panic!("simulated blocks have finite samples");
    };
    for ((_, way), row) in ways.iter().zip(hits) {
        for (p, cell) in PERCENTILES.into_iter().zip(row) {
            let truth = match way {
                Way::Pooled(_, Contrast::Difference, _) => (RATIO - 1.0) * e.percentile(p),
                _ => RATIO,
            };
            let held = match ends(*way, (&a, &b), (&pooled_a, &pooled_b), p, &mut rng) {
                Ok(e) => !e.excludes(truth),
                // No finite end excludes nothing. Any other error is a fault of this table.
                Err(StatError::Degenerate) => true,
                Err(error) => panic!("{error}"),
            };
            cell.0 += usize::from(held);
            cell.1 += 1;
        }
    }
}

fn ends(
    way: Way,
    (a, b): (&[Vec<f64>], &[Vec<f64>]),
    (pooled_a, pooled_b): (&PooledBlocks, &PooledBlocks),
    p: f64,
    rng: &mut SplitMix64,
) -> Result<Estimate, StatError> {
    match way {
        Way::PerBlock => paired_ratio(&per_block(a, p), &per_block(b, p), 0.95),
        Way::SamplesAsUnits => samples_as_units(a, b, p).ok_or(StatError::Degenerate),
        Way::Pooled(method, contrast, resamples) => {
            let plan = Resampling {
                confidence: 0.95,
                resamples,
            };
            paired_percentile(pooled_a, pooled_b, p, contrast, method, plan, rng)
        }
    }
}

fn per_block(arm: &[Vec<f64>], p: f64) -> Vec<f64> {
    let sorted = arm.iter().map(|block| {
        let mut block = block.clone();
        block.sort_unstable_by(f64::total_cmp);
        block
    });
    sorted.filter_map(|block| nearest_rank(&block, p)).collect()
}

/// The planted fault: every sample taken for an independent unit. Each arm's order-statistic
/// interval for its percentile, the two combined on logarithms.
fn samples_as_units(a: &[Vec<f64>], b: &[Vec<f64>], p: f64) -> Option<Estimate> {
    let (z, n) = (normal_quantile(0.975), a.iter().map(Vec::len).sum());
    let of = |arm: &[Vec<f64>]| {
        let mut all: Vec<f64> = arm.iter().flatten().map(|v| v.ln()).collect();
        all.sort_unstable_by(f64::total_cmp);
        let reach = z * (p * (1.0 - p) / all.len() as f64).sqrt();
        let at = |p: f64| nearest_rank(&all, p.clamp(0.0, 1.0));
        Some((at(p)?, 0.5 * (at(p + reach)? - at(p - reach)?)))
    };
    let ((point_a, half_a), (point_b, half_b)) = (of(a)?, of(b)?);
    let (point, half) = (point_b - point_a, half_a.hypot(half_b));
    Some(Estimate {
        point: point.exp(),
        low: (point - half).exp(),
        high: (point + half).exp(),
        se: half / z,
        n,
        confidence: 0.95,
    })
}

/// Coverage of the interval for an area under the ROC curve: two normals `d` apart have the area
/// `Phi(d / sqrt 2)`.
pub(crate) fn area(experiments: usize) {
    println!("### Coverage of the 95 % interval for the area under the ROC curve, in %\n");
    println!("| true area | 10 + 10 | 30 + 30 | 100 + 100 |\n|---|---|---|---|");
    for truth in [0.5, 0.7, 0.9, 0.97, 0.99] {
        let apart = std::f64::consts::SQRT_2 * normal_quantile(truth);
        debug_assert!((normal_cdf(apart / std::f64::consts::SQRT_2) - truth).abs() < 1e-9);
        let cells: Vec<String> = [10, 30, 100]
            .into_iter()
            .map(|n| {
                let mut rng = SplitMix64::new(n);
                let hits = (0..experiments).filter(|_| {
                    let x: Vec<f64> = (0..n).map(|_| apart + normal(&mut rng)).collect();
                    let y: Vec<f64> = (0..n).map(|_| normal(&mut rng)).collect();
                    auc(&x, &y, 0.95).is_ok_and(|a| a.lower <= truth && truth <= a.upper)
                });
                percent(hits.count(), experiments)
            })
            .collect();
        println!("| {truth} | {} |", cells.join(" | "));
    }
    println!();
}
