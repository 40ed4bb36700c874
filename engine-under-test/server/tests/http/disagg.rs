//! Prefill and decode on two servers, against one that does both by itself.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pb_contract::{Clock, Nanos, TokenId, WallClock};
use pb_core::disagg::{KvEngine, KvOptions, KvPorts, OnFailure};
use pb_server::{KvFacts, KvRole, ServerOptions};
use pb_transfer::TcpOptions;
use pb_transfer::service::{Dial, KvListener};
use serde_json::{Value, json};

use crate::client::{self, Reply};
use crate::real_engine::model_with;
use crate::setup::{Server, options, start_with};

const STALL: Duration = Duration::from_secs(120);

/// Patient where a slow machine must not decide.
pub(crate) fn kv(on_failure: OnFailure) -> KvOptions {
    KvOptions {
        on_failure,
        lease: Nanos::from_secs(120),
        patience: Nanos::from_secs(120),
        ..KvOptions::default()
    }
}

pub(crate) async fn worker(role: KvRole, options_of_kv: KvOptions, seed: u64) -> Server {
    let (parts, config, assets) = model_with(|_| {});
    let clock: Arc<dyn Clock> = Arc::new(WallClock);
    let mut ports = KvPorts::default();
    let mut remote = None;
    if role.hands_off() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let (listener, at) = KvListener::tcp(any, STALL, Arc::clone(&clock)).unwrap();
        (ports.listener, remote) = (Some(listener), Some(at));
    }
    if role.takes() {
        let options = TcpOptions {
            connections: 2,
            stall: STALL,
        };
        ports.dial = Some(Dial::Tcp {
            options,
            loopback_only: true,
        });
    }
    let (engine, shape) = (parts.build(config).unwrap(), parts.kv_shape());
    let core = KvEngine::new(engine, shape, ports, &options_of_kv, &clock, seed).unwrap();
    let options = ServerOptions {
        kv: Some(KvFacts {
            role,
            engine_id: format!("worker-{seed}"),
            transport: "tcp",
            remote,
            stream_min_tokens: options_of_kv.stream_min_tokens,
        }),
        ..options()
    };
    start_with(Box::new(core), assets, options).await
}

pub(crate) async fn alone() -> Server {
    let (parts, config, assets) = model_with(|_| {});
    start_with(Box::new(parts.build(config).unwrap()), assets, options()).await
}

pub(crate) fn with_params(body: &Value, params: Value) -> Value {
    let mut body = body.clone();
    body["kv_transfer_params"] = params;
    body
}

/// The two legs, as a router sends them.
pub(crate) async fn legs(
    prefill: &Server,
    decode: &Server,
    path: &str,
    body: &Value,
) -> (Reply, Reply) {
    let first = with_params(body, json!({ "do_remote_decode": true }));
    let first = client::post(prefill.addr, path, &first).await;
    assert_eq!(first.status, 200, "{}", first.text());
    let params = match body["stream"] == true {
        true => last_event(&first)["kv_transfer_params"].clone(),
        false => first.json()["kv_transfer_params"].clone(),
    };
    assert_eq!(params["finished"], false, "{params}");
    let second = with_params(body, params);
    let second = client::post(decode.addr, path, &second).await;
    assert_eq!(second.status, 200, "{}", second.text());
    (first, second)
}

fn events(reply: &Reply) -> Vec<Value> {
    let texts = reply.events();
    assert_eq!(texts.last().map(String::as_str), Some("[DONE]"));
    let events = texts[..texts.len() - 1].iter();
    events.map(|e| serde_json::from_str(e).unwrap()).collect()
}

fn last_event(reply: &Reply) -> Value {
    events(reply).pop().unwrap()
}

fn ids(value: &Value) -> Vec<u64> {
    let list = value.as_array().map_or(&[][..], Vec::as_slice);
    list.iter().map(|id| id.as_u64().unwrap()).collect()
}

pub(crate) fn prompt(n: usize) -> Vec<TokenId> {
    (0..n as u32)
        .map(|i| 40 + (i * 7 + n as u32) % 80)
        .collect()
}

/// Text, tokens and their log-probabilities of streams one after the other.
fn streamed(replies: &[&Reply]) -> (String, Vec<u64>, Vec<Value>) {
    let (mut text, mut tokens, mut logprobs) = (String::new(), Vec::new(), Vec::new());
    for event in replies.iter().flat_map(|reply| events(reply)) {
        let choice = &event["choices"][0];
        text.push_str(choice["text"].as_str().unwrap());
        tokens.extend(ids(&choice["token_ids"]));
        let list = choice["logprobs"]["token_logprobs"].as_array();
        logprobs.extend(list.cloned().unwrap_or_default());
    }
    (text, tokens, logprobs)
}

#[tokio::test]
async fn two_servers_answer_as_one() {
    let (prefill, decode) = (
        worker(KvRole::Prefill, kv(OnFailure::Fail), 1).await,
        worker(KvRole::Decode, kv(OnFailure::Fail), 2).await,
    );
    let alone = alone().await;
    // Around the ends of blocks of 16, each twice: the second time with prefixes on both sides.
    for n in [1, 15, 16, 17, 48, 49, 48, 49] {
        for (temperature, stream) in [(0.0, false), (1.0, false), (0.8, true)] {
            let body = json!({
                "prompt": prompt(n), "max_tokens": 12, "temperature": temperature, "seed": 5,
                "ignore_eos": true, "return_token_ids": true, "logprobs": 2, "stream": stream,
            });
            let path = "/v1/completions";
            let whole = client::post(alone.addr, path, &body).await;
            let (first, second) = legs(&prefill, &decode, path, &body).await;
            if stream {
                assert_eq!(
                    streamed(&[&first, &second]),
                    streamed(&[&whole]),
                    "{n} {temperature}"
                );
                let opening = &events(&second)[0]["choices"][0];
                assert_eq!(opening["prompt_token_ids"], Value::Null);
                continue;
            }
            let (first, second, whole) = (first.json(), second.json(), whole.json());
            let choice = |answer: &Value| answer["choices"][0].clone();
            let (a, b, c) = (choice(&first), choice(&second), choice(&whole));
            let tokens = [ids(&a["token_ids"]), ids(&b["token_ids"])].concat();
            assert_eq!(tokens, ids(&c["token_ids"]), "{n} {temperature}");
            let text = [&a, &b].map(|c| c["text"].as_str().unwrap()).concat();
            assert_eq!(text, c["text"].as_str().unwrap());
            assert_eq!(b["finish_reason"], c["finish_reason"]);
            let usage = |answer: &Value, name: &str| answer["usage"][name].as_u64().unwrap();
            for name in ["prompt_tokens", "completion_tokens", "total_tokens"] {
                assert_eq!(usage(&second, name), usage(&whole, name), "{name}");
            }
            assert_eq!(usage(&first, "completion_tokens"), 1);
        }
    }
    // The last acknowledgement may be on its way still.
    let all = "ended=\"acknowledged\"} 24.0";
    let mut prefill_page = page(&prefill).await;
    for _ in 0..10_000 {
        if prefill_page.contains(all) {
            break;
        }
        prefill_page = page(&prefill).await;
    }
    let decode_page = page(&decode).await;
    assert!(
        decode_page.contains("kv_transfer_latency_p99_ms{"),
        "{decode_page}"
    );
    assert!(decode_page.contains("kv_transfer_bytes_per_sec{"));
    assert!(decode_page.contains("prefillbench_kv_transfers_received_total{"));
    assert!(prefill_page.contains(all), "{prefill_page}");
    assert!(prefill_page.contains("prefillbench_kv_blocks_held"));
    for server in [prefill, decode, alone] {
        server.shut_down().await;
    }
}

async fn page(server: &Server) -> String {
    client::get(server.addr, "/metrics").await.text()
}

#[tokio::test]
async fn a_chat_goes_on_without_a_second_beginning() {
    let both = worker(KvRole::Both, kv(OnFailure::Fail), 3).await;
    let alone = alone().await;
    let body = json!({
        "messages": [{ "role": "user", "content": "Hello there, how are you?" }],
        "max_tokens": 9, "ignore_eos": true, "stream": true, "temperature": 0,
        "stream_options": { "include_usage": true },
    });
    let path = "/v1/chat/completions";
    let whole = client::post(alone.addr, path, &body).await;
    let (first, second) = legs(&both, &both, path, &body).await;
    let deltas = |reply: &Reply| -> Vec<Value> {
        let all = events(reply).into_iter();
        let with_choice = all.filter(|e| !e["choices"].as_array().unwrap().is_empty());
        with_choice
            .map(|e| e["choices"][0]["delta"].clone())
            .collect()
    };
    let text =
        |all: &[Value]| -> String { all.iter().filter_map(|d| d["content"].as_str()).collect() };
    let (a, b, c) = (deltas(&first), deltas(&second), deltas(&whole));
    assert_eq!(a[0]["role"], "assistant");
    assert!(b.iter().all(|delta| delta.get("role").is_none()), "{b:?}");
    assert_eq!(text(&[a, b].concat()), text(&c));
    for name in ["prompt_tokens", "completion_tokens", "total_tokens"] {
        assert_eq!(
            last_event(&second)["usage"][name],
            last_event(&whole)["usage"][name]
        );
    }
    // With usage asked for, the last event has no choice, and the parameters all the same.
    assert!(last_event(&first)["choices"].as_array().unwrap().is_empty());
    both.shut_down().await;
    alone.shut_down().await;
}

#[tokio::test]
async fn a_stop_string_may_begin_in_the_first_token_and_end_in_the_second() {
    let both = worker(KvRole::Both, kv(OnFailure::Fail), 4).await;
    let alone = alone().await;
    let path = "/v1/completions";
    let mut tried = 0;
    for seed in 0..40 {
        let mut body = json!({
            "prompt": prompt(20), "max_tokens": 8, "temperature": 1.0, "seed": seed,
            "ignore_eos": true, "return_token_ids": true,
        });
        let whole = client::post(alone.addr, path, &body).await.json();
        let tokens = ids(&whole["choices"][0]["token_ids"]);
        let mut texts = Vec::new();
        for token in &tokens[..2] {
            let body = json!({ "tokens": [token] });
            let reply = client::post(alone.addr, "/detokenize", &body).await;
            texts.push(reply.json()["prompt"].as_str().unwrap().to_owned());
        }
        let joined = texts.concat();
        let full = whole["choices"][0]["text"].as_str().unwrap();
        let ends = (texts[0].chars().last(), texts[1].chars().next());
        let (Some(last), Some(next)) = ends else {
            continue;
        };
        let stop = format!("{last}{next}");
        // Only where the text is that of the tokens, and nothing stops before.
        if !full.starts_with(&joined)
            || joined.find(&stop) != Some(texts[0].len() - last.len_utf8())
        {
            continue;
        }
        body["stop"] = json!([stop]);
        let whole = client::post(alone.addr, path, &body).await.json();
        let (first, second) = legs(&both, &both, path, &body).await;
        let (first, second) = (first.json(), second.json());
        let parts = [&first, &second].map(|a| a["choices"][0]["text"].as_str().unwrap().to_owned());
        assert_eq!(
            parts.concat(),
            whole["choices"][0]["text"].as_str().unwrap(),
            "{stop:?}"
        );
        let choice = &second["choices"][0];
        assert_eq!(choice["finish_reason"], "stop");
        assert_eq!(choice["stop_reason"], json!(stop));
        // A token that is half a character may make the string end later.
        let output = &whole["usage"]["completion_tokens"];
        assert_eq!(&second["usage"]["completion_tokens"], output);
        tried += usize::from(*output == 2);
    }
    assert!(
        tried >= 3,
        "only {tried} stop strings lie across the first two tokens"
    );
    both.shut_down().await;
    alone.shut_down().await;
}

#[tokio::test]
async fn a_first_token_that_ends_the_request_leaves_nothing_to_decode() {
    let both = worker(KvRole::Both, kv(OnFailure::Fail), 6).await;
    let body = json!({
        "prompt": prompt(20), "max_tokens": 1, "temperature": 0, "ignore_eos": true,
        "kv_transfer_params": { "do_remote_decode": true },
    });
    let answer = client::post(both.addr, "/v1/completions", &body)
        .await
        .json();
    let params = &answer["kv_transfer_params"];
    assert_eq!(
        (&params["finished"], &params["transfer_id"]),
        (&json!(true), &json!(0))
    );
    assert_eq!(
        (&params["num_tokens"], &params["remote_block_size"]),
        (&json!(20), &json!(16))
    );
    let again = with_params(&body, params.clone());
    let refused = client::post(both.addr, "/v1/completions", &again).await;
    assert_eq!(refused.status, 400);
    assert!(
        refused.text().contains("nothing to decode"),
        "{}",
        refused.text()
    );
    let worker = client::get(both.addr, "/worker").await.json();
    assert_eq!(
        (&worker["blocks_in_transfer"], &worker["role"]),
        (&json!(0), &json!("both"))
    );
    both.shut_down().await;
}

#[tokio::test]
async fn kv_that_does_not_come_is_an_error_or_computed_again() {
    let prefill = worker(KvRole::Prefill, kv(OnFailure::Fail), 9).await;
    let alone = alone().await;
    for on_failure in [OnFailure::Fail, OnFailure::Recompute] {
        let decode = worker(KvRole::Decode, kv(on_failure), 10).await;
        for stream in [false, true] {
            let body = json!({
                "prompt": prompt(33), "max_tokens": 7, "temperature": 1.0, "seed": 3,
                "ignore_eos": true, "stream": stream,
            });
            let first = with_params(&body, json!({ "do_remote_decode": true }));
            let first = client::post(prefill.addr, "/v1/completions", &first).await;
            let (text, mut params) = match stream {
                true => {
                    let event = last_event(&first);
                    (
                        event["choices"][0]["text"].clone(),
                        event["kv_transfer_params"].clone(),
                    )
                }
                false => {
                    let answer = first.json();
                    (
                        answer["choices"][0]["text"].clone(),
                        answer["kv_transfer_params"].clone(),
                    )
                }
            };
            params["transfer_id"] = json!(params["transfer_id"].as_u64().unwrap() ^ 1);
            let second = with_params(&body, params);
            let second = client::post(decode.addr, "/v1/completions", &second).await;
            if on_failure == OnFailure::Fail {
                assert_eq!(second.status, 503, "before the first byte, stream or not");
                assert_eq!(second.error()["type"], "kv_transfer_failed");
                continue;
            }
            assert_eq!(second.status, 200);
            let whole = client::post(alone.addr, "/v1/completions", &body).await;
            let texts = |reply: &Reply| -> String {
                match stream {
                    true => events(reply)
                        .iter()
                        .map(|e| e["choices"][0]["text"].as_str().unwrap().to_owned())
                        .collect(),
                    false => reply.json()["choices"][0]["text"]
                        .as_str()
                        .unwrap()
                        .to_owned(),
                }
            };
            let joined = format!("{}{}", text.as_str().unwrap(), texts(&second));
            assert_eq!(joined, texts(&whole));
        }
        let page = page(&decode).await;
        let failed = "prefillbench_kv_transfers_failed_total{engine=\"0\",\
                      model_name=\"smollm2\",cause=\"expired\"} 2.0";
        assert!(page.contains(failed), "{page}");
        decode.shut_down().await;
    }
    prefill.shut_down().await;
    alone.shut_down().await;
}
