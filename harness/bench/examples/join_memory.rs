//! How much memory joining takes: writes two shards of a synthetic run, joins them and prints the
//! largest resident size of the process.
//!
//! ```text
//! cargo run --release -p pb-bench --example join_memory -- DIR 100000 100
//! ```

use std::path::{Path, PathBuf};

use pb_bench::files::{JoinOptions, join, read};
use pb_bench::sample;
use pb_bench::{Conditions, Frame, Shard};
use pb_contract::Nanos;
use pb_contract::manifest::RunState;
use pb_record::RecordError;

const MS: u64 = 1_000_000;

/// A request of `tokens` tokens with gaps that differ from request to request.
fn record(id: u64, tokens: u32) -> sample::Sample {
    let after = |event| Nanos(50 * MS + u64::from(event) * (10 * MS + id % 1_000));
    let events: Vec<(Nanos, u32)> = (0..tokens).map(|event| (after(event), 1)).collect();
    sample::record(id, Nanos(1_000 * MS + id * MS), &events)
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
    let mine = (u64::from(index)..requests).step_by(2);
    let records = mine.map(|id| record(id, tokens));
    sample::write(&path, &conditions, records, Some(RunState::Complete))?;
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
