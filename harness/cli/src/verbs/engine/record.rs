//! `prefillbench engine simulate --out DIR`: a trace through the load driver and the engine, in
//! virtual time, as a run directory.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use pb_bench::WorkloadFacts;
use pb_contract::plan::Plan;
use pb_contract::{EngineConfig, Nanos, PrefixCacheKind, TokenId, VirtualClock};
use pb_core::{CostModel, SimExecutor};
use pb_workloads::trace::{PromptTokens, TraceRow, open_requests};

use super::VOCAB;
use super::recording::Recording;
use super::served::EngineServer;
use crate::args::{ReportArgs, SimulateArgs};
use crate::verbs::report;

/// Prompt tokens that are held at once at most: 1 GiB.
const MOST_TOKENS: usize = 1 << 28;

/// Time after the last arrival until what still runs is cut off: thirty years.
const DRAIN: Nanos = Nanos::from_secs(1_000_000_000);

/// Writes the run and prints its numbers.
///
/// # Errors
/// A trace that is too large, an engine that cannot go on, a directory that cannot be written.
pub(super) fn run(
    args: &SimulateArgs,
    out: &Path,
    rows: &[TraceRow],
    config: EngineConfig,
    cost: CostModel,
) -> Result<ExitCode> {
    let tokens: usize = rows.iter().map(|row| row.input_tokens).sum();
    ensure!(
        tokens <= MOST_TOKENS,
        "{}: {tokens} prompt tokens; with --out at most {MOST_TOKENS}, all of which are held in \
         memory: take fewer requests with --limit",
        args.trace.display()
    );
    let recording = Recording {
        plan: plan(rows)?,
        seed: 0,
        workload: WorkloadFacts {
            dataset: "mooncake".to_owned(),
            file: Some(args.trace.display().to_string()),
            rows: Some(rows.len() as u64),
            ..WorkloadFacts::default()
        },
        cost: cost.clone(),
        engine: serde_json::to_value(&config)?,
        cold_block: cold_block(args, &config),
        stalls: Vec::new(),
        command: command(std::env::args()),
    };
    let clock = Arc::new(VirtualClock::new());
    let executor = SimExecutor::new(cost, Arc::clone(&clock), VOCAB);
    let mut server = EngineServer::new(config, Box::new(executor), clock)?;
    let written = recording.write(out, &mut server);
    written.with_context(|| format!("--out {}", out.display()))?;
    server.check()?;
    report::run(&ReportArgs {
        what: None,
        run: Some(out.to_owned()),
        json: args.json,
        open: false,
        cells: false,
        perfetto: None,
    })
}

fn plan(rows: &[TraceRow]) -> Result<Plan> {
    let prompts = PromptTokens::new(0..VOCAB as TokenId, 0)?;
    let mut open = open_requests(rows, &prompts);
    open.sort_by_key(|request| (request.offset_ns, request.id));
    let last = open.last().map_or(Nanos::ZERO, |request| request.offset_ns);
    Ok(Plan {
        open,
        horizon_ns: last + Nanos(1),
        drain_ns: DRAIN,
        ..Plan::default()
    })
}

/// What a request finds follows from the tokens alone where whole blocks are found by their hashes
/// and none is ever evicted: without `--num-blocks`.
fn cold_block(args: &SimulateArgs, config: &EngineConfig) -> Option<u32> {
    let follows = args.num_blocks.is_none() && config.prefix_cache == PrefixCacheKind::HashChain;
    u32::try_from(config.block_size).ok().filter(|_| follows)
}

/// The command line without the directory: where a run and this program lie is no part of it.
fn command(words: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut shown = vec!["prefillbench".to_owned()];
    let mut words = words.into_iter().skip(1);
    while let Some(word) = words.next() {
        if word == "--out" {
            words.next();
        } else if !word.starts_with("--out=") {
            shown.push(word);
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_is_no_part_of_the_command() {
        let words = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
        let bare = words("prefillbench engine simulate --trace t --limit 3");
        for line in [
            "prefillbench engine simulate --trace t --out d --limit 3",
            "/opt/bin/pb engine simulate --trace t --limit 3 --out=d",
        ] {
            assert_eq!(command(words(line)), bare);
        }
    }
}
