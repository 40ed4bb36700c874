//! `bench` against the ground-truth server: known times, failures, the cache, the run directory.

mod common;

use std::path::Path;
use std::process::Output;

use common::{run, stderr, stdout};
use pb_mock::{CacheModel, Dist, Handle, Mock, MockOptions, ResetStyle, Script, Timing};
use serde_json::Value;

/// The published worked stream from a server that counts its tokens as it goes, so that the wire
/// says that one event carried three of them.
const COUNTED: &str = r#"{"streams":[{"events":[
    {"at_ms":50,"role":"assistant"},
    {"at_ms":200,"content":"A","usage":{"prompt_tokens":9,"completion_tokens":1}},
    {"at_ms":300,"content":"BCD","tokens":3,"usage":{"prompt_tokens":9,"completion_tokens":4}},
    {"at_ms":400,"content":"E","usage":{"prompt_tokens":9,"completion_tokens":5}},
    {"at_ms":410,"content":"","finish":"stop"},
    {"at_ms":415,"usage":{"prompt_tokens":9,"completion_tokens":5}},
    {"at_ms":416,"done":true}]}]}"#;

/// The latencies of the document.
const LATENCIES: [&str; 8] = [
    "ttft_ms",
    "ttfr_ms",
    "service_ttft_ms",
    "itl_ms",
    "event_gap_ms",
    "tpot_ms",
    "e2e_ms",
    "driver_lag_ms",
];

/// A server that answers fast.
fn quick(options: MockOptions) -> Handle {
    let timing = Timing {
        ttft_ns: Dist::Fixed(5e6),
        itl_ns: Dist::Fixed(1e6),
        ..Timing::default()
    };
    Mock::start(MockOptions { timing, ..options }).expect("the server starts")
}

/// Runs `bench` with 16 tokens in and 4 out, in a directory `name` of `dir`.
fn bench(server: &str, dir: &Path, name: &str, args: &[&str]) -> Output {
    let out = dir.join(name);
    let out = out.to_str().expect("UTF-8");
    let fixed = [
        "bench",
        "--base-url",
        server,
        "--model",
        "mock",
        "--random-input-len",
        "32",
        "--random-output-len",
        "4",
        "--out",
        out,
    ];
    run(&[&fixed[..], args].concat())
}

/// The document, whose exit code fits what it says of itself. The client may have been late on a
/// busy machine; then it must say so.
fn document(output: &Output) -> Value {
    let text = stdout(output);
    let doc: Value = serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!("{error}: {text}{}", stderr(output));
    });
    let counts = &doc["counts"];
    let count = |key: &str| counts[key].as_u64().expect("a count");
    let ends = ["ok", "failed", "truncated", "incomplete", "not_offered"];
    assert_eq!(ends.map(count).iter().sum::<u64>(), count("offered"));
    let failures = doc["failures"].as_object().expect("an object");
    let failed: u64 = failures.values().filter_map(Value::as_u64).sum();
    assert_eq!(failed + count("ok"), count("offered"));
    let valid = doc["validity"]["valid"].as_bool().expect("a truth value");
    let reasons = doc["validity"]["reasons"].as_array().expect("a list");
    assert_eq!(valid, reasons.is_empty(), "{reasons:?}");
    let expected = match (count("ok"), valid) {
        (0, _) => 1,
        (_, true) => 0,
        (_, false) => 3,
    };
    assert_eq!(output.status.code(), Some(expected), "{text}");
    doc
}

/// The reasons against the run that are not the client's own lateness.
fn reasons(doc: &Value) -> Vec<&str> {
    let reasons = doc["validity"]["reasons"].as_array().expect("a list");
    let texts = reasons.iter().filter_map(Value::as_str);
    texts.filter(|text| !text.contains("driver lag")).collect()
}

/// Whether a time in ms is that of the script. A time from the start is never early; each is late
/// by no more than a busy machine may be, and a gap is short by as much after a late event.
fn close(doc: &Value, key: &str, which: &str, expected: f64) {
    const LATE: f64 = 15.0;
    let gaps = ["itl_ms", "event_gap_ms", "tpot_ms"];
    let early = if gaps.contains(&key) { LATE } else { 0.5 };
    let got = doc[key][which].as_f64().expect("a number");
    assert!(
        (expected - early..expected + LATE).contains(&got),
        "{key} {which}: {got} is not {expected}"
    );
}

/// Three chats, one after the other, with a server that follows `script`.
fn scripted(script: Script) -> Value {
    let script = Some(script);
    let server = Mock::start(MockOptions {
        script,
        ..MockOptions::default()
    })
    .expect("the server starts");
    let dir = tempfile::tempdir().expect("a directory");
    let args = [
        "--api",
        "chat",
        "--max-concurrency",
        "1",
        "--num-prompts",
        "3",
        "--json",
    ];
    let doc = document(&bench(&server.base_url(), dir.path(), "r", &args));
    assert_eq!(doc["counts"]["ok"], 3);
    for (key, n, median) in [
        ("ttft_ms", 3, 200.0),
        ("ttfr_ms", 3, 50.0),
        ("service_ttft_ms", 3, 200.0),
        ("event_gap_ms", 6, 100.0),
        ("e2e_ms", 3, 400.0),
    ] {
        assert_eq!(doc[key]["n"], n, "{key}");
        close(&doc, key, "p50", median);
    }
    assert_eq!(doc["tokens"]["output"], 15);
    assert_eq!(doc["stalls"]["count"], 0);
    doc
}

#[test]
fn the_worked_stream_comes_out_of_the_real_client() {
    let doc = scripted(Script::parse(COUNTED).expect("a script"));
    assert_eq!(doc["tpot_ms"]["n"], 3);
    close(&doc, "tpot_ms", "p50", 50.0);
    // Three tokens of a bundle have a third of its gap each.
    assert_eq!(doc["itl_ms"]["n"], 12);
    close(&doc, "itl_ms", "p50", 33.333);
    assert_eq!(doc["tokens"]["bundled_share"], 0.6);
}

#[test]
fn a_bundle_that_only_the_final_usage_shows_leaves_the_time_a_token_unknown() {
    let doc = scripted(Script::worked_stream());
    assert!(doc["tpot_ms"].is_null(), "{}", doc["tpot_ms"]);
}

/// Twelve requests of which the server refuses every third, recorded in `dir`.
fn thirds(dir: &Path) -> Value {
    let server = quick(MockOptions {
        faults: vec!["status:503@3".parse().expect("a fault")],
        ..MockOptions::default()
    });
    let args = [
        "--request-rate",
        "60",
        "--num-prompts",
        "12",
        "--goodput",
        "ttft:5000,tpot:1000",
        "e2el:9000",
        "--header",
        "x-secret=hunter2",
        "--json",
    ];
    document(&bench(&server.base_url(), dir, "r", &args))
}

#[test]
fn the_document_has_the_promised_keys_and_its_counts_add_up() {
    let dir = tempfile::tempdir().expect("a directory");
    let doc = thirds(dir.path());
    // Every third of twelve is refused.
    assert_eq!(
        (&doc["counts"]["ok"], &doc["counts"]["failed"]),
        (&8.into(), &4.into())
    );
    assert_eq!(doc["failures"], serde_json::json!({"http_status": 4}));
    let keys: Vec<&str> = doc
        .as_object()
        .expect("an object")
        .keys()
        .map(|k| &**k)
        .collect();
    let others = [
        "stalls",
        "tokens",
        "rates",
        "cache",
        "validity",
        "schedule_sha256",
        "seed",
    ];
    assert_eq!(
        keys,
        [&["counts", "failures"], &LATENCIES[..], &others].concat()
    );
    for key in LATENCIES {
        let fields: Vec<&String> = doc[key].as_object().expect(key).keys().collect();
        assert_eq!(
            fields,
            ["n", "mean", "p50", "p90", "p95", "p99", "p999", "max"],
            "{key}"
        );
    }
    assert_eq!(doc["ttft_ms"]["n"], 8);
    assert_eq!(doc["driver_lag_ms"]["n"], 12);
    assert_eq!(doc["tokens"]["input_planned"], 8 * 32);
    assert_eq!(doc["tokens"]["input_served"], 8 * 32);
    assert_eq!(doc["tokens"]["output"], 8 * 4);
    // All that were answered are good, so that both rates are one.
    assert_eq!(doc["rates"]["goodput_rps"], doc["rates"]["achieved_rps"]);
}

#[test]
fn the_directory_has_every_row_and_no_secret() {
    let dir = tempfile::tempdir().expect("a directory");
    let doc = thirds(dir.path());
    let read = |name: &str| std::fs::read_to_string(dir.path().join("r").join(name)).expect(name);
    assert_eq!(read("requests.csv").lines().count(), 1 + 12);
    assert_eq!(read("tokens.csv").lines().count(), 1 + 8 * 4);
    assert_eq!(
        serde_json::from_str::<Value>(&read("bench.json")).expect("JSON"),
        doc
    );
    let manifest: Value = serde_json::from_str(&read("manifest.json")).expect("JSON");
    assert_eq!(
        (&manifest["kind"], &manifest["state"]),
        (&"bench".into(), &"complete".into())
    );
    assert_eq!(
        manifest["schedule_sha256"]["0:target"],
        doc["schedule_sha256"]
    );
    assert!(!manifest.to_string().contains("hunter2"), "{manifest}");
}

#[test]
fn a_run_in_which_every_request_fails_is_a_failure_without_percentiles() {
    let server = quick(MockOptions {
        faults: vec!["status:500".parse().expect("a fault")],
        ..MockOptions::default()
    });
    let dir = tempfile::tempdir().expect("a directory");
    let args = ["--num-prompts", "5", "--json"];
    let output = bench(&server.base_url(), dir.path(), "r", &args);
    let doc = document(&output);
    assert_eq!(output.status.code(), Some(1));
    let told = stderr(&output);
    assert!(told.contains("request 0: HTTP 500"), "{told}");
    assert_eq!(
        (&doc["counts"]["offered"], &doc["counts"]["failed"]),
        (&5.into(), &5.into())
    );
    for key in LATENCIES {
        assert!(doc[key].is_null(), "{key}: {}", doc[key]);
    }
}

#[test]
fn a_target_that_cannot_be_reached_is_told_before_anything_is_written() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    drop(listener);
    let dir = tempfile::tempdir().expect("a directory");
    let output = bench(&url, dir.path(), "r", &["--num-prompts", "2"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains(&url), "{}", stderr(&output));
    assert!(!dir.path().join("r").exists());
}

#[test]
fn a_cold_cache_is_proved_where_an_earlier_run_left_it_warm() {
    let (number, dir) = ("6", tempfile::tempdir().expect("a directory"));
    for reset in [ResetStyle::WhenIdle, ResetStyle::Absent] {
        let cache = CacheModel {
            reset,
            ..CacheModel::default()
        };
        let server = quick(MockOptions {
            cache,
            ..MockOptions::default()
        });
        let measure = |name: &str, cache: &str| {
            let name = format!("{reset:?}-{name}");
            let args = [
                "--request-rate",
                "100",
                "--num-prompts",
                number,
                "--cache",
                cache,
                "--json",
            ];
            document(&bench(&server.base_url(), dir.path(), &name, &args))
        };
        let (first, warm) = (measure("first", "asis"), measure("warm", "asis"));
        assert_eq!(first["cache"]["measured_hit_tokens"], 0);
        // Of 32 tokens the last block is computed again, so one block of 16 is found.
        assert_eq!(warm["cache"]["measured_hit_tokens"], 6 * 16);
        assert_eq!(warm["cache"]["state"], "asis");
        assert!(warm["cache"]["planned_hit_tokens"].is_null());
        let cold = measure("cold", "cold");
        let expected = serde_json::json!({
            "state": "cold", "planned_hit_tokens": 0, "measured_hit_tokens": 0, "known_rows": 6
        });
        assert_eq!(cold["cache"], expected, "{reset:?}");
        assert_eq!(reasons(&cold), [""; 0]);
        // What was sent before does not change what is sent.
        assert_eq!(cold["schedule_sha256"], warm["schedule_sha256"]);
    }
}

#[test]
fn a_closed_loop_that_runs_out_before_its_time_is_void() {
    let server = quick(MockOptions::default());
    let dir = tempfile::tempdir().expect("a directory");
    let closed = ["--max-concurrency", "2", "--num-prompts", "6", "--json"];
    let whole = document(&bench(&server.base_url(), dir.path(), "a", &closed));
    assert_eq!(reasons(&whole), [""; 0]);
    let timed = [&closed[..], &["--duration", "30"]].concat();
    let void = document(&bench(&server.base_url(), dir.path(), "b", &timed));
    assert_eq!(void["counts"]["ok"], 6);
    let reasons = reasons(&void);
    assert!(
        reasons.len() == 1 && reasons[0].contains("--num-prompts"),
        "{reasons:?}"
    );
}

#[test]
fn people_get_a_table_with_the_schedule() {
    let server = quick(MockOptions::default());
    let dir = tempfile::tempdir().expect("a directory");
    let args = [
        "--request-rate",
        "50",
        "--num-prompts",
        "4",
        "--input-unit",
        "text",
    ];
    let output = bench(&server.base_url(), dir.path(), "r", &args);
    let text = stdout(&output);
    for part in [
        "4 offered, 4 ok",
        "TTFT",
        "ITL (even)",
        "cache: asis",
        "seed 1",
    ] {
        assert!(text.contains(part), "{part} is missing:\n{text}");
    }
    let hash = text
        .split("sha256 ")
        .nth(1)
        .and_then(|rest| rest.split(',').next());
    let hash = hash.expect("a hash");
    assert_eq!(hash.len(), 64);
    assert!(stderr(&output).contains(hash), "{}", stderr(&output));
    assert!(
        text.lines()
            .all(|line| line.chars().count() <= 100 || line.starts_with("NOT"))
    );
}

#[test]
fn bad_usage_says_what_to_write() {
    let dir = tempfile::tempdir().expect("a directory");
    for (args, expected) in [
        (&["--request-rate", "0"][..], "inf"),
        (&["--goodput", "speed:3"], "ttft:200"),
        (&["--random-range-ids", "5..9"], "1000..16000"),
        (&["--header", "novalue"], "NAME=VALUE"),
        (&["--api-key-env", "PREFILLBENCH_NO_SUCH_KEY"], "not set"),
        (&["--api", "chat", "--input-unit", "ids"], "use text"),
        (
            &["--max-concurrency", "2", "--request-rate", "3"],
            "leave one out",
        ),
        (&["--duration", "3"], "--request-rate or --max-concurrency"),
        (&["--burstiness", "0.5"], "--request-rate too"),
        (&["--endpoint", "v1/completions"], "begin with /"),
    ] {
        let output = bench("http://127.0.0.1:9", dir.path(), "r", args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(
            stderr(&output).contains(expected),
            "{args:?}: {}",
            stderr(&output)
        );
    }
}
