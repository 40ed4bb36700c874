//! `leak` against the engine of this project, healthy and with its isolation fault planted. The
//! binary refuses to serve a planted fault, so the server runs here.

mod common;

use std::net::SocketAddr;
use std::sync::{Arc, mpsc};

use common::{run, stderr, stdout};
use pb_contract::{
    CacheOptions, EngineConfig, Fault, KvDtype, Numerics, PrefixCacheKind, Scheduling, TierOptions,
    WallClock,
};
use pb_core::EngineParts;
use pb_model::synth::{self, Kind, Size};
use pb_server::{ModelAssets, ServerOptions, TokenizerText, serve};
use serde_json::Value;
use tokio::sync::oneshot;

/// Names of requests' model.
const MODEL: &str = "planted";

/// A server on a thread of its own, until it is dropped.
struct Planted {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

fn config(fault: Fault) -> EngineConfig {
    EngineConfig {
        numerics: Numerics::Fast,
        kv_dtype: KvDtype::F32,
        threads: 1,
        chunked: true,
        max_batched_tokens: 512,
        max_num_seqs: 8,
        prefix_cache: PrefixCacheKind::HashChain,
        block_size: 16,
        // Room for every prompt of a probe: an evicted prime would be a miss of its own.
        num_blocks: 16_384,
        max_model_len: 512,
        seed: 1,
        scheduling: Scheduling::default(),
        cache: CacheOptions::default(),
        tiers: TierOptions::default(),
        fault,
    }
}

impl Planted {
    fn start(fault: Fault) -> Planted {
        let (bound, address) = mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let model = synth::model(Kind::Sharp, Size::Small, 1).expect("a model");
            let vocab = model.config.vocab;
            let parts = EngineParts::new(Arc::new(model.weights), [1; 32]);
            let engine = parts.build_under_test(config(fault)).expect("an engine");
            let assets = ModelAssets {
                text: Arc::new(TokenizerText::new(model.tokenizer, vocab)),
                receipt: Value::Null,
                root: MODEL.to_owned(),
                adapters: Vec::new(),
            };
            let options = ServerOptions {
                port: 0,
                model_name: MODEL.to_owned(),
                ..ServerOptions::default()
            };
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .expect("a runtime");
            let ready = move |at| bound.send(at).expect("the test waits");
            let shutdown = async move {
                let _ = stopped.await;
            };
            let (core, clock) = (Box::new(engine), Arc::new(WallClock));
            let served = serve(
                core,
                assets,
                clock,
                options,
                ready,
                shutdown,
                std::future::pending(),
            );
            runtime.block_on(served).expect("served to the end");
        });
        Planted {
            address: address.recv().expect("an address"),
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Probes it with prompts of six blocks.
    fn probe(&self, trials: &str, args: &[&str]) -> Value {
        let dir = tempfile::tempdir().expect("a directory");
        let out = dir.path().join("run");
        let url = format!("http://{}", self.address);
        let fixed = [
            "leak",
            "--base-url",
            &url,
            "--model",
            MODEL,
            "--prompt-len",
            "96",
        ];
        let ids = [
            "--random-range-ids",
            "32..200",
            "--trials",
            trials,
            "--json",
            "--out",
        ];
        let out = [out.to_str().expect("UTF-8")];
        let output = run(&[&fixed[..], &ids, &out, args].concat());
        let text = stdout(&output);
        serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{error}: {text}{}", stderr(&output)))
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// CVE-2025-46570; vllm #16016: the planted fault leaves the salt out of a block's name.
#[test]
fn row_92_the_planted_missing_key_is_found() {
    let engine = Planted::start(Fault::MissingSaltKey);
    let doc = engine.probe("20", &[]);
    eprintln!("{doc:#}");
    assert_eq!(doc["verdict"], "leaks", "{doc}");
    // Five whole blocks of the 96 tokens: the last token must be computed.
    let other = &doc["arms"][1];
    assert_eq!(
        (&other["usage_hits"], &other["cached_tokens_max"]),
        (&20.into(), &80.into())
    );
}

/// With 400 trials an engine that isolates is shown to by timing alone 998 times in 1000, on a
/// machine that is quiet enough; one that is not leaves it open, and neither calls it a leak.
#[test]
fn row_92_the_healthy_engine_passes_and_shares_without_salts() {
    let engine = Planted::start(Fault::None);
    let mut doc = Value::Null;
    for _ in 0..3 {
        doc = engine.probe("400", &[]);
        let [same, other] = [0, 1].map(|arm| &doc["arms"][arm]);
        assert_eq!(
            (&same["usage_hits"], &other["usage_hits"]),
            (&400.into(), &0.into())
        );
        if doc["verdict"] == "isolated" {
            break;
        }
        let undecided = doc["reasons"].to_string().contains("times do not decide");
        assert!(doc["verdict"] == "inconclusive" && undecided, "{doc}");
    }
    eprintln!("{}", doc["verdict"]);
    let doc = engine.probe("20", &["--no-salt"]);
    assert_eq!(doc["verdict"], "leaks", "{doc}");
}
