//! Error rates of the stopping rules, on cells whose truth is known.

use pb_stats::simulate::normal;
use pb_stats::{Outcome, SplitMix64};
use serde_json::{Value, json};

use super::*;

fn cell(ttft_ms: f64) -> Value {
    json!({
        "ttft_ms": {"p50": ttft_ms},
        "offered": {"success_rate": 1.0},
        "driver_lag_ms": {"p99": 0.01},
        "validity": {"valid": true, "reasons": []},
        "schedule_sha256": "s",
    })
}

fn question() -> Question {
    Question {
        metric: Metric::parse("metric", "ttft_ms.p50").unwrap(),
        expect: None,
        margin: 0.03,
    }
}

/// Runs an experiment whose log ratios are normal about `mean`, looking as the runner does.
/// Whether a change was claimed, and after how many blocks it ended.
fn experiment(rng: &mut SplitMix64, mean: f64, rules: &Rules) -> (bool, usize) {
    let a = cell(100.0);
    let b: Vec<Value> = (0..rules.blocks)
        .map(|_| cell(100.0 * (mean + 0.1 * normal(rng)).exp()))
        .collect();
    let at = match rules.stop {
        StopRule::Spending => looks(rules.blocks),
        _ => (1..=rules.blocks).collect(),
    };
    for blocks in at {
        let all: Vec<Pair<'_>> = b[..blocks].iter().map(|b| (Some(&a), Some(b))).collect();
        let pairs = [Pairs::of(&question(), &all, 1.0)];
        let found = judged(&[question()], &pairs, rules).unwrap();
        if found[0].is_settled() {
            let claimed = matches!(found[0].outcome, Outcome::Better | Outcome::Worse);
            return (claimed, blocks);
        }
    }
    (false, rules.blocks)
}

fn rules(stop: StopRule) -> Rules {
    Rules {
        stop,
        blocks: 12,
        alpha: 0.05,
        least_success: 1.0,
    }
}

/// `cargo test --release -p pb-judge --lib suite::tests -- --ignored --nocapture`: three minutes.
#[test]
#[ignore = "minutes: the bounds are computed anew for every experiment"]
fn planned_looks_claim_no_more_than_stated_and_find_more_than_the_sequence() {
    let mut rng = SplitMix64::new(21);
    let false_claims = (0..1_000)
        .filter(|_| experiment(&mut rng, 0.0, &rules(StopRule::Spending)).0)
        .count();
    // The effect that all 12 blocks find in 80 %.
    let effect = 0.1 * pb_stats::minimum_detectable_effect(12, 0.05, 0.8).unwrap();
    let mut power = |stop| {
        let ends = (0..500).map(|_| experiment(&mut rng, effect, &rules(stop)));
        let (claims, blocks) = ends.fold((0, 0), |sum, (claimed, blocks)| {
            (sum.0 + u32::from(claimed), sum.1 + blocks)
        });
        (f64::from(claims) / 500.0, blocks as f64 / 500.0)
    };
    let (spending, sequence) = (power(StopRule::Spending), power(StopRule::Sequential));
    println!("false claims {false_claims} of 1000; power, blocks: {spending:?}, {sequence:?}");
    // 5 % and three binomial deviations.
    assert!(false_claims <= 71, "{false_claims}");
    assert!(spending.0 > 0.7 && spending.0 > sequence.0 + 0.2);
    assert!(spending.1 < 11.5);
}

#[test]
fn a_large_effect_ends_at_the_first_look_that_may_claim_it() {
    let mut rng = SplitMix64::new(22);
    for _ in 0..5 {
        let (claimed, blocks) = experiment(&mut rng, 1.0, &rules(StopRule::Spending));
        assert!(claimed && (3..=9).contains(&blocks), "{claimed} {blocks}");
    }
}
