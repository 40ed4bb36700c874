//! The server's answers against recordings of a real vLLM server: the same requests, a core that
//! generates the recorded tokens, and then the same JSON, key by key, event by event.

use std::net::SocketAddr;
use std::sync::Arc;

use pb_contract::{TokenId, TokenLogprobs};
use serde_json::{Value, json};

use crate::client::{self, Open, Reply};
use crate::fake_core::{End, FakeCore, Script, Stage};
use crate::fake_text::FakeText;
use crate::recordings::{self, Recording, keys, plain};
use crate::setup::{options, start};

const FRANCE: [&str; 5] = ["The", " capital", " of", " France", " is"];
const DIGITS: [&str; 11] = ["1", "2", "3", "4", "5", "6", "7", "8", "9", ",", " "];

/// A vocabulary of the given texts, and the ids of `wanted`.
fn vocabulary(known: &[&str], wanted: &[String]) -> (FakeText, Vec<TokenId>) {
    let mut all: Vec<String> = known.iter().map(|t| (*t).to_owned()).collect();
    for text in wanted {
        if !all.contains(text) {
            all.push(text.clone());
        }
    }
    let id = |text: &String| all.iter().position(|t| t == text).unwrap() as TokenId;
    let ids = wanted.iter().map(id).collect();
    (
        FakeText::new(&all.iter().map(String::as_str).collect::<Vec<_>>()),
        ids,
    )
}

fn parsed(reply: &Reply) -> Vec<Value> {
    let mut events = reply.events();
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    events
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect()
}

/// Runs one step an event, so that no two tokens share an event.
async fn paced(addr: SocketAddr, stage: &Arc<Stage>, path: &str, body: &Value) -> Reply {
    let chat = path.contains("chat");
    let mut open = Open::post(addr, path, body).await;
    stage
        .wait(1, |call| matches!(call, crate::fake_core::Call::Added(_)))
        .await;
    for token in 1.. {
        stage.permit(1);
        let events = token + usize::from(chat);
        let text = open
            .read_until(|text| text.matches("data: {").count() >= events)
            .await;
        if !text.ends_with("\"finish_reason\":null") && text.contains("\"finish_reason\":\"") {
            break;
        }
    }
    open.rest().await
}

fn assert_same_events(ours: &Reply, recorded: &Reply) {
    assert_eq!(ours.status, recorded.status);
    assert!(
        ours.head
            .contains("content-type: text/event-stream; charset=utf-8")
    );
    let (ours, mut recorded) = (parsed(ours), parsed(recorded));
    for event in &mut recorded {
        if let Some(usage) = event.get_mut("usage").and_then(Value::as_object_mut) {
            // vLLM leaves it out of the running usage; here it is always present.
            let zero = json!({ "cached_tokens": 0 });
            usage.entry("prompt_tokens_details").or_insert(zero);
        }
    }
    assert_eq!(ours.len(), recorded.len());
    for (ours, recorded) in ours.iter().zip(&recorded) {
        assert_eq!(plain(ours), plain(recorded));
        assert_eq!(keys(&plain(ours)), keys(&plain(recorded)), "order of keys");
    }
}

fn completion_texts(recording: &Recording) -> Vec<String> {
    let choices = parsed(&recording.reply).into_iter();
    choices
        .filter_map(|event| event["choices"][0]["text"].as_str().map(str::to_owned))
        .collect()
}

async fn check_completion_stream(name: &str) {
    let recording = recordings::load(name);
    let (text, ids) = vocabulary(&FRANCE, &completion_texts(&recording));
    let stage = Stage::new(Some(0));
    let script = Script {
        tokens: ids,
        ..Script::default()
    };
    let server = start(
        FakeCore::new(&stage, move |_| script.clone()),
        text,
        options(),
    )
    .await;
    let reply = paced(server.addr, &stage, "/v1/completions", &recording.body).await;
    assert_same_events(&reply, &recording.reply);
    server.shut_down().await;
}

#[tokio::test]
async fn a_completion_stream_with_running_usage() {
    check_completion_stream("completion_continuous_usage_stream").await;
}

#[tokio::test]
async fn a_completion_stream_of_one_token() {
    check_completion_stream("max_tokens_1_stream").await;
}

#[tokio::test]
async fn a_completion_stream_ended_by_a_stop_string() {
    let recording = recordings::load("stop_string_stream");
    let mut texts = completion_texts(&recording);
    // The last event carries no text: its token was the stop string.
    assert_eq!(texts.pop().as_deref(), Some(""));
    texts.push("9".to_owned());
    let (text, ids) = vocabulary(&DIGITS, &texts);
    let stage = Stage::new(Some(0));
    let script = Script {
        tokens: ids,
        ..Script::default()
    };
    let server = start(
        FakeCore::new(&stage, move |_| script.clone()),
        text,
        options(),
    )
    .await;
    let reply = paced(server.addr, &stage, "/v1/completions", &recording.body).await;
    assert_same_events(&reply, &recording.reply);
    // The core was told to stop; no token was computed past the stop string.
    stage
        .wait(1, |call| matches!(call, crate::fake_core::Call::Aborted(_)))
        .await;
    server.shut_down().await;
}

async fn check_chat_stream(name: &str, prompt_tokens: usize) {
    let recording = recordings::load(name);
    let choices = parsed(&recording.reply).into_iter().skip(1);
    let mut texts: Vec<String> = choices
        .filter_map(|event| {
            event["choices"][0]["delta"]["content"]
                .as_str()
                .map(str::to_owned)
        })
        .collect();
    let eos = texts.last().is_some_and(String::is_empty);
    if eos {
        *texts.last_mut().unwrap() = "<eos>".to_owned();
    }
    let (mut text, ids) = vocabulary(&["¶"], &texts);
    text.chat = "¶".repeat(prompt_tokens);
    let stage = Stage::new(Some(0));
    let end = eos.then_some(End::Eos);
    let script = Script {
        tokens: ids,
        end,
        ..Script::default()
    };
    let server = start(
        FakeCore::new(&stage, move |_| script.clone()),
        text,
        options(),
    )
    .await;
    let reply = paced(server.addr, &stage, "/v1/chat/completions", &recording.body).await;
    assert_same_events(&reply, &recording.reply);
    server.shut_down().await;
}

#[tokio::test]
async fn a_chat_stream_with_usage_ended_by_the_end_token() {
    check_chat_stream("chat_stream_usage", 45).await;
}

#[tokio::test]
async fn a_chat_stream_without_usage() {
    check_chat_stream("chat_stream_plain", 45).await;
}

#[tokio::test]
async fn a_whole_completion() {
    let recording = recordings::load("completion_plain");
    let texts: Vec<String> = [" Paris", ".", "\n", "\n", "The", " answer", " is", ":"]
        .map(str::to_owned)
        .to_vec();
    let (text, ids) = vocabulary(&FRANCE, &texts);
    let stage = Stage::new(None);
    let script = Script {
        tokens: ids,
        ..Script::default()
    };
    let server = start(
        FakeCore::new(&stage, move |_| script.clone()),
        text,
        options(),
    )
    .await;
    let reply = client::post(server.addr, "/v1/completions", &recording.body).await;
    let (ours, theirs) = (plain(&reply.json()), plain(&recording.reply.json()));
    assert_eq!(ours, theirs);
    assert_eq!(keys(&ours), keys(&theirs), "order of keys");
    assert!(reply.head.contains("content-type: application/json"));
    server.shut_down().await;
}

#[tokio::test]
async fn log_probabilities_of_generated_tokens() {
    let recording = recordings::load("completion_stream_logprobs");
    let events = parsed(&recording.reply);
    type Scored = (String, f64);
    let mut want: Vec<(String, f64, Vec<Scored>)> = Vec::new();
    for event in &events {
        let lists = &event["choices"][0]["logprobs"];
        for (i, token) in lists["tokens"].as_array().into_iter().flatten().enumerate() {
            let top = lists["top_logprobs"][i].as_object().unwrap().iter();
            let mut top: Vec<_> = top.map(|(k, v)| (k.clone(), v.as_f64().unwrap())).collect();
            top.sort_by(|a, b| b.1.total_cmp(&a.1));
            let logprob = lists["token_logprobs"][i].as_f64().unwrap();
            want.push((token.as_str().unwrap().to_owned(), logprob, top));
        }
    }
    let mut all: Vec<String> = want.iter().map(|w| w.0.clone()).collect();
    all.extend(want.iter().flat_map(|w| w.2.iter().map(|t| t.0.clone())));
    let (text, ids) = vocabulary(&FRANCE, &all);
    let id = |t: &String| ids[all.iter().position(|x| x == t).unwrap()];
    let logprobs = want.iter().map(|(token, logprob, top)| TokenLogprobs {
        token: id(token),
        logprob: *logprob,
        rank: 1,
        top: top.iter().map(|(t, l)| (id(t), *l)).collect(),
    });
    let tokens = want.iter().map(|w| id(&w.0)).collect();
    let script = Script {
        tokens,
        logprobs: logprobs.collect(),
        ..Script::default()
    };
    let stage = Stage::new(None);
    let server = start(
        FakeCore::new(&stage, move |_| script.clone()),
        text,
        options(),
    )
    .await;
    let reply = client::post(server.addr, "/v1/completions", &recording.body).await;
    // How tokens share events is a matter of timing, there as here: compare what was streamed.
    let lists = |events: &[Value], key: &str| -> Vec<Value> {
        let of = |e: &Value| e["choices"][0]["logprobs"][key].as_array().cloned();
        events.iter().filter_map(of).flatten().collect()
    };
    let ours = parsed(&reply);
    for key in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(lists(&ours, key), lists(&events, key), "{key}");
    }
    assert_eq!(plain(ours.last().unwrap()), plain(events.last().unwrap()));
    server.shut_down().await;
}

#[tokio::test]
async fn log_probabilities_of_the_prompt() {
    let recording = recordings::load("completion_prompt_logprobs");
    let theirs = recording.reply.json();
    let mut text = FakeText {
        vocab: vec![Vec::new(); 49_152],
        ..FakeText::default()
    };
    let pairs = [("The", 504), (" Paris", 7042), (".", 30)];
    for (token, id) in pairs {
        text.vocab[id] = token.as_bytes().to_vec();
    }
    let mut entries = Vec::new();
    for (position, entry) in theirs["choices"][0]["prompt_logprobs"].as_array().unwrap()[1..]
        .iter()
        .enumerate()
    {
        let mut all = Vec::new();
        for (id, candidate) in entry.as_object().unwrap() {
            let id: TokenId = id.parse().unwrap();
            let token = candidate["decoded_token"].as_str().unwrap();
            text.vocab[id as usize] = token.as_bytes().to_vec();
            let (logprob, rank) = (candidate["logprob"].as_f64(), candidate["rank"].as_u64());
            all.push((id, logprob.unwrap(), rank.unwrap() as u32, token.to_owned()));
        }
        all.sort_by_key(|c| c.2);
        let actual = all.iter().find(|c| c.3 == FRANCE[position + 1]).unwrap();
        let (token, logprob, rank) = (actual.0, actual.1, actual.2);
        let top = all.iter().take(2).map(|c| (c.0, c.1)).collect();
        entries.push(TokenLogprobs {
            token,
            logprob,
            rank,
            top,
        });
    }
    let script = Script {
        tokens: vec![7042, 30],
        prompt_logprobs: entries,
        ..Script::default()
    };
    let stage = Stage::new(None);
    let server = start(
        FakeCore::new(&stage, move |_| script.clone()),
        text,
        options(),
    )
    .await;
    let reply = client::post(server.addr, "/v1/completions", &recording.body).await;
    assert_eq!(plain(&reply.json()), plain(&theirs));
    assert_eq!(stage.added()[0].prompt[0], 504);
    assert_eq!(stage.added()[0].sampling.prompt_logprobs, Some(2));
    server.shut_down().await;
}

#[tokio::test]
async fn errors_models_tokenize_and_reset() {
    let tokens: Vec<String> = (0..200).map(|i| format!("<{i}>")).collect();
    let mut text = FakeText::new(&tokens.iter().map(String::as_str).collect::<Vec<_>>());
    text.vocab[0] = b"x".to_vec();
    let stage = Stage::new(None);
    let core = FakeCore::new(&stage, |_| crate::fake_core::tokens(&[1]));
    let server = start(core, text, options()).await;
    for name in ["bad_json_field", "unknown_model", "prompt_too_long"] {
        let recording = recordings::load(name);
        let reply = client::post(server.addr, "/v1/completions", &recording.body).await;
        assert_eq!(reply.status, recording.reply.status, "{name}");
        // Message, type, param and code, word for word.
        assert_eq!(reply.text(), recording.reply.text(), "{name}");
    }
    let recording = recordings::load("models");
    let (ours, theirs) = (
        plain(&client::get(server.addr, "/v1/models").await.json()),
        recording.reply.json(),
    );
    assert_eq!(ours, plain(&theirs));
    let recording = recordings::load("reset_prefix_cache");
    let reply = client::post(server.addr, "/reset_prefix_cache", &recording.body).await;
    assert_eq!(reply.text(), recording.reply.text());
    server.shut_down().await;

    let recording = recordings::load("tokenize");
    let ids = recording.reply.json()["tokens"].clone();
    let mut text = FakeText {
        vocab: vec![Vec::new(); 49_152],
        ..FakeText::default()
    };
    for (id, token) in ids
        .as_array()
        .unwrap()
        .iter()
        .zip(["na", "ïve", " café", " 🙂"])
    {
        text.vocab[id.as_u64().unwrap() as usize] = token.as_bytes().to_vec();
    }
    let core = FakeCore::new(&stage, |_| crate::fake_core::tokens(&[1]));
    let server = start(core, text, options()).await;
    let reply = client::post(server.addr, "/tokenize", &recording.body).await;
    assert_eq!(reply.text(), recording.reply.text());
    let reply = client::post(server.addr, "/detokenize", &json!({ "tokens": ids })).await;
    assert_eq!(reply.json(), json!({ "prompt": "naïve café 🙂" }));
    server.shut_down().await;
}
