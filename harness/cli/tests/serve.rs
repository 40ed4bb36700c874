//! The server as a process: ready line, requests, determinism across configurations, shutdown.

mod common;

use common::{Server, prefillbench};
use serde_json::{Value, json};

fn complete(server: &Server, body: &Value) -> Value {
    let (status, text) = server.request("POST", "/v1/completions", &body.to_string());
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).expect("JSON")
}

fn greedy(prompt: &[u32]) -> Value {
    json!({
        "model": "synthetic-tiny", "prompt": prompt, "max_tokens": 12, "temperature": 0,
        "ignore_eos": true, "prompt_logprobs": 1, "return_token_ids": true
    })
}

#[test]
fn exact_answers_do_not_depend_on_chunking_or_block_size() {
    let prompt: Vec<u32> = (0..75).map(|i| (i * 37 + 11) % 250).collect();
    let variants: [&[&str]; 4] = [
        &["--chunked", "off"],
        &["--max-batched-tokens", "7"],
        &["--max-batched-tokens", "16", "--block-size", "8"],
        &[
            "--max-batched-tokens",
            "33",
            "--threads",
            "2",
            "--prefix-cache",
            "none",
        ],
    ];
    let mut answers = Vec::new();
    for variant in variants {
        let args = [
            &["--model", "synthetic-tiny", "--numerics", "exact"],
            variant,
        ]
        .concat();
        let server = Server::start(&args);
        let answer = complete(&server, &greedy(&prompt));
        let choice = answer["choices"][0].clone();
        let entries = choice["prompt_logprobs"]
            .as_array()
            .expect("prompt log-probabilities");
        assert_eq!(entries.len(), prompt.len());
        assert!(entries[0].is_null() && entries[1].is_object());
        assert_eq!(choice["token_ids"].as_array().map(Vec::len), Some(12));
        answers.push(choice);
        assert!(server.wait().success());
    }
    assert!(
        answers.windows(2).all(|pair| pair[0] == pair[1]),
        "bit-identical answers"
    );
}

#[test]
fn the_prefix_cache_is_reported_and_reset() {
    let server = Server::start(&["--model", "synthetic-tiny"]);
    let prompt: Vec<u32> = (0..64).map(|i| (i * 5 + 3) % 250).collect();
    let body = json!({"prompt": prompt, "max_tokens": 1, "temperature": 0});
    let cached = |answer: Value| {
        answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .expect("always present")
    };
    assert_eq!(cached(complete(&server, &body)), 0);
    // 64 tokens are four blocks of 16; the last is computed again for its logits.
    assert_eq!(cached(complete(&server, &body)), 48);
    let (status, text) = server.request("POST", "/reset_prefix_cache", "");
    assert_eq!((status, text.as_str()), (200, "{\"success\":true}"));
    assert_eq!(cached(complete(&server, &body)), 0);
}

#[test]
fn bad_requests_do_not_stop_the_server() {
    let server = Server::start(&["--model", "synthetic-tiny", "--num-blocks", "8"]);
    let table = [
        (json!({"prompt": []}), 400),
        (json!({"prompt": [999_999]}), 400),
        (json!({"prompt": [1, 2], "max_tokens": 0}), 400),
        (json!({"prompt": [1, 2], "temperature": -1}), 400),
        (json!({"prompt": vec![1; 2000]}), 400),
        (json!({"prompt": [1, 2], "model": "other"}), 404),
        (json!({"prompt": {"a": 1}}), 400),
    ];
    for (body, want) in table {
        let (status, text) = server.request("POST", "/v1/completions", &body.to_string());
        assert_eq!(status, want, "{body}: {text}");
        let error: Value = serde_json::from_str(&text).expect("JSON");
        assert!(
            error["error"]["message"]
                .as_str()
                .is_some_and(|m| !m.is_empty())
        );
    }
    let (status, _) = server.request("GET", "/health", "");
    assert_eq!(status, 200);
}

#[test]
fn the_key_is_checked_and_never_shown() {
    let mut command = prefillbench(&["serve", "--model", "synthetic-tiny", "--port", "0"]);
    command
        .args(["--api-key-env", "PB_TEST_KEY"])
        .env("PB_TEST_KEY", "top-secret-key");
    command
        .stdin(std::process::Stdio::piped())
        .arg("--until-stdin-closes");
    let child = command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the server starts");
    let output = {
        let mut child = child;
        drop(child.stdin.take());
        child.wait_with_output().expect("the server ends")
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("listening on"), "{said}");
    assert!(!said.contains("top-secret-key"));
}
