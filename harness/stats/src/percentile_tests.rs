//! The intervals against full enumeration, by hand, and in the cases that have no answer.

use super::*;
use crate::dist::normal_quantile;
use crate::rng::SplitMix64;
use crate::testing::close;

fn pooled(blocks: &[Vec<f64>]) -> PooledBlocks {
    PooledBlocks::new(blocks).unwrap()
}

/// Five blocks of three samples.
fn five() -> (Vec<Vec<f64>>, Vec<Vec<f64>>) {
    let a = vec![
        vec![10.0, 12.0, 19.0],
        vec![11.0, 13.0, 22.0],
        vec![9.0, 14.0, 17.0],
        vec![10.5, 12.5, 30.0],
        vec![8.0, 15.0, 21.0],
    ];
    let b = a
        .iter()
        .enumerate()
        .map(|(i, block)| block.iter().map(|v| v * (1.1 + 0.02 * i as f64)).collect())
        .collect();
    (a, b)
}

#[test]
fn distinct_resamples_are_the_binomial_coefficients() {
    let want = [1.0, 3.0, 10.0, 35.0, 126.0, 462.0, 1716.0, 6435.0];
    for (n, want) in (1..).zip(want) {
        close(distinct_resamples(n), want, 1e-12, 0.0);
    }
}

#[test]
fn jackknife_by_hand_for_a_statistic_that_is_a_mean() {
    // For the mean of block values the jackknife is the classic standard error.
    let values = [3.0, 5.0, 4.0, 8.0];
    let mean = |w: &[f64]| {
        let total: f64 = w.iter().sum();
        w.iter().zip(values).map(|(w, v)| w * v).sum::<f64>() / total
    };
    // Mean 5, squared deviations 4 + 0 + 1 + 9 = 14: se = sqrt(14 / 12).
    close(
        jackknife_se(&mean, &[1.0; 4]),
        (14.0_f64 / 12.0).sqrt(),
        1e-13,
        0.0,
    );
    // Drawn 3, 3, 8, 8: mean 5.5, squared deviations 4 * 6.25 = 25: se = sqrt(25 / 12).
    let drawn = [2.0, 0.0, 0.0, 2.0];
    close(
        jackknife_se(&mean, &drawn),
        (25.0_f64 / 12.0).sqrt(),
        1e-13,
        0.0,
    );
    let e = interval(
        4,
        &mean,
        Method::Jackknife,
        Resampling::default(),
        &mut SplitMix64::new(1),
    );
    // t(0.975, 3) = 3.182446.
    close(
        e.unwrap().high,
        5.0 + 3.182_446 * (14.0_f64 / 12.0).sqrt(),
        1e-6,
        0.0,
    );
}

/// All 5^5 resamples of the log ratio of pooled medians, written out independently.
fn enumerated() -> Vec<f64> {
    let (a, b) = five();
    let mut all = Vec::new();
    for code in 0..3125_usize {
        let picks: Vec<usize> = (0..5).map(|k| code / 5_usize.pow(k) % 5).collect();
        let median = |arm: &[Vec<f64>]| {
            let mut merged: Vec<f64> = picks.iter().flat_map(|&i| arm[i].clone()).collect();
            merged.sort_by(f64::total_cmp);
            merged[7]
        };
        all.push((median(&b) / median(&a)).ln());
    }
    all.sort_by(f64::total_cmp);
    all
}

#[test]
fn bca_agrees_with_full_enumeration() {
    let (a, b) = five();
    let all = enumerated();
    let plan = Resampling {
        confidence: 0.8,
        resamples: 200_000,
    };
    let e = paired_percentile(
        &pooled(&a),
        &pooled(&b),
        0.5,
        Contrast::Ratio,
        Method::Bca,
        plan,
        &mut SplitMix64::new(4),
    )
    .unwrap();
    // The same recipe on the exact distribution: z0 from the share below the point (ties half),
    // a from leave-one-out values, t(0.9, 4) = 1.533206 times sqrt(5/4) in place of z.
    let sorted = |arm: &[Vec<f64>], skip: usize| {
        let rest = arm.iter().enumerate().filter(|(i, _)| *i != skip);
        let mut merged: Vec<f64> = rest.flat_map(|(_, block)| block.clone()).collect();
        merged.sort_by(f64::total_cmp);
        merged
    };
    let point = (sorted(&b, 9)[7] / sorted(&a, 9)[7]).ln();
    let left: Vec<f64> = (0..5)
        .map(|i| (sorted(&b, i)[5] / sorted(&a, i)[5]).ln())
        .collect();
    let mean = left.iter().sum::<f64>() / 5.0;
    let cubes: f64 = left.iter().map(|v| (mean - v).powi(3)).sum();
    let squares: f64 = left.iter().map(|v| (mean - v).powi(2)).sum();
    let acceleration = cubes / (6.0 * squares.powf(1.5));
    let count = |test: &dyn Fn(f64) -> bool| all.iter().filter(|v| test(**v)).count() as f64;
    let below = count(&|v| v < point - 1e-12) + 0.5 * count(&|v| (v - point).abs() <= 1e-12);
    let z0 = normal_quantile(below / 3125.0);
    let end = |z: f64| {
        let share = normal_cdf(z0 + (z0 + z) / (1.0 - acceleration * (z0 + z)));
        all[(share * 3125.0).ceil() as usize - 1].exp()
    };
    let reach = 1.533_206_3 * 1.25_f64.sqrt();
    close(e.point, point.exp(), 1e-12, 0.0);
    close(e.low, end(-reach), 1e-12, 0.0);
    close(e.high, end(reach), 1e-12, 0.0);
}

#[test]
fn the_shortest_interval_by_hand() {
    let draws = [1.0, 5.0, 5.5, 5.6, 6.0, 9.0];
    assert_eq!(shortest(&draws, 0.5), Some((5.5, 6.0)));
    assert_eq!(shortest(&draws, 1.0), Some((1.0, 9.0)));
    assert_eq!(shortest(&[], 0.5), None);
}

#[test]
fn the_arms_mirror_and_the_seed_decides() {
    let (a, b) = five();
    let (a, b) = (pooled(&a), pooled(&b));
    for method in [Method::Studentised, Method::Bca, Method::Jackknife] {
        let run = |x, y, seed| {
            let mut rng = SplitMix64::new(seed);
            let plan = Resampling::default();
            paired_percentile(x, y, 0.5, Contrast::Ratio, method, plan, &mut rng)
        };
        let (Ok(forth), Ok(back)) = (run(&a, &b, 1), run(&b, &a, 1)) else {
            // With five blocks a bootstrap-t may have an infinite end: an error, not a number.
            assert_eq!(run(&a, &b, 1), Err(StatError::Degenerate));
            assert_eq!(method, Method::Studentised);
            continue;
        };
        close(forth.point, 1.0 / back.point, 1e-12, 0.0);
        if method == Method::Jackknife {
            close(forth.low, 1.0 / back.high, 1e-12, 0.0);
        }
        assert_eq!(run(&a, &b, 1), run(&a, &b, 1));
    }
}

#[test]
fn equal_blocks_give_a_point_and_bad_input_an_error() {
    let blocks = vec![vec![2.0, 3.0]; 6];
    let same = pooled(&blocks);
    let plan = Resampling::default();
    let mut rng = SplitMix64::new(2);
    for method in [
        Method::Jackknife,
        Method::Studentised,
        Method::Bca,
        Method::BayesianHdi,
    ] {
        let e = pooled_percentile(&same, 0.99, method, plan, &mut rng).unwrap();
        assert_eq!((e.low, e.point, e.high, e.n), (3.0, 3.0, 3.0, 6));
    }
    let few = pooled(&blocks[..4]);
    let need = StatError::TooFew { got: 4, need: 5 };
    assert_eq!(
        pooled_percentile(&few, 0.5, Method::Bca, plan, &mut rng),
        Err(need)
    );
    let ratio = |x: &PooledBlocks, y: &PooledBlocks| {
        let mut rng = SplitMix64::new(2);
        paired_percentile(x, y, 0.5, Contrast::Ratio, Method::Bca, plan, &mut rng)
    };
    assert_eq!(
        ratio(&few, &same),
        Err(StatError::LengthMismatch { a: 4, b: 6 })
    );
    let zero = pooled(&vec![vec![0.0, 1.0]; 6]);
    assert_eq!(
        ratio(&same, &zero),
        Err(StatError::NotPositive { index: 0 })
    );
    assert!(pooled_percentile(&same, 1.0, Method::Bca, plan, &mut rng).is_err());
    let hurried = Resampling {
        resamples: 10,
        ..plan
    };
    assert!(pooled_percentile(&same, 0.5, Method::Bca, hurried, &mut rng).is_err());
}
