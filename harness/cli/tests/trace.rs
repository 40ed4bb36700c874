//! `trace` from the outside.

mod common;

use std::path::PathBuf;

use common::{json, run, stderr, stdout};
use serde_json::{Value, json};

fn fixture(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    path.join("../../workloads/tests/traces")
        .join(name)
        .display()
        .to_string()
}

#[test]
fn inspect_prints_exactly_the_documented_keys() {
    let found = json(&["trace", "inspect", &fixture("mooncake.jsonl"), "--json"]);
    let keys = |value: &Value| -> Vec<String> {
        value
            .as_object()
            .into_iter()
            .flat_map(|map| map.keys().cloned())
            .collect()
    };
    let want = [
        "rows",
        "span_s",
        "unit",
        "block_size",
        "input_tokens",
        "output_tokens",
        "blocks",
        "hit_tokens",
        "arrivals",
        "dropped",
    ];
    assert_eq!(keys(&found), want);
    assert_eq!(keys(&found["input_tokens"]), ["p50", "mean", "p95", "max"]);
    assert_eq!(keys(&found["output_tokens"]), ["p50", "mean", "p95", "max"]);
    assert_eq!(found["blocks"], json!({"total": 9, "unique": 5, "hit": 4}));
    assert_eq!(keys(&found["arrivals"]), ["distinct", "cv", "bin_s"]);
    assert_eq!(
        (&found["unit"], &found["block_size"]),
        (&json!("ms"), &json!(512))
    );
    let pool = json(&[
        "trace",
        "inspect",
        &fixture("mooncake.jsonl"),
        "--json",
        "--at-block-size",
        "100",
        "--pool",
        "12",
    ]);
    assert_eq!(pool["pool"]["hit_blocks"], 5);
    let people = run(&["trace", "inspect", &fixture("mooncake.jsonl")]);
    let text = stdout(&people);
    assert!(text.contains("unit ms: as documented") && text.contains("4 found again (44.4 %)"));
}

#[test]
fn files_of_text_are_counted_by_a_tokenizer() {
    let file = fixture("sharegpt.json");
    let unknown = json(&["trace", "inspect", &file, "--json"]);
    assert_eq!(
        (&unknown["input_tokens"], &unknown["span_s"]),
        (&Value::Null, &Value::Null)
    );
    let counted = json(&[
        "trace",
        "inspect",
        &file,
        "--json",
        "--tokenizer",
        "synthetic-tiny",
    ]);
    assert!(
        counted["input_tokens"]["max"]
            .as_u64()
            .is_some_and(|max| max > 2)
    );
}

#[test]
fn convert_writes_what_inspect_reads() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("t.jsonl").display().to_string();
    let converted = run(&[
        "trace",
        "convert",
        &fixture("mooncake.jsonl"),
        "--to",
        "aiperf",
        "--out",
        &out,
        "--time-scale",
        "2",
        "--max-model-len",
        "1304",
        "--arrivals",
        "spread",
        "--seed",
        "3",
    ]);
    assert!(converted.status.success(), "{}", stderr(&converted));
    let said = stderr(&converted);
    assert!(said.contains("wrote 3 rows") && said.contains("dropped 1: over_max_model_len"));
    let found = json(&["trace", "inspect", &out, "--json", "--format", "aiperf"]);
    assert_eq!(
        (&found["rows"], &found["hit_tokens"]),
        (&json!(3), &json!(512))
    );
    let scaled = run(&[
        "trace",
        "convert",
        &fixture("mooncake.jsonl"),
        "--to",
        "mooncake",
        "--scale-length",
        "0.0625",
    ]);
    let first = stdout(&scaled).lines().next().map(str::to_owned);
    let want = r#"{"timestamp":0,"input_length":38,"output_length":1,"hash_ids":[0,1]}"#;
    assert_eq!(first.as_deref(), Some(want));
    let onto_itself = run(&["trace", "convert", &out, "--to", "mooncake", "--out", &out]);
    assert_eq!(onto_itself.status.code(), Some(2));
}

#[test]
fn exit_codes_tell_broken_from_unclear() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let valid = run(&["trace", "validate", &fixture("weka.json")]);
    assert_eq!(valid.status.code(), Some(0), "{}", stdout(&valid));
    let row = |at: &str, input: u32, ids: &str| {
        format!(
            "{{\"timestamp\": {at}, \"input_length\": {input}, \"output_length\": 1, \
             \"hash_ids\": [{ids}]}}\n"
        )
    };
    let moved = write(
        "moved.jsonl",
        &(row("0", 1024, "0, 1") + &row("9", 1024, "1, 0")),
    );
    let broken = run(&["trace", "validate", &moved, "--json"]);
    assert_eq!(broken.status.code(), Some(1));
    let found: Value = serde_json::from_str(&stdout(&broken)).unwrap();
    assert_eq!(found["valid"], false);
    let unclear = write(
        "unclear.jsonl",
        &(row("0.5", 8, "1") + &row("20.5", 8, "1")),
    );
    for verb in ["inspect", "validate"] {
        let output = run(&["trace", verb, &unclear]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("--unit") && output.stdout.is_empty());
    }
    for verb in [
        &["trace", "inspect"][..],
        &["engine", "simulate", "--trace"],
    ] {
        let missing = run(&[verb, &["no-such-file.jsonl"]].concat());
        assert_eq!(missing.status.code(), Some(2));
        // The file as a whole, which has no line 0.
        let said = stderr(&missing);
        assert!(
            said.contains("no-such-file.jsonl: cannot be read"),
            "{said}"
        );
    }
}
