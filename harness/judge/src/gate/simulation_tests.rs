//! How often a gate is wrong when nothing changed, and whether its proposed margins keep what
//! they promise.

use pb_stats::SplitMix64;

use super::*;
use crate::compare::Run;
use crate::compare::synthetic::{Rig, arms};

const RIG: Rig = Rig {
    requests: 20,
    machine_sd: 0.10,
    run_sd: 0.04,
};

fn outcome(policy: &Policy, a: &[Run], b: &[Run]) -> GateOutcome {
    let evidence = Evidence {
        baseline: a,
        candidate: b,
        ..Evidence::default()
    };
    judge_gate(policy, &evidence).unwrap().outcome
}

/// Gates, of `gates`, that fail; the candidate's gaps are `itl_ratio` times as long.
fn failures(gates: usize, policy: &Policy, blocks: usize, itl_ratio: f64, seed: u64) -> usize {
    let mut rng = SplitMix64::new(seed);
    let one = |_| {
        let (a, b) = arms(RIG, blocks, 1.0, itl_ratio, &mut rng);
        outcome(policy, &a, &b) == GateOutcome::Fail
    };
    (0..gates).map(one).filter(|hit| *hit).count()
}

fn rules(margins: &[(&str, f64)]) -> Policy {
    let mut text = "schema = 1\n".to_owned();
    for (metric, margin) in margins {
        text.push_str(&format!(
            "[[change]]\nmetric = \"{metric}\"\nmargin = {margin}\n"
        ));
    }
    Policy::parse(&text).unwrap()
}

#[test]
fn row_80_equal_versions_fail_at_no_more_than_the_nominal_rate() {
    // The margin is far below the noise, so that it does not do the work. One rule tests both
    // directions at 5 % and fails in one: 2.5 %, 50 of 2,000, sd 7. Three sd either side.
    let lone = failures(2_000, &rules(&[("itl_p99", 1e-6)]), 6, 1.0, 1);
    assert!((29..=71).contains(&lone), "{lone} of 2000");
    // Four rules together: at most 5 %, 100, sd 9.75, so at most 129; Holm pays for the number.
    let family = rules(&[
        ("ttft_p50", 1e-6),
        ("ttft_p95", 1e-6),
        ("itl_p50", 1e-6),
        ("itl_p99", 1e-6),
    ]);
    let found = failures(2_000, &family, 6, 1.0, 2);
    assert!(found <= 129, "{found} of 2000");
}

/// The proposal's own promise: of gates between equal versions at least 95 % pass, although the
/// noise is only known from as many pairs.
#[test]
fn row_83_proposed_margins_do_not_flake() {
    let mut rng = SplitMix64::new(7);
    let (mut passed, mut failed, mut caught) = (0, 0, 0);
    let experiments = 250;
    for _ in 0..experiments {
        let (mut first, second) = arms(RIG, 10, 1.0, 1.0, &mut rng);
        first.extend(second);
        let options = InitOptions {
            blocks: Some(6),
            ..InitOptions::default()
        };
        let proposal = floors(&first, &options).unwrap();
        let policy = Policy::parse(&policy_text(&proposal)).unwrap();
        let (a, b) = arms(RIG, 6, 1.0, 1.0, &mut rng);
        let found = outcome(&policy, &a, &b);
        passed += u32::from(found == GateOutcome::Pass);
        failed += u32::from(found == GateOutcome::Fail);
        let worst = proposal.floors.iter().find(|f| f.metric.name == "itl_p50");
        let slower = 1.0 + worst.unwrap().fails_at.unwrap();
        let (a, b) = arms(RIG, 6, 1.0, slower, &mut rng);
        caught += u32::from(outcome(&policy, &a, &b) == GateOutcome::Fail);
    }
    // 237.5 expected at least; binomial sd 3.4, three of them.
    assert!(passed >= 227, "{passed} of {experiments} pass");
    assert!(failed <= 2, "{failed} of {experiments} fail");
    // 200 expected at least, sd 6.3, although the rules share the level among them.
    assert!(caught >= 181, "{caught} of {experiments} slow ones fail");
}

#[test]
fn a_fifth_is_found_in_nearly_all_gates() {
    // Log ratios have sd 0.06 and the effect is 0.18, three of them, with 8 blocks.
    let found = failures(500, &rules(&[("itl_p50", 0.05)]), 8, 1.2, 3);
    assert!(found >= 490, "{found} of 500");
}

#[test]
fn a_rig_that_favours_one_run_of_a_pair_is_named() {
    let (mut runs, second) = arms(RIG, 8, 1.0, 1.3, &mut SplitMix64::new(9));
    runs.extend(second);
    // The slower run of each pair is the second.
    for run in &mut runs {
        let place = u8::from(run.name.starts_with('b'));
        run.created = format!("{:03} {place}", run.start_ns);
    }
    let proposal = floors(&runs, &InitOptions::default()).unwrap();
    assert!(
        proposal.biased.contains(&"itl_p50"),
        "{:?}",
        proposal.biased
    );
    assert!(policy_text(&proposal).contains("# WARNING: itl_p50"));
}

/// Where runs differ by more than half, no rule on a time is left, and what is left passes any
/// slowdown: the proposal must say so.
#[test]
fn a_rig_that_hides_every_slowdown_is_named() {
    for (run_sd, blind) in [(1.0, true), (0.02, false)] {
        let rig = Rig { run_sd, ..RIG };
        let (mut runs, second) = arms(rig, 4, 1.0, 1.0, &mut SplitMix64::new(11));
        runs.extend(second);
        let proposal = floors(&runs, &InitOptions::default()).unwrap();
        let policy = Policy::parse(&policy_text(&proposal)).unwrap();
        let times = policy.changes.iter().filter(|c| c.metric.is_ratio());
        assert_eq!(times.count() == 0, blind, "run_sd {run_sd}");
        assert_eq!(proposal.is_blind(), blind, "run_sd {run_sd}");
        assert_eq!(
            policy_text(&proposal).contains("this policy passes any"),
            blind
        );
    }
}

#[test]
fn too_few_repeats_and_bad_runs_have_no_floor() {
    let (mut runs, second) = arms(RIG, 2, 1.0, 1.0, &mut SplitMix64::new(1));
    runs.extend(second);
    let few = GateError::FewPairs {
        runs: 4,
        pairs: 2,
        need: 3,
    };
    let options = InitOptions::default();
    assert_eq!(floors(&runs, &options).unwrap_err(), few);
    let (mut runs, second) = arms(RIG, 4, 1.0, 1.0, &mut SplitMix64::new(1));
    runs.extend(second);
    runs[3].problems.push("late".to_owned());
    assert!(matches!(
        floors(&runs, &options),
        Err(GateError::Void { .. })
    ));
}

/// Hand-worked: log ratios of +-0.1 in four pairs have sd 0.11547; its upper bound is that times
/// sqrt(3 / 0.351846) = 2.92; four blocks.
#[test]
fn a_margin_by_hand() {
    let mut runs = Vec::new();
    for (pair, up) in [true, false, true, false].into_iter().enumerate() {
        let ratio = if up { 0.1_f64 } else { -0.1 }.exp();
        for (i, itl) in [10.0, 10.0 * ratio].into_iter().enumerate() {
            let mut run = crate::compare::synthetic::run("r", pair, vec![100.0], vec![itl]);
            run.created = format!("{pair} {i}");
            run.name = format!("r{pair}{i}");
            runs.push(run);
        }
    }
    let proposal = floors(&runs, &InitOptions::default()).unwrap();
    let of = |name: &str| {
        let found = proposal.floors.iter().find(|f| f.metric.name == name);
        *found.unwrap()
    };
    let noise = of("itl_p50").noise.unwrap();
    assert!((noise.sd - 0.115_470).abs() < 1e-6, "{noise:?}");
    assert!((noise.sd_upper - 0.337_172).abs() < 1e-5, "{noise:?}");
    assert!(noise.bias.point.abs() < 1e-12);
    // TTFT is the same in every run: the least margin, and no floor.
    let ttft = of("ttft_p50");
    assert!(ttft.noise.is_none() && ttft.margin == 0.005);
    // One request a run, 8 in all, all good: 0.025^(1/8) = 0.6306, rounded down.
    assert_eq!((proposal.ok, proposal.min_success_rate), (8, 0.63));
    let policy = Policy::parse(&policy_text(&proposal)).unwrap();
    assert!(policy.changes.iter().any(|c| c.metric.name == "ttft_p50"));
    // A margin of more than half is left out, as a comment.
    assert!(of("itl_p50").margin > 0.5);
    assert!(policy.changes.iter().all(|c| c.metric.name != "itl_p50"));
}
