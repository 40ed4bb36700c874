//! Verdicts on made-up cells.

use pb_contract::Nanos;
use pb_judge::suite::{Expect, Metric, Question, StopRule};
use pb_stats::simulate::normal;
use pb_stats::{Outcome, SplitMix64};
use serde_json::{Value, json};

use super::store::Done;
use super::verdict::{Judged, Pair, Pairs, Rules, judged, pairs as pairs_of, settled};
use crate::verbs::suite::Comparison;

const FIXED: Rules = Rules {
    stop: StopRule::Fixed,
    blocks: 4,
    alpha: 0.05,
    least_success: 1.0,
};

fn comparison(metric: &str, expect: Option<Expect>) -> Comparison {
    let metric = Metric::parse("metric", metric).unwrap();
    Comparison {
        hypothesis: "h".into(),
        baseline: 0,
        candidate: 1,
        condition: 0,
        question: Question {
            margin: metric.usual_margin(),
            metric,
            expect,
        },
    }
}

/// A finished cell with these figures.
fn cell(ttft_ms: f64) -> Done {
    Done {
        document: json!({
            "ttft_ms": {"p50": ttft_ms},
            "stalls": {"share": 0.01 * ttft_ms},
            "offered": {"success_rate": 1.0},
            "driver_lag_ms": {"p99": 0.01},
            "validity": {"valid": true, "reasons": []},
            "schedule_sha256": "s",
        }),
        wall_ns: Nanos::ZERO,
        fingerprint: None,
    }
}

fn cells(values: &[f64]) -> Vec<Done> {
    values.iter().map(|&value| cell(value)).collect()
}

fn paired<'a>(a: &'a [Done], b: &'a [Done]) -> Vec<Pair<'a>> {
    a.iter().map(Some).zip(b.iter().map(Some)).collect()
}

fn found(comparison: &Comparison, a: &[Done], b: &[Done]) -> (Pairs, Judged) {
    let pairs = pairs_of(comparison, &paired(a, b), FIXED.least_success);
    let own = std::slice::from_ref(comparison);
    let mut all = judged(own, std::slice::from_ref(&pairs), &FIXED).unwrap();
    (pairs, all.remove(0))
}

/// The verdict on two lists of values.
fn one(expect: Option<Expect>, a: &[f64], b: &[f64]) -> Judged {
    found(&comparison("ttft_ms.p50", expect), &cells(a), &cells(b)).1
}

#[test]
fn numbers_of_a_hand_worked_case() {
    // Ratios 1/2, 1/4, 1/8: geometric mean 1/4; logs have sd ln 2, se = ln 2 / sqrt 3;
    // t(0.975, 2) = 4.302653. t = -2 sqrt 3 at df 2: p = 1 - t / sqrt(t^2 + 2).
    let judged = one(None, &[8.0, 16.0, 32.0], &[4.0, 4.0, 4.0]);
    let change = judged.change.unwrap();
    let reach = 2.0_f64.powf(4.302_653 / 3.0_f64.sqrt());
    assert!((change.point - 0.25).abs() < 1e-12);
    assert!((change.low - 0.25 / reach).abs() < 1e-6 && (change.high - 0.25 * reach).abs() < 1e-6);
    assert!((judged.p.unwrap() - (1.0 - (12.0_f64 / 14.0).sqrt())).abs() < 1e-12);
    assert_eq!(judged.medians, Some((16.0, 4.0)));
    assert_eq!(
        (judged.outcome, judged.as_expected),
        (Outcome::Inconclusive, None)
    );
}

const LOW: [f64; 4] = [50.0, 51.0, 50.5, 49.0];
const HIGH: [f64; 4] = [100.0, 103.0, 99.0, 101.0];

#[test]
fn an_expectation_is_met_or_not_or_open() {
    use Expect::{Equivalent, Higher, Lower, NoClaim};
    let near = [50.2, 50.9, 50.4, 49.1];
    let wild = [20.0, 120.0, 90.0, 30.0];
    for (b, outcome, [lower, higher, equivalent, no_claim]) in [
        (
            &HIGH,
            Outcome::Worse,
            [Some(false), Some(true), Some(false), Some(false)],
        ),
        (
            &near,
            Outcome::Equivalent,
            [Some(false), Some(false), Some(true), Some(true)],
        ),
        (&wild, Outcome::Inconclusive, [None, None, None, Some(true)]),
    ] {
        let told = |expect| {
            let judged = one(Some(expect), &LOW, b);
            assert_eq!(judged.outcome, outcome);
            judged.as_expected
        };
        assert_eq!(
            [told(Lower), told(Higher), told(Equivalent), told(NoClaim)],
            [lower, higher, equivalent, no_claim]
        );
    }
    assert_eq!(one(Some(Lower), &HIGH, &LOW).as_expected, Some(true));
    assert_eq!(one(None, &HIGH, &LOW).as_expected, Some(true));
    // Two pairs show nothing, not even that nothing is claimed.
    let two = one(Some(NoClaim), &LOW[..2], &HIGH[..2]);
    assert_eq!(
        (two.outcome, two.as_expected),
        (Outcome::Inconclusive, None)
    );
    assert!(two.why.contains("2 usable, 3 needed"), "{}", two.why);
}

#[test]
fn the_family_pays_for_its_size() {
    // Alone p is near 0.03, as in the tests of pb_judge::ab; three of them are not below 0.05.
    let (a, b) = (cells(&[100.0; 4]), cells(&[80.0, 93.0, 84.0, 92.0]));
    let comparison = comparison("ttft_ms.p50", None);
    assert_eq!(found(&comparison, &a, &b).1.outcome, Outcome::Better);
    let pairs = pairs_of(&comparison, &paired(&a, &b), 1.0);
    let three = vec![comparison; 3];
    let all = judged(&three, &vec![pairs; 3], &FIXED).unwrap();
    for one in &all {
        assert_eq!(one.outcome, Outcome::Inconclusive);
        assert!((one.holm_p - 3.0 * one.p.unwrap()).abs() < 1e-12);
    }
}

#[test]
fn shares_are_compared_by_difference() {
    let comparison = comparison("stalls.share", Some(Expect::Lower));
    let (pairs, judged) = found(&comparison, &cells(&HIGH), &cells(&[0.0; 4]));
    assert_eq!(pairs.units, [-1.0, -1.03, -0.99, -1.01]);
    assert_eq!(
        (judged.outcome, judged.as_expected),
        (Outcome::Better, Some(true))
    );
}

/// A cell changed by `change`.
fn changed(value: f64, change: impl Fn(&mut Value)) -> Done {
    let mut done = cell(value);
    change(&mut done.document);
    done
}

#[test]
fn a_pair_with_an_unusable_cell_is_left_out_and_told() {
    let comparison = comparison("ttft_ms.p50", None);
    let a = cells(&[100.0, 103.0, 99.0, 101.0, 98.0, 100.0]);
    let mut b = cells(&[50.0, 51.0, 50.5, 49.0, 48.0, 0.0]);
    b[4] = changed(48.0, |document| {
        document["validity"] = json!({"valid": false, "reasons": ["late"]});
    });
    let (pairs, judged) = found(&comparison, &a, &b);
    assert_eq!(
        (pairs.blocks.as_slice(), judged.outcome),
        (&[0, 1, 2, 3][..], Outcome::Better)
    );
    assert_eq!(pairs.left_out.len(), 2);
    assert!(pairs.left_out[0].contains("block 4: the candidate is not valid: late"));
    assert!(
        pairs.left_out[1].contains("no ratio"),
        "{:?}",
        pairs.left_out
    );
    // A cell that is not there is no pair and no fault.
    let missing: Vec<Pair<'_>> = a.iter().map(|a| (Some(a), None)).collect();
    let none = pairs_of(&comparison, &missing, 1.0);
    assert_eq!(none, Pairs::default());
    // More lost than kept: what is left says little.
    let lost = |done: &mut Done| done.document["ttft_ms"] = json!(null);
    let mut b = cells(&[50.0; 8]);
    b[..5].iter_mut().for_each(lost);
    let (_, judged) = found(&comparison, &cells(&[100.0; 8]), &b);
    assert_eq!(judged.outcome, Outcome::Inconclusive);
    assert!(judged.why.contains("left out (5)"), "{}", judged.why);
}

#[test]
fn what_voids_a_comparison_voids_it_however_clear_it_looks() {
    let comparison = comparison("ttft_ms.p50", Some(Expect::Lower));
    let (a, b) = (cells(&HIGH), cells(&LOW));
    assert_eq!(found(&comparison, &a, &b).1.outcome, Outcome::Better);
    type Change = fn(&mut Value);
    let changes: [(Change, &str); 3] = [
        (|d| d["schedule_sha256"] = json!("t"), "different schedules"),
        (|d| d["offered"]["success_rate"] = json!(0.9), "90.0 %"),
        (|d| d["offered"]["success_rate"] = json!(null), "0.0 %"),
    ];
    for (change, part) in changes {
        let mut b = b.clone();
        b[2] = changed(50.5, change);
        let judged = found(&comparison, &a, &b).1;
        assert_eq!((judged.outcome, judged.as_expected), (Outcome::Void, None));
        assert!(judged.why.contains(part), "{}", judged.why);
    }
    // A client as late as a twentieth of the effect explains too much of it: 50 ms here.
    for (lag_ms, outcome) in [(2.4, Outcome::Better), (2.6, Outcome::Void)] {
        let late = |value: &f64| changed(*value, |d| d["driver_lag_ms"] = json!({"p99": lag_ms}));
        let b: Vec<Done> = LOW.iter().map(late).collect();
        assert_eq!(found(&comparison, &a, &b).1.outcome, outcome, "{lag_ms}");
    }
}

/// Runs an experiment whose log ratios are normal about `mean`, and stops as the runner does.
/// Whether a difference was claimed, and after how many blocks.
fn sequential(rng: &mut SplitMix64, mean: f64, rules: &Rules) -> (bool, usize) {
    let comparison = [comparison("ttft_ms.p50", None)];
    let mut b = Vec::new();
    for blocks in 1..=rules.blocks {
        b.push(cell(100.0 * (mean + 0.1 * normal(rng)).exp()));
        let a = cells(&vec![100.0; blocks]);
        let pairs = [pairs_of(&comparison[0], &paired(&a, &b), 1.0)];
        let found = judged(&comparison, &pairs, rules).unwrap();
        if settled(&comparison, &found, 1)[0] {
            let claimed = matches!(found[0].outcome, Outcome::Better | Outcome::Worse);
            return (claimed, blocks);
        }
    }
    (false, rules.blocks)
}

#[test]
fn stopping_early_claims_no_more_than_stated() {
    let rules = Rules {
        stop: StopRule::Sequential,
        blocks: 12,
        ..FIXED
    };
    let mut rng = SplitMix64::new(5);
    let mut claims = |rules: &Rules| {
        (0..1_000)
            .filter(|_| sequential(&mut rng, 0.0, rules).0)
            .count()
    };
    // 50 of 1,000 are allowed; the binomial deviation is 6.9.
    let allowed = 71;
    let own = claims(&rules);
    assert!(own <= allowed, "{own}");
    // The fault that this finds: plain intervals, looked at after every block.
    let peeking = claims(&Rules {
        stop: StopRule::Fixed,
        ..rules
    });
    assert!(peeking > allowed, "{peeking}");
}

#[test]
fn a_large_effect_ends_a_sequential_run_early() {
    let rules = Rules {
        stop: StopRule::Sequential,
        blocks: 40,
        ..FIXED
    };
    let mut rng = SplitMix64::new(6);
    for _ in 0..50 {
        let (claimed, blocks) = sequential(&mut rng, 1.0, &rules);
        assert!(claimed && (4..40).contains(&blocks), "{claimed} {blocks}");
    }
}
