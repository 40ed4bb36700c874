//! Requests that get no answer: each is a client error in vLLM's shape, whatever the bytes.

use serde_json::{Value, json};

use crate::client::{self, Open, request, send};
use crate::fake_core::{FakeCore, Mood, Script, Stage, tokens};
use crate::fake_text::FakeText;
use crate::setup::{Server, options, start};

async fn plain_server() -> Server {
    let stage = Stage::new(None);
    let core = FakeCore::new(&stage, |_| tokens(&[0]));
    let text = FakeText {
        chat: "x".to_owned(),
        ..FakeText::new(&["x", "y"])
    };
    start(core, text, options()).await
}

/// Bodies of completions, and the field that the error must name.
const BAD_BODIES: &[(&str, &[u8])] = &[
    ("", b""),
    ("", b"{"),
    ("", b"null"),
    ("", b"[]"),
    ("", b"\"x\""),
    ("", b"{\"prompt\": \"x\"} trailing"),
    ("", b"{\"prompt\": \"\xff\"}"),
    ("", b"\x00\x01\x02"),
    ("", b"{\"prompt\": \"x\", \"temperature\": 1e999}"),
    ("prompt", b"{}"),
    ("prompt", b"{\"prompt\": null}"),
    ("prompt", b"{\"prompt\": 3}"),
    ("prompt", b"{\"prompt\": \"\"}"),
    ("prompt", b"{\"prompt\": []}"),
    ("prompt", b"{\"prompt\": [[]]}"),
    ("prompt", b"{\"prompt\": [\"x\", 1]}"),
    ("prompt", b"{\"prompt\": [2]}"),
    ("prompt", b"{\"prompt\": [-1]}"),
    ("prompt", b"{\"prompt\": [1e300]}"),
    ("prompt", b"{\"prompt\": [99999999999999999999999999]}"),
    ("prompt", b"{\"prompt\": \"z\"}"),
    ("max_tokens", b"{\"prompt\": \"x\", \"max_tokens\": 0}"),
    ("max_tokens", b"{\"prompt\": \"x\", \"max_tokens\": \"5\"}"),
    ("input_tokens", b"{\"prompt\": \"x\", \"max_tokens\": 8192}"),
    (
        "min_tokens",
        b"{\"prompt\": \"x\", \"max_tokens\": 2, \"min_tokens\": 3}",
    ),
    ("n", b"{\"prompt\": \"x\", \"n\": 0}"),
    ("best_of", b"{\"prompt\": \"x\", \"best_of\": 2}"),
    (
        "max_tokens",
        b"{\"prompt\": \"x\", \"echo\": true, \"max_tokens\": -0.5}",
    ),
    ("n", b"{\"prompt\": \"x\", \"n\": 257}"),
    ("n", b"{\"prompt\": [\"x\", \"y\"], \"n\": 4294967295}"),
    ("temperature", b"{\"prompt\": \"x\", \"temperature\": -1}"),
    ("top_p", b"{\"prompt\": \"x\", \"top_p\": 0}"),
    ("top_k", b"{\"prompt\": \"x\", \"top_k\": -7}"),
    ("stop", b"{\"prompt\": \"x\", \"stop\": [\"\"]}"),
    (
        "stop_token_ids",
        b"{\"prompt\": \"x\", \"stop_token_ids\": [7]}",
    ),
    ("logprobs", b"{\"prompt\": \"x\", \"logprobs\": 21}"),
    (
        "prompt_logprobs",
        b"{\"prompt\": \"x\", \"prompt_logprobs\": 21}",
    ),
    (
        "prompt_logprobs",
        b"{\"prompt\": \"x\", \"prompt_logprobs\": 1, \"stream\": true}",
    ),
    (
        "stream_options",
        b"{\"prompt\": \"x\", \"stream_options\": {}}",
    ),
    ("model", b"{\"prompt\": \"x\", \"model\": 7}"),
    ("echo", b"{\"prompt\": \"x\", \"echo\": \"yes\"}"),
    ("cache_salt", b"{\"prompt\": \"x\", \"cache_salt\": \"\"}"),
    ("min_p", b"{\"prompt\": \"x\", \"min_p\": 0.5}"),
];

#[tokio::test]
async fn bad_bodies_are_client_errors() {
    let server = plain_server().await;
    let deep = format!("{{\"prompt\": {}", "[".repeat(100_000));
    let deep = ("", deep.as_bytes());
    for (param, body) in BAD_BODIES.iter().copied().chain([deep]) {
        let shown = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
        let reply = send(server.addr, &request("POST", "/v1/completions", "", body)).await;
        assert_eq!(reply.status, 400, "{shown}: {}", reply.text());
        let error = reply.error();
        assert_eq!(error["type"], "BadRequestError", "{shown}");
        assert_eq!(error["code"], 400, "{shown}");
        let named = error["param"].as_str().unwrap_or_default();
        assert_eq!(named, param, "{shown}: {error}");
    }
    let good = client::post(server.addr, "/v1/completions", &json!({ "prompt": "x" })).await;
    assert_eq!(good.status, 200, "the server is still well");
    server.shut_down().await;
}

#[tokio::test]
async fn other_paths_have_client_errors_too() {
    let server = plain_server().await;
    let chat: [Value; 7] = [
        json!({}),
        json!({ "messages": [] }),
        json!({ "messages": "hi" }),
        json!({ "messages": [{ "role": "user" }] }),
        json!({ "messages": [{ "role": 1, "content": "x" }] }),
        json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] }),
        json!({ "messages": [{ "role": "user", "content": "x" }], "add_generation_prompt": false }),
    ];
    for body in &chat {
        let reply = client::post(server.addr, "/v1/chat/completions", body).await;
        assert_eq!(
            (reply.status, &reply.error()["param"]),
            (400, &json!("messages")),
            "{body}"
        );
    }
    let top = json!({ "messages": [{ "role": "user", "content": "x" }], "top_logprobs": 2 });
    assert_eq!(
        client::post(server.addr, "/v1/chat/completions", &top)
            .await
            .status,
        400
    );
    for (path, body) in [
        ("/tokenize", json!({ "prompt": 3 })),
        ("/tokenize", json!([])),
        (
            "/tokenize",
            json!({ "prompt": "x", "add_special_tokens": 1 }),
        ),
        ("/detokenize", json!({})),
        ("/detokenize", json!({ "tokens": [2] })),
        ("/detokenize", json!({ "tokens": ["x"] })),
    ] {
        assert_eq!(
            client::post(server.addr, path, &body).await.status,
            400,
            "{path} {body}"
        );
    }
    for path in ["/tokenize", "/detokenize"] {
        let body = json!({ "model": "other", "prompt": "x", "tokens": [0] });
        assert_eq!(
            client::post(server.addr, path, &body).await.status,
            404,
            "{path}"
        );
    }
    assert_eq!(
        client::get(server.addr, "/steps/stream?from=x")
            .await
            .status,
        400
    );
    let missing = client::get(server.addr, "/nothing").await;
    assert_eq!(
        (missing.status, &missing.error()["type"]),
        (404, &json!("NotFoundError"))
    );
    let method = client::get(server.addr, "/v1/completions").await;
    assert_eq!((method.status, &method.error()["code"]), (405, &json!(405)));
    server.shut_down().await;
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let stage = Stage::new(None);
    let core = FakeCore::new(&stage, |_| tokens(&[0]));
    let options = pb_server::ServerOptions {
        body_limit_bytes: 64,
        ..options()
    };
    let server = start(core, FakeText::new(&["x"]), options).await;
    let body = json!({ "prompt": "x".repeat(64) });
    let reply = client::post(server.addr, "/v1/completions", &body).await;
    assert_eq!((reply.status, &reply.error()["code"]), (413, &json!(413)));
    // Without a length in the head the limit is found while reading.
    let chunked = b"POST /v1/completions HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\
        transfer-encoding: chunked\r\n\r\n50\r\n";
    let raw = [&chunked[..], &[b' '; 0x50], b"\r\n0\r\n\r\n"].concat();
    assert_eq!(send(server.addr, &raw).await.status, 413);
    assert!(stage.calls().is_empty());
    server.shut_down().await;
}

#[tokio::test]
async fn a_refusal_of_the_core_reaches_the_client() {
    let stage = Stage::new(None);
    let core = FakeCore::new(&stage, |_| Script {
        refuse: Some("it would never fit".to_owned()),
        ..Script::default()
    });
    let server = start(core, FakeText::new(&["x"]), options()).await;
    let reply = client::post(server.addr, "/v1/completions", &json!({ "prompt": "x" })).await;
    assert_eq!(
        (reply.status, &reply.error()["message"]),
        (400, &json!("it would never fit"))
    );
    let body = json!({ "prompt": "x", "stream": true });
    let events = client::post(server.addr, "/v1/completions", &body)
        .await
        .events();
    let error: Value = serde_json::from_str(&events[0]).unwrap();
    assert_eq!(error["error"]["message"], "it would never fit");
    assert_eq!(events[1], "[DONE]");
    server.shut_down().await;
}

#[tokio::test]
async fn a_failed_step_fails_its_requests_only() {
    let stage = Stage::new(Some(0));
    let mut core = FakeCore::new(&stage, |_| tokens(&[0]));
    core.mood = Mood::LosesOne { after: 1 };
    let server = start(core, FakeText::new(&["x"]), options()).await;
    let body = json!({ "prompt": "x", "max_tokens": 4, "stream": true });
    let mut lost = Open::post(server.addr, "/v1/completions", &body).await;
    stage.permit(1);
    lost.read_until(|text| text.contains("data: {")).await;
    stage.open();
    let events = lost.rest().await.events();
    let error: Value = serde_json::from_str(&events[1]).unwrap();
    assert_eq!(error["error"]["type"], "InternalServerError");
    assert!(
        error["error"]["message"]
            .as_str()
            .unwrap()
            .contains("told to fail")
    );
    assert_eq!(events[2], "[DONE]");
    let next = client::post(server.addr, "/v1/completions", &json!({ "prompt": "x" })).await;
    assert_eq!(next.status, 200, "the engine goes on");
    assert_eq!(client::get(server.addr, "/health").await.status, 200);
    server.shut_down().await;
}

#[tokio::test]
async fn a_panic_of_the_core_is_an_error_and_not_a_hang() {
    let stage = Stage::new(None);
    let mut core = FakeCore::new(&stage, |_| tokens(&[0]));
    core.mood = Mood::Panics { after: 2 };
    let server = start(core, FakeText::new(&["x"]), options()).await;
    for _ in 0..2 {
        let reply = client::post(server.addr, "/v1/completions", &json!({ "prompt": "x" })).await;
        assert_eq!(reply.status, 500);
        assert!(
            reply.error()["message"]
                .as_str()
                .unwrap()
                .contains("told to panic")
        );
    }
    assert_eq!(client::get(server.addr, "/health").await.status, 503);
    let reply = client::post(server.addr, "/reset_prefix_cache", &json!({})).await;
    assert_eq!(reply.status, 500);
    server.shut_down().await;
}
