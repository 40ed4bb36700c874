//! The suite file, the dry run, the forms of the result, and what is kept secret.

mod bench_common;
mod common;

use std::path::Path;

use bench_common::{arguments, bench, document, holds, measured, quick, read};
use common::{prefillbench, run, stderr, stdout};
use pb_mock::MockOptions;
use serde_json::Value;

/// A suite of two arms in `dir`, against `server`.
fn suite(dir: &Path, server: &str) -> String {
    let text = format!(
        "schema = 2\nname = \"two\"\nquestion = \"Which is faster?\"\nreading = \"ttft_ms.p50\"\n\
         [bench]\nbase_url = \"{server}\"\nrequest_rate = 50\nnum_prompts = 4\n\
         random_input_len = 32\nrandom_output_len = 4\nno_calibration = true\nseed = 3\n\
         [arms.a]\nstart = [\"serve\", \"--x\"]\nbase_url = \"{server}\"\n\
         env = {{ KEY = \"hunter2\" }}\nbench = {{ num_prompts = 6 }}\n\
         [arms.b]\nbench = {{ api = \"chat\" }}\n"
    );
    let path = dir.join("s.toml");
    std::fs::write(&path, text).expect("written");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn a_suite_file_is_the_same_as_flags() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = quick(MockOptions::default());
    let file = suite(dir.path(), &server.base_url());
    let out = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
    let by_file = [
        "bench",
        "--suite",
        &file,
        "--arm",
        "a",
        "--json",
        "--out",
        &out("f"),
    ];
    let by_file = document(&run(&by_file));
    let flags = ["--request-rate=50", "--num-prompts=6", "--seed=3"];
    let by_flags = measured(&server.base_url(), dir.path(), "g", &flags);
    assert_eq!(by_file["counts"]["ok"], 6);
    assert_eq!(by_file["schedule_sha256"], by_flags["schedule_sha256"]);
    // The command line goes over the arm.
    let over = [
        "bench",
        "--suite",
        &file,
        "--arm",
        "a",
        "--num-prompts",
        "2",
        "--json",
    ];
    let over = document(&run(&[&over[..], &["--out", &out("h")]].concat()));
    assert_eq!(over["counts"]["ok"], 2);
    let manifest: Value = serde_json::from_str(&read(dir.path(), "f", "manifest.json")).unwrap();
    let told = &manifest["workload"]["suite"];
    assert_eq!((&told["name"], &told["arm"]), (&"two".into(), &"a".into()));
    assert_eq!(told["question"], "Which is faster?");
    assert_eq!(told["command"], serde_json::json!(["serve", "--x"]));
    assert_eq!(
        manifest["workload"]["settings"]["options"]["num_prompts"],
        "6"
    );
    assert!(!manifest.to_string().contains("hunter2"));
}

#[test]
fn a_suite_that_is_wrong_says_where() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = suite(dir.path(), "http://127.0.0.1:9");
    let several = run(&["bench", "--suite", &file]);
    assert_eq!(several.status.code(), Some(2));
    assert!(
        stderr(&several).contains("one of a, b"),
        "{}",
        stderr(&several)
    );
    let text = std::fs::read_to_string(&file).expect("read");
    std::fs::write(
        &file,
        text.replace("request_rate = 50", "request_rate = -1"),
    )
    .unwrap();
    let wrong = run(&["bench", "--suite", &file, "--arm", "a"]);
    assert_eq!(wrong.status.code(), Some(2));
    for part in ["s.toml", "line 7", "request_rate", "-1", "above 0"] {
        assert!(stderr(&wrong).contains(part), "{part}: {}", stderr(&wrong));
    }
}

#[test]
fn a_dry_run_sends_nothing_and_prints_settings_facts_and_hash() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = quick(MockOptions::default());
    let file = suite(dir.path(), &server.base_url());
    let output = run(&["bench", "--suite", &file, "--arm", "a", "--dry-run"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    for part in [
        "suite: two, arm a",
        "num_prompts = \"6\"",
        "6 requests of random",
        "sha256",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(server.stop().requests.is_empty());
}

#[test]
fn a_key_gets_nowhere() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = quick(MockOptions::default());
    let key_file = dir.path().join("key");
    std::fs::write(&key_file, "s3cret-in-a-file\n").expect("written");
    let key_path = key_file.to_str().expect("UTF-8");
    let runs = dir.path().join("runs");
    std::fs::create_dir(&runs).expect("a directory");
    let base = [
        "--num-prompts=3",
        "--request-rate=50",
        "--cache=cold",
        "--warmup=2",
    ];
    let header = [
        "--header",
        "x-key=s3cret-header",
        "--header=y-key=s3cret-header",
    ];
    let header = [&header[..], &["--save-result", "--result-dir"]].concat();
    let result = runs.join("files");
    let result = result.to_str().expect("UTF-8");
    let by_file = [&["--api-key-file", key_path][..], &base, &header, &[result]].concat();
    let by_env = [&["--api-key-env", "PREFILLBENCH_TEST_KEY"][..], &base].concat();
    for (name, args) in [("f", by_file), ("e", by_env)] {
        let output = prefillbench(&[])
            .args(arguments(&server.base_url(), &runs, name, &args))
            .env("PREFILLBENCH_TEST_KEY", "s3cret-in-a-variable")
            .output()
            .expect("the binary runs");
        let code = output.status.code();
        assert!(code == Some(0) || code == Some(3), "{}", stderr(&output));
        let told = stdout(&output) + &stderr(&output);
        assert!(!told.contains("s3cret"), "{told}");
        assert!(!holds(&runs, "s3cret"), "run {name}");
        // The search does find what is there.
        assert!(holds(&runs, "schedule_sha256"));
    }
    assert!(holds(&runs.join("f"), "x-key=(hidden)"));
}

#[test]
fn the_result_comes_in_the_form_that_was_asked_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = quick(MockOptions::default());
    let base = [
        "--num-prompts",
        "4",
        "--request-rate",
        "50",
        "--model",
        "mock",
        "--format",
    ];
    let form = |name: &str| {
        let output = bench(
            &server.base_url(),
            dir.path(),
            name,
            &[&base[..], &[name]].concat(),
        );
        assert_ne!(output.status.code(), Some(2), "{}", stderr(&output));
        stdout(&output)
    };
    let csv = form("csv");
    assert_eq!(csv.lines().next(), Some("metric,statistic,value,unit"));
    assert!(
        csv.lines()
            .any(|line| line.starts_with("ttft_ms,p50,") || line.starts_with("ttft,p50,"))
    );
    let vllm: Value = serde_json::from_str(&form("vllm")).expect("JSON");
    assert_eq!(vllm["completed"], 4);
    assert_eq!(vllm["total_output_tokens"], 16);
    assert!(vllm["mean_ttft_ms"].as_f64() > Some(4.0), "{vllm}");
    let json: Value = serde_json::from_str(&form("json")).expect("JSON");
    assert_eq!(json["counts"]["ok"], 4);
    let table = form("table");
    assert!(
        table.lines().all(|line| line.chars().count() <= 100),
        "{table}"
    );
    for part in ["4 offered, 4 ok", "TTFT", "ITL (even)"] {
        assert!(table.contains(part), "{part}: {table}");
    }
}

#[test]
fn a_result_file_is_saved_where_it_was_asked_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = quick(MockOptions::default());
    let files = dir.path().join("files");
    let args = [
        "--num-prompts=4",
        "--max-concurrency=2",
        "--save-detailed",
        "--metadata",
        "gpu=none",
        "--result-dir",
        files.to_str().expect("UTF-8"),
        "--percentile-metrics=ttft",
        "--metric-percentiles=50,99",
    ];
    let output = bench(&server.base_url(), dir.path(), "r", &args);
    assert_ne!(output.status.code(), Some(2), "{}", stderr(&output));
    let names: Vec<String> = std::fs::read_dir(&files)
        .expect("a directory")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .into_string()
                .expect("UTF-8")
        })
        .collect();
    assert_eq!(names.len(), 1);
    assert!(
        names[0].starts_with("openai-infqps-concurrency2-mock-"),
        "{names:?}"
    );
    let text = std::fs::read_to_string(files.join(&names[0])).expect("a file");
    let saved: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(
        (&saved["gpu"], &saved["completed"]),
        (&"none".into(), &4.into())
    );
    assert!(saved["p50_ttft_ms"].is_number() && saved["p99_itl_ms"].is_null());
    assert_eq!(saved["itls"].as_array().expect("a list").len(), 4);
}

#[test]
fn the_model_is_asked_for_when_none_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = quick(MockOptions::default());
    let doc = measured(&server.base_url(), dir.path(), "r", &["--num-prompts", "2"]);
    assert_eq!(doc["identity"]["model"], "mock");
    let args = [
        "--num-prompts=2",
        "--model=org/real",
        "--served-model-name=mock",
    ];
    let doc = measured(&server.base_url(), dir.path(), "s", &args);
    assert_eq!(
        (&doc["identity"]["model"], &doc["counts"]["ok"]),
        (&"org/real".into(), &2.into())
    );
}
