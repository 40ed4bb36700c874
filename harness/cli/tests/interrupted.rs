//! A harness that is killed without warning loses nothing that had ended, and its engines go.

mod common;

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use common::{prefillbench, run, stdout};

/// Requests that have ended, by the run directory's own rows.
fn ended(dir: &Path) -> usize {
    let text = std::fs::read_to_string(dir.join("requests.csv")).unwrap_or_default();
    text.lines().count().saturating_sub(1)
}

/// Processes whose command line mentions `needle`.
fn processes(needle: &str) -> usize {
    let entries = std::fs::read_dir("/proc").expect("a process list");
    let line = |entry: std::fs::DirEntry| std::fs::read(entry.path().join("cmdline")).ok();
    entries
        .filter_map(|e| line(e.ok()?))
        .filter(|l| {
            String::from_utf8_lossy(l)
                .replace('\0', " ")
                .contains(needle)
        })
        .count()
}

#[test]
fn kill_minus_nine_in_mid_run() {
    let scratch = tempfile::tempdir().expect("a directory");
    let dir = scratch.path().join("run");
    let path = dir.to_str().expect("UTF-8");
    let args = [
        "quickstart",
        "--model",
        "synthetic-tiny",
        "--skip-numerics",
        "--out",
        path,
    ];
    let mut child = prefillbench(&args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary runs");
    let mut waited = 0;
    while ended(&dir) < 5 {
        waited += 1;
        assert!(waited < 3_000, "no request ended within five minutes");
        std::thread::sleep(Duration::from_millis(100));
    }
    child.kill().expect("killed");
    child.wait().expect("reaped");
    let before = ended(&dir);
    let output = run(&["report", path, "--json"]);
    assert_eq!(output.status.code(), Some(3), "void, not failed");
    let verdict: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(verdict["finished"], false, "marked incomplete");
    assert!(dir.join("report.html").exists());
    let counted: u64 = verdict["performance"]["arms"]
        .as_array()
        .expect("arms")
        .iter()
        .map(|arm| arm["all"]["counts"]["ok"].as_u64().expect("a count"))
        .sum();
    assert!(
        counted >= 5 && counted as usize >= before - 1,
        "{counted} of {before}"
    );
    // The engines' standard input closed with the harness: they stop by themselves.
    let marker = "serve --model synthetic-tiny --threads";
    let mut waited = 0;
    while processes(marker) > 0 && waited < 600 {
        waited += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(processes(marker), 0, "an engine outlived its harness");
}
