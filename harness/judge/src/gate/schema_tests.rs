//! The committed schemas and the documents say the same.

use pb_stats::SplitMix64;
use serde_json::{Value, json};

use super::*;
use crate::compare::synthetic::{Rig, arms};
use crate::compare::{CompareRules, Run, compare};
use crate::schema_check as check;

fn schema(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn gate_schema() -> Value {
    schema(include_str!("../../../../docs/schema/gate-1.schema.json"))
}

fn compare_schema() -> Value {
    schema(include_str!(
        "../../../../docs/schema/compare-1.schema.json"
    ))
}

/// Gates in which every part is there: a failure with an undecided rule, a void one, one that
/// compares nothing.
fn gates() -> Vec<Value> {
    let policy = |changes: &str| {
        let limits = "schema = 1\n[[limit]]\nmetric = \"hit_rate\"\nmin = 0.5\n";
        Policy::parse(&format!("{limits}{changes}")).unwrap()
    };
    let changes = "[[change]]\nmetric = \"itl_p99\"\nmargin = 0.05\n\
                   [[change]]\nmetric = \"e2e_p99\"\nmargin = 0.05\n";
    let (a, b) = arms(Rig::default(), 4, 1.0, 1.3, &mut SplitMix64::new(1));
    let judged = |policy: &Policy, a: &[Run], b: &[Run]| {
        let evidence = Evidence {
            baseline: a,
            candidate: b,
            ..Evidence::default()
        };
        serde_json::to_value(judge_gate(policy, &evidence).unwrap()).unwrap()
    };
    let mut broken = b.clone();
    broken[0].problems.push("late".to_owned());
    vec![
        judged(&policy(changes), &a, &b),
        judged(&policy(changes), &a, &broken),
        judged(&policy(""), &[], &b),
    ]
}

fn comparisons() -> Value {
    let (a, mut b) = arms(Rig::default(), 4, 1.0, 1.3, &mut SplitMix64::new(1));
    b[0].values.insert("ttft_p99".to_owned(), f64::INFINITY);
    for run in &mut b {
        run.aspects
            .insert(crate::compare::Aspect::Server, "newer".to_owned());
    }
    let rules = CompareRules {
        allow: [crate::compare::Aspect::Server].into(),
        ..CompareRules::default()
    };
    let all = compare(&a, &b, &rules).unwrap();
    let one = compare(&a[..1], &b[..1], &rules).unwrap();
    json!({ "schema_version": 1, "comparisons": [all, one] })
}

#[test]
fn documents_fit_their_schemas() {
    for gate in gates() {
        assert_eq!(check::check(&gate_schema(), &gate), Vec::<String>::new());
    }
    let found = check::check(&compare_schema(), &comparisons());
    assert_eq!(found, Vec::<String>::new());
}

/// Each change must be noticed, or the check proves nothing.
#[test]
fn the_check_notices_what_does_not_fit() {
    for (place, value) in [
        ("/outcome", json!("ok")),
        ("/exit_code", json!(2)),
        ("/rules/0/state", json!("green")),
        ("/rules/1/interval", json!(1)),
        ("/comparison/report/metrics/0/claim", json!("slower")),
        ("/comparison/values/itl_p99", json!([])),
    ] {
        let mut gate = gates().remove(0);
        *gate.pointer_mut(place).expect(place) = value;
        assert!(!check::check(&gate_schema(), &gate).is_empty(), "{place}");
    }
}

#[test]
fn another_validator_agrees_where_there_is_one() {
    let mut documents = gates();
    let mut broken = documents[0].clone();
    broken["outcome"] = json!("ok");
    documents.push(broken);
    if let Some(found) = check::jsonschema(&gate_schema(), &documents) {
        assert!(found[..3].iter().all(Vec::is_empty), "{found:?}");
        assert!(!found[3].is_empty());
    }
    if let Some(found) = check::jsonschema(&compare_schema(), &[comparisons()]) {
        assert_eq!(found, [Vec::<String>::new()]);
    }
}
