//! Verdicts of trials made by hand.

use pb_contract::{Nanos, Stream};

use super::rules::{Arm, LeakRules, LeakVerdict, Observation, Trial, judge};

/// What a server does to the three arms: mean time in ms and cached tokens.
#[derive(Clone, Copy)]
struct Server {
    same: (f64, Option<u32>),
    other: (f64, Option<u32>),
    unprimed: (f64, Option<u32>),
    /// Standard deviation of every time, in ms.
    noise: f64,
}

const N: usize = 172;

fn trials(server: Server, n: usize) -> Vec<Trial> {
    let mut stream = Stream::new(11, "leak rules tests");
    let mut observe = |(ms, cached_tokens): (f64, Option<u32>)| {
        let ms = (ms + server.noise * stream.normal()).max(0.1);
        Some(Observation {
            ttft_ns: Nanos((ms * 1e6) as u64),
            cached_tokens,
        })
    };
    (0..n)
        .map(|_| Trial {
            same: observe(server.same),
            other: observe(server.other),
            unprimed: observe(server.unprimed),
        })
        .collect()
}

fn verdict(server: Server) -> LeakVerdict {
    judge(&trials(server, N), &LeakRules::default()).verdict
}

const ISOLATING: Server = Server {
    same: (20.0, Some(384)),
    other: (60.0, Some(0)),
    unprimed: (60.0, Some(0)),
    noise: 5.0,
};

/// CVE-2025-46570, vllm #53347: a test that only looks at the other tenant passes where the cache
/// is off; this one says so instead.
#[test]
fn row_92_each_kind_of_server_gets_its_verdict() {
    let silent = |(ms, _): (f64, Option<u32>)| (ms, None);
    assert_eq!(verdict(ISOLATING), LeakVerdict::Isolated);
    let by_time = Server {
        same: silent(ISOLATING.same),
        other: silent(ISOLATING.other),
        unprimed: silent(ISOLATING.unprimed),
        ..ISOLATING
    };
    assert_eq!(verdict(by_time), LeakVerdict::Isolated);
    let leaking = Server {
        other: ISOLATING.same,
        ..ISOLATING
    };
    assert_eq!(verdict(leaking), LeakVerdict::Leaks);
    let leaking_by_time = Server {
        other: (20.0, None),
        ..by_time
    };
    assert_eq!(verdict(leaking_by_time), LeakVerdict::Leaks);
    // A server whose usage lies about the other tenant is found by its times, and the other way.
    let lying = Server {
        other: (20.0, Some(0)),
        ..ISOLATING
    };
    assert_eq!(verdict(lying), LeakVerdict::Leaks);
    let padded = Server {
        other: (60.0, Some(384)),
        ..ISOLATING
    };
    assert_eq!(verdict(padded), LeakVerdict::Leaks);
    let off = Server {
        same: (60.0, Some(0)),
        ..ISOLATING
    };
    assert_eq!(verdict(off), LeakVerdict::CacheOff);
    let off_by_time = Server {
        same: (60.0, None),
        ..by_time
    };
    assert_eq!(verdict(off_by_time), LeakVerdict::CacheOff);
    // Hits too small beside the noise: times cannot show them, usage can.
    let noisy = Server {
        noise: 40.0,
        ..by_time
    };
    assert_eq!(verdict(noisy), LeakVerdict::Inconclusive);
    let noisy_known = Server {
        noise: 40.0,
        ..ISOLATING
    };
    assert_eq!(verdict(noisy_known), LeakVerdict::Isolated);
}

#[test]
fn codes_follow_the_verdict_and_a_cache_that_is_off_does_not_pass() {
    use LeakVerdict::{CacheOff, Inconclusive, Isolated, Leaks};
    let codes = [Isolated, Leaks, CacheOff, Inconclusive].map(LeakVerdict::exit_code);
    assert_eq!(codes, [0, 1, 3, 3]);
}

#[test]
fn too_few_trials_decide_nothing() {
    let finding = judge(&trials(ISOLATING, 30), &LeakRules::default());
    assert_eq!(finding.verdict, LeakVerdict::Inconclusive);
    let text = finding.reasons.join(" ");
    assert!(text.contains("more trials"), "{text}");
    let none = judge(&[], &LeakRules::default());
    assert_eq!(none.verdict, LeakVerdict::Inconclusive);
    assert_eq!(none.arms[0].ttft_p50_ns, None, "no requests, no median");
}

#[test]
fn failures_are_counted_and_too_many_decide_nothing() {
    let mut some = trials(ISOLATING, N);
    for trial in some.iter_mut().take(10) {
        trial.other = None;
    }
    let finding = judge(&some, &LeakRules::default());
    assert_eq!(finding.verdict, LeakVerdict::Isolated);
    let other = &finding.arms[1];
    assert_eq!(
        (other.arm, other.ok, other.failed),
        (Arm::Other, N - 10, 10)
    );
    assert_eq!(other.auc.unwrap().n, N - 10);
    for trial in some.iter_mut().take(60) {
        trial.other = None;
    }
    // 60 of 516 are above a tenth.
    let finding = judge(&some, &LeakRules::default());
    assert_eq!(finding.verdict, LeakVerdict::Inconclusive);
    assert!(
        finding.reasons[0].contains("60 of 516"),
        "{:?}",
        finding.reasons
    );
}

/// A chat template or a system prompt is in every prompt: what unprimed prompts find is no hit.
#[test]
fn what_every_prompt_finds_is_no_hit() {
    let template = Server {
        same: (20.0, Some(400)),
        other: (60.0, Some(16)),
        unprimed: (60.0, Some(16)),
        noise: 5.0,
    };
    assert_eq!(verdict(template), LeakVerdict::Isolated);
    // The same seed run twice on one cache: the control is no control.
    let again = Server {
        unprimed: (20.0, Some(384)),
        ..ISOLATING
    };
    let finding = judge(&trials(again, N), &LeakRules::default());
    assert_eq!(finding.verdict, LeakVerdict::Inconclusive);
    assert!(
        finding.reasons[0].contains("nobody had sent"),
        "{:?}",
        finding.reasons
    );
}

/// One admitted hit of the other tenant is enough, however fast or slow it was.
#[test]
fn a_single_hit_in_the_usage_is_a_leak() {
    let mut all = trials(ISOLATING, N);
    all[77].other.as_mut().unwrap().cached_tokens = Some(128);
    let finding = judge(&all, &LeakRules::default());
    assert_eq!(finding.verdict, LeakVerdict::Leaks);
    assert!(
        finding.reasons[0].contains("1 of 172 requests, up to 128"),
        "{:?}",
        finding.reasons
    );
}

#[test]
fn times_of_an_arm_by_hand() {
    let observe = |ms| {
        Some(Observation {
            ttft_ns: Nanos::from_millis(ms),
            cached_tokens: None,
        })
    };
    let trials: Vec<Trial> = [(1, 9), (2, 8), (6, 7)]
        .map(|(same, unprimed)| Trial {
            same: observe(same),
            other: observe(unprimed),
            unprimed: observe(unprimed),
        })
        .to_vec();
    let finding = judge(&trials, &LeakRules::default());
    let same = &finding.arms[0];
    assert_eq!(same.ttft_p50_ns, Some(Nanos::from_millis(2)));
    assert_eq!(same.ttft_mean_ns, Some(Nanos::from_millis(3)));
    assert_eq!(same.auc.unwrap().value, 1.0);
    assert_eq!(finding.arms[1].auc.unwrap().value, 0.5);
    assert_eq!(finding.arms[2].auc, None);
}

/// Whoever stops when they have seen enough would choose the verdict.
#[test]
fn a_probe_that_was_stopped_says_nothing_whatever_it_saw() {
    let leaking = Server {
        other: ISOLATING.same,
        ..ISOLATING
    };
    for server in [ISOLATING, leaking] {
        let finding = judge(&trials(server, 50), &LeakRules::default()).interrupted(N);
        assert_eq!(finding.verdict, LeakVerdict::Inconclusive);
        assert!(
            finding.reasons[0].contains("stopped after 50 of 172 trials"),
            "{:?}",
            finding.reasons
        );
        assert_eq!(finding.trials, 50);
    }
    // Before the first trial had ended, too.
    let finding = judge(&[], &LeakRules::default()).interrupted(N);
    assert_eq!(finding.verdict.exit_code(), 3);
}
