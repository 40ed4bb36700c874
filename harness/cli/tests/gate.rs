//! `gate` and `gate init` on run directories whose truth is known.

mod common;
mod run_dirs;

use std::path::Path;
use std::process::Output;

use common::{prefillbench, run, stderr, stdout};
use run_dirs::{Made, arms, words};
use serde_json::Value;

const POLICY: &str = r#"
schema = 1
name = "planted"
[success]
min_rate = 0.95
[[limit]]
metric = "ttft_p95"
max = 400
[[limit]]
metric = "hit_rate"
min = 0.5
[[change]]
metric = "ttft_p50"
margin = 0.03
[[change]]
metric = "itl_p99"
margin = 0.05
"#;

fn policy(dir: &Path, text: &str) -> String {
    let path = dir.join("gate.toml");
    std::fs::write(&path, text).expect("written");
    path.to_str().expect("UTF-8").to_owned()
}

/// Runs the gate of [`POLICY`] over arms of four blocks.
fn gate(dir: &Path, change: impl Fn(Made) -> Made, more: &[&str]) -> Output {
    let (a, b) = arms(dir, 4, change);
    let policy = policy(dir, POLICY);
    let start = [&["gate", "--policy", &policy][..], more].concat();
    let lists = [("--baseline", &a[..]), ("--candidate", &b[..])];
    prefillbench(&words(&start, &lists))
        .env_remove("GITHUB_STEP_SUMMARY")
        .env_remove("GITHUB_OUTPUT")
        .output()
        .expect("the binary runs")
}

fn document(output: &Output) -> Value {
    let text = stdout(output);
    let found: Value =
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}{}", stderr(output)));
    assert_eq!(
        output.status.code().map(Value::from),
        Some(found["exit_code"].clone())
    );
    found
}

fn states(document: &Value) -> Vec<&str> {
    let rules = document["rules"].as_array().expect("a list");
    rules
        .iter()
        .map(|rule| rule["state"].as_str().expect("a word"))
        .collect()
}

#[test]
fn equal_versions_pass() {
    let dir = tempfile::tempdir().expect("a directory");
    let found = document(&gate(dir.path(), |made| made, &["--json"]));
    assert_eq!(
        (&found["outcome"], &found["exit_code"]),
        (&"pass".into(), &0.into()),
        "{found}"
    );
    assert_eq!(states(&found), ["pass"; 5]);
}

#[test]
fn gaps_a_fifth_longer_fail_with_a_report_for_the_job() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
    let (junit, summary, github) = (file("gate.xml"), file("gate.md"), file("github.md"));
    let outputs = file("github.txt");
    std::fs::write(&github, "before\n").expect("written");
    let (a, b) = arms(dir.path(), 4, |made| Made {
        itl_permille: 1200,
        ..made
    });
    let policy = policy(dir.path(), POLICY);
    let start = [
        "gate",
        "--policy",
        &policy,
        "--junit",
        &junit,
        "--summary",
        &summary,
    ];
    let lists = [("--baseline", &a[..]), ("--candidate", &b[..])];
    let output = prefillbench(&words(&start, &lists))
        .env("GITHUB_STEP_SUMMARY", &github)
        .env("GITHUB_OUTPUT", &outputs)
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(
        text.starts_with("FAIL: ITL p99 not worse by 5 %: worse by +"),
        "{text}"
    );
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    let read = |path: &str| std::fs::read_to_string(path).expect("a file");
    assert!(read(&junit).contains("tests=\"5\" failures=\"1\" errors=\"0\" skipped=\"0\""));
    assert!(read(&summary).starts_with("# Gate planted"));
    assert_eq!(read(&github), format!("before\n{}", read(&summary)));
    assert_eq!(read(&outputs), "outcome=fail\n");
    assert!(read(&junit).contains("worse by +"), "{}", read(&junit));
}

/// Reports go to files of their own: a policy, a link, a device and a run stay as they are.
#[test]
fn reports_overwrite_nothing_else() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_, b) = arms(dir.path(), 3, |made| made);
    let path = policy(
        dir.path(),
        "schema = 1\n[[limit]]\nmetric = \"ttft_p50\"\nmax = 400\n",
    );
    let link = dir.path().join("link.xml");
    std::os::unix::fs::symlink(dir.path().join("elsewhere"), &link).expect("a link");
    let within = format!("{}/report.md", b[0]);
    let before = std::fs::read(&path).expect("a policy");
    for (flag, place, needle) in [
        ("--summary", path.as_str(), "is read"),
        ("--junit", link.to_str().expect("UTF-8"), "symbolic link"),
        ("--junit", "/dev/null", "a device"),
        ("--summary", &within, "within a run"),
    ] {
        let start = ["gate", "--policy", &path, flag, place];
        let output = run(&words(&start, &[("--candidate", &b[..])]));
        assert_eq!(output.status.code(), Some(2), "{place}");
        assert!(
            stderr(&output).contains(needle),
            "{place}: {}",
            stderr(&output)
        );
        assert_eq!(std::fs::read(&path).expect("a policy"), before);
    }
    // An earlier report is replaced.
    let summary = dir.path().join("gate.md");
    for _ in 0..2 {
        let start = [
            "gate",
            "--policy",
            &path,
            "--summary",
            summary.to_str().expect("UTF-8"),
        ];
        let output = run(&words(&start, &[("--candidate", &b[..])]));
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
}

#[test]
fn unanswered_requests_fail_first_whatever_the_times() {
    let dir = tempfile::tempdir().expect("a directory");
    let change = |made| Made {
        failed: 4,
        itl_permille: 500,
        ttft_permille: 500,
        ..made
    };
    let found = document(&gate(dir.path(), change, &["--json"]));
    assert_eq!(
        (&found["outcome"], &found["exit_code"]),
        (&"fail".into(), &1.into())
    );
    let rest = "skipped";
    assert_eq!(states(&found), ["fail", rest, rest, rest, rest]);
    let sentence = found["sentence"].as_str().expect("a sentence");
    assert!(
        sentence.contains("144 of 160 requests ended well: 90 %"),
        "{sentence}"
    );
}

#[test]
fn void_runs_and_other_schedules_are_no_failures() {
    let dir = tempfile::tempdir().expect("a directory");
    let late = |made: Made| Made {
        late_ms: if made.block == 2 { 3 } else { 0 },
        itl_permille: 1200,
        ..made
    };
    let found = document(&gate(dir.path(), late, &["--json"]));
    assert_eq!(
        (&found["outcome"], &found["exit_code"]),
        (&"void".into(), &3.into())
    );
    let dir = tempfile::tempdir().expect("a directory");
    let other = |made: Made| Made {
        schedule: Some("f".repeat(64)),
        ..made
    };
    let output = gate(dir.path(), other, &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("--allow-different schedule"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn too_few_blocks_are_inconclusive_and_limits_need_no_baseline() {
    let dir = tempfile::tempdir().expect("a directory");
    let (a, b) = arms(dir.path(), 2, |made| made);
    let path = policy(dir.path(), POLICY);
    let lists = [("--baseline", &a[..]), ("--candidate", &b[..])];
    let found = document(&run(&words(&["gate", "--json", "--policy", &path], &lists)));
    assert_eq!(
        (&found["outcome"], &found["exit_code"]),
        (&"inconclusive".into(), &3.into())
    );
    let path = policy(
        dir.path(),
        "schema = 1\n[[limit]]\nmetric = \"ttft_p50\"\nmax = 400\n",
    );
    let (_, b) = arms(&dir.path().join("more"), 3, |made| made);
    let lists = [("--candidate", &b[..])];
    let found = document(&run(&words(&["gate", "--json", "--policy", &path], &lists)));
    assert_eq!(found["outcome"], "pass", "{found}");
    assert_eq!(found["comparison"], Value::Null);
}

#[test]
fn a_policy_is_proposed_from_repeats_and_can_be_used() {
    let dir = tempfile::tempdir().expect("a directory");
    let (a, b) = arms(dir.path(), 4, |made| made);
    let all = [a.clone(), b.clone()].concat();
    let out = dir.path().join("proposed.toml");
    let out = out.to_str().expect("UTF-8");
    let lists = [("--baseline", &all[..])];
    let output = run(&words(&["gate", "init", "--out", out], &lists));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = std::fs::read_to_string(out).expect("a file");
    assert!(
        text.contains("from 4 A/A pairs (8 runs of one version)"),
        "{text}"
    );
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    let again = run(&words(&["gate", "init", "--out", out], &lists));
    assert_eq!(again.status.code(), Some(2));
    assert!(stderr(&again).contains("exists"));
    let printed = run(&words(&["gate", "init"], &lists));
    assert_eq!(stdout(&printed), text);
    let lists = [("--baseline", &a[..]), ("--candidate", &b[..])];
    let found = document(&run(&words(&["gate", "--json", "--policy", out], &lists)));
    assert_eq!(found["outcome"], "pass", "{found}");
}

#[test]
fn bad_input_names_what_is_wrong() {
    let dir = tempfile::tempdir().expect("a directory");
    let (a, b) = arms(dir.path(), 1, |made| made);
    let good = policy(dir.path(), POLICY);
    let bad = dir.path().join("bad.toml");
    std::fs::write(
        &bad,
        "schema = 1\n[[change]]\nmetric = \"itl_p98\"\nmargin = 0.1\n",
    )
    .expect("written");
    let bad = bad.to_str().expect("UTF-8");
    let (a, b) = (a[0].as_str(), b[0].as_str());
    let cases: [(&[&str], &str); 8] = [
        (&["gate"], "--policy"),
        (&["gate", "--policy", &good], "--candidate"),
        (
            &["gate", "--policy", "no-such.toml", "--candidate", b],
            "no-such.toml",
        ),
        (
            &["gate", "--policy", bad, "--candidate", b],
            "line 3: change.metric = \"itl_p98\"",
        ),
        (&["gate", "--policy", &good, "--candidate", b], "--baseline"),
        (
            &[
                "gate",
                "--policy",
                &good,
                "--baseline",
                a,
                "--candidate",
                b,
                "--validation",
                bad,
            ],
            "validate --json",
        ),
        (&["gate", "init"], "--baseline"),
        (&["gate", "init", "--baseline", a, b], "at least 3"),
    ];
    for (args, needle) in cases {
        let output = run(args);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(needle), "{args:?}: {said}");
        assert!(
            !said.contains("panicked") && output.stdout.is_empty(),
            "{said}"
        );
    }
}

/// What `validate` prints is what the gate reads; a planted difference fails before any time.
#[test]
fn outputs_come_from_validate() {
    let dir = tempfile::tempdir().expect("a directory");
    let args = [
        "validate",
        "--model",
        "synthetic-tiny",
        "--prompts",
        "2",
        "--prompt-len",
        "41",
    ];
    let output = run(&[&args[..], &["--json"]].concat());
    let mut found: Value = serde_json::from_str(&stdout(&output)).expect("one JSON document");
    let path = dir.path().join("outputs.json");
    let file = path.to_str().expect("UTF-8").to_owned();
    std::fs::write(&path, found.to_string()).expect("written");
    let more = [
        "--json",
        "--validation",
        &file,
        "--allow-different",
        "server",
    ];
    let own = |made| Made {
        server: "own-engine 1".to_owned(),
        ..made
    };
    // The runs say that they are of another model.
    let result = document(&gate(&dir.path().join("other"), own, &more));
    assert_ne!(states(&result)[1], "pass", "{result}");
    let why = result["rules"][1]["why"].as_str().expect("a sentence");
    assert!(
        output.status.code() == Some(1) || why.contains("another model"),
        "{why}"
    );
    assert_eq!(found["checked"]["model"], "synthetic-tiny");
    found["checked"] = serde_json::json!({
        "model": "m", "model_sha256": "", "tool_version": "1", "tool_rev": "",
    });
    std::fs::write(&path, found.to_string()).expect("written");
    let result = document(&gate(&dir.path().join("one"), own, &more));
    // Two prompts may be too few for the statistics, as `validate` itself says by its exit code.
    let expected = match output.status.code() {
        Some(0) => "pass",
        Some(1) => "fail",
        _ => "inconclusive",
    };
    assert_eq!(states(&result)[1], expected, "{result}");
    found["faults"][0]["rejected"] = false.into();
    std::fs::write(&path, found.to_string()).expect("written");
    let result = document(&gate(&dir.path().join("two"), own, &more));
    assert_eq!(
        (states(&result)[1], &result["exit_code"]),
        ("fail", &1.into())
    );
    assert_eq!(states(&result)[2], "skipped");
}
