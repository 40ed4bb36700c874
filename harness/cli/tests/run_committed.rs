//! The suites that come along, with this project's own engine where they need nothing else.

#![cfg(unix)]

mod common;

use std::path::{Path, PathBuf};

use common::{run, stderr, stdout};
use serde_json::Value;

/// The suites that come with the program.
fn committed() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workloads/suites");
    let entries = std::fs::read_dir(folder).expect("the suites");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    files
}

#[test]
fn every_suite_that_comes_along_can_be_planned() {
    let mut planned = 0;
    for file in committed() {
        let text = std::fs::read_to_string(&file).expect("a suite");
        if !text.contains("[arms.") && !text.contains("[engine]") {
            continue;
        }
        let output = run(&["run", file.to_str().unwrap(), "--dry-run"]);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{file:?}: {}",
            stderr(&output)
        );
        planned += 1;
    }
    assert!(planned >= 7, "{planned}");
}

#[test]
fn a_suite_of_our_own_engine_runs() {
    let file = committed()
        .into_iter()
        .find(|path| path.ends_with("own_chunk_size.toml"));
    let file = file.expect("the suite");
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("out");
    let out = out.to_str().unwrap();
    let output = run(&[
        "run",
        file.to_str().unwrap(),
        "--out",
        out,
        "--only",
        "0/*",
        "--json",
    ]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let document: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(document["state"], "incomplete");
    let run: Vec<&Value> = document["cells"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|c| c["block"] == 0)
        .collect();
    assert!(
        run.len() >= 2 && run.iter().all(|cell| cell["state"] == "complete"),
        "{run:?}"
    );
    assert!(
        run.iter().all(|cell| cell["success_rate"] == 1.0),
        "{run:?}"
    );
}
