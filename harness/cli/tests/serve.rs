//! The server as a process: ready line, requests, determinism across configurations, shutdown.

mod common;

use common::{Server, prefillbench, run, stderr};
use pb_model::lora;
use pb_model::synth::{self, Kind, Size};
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

#[test]
fn the_sglang_preset_serves_from_a_radix_tree() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("engine.toml");
    std::fs::write(&file, "max_num_seqs = 5\n[scheduling]\nqueue = \"lpm\"\n").expect("written");
    let file = file.to_str().expect("UTF-8");
    let line = "--model synthetic-tiny --numerics exact --preset sglang --page-size 4 \
                --radix-eviction-policy lfu --chunked-prefill-size 32 --config";
    let args: Vec<&str> = line.split_whitespace().chain([file]).collect();
    let server = Server::start(&args);
    let (_, info) = server.request("GET", "/server_info", "");
    let info: Value = serde_json::from_str(&info).expect("JSON");
    let config = &info["config"];
    assert_eq!(config["prefix_cache"], "radix");
    assert_eq!(config["scheduling"]["policy"], "prefill_first");
    assert_eq!(config["scheduling"]["reserved_decode"]["enabled"], true);
    assert_eq!(config["scheduling"]["queue"], "lpm");
    assert_eq!(config["cache"]["eviction"], "lfu");
    let sizes = ["block_size", "max_batched_tokens", "max_num_seqs"].map(|key| &config[key]);
    assert_eq!(sizes, [4, 32, 5]);
    assert_eq!(config["fault"], "none");

    // The rules change when tokens are computed, never which: the same bits as the default rules.
    let prompt: Vec<u32> = (0..75).map(|i| (i * 37 + 11) % 250).collect();
    let first = complete(&server, &greedy(&prompt));
    let other = Server::start(&["--model", "synthetic-tiny", "--numerics", "exact"]);
    let same = complete(&other, &greedy(&prompt));
    assert_eq!(first["choices"], same["choices"]);
    // 75 tokens and the 11 outputs before the last are in the tree; of the prompt, all whole pages
    // but the one with the last token are found again.
    let body = json!({"prompt": prompt, "max_tokens": 1, "temperature": 0});
    let again = complete(&server, &body);
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], 72);
    assert!(server.wait().success());
}

#[test]
fn adapters_are_served_by_name_with_several_choices() {
    let dir = tempfile::tempdir().expect("a directory");
    let model = synth::model(Kind::Sharp, Size::Tiny, 1).expect("a model");
    let mut modules = Vec::new();
    for (name, seed) in [("sql", 7), ("poems", 8)] {
        let folder = dir.path().join(name);
        lora::synth::write_dir(&folder, &model.config, 4, 4.0, seed).expect("written");
        modules.push(format!("{name}={}", folder.display()));
    }
    let line = "--model synthetic-tiny --numerics exact --lora-modules";
    let args: Vec<&str> = line
        .split(' ')
        .chain(modules.iter().map(|m| &**m))
        .collect();
    let server = Server::start(&args);

    let (_, listed) = server.request("GET", "/v1/models", "");
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    let cards = listed["data"].as_array().expect("a list").iter();
    let cards: Vec<Value> = cards
        .map(|card| json!([card["id"], card["parent"]]))
        .collect();
    let parent = "synthetic-tiny";
    let expected = [
        json!([parent, null]),
        json!(["sql", parent]),
        json!(["poems", parent]),
    ];
    assert_eq!(cards, expected);

    let prompt: Vec<u32> = (0..40).map(|i| (i * 37 + 11) % 250).collect();
    let mut outputs = Vec::new();
    for model in ["synthetic-tiny", "sql", "poems"] {
        let mut body = greedy(&prompt);
        body["model"] = json!(model);
        body["n"] = json!(2);
        body["prompt_logprobs"] = Value::Null;
        let answer = complete(&server, &body);
        assert_eq!(answer["model"], model);
        let choices = answer["choices"].as_array().expect("choices");
        assert_eq!(choices.len(), 2);
        // Greedy, so both say the same.
        assert_eq!(choices[0]["token_ids"], choices[1]["token_ids"]);
        assert_eq!(choices[0]["token_ids"].as_array().map(Vec::len), Some(12));
        let usage = &answer["usage"];
        assert_eq!(
            (&usage["prompt_tokens"], &usage["completion_tokens"]),
            (&json!(40), &json!(24))
        );
        outputs.push(choices[0]["token_ids"].clone());
    }
    assert!(outputs[0] != outputs[1] && outputs[1] != outputs[2] && outputs[0] != outputs[2]);
    let unknown = json!({"model": "sq", "prompt": prompt}).to_string();
    let (status, text) = server.request("POST", "/v1/completions", &unknown);
    assert_eq!(status, 404, "{text}");
    assert!(text.contains("synthetic-tiny, sql, poems"), "{text}");
    assert!(server.wait().success());
}

#[test]
fn options_that_cannot_be_met_are_named_before_the_server_listens() {
    let dir = tempfile::tempdir().expect("a directory");
    let fault = dir.path().join("fault.toml");
    std::fs::write(&fault, "fault = \"stale-hit\"\n").expect("written");
    let fault = format!("--config {}", fault.display());
    let table = [
        (&*fault, "fault"),
        ("--config no-such.toml", "no-such.toml"),
        ("--policy fifo", "token_budget"),
        ("--policy monolithic --chunked on", "scheduling.policy"),
        ("--swap-space 1MiB", "--preemption-mode swap"),
        ("--tier-disk-bytes 1MiB", "--tier-disk"),
        ("--tier-host-bytes 1MiB --prefix-cache none", "prefix cache"),
        ("--tier-redis redis://user:secret@localhost", "redis_url"),
        ("--lora-modules sql", "NAME=DIR"),
        ("--lora-modules sql=no-such-folder", "no-such-folder"),
        ("--lora-modules synthetic-tiny=x", "--served-model-name"),
        ("--mixed-chunk", "mixed_chunk"),
    ];
    for (line, needle) in table {
        let words = ["serve", "--model", "synthetic-tiny", "--port", "0"].into_iter();
        let output = run(&words.chain(line.split(' ')).collect::<Vec<_>>());
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{line}: {said}");
        assert!(said.contains(needle), "{line}: {said}");
        assert!(
            !said.contains("panicked") && !said.contains("secret"),
            "{line}: {said}"
        );
        assert!(output.stdout.is_empty(), "{line}");
    }
}
