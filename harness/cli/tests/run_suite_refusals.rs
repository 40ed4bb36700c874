//! What makes a suite fail or be refused, with the ground-truth server as arms.

#![cfg(unix)]

mod common;
mod suites;

use common::stderr;
use serde_json::Value;
use suites::{Scratch, cells, suite};

#[test]
fn a_missed_demand_makes_the_suite_fail() {
    let text = suite("missed", 1, 5, "");
    // The first token takes 5 ms at least.
    let text = text.replace("seed = 3\n", "seed = 3\nslo = [\"ttft:1@0.9\"]\n");
    let (document, code) = Scratch::new(&text).json(&[]);
    assert_eq!(code, Some(1), "{document}");
    for cell in cells(&document) {
        assert_ne!(cell["gates_failed"], Value::Array(vec![]), "{cell}");
    }
}

/// A cell that is copied over another one, with a receipt that says otherwise.
#[test]
fn a_copied_cell_is_no_second_measurement() {
    let scratch = Scratch::new(&suite("copied", 1, 5, ""));
    let (document, _) = scratch.json(&[]);
    assert_eq!(document["state"], "complete");
    let [from, to] =
        ["quick", "slow"].map(|arm| scratch.out.join(format!("cells/block-000/{arm}")));
    for entry in std::fs::read_dir(&from).expect("a cell") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default();
        if name != "cell.json" {
            std::fs::copy(&path, to.join(name)).expect("copied");
        }
    }
    let manifest = to.join("manifest.json");
    let text = std::fs::read_to_string(&manifest).expect("a manifest");
    let edited = text.replacen("\"created\": \"2", "\"created\": \"3", 1);
    assert_ne!(text, edited);
    std::fs::write(&manifest, edited).expect("written");
    let output = scratch.run(&[]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    let told = stderr(&output);
    assert!(told.contains("are the same run"), "{told}");
}
