//! The committed schema and the documents say the same.

use serde_json::{Value, json};

use super::tests::{case, streams};
use super::*;
use crate::schema_check as check;

fn schema() -> Value {
    let text = include_str!("../../../../docs/schema/diagnose-1.schema.json");
    serde_json::from_str(text).unwrap()
}

/// With steps, without, and void.
fn documents() -> Vec<Value> {
    let data = streams(|row| {
        row.prefill_gemm_ns = pb_contract::Nanos(90_000_000);
        row.prefill_tokens = 64;
        row.duration_ns += row.prefill_gemm_ns;
    });
    let mut bare = data.clone();
    bare.steps.clear();
    let void = Case {
        void: vec!["late".into()],
        gates_missed: vec!["ttft:1@1".into()],
        ..case(&data)
    };
    let all = [
        diagnose(&case(&data)),
        diagnose(&case(&bare)),
        diagnose(&void),
    ];
    let value = |diagnosis| serde_json::to_value(diagnosis).unwrap();
    all.iter().map(value).collect()
}

#[test]
fn documents_fit_their_schema() {
    for document in documents() {
        assert_eq!(check::check(&schema(), &document), Vec::<String>::new());
    }
}

/// Each change must be noticed, or the check proves nothing.
#[test]
fn the_check_notices_what_does_not_fit() {
    for (place, value) in [
        ("/outcome", json!("proven")),
        ("/exit_code", json!(1)),
        ("/symptoms/0/parts/0/part", json!("gpu")),
        ("/symptoms/0/present", json!("yes")),
        ("/hypotheses/0/state", json!("cause")),
        ("/hypotheses/0/experiment/suite", json!(null)),
        ("/buckets/pool", json!(-1)),
        ("/evidence/0/present", json!(null)),
    ] {
        let mut document = documents().remove(0);
        *document.pointer_mut(place).expect(place) = value;
        assert!(!check::check(&schema(), &document).is_empty(), "{place}");
    }
}

#[test]
fn another_validator_agrees_where_there_is_one() {
    let mut documents = documents();
    let mut broken = documents[0].clone();
    broken["outcome"] = json!("proven");
    documents.push(broken);
    if let Some(found) = check::jsonschema(&schema(), &documents) {
        assert!(found[..3].iter().all(Vec::is_empty), "{found:?}");
        assert!(!found[3].is_empty());
    }
}
