//! Pairing, refusals, claims and what takes them away.

use pb_stats::SplitMix64;

use super::synthetic::{Rig, arms, run};
use super::*;
use crate::ab::{AbRules, Claim};

fn rules() -> CompareRules {
    CompareRules {
        ab: AbRules {
            resamples: 0,
            ..AbRules::default()
        },
        ..CompareRules::default()
    }
}

/// Six blocks of equal arms on a quiet rig, the candidate's gaps 1.2 times as long.
fn slower_gaps() -> (Vec<Run>, Vec<Run>) {
    let rig = Rig {
        run_sd: 0.01,
        ..Rig::default()
    };
    arms(rig, 6, 1.0, 1.2, &mut SplitMix64::new(5))
}

fn claim(comparison: &Comparison, name: &str) -> Claim {
    comparison.report.metric(name).unwrap().claim
}

#[test]
fn longer_gaps_are_worse_and_nothing_else_is() {
    let (a, b) = slower_gaps();
    let found = compare(&a, &b, &rules()).unwrap();
    assert_eq!(found.outcome, Outcome::Answered);
    assert_eq!(found.outcome.exit_code(), 0);
    assert_eq!(claim(&found, "itl_p99"), Claim::Worse);
    assert_eq!(claim(&found, "success_rate"), Claim::Equivalent);
    assert_ne!(claim(&found, "ttft_p50"), Claim::Worse);
    assert!(found.sentence.contains("1 worse"), "{}", found.sentence);
    let (_, named) = found.sentence.split_once("ITL p99 worse (+").unwrap();
    let percent: f64 = named.trim_end_matches(" %)").parse().unwrap();
    // The true change is 20 %, and a p99 of 1,000 gaps is no better known than this.
    assert!((15.0..25.0).contains(&percent), "{named}");
    assert_eq!(found.notes, Vec::<String>::new());
}

/// Nobody asks for a comparison to hear that both servers answered.
#[test]
fn an_equal_success_rate_alone_answers_nothing() {
    let rig = Rig {
        run_sd: 0.5,
        ..Rig::default()
    };
    let (a, b) = arms(rig, 3, 1.0, 1.0, &mut SplitMix64::new(5));
    let found = compare(&a, &b, &rules()).unwrap();
    assert_eq!(claim(&found, "success_rate"), Claim::Equivalent);
    assert_eq!(found.outcome, Outcome::Inconclusive, "{}", found.sentence);
    let only = CompareRules {
        primary: vec!["success_rate".to_owned()],
        ..rules()
    };
    let found = compare(&a, &b, &only).unwrap();
    assert_eq!(found.outcome, Outcome::Answered, "{}", found.sentence);
}

#[test]
fn row_81_one_pair_of_runs_decides_nothing() {
    let (mut a, mut b) = slower_gaps();
    a.truncate(1);
    b.truncate(1);
    let found = compare(&a, &b, &rules()).unwrap();
    assert_eq!(found.outcome, Outcome::Inconclusive);
    assert_eq!(found.outcome.exit_code(), 3);
    let itl = found.report.metric("itl_p99").unwrap();
    assert_eq!((itl.claim, itl.ratio), (Claim::Inconclusive, None));
    assert!(itl.why.contains("1 of 1 usable, 3 needed"), "{}", itl.why);
    assert!(itl.a.is_some() && itl.b.is_some());
    assert!(found.sentence.contains("1 block;"), "{}", found.sentence);
}

#[test]
fn row_84_requests_are_no_observations() {
    // A hundred times the requests, the same six runs: the same degrees of freedom.
    let rig = Rig {
        requests: 10_000,
        ..Rig::default()
    };
    let (a, b) = arms(rig, 6, 1.0, 1.0, &mut SplitMix64::new(1));
    let found = compare(&a, &b, &rules()).unwrap();
    assert_eq!(found.report.metric("itl_p99").unwrap().ratio.unwrap().n, 6);
}

#[test]
fn runs_pair_by_schedule_whatever_their_order() {
    let (a, mut b) = slower_gaps();
    let in_order = compare(&a, &b, &rules()).unwrap();
    b.reverse();
    let reversed = compare(&a, &b, &rules()).unwrap();
    assert_eq!(in_order, reversed);
    assert_eq!(reversed.blocks[0].candidate.run, "b0");
}

#[test]
fn runs_that_differ_are_refused_unless_the_difference_is_wanted() {
    for aspect in ASPECTS {
        let (a, mut b) = slower_gaps();
        for (number, run) in b.iter_mut().enumerate() {
            let other = match aspect {
                Aspect::Schedule => format!("other {number}"),
                _ => "other".to_owned(),
            };
            run.aspects.insert(aspect, other);
        }
        let error = compare(&a, &b, &rules()).unwrap_err().to_string();
        let fix = format!("--allow-different {aspect}");
        assert!(error.contains(&fix) && error.contains("other"), "{error}");
        let mut rules = rules();
        rules.allow.insert(aspect);
        let found = compare(&a, &b, &rules).unwrap();
        assert_eq!(found.allowed.len(), 1, "{aspect}");
        assert_eq!(found.allowed[0].aspect, aspect);
    }
}

#[test]
fn the_runs_of_one_arm_must_be_alike_even_where_arms_may_differ() {
    let (a, mut b) = slower_gaps();
    b[3].aspects.insert(Aspect::Server, "newer".to_owned());
    let mut rules = rules();
    rules.allow.insert(Aspect::Server);
    let error = compare(&a, &b, &rules).unwrap_err();
    assert!(
        error.to_string().contains("b0 and `newer` in b3"),
        "{error}"
    );
}

#[test]
fn blocks_may_be_on_several_machines_but_not_a_block() {
    let (mut a, mut b) = slower_gaps();
    for run in [&mut a[2], &mut b[2]] {
        run.aspects.insert(Aspect::Machine, "another".to_owned());
    }
    assert!(compare(&a, &b, &rules()).is_ok());
    b[2].aspects.insert(Aspect::Machine, "a third".to_owned());
    assert!(compare(&a, &b, &rules()).is_err());
}

#[test]
fn an_unknown_schedule_is_like_no_other() {
    let (mut a, mut b) = slower_gaps();
    for run in a.iter_mut().chain(&mut b) {
        run.aspects.insert(Aspect::Schedule, String::new());
    }
    let error = compare(&a, &b, &rules()).unwrap_err().to_string();
    assert!(error.contains("schedule is not known"), "{error}");
}

#[test]
fn copies_and_odd_runs_are_refused() {
    let (a, b) = slower_gaps();
    let error = compare(&a, &a, &rules()).unwrap_err();
    let same = CompareError::SameRun {
        first: "a0".to_owned(),
        second: "a0".to_owned(),
    };
    assert_eq!(error, same);
    let error = compare(&a, &b[1..], &rules()).unwrap_err();
    assert!(
        error.to_string().contains("6 baseline runs and 5"),
        "{error}"
    );
    assert!(compare(&[], &[], &rules()).is_err());
    let mut rules = rules();
    rules.metrics = vec!["speed".to_owned()];
    let error = compare(&a, &b, &rules).unwrap_err();
    assert!(error.to_string().contains("ttft_p50"), "{error}");
}

#[test]
fn a_run_that_must_not_be_used_makes_all_of_it_void() {
    let (a, mut b) = slower_gaps();
    b[4].problems.push("the client was late".to_owned());
    let found = compare(&a, &b, &rules()).unwrap();
    assert_eq!(found.outcome, Outcome::Void);
    assert_eq!(found.outcome.exit_code(), 3);
    assert_eq!(claim(&found, "itl_p99"), Claim::Void);
    assert!(found.sentence.contains("b4: the client was late"));
    // Which block it is, so that the others can be used.
    assert_eq!(found.void_blocks, [5]);
    let fix = "run again, or leave out, block 5 (a4 and b4)";
    assert!(found.sentence.contains(fix), "{}", found.sentence);
    b.iter_mut()
        .for_each(|run| run.problems.push("late".to_owned()));
    let found = compare(&a, &b, &rules()).unwrap();
    assert!(found.sentence.contains("every block"), "{}", found.sentence);
}

#[test]
fn a_copy_is_known_whatever_its_date_and_arm_say() {
    let (mut a, mut b) = slower_gaps();
    (a[0].fingerprint, b[3].fingerprint) = (Some(7), Some(7));
    let error = compare(&a, &b, &rules()).unwrap_err();
    let same = CompareError::SameRun {
        first: "a0".to_owned(),
        second: "b3".to_owned(),
    };
    assert_eq!(error, same);
    b[3].fingerprint = Some(8);
    assert!(compare(&a, &b, &rules()).is_ok());
    // Made again in virtual time a run is the same; within an arm it is no second one.
    let mut simulated = slower_gaps().0;
    for (number, run) in simulated.iter_mut().enumerate() {
        (run.fingerprint, run.simulated) = (Some(number as u64), true);
    }
    let found = compare(&simulated, &simulated, &rules()).unwrap();
    assert_eq!(claim(&found, "itl_p99"), Claim::Equivalent);
    simulated[1].fingerprint = Some(0);
    assert!(check_arm(&simulated).is_err());
}

#[test]
fn a_shard_is_no_run() {
    let (a, mut b) = slower_gaps();
    b[1].shard = Some("0/2".to_owned());
    for error in [
        compare(&a, &b, &rules()).unwrap_err(),
        check_arm(&b).unwrap_err(),
    ] {
        let error = error.to_string();
        assert!(
            error.contains("b1 is shard 0/2") && error.contains("merge"),
            "{error}"
        );
    }
}

#[test]
fn the_runs_of_an_arm_alone_must_be_alike_too() {
    let (mut a, _) = slower_gaps();
    assert_eq!(check_arm(&a), Ok(()));
    assert_eq!(check_arm(&[]), Ok(()));
    // Schedules and machines may vary between blocks.
    a[2].aspects.insert(Aspect::Machine, "another".to_owned());
    assert_eq!(check_arm(&a), Ok(()));
    a[2].aspects.insert(Aspect::Model, "another".to_owned());
    let error = check_arm(&a).unwrap_err().to_string();
    assert!(error.contains("`another` in a2"), "{error}");
    let twice = [a[0].clone(), a[0].clone()];
    assert!(matches!(
        check_arm(&twice),
        Err(CompareError::SameRun { .. })
    ));
}

#[test]
fn row_31_a_server_that_refuses_is_not_called_faster() {
    let (a, b) = slower_gaps();
    // The other way round the gaps are shorter, and a tenth of the requests went unanswered.
    let (a, mut b) = (b, a);
    assert_eq!(
        claim(&compare(&a, &b, &rules()).unwrap(), "itl_p99"),
        Claim::Better
    );
    for run in &mut b {
        run.ok = 90;
        run.values.insert("success_rate".to_owned(), 0.9);
    }
    let found = compare(&a, &b, &rules()).unwrap();
    assert_eq!(claim(&found, "success_rate"), Claim::Worse);
    let itl = found.report.metric("itl_p99").unwrap();
    assert_eq!(itl.claim, Claim::Inconclusive);
    assert!(itl.why.contains("answered 90.0 %"), "{}", itl.why);
    assert_eq!(found.withheld["itl_p99"], itl.why);
}

#[test]
fn an_endless_percentile_is_worse_than_any_number() {
    let (a, mut b) = slower_gaps();
    for run in &mut b {
        run.values.insert("ttft_p99".to_owned(), f64::INFINITY);
    }
    let found = compare(&a, &b, &rules()).unwrap();
    assert_eq!(claim(&found, "ttft_p99"), Claim::Worse);
    assert_eq!(found.values["ttft_p99"].b, vec![None; 6]);
    let (a, mut b) = slower_gaps();
    b[0].values.insert("ttft_p99".to_owned(), f64::INFINITY);
    let found = compare(&a, &b, &rules()).unwrap();
    let ttft = found.report.metric("ttft_p99").unwrap();
    assert_eq!(ttft.claim, Claim::Inconclusive);
    assert!(
        ttft.why.contains("1 of the candidate alone"),
        "{}",
        ttft.why
    );
}

#[test]
fn row_47_a_change_of_the_size_of_the_clients_lag_is_not_claimed() {
    let rig = Rig {
        run_sd: 0.001,
        ..Rig::default()
    };
    let (mut a, b) = arms(rig, 6, 1.3, 1.3, &mut SplitMix64::new(5));
    assert_eq!(
        claim(&compare(&a, &b, &rules()).unwrap(), "ttft_p50"),
        Claim::Worse
    );
    // TTFT is about 200 ms, the change about 60 ms, a twentieth of it 3 ms.
    a[0].lag_p99_ms = Some(9.0);
    let found = compare(&a, &b, &rules()).unwrap();
    let ttft = found.report.metric("ttft_p50").unwrap();
    assert_eq!(ttft.claim, Claim::Inconclusive);
    assert!(ttft.why.contains("lag"), "{}", ttft.why);
    // Token gaps do not count from the arrival.
    assert_eq!(claim(&found, "itl_p99"), Claim::Worse);
}

#[test]
fn row_85_runs_that_took_no_turns_are_told() {
    let (mut a, mut b) = slower_gaps();
    for (early, late) in a.iter_mut().zip(&mut b) {
        early.created = "2030-01-01T00:00:00Z".to_owned();
        late.created = "2030-01-02T00:00:00Z".to_owned();
    }
    let found = compare(&a, &b, &rules()).unwrap();
    assert!(found.notes[0].contains("A B B A"), "{:?}", found.notes);
}

#[test]
fn all_stalls_are_measured_by_one_threshold() {
    let mut a = run("a", 0, vec![1.0], vec![1.0]);
    let mut b = run("b", 0, vec![1.0], vec![1.0]);
    a.long_gaps = LongGaps {
        threshold_ns: 50,
        total_ns: 1000,
        gaps_ns: vec![(60, 1), (100, 2)],
    };
    b.long_gaps = LongGaps {
        threshold_ns: 80,
        total_ns: 1000,
        gaps_ns: vec![(100, 3)],
    };
    let found = compare(&[a], &[b], &rules()).unwrap();
    let stalls = &found.values["stall_share"];
    assert_eq!((stalls.a[0], stalls.b[0]), (Some(0.2), Some(0.3)));
}

#[test]
fn a_choice_of_metrics_is_a_family_and_needs_no_record() {
    let (a, b) = slower_gaps();
    let mut rules = rules();
    rules.metrics = vec!["itl_p50".to_owned(), "hit_rate".to_owned()];
    let found = compare(&a, &b, &rules).unwrap();
    assert_eq!(claim(&found, "itl_p50"), Claim::Worse);
    let hits = found.report.metric("hit_rate").unwrap();
    assert_eq!((hits.claim, hits.pairs), (Claim::Inconclusive, 0));
    assert!(found.report.metrics.iter().all(|m| m.spec.primary));
    rules.margins.insert("itl_p50".to_owned(), 0.5);
    let found = compare(&a, &b, &rules).unwrap();
    assert_eq!(claim(&found, "itl_p50"), Claim::Equivalent);
}

#[test]
fn blocks_needed_grow_with_the_noise() {
    let needed = |run_sd| {
        let rig = Rig {
            requests: 1_000,
            run_sd,
            ..Rig::default()
        };
        let (a, b) = arms(rig, 12, 1.0, 1.0, &mut SplitMix64::new(2));
        compare(&a, &b, &rules()).unwrap().blocks_needed["itl_p50"].unwrap()
    };
    let (quiet, noisy) = (needed(0.01), needed(0.08));
    assert!(quiet >= 3 && noisy > 5 * quiet, "{quiet} and {noisy}");
}
