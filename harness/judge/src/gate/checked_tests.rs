//! The rule on outputs: of what, of how much, and what a file cannot hide.

use serde_json::Value;

use super::checked::outputs;
use super::report::State;
use crate::compare::{Run, Subject};
use crate::numerics::synthetic::{Variation, scores};
use crate::numerics::{
    BitCheck, BitDifference, Checked, ConfigStats, FaultCheck, Limits, Validation, judge,
};

/// A check of bits and one of errors that pass, and a fault that was noticed.
fn good() -> Validation {
    let mut bits = BitDifference::new();
    bits.push_row("p", 0, &[1.0_f32, 2.0], &[1.0, 2.0]).unwrap();
    let stats = ConfigStats::of(&scores(2, 12, 1e-5, Variation::Equal, 42)).unwrap();
    Validation {
        checked: Some(Checked {
            model: "m".to_owned(),
            model_sha256: "0".to_owned(),
            tool_version: "1.2".to_owned(),
            tool_rev: "abc".to_owned(),
        }),
        bits: vec![BitCheck {
            config: "chunk 16".to_owned(),
            bits,
        }],
        tolerance: vec![judge("chunk 16", stats, &Limits::default()).unwrap()],
        faults: vec![FaultCheck {
            label: "RoPE +1".to_owned(),
            rejected: true,
            required: true,
            evidence: "differs".to_owned(),
            config: None,
        }],
        calibration: Vec::new(),
    }
}

fn run(model: &str, server: &str, rev: &str) -> Run {
    Run {
        subject: Subject {
            model: model.to_owned(),
            server: server.to_owned(),
            tool_version: "1.2".to_owned(),
            tool_rev: rev.to_owned(),
        },
        ..Run::default()
    }
}

fn own() -> Run {
    run("m", "own-engine 1.2", "abc")
}

#[test]
fn what_was_checked_must_be_what_was_measured() {
    assert_eq!(outputs(&good(), &[own()]).state, State::Pass);
    for (run, what) in [
        (run("other", "own-engine 1.2", "abc"), "another model"),
        (run("m", "own-engine 1.3", "abc"), "another server"),
        // Nothing was checked of another program's server.
        (run("m", "vllm 0.9", "abc"), "another server"),
        (run("m", "own-engine 1.2", "def"), "another revision"),
    ] {
        let found = outputs(&good(), &[own(), run]);
        assert_eq!(found.state, State::Inconclusive, "{}", found.why);
        assert!(found.why.contains(what), "{}", found.why);
    }
    let unknown = Validation {
        checked: None,
        ..good()
    };
    let found = outputs(&unknown, &[own()]);
    assert_eq!(found.state, State::Inconclusive);
    assert!(found.why.contains("of which model"), "{}", found.why);
}

/// A failure stays one, whatever it is of.
#[test]
fn a_planted_fault_that_passed_fails_even_for_a_stranger() {
    let mut blind = good();
    blind.faults[0].rejected = false;
    assert_eq!(outputs(&blind, &[run("x", "", "")]).state, State::Fail);
}

#[test]
fn empty_lists_are_no_pass() {
    type Empty = fn(&mut Validation);
    let cases: [(Empty, &str); 3] = [
        (|found| found.bits.clear(), "no bits"),
        (|found| found.tolerance.clear(), "no errors"),
        (|found| found.faults.clear(), "no fault was planted"),
    ];
    for (empty, why) in cases {
        let mut found = good();
        empty(&mut found);
        let rule = outputs(&found, &[own()]);
        assert_eq!(rule.state, State::Inconclusive, "{}", rule.why);
        assert!(rule.why.contains(why), "{}", rule.why);
    }
}

/// A file in which values differ and the first one was taken out.
#[test]
fn a_difference_without_its_place_is_one() {
    for key in ["differing_values", "differing_rows"] {
        let mut text: Value = serde_json::to_value(good()).unwrap();
        text["bits"][0]["bits"][key] = 3.into();
        let found: Validation = serde_json::from_value(text).unwrap();
        assert_eq!(outputs(&found, &[own()]).state, State::Fail, "{key}");
    }
}
