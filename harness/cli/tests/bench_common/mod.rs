//! Running `bench` against the ground-truth server in this process.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use pb_mock::{CacheModel, Dist, Handle, Mock, MockOptions, Timing};
use serde_json::Value;

use crate::common::{run, stderr, stdout};

/// The latencies of the document.
pub(crate) const LATENCIES: [&str; 8] = [
    "ttft_ms",
    "ttfr_ms",
    "service_ttft_ms",
    "itl_ms",
    "event_gap_ms",
    "tpot_ms",
    "e2e_ms",
    "driver_lag_ms",
];

/// A server that answers fast: first token after 5 ms, then one each ms.
pub(crate) fn quick(options: MockOptions) -> Handle {
    let timing = Timing {
        ttft_ns: Dist::Fixed(5e6),
        itl_ns: Dist::Fixed(1e6),
        ..Timing::default()
    };
    Mock::start(MockOptions { timing, ..options }).expect("the server starts")
}

/// As [`quick`], with one wrong answer in so many requests.
pub(crate) fn faulty(fault: &str) -> Handle {
    quick(MockOptions {
        faults: vec![fault.parse().expect("a fault")],
        ..MockOptions::default()
    })
}

/// As [`quick`], with this cache.
pub(crate) fn cached(cache: CacheModel) -> Handle {
    quick(MockOptions {
        cache,
        ..MockOptions::default()
    })
}

/// The arguments of a run with 32 tokens in and 4 out, in a directory `name` of `dir`. The client
/// is not calibrated: other tests run on this machine at the same time.
pub(crate) fn arguments(server: &str, dir: &Path, name: &str, args: &[&str]) -> Vec<String> {
    let out = dir.join(name);
    let out = out.to_str().expect("UTF-8");
    let lengths = ["--random-input-len", "32", "--random-output-len", "4"];
    let random = !args.iter().any(|arg| arg.starts_with("--dataset-name"));
    let lengths = if random { &lengths[..] } else { &[] };
    let fixed = [
        "bench",
        "--base-url",
        server,
        "--no-calibration",
        "--out",
        out,
    ];
    let all = fixed.iter().chain(lengths).chain(args);
    all.map(ToString::to_string).collect()
}

/// Runs `bench` with [`arguments`].
pub(crate) fn bench(server: &str, dir: &Path, name: &str, args: &[&str]) -> Output {
    let all = arguments(server, dir, name, args);
    run(&all.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Runs `bench` with `--json` and returns its document.
pub(crate) fn measured(server: &str, dir: &Path, name: &str, args: &[&str]) -> Value {
    document(&bench(server, dir, name, &[args, &["--json"]].concat()))
}

/// The document, whose counts add up and whose exit code fits what it says of itself.
pub(crate) fn document(output: &Output) -> Value {
    let text = stdout(output);
    let doc: Value = serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!("{error}: {text}{}", stderr(output));
    });
    sums(&doc);
    let count = |key: &str| doc["counts"][key].as_u64().expect("a count");
    let valid = doc["validity"]["valid"].as_bool().expect("a truth value");
    let reasons = doc["validity"]["reasons"].as_array().expect("a list");
    assert_eq!(valid, reasons.is_empty(), "{reasons:?}");
    let gates = doc["gates"].as_array().expect("a list");
    let passed = gates.iter().all(|gate| gate["pass"] == true);
    let expected = match (count("ok"), valid, passed) {
        (0, ..) => 1,
        (_, false, _) => 3,
        (_, true, passed) => i32::from(!passed),
    };
    assert_eq!(output.status.code(), Some(expected), "{text}");
    doc
}

/// Row 35: every population is there and they sum to what was offered.
pub(crate) fn sums(doc: &Value) {
    let count = |key: &str| doc["counts"][key].as_u64().expect("a count");
    let ends = ["ok", "failed", "truncated", "incomplete", "not_offered"];
    assert_eq!(ends.map(count).iter().sum::<u64>(), count("offered"));
    let failures = doc["failures"].as_object().expect("an object");
    let failed: u64 = failures.values().filter_map(Value::as_u64).sum();
    assert_eq!(failed + count("ok"), count("offered"), "{failures:?}");
}

/// The reasons against the run that are not the lateness of a client on a busy machine.
pub(crate) fn reasons(doc: &Value) -> Vec<&str> {
    let reasons = doc["validity"]["reasons"].as_array().expect("a list");
    let late = |text: &&str| text.contains("driver lag") || text.contains("same instant");
    let texts = reasons.iter().filter_map(Value::as_str);
    texts.filter(|text| !late(text)).collect()
}

/// The rows of a table of a run directory, a map from column to value each.
pub(crate) fn rows(dir: &Path, run: &str, file: &str) -> Vec<BTreeMap<String, String>> {
    let text = read(dir, run, file);
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let all = reader.deserialize().collect::<Result<_, _>>();
    all.expect("a table")
}

/// A column of a row that is a whole number.
pub(crate) fn number(row: &BTreeMap<String, String>, column: &str) -> u64 {
    let text = &row[column];
    text.parse()
        .unwrap_or_else(|error| panic!("{column} = {text}: {error}"))
}

/// Waits until so many requests are in `requests.csv` of the run, for two minutes at most: a slow
/// machine takes its time.
pub(crate) fn wait_for_rows(dir: &Path, run: &str, wanted: usize) {
    let path = dir.join(run).join("requests.csv");
    for _ in 0..2400 {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        // The first line has the names; what follows the last line feed was cut off.
        if text.matches('\n').count() > wanted {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{wanted} requests did not end within two minutes");
}

/// Whether a text acts on a terminal.
pub(crate) fn acts(text: &str) -> bool {
    text.chars().any(|c| c.is_control() && c != '\n')
}

/// A file of a run directory.
pub(crate) fn read(dir: &Path, run: &str, file: &str) -> String {
    let path = dir.join(run).join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Whether any file below `dir` holds `needle`.
pub(crate) fn holds(dir: &Path, needle: &str) -> bool {
    let entries = std::fs::read_dir(dir).expect("a directory");
    entries.filter_map(Result::ok).any(|entry| {
        let path = entry.path();
        if path.is_dir() {
            return holds(&path, needle);
        }
        let bytes = std::fs::read(&path).expect("a readable file");
        bytes
            .windows(needle.len())
            .any(|window| window == needle.as_bytes())
    })
}
