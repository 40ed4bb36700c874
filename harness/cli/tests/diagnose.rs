//! `diagnose` on recorded runs, as a user calls it.

mod common;
#[path = "../../bench/src/schema/check.rs"]
#[allow(dead_code, reason = "each test file uses its own part")]
mod schema_check;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use common::{run, stderr, stdout};
use serde_json::Value;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden")
}

/// The recorded scenarios, in order.
fn recordings() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(golden().join("diagnose")).expect("the recordings");
    let mut all: Vec<PathBuf> = entries.map(|entry| entry.expect("a run").path()).collect();
    all.sort();
    all
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn document(dir: &Path) -> (Value, Option<i32>) {
    let output = run(&["diagnose", text(dir), "--json"]);
    let said = stdout(&output);
    let document = serde_json::from_str(&said);
    let document = document.unwrap_or_else(|e| panic!("{e}: {said}{}", stderr(&output)));
    (document, output.status.code())
}

/// A copy of a run that may be changed.
fn copy(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().expect("a directory");
    for entry in std::fs::read_dir(from).expect("a run") {
        let path = entry.expect("a file").path();
        std::fs::copy(&path, to.path().join(path.file_name().expect("a name"))).expect("copied");
    }
    to
}

fn suites(document: &Value) -> Vec<String> {
    let hypotheses = document["hypotheses"].as_array().expect("a list");
    let suite = |h: &Value| {
        h["experiment"]["suite"]
            .as_str()
            .expect("a text")
            .to_owned()
    };
    hypotheses.iter().map(suite).collect()
}

#[test]
fn documents_fit_the_schema_and_tables_the_terminal() {
    let schema = include_str!("../../../docs/schema/diagnose-1.schema.json");
    let schema: Value = serde_json::from_str(schema).expect("JSON");
    let mut outcomes = BTreeSet::new();
    for dir in recordings() {
        let (found, code) = document(&dir);
        assert_eq!(schema_check::check(&schema, &found), Vec::<String>::new());
        let outcome = found["outcome"].as_str().expect("a word");
        let wanted = match outcome {
            "leading" => 0,
            _ => 3,
        };
        assert_eq!(code, Some(wanted), "{dir:?}");
        outcomes.insert(outcome.to_owned());
        let output = run(&["diagnose", text(&dir)]);
        let table = stdout(&output);
        assert_eq!(output.status.code(), Some(wanted));
        let wide = table.lines().find(|line| line.chars().count() > 100);
        assert_eq!(wide, None, "{dir:?}");
        assert!(table.contains("Hypotheses"), "{table}");
        // No cause is ever named.
        let leads = table.contains("LEADING, to be tested");
        assert_eq!(leads, outcome == "leading", "{table}");
    }
    assert_eq!(outcomes.len(), 2, "{outcomes:?}");
}

/// Whatever is proposed can be planned as it stands.
#[test]
fn every_proposed_suite_can_be_planned() {
    let remote = golden().join("runs/vllm-warm");
    let dirs = recordings().into_iter().chain([remote]);
    let all: BTreeSet<String> = dirs.flat_map(|dir| suites(&document(&dir).0)).collect();
    assert!(all.len() > 20, "{}", all.len());
    let scratch = tempfile::tempdir().expect("a directory");
    let file = scratch.path().join("next.toml");
    for suite in all {
        std::fs::write(&file, &suite).expect("written");
        let output = run(&["run", text(&file), "--dry-run"]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(0), "{said}\n{suite}");
    }
}

#[test]
fn the_suite_of_what_leads_is_written() {
    let scratch = tempfile::tempdir().expect("a directory");
    let file = scratch.path().join("next.toml");
    let dir = golden().join("diagnose/unbounded_chunks");
    let output = run(&["diagnose", text(&dir), "--suite-out", text(&file)]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let written = std::fs::read_to_string(&file).expect("a suite");
    let (found, _) = document(&dir);
    let leads = &found["hypotheses"][0];
    assert_eq!(
        (&leads["id"], &leads["state"]),
        (&"unbounded_chunks".into(), &"leading".into())
    );
    assert_eq!(leads["experiment"]["suite"], written);
    // Two chunk sizes under the same requests, judged by the longest gap and p99.
    for needle in [
        "max_batched_tokens",
        "itl_ms.max",
        "itl_ms.p99",
        "blocks = 6",
        "seed = 1",
    ] {
        assert!(written.contains(needle), "{needle}: {written}");
    }
}

/// What `report` does not believe is not explained either.
#[test]
fn damaged_runs_are_void() {
    for table in ["tokens.csv", "requests.csv", "steps.csv"] {
        let dir = copy(&golden().join("diagnose/unbounded_chunks"));
        let path = dir.path().join(table);
        let rows = std::fs::read_to_string(&path).expect("a table");
        let mut lines: Vec<&str> = rows.lines().collect();
        lines.remove(lines.len() / 2);
        std::fs::write(&path, lines.join("\n") + "\n").expect("written");
        let (found, code) = document(dir.path());
        assert_eq!(
            (&found["outcome"], code),
            (&"void".into(), Some(3)),
            "{table}"
        );
        let why = found["void"].to_string();
        assert!(why.contains("contradiction"), "{table}: {why}");
        let states = found["hypotheses"].as_array().expect("a list");
        assert!(states.iter().all(|h| h["state"] != "leading"), "{table}");
        let file = dir.path().join("next.toml");
        let output = run(&["diagnose", text(dir.path()), "--suite-out", text(&file)]);
        assert!(!file.exists(), "{}", stderr(&output));
        // And none is offered.
        let said = stdout(&output);
        for part in ["--suite-out", "Next experiment"] {
            assert!(!said.contains(part), "{said}");
        }
    }
}

#[test]
fn what_cannot_be_read_is_told_with_its_fix() {
    let leak = golden().join("../results/own-leak");
    let scenario = golden().join("diagnose/unbounded_chunks");
    for (args, needles) in [
        (&[text(&leak)][..], &["leak", "quickstart"][..]),
        (&["/nowhere/at/all"], &["/nowhere/at/all"]),
        (&[text(&scenario), "--arm", "b"], &["--arm b", "target"]),
    ] {
        let mut words = vec!["diagnose"];
        words.extend(args);
        let output = run(&words);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        for needle in needles {
            assert!(said.contains(needle), "{needle}: {said}");
        }
    }
}

/// Client rows and metrics of a real vLLM: what is missing is named, nothing leads.
#[test]
fn a_remote_run_says_what_is_missing() {
    let (found, code) = document(&golden().join("runs/vllm-warm"));
    assert_ne!(found["outcome"], "leading", "{found}");
    assert_eq!((code, &found["buckets"]), (Some(3), &Value::Null));
    let missing = found["hypotheses"][0]["missing"].to_string();
    assert!(missing.contains("steps"), "{missing}");
    let split = &found["evidence"][1];
    assert_eq!(split["present"], false, "{split}");
}
