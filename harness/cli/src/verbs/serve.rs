//! `prefillbench serve`: the engine behind the OpenAI-compatible interface.

mod combinations;
mod config;
mod kv;

use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use pb_contract::WallClock;
use pb_core::EngineParts;
use pb_gpu::{DeviceKind, StepOptions};
use pb_model::config::LlamaConfig;
use pb_model::lora::{AdapterSet, LoraAdapter};
use pb_server::{Core, ModelAssets, ServedAdapter, ServerOptions, TokenizerText, serve};
use tokio::sync::watch;

use self::config::ConfigFile;
use super::quickstart::READY_PREFIX;
use crate::args::{KernelDevice, LoraModule, ServeArgs};
use crate::progress::Progress;
use crate::{model_source, paths};

/// Loads the model, starts the engine and serves until told to stop.
pub(crate) fn run(args: &ServeArgs) -> Result<ExitCode> {
    let api_key = api_key(args)?;
    let file = config_file(args.config.as_deref())?;
    let worker = kv::Worker::open(&args.kv)?;
    let progress = Progress::new();
    let obtained = model_source::obtain(&args.model, &progress)?;
    let model = &obtained.model.config;
    let config = config::resolve(&args.engine, &file, model)?;
    let steps = step_options(args)?;
    let name = args.served_model_name.as_ref().unwrap_or(&args.model);
    let (adapters, served) = adapters(&args.lora_modules, model, name)?;
    progress.phase("preparing the weights");
    let identity = digest_bytes(&obtained.receipt.sha256);
    let vocab = model.vocab;
    let parts = EngineParts {
        adapters: Arc::new(adapters),
        ..EngineParts::new(Arc::new(obtained.model.weights), identity)
    };
    let engine = match device_kind(args.device) {
        None => parts.build(config).map_err(|e| anyhow!(e))?,
        Some(kind) => {
            let cache = paths::home()?.join("kernels");
            pb_gpu::engine(kind, &cache, &parts, config, steps)?
        }
    };
    let (core, kv) = kv::core(worker, engine, parts.kv_shape())?;
    progress.clear();
    let assets = ModelAssets {
        text: Arc::new(TokenizerText::new(obtained.model.tokenizer, vocab)),
        receipt: serde_json::to_value(&obtained.receipt)?,
        root: args.model.clone(),
        adapters: served,
    };
    let options = ServerOptions {
        host: args.host,
        port: args.port,
        model_name: name.clone(),
        api_key,
        kv,
        unix_at_start_s: jiff::Timestamp::now().as_second().max(0) as u64,
        ..ServerOptions::default()
    };
    serve_until_stopped(core, assets, options, args.until_stdin_closes)?;
    Ok(ExitCode::SUCCESS)
}

/// The device as the executor names it; `None` is the CPU's own.
fn device_kind(device: KernelDevice) -> Option<DeviceKind> {
    match device {
        KernelDevice::Cpu => None,
        KernelDevice::Cuda => Some(DeviceKind::Cuda),
        KernelDevice::Emulated => Some(DeviceKind::Emulated),
    }
}

/// How a device launches and times steps.
fn step_options(args: &ServeArgs) -> Result<StepOptions> {
    let given = [
        ("--device-graph-rows", args.device_graph_rows.is_some()),
        ("--device-times", args.device_times.is_some()),
    ];
    let unused = given.iter().find(|(_, given)| *given);
    if let (KernelDevice::Cpu, Some((option, _))) = (args.device, unused) {
        bail!("{option}: has no effect here; it needs --device cuda");
    }
    let steps = StepOptions::default();
    Ok(StepOptions {
        graph_rows: args.device_graph_rows.unwrap_or(steps.graph_rows),
        time_every: args.device_times.unwrap_or(steps.time_every),
    })
}

/// Serves until the process is asked to stop.
fn serve_until_stopped(
    core: Box<dyn Core>,
    assets: ModelAssets,
    options: ServerOptions,
    until_stdin_closes: bool,
) -> Result<()> {
    let name = options.model_name.clone();
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
            core,
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
    Ok(())
}

/// The keys of the file that `--config` names.
fn config_file(path: Option<&Path>) -> Result<ConfigFile> {
    let Some(path) = path else {
        return Ok(ConfigFile::default());
    };
    let named = || format!("--config {}", path.display());
    let text = std::fs::read_to_string(path).with_context(named)?;
    ConfigFile::parse(&text).with_context(named)
}

/// Loads the adapters, and says of each what clients may know.
fn adapters(
    modules: &[LoraModule],
    model: &LlamaConfig,
    model_name: &str,
) -> Result<(AdapterSet, Vec<ServedAdapter>)> {
    let mut loaded = Vec::new();
    let mut served = Vec::new();
    for LoraModule { name, dir } in modules {
        if name == model_name {
            bail!(
                "--lora-modules {name}={}: the model itself has this name; choose another or set \
                 --served-model-name",
                dir.display()
            );
        }
        let adapter = LoraAdapter::load(name, dir, model)
            .with_context(|| format!("--lora-modules {name}={}", dir.display()))?;
        served.push(ServedAdapter {
            name: name.clone(),
            root: dir.display().to_string(),
            digest: adapter
                .digest
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
        });
        loaded.push(adapter);
    }
    let set = AdapterSet::new(loaded).context("--lora-modules")?;
    Ok((set, served))
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
pub(super) fn stop_requests(until_stdin_closes: bool) -> watch::Receiver<u32> {
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
pub(super) async fn asked_times(mut asked: watch::Receiver<u32>, times: u32) {
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
