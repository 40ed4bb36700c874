//! Starting and stopping a server around a test.

use std::net::SocketAddr;
use std::sync::Arc;

use pb_contract::WallClock;
use pb_server::{Core, ModelAssets, ServeError, ServedAdapter, ServerOptions, serve};
use serde_json::json;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::fake_core::FakeCore;
use crate::fake_text::FakeText;

pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    abort: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), ServeError>>,
}

pub(crate) fn options() -> ServerOptions {
    ServerOptions {
        model_name: "smollm2".to_owned(),
        unix_at_start_s: 1_795_968_500,
        ..ServerOptions::default()
    }
}

pub(crate) async fn start(core: FakeCore, text: FakeText, options: ServerOptions) -> Server {
    let assets = ModelAssets {
        text: Arc::new(text),
        root: "fake".to_owned(),
        receipt: json!({ "sha256": "00" }),
        adapters: Vec::new(),
    };
    start_with(Box::new(core), assets, options).await
}

/// As `start`, with adapters of these names.
pub(crate) async fn start_adapted(core: FakeCore, text: FakeText, names: &[&str]) -> Server {
    let adapter = |name: &&str| ServedAdapter {
        name: (*name).to_owned(),
        root: format!("adapters/{name}"),
        digest: "11".repeat(32),
    };
    let assets = ModelAssets {
        text: Arc::new(text),
        root: "fake".to_owned(),
        receipt: json!({ "sha256": "00" }),
        adapters: names.iter().map(adapter).collect(),
    };
    start_with(Box::new(core), assets, options()).await
}

pub(crate) async fn start_with(
    core: Box<dyn Core>,
    assets: ModelAssets,
    options: ServerOptions,
) -> Server {
    let (ready, address) = oneshot::channel();
    let (stop, stopped) = oneshot::channel();
    let (abort, aborted) = oneshot::channel();
    let task = tokio::spawn(serve(
        core,
        assets,
        Arc::new(WallClock),
        options,
        |addr| ready.send(addr).unwrap(),
        async { drop(stopped.await) },
        async {
            // Dropping the sender is not yet a signal.
            if aborted.await.is_err() {
                std::future::pending::<()>().await;
            }
        },
    ));
    Server {
        addr: address.await.unwrap(),
        stop: Some(stop),
        abort: Some(abort),
        task,
    }
}

impl Server {
    /// Gives the shutdown signal.
    pub(crate) fn signal(&mut self) {
        drop(self.stop.take());
    }

    /// Gives the signal to stop at once.
    pub(crate) fn abort(&mut self) {
        self.abort.take().unwrap().send(()).unwrap();
    }

    /// Waits for the end of serving.
    pub(crate) async fn ended(self) {
        self.task.await.unwrap().unwrap();
    }

    pub(crate) async fn shut_down(mut self) {
        self.signal();
        self.ended().await;
    }
}
