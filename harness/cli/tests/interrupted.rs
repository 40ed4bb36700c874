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

/// The children of a process, by their numbers.
fn children(parent: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("a process list");
    let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    let all = entries.filter_map(|entry| number(entry.ok()?));
    all.filter(|&id| stat(id).is_some_and(|(_, of)| of == parent))
        .collect()
}

/// State and parent of a process, if there is one.
fn stat(id: u32) -> Option<(String, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name before it may hold anything.
    let mut rest = text.rsplit_once(") ")?.1.split(' ');
    Some((rest.next()?.to_owned(), rest.next()?.parse().ok()?))
}

/// Whether a process still runs; one that only waits to be reaped does not.
fn runs(id: u32) -> bool {
    stat(id).is_some_and(|(state, _)| state != "Z")
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
        assert!(waited < 3000, "no five requests ended within five minutes");
        std::thread::sleep(Duration::from_millis(100));
    }
    let engines = children(child.id());
    assert!(engines.iter().any(|&id| runs(id)), "{engines:?}");
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
    let mut waited = 0;
    while engines.iter().any(|&id| runs(id)) && waited < 600 {
        waited += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
    let left = engines.iter().any(|&id| runs(id));
    assert!(!left, "an engine outlived its harness");
}
