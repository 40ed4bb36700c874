//! The server over the real engine and a generated model: what HTTP answers is what the engine
//! computes, and the cache's evidence reaches the client.

use std::sync::Arc;

use pb_contract::{
    EngineConfig, EngineEvent, EngineRequest, KvDtype, Nanos, Numerics, PrefixCacheKind, RequestId,
    SamplingParams, TokenId, WallClock,
};
use pb_core::EngineParts;
use pb_model::lora::{self, AdapterSet, LoraAdapter};
use pb_model::synth::{self, Kind, Size};
use pb_server::{ModelAssets, ServedAdapter, TokenizerText};
use serde_json::{Value, json};

use crate::client::{self, Open};
use crate::fake_core::FakeCore;
use crate::fake_core::Stage;
use crate::setup::{Server, options, start_with};

/// A generated model with two adapters, and a configuration after `change`.
pub(crate) fn model_with(
    change: impl FnOnce(&mut EngineConfig),
) -> (EngineParts, EngineConfig, ModelAssets) {
    let model = synth::model(Kind::Sharp, Size::Tiny, 3).unwrap();
    let mut config = FakeCore::new(&Stage::new(None), |_| unreachable!()).config;
    config.numerics = Numerics::Exact;
    config.kv_dtype = KvDtype::F32;
    config.prefix_cache = PrefixCacheKind::HashChain;
    config.max_model_len = 256;
    config.num_blocks = 64;
    change(&mut config);
    let adapter = |(seed, name)| lora::synth::adapter(name, &model.config, 4, 4.0, seed);
    let loaded: Vec<_> = [(1, "one"), (2, "two")].map(adapter).into();
    let served = |adapter: &LoraAdapter| ServedAdapter {
        name: adapter.name.clone(),
        root: "generated".to_owned(),
        digest: format!("{:?}", adapter.digest),
    };
    let assets = ModelAssets {
        adapters: loaded.iter().map(served).collect(),
        text: Arc::new(TokenizerText::new(model.tokenizer, model.config.vocab)),
        root: "synthetic".to_owned(),
        receipt: serde_json::to_value(model.identity).unwrap(),
    };
    let parts = EngineParts {
        adapters: Arc::new(AdapterSet::new(loaded).unwrap()),
        ..EngineParts::new(Arc::new(model.weights), [7; 32])
    };
    (parts, config, assets)
}

/// The engine with two adapters, after `change` of its configuration.
fn engine_with(change: impl FnOnce(&mut EngineConfig)) -> (pb_core::Engine, ModelAssets) {
    let (parts, config, assets) = model_with(change);
    (parts.build(config).unwrap(), assets)
}

fn engine() -> (pb_core::Engine, ModelAssets) {
    engine_with(|_| {})
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
    let sampling = SamplingParams {
        temperature: 0.0,
        max_tokens,
        ignore_eos: true,
        ..Default::default()
    };
    direct_with(prompt, sampling, None)
}

/// Tokens of one request, alone in an engine that is driven directly.
fn direct_with(prompt: &[TokenId], sampling: SamplingParams, adapter: Option<&str>) -> Vec<u64> {
    let (mut engine, _) = engine();
    let request = EngineRequest {
        id: RequestId(0),
        prompt: prompt.to_vec(),
        sampling,
        cache_salt: None,
        adapter: adapter.map(str::to_owned),
        priority: 0,
        fork_of: None,
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

fn cached(answer: &Value) -> &Value {
    &answer["usage"]["prompt_tokens_details"]["cached_tokens"]
}

/// The value of a metric without further labels.
async fn metric(server: &Server, name: &str) -> f64 {
    let page = client::get(server.addr, "/metrics").await.text();
    let start = format!("{name}{{engine=\"0\",model_name=\"smollm2\"}} ");
    let value = page.lines().find_map(|line| line.strip_prefix(&start));
    value
        .unwrap_or_else(|| panic!("no {name}"))
        .parse()
        .unwrap()
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
    let active = "prefillbench_kv_blocks{engine=\"0\",model_name=\"smollm2\",bucket=\"active\"}";
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

#[tokio::test]
async fn an_adapter_answers_as_itself_and_shares_no_block() {
    let server = server().await;
    let sampling = SamplingParams {
        temperature: 0.0,
        max_tokens: 12,
        ignore_eos: true,
        ..Default::default()
    };
    let mut answers = Vec::new();
    for model in ["smollm2", "one", "two"] {
        let body = json!({
            "model": model, "prompt": prompt(), "max_tokens": 12, "temperature": 0,
            "ignore_eos": true, "return_token_ids": true,
        });
        let adapter = (model != "smollm2").then_some(model);
        let want = direct_with(&prompt(), sampling.clone(), adapter);
        for found in [0, 48] {
            let answer = client::post(server.addr, "/v1/completions", &body)
                .await
                .json();
            assert_eq!(answer["model"], model);
            assert_eq!(ids(&answer["choices"][0]), want, "{model}");
            assert_eq!(cached(&answer), found, "{model}");
        }
        answers.push(want);
    }
    assert!(answers[0] != answers[1] && answers[1] != answers[2] && answers[0] != answers[2]);
    server.shut_down().await;
}

#[tokio::test]
async fn each_choice_is_what_its_seed_alone_gives() {
    let server = server().await;
    let body = json!({
        "prompt": prompt(), "n": 4, "seed": 11, "max_tokens": 10, "temperature": 1.0,
        "ignore_eos": true, "return_token_ids": true,
    });
    let answer = client::post(server.addr, "/v1/completions", &body)
        .await
        .json();
    for (choice, seed) in answer["choices"].as_array().unwrap().iter().zip(11..) {
        let sampling = SamplingParams {
            seed: Some(seed),
            max_tokens: 10,
            ignore_eos: true,
            ..Default::default()
        };
        assert_eq!(
            ids(choice),
            direct_with(&prompt(), sampling, None),
            "seed {seed}"
        );
    }
    assert_eq!(answer["usage"]["prompt_tokens"], 50);
    assert_eq!(answer["usage"]["completion_tokens"], 40);
    // Four choices, one prompt looked up: the others forked.
    assert_eq!(
        metric(&server, "vllm:prefix_cache_queries_total").await,
        50.0
    );
    // Three of them had to copy the block that the prompt's last two tokens are in.
    assert_eq!(
        metric(&server, "prefillbench_copied_blocks_total").await,
        3.0
    );
    let many = json!({ "prompt": prompt(), "n": 9, "max_tokens": 1 });
    let refused = client::post(server.addr, "/v1/completions", &many).await;
    assert_eq!(refused.status, 400, "at most 8 sequences run at once");
    let message = refused.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("at most 8 may run at once"), "{message}");
    server.shut_down().await;
}

#[tokio::test]
async fn evicted_blocks_come_back_from_host_memory() {
    let (engine, assets) = engine_with(|config| {
        config.num_blocks = 8;
        config.tiers.host_bytes = 4 << 20;
    });
    let server = start_with(Box::new(engine), assets, options()).await;
    let ask = async |first: TokenId| {
        let prompt: Vec<TokenId> = (0..50).map(|i| first + (i * 7) % 80).collect();
        let body = json!({ "prompt": prompt, "max_tokens": 3, "temperature": 0,
            "ignore_eos": true, "return_token_ids": true });
        client::post(server.addr, "/v1/completions", &body)
            .await
            .json()
    };
    let cold = ask(40).await;
    for other in [60, 80, 100] {
        assert_eq!(cached(&ask(other).await), 0);
    }
    // Four blocks each: three prompts have taken all eight.
    assert!(metric(&server, "prefillbench_evicted_blocks_total").await >= 3.0);
    let again = ask(40).await;
    assert_eq!(cached(&again), 48);
    assert_eq!(ids(&again["choices"][0]), ids(&cold["choices"][0]));
    assert_eq!(
        metric(&server, "vllm:external_prefix_cache_hits_total").await,
        48.0
    );
    assert_eq!(metric(&server, "vllm:prefix_cache_hits_total").await, 0.0);
    server.shut_down().await;
}
