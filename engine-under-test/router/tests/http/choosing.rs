//! Who gets a request, over HTTP.

use pb_contract::Nanos;
use pb_kv::{CacheScope, HashedTokens};
use pb_router::http::RouterOptions;
use pb_router::{Pool, RouterConfig};
use serde_json::json;

use crate::setup::{get, open, options, post, start, until};
use crate::worker::{Step, Worker, answer, info};

const ANSWER: &str = "\
    {\"id\":\"x\",\"choices\":[{\"index\":0,\"text\":\"A\",\"finish_reason\":\"stop\"}],\
    \"kv_transfer_params\":{\"finished\":true}}";

/// Names of the blocks of four of these tokens, as the workers have them.
fn names(tokens: &[u32], salt: Option<&str>) -> Vec<String> {
    let scope = CacheScope {
        salt: salt.map(str::to_owned),
        ..CacheScope::default()
    };
    let mut sequence = HashedTokens::new(4, &scope);
    sequence.extend(tokens);
    let hex = |hash: &pb_kv::BlockHash| hash.0.iter().map(|b| format!("{b:02x}")).collect();
    sequence.hashes().iter().map(hex).collect()
}

#[tokio::test]
async fn a_prompt_goes_where_its_prefix_is() {
    let (a, b, decode) = (
        Worker::of("prefill").await,
        Worker::of("prefill").await,
        Worker::of("decode").await,
    );
    let text: Vec<u32> = b"a text of some blocks"
        .iter()
        .map(|&b| u32::from(b))
        .collect();
    b.stored(&names(&[1, 2, 3, 4, 5, 6, 7, 8], None));
    b.stored(&names(&text, None));
    b.stored(&names(&[9, 9, 9, 9, 9], Some("tenant")));
    let workers = [
        (Pool::Prefill, &a),
        (Pool::Prefill, &b),
        (Pool::Decode, &decode),
    ];
    let running = start(options(&workers)).await;
    // The worker's events have been read once before the router is ready; the answer to the
    // first question only settles which are reported.
    until("events are read", || async { b.polls() >= 2 }).await;
    for (body, to_b) in [
        (r#"{"model":"m","prompt":[1,2,3,4,5,6,7,8,9]}"#, true),
        (r#"{"prompt":[1,2,3,4,9]}"#, true),
        (r#"{"prompt":[2,2,3,4,5]}"#, false),
        // Text is tokenized by a worker.
        (r#"{"model":"m","prompt":"a text of some blocks"}"#, true),
        (r#"{"prompt":"another text of blocks"}"#, false),
        // A tenant's blocks are its own.
        (r#"{"prompt":[9,9,9,9,9],"cache_salt":"tenant"}"#, true),
        (r#"{"prompt":[9,9,9,9,9],"cache_salt":"other"}"#, false),
        (r#"{"prompt":[9,9,9,9,9]}"#, false),
        // Of an adapter's blocks nothing is known.
        (r#"{"model":"adapter","prompt":[1,2,3,4,5]}"#, false),
    ] {
        let before = (a.seen().len(), b.seen().len());
        let chosen = if to_b { &b } else { &a };
        chosen.script(answer("200 OK", ANSWER));
        let reply = post(running.addr, "/v1/completions", body).await;
        assert_eq!(reply.status, 200, "{body}");
        let after = (a.seen().len(), b.seen().len());
        let expected = (before.0 + usize::from(!to_b), before.1 + usize::from(to_b));
        assert_eq!(after, expected, "{body}");
    }
}

#[tokio::test]
async fn a_worker_of_the_wrong_role_gets_nothing() {
    let (wrong, decode) = (Worker::of("decode").await, Worker::of("decode").await);
    let workers = [(Pool::Prefill, &wrong), (Pool::Decode, &decode)];
    let running = start(options(&workers)).await;
    decode.script(answer("200 OK", "{}"));
    let reply = post(running.addr, "/v1/completions", r#"{"prompt":[1]}"#).await;
    assert_eq!(reply.header("x-prefillbench-route"), Some("whole"));
    assert!(wrong.seen().is_empty());
}

#[tokio::test]
async fn a_server_that_knows_nothing_of_routers_serves_too() {
    let plain = Worker::start(json!(null)).await;
    let running = start(options(&[(Pool::Mixed, &plain)])).await;
    plain.script(answer("200 OK", "{}"));
    let reply = post(running.addr, "/v1/completions", r#"{"prompt":"x"}"#).await;
    assert_eq!(reply.status, 200);
}

#[tokio::test]
async fn a_full_queue_refuses_and_drains() {
    let (prefill, decode) = (Worker::of("prefill").await, Worker::of("decode").await);
    let workers = [(Pool::Prefill, &prefill), (Pool::Decode, &decode)];
    let running = start(RouterOptions {
        router: RouterConfig {
            max_prefills: 1,
            queue_max: 1,
            queue_timeout_ns: Nanos::from_secs(600),
            ..RouterConfig::default()
        },
        ..options(&workers)
    })
    .await;
    let slow = || {
        let mut steps = vec![Step::UntilReleased];
        steps.extend(answer("200 OK", ANSWER));
        steps
    };
    prefill.script(slow());
    prefill.script(slow());
    let body = r#"{"prompt":[1,2,3]}"#;
    let addr = running.addr;
    let first = tokio::spawn(async move { post(addr, "/v1/completions", body).await.status });
    until("the worker has the first", || async {
        prefill.seen().len() == 1
    })
    .await;
    let second = tokio::spawn(async move { post(addr, "/v1/completions", body).await.status });
    until("the second waits", || async {
        let page = get(addr, "/metrics").await.text();
        page.contains("prefillbench_router_queue_depth 1\n")
    })
    .await;
    let third = post(addr, "/v1/completions", body).await;
    assert_eq!(third.status, 429);
    assert_eq!(third.header("retry-after"), Some("1"));
    assert_eq!(third.json()["error"]["code"], 429);
    prefill.release();
    assert_eq!((first.await.unwrap(), second.await.unwrap()), (200, 200));
    assert_eq!(prefill.seen().len(), 2);
}

#[tokio::test]
async fn a_request_waits_no_longer_than_it_may() {
    let (prefill, decode) = (Worker::of("prefill").await, Worker::of("decode").await);
    let workers = [(Pool::Prefill, &prefill), (Pool::Decode, &decode)];
    let running = start(RouterOptions {
        router: RouterConfig {
            max_prefills: 1,
            queue_timeout_ns: Nanos::from_millis(100),
            ..RouterConfig::default()
        },
        ..options(&workers)
    })
    .await;
    prefill.script(vec![Step::UntilClosed]);
    let body = r#"{"prompt":[1,2,3]}"#;
    let _client = open(running.addr, "/v1/completions", body).await;
    until("the worker is busy", || async { prefill.seen().len() == 1 }).await;
    let late = post(running.addr, "/v1/completions", body).await;
    assert_eq!(late.status, 503, "{}", late.text());
}

#[tokio::test]
async fn a_dead_worker_is_found_out_and_found_again() {
    let decode = Worker::of("decode").await;
    let port = {
        let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        free.local_addr().unwrap().port()
    };
    let mut options = options(&[(Pool::Decode, &decode)]);
    let url = format!("http://127.0.0.1:{port}");
    let dead = pb_router::http::WorkerUrl::parse(&url).unwrap();
    options.workers.push((Pool::Prefill, dead));
    let running = start(options).await;
    decode.script(answer("200 OK", "{}"));
    let body = r#"{"prompt":[1,2,3]}"#;
    let reply = post(running.addr, "/v1/completions", body).await;
    assert_eq!(reply.header("x-prefillbench-route"), Some("whole"));
    let page = get(running.addr, "/metrics").await.text();
    assert!(page.contains("worker_up{worker=\"1\",home=\"prefill\",pool=\"prefill\"} 0\n"));
    assert_eq!(info("prefill")["role"], "prefill");
}
