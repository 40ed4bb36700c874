//! Several choices of one prompt (`n`): numbering, ends, sums, and what the engine is asked.

use pb_contract::{EngineRequest, RequestId};
use serde_json::{Value, json};

use crate::client;
use crate::fake_core::{FakeCore, Script, Stage, tokens};
use crate::fake_text::FakeText;
use crate::setup::{Server, options, start};

fn text() -> FakeText {
    FakeText {
        chat: "pp".to_owned(),
        ..FakeText::new(&["p", "a", "b", "END"])
    }
}

/// The choice with seed 7 says "ab" for ever, the next one stops itself at once, the third after
/// two tokens.
fn script(request: &EngineRequest) -> Script {
    let said: &[u32] = match request.sampling.seed {
        Some(7) => &[1, 2],
        Some(8) => &[3],
        _ => &[2, 2, 3],
    };
    Script {
        cached_tokens: 1,
        ..tokens(said)
    }
}

async fn server(stage: &std::sync::Arc<Stage>) -> Server {
    start(FakeCore::new(stage, script), text(), options()).await
}

fn chat(stream: bool) -> Value {
    let mut body = json!({
        "messages": [{ "role": "user", "content": "hi" }], "n": 3, "seed": 7, "max_tokens": 5,
        "stop": "END", "stream": stream,
    });
    if stream {
        body["stream_options"] = json!({ "include_usage": true });
    }
    body
}

/// Text, reason and cause of the three choices.
fn expected() -> Vec<Value> {
    vec![
        json!(["ababa", "length", null]),
        json!(["", "stop", "END"]),
        json!(["bb", "stop", "END"]),
    ]
}

/// A prompt counts once, and so does what of it was cached; outputs are 5, 1 and 3 tokens.
fn usage() -> Value {
    json!({ "prompt_tokens": 2, "total_tokens": 11, "completion_tokens": 9,
        "prompt_tokens_details": { "cached_tokens": 1 } })
}

#[tokio::test]
async fn every_choice_of_a_chat_has_its_own_text_and_end() {
    let stage = Stage::new(None);
    let server = server(&stage).await;
    let reply = client::post(server.addr, "/v1/chat/completions", &chat(false)).await;
    let answer = reply.json();
    let choices = answer["choices"].as_array().unwrap();
    let indices: Vec<&Value> = choices.iter().map(|c| &c["index"]).collect();
    assert_eq!(indices, [0, 1, 2]);
    let got = |c: &Value| {
        json!([
            c["message"]["content"],
            c["finish_reason"],
            c["stop_reason"]
        ])
    };
    assert_eq!(choices.iter().map(got).collect::<Vec<_>>(), expected());
    assert_eq!(answer["usage"], usage());
    server.shut_down().await;
}

#[tokio::test]
async fn streamed_choices_carry_their_number() {
    let stage = Stage::new(None);
    let server = server(&stage).await;
    let reply = client::post(server.addr, "/v1/chat/completions", &chat(true)).await;
    server.shut_down().await;
    let events = reply.events();
    assert_eq!(events.last().unwrap(), "[DONE]");
    let events: Vec<Value> = events[..events.len() - 1]
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    let (last, events) = events.split_last().unwrap();
    assert_eq!((&last["choices"], &last["usage"]), (&json!([]), &usage()));
    let mut got: Vec<(String, Value, Value)> = vec![Default::default(); 3];
    let mut roles = [0; 3];
    for event in events {
        let choice = &event["choices"][0];
        let index = choice["index"].as_u64().unwrap() as usize;
        let (said, reason, cause) = &mut got[index];
        assert!(
            reason.is_null(),
            "nothing comes after the end of choice {index}"
        );
        roles[index] += usize::from(choice["delta"]["role"] == "assistant");
        said.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        *reason = choice["finish_reason"].clone();
        *cause = choice["stop_reason"].clone();
    }
    assert_eq!(roles, [1, 1, 1], "each choice opens once");
    let got: Vec<Value> = got.into_iter().map(|(a, b, c)| json!([a, b, c])).collect();
    assert_eq!(got, expected());
}

#[tokio::test]
async fn the_engine_computes_each_prompt_once() {
    let stage = Stage::new(None);
    let server = server(&stage).await;
    let one = json!({ "prompt": "p", "max_tokens": 1 });
    client::post(server.addr, "/v1/completions", &one).await;
    let body = json!({ "prompt": [[1], [2]], "n": 3, "max_tokens": 1 });
    let reply = client::post(server.addr, "/v1/completions", &body).await;
    assert_eq!(reply.status, 200);
    let forks: Vec<(u64, Option<u64>)> = stage
        .added()
        .iter()
        .map(|r| (r.id.0, r.fork_of.map(|id| id.0)))
        .collect();
    // The first choice of a prompt is computed, the others fork from it.
    let expected = [
        (0, None),
        (1, None),
        (2, Some(1)),
        (3, Some(1)),
        (4, None),
        (5, Some(4)),
        (6, Some(4)),
    ];
    assert_eq!(forks, expected);
    server.shut_down().await;
}

#[tokio::test]
async fn a_refused_choice_refuses_the_request() {
    let stage = Stage::new(None);
    let core = FakeCore::new(&stage, |request| Script {
        refuse: (request.id == RequestId(2)).then(|| "n = 3: too many".to_owned()),
        ..tokens(&[1])
    });
    let server = start(core, text(), options()).await;
    let body = json!({ "prompt": "p", "n": 3 });
    let reply = client::post(server.addr, "/v1/completions", &body).await;
    assert_eq!(reply.status, 400);
    assert_eq!(reply.error()["message"], "n = 3: too many");
    let page = client::get(server.addr, "/metrics").await.text();
    let running = "vllm:num_requests_running{engine=\"0\",model_name=\"smollm2\"} 0.0";
    assert!(page.lines().any(|line| line == running), "{page}");
    server.shut_down().await;
}
