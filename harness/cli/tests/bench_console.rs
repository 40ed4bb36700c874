//! What a reader gets when an output is closed, full or leaves early, when there is no result, and
//! when names and messages are hostile.

#![cfg(unix)]

mod bench_common;
mod common;

use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use bench_common::{acts, arguments, bench, quick, read};
use common::{prefillbench, run, stderr, stdout};
use pb_mock::MockOptions;
use serde_json::Value;

const FOUR: [&str; 4] = ["--num-prompts", "4", "--request-rate", "100"];

/// Runs `bench` through a shell that redirects its outputs.
fn redirected(server: &str, dir: &Path, name: &str, args: &[&str], how: &str) -> Output {
    let script = format!("exec \"$0\" \"$@\" {how}");
    let mut command = Command::new("sh");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_prefillbench")]);
    command.args(arguments(server, dir, name, args));
    command.output().expect("the shell runs")
}

/// The stored document of a run that went to its end.
fn stored(dir: &Path, name: &str) -> Value {
    let manifest: Value = serde_json::from_str(&read(dir, name, "manifest.json")).expect("JSON");
    assert_eq!(manifest["state"], "complete");
    serde_json::from_str(&read(dir, name, "bench.json")).expect("JSON")
}

#[test]
fn a_closed_or_full_standard_error_changes_nothing() {
    let server = quick(MockOptions::default());
    let dir = tempfile::tempdir().expect("a directory");
    let args = [&FOUR[..], &["--warmup", "2", "--cache", "cold", "--json"]].concat();
    for (name, how) in [("closed", "2>&-"), ("full", "2>/dev/full")] {
        let output = redirected(&server.base_url(), dir.path(), name, &args, how);
        // 3 is a client that was late on a busy machine; a panic is 101.
        assert!(
            matches!(output.status.code(), Some(0 | 3)),
            "{how}: {}",
            output.status
        );
        let doc: Value = serde_json::from_slice(&output.stdout).expect("a document");
        assert_eq!(doc["counts"]["ok"], 4);
        assert_eq!(doc, stored(dir.path(), name));
        // An error that nobody can be told is one all the same.
        let bad = redirected("http://127.0.0.1:9", dir.path(), "bad", &[], how);
        assert_eq!(bad.status.code(), Some(2), "{how}");
        let usage = redirected("x", dir.path(), "bad", &["--seed", "-1"], how);
        assert_eq!(usage.status.code(), Some(2), "{how}");
    }
    let full = "exec \"$0\" \"$@\" 2>/dev/full";
    let url = server.base_url();
    let out = dir.path().join("leak");
    let mut leak = Command::new("sh");
    leak.args(["-c", full, env!("CARGO_BIN_EXE_prefillbench"), "leak"]);
    leak.args([
        "--base-url",
        &url,
        "--model",
        "mock",
        "--trials",
        "3",
        "--out",
    ]);
    let output = leak.arg(&out).output().expect("the shell runs");
    assert!(
        matches!(output.status.code(), Some(0 | 1 | 3)),
        "{}",
        output.status
    );
}

#[test]
fn a_full_standard_output_is_an_error_and_the_run_is_kept() {
    let server = quick(MockOptions::default());
    let dir = tempfile::tempdir().expect("a directory");
    let files = dir.path().join("files");
    let kept = [
        "--save-result",
        "--result-dir",
        files.to_str().expect("UTF-8"),
    ];
    let args = [&FOUR[..], &kept].concat();
    let output = redirected(&server.base_url(), dir.path(), "r", &args, ">/dev/full");
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("standard output"),
        "{}",
        stderr(&output)
    );
    assert_eq!(stored(dir.path(), "r")["counts"]["ok"], 4);
    assert_eq!(std::fs::read_dir(&files).expect("a directory").count(), 1);
}

#[test]
fn a_reader_that_leaves_early_ends_nothing() {
    let server = quick(MockOptions::default());
    let dir = tempfile::tempdir().expect("a directory");
    let all = arguments(&server.base_url(), dir.path(), "r", &FOUR);
    let child = prefillbench(&[])
        .args(all)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.expect("the binary runs");
    // Before there is anything to read.
    drop(child.stdout.take());
    let mut said = String::new();
    let errors = child
        .stderr
        .take()
        .expect("a pipe")
        .read_to_string(&mut said);
    errors.expect("UTF-8");
    let status = child.wait().expect("it ends");
    assert!(matches!(status.code(), Some(0 | 3)), "{status}: {said}");
    assert!(
        !said.contains("panicked") && !said.contains("error"),
        "{said}"
    );
    assert_eq!(stored(dir.path(), "r")["counts"]["ok"], 4);
}

/// The only document on standard output, which says that there is no result.
fn failure(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{}", stderr(output));
    let doc: Value = serde_json::from_str(&stdout(output)).expect("one JSON document");
    assert_eq!(doc["error"]["exit_code"], 2);
    let message = doc["error"]["message"].as_str().expect("a text").to_owned();
    assert!(
        stderr(output).contains(&message),
        "{message}: {}",
        stderr(output)
    );
    message
}

#[test]
fn whoever_asked_for_json_gets_a_document_of_the_failure() {
    let dir = tempfile::tempdir().expect("a directory");
    let dead = "http://127.0.0.1:9";
    for (args, part) in [
        (&["--json"][..], dead),
        (&["--format=json"], dead),
        (&["--json", "--no-such-flag"], "--no-such-flag"),
        (
            &["--format", "json", "--request-rate", "-1"],
            "--request-rate",
        ),
        (
            &["--json", "--suite", "no-such-file.toml"],
            "no-such-file.toml",
        ),
    ] {
        let message = failure(&bench(dead, dir.path(), "r", args));
        assert!(message.contains(part), "{args:?}: {message}");
    }
    // A suite may ask for it too.
    let suite = dir.path().join("s.toml");
    let text = format!(
        "schema = 2\nname = \"n\"\nquestion = \"q\"\nreading = \"r\"\n[bench]\n\
         base_url = \"{dead}\"\nformat = \"json\"\nno_calibration = true\n"
    );
    std::fs::write(&suite, text).expect("written");
    let by_suite = run(&["bench", "--suite", suite.to_str().expect("UTF-8")]);
    assert!(failure(&by_suite).contains(dead));
    let leak = run(&["leak", "--base-url", dead, "--model", "m", "--json"]);
    assert!(failure(&leak).contains(dead));
    // Whoever did not ask gets nothing.
    assert!(stdout(&bench(dead, dir.path(), "r", &[])).is_empty());
}

#[test]
fn nothing_that_others_wrote_acts_on_the_terminal() {
    let dir = tempfile::tempdir().expect("a directory");
    let quiet = |output: &Output, part: &str| {
        let all = stdout(output) + &stderr(output);
        assert!(!acts(&all), "{all:?}");
        assert!(all.contains(part), "{part}: {all}");
    };
    // A server with such a name for its model.
    let server = quick(MockOptions {
        model: "m\u{1b}[31mred\u{9b}2J".into(),
        ..MockOptions::default()
    });
    let url = server.base_url();
    quiet(&bench(&url, dir.path(), "table", &FOUR), "4 ok");
    let json = bench(&url, dir.path(), "json", &[&FOUR[..], &["--json"]].concat());
    quiet(&json, "\"counts\"");
    let doc: Value = serde_json::from_str(&stdout(&json)).expect("JSON");
    assert_eq!(doc["identity"]["model"], "m\u{1b}[31mred\u{9b}2J");
    // A suite and its arms.
    let suite = dir.path().join("s.toml");
    let text = format!(
        "schema = 2\nname = \"s\"\nquestion = \"q\\u001b[1A\"\nreading = \"r\"\n\
         [bench]\nbase_url = \"{url}\"\nlabel = \"l\\u202e\"\n[arms.a]\n[arms.b]\n"
    );
    let path = suite.to_str().expect("UTF-8");
    let of = |text: &str, args: &[&str], part: &str| {
        std::fs::write(&suite, text).expect("written");
        let args = [&["bench", "--suite", path], args].concat();
        quiet(&run(&args), part);
    };
    of(&text, &[], "name one of");
    let named = text.replace("\"s\"", "\"s\\u001b[2J\"");
    of(&named, &[], "s\\u{1b}[2J");
    let armed = text.replace("[arms.a]", "[arms.\"a\\u001b]0;title\\u0007\"]");
    of(&armed, &[], "is no name here");
    of(
        &text.replace("label", "metrics_url"),
        &["--arm", "b", "--dry-run"],
        "arm b",
    );
    // A line of a trace.
    let trace = dir.path().join("t.jsonl");
    std::fs::write(&trace, "\u{1b}[2J nonsense\n").expect("written");
    let trace = [
        "--dataset-name=trace",
        "--dataset-path",
        trace.to_str().expect("UTF-8"),
    ];
    quiet(&bench(&url, dir.path(), "t", &trace), "of no known format");
}

/// A row of a trace with a time that may be seconds or milliseconds.
const UNCLEAR: &str = r#"{"timestamp": 0.5, "input_length": 8, "output_length": 2, "hash_ids": [1]}
{"timestamp": 20.5, "input_length": 8, "output_length": 2, "hash_ids": [1]}
"#;

/// Name and text of a file, the data set that it is taken for, what is said of it.
const FILES: [(&str, &str, &str, &[&str]); 9] = [
    ("empty", "", "trace", &["empty: the file is empty"]),
    ("blank", "\n\n", "custom", &["has no rows"]),
    ("none", "[]", "sharegpt", &["has no rows"]),
    (
        "unclear",
        UNCLEAR,
        "trace",
        &[
            "unclear: ",
            "ambiguous",
            "set its unit to s or ms (--trace-unit)",
        ],
    ),
    (
        "other",
        "hello\n",
        "trace",
        &["other: ", "set its format to one of", "(--trace-format)"],
    ),
    (
        "cut",
        "{\"prompt\": \"a\"}\n{\"prompt\": \"b\n",
        "custom",
        &["cut:2: not a JSON object"],
    ),
    (
        "list",
        "[1, 2]\n",
        "custom",
        &["list:1: not a JSON object: must be a table of keys, not a list"],
    ),
    (
        "typed",
        "{\"prompt\": \"a\", \"output_tokens\": \"many\"}\n",
        "custom",
        &["typed:1: output_tokens = \"many\": must be a whole number"],
    ),
    (
        "text",
        "{\"prompt\": \"a\"}\n",
        "custom",
        &["--input-unit ids: ", "--input-unit text"],
    ),
];

/// The file of the run, what is wrong in it, and what to write, in the words of this verb.
#[test]
fn a_wrong_file_is_told_with_its_place_and_the_flag_of_this_verb() {
    let dir = tempfile::tempdir().expect("a directory");
    for (name, text, dataset, parts) in FILES {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("written");
        let path = path.to_str().expect("UTF-8");
        let unit = match (dataset, name) {
            ("trace", _) | (_, "text") => &[][..],
            _ => &["--input-unit", "text"],
        };
        let set = [
            "--dataset-name",
            dataset,
            "--dataset-path",
            path,
            "--duration",
            "5",
        ];
        let rate = ["--request-rate", "50", "--dry-run"];
        let args = [&set[..], &rate, unit].concat();
        let output = bench("http://127.0.0.1:9", dir.path(), "r", &args);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{name}: {said}");
        for part in parts {
            assert!(said.contains(part), "{name}: {part} is missing in {said}");
        }
        for words in ["at line", "invalid type", "expected", "--unit", "--format "] {
            assert!(!said.contains(words), "{name}: {words} in {said}");
        }
    }
    let missing = [
        "--dataset-name=trace",
        "--dataset-path=no-such-file",
        "--dry-run",
    ];
    let said = stderr(&bench("http://127.0.0.1:9", dir.path(), "r", &missing));
    assert!(
        said.contains("no-such-file: cannot be read") && !said.contains(":0"),
        "{said}"
    );
}

#[test]
fn a_workload_that_no_machine_holds_is_refused_before_it_is_made() {
    let dir = tempfile::tempdir().expect("a directory");
    for (option, part) in [
        (
            "params.background_requests=100000000000",
            "background_requests",
        ),
        (
            "params.background_prompt_len=100000000000",
            "background_prompt_len",
        ),
        ("params.streams=100000000000", "streams"),
        ("params.long_requests_max=100000000000", "long_requests_max"),
        // Each within its bound, and together too much.
        ("params.background_prompt_len=100000000", "MiB"),
    ] {
        let args = [
            "--dataset-name=interference",
            "--dry-run",
            "--dataset-option",
            option,
        ];
        let output = bench("http://127.0.0.1:9", dir.path(), "r", &args);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{option}: {said}");
        assert!(said.contains(part), "{option}: {said}");
    }
}
