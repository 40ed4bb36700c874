//! The router as a server: small paths, keys, bounds.

use std::sync::Arc;

use pb_contract::{Nanos, WallClock};
use pb_router::http::{RouterError, RouterOptions, serve};
use pb_router::{CostParams, Pool, RouterConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::setup::{get, options, pair, post, raw, send, start};
use crate::worker::{Worker, answer};

#[tokio::test]
async fn small_paths_are_passed_on_or_answered() {
    let (_, decode, running) = pair().await;
    let models = get(running.addr, "/v1/models").await;
    assert_eq!(models.json()["data"][0]["id"], "m");
    let tokens = post(running.addr, "/tokenize", r#"{"prompt":"ab"}"#).await;
    assert_eq!(tokens.json()["tokens"], serde_json::json!([97, 98]));
    let health = get(running.addr, "/health").await;
    assert_eq!(
        (health.status, health.json()["up"].as_u64()),
        (200, Some(2))
    );
    let reset = post(running.addr, "/reset_prefix_cache", "").await;
    assert_eq!(reset.json()["success"], true);
    assert_eq!(get(running.addr, "/metrics").await.status, 200);
    let missing = get(running.addr, "/v1/embeddings").await;
    assert_eq!(
        (missing.status, missing.json()["error"]["code"].as_u64()),
        (404, Some(404))
    );
    assert_eq!(get(running.addr, "/v1/completions").await.status, 405);
    assert!(decode.seen().is_empty());
}

/// A cold run must not begin on a cache that only some workers have emptied.
#[tokio::test]
async fn a_reset_is_a_success_when_every_worker_says_so() {
    let (prefill, decode, running) = pair().await;
    let reset = async || post(running.addr, "/reset_prefix_cache", "").await;
    for (status, body, expected, said) in [
        ("200 OK", "", 200, r#"{"success":true}"#),
        (
            "200 OK",
            r#"{"success":false}"#,
            200,
            r#"{"success":false}"#,
        ),
        ("404 Not Found", "{}", 404, "has no /reset_prefix_cache"),
        ("403 Forbidden", "{}", 502, "it answers 403"),
        ("500 Internal Server Error", "{}", 502, "it answers 500"),
    ] {
        for worker in [&prefill, &decode] {
            worker.resets(status, body);
            let reply = reset().await;
            assert_eq!(reply.status, expected, "{status} {body}");
            assert!(reply.text().contains(said), "{}", reply.text());
            worker.resets("200 OK", "");
        }
    }
    // One that nobody reaches.
    let gone = Worker::of("decode").await;
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut options = options(&[(Pool::Mixed, &gone)]);
    let url = format!("http://{}", nobody.local_addr().unwrap());
    drop(nobody);
    options.workers[0].1 = pb_router::http::WorkerUrl::parse(&url).unwrap();
    let running = start(options).await;
    let reply = post(running.addr, "/reset_prefix_cache", "").await;
    assert_eq!(reply.status, 502);
    assert!(reply.text().contains("was not reset"), "{}", reply.text());
}

#[tokio::test]
async fn bodies_that_are_wrong_reach_no_worker() {
    let (prefill, decode, running) = pair().await;
    for body in [
        "",
        "{",
        "[1]",
        r#"{"prompt":"a","stream":"yes"}"#,
        r#"{"prompt":"a","kv_transfer_params":{"do_remote_prefill":true}}"#,
    ] {
        let reply = post(running.addr, "/v1/completions", body).await;
        assert_eq!(reply.status, 400, "{body}");
        assert!(reply.json()["error"]["message"].is_string());
    }
    assert!(prefill.seen().is_empty() && decode.seen().is_empty());
}

#[tokio::test]
async fn bodies_are_bounded_in_size_memory_and_time() {
    let worker = Worker::of("both").await;
    let bounded = RouterOptions {
        body_limit_bytes: 100,
        held_bodies_bytes: 100,
        ..options(&[(Pool::Mixed, &worker)])
    };
    let hasty = RouterOptions {
        body_timeout_ns: Nanos::from_millis(300),
        ..bounded.clone()
    };
    let running = start(bounded).await;
    let long = format!(r#"{{"prompt":"{}"}}"#, "x".repeat(200));
    let reply = post(running.addr, "/v1/completions", &long).await;
    assert_eq!(reply.status, 413);
    // Announced and not sent.
    let hasty = start(hasty).await;
    let mut slow = TcpStream::connect(hasty.addr).await.unwrap();
    let bytes = raw("POST", "/v1/completions", "", &[b' '; 90]);
    slow.write_all(&bytes[..bytes.len() - 10]).await.unwrap();
    let mut answer_bytes = Vec::new();
    slow.read_to_end(&mut answer_bytes).await.unwrap();
    assert!(
        answer_bytes.starts_with(b"HTTP/1.1 408"),
        "{answer_bytes:?}"
    );
    // And what was refused holds no memory.
    worker.script(answer("200 OK", "{}"));
    let reply = post(running.addr, "/v1/completions", r#"{"prompt":"a"}"#).await;
    assert_eq!(reply.status, 200);
    assert!(worker.seen().len() == 1);
}

#[tokio::test]
async fn keys_open_the_router_and_the_workers_and_stay_inside() {
    let worker = Worker::of("both").await;
    let keyed = RouterOptions {
        api_key: Some("client-key".to_owned()),
        worker_key: Some("worker-key".to_owned()),
        ..options(&[(Pool::Mixed, &worker)])
    };
    let shown = format!("{keyed:?}");
    assert!(!shown.contains("client-key") && !shown.contains("worker-key"));
    let running = start(keyed).await;
    let body = br#"{"prompt":"a"}"#;
    for headers in [
        "",
        "authorization: Bearer wrong\r\n",
        "authorization: client-key\r\n",
    ] {
        let reply = send(running.addr, &raw("POST", "/v1/completions", headers, body)).await;
        assert_eq!(reply.status, 401);
    }
    assert_eq!(get(running.addr, "/health").await.status, 200);
    worker.script(answer("200 OK", "{}"));
    let headers = "authorization: Bearer client-key\r\n";
    let reply = send(running.addr, &raw("POST", "/v1/completions", headers, body)).await;
    assert_eq!(reply.status, 200);
    let head = &worker.seen()[0].head;
    assert!(head.contains("authorization: bearer worker-key"), "{head}");
    assert!(!head.contains("client-key"), "{head}");

    // Without a key of its own the router passes on what the client sent.
    let worker = Worker::of("both").await;
    let running = start(options(&[(Pool::Mixed, &worker)])).await;
    worker.script(answer("200 OK", "{}"));
    let headers = "authorization: Bearer any\r\nx-other: y\r\n";
    send(running.addr, &raw("POST", "/v1/completions", headers, body)).await;
    let head = &worker.seen()[0].head;
    assert!(head.contains("authorization: bearer any"), "{head}");
}

#[tokio::test]
async fn what_cannot_work_is_refused_at_the_start() {
    let worker = Worker::of("both").await;
    let try_start = async |options: RouterOptions| {
        let say = Box::new(|_: &str| {});
        let stop = std::future::ready(());
        serve(options, Arc::new(WallClock), say, |_| {}, stop).await
    };
    let mut none = options(&[(Pool::Prefill, &worker)]);
    assert!(matches!(
        try_start(none.clone()).await,
        Err(RouterError::NoWorkers)
    ));
    none.workers.clear();
    assert!(matches!(try_start(none).await, Err(RouterError::NoWorkers)));
    let good = options(&[(Pool::Mixed, &worker)]);
    let open = RouterOptions {
        worker_key: Some("k".to_owned()),
        ..good.clone()
    };
    assert!(matches!(try_start(open).await, Err(RouterError::OpenKey)));
    let odd = RouterOptions {
        api_key: Some("a b\n".to_owned()),
        ..good.clone()
    };
    assert!(matches!(try_start(odd).await, Err(RouterError::Key)));
    let rules = RouterOptions {
        router: RouterConfig {
            cost: CostParams {
                temperature: -1.0,
                ..CostParams::default()
            },
            ..RouterConfig::default()
        },
        ..good.clone()
    };
    let error = try_start(rules).await.unwrap_err().to_string();
    assert!(error.contains("temperature = -1"), "{error}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let occupied = RouterOptions {
        port: taken.local_addr().unwrap().port(),
        ..good
    };
    assert!(matches!(
        try_start(occupied).await,
        Err(RouterError::Bind { .. })
    ));
}
