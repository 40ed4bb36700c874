//! The engine of this project served from the test's own process, with a fault planted or not.
//! The binary refuses to serve a planted fault.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::net::SocketAddr;
use std::sync::{Arc, mpsc};

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
pub(crate) const MODEL: &str = "planted";

/// A server on a thread of its own, until it is dropped.
pub(crate) struct Planted {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// A chunked engine with a prefix cache and the `fast` kernels.
pub(crate) fn config(fault: Fault) -> EngineConfig {
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
    /// Serves a generated model.
    pub(crate) fn start(config: EngineConfig) -> Planted {
        let (bound, address) = mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let model = synth::model(Kind::Sharp, Size::Small, 1).expect("a model");
            let vocab = model.config.vocab;
            let parts = EngineParts::new(Arc::new(model.weights), [1; 32]);
            let engine = parts.build_under_test(config).expect("an engine");
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
}

impl Drop for Planted {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
