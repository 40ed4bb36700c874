//! Workers that fail, at each point of a request.
//!
//! Before the client has seen anything the request starts elsewhere; after that it is told of an
//! error. In no case is a token missing or twice in an answer that ends well.

use pb_contract::Nanos;
use pb_router::Pool;
use pb_router::http::RouterOptions;
use tokio::io::AsyncReadExt;

use crate::setup::{Reply, Running, get, open, options, pair, post, start, until};
use crate::worker::{Step, Worker, answer, chunk, stream, stream_end, stream_head};

const STREAM: &str = r#"{"prompt":[1,2,3,4,5],"stream":true}"#;
const WHOLE: &str = r#"{"prompt":[1,2,3,4,5]}"#;
const FIRST: &str = "\
    {\"id\":\"p\",\"created\":1,\"choices\":[{\"index\":0,\"text\":\"A\",\
    \"finish_reason\":null}],\"kv_transfer_params\":{\"transfer_id\":7,\"finished\":false}}";
const SECOND: &str =
    r#"{"id":"d","created":2,"choices":[{"index":0,"text":"B","finish_reason":"stop"}]}"#;
const UNAVAILABLE: &str =
    r#"{"error":{"message":"busy","type":"ServiceUnavailableError","param":null,"code":503}}"#;
const TRANSFER_FAILED: &str =
    r#"{"error":{"message":"lost","type":"kv_transfer_failed","param":null,"code":503}}"#;

/// Two prefill workers, one decode worker, and the router.
async fn trio() -> (Worker, Worker, Worker, Running) {
    let (a, b) = (Worker::of("prefill").await, Worker::of("prefill").await);
    let decode = Worker::of("decode").await;
    let workers = [
        (Pool::Prefill, &a),
        (Pool::Prefill, &b),
        (Pool::Decode, &decode),
    ];
    let running = start(options(&workers)).await;
    (a, b, decode, running)
}

/// The texts of an answer that ended well, joined; the error's message otherwise.
fn outcome(reply: &Reply) -> Result<String, String> {
    if reply.status != 200 {
        return Err(reply.json()["error"]["message"]
            .as_str()
            .unwrap()
            .to_owned());
    }
    let events = reply.events();
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
    assert_eq!(events.iter().filter(|event| *event == "[DONE]").count(), 1);
    let mut text = String::new();
    for event in &events[..events.len() - 1] {
        let event: serde_json::Value = serde_json::from_str(event).unwrap();
        if let Some(message) = event["error"]["message"].as_str() {
            return Err(message.to_owned());
        }
        text += event["choices"][0]["text"].as_str().unwrap();
    }
    Ok(text)
}

/// What a prefill worker may do before anything has reached the client.
fn early_failures() -> Vec<(&'static str, Vec<Step>)> {
    vec![
        ("cut before the head", vec![]),
        ("503", answer("503 Service Unavailable", UNAVAILABLE)),
        ("429", answer("429 Too Many Requests", UNAVAILABLE)),
        ("500", answer("500 Internal Server Error", "oops")),
        ("no HTTP", vec![Step::Send(b"hello\r\n\r\n".to_vec())]),
        ("cut after the head", vec![stream_head()]),
        ("an empty stream", vec![stream_head(), stream_end()]),
        (
            "cut within the first event",
            vec![stream_head(), chunk("data: {\"id\"")],
        ),
        (
            "the end within the first event",
            vec![stream_head(), chunk("data: {\"id\"\n"), stream_end()],
        ),
        ("an error in the first event", stream(&[UNAVAILABLE])),
        ("no JSON", stream(&["{"])),
        ("only the end", stream(&[])),
    ]
}

#[tokio::test]
async fn before_the_first_byte_a_request_starts_elsewhere() {
    for (name, steps) in early_failures() {
        let (a, b, decode, running) = trio().await;
        a.script(steps);
        b.script(stream(&[FIRST]));
        decode.script(stream(&[SECOND]));
        let reply = post(running.addr, "/v1/completions", STREAM).await;
        assert_eq!(outcome(&reply), Ok("AB".to_owned()), "{name}");
        assert_eq!(reply.header("x-prefillbench-retries"), Some("1"), "{name}");
        assert_eq!((a.seen().len(), b.seen().len()), (1, 1), "{name}");
        let page = get(running.addr, "/metrics").await.text();
        assert!(
            page.contains("prefillbench_router_retries_total 1\n"),
            "{page}"
        );
    }
}

#[tokio::test]
async fn a_request_that_fails_everywhere_says_so() {
    for stream in [true, false] {
        let (a, b, _, running) = trio().await;
        for worker in [&a, &b] {
            worker.script(answer("503 Service Unavailable", UNAVAILABLE));
            worker.script(answer("503 Service Unavailable", UNAVAILABLE));
        }
        let body = if stream { STREAM } else { WHOLE };
        let reply = post(running.addr, "/v1/completions", body).await;
        assert_eq!(reply.status, 503);
        let message = reply.json()["error"]["message"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(
            message.contains("503") && message.contains("busy"),
            "{message}"
        );
        // Once, and two more times.
        assert_eq!(a.seen().len() + b.seen().len(), 3);
    }
}

#[tokio::test]
async fn a_request_that_is_wrong_is_refused_once() {
    let wrong = r#"{"error":{"message":"no such model","type":"NotFoundError","code":404}}"#;
    for stream in [true, false] {
        let (a, b, _, running) = trio().await;
        a.script(answer("404 Not Found", wrong));
        let body = if stream { STREAM } else { WHOLE };
        let reply = post(running.addr, "/v1/completions", body).await;
        assert_eq!((reply.status, reply.text()), (404, wrong.to_owned()));
        assert_eq!((a.seen().len(), b.seen().len()), (1, 0));
    }
}

#[tokio::test]
async fn after_the_first_token_a_failure_ends_the_answer_with_an_error() {
    let token = FIRST.replace(
        r#","kv_transfer_params":{"transfer_id":7,"finished":false}"#,
        "",
    );
    let token_chunk = || chunk(&format!("data: {token}\n\n"));
    let of_prefill = vec![
        ("prefill: cut", vec![stream_head(), token_chunk()]),
        (
            "prefill: ended",
            vec![stream_head(), token_chunk(), stream_end()],
        ),
        ("prefill: no word of the KV", stream(&[&token])),
        ("prefill: an error", stream(&[&token, UNAVAILABLE])),
        ("prefill: nonsense", stream(&[&token, "["])),
    ];
    for (name, steps) in of_prefill {
        let (a, b, decode, running) = trio().await;
        a.script(steps);
        let reply = post(running.addr, "/v1/completions", STREAM).await;
        assert!(outcome(&reply).is_err(), "{name}: {reply:?}");
        assert_eq!(reply.events()[0], token, "{name}");
        assert_eq!((b.seen().len(), decode.seen().len()), (0, 0), "{name}");
    }
    let half = SECOND.replace("\"stop\"", "null");
    let of_decode = vec![
        (
            "decode: 503",
            answer("503 Service Unavailable", TRANSFER_FAILED),
        ),
        ("decode: an error first", stream(&[TRANSFER_FAILED])),
        ("decode: an error later", stream(&[&half, TRANSFER_FAILED])),
        (
            "decode: cut",
            vec![stream_head(), chunk(&format!("data: {half}\n\n"))],
        ),
        (
            "decode: ended without [DONE]",
            vec![
                stream_head(),
                chunk(&format!("data: {half}\n\n")),
                stream_end(),
            ],
        ),
        ("decode: nonsense", stream(&["nonsense"])),
    ];
    for (name, steps) in of_decode {
        let (a, b, decode, running) = trio().await;
        a.script(stream(&[FIRST]));
        decode.script(steps);
        let reply = post(running.addr, "/v1/completions", STREAM).await;
        assert!(outcome(&reply).is_err(), "{name}: {reply:?}");
        assert_eq!(reply.events()[0], token, "{name}");
        assert_eq!((b.seen().len(), decode.seen().len()), (0, 1), "{name}");
        let page = get(running.addr, "/metrics").await.text();
        let failed = "prefillbench_router_requests_total{outcome=\"failed\"} 1\n";
        assert!(page.contains(failed), "{name}: {page}");
    }
}

#[tokio::test]
async fn a_decode_worker_that_is_lost_before_its_first_event_is_replaced() {
    let first: serde_json::Value = serde_json::from_str(FIRST).unwrap();
    for body in [STREAM, WHOLE] {
        let lost = match body == STREAM {
            true => vec![
                ("cut before the head", vec![]),
                ("cut after the head", vec![stream_head()]),
                ("an empty stream", vec![stream_head(), stream_end()]),
                (
                    "cut within the first event",
                    vec![stream_head(), chunk("data: {\"id\"")],
                ),
            ],
            false => vec![("cut before the head", vec![])],
        };
        for (name, steps) in lost {
            let prefill = Worker::of("prefill").await;
            let (a, b) = (Worker::of("decode").await, Worker::of("decode").await);
            let workers = [
                (Pool::Prefill, &prefill),
                (Pool::Decode, &a),
                (Pool::Decode, &b),
            ];
            let running = start(options(&workers)).await;
            a.script(steps);
            if body == STREAM {
                prefill.script(stream(&[FIRST]));
                b.script(stream(&[SECOND]));
            } else {
                prefill.script(answer("200 OK", FIRST));
                b.script(answer("200 OK", SECOND));
            }
            let reply = post(running.addr, "/v1/completions", body).await;
            let text = match body == STREAM {
                true => outcome(&reply).unwrap(),
                false => reply.json()["choices"][0]["text"]
                    .as_str()
                    .unwrap()
                    .to_owned(),
            };
            assert_eq!(text, "AB", "{name}");
            // The prompt is computed once, and the second gets what the first one got.
            let seen = [prefill.seen().len(), a.seen().len(), b.seen().len()];
            assert_eq!(seen, [1, 1, 1], "{name}");
            assert_eq!(
                b.seen()[0].json()["kv_transfer_params"],
                first["kv_transfer_params"]
            );
            until("nothing is alive", || idle(&running)).await;
        }
    }
    // Nobody else is there: the same one, as often as a request may start again.
    let (prefill, decode, running) = pair().await;
    prefill.script(stream(&[FIRST]));
    (0..3).for_each(|_| decode.script(vec![]));
    let reply = post(running.addr, "/v1/completions", STREAM).await;
    assert!(outcome(&reply).unwrap_err().contains("too early"));
    assert_eq!((prefill.seen().len(), decode.seen().len()), (1, 3));
}

/// Its connections stand, but nothing comes any more: neither an answer nor a poll's.
#[tokio::test]
async fn a_decode_worker_that_hangs_before_its_first_event_is_replaced() {
    for (body, steps) in [
        (STREAM, vec![stream_head(), Step::UntilClosed]),
        (STREAM, vec![Step::UntilClosed]),
        (WHOLE, vec![Step::UntilClosed]),
    ] {
        let prefill = Worker::of("prefill").await;
        let (a, b) = (Worker::of("decode").await, Worker::of("decode").await);
        let workers = [
            (Pool::Prefill, &prefill),
            (Pool::Decode, &a),
            (Pool::Decode, &b),
        ];
        let running = start(options(&workers)).await;
        a.script(steps);
        let streams = body == STREAM;
        let whole = |event| match streams {
            true => stream(&[event]),
            false => answer("200 OK", event),
        };
        prefill.script(whole(FIRST));
        b.script(whole(SECOND));
        let addr = running.addr;
        let asked = tokio::spawn(async move { post(addr, "/v1/completions", body).await });
        until("the first has it", || async { a.seen().len() == 1 }).await;
        a.deafen();
        let reply = asked.await.unwrap();
        if streams {
            assert_eq!(outcome(&reply), Ok("AB".to_owned()));
        } else {
            assert_eq!(reply.json()["choices"][0]["text"], "AB");
        }
        assert_eq!((prefill.seen().len(), b.seen().len()), (1, 1));
        until("the hung one is left", || async { a.closed() == 1 }).await;
        until("nothing is alive", || idle(&running)).await;
    }
}

#[tokio::test]
async fn an_answer_that_is_not_streamed_starts_again_after_any_failure() {
    for (name, steps) in [
        ("cut", vec![]),
        ("503", answer("503 Service Unavailable", TRANSFER_FAILED)),
        ("no JSON", answer("200 OK", "{")),
    ] {
        let (a, b, decode, running) = trio().await;
        a.script(answer("200 OK", FIRST));
        decode.script(steps);
        b.script(answer("200 OK", &FIRST.replace("\"A\"", "\"a\"")));
        // A second hand-over of the same prefill worker would be asked of `a`.
        a.script(answer("200 OK", FIRST));
        decode.script(answer("200 OK", SECOND));
        let reply = post(running.addr, "/v1/completions", WHOLE).await;
        assert_eq!(reply.status, 200, "{name}: {}", reply.text());
        let text = reply.json()["choices"][0]["text"]
            .as_str()
            .unwrap()
            .to_lowercase();
        assert_eq!(text, "ab", "{name}");
        assert_eq!(reply.header("x-prefillbench-retries"), Some("1"), "{name}");
        assert_eq!(decode.seen().len(), 2, "{name}");
    }
}

#[tokio::test]
async fn a_worker_that_is_silent_is_given_up() {
    let (a, b, decode) = (
        Worker::of("prefill").await,
        Worker::of("prefill").await,
        Worker::of("decode").await,
    );
    let workers = [
        (Pool::Prefill, &a),
        (Pool::Prefill, &b),
        (Pool::Decode, &decode),
    ];
    let running = start(RouterOptions {
        silence_ns: Nanos::from_secs(10),
        ..options(&workers)
    })
    .await;
    // Before the first byte: elsewhere, and the silent one is left.
    a.script(vec![Step::UntilClosed]);
    b.script(stream(&[FIRST]));
    decode.script(stream(&[SECOND]));
    let reply = post(running.addr, "/v1/completions", STREAM).await;
    assert_eq!(reply.header("x-prefillbench-retries"), Some("1"));
    assert_eq!(outcome(&reply), Ok("AB".to_owned()));
    until("the silent worker is left", || async { a.closed() == 1 }).await;
    // In the middle: an error.
    for worker in [&a, &b] {
        worker.script(stream(&[FIRST]));
    }
    decode.script(vec![stream_head(), Step::UntilClosed]);
    let reply = post(running.addr, "/v1/completions", STREAM).await;
    assert!(outcome(&reply).unwrap_err().contains("silent"));
}

/// Whether the router has no request any more.
async fn idle(running: &Running) -> bool {
    let page = get(running.addr, "/metrics").await.text();
    page.contains("prefillbench_router_live_requests 0\n")
}

#[tokio::test]
async fn a_client_that_leaves_is_left_by_its_workers() {
    for body in [STREAM, WHOLE] {
        // While its prompt is computed.
        let (prefill, _, running) = pair().await;
        prefill.script(vec![Step::UntilClosed]);
        let client = open(running.addr, "/v1/completions", body).await;
        until("the prefill worker has it", || async {
            prefill.seen().len() == 1
        })
        .await;
        drop(client);
        until("the prefill worker is left", || async {
            prefill.closed() == 1
        })
        .await;
        until("nothing is alive", || idle(&running)).await;
        // While its KV is fetched.
        let (prefill, decode, running) = pair().await;
        prefill.script(if body == STREAM {
            stream(&[FIRST])
        } else {
            answer("200 OK", FIRST)
        });
        decode.script(vec![Step::UntilClosed]);
        let client = open(running.addr, "/v1/completions", body).await;
        until("the decode worker has it", || async {
            decode.seen().len() == 1
        })
        .await;
        drop(client);
        until("the decode worker is left", || async {
            decode.closed() == 1
        })
        .await;
        until("nothing is alive", || idle(&running)).await;
        let page = get(running.addr, "/metrics").await.text();
        assert!(
            page.contains("requests_total{outcome=\"cancelled\"} 1\n"),
            "{page}"
        );
    }
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_its_answer_is_left_too() {
    let (prefill, decode, running) = pair().await;
    prefill.script(stream(&[FIRST]));
    let half = SECOND.replace("\"stop\"", "null");
    decode.script(vec![
        stream_head(),
        chunk(&format!("data: {half}\n\n")),
        Step::UntilClosed,
    ]);
    let mut client = open(running.addr, "/v1/completions", STREAM).await;
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("\"B\"") {
        let mut buffer = [0; 512];
        let n = client.read(&mut buffer).await.unwrap();
        assert!(n > 0);
        seen.extend(&buffer[..n]);
    }
    drop(client);
    until("the decode worker is left", || async {
        decode.closed() == 1
    })
    .await;
    until("nothing is alive", || idle(&running)).await;
}
