//! `compare` on run directories whose truth is known.

mod bench_common;
mod common;
mod run_dirs;

use common::{prefillbench, run, stderr, stdout};
use run_dirs::{Made, arms, words};
use serde_json::Value;

fn slower(made: Made) -> Made {
    Made {
        itl_permille: 1200,
        ..made
    }
}

/// The one comparison of a document, and the exit code.
fn compared(args: &[&str]) -> (Value, Option<i32>) {
    let output = run(args);
    let text = stdout(&output);
    let mut document: Value =
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}{}", stderr(&output)));
    assert_eq!(document["schema_version"], 1);
    (document["comparisons"][0].take(), output.status.code())
}

fn claim(comparison: &Value, name: &str) -> String {
    let metrics = comparison["report"]["metrics"].as_array().expect("a list");
    let found = metrics.iter().find(|m| m["spec"]["name"] == name);
    found.expect(name)["claim"]
        .as_str()
        .expect("a word")
        .to_owned()
}

#[test]
fn a_slower_stream_is_worse_over_blocks() {
    let dir = tempfile::tempdir().expect("a directory");
    let (a, b) = arms(dir.path(), 4, slower);
    let lists = [("--a", &a[..]), ("--b", &b[..])];
    let (found, code) = compared(&words(&["compare", "--json"], &lists));
    assert_eq!(code, Some(0), "{found}");
    assert_eq!(claim(&found, "itl_p99"), "worse");
    assert_eq!(claim(&found, "hit_rate"), "equivalent");
    assert_eq!(claim(&found, "success_rate"), "equivalent");
    // A fifth longer, within the noise of a percent.
    let metrics = found["report"]["metrics"].as_array().expect("a list");
    let itl = metrics.iter().find(|m| m["spec"]["name"] == "itl_p50");
    let ratio = itl.expect("itl_p50")["ratio"]["point"]
        .as_f64()
        .expect("a number");
    assert!((ratio - 1.2).abs() < 0.01, "{ratio}");
    let markdown = dir.path().join("out.md");
    let file = markdown.to_str().expect("UTF-8");
    let output = run(&words(&["compare", "--markdown", file], &lists));
    let text = stdout(&output);
    assert!(text.starts_with("VALID: "), "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    let written = std::fs::read_to_string(&markdown).expect("a file");
    assert!(written.contains("| ITL p99"), "{written}");
}

#[test]
fn pairs_are_shown_and_decide_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let (a, b) = arms(dir.path(), 1, slower);
    let (found, code) = compared(&["compare", "--json", &a[0], &b[0]]);
    assert_eq!((code, &found["outcome"]), (Some(3), &"inconclusive".into()));
    assert_eq!(claim(&found, "itl_p99"), "inconclusive");
    // Three runs of one schedule: two comparisons with the first.
    let third = Made {
        place: 2,
        ..Made::default()
    };
    let third = third.write(dir.path(), "c0");
    let output = run(&["compare", &a[0], &b[0], third.to_str().expect("UTF-8")]);
    assert_eq!(output.status.code(), Some(3));
    let text = stdout(&output);
    assert_eq!(text.matches("INCONCLUSIVE: 1 block").count(), 2, "{text}");
}

#[test]
fn runs_that_differ_are_refused_by_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let (a, b) = arms(dir.path(), 3, |made| Made {
        schedule: Some(format!("{:064x}", 900 + made.block)),
        cpu: "another processor".to_owned(),
        ..made
    });
    let lists = [("--a", &a[..]), ("--b", &b[..])];
    let output = run(&words(&["compare"], &lists));
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    for needle in [
        "schedule",
        "another processor",
        "--allow-different schedule,machine",
    ] {
        assert!(said.contains(needle), "{needle}: {said}");
    }
    let allow = ["compare", "--json", "--allow-different", "schedule,machine"];
    let (found, code) = compared(&words(&allow, &lists));
    assert_eq!(code, Some(0), "{found}");
    assert_eq!(found["allowed"].as_array().map(Vec::len), Some(2));
}

#[test]
fn a_late_client_voids_the_comparison() {
    let dir = tempfile::tempdir().expect("a directory");
    let (a, b) = arms(dir.path(), 3, |made| Made {
        late_ms: if made.block == 1 { 3 } else { 0 },
        ..slower(made)
    });
    let lists = [("--a", &a[..]), ("--b", &b[..])];
    let (found, code) = compared(&words(&["compare", "--json"], &lists));
    assert_eq!((code, &found["outcome"]), (Some(3), &"void".into()));
    assert_eq!(claim(&found, "itl_p99"), "void");
    let void = found["report"]["void"][0].as_str().expect("a reason");
    assert!(void.contains("b1") && void.contains("late"), "{void}");
}

#[test]
fn bad_input_names_what_is_wrong() {
    let dir = tempfile::tempdir().expect("a directory");
    let (a, b) = arms(dir.path(), 3, slower);
    let here = dir.path().to_str().expect("UTF-8");
    let cases: [(&[&str], &str); 9] = [
        (&["compare"], "Usage"),
        (&["compare", &a[0]], "RUN"),
        (&["compare", &a[0], "no-such-run"], "no-such-run"),
        (&["compare", &a[0], here], here),
        (&["compare", &a[0], &a[0]], "same run"),
        (
            &["compare", "--a", &a[0], &a[1], "--b", &b[0]],
            "2 baseline runs and 1",
        ),
        (&["compare", &a[0], &b[0], "--metrics", "speed"], "`speed`"),
        (&["compare", &a[0], &b[0], "--alpha", "0.7"], "alpha"),
        (
            &["compare", &a[0], &b[0], "--allow-different", "colour"],
            "colour",
        ),
    ];
    for (args, needle) in cases {
        let output = prefillbench(args).output().expect("the binary runs");
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(needle), "{args:?}: {said}");
        assert!(
            !said.contains("panicked") && output.stdout.is_empty(),
            "{said}"
        );
    }
}

/// Runs that `bench` itself wrote: one pair is undecided whatever this machine was busy with, or
/// void when it was too busy; both end with 3.
#[test]
fn runs_of_bench_can_be_compared() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = bench_common::quick(Default::default());
    let url = server.base_url();
    let name = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
    for run in ["one", "two"] {
        let args = ["--request-rate", "200", "--num-prompts", "8"];
        bench_common::measured(&url, dir.path(), run, &args);
    }
    let (found, code) = compared(&["compare", "--json", &name("one"), &name("two")]);
    assert_eq!(code, Some(3), "{found}");
    assert_eq!(found["blocks"][0]["baseline"]["ok"], 8);
    assert!(
        found["values"]["itl_p50"]["a"][0].as_f64().is_some(),
        "{found}"
    );
}
