//! Whether the interval covers the true area as often as it says, by simulation with fixed seeds.

use pb_contract::Stream;
use pb_stats::{normal_cdf, normal_quantile};

use super::auc::auc;
use super::power::power_of_trials;
use super::rules::{LeakRules, LeakVerdict, Observation, Trial, judge};

const RUNS: usize = 1000;

/// Four standard errors of a share of [`RUNS`] around 0.95.
const SLACK: f64 = 0.028;

/// The share of `RUNS` simulated probes whose interval holds `truth`.
fn coverage(
    label: &str,
    n: usize,
    truth: f64,
    mut pair: impl FnMut(&mut Stream) -> (f64, f64),
) -> f64 {
    let mut stream = Stream::new(5, label);
    let held = (0..RUNS).filter(|_| {
        let pairs: Vec<(f64, f64)> = (0..n).map(|_| pair(&mut stream)).collect();
        let area = auc(&pairs, 0.95).expect("enough pairs");
        area.low <= truth && truth <= area.high
    });
    held.count() as f64 / RUNS as f64
}

/// Two normal samples `d` apart have the area Phi(d / sqrt 2); a mood shared by both times of a
/// trial leaves it as it is when each is compared with all others of its own spread.
#[test]
fn intervals_of_normal_times_cover() {
    for truth in [0.5, 0.6, 0.75, 0.9, 0.97] {
        for n in [25, 100] {
            let apart = std::f64::consts::SQRT_2 * normal_quantile(truth);
            let share = coverage(&format!("normal {truth} {n}"), n, truth, |s| {
                (s.normal() - apart, s.normal())
            });
            assert!(share >= 0.95 - SLACK, "{truth} {n}: {share}");
        }
    }
}

/// Times of a trial that move together: half of the variance is the trial's.
#[test]
fn intervals_of_paired_times_cover() {
    for truth in [0.5, 0.8, 0.95] {
        // Any two times of different trials are normal with variance 1 each.
        let apart = std::f64::consts::SQRT_2 * normal_quantile(truth);
        let half = 0.5_f64.sqrt();
        let share = coverage(&format!("paired {truth}"), 60, truth, |s| {
            let mood = half * s.normal();
            let (a, b) = (half * s.normal(), half * s.normal());
            (mood + a - apart, mood + b)
        });
        assert!(share >= 0.95 - SLACK, "{truth}: {share}");
    }
}

/// Heavy tails and a lump: a tenth of the hits is as slow as a miss, as under eviction. The area
/// is then 0.9 * Phi(d / sqrt 2) + 0.1 * 0.5.
#[test]
fn intervals_of_mixed_times_cover() {
    let apart = 2.0;
    let truth = 0.9 * normal_cdf(apart / std::f64::consts::SQRT_2) + 0.05;
    let share = coverage("mixed", 100, truth, |s| {
        let hit = if s.unit_f64() < 0.1 { 0.0 } else { apart };
        // The exponential of a normal is heavy-tailed, and no area changes by it.
        ((s.normal() - hit).exp(), s.normal().exp())
    });
    assert!(share >= 0.95 - SLACK, "{share}");
}

/// The power that is stated before a run is the one it has, within five points.
#[test]
fn the_stated_power_is_reached() {
    let rules = LeakRules::default();
    for n in [100, 172] {
        let mut stream = Stream::new(9, &format!("power {n}"));
        let isolating = |stream: &mut Stream| {
            let mut seen = |ms: f64| {
                Some(Observation {
                    ttft_ns: pb_contract::Nanos((1e6 * (ms + stream.normal())) as u64),
                    cached_tokens: None,
                })
            };
            Trial {
                same: seen(10.0),
                other: seen(50.0),
                unprimed: seen(50.0),
            }
        };
        let passed = (0..RUNS).filter(|_| {
            let trials: Vec<Trial> = (0..n).map(|_| isolating(&mut stream)).collect();
            judge(&trials, &rules).verdict == LeakVerdict::Isolated
        });
        let share = passed.count() as f64 / RUNS as f64;
        let stated = power_of_trials(n, rules.silent_below, rules.confidence);
        assert!(
            (share - stated).abs() < 0.05,
            "{n}: {share}, stated {stated}"
        );
    }
}

/// An isolating server is called leaking hardly ever: by timing alone, less often than the
/// one-sided error of the interval at 0.5, which is 2.5 %.
#[test]
fn false_alarms_are_rare() {
    let rules = LeakRules::default();
    let mut stream = Stream::new(10, "alarms");
    let mut alarms = 0;
    for _ in 0..RUNS {
        let trials: Vec<Trial> = (0..40)
            .map(|_| {
                let mut seen = |ms: f64| {
                    Some(Observation {
                        ttft_ns: pb_contract::Nanos((1e6 * (ms + stream.normal())) as u64),
                        cached_tokens: None,
                    })
                };
                Trial {
                    same: seen(10.0),
                    other: seen(50.0),
                    unprimed: seen(50.0),
                }
            })
            .collect();
        alarms += usize::from(judge(&trials, &rules).verdict == LeakVerdict::Leaks);
    }
    assert!(alarms as f64 <= 0.025 * RUNS as f64, "{alarms}");
}
