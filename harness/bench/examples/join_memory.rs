//! How much memory joining takes: writes two shards of a synthetic run, joins them and prints the
//! largest resident size of the process.
//!
//! ```text
//! cargo run --release -p pb-bench --example join_memory -- DIR 100000 100
//! ```

use std::path::{Path, PathBuf};

use pb_bench::files::{JoinOptions, join, read};
use pb_bench::{CONDITIONS_FILE, Conditions, Frame, Shard};
use pb_contract::manifest::{Machine, ModelReceipt, RUN_SCHEMA_VERSION, RunState, ToolVersion};
use pb_contract::{Nanos, RequestId, RequestRow, RequestStatus, RunManifest, TokenRow};
use pb_record::{RecordError, RunWriter};

const MS: u64 = 1_000_000;

fn manifest() -> RunManifest {
    RunManifest {
        schema_version: RUN_SCHEMA_VERSION,
        kind: "bench".into(),
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
        workload: serde_json::Value::Null,
    }
}

/// A request of `tokens` tokens with gaps that all differ.
fn record(id: u64, tokens: u32) -> (RequestRow, Vec<TokenRow>) {
    let intended = Nanos(1_000 * MS + id * MS);
    let at = |event: u32| intended + Nanos(50 * MS + u64::from(event) * (10 * MS + id % 1_000));
    let token = |event| TokenRow {
        arm: "target".into(),
        block: 0,
        request: RequestId(id),
        event,
        at_ns: at(event),
        tokens: 1,
    };
    let last = at(tokens.saturating_sub(1));
    let row = RequestRow {
        arm: "target".into(),
        block: 0,
        request: RequestId(id),
        class: "random".into(),
        intended_ns: intended,
        sent_ns: Some(intended + Nanos(20_000)),
        headers_ns: Some(intended + Nanos(MS)),
        first_event_ns: Some(at(0)),
        first_token_ns: Some(at(0)),
        last_token_ns: Some(last),
        closed_ns: Some(last),
        status: RequestStatus::Ok,
        fail: None,
        http_status: Some(200),
        fail_message: None,
        finish_reason: Some("length".into()),
        prompt_tokens_planned: 128,
        prompt_tokens: Some(128),
        cached_tokens: Some(0),
        max_tokens: tokens,
        completion_tokens: Some(tokens),
        streamed_tokens: tokens,
    };
    (row, (0..tokens).map(token).collect())
}

fn write(dir: &Path, index: u32, requests: u64, tokens: u32) -> Result<PathBuf, RecordError> {
    let path = dir.join(format!("shard-{index}"));
    let conditions = Conditions {
        frame: Frame {
            start: Nanos(1_000 * MS),
            ..Frame::default()
        },
        shard: Some(Shard { index, of: 2 }),
        ..Conditions::default()
    };
    let mut writer = RunWriter::create(&path, manifest())?;
    writer.write_json(CONDITIONS_FILE, &conditions)?;
    for id in (u64::from(index)..requests).step_by(2) {
        let (row, events) = record(id, tokens);
        writer.request(&row, &events)?;
    }
    writer.finish(RunState::Complete)?;
    Ok(path)
}

/// Largest resident size of this process so far, as the kernel tells it.
fn peak() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    line.unwrap_or("VmHWM: unknown").to_owned()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dir, requests, tokens] = &args[..] else {
        return Err("usage: join_memory DIR REQUESTS TOKENS".into());
    };
    let (dir, requests, tokens) = (PathBuf::from(dir), requests.parse()?, tokens.parse()?);
    let runs = [
        write(&dir, 0, requests, tokens)?,
        write(&dir, 1, requests, tokens)?,
    ];
    println!(
        "written: {requests} requests of {tokens} tokens; {}",
        peak()
    );
    let joined = dir.join("joined");
    let document = join(&runs, &joined, &JoinOptions::default())?;
    let gaps = document.event_gap_ms.map_or(0, |s| s.n);
    println!("joined: {gaps} event gaps; {}", peak());
    let again = read(&joined)?;
    println!(
        "read again, equal: {}; {}",
        again.document == document,
        peak()
    );
    Ok(())
}
