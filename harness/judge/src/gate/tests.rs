//! Planted faults: what must fail, what must not, and in which order.

use pb_stats::SplitMix64;

use super::*;
use crate::compare::synthetic::{Rig, arms};
use crate::compare::{Aspect, Run};

const POLICY: &str = r#"
schema = 1
[success]
min_rate = 0.99
[[limit]]
metric = "ttft_p99"
max = 2000
[[change]]
metric = "ttft_p50"
margin = 0.1
[[change]]
metric = "itl_p99"
margin = 0.05
"#;

fn policy() -> Policy {
    Policy::parse(POLICY).unwrap()
}

fn quiet(itl_ratio: f64) -> (Vec<Run>, Vec<Run>) {
    let rig = Rig {
        requests: 1_000,
        run_sd: 0.005,
        ..Rig::default()
    };
    arms(rig, 6, 1.0, itl_ratio, &mut SplitMix64::new(11))
}

fn judged(policy: &Policy, a: &[Run], b: &[Run]) -> GateReport {
    let evidence = Evidence {
        baseline: a,
        candidate: b,
        ..Evidence::default()
    };
    judge_gate(policy, &evidence).unwrap()
}

fn states(report: &GateReport) -> Vec<State> {
    report.rules.iter().map(|rule| rule.state).collect()
}

#[test]
fn equal_versions_pass_on_a_quiet_rig() {
    let (a, b) = quiet(1.0);
    let report = judged(&policy(), &a, &b);
    assert_eq!(states(&report), [State::Pass; 4], "{report:?}");
    assert_eq!((report.outcome, report.exit_code), (GateOutcome::Pass, 0));
    assert!(
        report.sentence.starts_with("PASS: 4 rules"),
        "{}",
        report.sentence
    );
}

#[test]
fn gaps_a_fifth_longer_fail() {
    let (a, b) = quiet(1.2);
    let report = judged(&policy(), &a, &b);
    assert_eq!((report.outcome, report.exit_code), (GateOutcome::Fail, 1));
    let rule = report
        .rules
        .iter()
        .find(|r| r.metric.as_deref() == Some("itl_p99"));
    assert_eq!(rule.unwrap().state, State::Fail);
    assert_eq!(report.count(State::Fail), 1);
    // By how much, and from what to what: a reader of the job's log sees nothing else.
    for part in ["worse by +", "% interval +", "from ", " ms to "] {
        assert!(
            report.sentence.contains(part),
            "{part}: {}",
            report.sentence
        );
    }
    // And the other way round it is an improvement, which passes.
    assert_eq!(judged(&policy(), &b, &a).outcome, GateOutcome::Pass);
}

#[test]
fn a_failing_success_rate_fails_first_whatever_the_times() {
    let (a, mut b) = quiet(0.5);
    for run in &mut b {
        run.ok = 900;
        run.values.insert("success_rate".to_owned(), 0.9);
    }
    let report = judged(&policy(), &a, &b);
    assert_eq!((report.outcome, report.exit_code), (GateOutcome::Fail, 1));
    use State::{Fail, Skipped};
    assert_eq!(states(&report), [Fail, Skipped, Skipped, Skipped]);
    assert!(
        report.sentence.contains("90 %, below 99 %"),
        "{}",
        report.sentence
    );
}

#[test]
fn a_void_run_voids_the_gate_and_its_times() {
    for arm in [0, 1] {
        let (mut a, mut b) = quiet(1.2);
        let run = if arm == 0 { &mut a[1] } else { &mut b[1] };
        run.problems.push("rows are missing".to_owned());
        let report = judged(&policy(), &a, &b);
        assert_eq!((report.outcome, report.exit_code), (GateOutcome::Void, 3));
        assert_eq!(states(&report), [State::Void; 4]);
        assert!(report.sentence.contains("1: rows are missing"));
        let fix = "leave out, block 2 (a1 and b1)";
        assert!(report.sentence.contains(fix), "{}", report.sentence);
    }
    let policy = Policy::parse("schema = 1\n[[limit]]\nmetric = \"ttft_p50\"\nmax = 1e9").unwrap();
    let (_, mut b) = quiet(1.0);
    b[2].problems.push("rows are missing".to_owned());
    let sentence = judged(&policy, &[], &b).sentence;
    let expected = "VOID: b2: rows are missing. Run again, or leave out, b2";
    assert_eq!(sentence, expected);
}

/// Nothing else looks at whether the runs belong together.
#[test]
fn candidates_without_a_baseline_must_be_alike() {
    let policy = Policy::parse("schema = 1\n[[limit]]\nmetric = \"ttft_p50\"\nmax = 1e9").unwrap();
    let refused = |change: fn(&mut Vec<Run>)| {
        let (_, mut b) = quiet(1.0);
        change(&mut b);
        let evidence = Evidence {
            candidate: &b,
            ..Evidence::default()
        };
        judge_gate(&policy, &evidence).unwrap_err().to_string()
    };
    let mixed = refused(|b| drop(b[2].aspects.insert(Aspect::Load, "twice".to_owned())));
    assert!(
        mixed.contains("load is") && mixed.contains("`twice` in b2"),
        "{mixed}"
    );
    let shard = refused(|b| b[0].shard = Some("1/3".to_owned()));
    assert!(shard.contains("b0 is shard 1/3"), "{shard}");
    let twice = refused(|b| b.push(b[0].clone()));
    assert!(twice.contains("the same run"), "{twice}");
}

#[test]
fn row_33_a_dead_server_fails_although_its_run_is_void() {
    let (a, mut b) = quiet(1.0);
    b[0].ok = 0;
    b[0].problems.push("no request ended well".to_owned());
    let report = judged(&policy(), &a, &b);
    assert_eq!((report.outcome, report.exit_code), (GateOutcome::Fail, 1));
    assert_eq!(report.rules[0].state, State::Fail);
}

#[test]
fn another_schedule_is_refused() {
    let (a, mut b) = quiet(1.0);
    b[2].aspects.insert(Aspect::Schedule, "another".to_owned());
    let evidence = Evidence {
        baseline: &a,
        candidate: &b,
        ..Evidence::default()
    };
    let error = judge_gate(&policy(), &evidence).unwrap_err();
    assert!(
        error.to_string().contains("--allow-different schedule"),
        "{error}"
    );
}

#[test]
fn slower_but_not_surely_so_is_inconclusive_and_says_how_many_blocks() {
    let rig = Rig {
        run_sd: 0.15,
        ..Rig::default()
    };
    let (a, b) = arms(rig, 4, 1.0, 1.05, &mut SplitMix64::new(3));
    let report = judged(&policy(), &a, &b);
    assert_eq!(
        (report.outcome, report.exit_code),
        (GateOutcome::Inconclusive, 3)
    );
    let rule = report.rules.last().unwrap();
    assert_eq!(rule.state, State::Inconclusive);
    assert!(rule.blocks_needed.unwrap() > 4 && rule.why.contains("blocks would show it"));
}

#[test]
fn row_82_a_limit_is_held_against_an_interval() {
    let limit = |text: &str, values: [f64; 4]| {
        let policy = Policy::parse(&format!("schema = 1\n[[limit]]\n{text}")).unwrap();
        let (_, mut b) = quiet(1.0);
        b.truncate(4);
        for (run, value) in b.iter_mut().zip(values) {
            run.values.insert("hit_rate".to_owned(), value);
            run.values.insert("ttft_p99".to_owned(), value);
        }
        judged(&policy, &[], &b).rules[1].state
    };
    let hits = "metric = \"hit_rate\"\nmin = 0.5";
    // Four values, sd 0.0115, t(0.95, 3) = 2.353: means of 0.6, 0.5 and 0.4, each +- 0.014.
    assert_eq!(limit(hits, [0.59, 0.61, 0.59, 0.61]), State::Pass);
    assert_eq!(limit(hits, [0.49, 0.51, 0.49, 0.51]), State::Inconclusive);
    assert_eq!(limit(hits, [0.39, 0.41, 0.39, 0.41]), State::Fail);
    let ttft = "metric = \"ttft_p99\"\nmax = 100";
    assert_eq!(limit(ttft, [90.0, 91.0, 90.0, 91.0]), State::Pass);
    assert_eq!(limit(ttft, [98.0, 102.0, 98.0, 102.0]), State::Inconclusive);
    assert_eq!(limit(ttft, [110.0, 111.0, 110.0, 111.0]), State::Fail);
    assert_eq!(limit(ttft, [90.0, f64::INFINITY, 90.0, 90.0]), State::Fail);
    // No spread at all: every value is the limit itself.
    assert_eq!(limit(ttft, [100.0; 4]), State::Pass);
}

#[test]
fn what_was_not_recorded_or_not_repeated_is_inconclusive() {
    let policy =
        Policy::parse("schema = 1\n[[limit]]\nmetric = \"host_bytes_max\"\nmax = 1e9").unwrap();
    let (_, b) = quiet(1.0);
    let report = judged(&policy, &[], &b);
    assert_eq!(report.rules[1].state, State::Inconclusive);
    assert!(
        report.rules[1]
            .why
            .contains("6 of 6 runs have no host_bytes_max")
    );
    let policy = Policy::parse("schema = 1\n[[limit]]\nmetric = \"ttft_p50\"\nmax = 1e9").unwrap();
    let report = judged(&policy, &[], &b[..1]);
    assert_eq!(report.rules[1].state, State::Inconclusive);
    assert!(
        report.rules[1].why.contains("1 of at least 3"),
        "{:?}",
        report.rules[1]
    );
}

#[test]
fn demanded_evidence_must_be_there() {
    let (a, b) = quiet(1.0);
    let on = |text: &str, a: &[Run], b: &[Run]| {
        let policy = Policy::parse(text).unwrap();
        let evidence = Evidence {
            baseline: a,
            candidate: b,
            ..Evidence::default()
        };
        judge_gate(&policy, &evidence).unwrap_err()
    };
    assert_eq!(on(POLICY, &[], &b), GateError::NoBaseline);
    assert_eq!(on(POLICY, &a, &[]), GateError::NoCandidate);
    let limits = "schema = 1\n[[limit]]\nmetric = \"ttft_p50\"\nmax = 9";
    assert_eq!(on(limits, &a, &b), GateError::UnusedBaseline);
    let outputs = "schema = 1\n[outputs]\nrequired = true";
    assert_eq!(on(outputs, &a, &b), GateError::NoOutputs);
}

#[test]
fn wrong_outputs_fail_before_any_time_is_looked_at() {
    let (a, b) = quiet(0.5);
    let nothing = crate::numerics::Validation::default();
    let evidence = Evidence {
        baseline: &a,
        candidate: &b,
        outputs: Some(&nothing),
        ..Evidence::default()
    };
    let report = judge_gate(&policy(), &evidence).unwrap();
    assert_eq!(report.outcome, GateOutcome::Fail);
    assert_eq!(report.rules[1].kind, Kind::Outputs);
    assert_eq!(report.rules[1].state, State::Fail);
    assert_eq!(report.count(State::Skipped), 3);
}

#[test]
fn fewer_answers_are_never_shown_to_be_no_worse() {
    // Answered: 97.5 %, which this policy allows; the gaps of the answered ones are the same.
    let text = POLICY.replace("0.99", "0.9");
    let (a, mut b) = quiet(1.0);
    b.iter_mut().for_each(|run| run.ok = 975);
    let report = judged(&Policy::parse(&text).unwrap(), &a, &b);
    assert_eq!(report.outcome, GateOutcome::Inconclusive);
    let itl = report.rules.last().unwrap();
    assert!(itl.why.contains("answered 97.5 %"), "{}", itl.why);
}
