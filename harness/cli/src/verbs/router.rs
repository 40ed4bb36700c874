//! `prefillbench router`: one endpoint in front of prefill and decode workers.

mod simulate;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use pb_contract::{Nanos, WallClock};
use pb_router::http::{RouterOptions, WorkerUrl, serve};
use pb_router::{CostParams, Policy, Pool, PoolParams, RouterConfig};

use super::quickstart::{EngineChild, READY_PREFIX};
use super::serve::{asked_times, stop_requests};
use crate::args::{PolicyArg, RouterArgs, RouterWhat, RuleArgs};
use crate::console;

/// Serves until told to stop, or does what the subcommand says.
pub(crate) fn run(args: &RouterArgs) -> Result<ExitCode> {
    if let Some(RouterWhat::Simulate(args)) = &args.what {
        return simulate::run(args);
    }
    ensure!(
        args.serve.is_empty() || args.topology.is_some(),
        "flags after -- are for workers that are started here: give --topology too"
    );
    // Clap waives `requires` where what is required conflicts with what is given.
    ensure!(
        args.log_dir.is_none() || args.topology.is_some(),
        "--log-dir is for the logs of workers that are started here: give --topology too"
    );
    let api_key = key("--api-key-env", args.api_key_env.as_deref())?;
    let worker_key = key("--worker-api-key-env", args.worker_api_key_env.as_deref())?;
    let folder = log_dir(args)?;
    // Ended with this function; also when the router itself cannot start.
    let children = start_workers(args, folder.as_deref())?;
    let workers = match &args.topology {
        Some(topology) => {
            let urls = children.iter().map(url_of);
            let urls: Vec<WorkerUrl> = urls.collect::<Result<_>>()?;
            topology.0.iter().copied().zip(urls).collect()
        }
        None => given(args),
    };
    ensure!(
        !workers.is_empty(),
        "no worker: give --prefill, --decode or --mixed with addresses, or --topology"
    );
    let options = RouterOptions {
        host: args.host,
        port: args.port,
        router: rules(&args.rules),
        api_key,
        worker_key,
        ..RouterOptions::new(workers)
    };
    serve_until_stopped(options, args.until_stdin_closes)?;
    Ok(ExitCode::SUCCESS)
}

fn given(args: &RouterArgs) -> Vec<(Pool, WorkerUrl)> {
    let of = |pool, urls: &[WorkerUrl]| -> Vec<(Pool, WorkerUrl)> {
        urls.iter().map(|url| (pool, url.clone())).collect()
    };
    [
        of(Pool::Prefill, &args.prefill),
        of(Pool::Decode, &args.decode),
        of(Pool::Mixed, &args.mixed),
    ]
    .concat()
}

/// The rules as the router takes them.
fn rules(args: &RuleArgs) -> RouterConfig {
    let ms = |ms: f64| Nanos::from_secs_f64(ms / 1e3);
    RouterConfig {
        policy: match args.policy {
            PolicyArg::RoundRobin => Policy::RoundRobin,
            PolicyArg::LeastLoaded => Policy::LeastLoaded,
            PolicyArg::KvAware => Policy::KvAware,
        },
        cost: CostParams {
            overlap_weight: args.overlap_weight,
            overlap_credit: args.overlap_credit,
            credit_decay: args.credit_decay,
            active_request_weight: args.active_request_weight,
            product: false,
            temperature: args.temperature,
        },
        local_prefill_max_tokens: args.local_prefill_max_tokens,
        prefill_backlog_max_tokens: args.prefill_backlog_max_tokens,
        enforce_disaggregation: args.enforce_disaggregation,
        slo_ttft_ns: args.slo_ttft_ms.map(|limit| ms(limit.0)),
        prefill_ns_per_token: args.prefill_us_per_token.map(|time| time.0 * 1e3),
        queue_max: args.queue_max,
        queue_timeout_ns: ms(args.queue_timeout_ms as f64),
        hold_max_ns: ms(args.hold_max_ms as f64),
        max_prefills: args.max_prefills,
        max_decodes: args.max_decodes,
        decode_fill_max: args.decode_fill_max,
        max_retries: args.max_retries,
        max_staleness_ns: ms(args.max_staleness_ms as f64),
        pools: args.rebalance.then(PoolParams::default),
        seed: args.router_seed,
        ..RouterConfig::default()
    }
}

/// A key from the environment and nowhere else.
fn key(option: &str, variable: Option<&str>) -> Result<Option<String>> {
    let Some(name) = variable else {
        return Ok(None);
    };
    match std::env::var(name) {
        Ok(key) if !key.is_empty() => Ok(Some(key)),
        _ => bail!("{option} {name}: that environment variable is not set or is empty"),
    }
}

/// Names the folder of workers' logs; `run` sets it to one beside the cell's own log.
pub(crate) const LOG_DIR: &str = "PREFILLBENCH_LOG_DIR";

/// A folder for the logs of workers that are started here.
fn log_dir(args: &RouterArgs) -> Result<Option<PathBuf>> {
    if args.topology.is_none() {
        return Ok(None);
    }
    let named = args.log_dir.clone();
    let named = named.or_else(|| std::env::var_os(LOG_DIR).map(PathBuf::from));
    let folder = named.unwrap_or_else(|| {
        std::env::temp_dir().join(format!("prefillbench-router-{}", std::process::id()))
    });
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("--log-dir {}: cannot create it", folder.display()))?;
    Ok(Some(folder))
}

/// Starts the workers of `--topology`, each as a process of its own.
fn start_workers(args: &RouterArgs, folder: Option<&Path>) -> Result<Vec<EngineChild>> {
    let (Some(topology), Some(folder)) = (&args.topology, folder) else {
        return Ok(Vec::new());
    };
    let mut children = Vec::new();
    for (number, pool) in topology.0.iter().enumerate() {
        let role = match pool {
            Pool::Prefill => "prefill",
            Pool::Decode => "decode",
            Pool::Mixed => "both",
        };
        let mut flags = args.serve.clone();
        flags.extend(["--role", role].map(String::from));
        if !args.serve.iter().any(|flag| is_seed(flag)) {
            // Workers of one seed would draw the same tokens for requests that name none.
            flags.extend(["--seed".to_owned(), number.to_string()]);
        }
        let log = folder.join(format!("worker-{number}-{role}.log"));
        console::say(format!(
            "starting {role} worker {number}; its log is {}",
            log.display()
        ));
        let child = EngineChild::start(&flags, &log)?;
        let place = child.endpoint().authority();
        console::say(format!("{role} worker {number} is at http://{place}"));
        children.push(child);
    }
    Ok(children)
}

fn is_seed(flag: &str) -> bool {
    flag == "--seed" || flag.starts_with("--seed=")
}

fn url_of(child: &EngineChild) -> Result<WorkerUrl> {
    let url = format!("http://{}", child.endpoint().authority());
    WorkerUrl::parse(&url).map_err(anyhow::Error::msg)
}

/// Serves until the process is asked to stop.
fn serve_until_stopped(options: RouterOptions, until_stdin_closes: bool) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the router's runtime")?;
    let count = options.workers.len();
    let policy = options.router.policy.name();
    runtime.block_on(async {
        let ready = |address: std::net::SocketAddr| {
            let mut out = std::io::stdout();
            // A closed standard output is no reason not to serve.
            let _ = writeln!(
                out,
                "{READY_PREFIX}http://{address} ({count} workers, {policy})"
            );
            let _ = out.flush();
        };
        // The first request to stop drains, the second does not wait for that.
        let asked = stop_requests(until_stdin_closes);
        let say = Box::new(|text: &str| console::say(text));
        let once = asked_times(asked.clone(), 1);
        let serving = serve(options, Arc::new(WallClock), say, ready, once);
        tokio::select! {
            served = serving => served,
            () = asked_times(asked, 2) => Ok(()),
        }
    })?;
    // What is still done after a second signal is of use to nobody.
    runtime.shutdown_background();
    Ok(())
}
