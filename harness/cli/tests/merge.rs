//! `merge` and `report` on run directories: what they print, write and exit with.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pb_bench::{CONDITIONS_FILE, Conditions, Frame, Shard};
use pb_contract::manifest::{Machine, ModelReceipt, RUN_SCHEMA_VERSION, RunState, ToolVersion};
use pb_contract::{Nanos, RequestId, RequestRow, RequestStatus, RunManifest, TokenRow};
use pb_record::RunWriter;
use serde_json::Value;

const MS: u64 = 1_000_000;

fn manifest(kind: &str) -> RunManifest {
    RunManifest {
        schema_version: RUN_SCHEMA_VERSION,
        kind: kind.into(),
        state: RunState::Running,
        created: "2030-01-01T00:00:00Z".into(),
        command: Vec::new(),
        tool: ToolVersion::default(),
        machine: Machine::default(),
        model: ModelReceipt::default(),
        seed: 1,
        schedule_sha256: Default::default(),
        arms: Vec::new(),
        order: Vec::new(),
        workload: Value::Null,
    }
}

/// Request `id`, due at `id` ms after a start at `origin`: first token after 200 ms, one more
/// 100 ms later.
fn record(id: u64, origin: Nanos) -> (RequestRow, Vec<TokenRow>) {
    let at = |ms: u64| origin + Nanos((id + ms) * MS);
    let token = |event, ms| TokenRow {
        arm: "target".into(),
        block: 0,
        request: RequestId(id),
        event,
        at_ns: at(ms),
        tokens: 1,
    };
    let row = RequestRow {
        arm: "target".into(),
        block: 0,
        request: RequestId(id),
        class: "random".into(),
        intended_ns: at(0),
        sent_ns: Some(at(0)),
        headers_ns: Some(at(1)),
        first_event_ns: Some(at(50)),
        first_token_ns: Some(at(200)),
        last_token_ns: Some(at(300)),
        closed_ns: Some(at(301)),
        status: RequestStatus::Ok,
        fail: None,
        http_status: Some(200),
        fail_message: None,
        finish_reason: Some("length".into()),
        prompt_tokens_planned: 8,
        prompt_tokens: Some(8),
        cached_tokens: None,
        max_tokens: 2,
        completion_tokens: Some(2),
        streamed_tokens: 2,
    };
    (row, vec![token(0, 200), token(1, 300)])
}

/// Shard `index` of two with four requests, on a clock of its own.
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
    let mut writer = RunWriter::create(&path, manifest("bench")).unwrap();
    writer.write_json(CONDITIONS_FILE, &conditions).unwrap();
    for id in (u64::from(index)..8).step_by(2) {
        let (row, tokens) = record(id, origin);
        writer.request(&row, &tokens).unwrap();
    }
    if let Some(state) = state {
        writer.finish(state).unwrap();
    }
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
