//! What the fields of a request do.

use pb_contract::{FinishReason, TokenLogprobs};
use serde_json::{Value, json};

use crate::client;
use crate::fake_core::{Call, End, FakeCore, Script, Stage, tokens};
use crate::fake_text::FakeText;
use crate::setup::{options, start};

async fn one(text: FakeText, script: Script, body: Value) -> Value {
    let stage = Stage::new(None);
    let core = FakeCore::new(&stage, move |_| script.clone());
    let server = start(core, text, options()).await;
    let path = if body.get("messages").is_some() {
        "/v1/chat/completions"
    } else {
        "/v1/completions"
    };
    let reply = client::post(server.addr, path, &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    server.shut_down().await;
    if body["stream"] == true {
        let events = reply.events();
        let json = events.iter().filter(|event| *event != "[DONE]");
        return json
            .map(|event| serde_json::from_str::<Value>(event).unwrap())
            .collect();
    }
    reply.json()
}

fn streamed_text(events: &Value, choice: u64) -> String {
    let choices = events
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|e| e["choices"].as_array().unwrap());
    let own = choices.filter(|c| c["index"] == choice);
    own.map(|c| c["text"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_stop_string_over_tokens_never_leaks() {
    let text = || FakeText::new(&["a", "END", "E", "N", "D!", "O"]);
    for stream in [false, true] {
        // a E N O E N D! : the stop string "END" lies over the last three tokens.
        let script = tokens(&[0, 2, 3, 5, 2, 3, 4, 0]);
        let body = json!({ "prompt": "a", "max_tokens": 50, "stop": "END", "stream": stream });
        let answer = one(text(), script, body).await;
        if stream {
            assert_eq!(streamed_text(&answer, 0), "aENO");
            let last = answer.as_array().unwrap().last().unwrap();
            assert_eq!(last["choices"][0]["stop_reason"], "END");
        } else {
            let choice = &answer["choices"][0];
            assert_eq!(
                (&choice["text"], &choice["stop_reason"]),
                (&json!("aENO"), &json!("END"))
            );
            assert_eq!(choice["finish_reason"], "stop");
            assert_eq!(answer["usage"]["completion_tokens"], 7);
        }
    }
    // Held text is given out when the generation ends otherwise.
    let body = json!({ "prompt": "a", "max_tokens": 3, "stop": ["END"] });
    let answer = one(text(), tokens(&[0, 2, 3]), body).await;
    assert_eq!(answer["choices"][0]["text"], "aEN");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    // Not before min_tokens.
    let body = json!({ "prompt": "a", "max_tokens": 5, "min_tokens": 3, "stop": ["END"] });
    let answer = one(text(), tokens(&[1, 0]), body).await;
    assert_eq!(
        answer["choices"][0]["text"],
        "ENDaENDaEND"[..8].to_owned() + ""
    );
}

#[tokio::test]
async fn a_stop_tokens_text_is_left_out_and_the_token_counted() {
    let script = Script {
        end: Some(End::StopToken),
        ..tokens(&[0, 1])
    };
    let body = json!({ "prompt": "a", "stop_token_ids": [1], "return_token_ids": true });
    let answer = one(FakeText::new(&["a", "b"]), script, body).await;
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["text"], &choice["stop_reason"]),
        (&json!("a"), &json!(1))
    );
    assert_eq!(
        (&choice["token_ids"], &choice["prompt_token_ids"]),
        (&json!([0, 1]), &json!([0]))
    );
    assert_eq!(answer["usage"]["completion_tokens"], 2);
}

#[tokio::test]
async fn several_prompts_and_choices_are_numbered_prompt_first() {
    let stage = Stage::new(None);
    let core = FakeCore::new(&stage, |request| {
        let cached_tokens = if request.prompt.len() == 2 { 1 } else { 0 };
        Script {
            cached_tokens,
            ..tokens(&[request.prompt[0], request.sampling.seed.unwrap() as u32])
        }
    });
    let server = start(core, FakeText::new(&["a", "b", "c", "d"]), options()).await;
    let body = json!({
        "prompt": [[0, 0], [1]], "n": 2, "seed": 2, "max_tokens": 2, "temperature": 0,
        "cache_salt": "tenant",
    });
    let answer = client::post(server.addr, "/v1/completions", &body)
        .await
        .json();
    let texts: Vec<&str> = answer["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["text"].as_str().unwrap())
        .collect();
    assert_eq!(texts, ["ac", "ad", "bc", "bd"]);
    let usage = json!({ "prompt_tokens": 3, "total_tokens": 11, "completion_tokens": 8,
        "prompt_tokens_details": { "cached_tokens": 1 } });
    assert_eq!(answer["usage"], usage);
    let added = stage.added();
    assert_eq!(added.len(), 4);
    assert!(
        added
            .iter()
            .all(|r| r.cache_salt.as_deref() == Some("tenant"))
    );
    assert!(
        added
            .iter()
            .all(|r| r.sampling.stop.is_empty() && r.sampling.temperature == 0.0)
    );

    let mut body = body;
    body["stream"] = json!(true);
    let events = client::post(server.addr, "/v1/completions", &body)
        .await
        .events();
    let events: Vec<Value> = events
        .iter()
        .filter(|e| *e != "[DONE]")
        .map(|e| serde_json::from_str(e).unwrap())
        .collect();
    let events = Value::from(events);
    let texts: Vec<String> = (0..4)
        .map(|choice| streamed_text(&events, choice))
        .collect();
    assert_eq!(texts, ["ac", "ad", "bc", "bd"]);
    server.shut_down().await;
}

fn scored(token: u32, logprob: f64, top: &[(u32, f64)]) -> TokenLogprobs {
    TokenLogprobs {
        token,
        logprob,
        rank: 1,
        top: top.to_vec(),
    }
}

#[tokio::test]
async fn echo_repeats_the_prompt_with_its_log_probabilities() {
    let script = || Script {
        logprobs: vec![scored(2, -0.5, &[(2, -0.5), (0, f64::NEG_INFINITY)])],
        prompt_logprobs: vec![scored(1, -3.0, &[(0, -0.1), (2, -2.0)])],
        ..tokens(&[2])
    };
    let text = || FakeText::new(&["aé", "b", "c"]);
    let body = json!({ "prompt": "aéb", "echo": true, "logprobs": 2, "max_tokens": 1 });
    let answer = one(text(), script(), body.clone()).await;
    let lists = json!({
        "text_offset": [0, 2, 3],
        "token_logprobs": [null, -3.0, -0.5],
        "tokens": ["aé", "b", "c"],
        "top_logprobs": [
            null,
            { "aé": -0.1, "b": -3.0, "c": -2.0 },
            { "aé": -9999.0, "c": -0.5 },
        ],
    });
    assert_eq!(answer["choices"][0]["text"], "aébc");
    assert_eq!(answer["choices"][0]["logprobs"], lists);
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let events = one(text(), script(), streamed).await;
    assert_eq!(events[0]["choices"][0]["text"], "aébc");
    assert_eq!(events[0]["choices"][0]["logprobs"], lists);
    // As vLLM names tokens on request, offsets included.
    let mut by_id = body.clone();
    by_id["return_tokens_as_token_ids"] = json!(true);
    let answer = one(text(), script(), by_id).await;
    let lists = json!({
        "text_offset": [0, 10, 20],
        "token_logprobs": [null, -3.0, -0.5],
        "tokens": ["token_id:0", "token_id:1", "token_id:2"],
        "top_logprobs": [
            null,
            { "token_id:0": -0.1, "token_id:1": -3.0, "token_id:2": -2.0 },
            { "token_id:0": -9999.0, "token_id:2": -0.5 },
        ],
    });
    assert_eq!(answer["choices"][0]["logprobs"], lists);
    assert_eq!(answer["choices"][0]["text"], "aébc");
    // Without generation the one computed token is left out.
    let mut only = body;
    only["max_tokens"] = json!(0);
    let answer = one(text(), script(), only).await;
    assert_eq!(answer["choices"][0]["text"], "aéb");
    assert_eq!(
        answer["choices"][0]["logprobs"]["tokens"],
        json!(["aé", "b"])
    );
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 0);
    // Token ids are echoed as text too.
    let body = json!({ "prompt": [0, 1], "echo": true, "max_tokens": 1 });
    assert_eq!(
        one(text(), tokens(&[2]), body).await["choices"][0]["text"],
        "aébc"
    );
}

#[tokio::test]
async fn a_whole_chat_completion() {
    let script = Script {
        logprobs: vec![
            scored(1, -0.25, &[(1, -0.25), (2, -1.5)]),
            scored(3, 0.0, &[(3, 0.0)]),
        ],
        cached_tokens: 1,
        end: Some(End::Eos),
        ..tokens(&[1, 3])
    };
    let text = FakeText {
        chat: "pp".to_owned(),
        special_from: Some(3),
        ..FakeText::new(&["p", "é", "x", "<eos>"])
    };
    let body = json!({
        "messages": [{ "role": "user", "content": "hello" }], "logprobs": true, "top_logprobs": 2,
        "return_token_ids": true, "max_completion_tokens": 9,
    });
    let mut answer = one(text, script, body).await;
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(answer["created"].as_u64().unwrap() >= 1_795_968_500);
    for key in ["id", "created", "system_fingerprint"] {
        assert!(answer.as_object_mut().unwrap().remove(key).is_some());
    }
    let expected = json!({
        "object": "chat.completion",
        "model": "smollm2",
        "choices": [{
            "index": 0,
            "message": { "role": "assistant", "content": "é", "refusal": null, "annotations": null,
                "audio": null, "function_call": null, "tool_calls": [] },
            "logprobs": { "content": [
                { "token": "é", "logprob": -0.25, "bytes": [195, 169], "top_logprobs": [
                    { "token": "é", "logprob": -0.25, "bytes": [195, 169] },
                    { "token": "x", "logprob": -1.5, "bytes": [120] } ] },
                { "token": "<eos>", "logprob": 0.0, "bytes": [60, 101, 111, 115, 62],
                    "top_logprobs": [
                    { "token": "<eos>", "logprob": 0.0, "bytes": [60, 101, 111, 115, 62] } ] },
            ] },
            "finish_reason": "stop", "stop_reason": null, "token_ids": [1, 3],
        }],
        "service_tier": null,
        "usage": { "prompt_tokens": 2, "total_tokens": 4, "completion_tokens": 2,
            "prompt_tokens_details": { "cached_tokens": 1 } },
        "prompt_logprobs": null,
        "prompt_token_ids": [0, 0],
    });
    assert_eq!(answer, expected);
}

#[tokio::test]
async fn lengths_default_as_in_vllm() {
    let stage = Stage::new(None);
    let mut core = FakeCore::new(&stage, |_| tokens(&[0]));
    core.config.max_model_len = 10;
    let text = FakeText {
        chat: "xxx".to_owned(),
        ..FakeText::new(&["x"])
    };
    let server = start(core, text, options()).await;
    for prompt in ["x", "xxxxxxxxx"] {
        let body = json!({ "prompt": prompt });
        assert_eq!(
            client::post(server.addr, "/v1/completions", &body)
                .await
                .status,
            200
        );
    }
    let body = json!({ "messages": [{ "role": "user", "content": "hi" }] });
    assert_eq!(
        client::post(server.addr, "/v1/chat/completions", &body)
            .await
            .status,
        200
    );
    // Sixteen tokens, cut to the room that the context leaves; a chat takes all of it.
    let lengths: Vec<u32> = stage
        .added()
        .iter()
        .map(|r| r.sampling.max_tokens)
        .collect();
    assert_eq!(lengths, [9, 1, 7]);
    for prompt in ["xxxxxxxxxx", "xxxxxxxxxxx"] {
        let reply =
            client::post(server.addr, "/v1/completions", &json!({ "prompt": prompt })).await;
        assert_eq!(
            (reply.status, &reply.error()["param"]),
            (400, &json!("input_tokens"))
        );
    }
    assert_eq!(FinishReason::Length.as_str(), "length");
    let finished = stage
        .calls()
        .iter()
        .filter(|c| matches!(c, Call::Finished(_)))
        .count();
    assert_eq!(finished, 3);
    server.shut_down().await;
}
