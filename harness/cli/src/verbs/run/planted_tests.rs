//! Planted faults of performance, and what each judge says of them: `compare`, `gate`, a suite.
//!
//! `cargo test --release -p prefillbench planted -- --nocapture` prints the table of
//! `docs/STATISTICS.md`.

use std::path::PathBuf;

use pb_contract::Nanos;
use pb_judge::ab::{AbRules, Claim};
use pb_judge::compare::{CompareRules, Comparison, Run, compare};
use pb_judge::gate::{Evidence, GateOutcome, GateReport, Policy, State, judge_gate};
use pb_judge::suite::{Metric, Question, StopRule};
use pb_stats::Outcome;
use serde_json::Value;

use super::planted::{Claimed, Fault, REQUESTS, run};
use super::store::Done;
use super::verdict::{Judged, Pair, Pairs, Rules, judged, pairs as pairs_of};
use crate::verbs::runs;
use crate::verbs::suite;

/// Blocks of every experiment.
const BLOCKS: u64 = 6;

/// Every metric that a rule is about, by its name here and in a suite, with its margin.
const METRICS: [(&str, &str, f64); 5] = [
    ("itl_p50", "itl_ms.p50", 0.01),
    ("e2e_p50", "e2e_ms.p50", 0.05),
    ("stall_share", "stalls.share", 0.02),
    ("hit_rate", "cache.hit_rate", 0.01),
    ("success_rate", "offered.success_rate", 0.01),
];

/// What the judges said of one experiment.
struct Verdicts {
    compared: Comparison,
    gated: GateReport,
    suite: Vec<(&'static str, Judged)>,
}

impl Verdicts {
    fn of(fault: Fault, claimed: Claimed) -> Verdicts {
        let dir = tempfile::tempdir().unwrap();
        let (mut dirs, mut cells) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for block in 0..BLOCKS {
            for (arm, fault) in [(0, Fault::None), (1, fault)] {
                let path: PathBuf = dir.path().join(format!("{arm}-{block}"));
                let document = run(&path, block, arm as u64, fault, claimed);
                assert_eq!(document.counts.offered, REQUESTS);
                dirs[arm].push(path);
                cells[arm].push(Done {
                    document: serde_json::to_value(document).unwrap(),
                    wall_ns: Nanos::ZERO,
                    fingerprint: None,
                });
            }
        }
        // The numbers that a judge sees are made again from the rows.
        let [a, b] = dirs.map(|dirs| runs::read(&dirs).unwrap());
        Verdicts {
            compared: compared(&a, &b),
            gated: gated(&a, &b),
            suite: in_suite(&cells[0], &cells[1]),
        }
    }

    fn claim(&self, metric: &str) -> Claim {
        self.compared.report.metric(metric).unwrap().claim
    }

    fn state(&self, metric: &str) -> State {
        let rules = self.gated.rules.iter();
        let mut of = rules.filter(|rule| rule.metric.as_deref() == Some(metric));
        of.next_back().unwrap().state
    }

    fn in_suite(&self, metric: &str) -> Outcome {
        let found = self.suite.iter().find(|(name, _)| *name == metric);
        found.unwrap().1.outcome
    }

    /// Nobody calls a fault an improvement, and no gate lets it pass.
    fn is_caught(&self) {
        for verdict in &self.compared.report.metrics {
            assert_ne!(verdict.claim, Claim::Better, "{verdict:?}");
        }
        for (metric, judged) in &self.suite {
            assert_ne!(judged.outcome, Outcome::Better, "{metric}: {judged:?}");
        }
        assert_ne!(
            self.gated.outcome,
            GateOutcome::Pass,
            "{}",
            self.gated.sentence
        );
    }

    /// Equal arms: no difference is claimed, and the gate passes.
    fn is_clean(&self) {
        for verdict in &self.compared.report.metrics {
            let flagged = matches!(verdict.claim, Claim::Better | Claim::Worse | Claim::Void);
            assert!(!flagged, "{verdict:?}");
        }
        for (metric, judged) in &self.suite {
            assert_eq!(judged.outcome, Outcome::Equivalent, "{metric}: {judged:?}");
        }
        assert_eq!(
            self.gated.outcome,
            GateOutcome::Pass,
            "{}",
            self.gated.sentence
        );
    }

    #[allow(clippy::print_stdout, reason = "a table for people, who ask for it")]
    fn print(&self, name: &str) {
        let words: Vec<String> = METRICS
            .iter()
            .map(|(metric, ..)| {
                let (claim, suite) = (self.claim(metric), self.in_suite(metric).name());
                format!("{metric} {claim:?}/{:?}/{suite}", self.state(metric))
            })
            .collect();
        println!(
            "{name}: {}\n  {}\n  {}",
            words.join(", "),
            self.compared.sentence,
            self.gated.sentence
        );
    }
}

fn compared(a: &[Run], b: &[Run]) -> Comparison {
    let names = || METRICS.iter().map(|(name, ..)| (*name).to_owned());
    let rules = CompareRules {
        ab: AbRules {
            resamples: 0,
            ..AbRules::default()
        },
        primary: names().collect(),
        margins: METRICS
            .iter()
            .map(|(name, _, m)| ((*name).to_owned(), *m))
            .collect(),
        ..CompareRules::default()
    };
    compare(a, b, &rules).unwrap()
}

fn gated(a: &[Run], b: &[Run]) -> GateReport {
    let change = |(name, _, margin): &(&str, &str, f64)| {
        format!("[[change]]\nmetric = \"{name}\"\nmargin = {margin}\n")
    };
    let changes: String = METRICS.iter().map(change).collect();
    let policy = format!("schema = 1\nmin_blocks = 6\n[success]\nmin_rate = 0.99\n{changes}");
    let evidence = Evidence {
        baseline: a,
        candidate: b,
        ..Evidence::default()
    };
    judge_gate(&Policy::parse(&policy).unwrap(), &evidence).unwrap()
}

fn in_suite(a: &[Done], b: &[Done]) -> Vec<(&'static str, Judged)> {
    let rules = Rules {
        stop: StopRule::Fixed,
        blocks: a.len(),
        alpha: 0.05,
        least_success: 0.99,
    };
    let comparison = |(name, figure, margin): &(&str, &str, f64)| suite::Comparison {
        hypothesis: (*name).to_owned(),
        baseline: 0,
        candidate: 1,
        condition: 0,
        question: Question {
            metric: Metric::parse("metric", figure).unwrap(),
            expect: None,
            margin: *margin,
        },
    };
    let comparisons: Vec<suite::Comparison> = METRICS.iter().map(comparison).collect();
    let cells: Vec<Pair<'_>> = a.iter().map(Some).zip(b.iter().map(Some)).collect();
    let pairs: Vec<Pairs> = comparisons
        .iter()
        .map(|one| pairs_of(one, &cells, rules.least_success))
        .collect();
    let found = judged(&comparisons, &pairs, &rules).unwrap();
    METRICS.iter().map(|(name, ..)| *name).zip(found).collect()
}

/// The twin without the fault, under either claim of the cache.
#[test]
fn planted_nothing_is_not_flagged() {
    for claimed in [Claimed::AsIs, Claimed::Cold] {
        let found = Verdicts::of(Fault::None, claimed);
        found.print(&format!("nothing, {claimed:?}"));
        found.is_clean();
    }
}

/// Faults that make the server worse: the metric says so, to each judge.
#[test]
fn planted_slowness_is_worse() {
    for (fault, metric) in [
        (Fault::Sleep, "itl_p50"),
        (Fault::Stall, "stall_share"),
        (Fault::Misses, "hit_rate"),
    ] {
        let found = Verdicts::of(fault, Claimed::AsIs);
        found.print(&format!("{fault:?}"));
        found.is_caught();
        assert_eq!(found.claim(metric), Claim::Worse, "{fault:?}");
        assert_eq!(found.state(metric), State::Fail, "{fault:?}");
        assert_eq!(found.in_suite(metric), Outcome::Worse, "{fault:?}");
        assert_eq!(found.gated.outcome, GateOutcome::Fail, "{fault:?}");
    }
}

/// Faults of the experiment: none of its numbers may be used.
#[test]
fn planted_conditions_make_a_run_void() {
    for (fault, claimed, reason) in [
        (
            Fault::LateDriver,
            Claimed::AsIs,
            "the client itself was late",
        ),
        (
            Fault::WarmCache,
            Claimed::Cold,
            "prefix hits other than planned",
        ),
        (
            Fault::Misses,
            Claimed::Cold,
            "prefix hits other than planned",
        ),
    ] {
        let found = Verdicts::of(fault, claimed);
        found.print(&format!("{fault:?}, {claimed:?}"));
        found.is_caught();
        assert_eq!(found.gated.outcome, GateOutcome::Void, "{fault:?}");
        assert!(
            found.gated.sentence.contains(reason),
            "{}",
            found.gated.sentence
        );
        assert_eq!(found.compared.void_blocks, [1, 2, 3, 4, 5, 6]);
        for (metric, ..) in METRICS {
            assert_eq!(found.claim(metric), Claim::Void, "{fault:?}: {metric}");
            let suite = found.in_suite(metric);
            assert!(
                matches!(suite, Outcome::Void | Outcome::Inconclusive),
                "{suite:?}"
            );
        }
    }
}

/// A server that refuses: counted first, and the times of the rest are no improvement.
#[test]
fn planted_refusals_fail_first() {
    let found = Verdicts::of(Fault::Refusals, Claimed::AsIs);
    found.print("refusals");
    found.is_caught();
    assert_eq!(found.claim("success_rate"), Claim::Worse);
    assert_eq!(found.gated.rules[0].state, State::Fail);
    assert!(
        found.gated.sentence.contains("95 %, below 99 %"),
        "{}",
        found.gated.sentence
    );
    assert_eq!(found.in_suite("success_rate"), Outcome::Worse);
    assert_eq!(found.in_suite("itl_p50"), Outcome::Void);
}

/// The same seed gives the same bytes; the time of another one shows.
#[test]
fn planted_runs_are_the_same_again() {
    let dir = tempfile::tempdir().unwrap();
    let made = |name: &str, place| {
        let path = dir.path().join(name);
        run(&path, 3, place, Fault::Stall, Claimed::Cold);
        let read = |file: &str| std::fs::read(path.join(file)).unwrap();
        [
            "requests.csv",
            "tokens.csv",
            "manifest.json",
            "conditions.json",
            "bench.json",
        ]
        .map(read)
    };
    let (one, again, other) = (made("a", 0), made("b", 0), made("c", 1));
    assert!(one == again, "the same arguments wrote other bytes");
    assert!(one[0] != other[0] && one[2] == other[2]);
    let manifest: Value = serde_json::from_slice(&one[2]).unwrap();
    assert_eq!(manifest["model"]["kind"], "simulated");
}
