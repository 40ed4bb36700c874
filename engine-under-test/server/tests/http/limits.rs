//! What one client may take: text, memory, time and connections.

use std::time::Duration;

use pb_contract::Nanos;
use pb_server::ServerOptions;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::client::{self, Open, parse_response, request, send, try_send};
use crate::fake_core::{FakeCore, Stage, tokens};
use crate::fake_text::FakeText;
use crate::setup::{Server, options, start};

const PATIENCE: Duration = Duration::from_secs(60);

async fn server(options: ServerOptions) -> Server {
    let core = FakeCore::new(&Stage::new(None), |_| tokens(&[0]));
    let text = FakeText {
        chat: "!".repeat(200_000),
        ..FakeText::new(&["x", "yyyy"])
    };
    start(core, text, options).await
}

fn head(length: usize) -> Vec<u8> {
    let whole = request("POST", "/v1/completions", "", b"");
    let whole = String::from_utf8(whole).unwrap();
    let length = format!("content-length: {length}");
    whole.replace("content-length: 0", &length).into_bytes()
}

#[tokio::test]
async fn a_text_that_cannot_fit_is_refused_before_it_is_tokenized() {
    let server = server(options()).await;
    // The context is 8192 tokens of at most four bytes, and 64 KiB are let pass. The vocabulary
    // has no "!": had the text been tokenized, the error would say so.
    let long = "!".repeat(65_536 + 4 * 8192 + 1);
    let expected = "This model's maximum context length is 8192 tokens. However, your prompt \
                    contains at least 8193 input tokens, which exceeds this limit even without \
                    any output tokens. Please reduce the length of the input prompt. \
                    (parameter=input_tokens, value=8193)";
    for prompt in [json!(long), json!(["x", long])] {
        let body = json!({ "prompt": prompt });
        let reply = client::post(server.addr, "/v1/completions", &body).await;
        let error = reply.error();
        assert_eq!(
            (reply.status, &error["param"]),
            (400, &json!("input_tokens"))
        );
        assert_eq!(error["message"], expected);
    }
    let body = json!({ "prompt": long[1..] });
    let reply = client::post(server.addr, "/v1/completions", &body).await;
    let message = reply.error()["message"].to_string();
    assert!(message.contains("no token for"), "{message}");
    // Ids are counted, not estimated; the id 9 is not looked at.
    let body = json!({ "prompt": vec![9; 8193] });
    let reply = client::post(server.addr, "/v1/completions", &body).await;
    let message = reply.error()["message"].to_string();
    assert!(message.contains("contains 8193 input tokens"), "{message}");
    // What a chat template makes of a conversation is checked in the same way.
    let body = json!({ "messages": [{ "role": "user", "content": "x" }] });
    let reply = client::post(server.addr, "/v1/chat/completions", &body).await;
    let message = reply.error()["message"].to_string();
    assert!(message.contains("at least 33616 input tokens"), "{message}");
    server.shut_down().await;
}

#[tokio::test]
async fn the_tokenizers_paths_have_a_limit_of_their_own() {
    let options = ServerOptions {
        text_limit_bytes: 100,
        ..options()
    };
    let server = server(options).await;
    let text = "x".repeat(60);
    let reply = client::post(server.addr, "/tokenize", &json!({ "prompt": text })).await;
    assert_eq!(reply.json()["count"], 60);
    let ids = json!({ "tokens": vec![0; 40] });
    let reply = client::post(server.addr, "/detokenize", &ids).await;
    assert_eq!(reply.json()["prompt"], "x".repeat(40));
    let (text, ids) = ("x".repeat(100), vec![0; 50]);
    for (path, body) in [
        ("/tokenize", json!({ "prompt": text })),
        ("/detokenize", json!({ "tokens": ids })),
    ] {
        let reply = client::post(server.addr, path, &body).await;
        assert_eq!((reply.status, &reply.error()["code"]), (413, &json!(413)));
        let message = reply.error()["message"].to_string();
        assert!(message.contains("limit of 100 bytes"), "{message}");
    }
    // The answer also reaches a client that sends a large body to its end before it reads.
    let body = json!({ "prompt": "x".repeat(8 << 20) });
    let reply = client::post(server.addr, "/tokenize", &body).await;
    assert_eq!(reply.status, 413);
    let reply = client::post(server.addr, "/v1/completions", &json!({ "prompt": text })).await;
    assert_eq!(reply.status, 200, "other paths keep theirs");
    server.shut_down().await;
}

#[tokio::test]
async fn bodies_share_one_memory_and_give_it_back() {
    const LIMIT: usize = 1 << 20;
    let options = ServerOptions {
        body_limit_bytes: LIMIT,
        held_bodies_bytes: 0,
        ..options()
    };
    let server = server(options).await;
    let body = json!({ "prompt": "x", "ignored": "i".repeat(LIMIT / 2) });
    let raw = request("POST", "/v1/completions", "", body.to_string().as_bytes());
    // Announced only: costs nothing.
    let announced = Open::raw(server.addr, &head(LIMIT), None).await;
    assert_eq!(send(server.addr, &raw).await.status, 200);
    // Which of two bodies finds the memory full depends on who is read first: try until it is
    // the second.
    let fill = async {
        loop {
            let mut partial = Open::raw(server.addr, &head(LIMIT), None).await;
            partial.stream.write_all(&[b' '; LIMIT - 1]).await.unwrap();
            let reply = send(server.addr, &raw).await;
            if reply.status == 503 {
                return (partial, reply);
            }
        }
    };
    let (partial, refused) = timeout(PATIENCE, fill).await.expect("the memory is full");
    let message = refused.error()["message"].to_string();
    assert!(message.contains("bodies in flight"), "{message}");
    assert!(refused.head.contains("retry-after: 1"));
    drop(partial);
    let free = async { while send(server.addr, &raw).await.status != 200 {} };
    timeout(PATIENCE, free)
        .await
        .expect("the memory is free again");
    drop(announced);
    server.shut_down().await;
}

#[tokio::test]
async fn a_body_must_arrive_in_time() {
    let options = ServerOptions {
        body_timeout: Nanos::from_millis(50),
        ..options()
    };
    let server = server(options).await;
    let mut slow = Open::raw(server.addr, &head(100), None).await;
    slow.stream.write_all(b"{\"prompt\"").await.unwrap();
    let reply = timeout(PATIENCE, slow.rest()).await.expect("still waiting");
    assert_eq!((reply.status, &reply.error()["code"]), (408, &json!(408)));
    server.shut_down().await;
}

#[tokio::test]
async fn a_silent_connection_is_closed() {
    let options = ServerOptions {
        // Longer than a busy machine keeps this test between a connection and its first bytes.
        head_timeout: Nanos::from_millis(1_000),
        ..options()
    };
    let server = server(options).await;
    // Nothing, half a head, and a kept connection without a second request.
    for (sent, answered) in [
        ("", false),
        ("GET /health HTTP/1.1\r\nhost: t", false),
        ("GET /health HTTP/1.1\r\nhost: t\r\n\r\n", true),
    ] {
        let mut stream = TcpStream::connect(server.addr).await.unwrap();
        stream.write_all(sent.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let read = timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
        read.expect("still open").unwrap();
        assert_eq!(!answer.is_empty(), answered, "{sent:?}");
        if answered {
            assert_eq!(parse_response(&answer).status, 200);
        }
    }
    server.shut_down().await;
}

#[tokio::test]
async fn connections_beyond_the_limit_wait() {
    let options = ServerOptions {
        max_connections: 2,
        ..options()
    };
    let server = server(options).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let raw = b"GET /health HTTP/1.1\r\nhost: t\r\n\r\n";
        let mut open = Open::raw(server.addr, raw, None).await;
        open.read_until(|text| text.ends_with("\r\n\r\n")).await;
        held.push(open);
    }
    let mut third = Open::raw(server.addr, &request("GET", "/health", "", b""), None).await;
    let early = third.read_until(|text| !text.is_empty());
    let early = timeout(Duration::from_millis(100), early).await;
    assert!(early.is_err(), "answered beyond the limit");
    held.pop();
    let reply = timeout(PATIENCE, third.rest()).await;
    assert_eq!(reply.expect("still waiting").status, 200);
    drop(held);
    server.shut_down().await;
}

#[tokio::test]
async fn a_head_has_a_largest_size() {
    let server = server(options()).await;
    let header = format!("x-long: {}\r\n", "l".repeat(60 << 10));
    let fits = send(server.addr, &request("GET", "/health", &header, b"")).await;
    assert_eq!(fits.status, 200);
    let header = format!("x-long: {}\r\n", "l".repeat(300 << 10));
    let reply = try_send(server.addr, &request("GET", "/health", &header, b"")).await;
    assert!(reply.is_none_or(|reply| reply.status == 431));
    server.shut_down().await;
}
