//! The server over the real engine and a generated model: what HTTP answers is what the engine
//! computes, and the cache's evidence reaches the client.

use std::sync::Arc;

use pb_contract::{
    EngineEvent, EngineRequest, KvDtype, Nanos, Numerics, PrefixCacheKind, RequestId,
    SamplingParams, TokenId, WallClock,
};
use pb_core::EngineParts;
use pb_model::synth::{self, Kind, Size};
use pb_server::{ModelAssets, TokenizerText};
use serde_json::{Value, json};

use crate::client::{self, Open};
use crate::fake_core::FakeCore;
use crate::fake_core::Stage;
use crate::setup::{Server, options, start_with};

fn engine() -> (pb_core::Engine, ModelAssets) {
    let model = synth::model(Kind::Sharp, Size::Tiny, 3).unwrap();
    let mut config = FakeCore::new(&Stage::new(None), |_| unreachable!()).config;
    config.numerics = Numerics::Exact;
    config.kv_dtype = KvDtype::F32;
    config.prefix_cache = PrefixCacheKind::HashChain;
    config.max_model_len = 256;
    config.num_blocks = 64;
    let parts = EngineParts::new(Arc::new(model.weights), [7; 32]);
    let assets = ModelAssets {
        text: Arc::new(TokenizerText::new(model.tokenizer, model.config.vocab)),
        root: "synthetic".to_owned(),
        receipt: serde_json::to_value(model.identity).unwrap(),
    };
    (parts.build(config).unwrap(), assets)
}

async fn server() -> Server {
    let (engine, assets) = engine();
    start_with(Box::new(engine), assets, options()).await
}

fn prompt() -> Vec<TokenId> {
    (0..50).map(|i| 40 + (i * 7) % 80).collect()
}

/// Greedy tokens of the engine driven directly.
fn direct(prompt: &[TokenId], max_tokens: u32) -> Vec<u64> {
    let (mut engine, _) = engine();
    let sampling = SamplingParams {
        temperature: 0.0,
        max_tokens,
        ignore_eos: true,
        ..Default::default()
    };
    let request = EngineRequest {
        id: RequestId(0),
        prompt: prompt.to_vec(),
        sampling,
        cache_salt: None,
        arrival: Nanos::ZERO,
    };
    engine.add(request).unwrap();
    let mut tokens = Vec::new();
    while engine.has_work() {
        for event in engine.step(&WallClock).unwrap().events {
            if let EngineEvent::Token { token, .. } = event {
                tokens.push(u64::from(token));
            }
        }
    }
    tokens
}

fn ids(choice: &Value) -> Vec<u64> {
    choice["token_ids"]
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap())
        .collect()
}

#[tokio::test]
async fn answers_are_the_engines_and_the_cache_is_accounted_for() {
    let server = server().await;
    let want = direct(&prompt(), 12);
    assert_eq!(want.len(), 12);
    let body = json!({
        "prompt": prompt(), "max_tokens": 12, "temperature": 0, "ignore_eos": true,
        "return_token_ids": true, "n": 2,
    });
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    let cold = client::post(server.addr, "/v1/completions", &body)
        .await
        .json();
    assert_eq!(cached(&cold), 0);
    let warm = client::post(server.addr, "/v1/completions", &body)
        .await
        .json();
    // 50 tokens: three full blocks of 16 are reusable.
    assert_eq!(cached(&warm), 48);
    for answer in [&cold, &warm] {
        assert_eq!(ids(&answer["choices"][0]), want);
        assert_eq!(ids(&answer["choices"][1]), want);
    }
    let reset = client::post(server.addr, "/reset_prefix_cache", &json!({}))
        .await
        .json();
    assert_eq!(reset, json!({ "success": true }));
    let again = client::post(server.addr, "/v1/completions", &body)
        .await
        .json();
    assert_eq!(cached(&again), 0);

    let mut salted = body.clone();
    salted["cache_salt"] = json!("tenant");
    let other = client::post(server.addr, "/v1/completions", &salted)
        .await
        .json();
    assert_eq!(cached(&other), 0, "another tenant's blocks are not reused");
    server.shut_down().await;
}

#[tokio::test]
async fn echoed_log_probabilities_cover_every_position() {
    let server = server().await;
    let body = json!({
        "prompt": prompt(), "max_tokens": 3, "temperature": 0, "echo": true, "logprobs": 2,
        "ignore_eos": true,
    });
    let answer = client::post(server.addr, "/v1/completions", &body)
        .await
        .json();
    let lists = &answer["choices"][0]["logprobs"];
    let logprobs = lists["token_logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len(), 53);
    assert!(logprobs[0].is_null());
    assert!(
        logprobs[1..]
            .iter()
            .all(|l| l.as_f64().is_some_and(|l| l <= 0.0))
    );
    let listed = answer["choices"][0]["prompt_logprobs"].as_array().unwrap();
    assert_eq!(listed.len(), 50);
    for (position, entry) in listed.iter().enumerate().skip(1) {
        let own = &entry[prompt()[position].to_string()];
        assert_eq!(own["logprob"], logprobs[position], "position {position}");
    }
    server.shut_down().await;
}

#[tokio::test]
async fn chat_streams_and_a_client_that_leaves_frees_its_blocks() {
    let server = server().await;
    let message = json!([{ "role": "user", "content": "Hello there, how are you?" }]);
    let body = json!({
        "messages": message, "max_tokens": 4, "ignore_eos": true, "stream": true,
        "stream_options": { "include_usage": true },
    });
    let events = client::post(server.addr, "/v1/chat/completions", &body)
        .await
        .events();
    let first: Value = serde_json::from_str(&events[0]).unwrap();
    assert_eq!(first["choices"][0]["delta"]["role"], "assistant");
    let usage: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
    assert_eq!(usage["usage"]["completion_tokens"], 4);

    let body = json!({ "prompt": prompt(), "max_tokens": 200, "ignore_eos": true, "stream": true });
    let mut open = Open::post(server.addr, "/v1/completions", &body).await;
    open.read_until(|text| text.contains("data: {")).await;
    drop(open);
    let active = "prefillbench:kv_blocks{engine=\"0\",model_name=\"smollm2\",bucket=\"active\"}";
    for _ in 0..10_000 {
        let page = client::get(server.addr, "/metrics").await.text();
        let line = page.lines().find(|line| line.starts_with(active)).unwrap();
        if line.ends_with(" 0.0") {
            server.shut_down().await;
            return;
        }
    }
    panic!("the blocks were never freed");
}
