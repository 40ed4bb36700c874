//! `merge` and `report` on run directories: what they print, write and exit with.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pb_bench::{Conditions, Frame, Shard, sample};
use pb_contract::Nanos;
use pb_contract::manifest::RunState;
use serde_json::Value;

const MS: u64 = 1_000_000;

/// Shard `index` of two with four of eight requests, on a clock of its own. Request `id` is due
/// `id` ms after the start: first token after 200 ms, one more 100 ms later.
fn shard(dir: &Path, index: u32, seed: u64, state: Option<RunState>) -> PathBuf {
    let path = dir.join(format!("shard-{index}-{seed}"));
    let origin = Nanos((1_000 + 5_000 * u64::from(index)) * MS);
    let conditions = Conditions {
        frame: Frame {
            start: origin,
            seed,
            ..Frame::default()
        },
        shard: Some(Shard { index, of: 2 }),
        ..Conditions::default()
    };
    let events = [(Nanos(200 * MS), 1), (Nanos(300 * MS), 1)];
    let mine = (u64::from(index)..8).step_by(2);
    let records = mine.map(|id| sample::record(id, origin + Nanos(id * MS), &events));
    sample::write(&path, &conditions, records, state).unwrap();
    path
}

fn run(args: &[&str], paths: &[&Path]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_prefillbench"))
        .args(args)
        .args(paths)
        .output()
        .unwrap()
}

fn document(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("one JSON document on standard output")
}

#[test]
fn shards_become_one_run_that_can_be_reported() {
    let dir = tempfile::tempdir().unwrap();
    let done = Some(RunState::Complete);
    let (a, b) = (shard(dir.path(), 0, 1, done), shard(dir.path(), 1, 1, done));
    let out = dir.path().join("joined");
    let args = ["merge", "--json", "--out", out.to_str().unwrap()];
    let merged = run(&args, &[&b, &a]);
    assert_eq!(merged.status.code(), Some(0), "{merged:?}");
    let doc = document(&merged);
    assert_eq!(
        (&doc["counts"]["ok"], &doc["state"]),
        (&8.into(), &"complete".into())
    );
    assert_eq!(doc["ttft_ms"]["p99"], 200.0);
    // Due a millisecond apart on one clock: all eight are in flight at once.
    assert_eq!(doc["load"]["max_in_flight"], 8);
    assert_eq!(doc["shards"][1]["clock_offset_ns"], 5_000 * MS);

    let report = run(&["report", "--json"], &[&out]);
    assert_eq!((report.status.code(), document(&report)), (Some(0), doc));
    for file in [
        "bench.json",
        "bench.csv",
        "report.md",
        "report.html",
        "ttft.hlog",
        "itl.hlog",
        "event_gap.hlog",
        "tpot.hlog",
        "e2e.hlog",
    ] {
        assert!(out.join(file).exists(), "{file}");
    }
    let text = run(&["report"], &[&out]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("May these numbers be used?") && text.contains("Joined shards"));
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
}

#[test]
fn what_does_not_fit_is_refused_and_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let done = Some(RunState::Complete);
    let a = shard(dir.path(), 0, 1, done);
    let (other, dead) = (shard(dir.path(), 1, 2, done), shard(dir.path(), 1, 1, None));
    let out = dir.path().join("joined");
    let args = ["merge", "--out", out.to_str().unwrap()];
    for (second, words) in [
        (&other, "seed = 2"),
        (&dead, "--allow-partial"),
        (&a, "name each part once"),
    ] {
        let refused = run(&args, &[&a, second]);
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{error}");
        assert!(
            error.contains(words) && refused.stdout.is_empty(),
            "{error}"
        );
        assert!(!out.exists());
    }
    let partial = run(
        &[&args[..], &["--allow-partial", "--json"]].concat(),
        &[&a, &dead],
    );
    let doc = document(&partial);
    assert_eq!(
        (partial.status.code(), &doc["state"]),
        (Some(3), &"partial".into())
    );
}

/// As a killed run leaves it: no start, and of its two requests only one had ended.
fn killed(dir: &Path) -> PathBuf {
    let path = shard(dir, 1, 1, None);
    let change = |file: &str, from: &str, to: &str| {
        let text = std::fs::read_to_string(path.join(file)).unwrap();
        assert!(text.contains(from), "{file}: {from}");
        std::fs::write(path.join(file), text.replacen(from, to, 1)).unwrap();
    };
    change("conditions.json", "6000000000", "0");
    let plan = r#"{"schedule": {"requests_sent": 5, "facts": {"dataset": "random",
        "arrival": "poisson", "requests": 8, "sessions": 0, "input_tokens": 96,
        "output_tokens": 40}}}"#;
    change(
        "manifest.json",
        "\"workload\": null",
        &format!("\"workload\": {plan}"),
    );
    let tokens = std::fs::read_to_string(path.join("tokens.csv")).unwrap();
    std::fs::write(
        path.join("tokens.csv"),
        tokens + "target,0,9,0,5,1\ntarget,0",
    )
    .unwrap();
    path
}

#[test]
fn a_killed_shard_is_joined_when_that_is_allowed_and_told_what_it_lacks() {
    let dir = tempfile::tempdir().unwrap();
    let a = shard(dir.path(), 0, 1, Some(RunState::Complete));
    let dead = killed(dir.path());
    let out = dir.path().join("joined");
    let args = ["merge", "--out", out.to_str().unwrap(), "--allow-partial"];
    let merged = run(&args, &[&a, &dead]);
    let text = String::from_utf8(merged.stdout).unwrap();
    assert_eq!(merged.status.code(), Some(3), "{text}");
    for words in [
        "requests: 8 offered, 8 ok",
        "- shard 1/2: the run is running: 4 of 5 planned requests have rows",
        "note: shard 1/2: its start is not known",
        "shard 1/2: 1 content events left out",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(!text.contains("contradiction"), "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    let report = run(&["report", "--json"], &[&out]);
    let doc = document(&report);
    assert_eq!(
        (report.status.code(), &doc["state"]),
        (Some(3), &"partial".into())
    );
}

#[test]
fn a_shard_without_conditions_says_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let done = Some(RunState::Complete);
    let (a, b) = (shard(dir.path(), 0, 1, done), shard(dir.path(), 1, 1, done));
    std::fs::remove_file(b.join("conditions.json")).unwrap();
    let out = dir.path().join("joined");
    for more in [&[][..], &["--allow-partial"]] {
        let args = ["merge", "--out", out.to_str().unwrap()];
        let refused = run(&[&args[..], more].concat(), &[&a, &b]);
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{error}");
        let path = b.join("conditions.json").display().to_string();
        assert!(
            error.contains(&path) && error.contains("--allow-partial"),
            "{error}"
        );
        assert!(!out.exists());
    }
}

/// Two shards that ran the same request: nothing is written.
#[test]
fn shards_that_overlap_are_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let done = Some(RunState::Complete);
    let (a, b) = (shard(dir.path(), 0, 1, done), shard(dir.path(), 1, 1, done));
    for file in ["requests.csv", "tokens.csv"] {
        std::fs::copy(a.join(file), b.join(file)).unwrap();
    }
    let out = dir.path().join("joined");
    let refused = run(&["merge", "--out", out.to_str().unwrap()], &[&a, &b]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(error.contains("the shards overlap"), "{error}");
    assert_eq!((refused.status.code(), out.exists()), (Some(2), false));
}

#[test]
fn a_directory_without_a_run_is_bad_usage() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("joined");
    for args in [
        vec!["report"],
        vec!["merge", "--out", out.to_str().unwrap()],
    ] {
        let output = run(&args, &[dir.path()]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("manifest.json"), "{error}");
    }
}
