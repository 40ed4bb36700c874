//! KV that is fetched while it is computed, and KV that nobody fetches any more.

use pb_router::Pool;
use serde_json::{Value, json};

use crate::joining::{FIRST, PARAMS, PROMPT, WHOLE, end_of_prefill, event};
use crate::setup::{Running, get, open, options, pair, post, start, until};
use crate::worker::{Step, Worker, answer, info, stream};

/// A prefill worker that gives KV away while it computes it, from `min` prompt tokens on, and a
/// decode worker behind a router.
async fn streaming(min: usize) -> (Worker, Worker, Running) {
    let mut says = info("prefill");
    says["kv_stream_min_tokens"] = json!(min);
    (says["kv_host"], says["kv_port"]) = (json!("127.0.0.1"), json!(9));
    let (prefill, decode) = (Worker::start(says).await, Worker::of("decode").await);
    let workers = [(Pool::Prefill, &prefill), (Pool::Decode, &decode)];
    let running = start(options(&workers)).await;
    (prefill, decode, running)
}

fn params(worker: &Worker, number: usize) -> Value {
    worker.seen()[number].json()["kv_transfer_params"].clone()
}

/// What the prefill worker answers to a request that is streamed or not, once it may.
fn prefilled(body: &str) -> Vec<Step> {
    let mut steps = vec![Step::UntilReleased];
    steps.extend(match body == PROMPT {
        true => stream(&[FIRST, &end_of_prefill(PARAMS)]),
        false => answer("200 OK", &end_of_prefill(PARAMS)),
    });
    steps
}

fn decoded(body: &str) -> Vec<Step> {
    match body == PROMPT {
        true => stream(&[&event("B", "\"stop\"")]),
        false => answer("200 OK", &event("B", "\"stop\"")),
    }
}

#[tokio::test]
async fn a_long_prompt_is_fetched_while_it_is_computed() {
    for body in [PROMPT, WHOLE] {
        let (prefill, decode, running) = streaming(5).await;
        prefill.script(prefilled(body));
        decode.script(vec![Step::UntilClosed]);
        decode.script(decoded(body));
        let addr = running.addr;
        let reply = tokio::spawn(async move { post(addr, "/v1/completions", body).await });
        // The decode worker is asked before the prefill worker has said anything.
        until("both have it", || async {
            prefill.seen().len() == 1 && decode.seen().len() == 1
        })
        .await;
        let (to_prefill, ahead) = (params(&prefill, 0), params(&decode, 0));
        let ticket = ahead["transfer_id"].as_u64().expect("a ticket");
        assert!((1..1 << 53).contains(&ticket));
        let expected = json!({ "do_remote_decode": true, "transfer_id": ticket });
        assert_eq!(to_prefill, expected);
        let expected = json!({
            "do_remote_prefill": true, "prefetch": true, "remote_host": "127.0.0.1",
            "remote_port": 9, "transfer_id": ticket,
        });
        assert_eq!(ahead, expected);
        prefill.release();
        let reply = reply.await.unwrap();
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(decode.seen().len(), 2);
        // The request itself goes on with what the prefill worker says.
        let said: Value = serde_json::from_str(PARAMS).unwrap();
        assert_eq!(params(&decode, 1), said);
        until("the prefetch is left", || async { decode.closed() == 1 }).await;
        assert!(
            prefill.released().is_empty(),
            "what was fetched is not given back"
        );
    }
}

#[tokio::test]
async fn a_short_prompt_and_a_decode_worker_without_room_are_as_ever() {
    let (prefill, decode, running) = streaming(6).await;
    prefill.release();
    prefill.script(prefilled(PROMPT));
    decode.script(decoded(PROMPT));
    let reply = post(running.addr, "/v1/completions", PROMPT).await;
    assert_eq!((reply.status, decode.seen().len()), (200, 1));
    assert_eq!(params(&prefill, 0), json!({ "do_remote_decode": true }));
    let page = get(running.addr, "/metrics").await.text();
    assert!(
        page.contains("prefillbench_router_ahead_total 0\n"),
        "{page}"
    );
}

#[tokio::test]
async fn a_prefetch_that_fails_costs_nothing() {
    let (prefill, decode, running) = streaming(1).await;
    prefill.script(prefilled(PROMPT));
    decode.script(answer("500 Oops", "{}"));
    decode.script(decoded(PROMPT));
    let addr = running.addr;
    let reply = tokio::spawn(async move { post(addr, "/v1/completions", PROMPT).await });
    until("the decode worker has it", || async {
        decode.seen().len() == 1
    })
    .await;
    prefill.release();
    let reply = reply.await.unwrap();
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("x-prefillbench-retries"), Some("0"));
}

#[tokio::test]
async fn what_a_client_leaves_between_the_workers_is_released_at_once() {
    for body in [PROMPT, WHOLE] {
        let (prefill, decode, running) = pair().await;
        prefill.release();
        prefill.script(prefilled(body));
        decode.script(vec![Step::UntilClosed]);
        let client = open(running.addr, "/v1/completions", body).await;
        until("the decode worker has it", || async {
            decode.seen().len() == 1
        })
        .await;
        assert!(prefill.released().is_empty());
        drop(client);
        until("the KV is given back", || async {
            prefill.released() == [77]
        })
        .await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_early_is_left_by_both_workers() {
    let (prefill, decode, running) = streaming(1).await;
    prefill.script(vec![Step::UntilClosed]);
    decode.script(vec![Step::UntilClosed]);
    let client = open(running.addr, "/v1/completions", PROMPT).await;
    until("both have it", || async {
        prefill.seen().len() == 1 && decode.seen().len() == 1
    })
    .await;
    drop(client);
    until("both are left", || async {
        prefill.closed() == 1 && decode.closed() == 1
    })
    .await;
}
