//! `prefillbench serve`: the engine behind the OpenAI-compatible interface.

use std::io::{Read, Write};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use pb_contract::{EngineConfig, Fault, KvDtype, Numerics, WallClock};
use pb_core::EngineParts;
use pb_model::forward::kv_bytes_per_token;
use pb_server::{ModelAssets, ServerOptions, TokenizerText, serve};
use tokio::sync::watch;

use super::quickstart::READY_PREFIX;
use crate::args::{ServeArgs, Switch};
use crate::machine;
use crate::model_source::{self, Obtained};
use crate::progress::Progress;

/// Token budget of a step when chunking is on and none is given.
const DEFAULT_BUDGET: usize = 512;

/// Loads the model, starts the engine and serves until told to stop.
pub(crate) fn run(args: &ServeArgs) -> Result<ExitCode> {
    let api_key = api_key(args)?;
    let progress = Progress::new();
    let obtained = model_source::obtain(&args.model, &progress)?;
    let config = resolve(args, &obtained)?;
    progress.phase("preparing the weights");
    let identity = digest_bytes(&obtained.receipt.sha256);
    let vocab = obtained.model.config.vocab;
    let parts = EngineParts::new(Arc::new(obtained.model.weights), identity);
    let engine = parts.build(config).map_err(|e| anyhow!(e))?;
    progress.clear();
    let name = args
        .served_model_name
        .clone()
        .unwrap_or_else(|| args.model.clone());
    let assets = ModelAssets {
        text: Arc::new(TokenizerText::new(obtained.model.tokenizer, vocab)),
        receipt: serde_json::to_value(&obtained.receipt)?,
        root: args.model.clone(),
    };
    let options = ServerOptions {
        host: args.host,
        port: args.port,
        model_name: name.clone(),
        api_key,
        unix_at_start_s: jiff::Timestamp::now().as_second().max(0) as u64,
        ..ServerOptions::default()
    };
    let until_stdin_closes = args.until_stdin_closes;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("cannot start the server's runtime")?;
    runtime.block_on(async {
        let ready = |address: std::net::SocketAddr| {
            let mut out = std::io::stdout();
            // A closed standard output is no reason not to serve.
            let _ = writeln!(out, "{READY_PREFIX}http://{address} (model {name})");
            let _ = out.flush();
        };
        // The first request to stop drains, the second does not wait for that.
        let asked = stop_requests(until_stdin_closes);
        serve(
            Box::new(engine),
            assets,
            Arc::new(WallClock),
            options,
            ready,
            asked_times(asked.clone(), 1),
            asked_times(asked, 2),
        )
        .await
    })?;
    // What is still computed after a second signal is of use to nobody.
    runtime.shutdown_background();
    Ok(ExitCode::SUCCESS)
}

/// The configuration that the arguments ask for.
fn resolve(args: &ServeArgs, obtained: &Obtained) -> Result<EngineConfig> {
    let model = &obtained.model.config;
    let numerics = Numerics::from(args.numerics);
    let kv_dtype = match numerics {
        Numerics::F64 => KvDtype::F64,
        Numerics::Exact | Numerics::Fast => args.kv_dtype.into(),
    };
    let max_model_len = args.max_model_len.unwrap_or(model.max_position);
    let block_bytes = kv_bytes_per_token(model, kv_dtype).saturating_mul(args.block_size);
    let from_bytes = (args.kv_bytes.0 / block_bytes as u64) as usize;
    let num_blocks = args.num_blocks.unwrap_or(from_bytes);
    if num_blocks == 0 {
        bail!(
            "--kv-bytes {}: one block of {} tokens takes {block_bytes} bytes; raise --kv-bytes or \
             lower --block-size",
            args.kv_bytes.0,
            args.block_size
        );
    }
    check_memory(num_blocks.saturating_mul(block_bytes))?;
    let chunked = args.chunked == Switch::On;
    let budget = if chunked {
        DEFAULT_BUDGET
    } else {
        max_model_len
    };
    Ok(EngineConfig {
        numerics,
        kv_dtype,
        threads: args.threads.unwrap_or_else(machine::cores),
        chunked,
        max_batched_tokens: args.max_batched_tokens.unwrap_or(budget),
        max_num_seqs: args.max_num_seqs,
        prefix_cache: args.prefix_cache.into(),
        block_size: args.block_size,
        num_blocks,
        max_model_len,
        seed: args.seed,
        fault: Fault::None,
    })
}

/// Refuses a KV pool that this machine cannot hold: allocating it would end the process.
fn check_memory(pool_bytes: usize) -> Result<()> {
    let Some(available) = machine::available_bytes() else {
        return Ok(());
    };
    if pool_bytes as u64 > available {
        bail!(
            "the KV pool would need {pool_bytes} bytes and {available} are available; lower \
             --kv-bytes or --num-blocks"
        );
    }
    Ok(())
}

/// The key that clients must send, from the environment and nowhere else.
fn api_key(args: &ServeArgs) -> Result<Option<String>> {
    let Some(name) = &args.api_key_env else {
        return Ok(None);
    };
    match std::env::var(name) {
        Ok(key) if !key.is_empty() => Ok(Some(key)),
        _ => bail!("--api-key-env {name}: that environment variable is not set or is empty"),
    }
}

/// The first 32 bytes of a hex digest; zero where it is shorter.
fn digest_bytes(hex: &str) -> [u8; 32] {
    let mut bytes = [0u8; 32];
    for (byte, pair) in bytes.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
        let text = std::str::from_utf8(pair).unwrap_or("");
        *byte = u8::from_str_radix(text, 16).unwrap_or(0);
    }
    bytes
}

/// Counts requests to stop: SIGINT, SIGTERM, and the end of standard input when that is asked for.
/// Must be called inside the runtime.
fn stop_requests(until_stdin_closes: bool) -> watch::Receiver<u32> {
    let (count, receiver) = watch::channel(0);
    if until_stdin_closes {
        let count = count.clone();
        // A thread of its own: a runtime task that blocks in a read could never be ended.
        std::thread::spawn(move || {
            let mut sink = [0u8; 64];
            while matches!(std::io::stdin().read(&mut sink), Ok(n) if n > 0) {}
            count.send_modify(|count| *count += 1);
        });
    }
    tokio::spawn(count_signals(count));
    receiver
}

/// Ends once the process has been asked to stop `times` times.
async fn asked_times(mut asked: watch::Receiver<u32>, times: u32) {
    if asked.wait_for(|count| *count >= times).await.is_err() {
        // Nobody is left who could ask.
        std::future::pending::<()>().await;
    }
}

/// Counts the signals that ask the process to stop.
async fn count_signals(count: watch::Sender<u32>) {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let (Ok(mut terminate), Ok(mut interrupt)) = (
            signal(SignalKind::terminate()),
            signal(SignalKind::interrupt()),
        ) {
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                count.send_modify(|count| *count += 1);
            }
        }
    }
    #[cfg(not(unix))]
    while tokio::signal::ctrl_c().await.is_ok() {
        count.send_modify(|count| *count += 1);
    }
}
