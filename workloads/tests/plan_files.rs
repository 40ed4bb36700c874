//! Data sets that are files: what is kept, what is dropped and why, and when it is due.

mod support;

use std::path::{Path, PathBuf};

use pb_contract::Nanos;
use pb_workloads::{DatasetError, Form, PlanOptions, Source, plan};
use serde_json::json;
use support::*;

fn words(first: &str, count: usize) -> String {
    let more = std::iter::repeat_n("word", count - 1);
    std::iter::once(first)
        .chain(more)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Conversations that vLLM's filter keeps or drops, each for another reason.
fn sharegpt(folder: &Path) -> PathBuf {
    let turns = |texts: &[String]| {
        let turn = |(at, text): (usize, &String)| {
            let speaker = ["human", "gpt"][at % 2];
            json!({"from": speaker, "value": text})
        };
        let turns: Vec<_> = texts.iter().enumerate().map(turn).collect();
        json!({"id": "x", "conversations": turns})
    };
    let all = json!([
        turns(&[words("kept", 3), words("a", 3)]),
        turns(&[words("short", 2), words("a", 9)]),
        turns(&[words("curt", 9), words("a", 2)]),
        turns(&[words("long", 1024), words("a", 9)]),
        turns(&[words("edge", 1023), words("a", 1023)]),
        turns(&[words("total", 1023), words("a", 1024)]),
        turns(&[words("alone", 9)]),
        turns(&[
            words("talk", 10),
            words("a", 20),
            words("then", 5),
            words("b", 6),
            words("end", 4)
        ]),
    ]);
    let path = folder.join("sharegpt.json");
    std::fs::write(&path, all.to_string()).unwrap();
    path
}

#[test]
fn sharegpt_keeps_what_vllm_keeps() {
    let folder = tempfile::tempdir().unwrap();
    let path = sharegpt(folder.path());
    let planned = told(&file("sharegpt", &path, "shuffle = false"), "", Form::Text).unwrap();
    let kept: Vec<(String, u32, u32)> = bodies(&planned.plan)
        .iter()
        .map(|b| {
            let first = said(b).split(' ').next().unwrap().to_owned();
            (first, b.planned_tokens, b.max_tokens)
        })
        .collect();
    // A word is a token, and one more stands before each text: 1024 and 2048 are still kept.
    let expected = [("kept", 4, 4), ("edge", 1024, 1024), ("talk", 11, 21)];
    assert_eq!(kept, expected.map(|(w, p, o)| (w.to_owned(), p, o)));
    assert_eq!(planned.facts.rows_read, 8);
    let dropped: Vec<(&str, u64)> = planned
        .facts
        .dropped
        .iter()
        .map(|(k, v)| (k.as_str(), *v))
        .collect();
    assert_eq!(
        dropped,
        [
            ("fewer_than_two_turns", 1),
            ("longer_than_max_prompt_len", 1),
            ("longer_than_max_total_len", 1),
            ("shorter_than_min_len", 2),
        ]
    );
    // With a set output the answer's length does not matter.
    let set = file("sharegpt", &path, "shuffle = false\noutput_len = 7");
    let set = told(&set, "", Form::Text).unwrap();
    assert_eq!(set.facts.requests, 5);
    assert!(bodies(&set.plan).iter().all(|body| body.max_tokens == 7));
}

#[test]
fn sharegpt_in_a_seeded_order_and_never_more_than_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = sharegpt(folder.path());
    let data = file("sharegpt", &path, "");
    let order = |seed| {
        let options = PlanOptions {
            seed,
            ..text(Form::Text)
        };
        let source = Source::words().with_tokenizer(&WORDS);
        let planned = plan(&dataset(&data), &shape(""), &source, &options).unwrap();
        bodies(&planned.plan)
            .iter()
            .map(|b| b.planned_tokens)
            .collect::<Vec<_>>()
    };
    assert_eq!(order(1), order(1));
    assert!((0..9).any(|seed| order(seed) != order(1)));
    let error = told(&data, "num_prompts = 4", Form::Text).unwrap_err();
    assert!(
        matches!(
            error,
            DatasetError::Exhausted {
                asked: 4,
                unique: 3,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn whole_conversations_are_sessions() {
    let folder = tempfile::tempdir().unwrap();
    let path = sharegpt(folder.path());
    let data = file(
        "sharegpt",
        &path,
        "shuffle = false\nmulti_turn = true\nthink_s = 2",
    );
    let planned = told(&data, "request_rate = 1", Form::Chat).unwrap();
    assert_eq!((planned.facts.sessions, planned.facts.requests), (3, 4));
    let talk = &planned.plan.sessions[2].turns;
    assert_eq!(said(&talk[0].body), format!("user: {}", words("talk", 10)));
    assert_eq!(said(&talk[1].body), format!("user: {}", words("then", 5)));
    assert_eq!((talk[1].body.max_tokens, talk[1].history), (7, true));
    assert_eq!(talk[1].think_ns, Nanos::from_secs(2));
    // The prompt of the second turn, with the recorded answer in place of the target's: messages
    // of 10, 20 and 5 words with 3 tokens around each, and 2 at the end.
    assert_eq!(talk[1].body.planned_tokens, 10 + 20 + 5 + 9 + 2);
    let error = told(&data, "request_rate = 1", Form::Text)
        .unwrap_err()
        .to_string();
    assert!(error.contains("sent as chats"), "{error}");
}

#[test]
fn custom_prompts_go_in_every_form() {
    let path = fixture("vllm_custom.jsonl");
    let data = file("custom", &path, "shuffle = false");
    let texts = told(&data, "", Form::Text).unwrap();
    let all: Vec<(String, u32)> = bodies(&texts.plan)
        .iter()
        .map(|b| (said(b), b.max_tokens))
        .collect();
    assert_eq!(
        all,
        [("Explain RAM".into(), 64), ("Explain ROM".into(), 256)]
    );
    let chats = told(&data, "max_concurrency = 1", Form::Chat).unwrap();
    assert_eq!(said(&chats.plan.closed[0].bodies[1]), "user: Explain ROM");
    let source = ids().with_tokenizer(&WORDS);
    let as_ids = plan(&dataset(&data), &shape(""), &source, &seeded(1)).unwrap();
    let expected = pb_workloads::Tokenizer::encode(&WORDS, "Explain RAM");
    assert_eq!(prompt(bodies(&as_ids.plan)[0]), expected);
    let error = planned(&data, "", &seeded(1)).unwrap_err().to_string();
    assert!(error.contains("no tokenizer is known"), "{error}");
    // Without a tokenizer four characters are a token.
    let guessed = plan(
        &dataset(&data),
        &shape(""),
        &Source::words(),
        &text(Form::Text),
    )
    .unwrap();
    assert_eq!(guessed.plan.open[0].body.planned_tokens, 3);
    assert!(!guessed.facts.tokens_exact);
    let set = file("custom", &path, "output_len = 9");
    let set = told(&set, "", Form::Text).unwrap();
    assert!(bodies(&set.plan).iter().all(|body| body.max_tokens == 9));
}
