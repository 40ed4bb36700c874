//! `prefillbench router simulate`: what each policy computes of a shared-prefix trace.
//!
//! In virtual time, over the real block memory and prefix cache of each worker: the same arguments
//! give the same bytes on any machine.

use std::process::ExitCode;

use anyhow::{Context, Result};
use pb_contract::{Nanos, Stream, TokenId};
use pb_router::sim::{SimOptions, SimReport, SimRequest, SimTimes, simulate};
use pb_router::{Policy, Pool, RouterConfig};
use pb_stats::nearest_rank;
use pb_workloads::{PROSE, SharedPrefixParams, TextSource, shared_prefix};
use serde_json::{Value, json};

use crate::args::RouterSimulateArgs;
use crate::output;

/// Runs the trace under each policy.
pub(crate) fn run(args: &RouterSimulateArgs) -> Result<ExitCode> {
    let requests = trace(args)?;
    let options = SimOptions {
        pools: [
            vec![Pool::Prefill; args.prefill],
            vec![Pool::Decode; args.decode],
            vec![Pool::Mixed; args.mixed],
        ]
        .concat(),
        flexible: false,
        block_size: args.block_size,
        blocks: args.blocks,
        times: SimTimes::default(),
        events_every_ns: (args.events_ms > 0).then(|| Nanos::from_millis(args.events_ms)),
        check_laws: false,
    };
    anyhow::ensure!(
        options.pools.iter().any(|pool| *pool != Pool::Prefill),
        "--decode {} --mixed {}: at least one worker must decode",
        args.decode,
        args.mixed
    );
    let mut rows = Vec::new();
    for policy in [Policy::RoundRobin, Policy::LeastLoaded, Policy::KvAware] {
        let config = RouterConfig {
            policy,
            queue_max: requests.len(),
            queue_timeout_ns: Nanos::from_secs(1 << 30),
            ..RouterConfig::default()
        };
        let report = simulate(&config, &options, &requests)?;
        rows.push(row(policy, &report));
    }
    let document = json!({
        "workers": { "prefill": args.prefill, "decode": args.decode, "mixed": args.mixed },
        "blocks": args.blocks,
        "block_size": args.block_size,
        "events_ms": args.events_ms,
        "requests": requests.len(),
        "groups": args.groups,
        "system_len": args.system_len,
        "seed": args.seed,
        "policies": rows,
    });
    match args.json {
        true => output::json(&document)?,
        false => output::table(&table(&document))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Questions behind shared system prompts, in random order, at random times.
fn trace(args: &RouterSimulateArgs) -> Result<Vec<SimRequest>> {
    // Bytes for tokens: what is said matters to nobody here, only what is shared.
    let tokens = PROSE.bytes().map(TokenId::from).collect();
    let mut text = TextSource::new(tokens, args.seed)?;
    let output_len = u32::try_from(args.output_len).context("--output-len")?;
    let params = SharedPrefixParams {
        groups: args.groups,
        questions_per_group: args.questions,
        system_len: args.system_len,
        question_len_min: args.question_len,
        question_len_max: args.question_len,
        output_len,
    };
    let made = shared_prefix(&params, &mut text, args.seed)?;
    let ids = made.warm.iter().filter_map(|body| body.prompt.ids());
    let mut prompts: Vec<Vec<TokenId>> = ids.map(<[TokenId]>::to_vec).collect();
    let mut rng = Stream::new(args.seed, "order and arrivals");
    rng.shuffle(&mut prompts);
    let mut at_ns = 0.0;
    let requests = prompts.into_iter().map(|prompt| {
        at_ns += rng.exponential(1e9 / args.request_rate.0);
        SimRequest {
            at_ns: Nanos(at_ns as u64),
            prompt,
            output_tokens: output_len,
        }
    });
    Ok(requests.collect())
}

fn row(policy: Policy, report: &SimReport) -> Value {
    let mut ttft: Vec<u64> = report.rows.iter().filter_map(|row| row.ttft_ns).collect();
    ttft.sort_unstable();
    let at = |p: f64| nearest_rank(&ttft, p).map(|ns| ns as f64 / 1e6);
    json!({
        "policy": policy.name(),
        "completed": report.stats.completed,
        "prompt_tokens": report.prompt_tokens,
        "computed_tokens": report.computed_tokens,
        "computed_share": report.computed_tokens as f64 / report.prompt_tokens.max(1) as f64,
        "believed_cached_tokens": report.stats.overlap_tokens,
        "ttft_ms_p50": at(0.5),
        "ttft_ms_p99": at(0.99),
        "end_s": report.end_ns.as_secs_f64(),
    })
}

fn table(document: &Value) -> String {
    let d = document;
    let mut lines = vec![
        format!(
            "{} requests, {} system prompts of {} tokens; {} prefill, {} decode, {} mixed workers \
             of {} blocks",
            d["requests"],
            d["groups"],
            d["system_len"],
            d["workers"]["prefill"],
            d["workers"]["decode"],
            d["workers"]["mixed"],
            d["blocks"],
        ),
        String::new(),
        format!(
            "{:<14}{:>10}{:>15}{:>17}{:>9}{:>12}{:>12}",
            "policy",
            "completed",
            "prompt tokens",
            "computed tokens",
            "share",
            "TTFT p50",
            "p99, ms"
        ),
    ];
    for row in d["policies"].as_array().into_iter().flatten() {
        let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        lines.push(format!(
            "{:<14}{:>10}{:>15}{:>17}{:>8.1}%{:>12.1}{:>12.1}",
            row["policy"].as_str().unwrap_or("-"),
            number("completed"),
            number("prompt_tokens"),
            number("computed_tokens"),
            100.0 * number("computed_share"),
            number("ttft_ms_p50"),
            number("ttft_ms_p99"),
        ));
    }
    lines.join("\n")
}
