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

/// A suite of our own engine, which only a dry run sees: nothing is started.
const ENGINE: &str = "schema = 2\nname = \"own\"\nquestion = \"?\"\nreading = \"!\"\n\
    [run]\nblocks = 3\n[engine]\nmodel = \"synthetic\"\n\
    [bench]\ndataset_name = \"interference\"\nrandom_range_ids = \"10..250\"\n\
    [arms.small]\nengine = { max_batched_tokens = 64 }\n\
    [arms.large]\nengine = { max_batched_tokens = 512 }\n\
    [[hypothesis]]\nname = \"gaps\"\nmetric = \"classes.background.itl_ms.p99\"\n\
    baseline = \"large\"\ncandidate = \"small\"\n";

#[test]
fn what_no_cell_could_answer_is_refused_before_a_server_is_started() {
    let scratch = Scratch::new(ENGINE);
    let output = scratch.run(&["--dry-run"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    for (good, bad, words) in [
        (
            "classes.background",
            "classes.backgroud",
            &["backgroud", "there are: background long_prompt"][..],
        ),
        (
            "random_range_ids = \"10..250\"\n",
            "",
            &["bench.random_range_ids", "0 to 287", "\"10..250\""],
        ),
    ] {
        scratch.write(&ENGINE.replace(good, bad));
        let output = scratch.run(&["--dry-run"]);
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{told}");
        for word in words {
            assert!(told.contains(word), "{word}: {told}");
        }
    }
}

#[test]
fn the_example_of_the_documentation_can_be_planned() {
    let text = include_str!("../../../docs/SUITES.md");
    let (_, text) = text.split_once("```toml\n").expect("an example");
    let (example, _) = text.split_once("```").expect("its end");
    let output = Scratch::new(example).run(&["--dry-run"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn a_dry_run_sees_what_is_there() {
    let scratch = Scratch::new(&suite("there", 2, 5, ""));
    let (first, code) = scratch.json(&["--only", "0/*"]);
    assert_eq!(first["state"], "incomplete", "{code:?}");
    let (plan, _) = scratch.json(&["--dry-run"]);
    let left = plan["cells"].as_array().expect("cells");
    let blocks: Vec<u64> = left
        .iter()
        .filter_map(|cell| cell["block"].as_u64())
        .collect();
    assert_eq!(blocks, [1, 1]);
    scratch.write(&suite("there", 3, 5, ""));
    let output = scratch.run(&["--dry-run"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("blocks"), "{}", stderr(&output));
}

/// The words of the server are the reason, not only that something failed.
#[test]
fn a_cell_without_an_answer_says_what_the_server_said() {
    let text = suite("refusing", 1, 5, "").replace(
        "random_output_len = 3",
        "random_output_len = 3\nmodel = \"another\"",
    );
    let (document, code) = Scratch::new(&text).json(&[]);
    assert_eq!(code, Some(3), "{document}");
    for cell in cells(&document) {
        let first = cell["reasons"][0].as_str().expect("a reason");
        assert!(
            first.starts_with("no request ended well; first failure, request ")
                && first.contains("HTTP 4"),
            "{first}"
        );
    }
}
