//! The rule on hand-made blocks.

use std::collections::BTreeMap;

use super::*;

fn arms(a: &[f64], b: &[f64]) -> ArmValues {
    let some = |v: &[f64]| v.iter().copied().map(Some).collect();
    ArmValues {
        a: some(a),
        b: some(b),
    }
}

fn one(spec: MetricSpec, values: ArmValues) -> MetricVerdict {
    let values = BTreeMap::from([(spec.name.clone(), values)]);
    judge_ab(&[spec], &values, &[], &AbRules::default())
        .unwrap()
        .metrics
        .remove(0)
}

fn latency() -> MetricSpec {
    MetricSpec::latency("itl_p99", "ms")
}

#[test]
fn numbers_of_a_hand_worked_case() {
    // Ratios 1/2, 1/4, 1/8: geometric mean 1/4; logs have sd ln 2, se = ln 2 / sqrt 3;
    // t(0.975, 2) = 4.302653, t(0.95, 2) = 2.919986. Differences -4, -12, -28: mean -44/3.
    let v = one(latency(), arms(&[8.0, 16.0, 32.0], &[4.0, 4.0, 4.0]));
    let ratio = v.ratio.unwrap();
    let reach = |t: f64| 2.0_f64.powf(t / 3.0_f64.sqrt());
    assert!((ratio.point - 0.25).abs() < 1e-12);
    assert!((ratio.high - 0.25 * reach(4.302_653)).abs() < 1e-6);
    assert!((ratio.low - 0.25 / reach(4.302_653)).abs() < 1e-6);
    let narrow = v.equivalence.unwrap();
    assert!((narrow.high - 0.25 * reach(2.919_986)).abs() < 1e-6);
    assert_eq!((ratio.confidence, narrow.confidence), (0.95, 0.9));
    let difference = v.difference.unwrap();
    assert!((difference.point + 44.0 / 3.0).abs() < 1e-12);
    // t = -2 sqrt 3 at df 2: p = 1 - t / sqrt(t^2 + 2) = 1 - sqrt(12/14).
    let p = 1.0 - (12.0_f64 / 14.0).sqrt();
    assert!((v.p.unwrap() - p).abs() < 1e-12 && v.holm_p == v.p.unwrap());
    assert_eq!(v.sign_flip_p, Some(0.25));
    assert_eq!((v.a, v.b, v.blocks, v.pairs), (Some(16.0), Some(4.0), 3, 3));
    assert_eq!((v.claim, v.bootstrap), (Claim::Inconclusive, None));
    // 3.26404355 sd (noncentral t, 80 %) of ln 2.
    assert!((v.detectable.unwrap() - 2.0_f64.powf(3.264_043_55)).abs() < 1e-4);
}

#[test]
fn direction_decides_between_better_and_worse() {
    let (high, low) = ([100.0, 103.0, 99.0, 101.0], [50.0, 51.0, 50.5, 49.0]);
    assert_eq!(one(latency(), arms(&high, &low)).claim, Claim::Better);
    assert_eq!(one(latency(), arms(&low, &high)).claim, Claim::Worse);
    let rate = MetricSpec::rate("tokens", "tok/s");
    assert_eq!(one(rate.clone(), arms(&high, &low)).claim, Claim::Worse);
    assert_eq!(one(rate, arms(&low, &high)).claim, Claim::Better);
}

#[test]
fn a_sure_but_tiny_change_is_equivalent_and_a_sure_margin_breach_is_not() {
    // 1 % slower in every block, with almost no noise: certain, and within 3 %.
    let a = [100.0, 200.0, 150.0, 120.0];
    let v = one(latency(), arms(&a, &a.map(|x| x * 1.01)));
    assert!(v.p.unwrap() < 1e-6);
    assert_eq!(v.claim, Claim::Equivalent);
    let v = one(latency(), arms(&a, &a.map(|x| x * 1.04)));
    assert_eq!(v.claim, Claim::Worse);
    // Same seed, same simulated run: equal values are equivalent.
    assert_eq!(one(latency(), arms(&a, &a)).claim, Claim::Equivalent);
}

#[test]
fn a_noisy_change_is_inconclusive() {
    let v = one(
        latency(),
        arms(&[100.0, 100.0, 100.0, 100.0], &[60.0, 150.0, 90.0, 130.0]),
    );
    assert_eq!(v.claim, Claim::Inconclusive);
}

#[test]
fn too_few_blocks_are_inconclusive_whatever_the_effect() {
    for n in 0..3 {
        let v = one(latency(), arms(&vec![100.0; n], &vec![1.0; n]));
        assert_eq!(v.claim, Claim::Inconclusive);
        assert!(v.why.starts_with("insufficient blocks"), "{}", v.why);
        assert_eq!(v.a.is_some(), n > 0);
    }
}

#[test]
fn zeros_and_gaps_leave_pairs_out_and_are_counted() {
    let mut values = arms(
        &[100.0, 101.0, 99.0, 0.0, 98.0],
        &[50.0, 50.5, 49.0, 50.0, 51.0],
    );
    values.b[4] = None;
    let v = one(latency(), values);
    assert_eq!((v.blocks, v.pairs), (5, 3));
    assert_eq!(
        v.excluded,
        Excluded {
            missing_a: 0,
            missing_b: 1,
            not_positive: 1
        }
    );
    assert_eq!(v.claim, Claim::Better);
    // With more pairs lost than kept there is no claim.
    let mut values = arms(&[100.0; 8], &[50.0; 8]);
    values.b[..5].fill(None);
    let v = one(latency(), values);
    assert_eq!(v.claim, Claim::Inconclusive);
    assert!(v.why.contains("more pairs excluded"), "{}", v.why);
}

#[test]
fn counts_may_be_zero_on_the_difference_scale() {
    let stalls = MetricSpec::count("stalls", "1", 1.0);
    let v = one(stalls.clone(), arms(&[12.0, 15.0, 11.0, 14.0], &[0.0; 4]));
    assert_eq!((v.claim, v.pairs, v.ratio), (Claim::Better, 4, None));
    assert_eq!(
        one(stalls, arms(&[0.0; 4], &[0.0; 4])).claim,
        Claim::Equivalent
    );
}

#[test]
fn a_void_run_claims_nothing() {
    let values = BTreeMap::from([("itl_p99".to_owned(), arms(&[100.0; 4], &[1.0; 4]))]);
    let void = [
        "driver lag p99 3 ms".to_owned(),
        "cold probe had cached tokens".to_owned(),
    ];
    let report = judge_ab(&[latency()], &values, &void, &AbRules::default()).unwrap();
    assert_eq!(report.metrics[0].claim, Claim::Void);
    assert!(report.metrics[0].why.contains("driver lag") && !report.claims_difference());
}

#[test]
fn the_family_adjusts_and_secondaries_pay_for_all() {
    // Three metrics with the same blocks: p is near 0.03 alone, not below 0.05 once tripled.
    let blocks = arms(&[100.0, 100.0, 100.0, 100.0], &[80.0, 93.0, 84.0, 92.0]);
    let alone = one(latency(), blocks.clone());
    assert!(
        alone.p.unwrap() > 0.017 && alone.p.unwrap() < 0.05,
        "{:?}",
        alone.p
    );
    assert_eq!(alone.claim, Claim::Better);
    let specs = ["x", "y", "z"].map(|name| MetricSpec::latency(name, "ms"));
    let values: BTreeMap<_, _> = specs
        .iter()
        .map(|spec| (spec.name.clone(), blocks.clone()))
        .collect();
    let report = judge_ab(&specs, &values, &[], &AbRules::default()).unwrap();
    for metric in &report.metrics {
        assert!((metric.holm_p - 3.0 * alone.p.unwrap()).abs() < 1e-12);
        assert_eq!(metric.claim, Claim::Inconclusive);
    }
    // Two of them secondary: the primary one is a family of its own.
    let [x, y, z] = specs;
    let specs = [x, y.secondary(), z.secondary()];
    let report = judge_ab(&specs, &values, &[], &AbRules::default()).unwrap();
    assert_eq!(report.metric("x").unwrap().claim, Claim::Better);
    assert_eq!(report.metric("y").unwrap().claim, Claim::Inconclusive);
    assert!(report.metric("w").is_none());
}

#[test]
fn reports_read_back_as_written_and_repeat_exactly() {
    let values = BTreeMap::from([(
        "itl_p99".to_owned(),
        arms(
            &[100.0, 103.0, 99.0, 101.0, 98.0, 104.0],
            &[50.0, 51.0, 50.5, 49.0, 52.0, 47.0],
        ),
    )]);
    let run = || judge_ab(&[latency()], &values, &[], &AbRules::default()).unwrap();
    let report = run();
    assert!(report.metrics[0].bootstrap.is_some());
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(text, serde_json::to_string(&run()).unwrap());
    let back: AbReport = serde_json::from_str(&text).unwrap();
    assert_eq!(back.metrics[0].claim, Claim::Better);
    assert_eq!(back.metrics[0].spec, report.metrics[0].spec);
}

#[test]
fn declarations_that_do_not_fit_are_errors() {
    let rules = AbRules::default();
    let values = BTreeMap::from([("itl_p99".to_owned(), arms(&[1.0, 2.0], &[1.0]))]);
    let name = || "itl_p99".to_owned();
    let mismatch = AbError::BlockMismatch {
        name: name(),
        a: 2,
        b: 1,
    };
    assert_eq!(judge_ab(&[latency()], &values, &[], &rules), Err(mismatch));
    let missing = AbError::MissingMetric {
        name: "ttft".to_owned(),
    };
    assert_eq!(
        judge_ab(&[MetricSpec::latency("ttft", "ms")], &values, &[], &rules),
        Err(missing)
    );
    let good = BTreeMap::from([(name(), arms(&[1.0], &[1.0]))]);
    let twice = AbError::DuplicateMetric { name: name() };
    assert_eq!(
        judge_ab(&[latency(), latency()], &good, &[], &rules),
        Err(twice)
    );
    let negative = MetricSpec {
        scale: Scale::Ratio { margin: -0.1 },
        ..latency()
    };
    let margin = AbError::BadMargin {
        name: name(),
        margin: -0.1,
    };
    assert_eq!(judge_ab(&[negative], &good, &[], &rules), Err(margin));
    let alpha = AbRules {
        alpha: 0.5,
        ..AbRules::default()
    };
    assert!(matches!(
        judge_ab(&[latency()], &good, &[], &alpha),
        Err(AbError::BadRules(_))
    ));
}
