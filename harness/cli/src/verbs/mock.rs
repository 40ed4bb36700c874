//! `prefillbench mock`: the ground-truth server.

use std::io::{Read, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use pb_contract::Nanos;
use pb_mock::{
    CacheModel, Mock, MockOptions, Recording, Script, Style, Timing, Tls, Tokenizer, UsageStyle,
};
use tokio::sync::mpsc;

use super::quickstart::READY_PREFIX;
use crate::args::{Head, MockArgs, SseArg, TokenizerArg, UsageArg};
use crate::console;

/// Serves until told to stop, then writes what was sent.
pub(crate) fn run(args: &MockArgs) -> Result<ExitCode> {
    let server = Mock::start(options(args)?)?;
    let mut out = std::io::stdout();
    // A closed standard output is no reason not to serve.
    let _ = writeln!(
        out,
        "{READY_PREFIX}{} (model {})",
        server.base_url(),
        args.model
    );
    let _ = out.flush();
    wait(args.until_stdin_closes)?;
    let late = server.stop().lateness;
    if let (Some(p50), Some(p99), Some(most)) = (
        late.percentile(50),
        late.percentile(99),
        late.percentile(100),
    ) {
        let writes = late.writes();
        console::say(format!(
            "{writes} writes, late by {p50} (p50), {p99} (p99), {most} (most)"
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Requests kept in memory for `GET /mock/log` beside a log file.
const KEPT_BESIDE_FILE: usize = 10_000;

/// The options that the arguments ask for.
fn options(args: &MockArgs) -> Result<MockOptions> {
    let script = match &args.script {
        Some(name) if name.as_os_str() == "worked-stream" => Some(Script::worked_stream()),
        Some(path) => {
            let place = || format!("--script {}", path.display());
            let text = std::fs::read_to_string(path).with_context(place)?;
            Some(Script::parse(&text).with_context(place)?)
        }
        None => None,
    };
    let recordings = args.replay.iter().map(|path| Recording::read(path));
    Ok(MockOptions {
        host: args.host,
        port: args.port,
        threads: args.threads,
        spin_ns: Nanos::from_micros(args.spin_us),
        model: args.model.clone(),
        max_model_len: args.max_model_len,
        tokenizer: match args.tokenizer {
            TokenizerArg::Bytes => Tokenizer::Bytes,
            TokenizerArg::Words => Tokenizer::Words,
        },
        seed: args.seed,
        timing: timing(args),
        style: style(args)?,
        faults: args.fault.clone(),
        script,
        recordings: recordings.collect::<Result<_, _>>()?,
        cache: CacheModel {
            enabled: !args.no_cache,
            block_size: args.block_size,
            blocks: args.num_blocks,
            salted: !args.ignore_salt,
            reset: args.reset,
        },
        max_concurrency: args.max_concurrency,
        log_requests: match args.log {
            Some(_) => args.log_requests.min(KEPT_BESIDE_FILE),
            None => args.log_requests,
        },
        log_file: args.log.clone(),
        persona: args.persona,
        tls: args
            .tls_cert
            .clone()
            .zip(args.tls_key.clone())
            .map(|(cert, key)| Tls { cert, key }),
    })
}

fn timing(args: &MockArgs) -> Timing {
    let ms = |ms: f64| Nanos::from_secs_f64(ms / 1e3);
    Timing {
        ttft_ns: args.ttft_ms.scaled(1e6),
        prefill_ns_per_token: args.prefill_us_per_token * 1e3,
        itl_ns: args.itl_ms.scaled(1e6),
        stop_tokens: args.tokens,
        head_ns: match args.head_ms {
            Head::At(at) => Some(ms(at)),
            Head::First => None,
        },
        role_ns: args.role_ms.map(ms),
        ..Timing::default()
    }
}

fn style(args: &MockArgs) -> Result<Style> {
    let has = |form| args.sse.contains(&form);
    Ok(Style {
        bundle: u32::try_from(args.bundle).context("--bundle")?,
        role_first: !args.no_role,
        usage: match args.usage {
            UsageArg::Full => UsageStyle::Full,
            UsageArg::OmitZeroCached => UsageStyle::OmitZeroCached,
            UsageArg::NoCached => UsageStyle::NoCached,
            UsageArg::Missing => UsageStyle::Missing,
        },
        crlf: has(SseArg::Crlf),
        no_space: has(SseArg::NoSpace),
        named_events: has(SseArg::NamedEvents),
        comments: has(SseArg::Comments),
    })
}

/// Waits for SIGINT, SIGTERM, or the end of standard input when that is asked for.
fn wait(until_stdin_closes: bool) -> Result<()> {
    let (stop, mut stopped) = mpsc::unbounded_channel();
    if until_stdin_closes {
        let stop = stop.clone();
        std::thread::spawn(move || {
            let mut sink = [0u8; 64];
            while matches!(std::io::stdin().read(&mut sink), Ok(n) if n > 0) {}
            // A receiver that is gone has stopped already.
            let _ = stop.send(());
        });
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start a runtime")?;
    runtime.block_on(async {
        tokio::select! {
            result = signal() => result.context("cannot wait for signals"),
            Some(()) = stopped.recv() => Ok(()),
        }
    })
}

async fn signal() -> std::io::Result<()> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            _ = terminate.recv() => Ok(()),
            result = tokio::signal::ctrl_c() => result,
        }
    }
    #[cfg(not(unix))]
    tokio::signal::ctrl_c().await
}
