//! Clients that leave or dawdle, caches that are reset, and servers that shut down.

use std::time::Duration;

use pb_contract::{Nanos, RequestId, StepRow};
use pb_server::ServerOptions;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::client::{self, Open, request};
use crate::fake_core::{Call, FakeCore, Stage, tokens};
use crate::fake_text::FakeText;
use crate::setup::{Server, options, start};

const FOREVER: u32 = 1 << 30;

fn endless(stage: &std::sync::Arc<Stage>) -> FakeCore {
    let mut core = FakeCore::new(stage, |_| tokens(&[0, 1]));
    core.config.max_model_len = 1 << 31;
    core
}

fn is_aborted(call: &Call) -> bool {
    matches!(call, Call::Aborted(_))
}

/// Waits until the engine thread has taken in all that came before.
async fn settle(server: &Server) {
    assert_eq!(
        client::post(server.addr, "/reset_prefix_cache", &json!({}))
            .await
            .status,
        200
    );
}

fn is_added(call: &Call) -> bool {
    matches!(call, Call::Added(_))
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_aborts_every_choice() {
    let stage = Stage::new(None);
    let server = start(endless(&stage), FakeText::new(&["x", "y"]), options()).await;
    let body = json!({ "prompt": "x", "max_tokens": FOREVER, "stream": true, "n": 2 });
    let mut open = Open::post(server.addr, "/v1/completions", &body).await;
    open.read_until(|text| text.contains("data: {")).await;
    drop(open);
    stage.wait(2, is_aborted).await;
    settle(&server).await;
    let page = client::get(server.addr, "/metrics").await.text();
    let expected = [
        "finished_reason=\"abort\"} 2.0",
        "vllm:num_requests_running{engine=\"0\",model_name=\"smollm2\"} 0.0",
    ];
    assert!(expected.iter().all(|line| page.contains(line)), "{page}");
    server.shut_down().await;
}

#[tokio::test]
async fn a_client_that_leaves_before_a_whole_answer_aborts_it() {
    let stage = Stage::new(None);
    let server = start(endless(&stage), FakeText::new(&["x", "y"]), options()).await;
    let body = json!({ "prompt": "x", "max_tokens": FOREVER });
    let open = Open::post(server.addr, "/v1/completions", &body).await;
    stage.wait(1, is_added).await;
    drop(open);
    stage.wait(1, is_aborted).await;
    server.shut_down().await;
}

/// What a request leaves behind when it ends, such as KV for another worker, would stay if only
/// requests that still run were aborted.
#[tokio::test]
async fn a_client_that_leaves_during_the_last_step_is_told_to_the_core_too() {
    let stage = Stage::new(Some(0));
    let server = start(endless(&stage), FakeText::new(&["x", "y"]), options()).await;
    // The step ends before or after the server has seen that the client left: later and later.
    for tries in 1.. {
        let body = json!({ "prompt": "x", "max_tokens": 1, "stream": true });
        let open = Open::post(server.addr, "/v1/completions", &body).await;
        stage.wait(tries, is_added).await;
        // Its step begins.
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(open);
        tokio::time::sleep(Duration::from_millis(20 << tries)).await;
        stage.permit(1);
        settle(&server).await;
        // A request that was aborted before its step has left this permit.
        stage.shut();
        if stage
            .calls()
            .iter()
            .any(|call| matches!(call, Call::Left(_)))
        {
            break;
        }
        assert!(tries < 9, "{:?}", stage.calls());
    }
    server.shut_down().await;
}

#[tokio::test]
async fn a_slow_reader_holds_nobody_up_and_gets_every_token() {
    const TOKENS: u32 = 60_000;
    let stage = Stage::new(None);
    let server = start(endless(&stage), FakeText::new(&["x", "y"]), options()).await;
    let body = json!({
        "prompt": "x", "max_tokens": TOKENS, "stream": true,
        "stream_options": { "include_usage": true },
    });
    let raw = request("POST", "/v1/completions", "", body.to_string().as_bytes());
    let open = Open::raw(server.addr, &raw, Some(4096)).await;
    // The request ends although nothing has been read.
    stage
        .wait(1, |call| matches!(call, Call::Finished(_)))
        .await;
    let events = open.rest().await.events();
    let mut text = String::new();
    let mut largest = 0;
    for event in &events[..events.len() - 2] {
        let event: Value = serde_json::from_str(event).unwrap();
        let piece = event["choices"][0]["text"].as_str().unwrap();
        largest = largest.max(piece.len());
        text.push_str(piece);
    }
    assert_eq!(text, "xy".repeat(TOKENS as usize / 2));
    assert!(
        largest > 1 && events.len() < TOKENS as usize,
        "unread tokens share an event"
    );
    let usage: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
    assert_eq!(usage["usage"]["completion_tokens"], TOKENS);
    server.shut_down().await;
}

#[tokio::test]
async fn a_reset_tells_whether_it_happened() {
    let stage = Stage::new(Some(0));
    let server = start(endless(&stage), FakeText::new(&["x", "y"]), options()).await;
    let idle = client::post(server.addr, "/reset_prefix_cache", &json!({})).await;
    assert_eq!(idle.json(), json!({ "success": true }));
    let body = json!({ "prompt": "x", "max_tokens": FOREVER, "stream": true });
    let open = Open::post(server.addr, "/v1/completions", &body).await;
    stage.wait(1, is_added).await;
    stage.open();
    let busy = client::post(server.addr, "/reset_prefix_cache", &json!({})).await;
    assert_eq!(busy.json(), json!({ "success": false }));
    drop(open);
    stage.wait(1, is_aborted).await;
    server.shut_down().await;
}

#[tokio::test]
async fn too_many_requests_are_turned_away() {
    let stage = Stage::new(None);
    let options = ServerOptions {
        max_live_choices: 2,
        ..options()
    };
    let server = start(endless(&stage), FakeText::new(&["x", "y"]), options).await;
    let long = json!({ "prompt": "x", "max_tokens": FOREVER, "n": 2, "stream": true });
    let open = Open::post(server.addr, "/v1/completions", &long).await;
    stage.wait(2, is_added).await;
    let reply = client::post(server.addr, "/v1/completions", &json!({ "prompt": "x" })).await;
    assert_eq!((reply.status, &reply.error()["code"]), (503, &json!(503)));
    assert!(reply.head.contains("retry-after: 1"));
    drop(open);
    stage.wait(2, is_aborted).await;
    settle(&server).await;
    let reply = client::post(server.addr, "/v1/completions", &json!({ "prompt": "x" })).await;
    assert_eq!(reply.status, 200);
    server.shut_down().await;
}

#[tokio::test]
async fn step_rows_are_streamed_as_they_happen() {
    let stage = Stage::new(Some(0));
    let server = start(endless(&stage), FakeText::new(&["x", "y"]), options()).await;
    let mut rows = Open::raw(server.addr, &request("GET", "/steps/stream", "", b""), None).await;
    let body = json!({ "prompt": "x", "max_tokens": 5, "stream": true });
    let open = Open::post(server.addr, "/v1/completions", &body).await;
    stage.permit(2);
    rows.read_until(|text| text.matches("\"step\":").count() == 2)
        .await;
    stage.permit(3);
    assert_eq!(open.rest().await.status, 200);
    rows.read_until(|text| text.matches("\"step\":").count() == 5)
        .await;
    let later = request("GET", "/steps/stream?from=3", "", b"");
    let mut later = Open::raw(server.addr, &later, None).await;
    later
        .read_until(|text| text.matches("\"step\":").count() == 2)
        .await;
    // Both end with the server.
    server.shut_down().await;
    let numbers = |text: &str| -> Vec<u64> {
        text.lines()
            .map(|line| serde_json::from_str::<StepRow>(line).unwrap().step)
            .collect()
    };
    let rows = rows.rest().await;
    assert!(rows.head.contains("application/x-ndjson"));
    assert_eq!(numbers(&rows.text()), [0, 1, 2, 3, 4]);
    assert_eq!(numbers(&later.rest().await.text()), [3, 4]);
}

#[tokio::test]
async fn a_late_watcher_is_told_what_it_missed() {
    let stage = Stage::new(None);
    let options = ServerOptions {
        step_rows: 4,
        ..options()
    };
    let server = start(endless(&stage), FakeText::new(&["x", "y"]), options).await;
    let body = json!({ "prompt": "x", "max_tokens": 10 });
    assert_eq!(
        client::post(server.addr, "/v1/completions", &body)
            .await
            .status,
        200
    );
    // The last row is pushed just after the answer: ask until it is there.
    let mut rows = Open::raw(
        server.addr,
        &request("GET", "/steps/stream?from=2", "", b""),
        None,
    )
    .await;
    let text = rows.read_until(|text| text.contains("\"step\":9")).await;
    let first = text
        .lines()
        .find(|line| line.starts_with("{\"dropped\""))
        .unwrap();
    let dropped: Value = serde_json::from_str(first).unwrap();
    let kept = text.matches("\"step\":").count() as u64;
    // Steps 2 to 9 were asked for; what is not there is counted.
    assert_eq!(dropped["dropped"].as_u64().unwrap() + kept, 8);
    server.shut_down().await;
}

#[tokio::test]
async fn shutting_down_lets_requests_end_and_refuses_new_ones() {
    let stage = Stage::new(Some(0));
    let mut server = start(endless(&stage), FakeText::new(&["x", "y"]), options()).await;
    let body = json!({ "prompt": "x", "max_tokens": 3, "stream": true });
    let open = Open::post(server.addr, "/v1/completions", &body).await;
    stage.wait(1, is_added).await;
    let raw = request("POST", "/v1/completions", "", body.to_string().as_bytes());
    let (head, tail) = raw.split_at(raw.len() - 5);
    let mut late = Open::raw(server.addr, head, None).await;
    // Its head must be on the server's side before the signal.
    assert_eq!(client::get(server.addr, "/health").await.status, 200);
    server.signal();
    let addr = server.addr;
    let refused = async {
        while tokio::net::TcpStream::connect(addr).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), refused)
        .await
        .expect("still accepting");
    late.stream.write_all(tail).await.unwrap();
    assert_eq!(late.rest().await.status, 503);
    stage.open();
    let events = open.rest().await.events();
    assert!(events[events.len() - 2].contains("\"finish_reason\":\"length\""));
    server.ended().await;
    assert!(!stage.calls().iter().any(is_aborted));
}

#[tokio::test]
async fn what_outlives_the_grace_period_is_aborted() {
    let stage = Stage::new(None);
    let options = ServerOptions {
        grace: Nanos::from_millis(50),
        ..options()
    };
    let mut server = start(endless(&stage), FakeText::new(&["x", "y"]), options).await;
    let body = json!({ "prompt": "x", "max_tokens": FOREVER, "stream": true });
    let mut open = Open::post(server.addr, "/v1/completions", &body).await;
    open.read_until(|text| text.contains("data: {")).await;
    server.signal();
    let events = open.rest().await.events();
    assert!(events[events.len() - 2].contains("\"finish_reason\":\"abort\""));
    assert_eq!(events.last().unwrap(), "[DONE]");
    server.ended().await;
    assert!(stage.calls().contains(&Call::Aborted(RequestId(0))));
}

#[tokio::test]
async fn server_info_shows_config_and_model() {
    let stage = Stage::new(None);
    let server = start(endless(&stage), FakeText::new(&["x", "y"]), options()).await;
    let info = client::get(server.addr, "/server_info").await.json();
    assert_eq!(info["config"]["block_size"], 16);
    assert_eq!(info["config"]["numerics"], "exact");
    assert_eq!(info["model"]["sha256"], "00");
    assert_eq!(info["version"], env!("CARGO_PKG_VERSION"));
    server.shut_down().await;
}
