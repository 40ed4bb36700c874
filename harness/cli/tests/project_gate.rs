//! The project's own gate (`.ci/gate`): what it lets pass, what not, and that it cannot flake.

#![cfg(unix)]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{json, run, stderr, stdout};

fn script(name: &str, args: &[&str]) -> Output {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.ci/gate");
    Command::new(path.join(name))
        .arg(env!("CARGO_BIN_EXE_prefillbench"))
        .args(args)
        .env_remove("GITHUB_STEP_SUMMARY")
        .env_remove("GITHUB_OUTPUT")
        .output()
        .expect("bash")
}

/// Every file below `dir` by its name.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if path.is_dir() {
            let inner = files(&path).into_iter();
            found.extend(inner.map(|(below, bytes)| (format!("{name}/{below}"), bytes)));
        } else {
            found.insert(name, std::fs::read(&path).expect("a file"));
        }
    }
    found
}

#[test]
fn this_version_passes_and_another_budget_does_not() {
    let output = script("run", &[]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    assert!(
        text.starts_with("PASS: 8 rules hold over 6 candidate runs"),
        "{text}"
    );
    for fault in [
        &["--max-batched-tokens", "256"][..],
        &["--max-batched-tokens", "1024", "--max-num-seqs", "1"],
    ] {
        let output = script("run", fault);
        let text = stdout(&output);
        assert_eq!(
            output.status.code(),
            Some(1),
            "{fault:?}: {text}{}",
            stderr(&output)
        );
        assert!(text.starts_with("FAIL: TTFT"), "{text}");
        assert!(text.contains("worse by +"), "{text}");
    }
}

#[test]
fn the_same_arguments_write_the_same_bytes() {
    let dir = tempfile::tempdir().expect("a directory");
    let made = |name: &str| {
        let out = dir.path().join(name);
        let output = script("blocks", &[out.to_str().expect("UTF-8")]);
        assert!(output.status.success(), "{}", stderr(&output));
        files(&out)
    };
    let (one, again) = (made("one"), made("again"));
    assert_eq!(one.len(), again.len());
    for (name, bytes) in &one {
        assert!(again[name] == *bytes, "{name}");
        // Where it was made is no part of a run.
        let text = String::from_utf8_lossy(bytes);
        assert!(
            !text.contains(dir.path().to_str().expect("UTF-8")),
            "{name}"
        );
    }
    assert!(one.contains_key("5/tokens.csv"), "{:?}", one.keys());
}

#[test]
fn a_simulated_run_reads_like_any_other_and_is_no_other() {
    let trace = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.ci/gate/trace.jsonl");
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("run");
    let (trace, out) = (trace.to_str().expect("UTF-8"), out.to_str().expect("UTF-8"));
    let simulate = ["engine", "simulate", "--trace", trace, "--limit", "20"];
    let document = json(&[&simulate[..], &["--out", out, "--json"]].concat());
    assert_eq!(
        document["validity"]["valid"], true,
        "{}",
        document["validity"]
    );
    assert_eq!(document["counts"]["ok"], 20);
    assert_eq!(document["cache"]["state"], "cold");
    let found = &document["cache"]["measured_hit_tokens"];
    assert!(found.as_u64() > Some(0), "{found}");
    // The same trace without a load driver: the same hits, and times from the same engine.
    let plain = json(&[&simulate[..], &["--json"]].concat());
    assert_eq!(plain["hits"]["hit_tokens"], *found);
    assert_eq!(plain["counts"]["finished"], 20);
    let again = json(&["report", out, "--json"]);
    assert_eq!(again, document);
    let twice = run(&[&simulate[..], &["--out", out]].concat());
    assert_eq!(twice.status.code(), Some(2));
    assert!(
        stderr(&twice).contains("already holds a run"),
        "{}",
        stderr(&twice)
    );
    let beyond = run(&[&simulate[..], &["--skip", "1000"]].concat());
    assert_eq!(beyond.status.code(), Some(2));
    assert!(stderr(&beyond).contains("--skip"), "{}", stderr(&beyond));
}
