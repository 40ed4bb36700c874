//! Stopping a run by hand, and a calibrated run.

#![cfg(unix)]

mod bench_common;
mod common;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use bench_common::{arguments, number, quick, read, rows, sums, wait_for_rows};
use common::prefillbench;
use pb_mock::{Dist, Mock, MockOptions, Timing};
use serde_json::Value;

/// A run in a process of its own.
fn start(server: &str, dir: &Path, args: &[&str]) -> Child {
    prefillbench(&[])
        .args(arguments(server, dir, "r", args))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs")
}

fn interrupt(child: &Child) {
    let sent = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(sent.expect("kill runs").success());
}

#[test]
fn one_interrupt_ends_a_run_and_keeps_what_was_measured() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = quick(MockOptions::default());
    let args = ["--request-rate", "40", "--num-prompts", "4000", "--json"];
    let child = start(&server.base_url(), dir.path(), &args);
    wait_for_rows(dir.path(), "r", 20);
    interrupt(&child);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(3), "{}", common::stderr(&output));
    let doc: Value = serde_json::from_slice(&output.stdout).expect("a document");
    sums(&doc);
    assert_eq!(doc["interrupted"], true);
    assert_eq!(doc["validity"]["valid"], false);
    assert!(
        doc["counts"]["ok"].as_u64() >= Some(20),
        "{}",
        doc["counts"]
    );
    let manifest: Value = serde_json::from_str(&read(dir.path(), "r", "manifest.json")).unwrap();
    assert_eq!(manifest["state"], "interrupted");
    // Every planned request is in a count and has a row; what was never sent is not offered.
    let rows = rows(dir.path(), "r", "requests.csv");
    assert_eq!(
        (rows.len(), &doc["counts"]["offered"]),
        (4000, &4000.into())
    );
    let unsent = rows.iter().filter(|row| row["status"] == "not_offered");
    let unsent: Vec<_> = unsent.collect();
    assert_eq!(doc["counts"]["not_offered"], unsent.len());
    assert!(unsent.len() > 3000 && unsent.iter().all(|row| row["sent_ns"].is_empty()));
    let ids: BTreeSet<&String> = rows.iter().map(|row| &row["request"]).collect();
    assert_eq!(ids.len(), 4000);
    // Their instants are those of the plan: forty a second from the first on.
    let first = rows.iter().map(|row| number(row, "intended_ns")).min();
    let last = rows.iter().map(|row| number(row, "intended_ns")).max();
    let span_s = (last.unwrap() - first.unwrap()) as f64 / 1e9;
    // 4000 exponential gaps of 25 ms: 100 s, with a standard deviation of 1.6 s.
    assert!((90.0..110.0).contains(&span_s), "{span_s}");
    let stored: Value = serde_json::from_str(&read(dir.path(), "r", "bench.json")).unwrap();
    assert_eq!(stored, doc);
}

#[test]
fn two_interrupts_end_it_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    // An answer takes ten minutes.
    let server = slow();
    let args = ["--max-concurrency", "2", "--num-prompts", "4"];
    let mut child = start(&server.base_url(), dir.path(), &args);
    let mut said = BufReader::new(child.stderr.take().expect("a pipe"));
    until(&mut said, "measuring");
    interrupt(&child);
    // The first one has been taken in: the second is another.
    until(&mut said, "Once more to end at once");
    interrupt(&child);
    let status = child.wait().expect("a child");
    // On a machine that took five seconds for that, the first one had ended it already.
    assert!(matches!(status.code(), Some(130 | 3)), "{status}");
}

/// A server whose answers take ten minutes.
fn slow() -> pb_mock::Handle {
    Mock::start(MockOptions {
        timing: Timing {
            ttft_ns: Dist::Fixed(600e9),
            ..Timing::default()
        },
        ..MockOptions::default()
    })
    .expect("the server starts")
}

/// Reads lines until one has `part`.
fn until(lines: &mut impl BufRead, part: &str) {
    let mut line = String::new();
    while !line.contains(part) {
        line.clear();
        let read = lines.read_line(&mut line).expect("a line");
        assert!(read > 0, "it ended before it said {part}");
    }
}

/// A closed loop that its number ends counts what it had not come to, too.
#[test]
fn a_closed_loop_that_is_stopped_counts_what_it_never_sent() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = quick(MockOptions::default());
    let args = [
        "--max-concurrency",
        "3",
        "--num-prompts",
        "100000",
        "--json",
    ];
    let child = start(&server.base_url(), dir.path(), &args);
    wait_for_rows(dir.path(), "r", 10);
    interrupt(&child);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(3), "{}", common::stderr(&output));
    let doc: Value = serde_json::from_slice(&output.stdout).expect("a document");
    sums(&doc);
    assert_eq!(doc["counts"]["offered"], 100_000);
    assert_eq!(rows(dir.path(), "r", "requests.csv").len(), 100_000);
}

#[test]
fn a_run_that_is_stopped_before_it_measures_says_so_in_json() {
    let dir = tempfile::tempdir().expect("a directory");
    // It accepts and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", silent.local_addr().expect("an address"));
    for verb in ["bench", "leak"] {
        let mut command = match verb {
            "bench" => {
                let mut command = prefillbench(&[]);
                command.args(arguments(&url, dir.path(), "r", &["--json"]));
                command
            }
            _ => prefillbench(&["leak", "--base-url", &url, "--model", "m", "--json"]),
        };
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = child.current_dir(dir.path()).spawn().expect("it runs");
        // Signals are caught before the server is asked.
        let connection = silent.accept().expect("a connection");
        interrupt(&child);
        let output = child.wait_with_output().expect("it ends");
        drop(connection);
        assert_eq!(output.status.code(), Some(3), "{}", common::stderr(&output));
        let doc: Value = serde_json::from_slice(&output.stdout).expect("a document");
        assert_eq!(doc["error"]["exit_code"], 3, "{doc}");
        let message = doc["error"]["message"].as_str().expect("a text");
        assert!(message.contains("interrupted before"), "{message}");
    }
    // Nothing was written.
    assert_eq!(
        std::fs::read_dir(dir.path()).expect("a directory").count(),
        0
    );
}

#[test]
fn row_47_a_run_says_what_its_client_is_worth() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = quick(MockOptions::default());
    let mut args = arguments(
        &server.base_url(),
        dir.path(),
        "r",
        &["--request-rate", "20", "--num-prompts", "10", "--json"],
    );
    args.retain(|arg| arg != "--no-calibration");
    let output = prefillbench(&[])
        .args(args)
        .output()
        .expect("the binary runs");
    let doc = bench_common::document(&output);
    let calibration = &doc["calibration"];
    if let Some(problem) = calibration["problem"].as_str() {
        // A machine so busy that there is none: the document must say so.
        assert!(
            doc["warnings"].to_string().contains("was not calibrated"),
            "{problem}"
        );
        return;
    }
    assert!(calibration["tokens"].as_u64() > Some(0), "{calibration}");
    let error = calibration["ttft_error_ms"]["p50"]
        .as_f64()
        .expect("a number");
    assert!(error > 0.0, "nothing is read before it is written: {error}");
    // A client that was late then speaks against the run.
    let lag = calibration["driver_lag_ms"]["p99"].as_f64().unwrap_or(0.0);
    let told = doc["validity"]["reasons"]
        .to_string()
        .contains("calibration");
    assert!(lag <= 1.0 || told, "{lag}: {}", doc["validity"]);
}
