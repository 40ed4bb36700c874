//! `bench` against the ground-truth server: known times, failures, the cache, the run directory.

mod bench_common;
mod common;

use std::path::Path;

use bench_common::{LATENCIES, bench, document, number, quick, read, reasons, rows};
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

/// What the rows of a run say, by the definitions and not by the program: each latency in ms, of
/// every request, sorted.
struct ByHand {
    ttft: Vec<f64>,
    ttfr: Vec<f64>,
    service_ttft: Vec<f64>,
    e2e: Vec<f64>,
    tpot: Vec<f64>,
    event_gap: Vec<f64>,
    itl: Vec<f64>,
}

impl ByHand {
    fn of(dir: &Path, run: &str) -> ByHand {
        let requests = rows(dir, run, "requests.csv");
        let tokens = rows(dir, run, "tokens.csv");
        let ms = |ns: u64| ns as f64 / 1e6;
        let between = |from: &str, to: &str| {
            let span = |row| ms(number(row, to) - number(row, from));
            sorted(requests.iter().map(span).collect())
        };
        let output = |row| f64::from(number(row, "completion_tokens") as u32);
        let tpot = |row| {
            ms(number(row, "last_token_ns") - number(row, "first_token_ns")) / (output(row) - 1.0)
        };
        let (mut event_gap, mut itl) = (Vec::new(), Vec::new());
        for pair in tokens
            .windows(2)
            .filter(|pair| pair[0]["request"] == pair[1]["request"])
        {
            let gap = ms(number(&pair[1], "at_ns") - number(&pair[0], "at_ns"));
            let count = number(&pair[1], "tokens");
            event_gap.push(gap);
            itl.extend(vec![gap / count as f64; count as usize]);
        }
        ByHand {
            ttft: between("intended_ns", "first_token_ns"),
            ttfr: between("intended_ns", "first_event_ns"),
            service_ttft: between("sent_ns", "first_token_ns"),
            e2e: between("intended_ns", "last_token_ns"),
            tpot: sorted(requests.iter().map(tpot).collect()),
            event_gap: sorted(event_gap),
            itl: sorted(itl),
        }
    }

    /// Holds a latency of the document against these samples.
    fn check(&self, doc: &Value, key: &str) {
        let samples = match key {
            "ttft_ms" => &self.ttft,
            "ttfr_ms" => &self.ttfr,
            "service_ttft_ms" => &self.service_ttft,
            "e2e_ms" => &self.e2e,
            "tpot_ms" => &self.tpot,
            "event_gap_ms" => &self.event_gap,
            "itl_ms" => &self.itl,
            other => panic!("{other}"),
        };
        assert_eq!(doc[key]["n"], samples.len(), "{key}");
        // Nearest rank: the least sample that half of them do not exceed.
        let median = samples[samples.len().div_ceil(2) - 1];
        for (which, expected) in [("p50", median), ("max", samples[samples.len() - 1])] {
            let got = doc[key][which].as_f64().expect("a number");
            // Times are whole nanoseconds.
            assert!(
                (got - expected).abs() < 2e-6,
                "{key} {which}: {got} is not {expected}"
            );
        }
    }
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// Three chats, one after the other, with a server that follows `script`; their latencies are
/// those of their rows, and no shorter than the script makes them.
fn scripted(script: Script, own: &[&str]) -> Value {
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
    let by_hand = ByHand::of(dir.path(), "r");
    let usual = [
        "ttft_ms",
        "ttfr_ms",
        "service_ttft_ms",
        "event_gap_ms",
        "e2e_ms",
    ];
    for key in usual.iter().chain(own) {
        by_hand.check(&doc, key);
    }
    // No event comes before its time, and a machine that is busy makes it late. The role alone is
    // not the first token, and neither the finish nor the usage is the last.
    for (samples, least) in [
        (&by_hand.ttfr, 50.0),
        (&by_hand.ttft, 200.0),
        (&by_hand.e2e, 400.0),
    ] {
        // A hundred times less than what they differ by.
        assert!(samples[0] > least - 0.5, "{samples:?} and {least}");
    }
    assert!(by_hand.ttfr[0] < by_hand.ttft[0]);
    let tokens = rows(dir.path(), "r", "tokens.csv");
    assert_eq!(tokens.len(), 9, "three content events each");
    assert_eq!(doc["tokens"]["output"], 15);
    doc
}

#[test]
fn the_worked_stream_comes_out_of_the_real_client() {
    let script = Script::parse(COUNTED).expect("a script");
    let doc = scripted(script, &["tpot_ms", "itl_ms"]);
    assert_eq!(doc["tpot_ms"]["n"], 3);
    // Three tokens of a bundle have a third of its gap each: four latencies a stream.
    assert_eq!(doc["itl_ms"]["n"], 12);
    assert_eq!(doc["tokens"]["bundled_share"], 0.6);
}

#[test]
fn a_bundle_that_only_the_final_usage_shows_counts_in_the_time_a_token() {
    // From the first to the last of five tokens, of which the stream shows three.
    let doc = scripted(Script::worked_stream(), &["tpot_ms"]);
    assert_eq!(doc["tpot_ms"]["n"], 3);
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
        "ttft:60000,tpot:60000",
        "e2el:90000",
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
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
}

/// Arguments that must be refused, and what the message must have.
const BAD: &[(&[&str], &str)] = &[
    (&["--request-rate", "0"], "inf"),
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
    // A negative number reaches the check of its flag.
    (
        &["--request-rate", "-1"],
        "'-1' for '--request-rate <RATE>': must be a number above 0, or inf",
    ),
    (
        &["--num-prompts", "-3"],
        "must be a whole number, at least 1",
    ),
    (
        &["--seed", "-1"],
        "'-1' for '--seed <SEED>': must be a whole number from 0",
    ),
    (
        &["--port", "-1"],
        "'-1' for '--port <PORT>': -1 is not in 0..=65535",
    ),
    (&["--temperature", "-0.5"], "at least 0"),
    (
        &["--timeout-idle", "-2"],
        "'-2' for '--timeout-idle <SECONDS>'",
    ),
    (&["--goodput", "ttft:-3"], "--goodput"),
    (&["--random-prefix-len", "-1"], "at least 0"),
    // Names that become parts of others.
    (&["--model", ""], "must not be empty"),
    (&["--label", "../x"], "leave out slashes"),
    (&["--label", "a/b"], "leave out slashes"),
    (&["--result-filename", ""], "--result-filename: is empty"),
    (&["--nonce", ""], "--nonce"),
    (
        &[
            "--nonce",
            "x",
            "--dataset-name",
            "custom",
            "--dataset-path",
            "p",
        ],
        "--cache cold",
    ),
    // Sizes that no machine has.
    (
        &["--max-concurrency", "1000000000000"],
        "--max-concurrency 1000000000000: must be at",
    ),
    (&["--warmup", "100000000000"], "--warmup"),
    (
        &["--scrape-interval-ms", "99999999999999999"],
        "--scrape-interval-ms",
    ),
    (&["--metrics-url", "nowhere"], "--metrics-url"),
];

#[test]
fn bad_usage_says_what_to_write() {
    let dir = tempfile::tempdir().expect("a directory");
    for (args, expected) in BAD {
        let output = bench("http://127.0.0.1:9", dir.path(), "r", args);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{args:?}: {}",
            stderr(&output)
        );
        assert!(
            stderr(&output).contains(expected),
            "{args:?}: {}",
            stderr(&output)
        );
    }
}
