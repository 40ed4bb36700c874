//! Ends that do not wait: half-sent bodies, signals that repeat, and addresses in use.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use pb_contract::{Nanos, WallClock};
use pb_server::{ModelAssets, ServeError, ServerOptions, serve};
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use crate::client::{Open, request};
use crate::fake_core::{Call, FakeCore, Stage, tokens};
use crate::fake_text::FakeText;
use crate::setup::{options, start};

const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_half_sent_body_is_not_waited_for_beyond_the_grace_period() {
    let core = FakeCore::new(&Stage::new(None), |_| tokens(&[0]));
    let options = ServerOptions {
        grace: Nanos::from_millis(300),
        body_timeout: Nanos::from_secs(3600),
        ..options()
    };
    let mut server = start(core, FakeText::new(&["x"]), options).await;
    let raw = request("POST", "/v1/completions", "", b"{\"prompt\": \"x\"}");
    let late = Open::raw(server.addr, &raw[..raw.len() - 5], None).await;
    // Its head must be on the server's side before the signal.
    let health = crate::client::get(server.addr, "/health").await;
    assert_eq!(health.status, 200);
    server.signal();
    let reply = timeout(PATIENCE, late.rest()).await.expect("still waiting");
    assert_eq!(reply.status, 503);
    let message = reply.error()["message"].to_string();
    assert!(message.contains("shutting down"), "{message}");
    timeout(PATIENCE, server.ended())
        .await
        .expect("still draining");
}

#[tokio::test]
async fn a_second_signal_ends_everything_at_once() {
    let stage = Stage::new(Some(1));
    let core = FakeCore::new(&stage, |_| tokens(&[0]));
    let options = ServerOptions {
        grace: Nanos::from_secs(3600),
        ..options()
    };
    let mut server = start(core, FakeText::new(&["x"]), options).await;
    let body = json!({ "prompt": "x", "max_tokens": 50, "stream": true });
    let mut open = Open::post(server.addr, "/v1/completions", &body).await;
    open.read_until(|text| text.contains("data: {")).await;
    server.signal();
    server.abort();
    // The core hangs in its second step, and nobody waits for it.
    timeout(PATIENCE, server.ended())
        .await
        .expect("still waiting");
    let mut rest = Vec::new();
    let end = timeout(PATIENCE, open.stream.read_to_end(&mut rest)).await;
    assert!(end.is_ok(), "the connection is cut off");
    assert!(!String::from_utf8_lossy(&rest).contains("[DONE]"));
    let finished = |call: &Call| matches!(call, Call::Finished(_));
    assert!(!stage.calls().iter().any(finished));
    stage.open();
}

#[tokio::test]
async fn an_address_in_use_is_named_once_and_explained_by_its_source() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let assets = ModelAssets {
        text: Arc::new(FakeText::new(&["x"])),
        root: String::new(),
        receipt: json!({}),
        adapters: Vec::new(),
    };
    let core = Box::new(FakeCore::new(&Stage::new(None), |_| tokens(&[0])));
    let options = ServerOptions { port, ..options() };
    let never = std::future::pending;
    let served = serve(
        core,
        assets,
        Arc::new(WallClock),
        options,
        |_| unreachable!("the address is taken"),
        never(),
        never(),
    );
    let error = served.await.unwrap_err();
    assert!(matches!(error, ServeError::Bind { .. }));
    assert_eq!(
        error.to_string(),
        format!("cannot listen on 127.0.0.1:{port}")
    );
    let source = error.source().unwrap().to_string();
    assert!(source.contains("in use"), "{source}");
}
