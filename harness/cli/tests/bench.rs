//! `bench` against the ground-truth server: known times, failures, the cache, the run directory.

mod bench_common;
mod common;

use std::path::Path;

use bench_common::{LATENCIES, bench, document, quick, read, reasons};
use common::{stderr, stdout};
use pb_mock::{Mock, MockOptions, Script};
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
fn a_bundle_that_only_the_final_usage_shows_counts_in_the_time_a_token() {
    let doc = scripted(Script::worked_stream());
    // 200 ms from the first to the last of five tokens.
    assert_eq!(doc["tpot_ms"]["n"], 3);
    close(&doc, "tpot_ms", "p50", 50.0);
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
    for (key, parts) in [
        (
            "counts",
            "offered ok failed truncated incomplete not_offered",
        ),
        ("stalls", "count total_ms share"),
        (
            "tokens",
            "input_planned input_served output output_estimated bundled_share",
        ),
        ("rates", "offered_rps achieved_rps output_tps goodput_rps"),
        (
            "cache",
            "state planned_hit_tokens measured_hit_tokens known_rows",
        ),
        ("validity", "valid reasons"),
    ] {
        let object = doc[key].as_object().expect(key);
        for part in parts.split(' ') {
            assert!(object.contains_key(part), "{key}.{part}");
        }
    }
    assert_eq!(doc["seed"], 1);
    assert_eq!(doc["schedule_sha256"].as_str().map(str::len), Some(64));
    for key in LATENCIES {
        let spread = doc[key].as_object().expect(key);
        for field in ["n", "mean", "p50", "p90", "p95", "p99", "p999", "max"] {
            assert!(spread.contains_key(field), "{key}.{field}");
        }
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
    let read = |name: &str| read(dir.path(), "r", name);
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
        (&["--arrival", "poisson"], "--arrival"),
        (&["--arrival", "closed"], "max_concurrency"),
        (&["--duration", "3"], "--request-rate or --max-concurrency"),
        (&["--port", "1"], "leave --host and --port out"),
        (&["--api", "chat", "--backend", "openai"], "leave one out"),
        (&["--gsp-num-groups", "2"], "--dataset-name shared-prefix"),
        (&["--dataset-name", "sharegpt"], "--dataset-path"),
        (&["--ramp-up-strategy", "linear"], "go together"),
        (&["--percentile-metrics", "speed"], "--percentile-metrics"),
        (&["--metric-percentiles", "101"], "--metric-percentiles"),
        (&["--shard", "2/2"], "0/2"),
        (&["--extra-body", "[1]"], "JSON object"),
        (&["--slo", "ttft:5@2"], "share"),
        (&["--server", "vLLM"], "trt-llm"),
        (&["--api-key-file", "/nonexistent/key"], "--api-key-file"),
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
