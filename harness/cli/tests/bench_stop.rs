//! Stopping a run by hand, and a calibrated run.

#![cfg(unix)]

mod bench_common;
mod common;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bench_common::{arguments, quick, read, sums};
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

/// Waits until so many requests are in the run directory.
fn wait_for(dir: &Path, rows: usize) {
    let path = dir.join("r/requests.csv");
    for _ in 0..600 {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        if text.matches('\n').count() > rows {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{rows} requests did not end within half a minute");
}

#[test]
fn one_interrupt_ends_a_run_and_keeps_what_was_measured() {
    let dir = tempfile::tempdir().expect("a directory");
    let server = quick(MockOptions::default());
    let args = ["--request-rate", "40", "--num-prompts", "4000", "--json"];
    let child = start(&server.base_url(), dir.path(), &args);
    wait_for(dir.path(), 20);
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
    let rows = read(dir.path(), "r", "requests.csv").lines().count() - 1;
    assert_eq!(Some(rows as u64), doc["counts"]["offered"].as_u64());
    let stored: Value = serde_json::from_str(&read(dir.path(), "r", "bench.json")).unwrap();
    assert_eq!(stored, doc);
}

#[test]
fn two_interrupts_end_it_at_once() {
    let dir = tempfile::tempdir().expect("a directory");
    // An answer takes a minute.
    let server = Mock::start(MockOptions {
        timing: Timing {
            ttft_ns: Dist::Fixed(60e9),
            ..Timing::default()
        },
        ..MockOptions::default()
    })
    .expect("the server starts");
    let args = [
        "--max-concurrency",
        "2",
        "--num-prompts",
        "4",
        "--warmup",
        "2",
    ];
    let mut child = start(&server.base_url(), dir.path(), &args);
    let manifest = dir.path().join("r/manifest.json");
    for _ in 0..200 {
        if manifest.exists() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    interrupt(&child);
    std::thread::sleep(Duration::from_millis(20));
    interrupt(&child);
    let mut waited = 0;
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        waited += 1;
        assert!(waited < 400, "it did not end within twenty seconds");
        std::thread::sleep(Duration::from_millis(50));
    };
    // The first one may have ended it already.
    assert!(matches!(status.code(), Some(130 | 3)), "{status}");
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
    assert!(calibration["tokens"].as_u64() > Some(0), "{calibration}");
    let error = calibration["ttft_error_ms"]["p50"]
        .as_f64()
        .expect("a number");
    assert!((0.0..50.0).contains(&error), "{error}");
    // A client that was late then speaks against the run.
    let lag = calibration["driver_lag_ms"]["p99"].as_f64().unwrap_or(0.0);
    let told = doc["validity"]["reasons"]
        .to_string()
        .contains("calibration");
    assert!(lag <= 1.0 || told, "{lag}: {}", doc["validity"]);
}
