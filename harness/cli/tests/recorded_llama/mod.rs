//! A server that answers as llama.cpp's did when it was recorded, truly or with a fault of its
//! cache, and `validate` against it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::common::{run, stderr, stdout};

/// What the recorded run was.
#[derive(Deserialize)]
struct Recording {
    flags: Vec<String>,
    exchanges: Vec<Exchange>,
}

#[derive(Clone, Deserialize)]
struct Exchange {
    method: String,
    path: String,
    body: Value,
    status: u16,
    answer: String,
}

/// How the answers differ from the recorded ones.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// A warm prompt is continued as if another block had been found.
    WrongBlock,
    /// The first token's logits of a warm prompt are those of another prompt.
    WrongPrompt,
    /// Nothing is found in the cache.
    NeverWarm,
    /// `cache_prompt: false` is passed by.
    AlwaysWarm,
    /// Zero cached tokens are claimed of a prompt of which four were computed.
    HiddenHit,
    /// No count of cached tokens.
    Silent,
}

/// Requests by method, path and body, and what each was answered, in order.
type Answers = BTreeMap<String, Vec<Exchange>>;

fn key(method: &str, path: &str, body: &Value) -> String {
    format!("{method} {path} {body}")
}

fn recording() -> Recording {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/validate_llama/exchanges.json");
    let text = std::fs::read_to_string(path).expect("a recording");
    serde_json::from_str(&text).expect("JSON")
}

struct Fake {
    answers: Answers,
    /// How often each was asked.
    asked: Mutex<BTreeMap<String, usize>>,
    fault: Fault,
}

fn prompt(body: &Value) -> Vec<u64> {
    let ids = body["prompt"].as_array().into_iter().flatten();
    ids.filter_map(Value::as_u64).collect()
}

fn is_scored(body: &Value) -> bool {
    body["logprobs"].is_u64() && body["max_tokens"].as_u64() > Some(2)
}

impl Fake {
    /// The recorded answer to this request, as often as it was asked.
    fn recorded(&self, key: &str) -> Exchange {
        let all = self.answers.get(key);
        let all = all.unwrap_or_else(|| panic!("{key} was not recorded: record it again"));
        let mut asked = self.asked.lock().expect("a count");
        let turn = asked.entry(key.to_owned()).or_default();
        *turn += 1;
        all[(*turn - 1).min(all.len() - 1)].clone()
    }

    /// The body of the recorded answer to a request with another prompt, found by `pick`.
    fn other(&self, asked: &Value, pick: impl Fn(&[u64], &[u64]) -> bool) -> Value {
        let mine = prompt(asked);
        let all = self.answers.values().flatten();
        let mut found = all.filter(|one| {
            let body = &one.body;
            is_scored(body) && body["cache_prompt"] == false && pick(&mine, &prompt(body))
        });
        let one = found.next().expect("such a request was recorded");
        serde_json::from_str(&one.answer).expect("JSON")
    }

    fn answer(&self, method: &str, path: &str, asked: &Value) -> (u16, String) {
        let recorded = self.recorded(&key(method, path, asked));
        let body = serde_json::from_str::<Value>(&recorded.answer);
        let (true, Ok(mut body)) = (is_scored(asked), body) else {
            return (recorded.status, recorded.answer);
        };
        let warm = asked["cache_prompt"] == true;
        let differing = |a: &[u64], b: &[u64]| a.iter().zip(b).filter(|(x, y)| x != y).count();
        match self.fault {
            Fault::WrongBlock if warm => {
                // That very block was replaced in one of the altered prompts.
                let wrong = self.other(asked, |mine, other| {
                    mine.len() == other.len() && (2..=16).contains(&differing(mine, other))
                });
                body["choices"] = wrong["choices"].clone();
            }
            Fault::WrongPrompt if warm => {
                let wrong = self.other(asked, |mine, other| {
                    mine.len() == other.len() && differing(mine, other) > 40
                });
                let first = "/choices/0/logprobs/content/0/top_logprobs";
                *body.pointer_mut(first).expect("a list") =
                    wrong.pointer(first).expect("a list").clone();
            }
            Fault::NeverWarm if warm => found(&mut body, 0, 64),
            Fault::AlwaysWarm if !warm => found(&mut body, 63, 1),
            Fault::HiddenHit if !warm => found(&mut body, 0, 4),
            Fault::Silent => {
                body["timings"] = Value::Null;
                body["usage"]["prompt_tokens_details"] = json!({});
            }
            _ => {}
        }
        (recorded.status, body.to_string())
    }
}

/// Makes an answer say so many cached and computed tokens.
fn found(body: &mut Value, cached: u32, computed: u32) {
    body["usage"]["prompt_tokens_details"]["cached_tokens"] = cached.into();
    body["timings"]["cache_n"] = cached.into();
    body["timings"]["prompt_n"] = computed.into();
}

/// One request, one answer.
fn serve(fake: &Fake, stream: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let mut length = 0;
    loop {
        let mut field = String::new();
        reader.read_line(&mut field)?;
        match field.trim_end().to_ascii_lowercase().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().expect("a length"),
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
    if asked["max_tokens"] == 64 {
        // Requests that keep a server busy follow each other for ever.
        std::thread::sleep(Duration::from_millis(20));
    }
    let (status, answer) = fake.answer(method, path, &asked);
    let stream = reader.get_mut();
    write!(
        stream,
        "HTTP/1.1 {status} x\r\nserver: llama.cpp\r\ncontent-type: application/json\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{answer}",
        answer.len()
    )
}

/// Serves the recording with a fault; its address and the recorded flags.
fn start(fault: Fault) -> (String, Vec<String>) {
    let Recording { flags, exchanges } = recording();
    let mut answers = Answers::new();
    for one in exchanges {
        let key = key(&one.method, &one.path, &one.body);
        answers.entry(key).or_default().push(one);
    }
    let asked = Mutex::default();
    let fake = Arc::new(Fake {
        answers,
        asked,
        fault,
    });
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let fake = Arc::clone(&fake);
            // A client that has gone is no fault.
            std::thread::spawn(move || serve(&fake, stream).ok());
        }
    });
    (format!("http://{address}"), flags)
}

/// Runs the verb on the recording; its exit code and document.
fn validate(fault: Fault) -> (i32, Value) {
    let (url, flags) = start(fault);
    let fixed = [
        "validate",
        "--base-url",
        &url,
        "--model",
        "smollm2",
        "--json",
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let output = run(&[&fixed[..], &flags].concat());
    let document = serde_json::from_str(&stdout(&output))
        .unwrap_or_else(|error| panic!("{error}: {}{}", stdout(&output), stderr(&output)));
    (output.status.code().expect("an exit code"), document)
}

fn cache(document: &Value) -> &Value {
    let all = document["compared"].as_array().expect("a list");
    let found = all.iter().find(|one| one["name"] == "cold | warm cache");
    found.expect("the cache is compared")
}

#[test]
fn llama_cpp_is_compared_by_greedy_tokens_and_what_falls_away_is_named() {
    let (code, document) = validate(Fault::None);
    assert_eq!(code, 0, "{document:#}");
    let server = document["server"].as_str().expect("a server");
    assert!(server.starts_with("llama-cpp "), "{server}");
    assert_eq!(document["prompt_source"], Value::Null);
    let compared = document["compared"].as_array().expect("a list");
    let named: Vec<(&str, &str)> = compared
        .iter()
        .map(|one| (one["name"].as_str().unwrap(), one["rows"].as_str().unwrap()))
        .collect();
    let greedy = "greedy tokens";
    let want = [
        ("cold | warm cache", greedy),
        ("cold | warm later", greedy),
        ("once | again", greedy),
        ("alone | mixed", greedy),
    ];
    assert_eq!(named, want);
    for one in compared {
        assert_eq!(one["result"]["verdict"]["verdict"], "pass", "{one:#}");
        assert_eq!(one["unproven"], Value::Null, "{one:#}");
    }
    // The last token of a prompt is always computed.
    let evidence = cache(&document)["evidence"].as_str().expect("text");
    let want = "cold at most 0, warm at least 63 of 64; its count of computed tokens is the rest";
    assert!(evidence.ends_with(want), "{evidence}");
    let fallen = document["not_compared"].as_array().expect("a list");
    let names: Vec<&Value> = fallen.iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["once | again", "alone | mixed", "altered contexts"]);
    for one in fallen {
        let why = one["why"].as_str().expect("text");
        assert_eq!(one["rows"], "prompt tokens");
        assert!(
            why.contains("prompt_logprobs: the answer has none"),
            "{why}"
        );
        let echo = "echo with logprobs: 1 positions for 64 prompt tokens";
        assert!(why.contains(echo), "{why}");
    }
    let required = document["planted"].as_array().expect("a list");
    assert_eq!(required.len(), 5);
}

#[test]
fn wrong_states_of_a_warm_prompt_fail() {
    for fault in [Fault::WrongBlock, Fault::WrongPrompt] {
        let (code, document) = validate(fault);
        assert_eq!(code, 1, "{document:#}");
        let cache = cache(&document);
        assert_eq!(cache["result"]["verdict"]["verdict"], "fail", "{cache:#}");
    }
}

#[test]
fn states_that_are_not_what_they_are_called_are_not_proven() {
    for (fault, part) in [
        (Fault::NeverWarm, "found less than half"),
        (Fault::AlwaysWarm, "cold requests found something"),
        (Fault::HiddenHit, "0 cached and 4 computed"),
        (Fault::Silent, "without cached tokens"),
    ] {
        let (code, document) = validate(fault);
        assert_eq!(code, 3, "{document:#}");
        let why = cache(&document)["unproven"].as_str().expect("a reason");
        assert!(why.contains(part), "{why}");
    }
}
