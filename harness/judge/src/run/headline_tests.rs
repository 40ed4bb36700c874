//! The first words of a report, for runs whose answers are known.

use super::fixture::{Shape, data, notes};
use super::*;
use crate::numerics::{ConfigStats, Limits, PromptScores, ReferenceRow};

/// A check of four prompts of three rows in which the variant's errors are `factor` times those of
/// the monolithic pass, everywhere: the mean log error ratio is ln(factor).
fn note(label: &str, factor: f64) -> NumericsNote {
    let shifted = |by: f64| -> Vec<f64> {
        let signs = [1.0, -1.0, -1.0, 1.0];
        (0..4).map(|i| 3.0 * i as f64 + by * signs[i]).collect()
    };
    let truth = shifted(0.0);
    let row = ReferenceRow::new(&truth, Some(3)).unwrap();
    let mut prompts = Vec::new();
    for number in 0..4 {
        let mut prompt = PromptScores::new(format!("p{number}"), 1);
        for position in 0..3 {
            let (mono, variant) = (shifted(1e-6), shifted(1e-6 * factor));
            prompt.push_logits(position, &row, &mono, &variant).unwrap();
        }
        prompts.push(prompt);
    }
    let stats = ConfigStats::of(&prompts).unwrap();
    NumericsNote {
        label: label.to_owned(),
        bits: None,
        config: Some(crate::numerics::judge("any", stats, &Limits::default()).unwrap()),
    }
}

fn checked(numerics: Vec<NumericsNote>) -> RunVerdict {
    let fault = PlantedFault {
        label: "fast: RoPE +1".to_owned(),
        rejected: true,
        ..PlantedFault::default()
    };
    let given = RunNotes {
        numerics,
        planted_faults: vec![fault],
        ..notes()
    };
    judge(&data(&Shape::default()), &given)
}

#[test]
fn a_pass_counts_what_got_better_and_worse() {
    let verdict = judge(&data(&Shape::default()), &notes());
    // Stalls of 60 instead of 500 ms improve ITL p99, the longest gap and the stall share; TTFT
    // rises by 10 %.
    assert_eq!(verdict.headline(), "VALID: 3 better, 1 worse");
    let words = "Of 4 primary metrics of chunk: 3 better, 1 worse.";
    assert!(verdict.sentence.contains(words), "{}", verdict.sentence);
}

#[test]
fn a_candidate_that_is_worse_everywhere_is_valid_and_never_praised() {
    let Shape { stall_ms, .. } = Shape::default();
    let shape = Shape {
        stall_ms: [stall_ms[1], stall_ms[0]],
        ..Shape::default()
    };
    let verdict = judge(&data(&shape), &notes());
    assert_eq!(verdict.headline(), "VALID: 0 better, 4 worse");
    // The exit code and the name in files stay those of an answered question.
    assert_eq!(
        (verdict.outcome, verdict.outcome.exit_code()),
        (Outcome::Pass, 0)
    );
    let text = verdict.sentence.to_lowercase();
    assert!(!text.contains("pass"), "{text}");
    assert!(
        text.contains("rose from 60.5 ms to 505 ms (worse:"),
        "{text}"
    );
}

#[test]
fn an_unanswered_or_missing_comparison_is_not_counted_as_good() {
    let mut given = notes();
    given.comparison = None;
    let bare = judge(&data(&Shape::default()), &given);
    assert_eq!(bare.headline(), "INCONCLUSIVE");
    let same = Shape {
        ttft_ms: [[500, 520, 490, 510], [500, 520, 490, 510]],
        ..Shape::default()
    };
    let verdict = judge(&data(&same), &notes());
    assert_eq!(verdict.headline(), "VALID: 3 better, 0 worse, 1 unchanged");
    let late = Shape {
        lag_ns: 2_000_000,
        ..Shape::default()
    };
    assert_eq!(judge(&data(&late), &notes()).headline(), "VOID");
}

#[test]
fn a_more_accurate_variant_fails_without_being_called_wrong() {
    let verdict = checked(vec![
        note("fast: chunk 16", 1.0),
        note("fast: chunk 1", 0.5),
    ]);
    assert_eq!(verdict.outcome, Outcome::Fail);
    assert_eq!(verdict.headline(), "OUTPUTS NOT EQUIVALENT");
    // ln 0.5 is -0.693.
    let words = "Outputs are NOT EQUIVALENT: fast: chunk 1: differs in accuracy from the \
                 monolithic pass: more accurate, mean log error ratio is -0.69 (interval -0.69 to \
                 -0.69), limit 0.10.";
    assert!(verdict.sentence.contains(words), "{}", verdict.sentence);
    assert!(!verdict.sentence.contains("WRONG"), "{}", verdict.sentence);
    let claims = verdict.performance.metrics.iter();
    assert!(claims.map(|m| m.verdict.claim).all(|c| c == Claim::Void));
}

#[test]
fn a_less_accurate_variant_is_wrong_and_named_first() {
    let verdict = checked(vec![note("fast: chunk 1", 0.5), note("fast: chunk 2", 2.0)]);
    assert_eq!(verdict.headline(), "OUTPUTS WRONG");
    let first = &verdict.correctness.reasons[0];
    // ln 2 is 0.693, beyond the limit of the mean and of the worst prompt.
    assert!(first.starts_with("fast: chunk 2: "), "{first}");
    for words in [
        "less accurate, mean log error ratio is 0.69",
        "worst prompt's log error ratio is 0.69 (at prompt p",
    ] {
        assert!(first.contains(words), "{first}");
    }
    assert!(
        verdict.sentence.contains("(and 1 more)"),
        "{}",
        verdict.sentence
    );
}

#[test]
fn old_wording_is_renewed_but_an_old_verdict_stands() {
    let mut old = note("fast: chunk 1", 0.5);
    let config = old.config.as_mut().unwrap();
    config.verdict = crate::Verdict::Fail {
        reasons: vec!["chunk 1: MeanRho is -6.9e-1".to_owned()],
    };
    let crate::Verdict::Fail { reasons } = config.restated() else {
        panic!("a fail stays a fail")
    };
    assert!(reasons[0].contains("more accurate"), "{reasons:?}");
    config.verdict = crate::Verdict::Pass;
    assert!(config.restated().is_pass());
}

#[test]
fn blocks_of_one_condition_name_their_group() {
    let note = CacheNote {
        arm: "mono".to_owned(),
        block: 1,
        ..CacheNote::default()
    };
    let given = RunNotes {
        cache: vec![note],
        ..notes()
    };
    let verdict = judge(&data(&Shape::default()), &given);
    let grouped = verdict.validity.checks.iter().find(|c| c.group.is_some());
    let check = grouped.unwrap();
    assert_eq!(check.name, "cold and warm proven in mono block 1");
    assert_eq!(check.group.as_deref(), Some("cold and warm proven in mono"));
    let text = serde_json::to_string(&verdict.validity).unwrap();
    assert_eq!(text.matches("\"group\"").count(), 1, "{text}");
}
