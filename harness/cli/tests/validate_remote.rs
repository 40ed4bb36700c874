//! `validate --base-url` on the engine of this project, healthy and with a wrong position planted.
//! Exact arithmetic leaves no noise, so what is found is the fault.

mod common;
mod planted;
mod recorded_llama;

use common::{run, stderr, stdout};
use pb_contract::{EngineConfig, Fault, Numerics};
use planted::{MODEL, Planted, config};
use serde_json::Value;

fn exact(fault: Fault, budget: usize) -> EngineConfig {
    EngineConfig {
        numerics: Numerics::Exact,
        max_batched_tokens: budget,
        ..config(fault)
    }
}

fn url(engine: &Planted) -> String {
    format!("http://{}", engine.address)
}

/// Runs the verb; its exit code and document.
fn validate(a: &Planted, args: &[&str]) -> (i32, Value) {
    let a = url(a);
    let fixed = ["validate", "--base-url", &a, "--model", MODEL, "--json"];
    let size = ["--prompts", "6", "--prompt-len", "96", "--precision", "f32"];
    let output = run(&[&fixed[..], &size, args].concat());
    let document = serde_json::from_str(&stdout(&output))
        .unwrap_or_else(|error| panic!("{error}: {}{}", stdout(&output), stderr(&output)));
    (output.status.code().expect("an exit code"), document)
}

fn compared<'a>(document: &'a Value, name: &str, rows: &str) -> &'a Value {
    let all = document["compared"].as_array().expect("a list");
    let found = all.iter().find(|c| c["name"] == name && c["rows"] == rows);
    found.unwrap_or_else(|| panic!("no {name} of {rows}: {document:#}"))
}

#[test]
fn healthy_servers_of_two_budgets_agree_in_every_state() {
    let (a, b) = (
        Planted::start(exact(Fault::None, 512)),
        Planted::start(exact(Fault::None, 48)),
    );
    let (code, document) = validate(&a, &["--against", &url(&b)]);
    assert_eq!(code, 0, "{document:#}");
    assert_eq!(document["prompt_source"], "prompt_logprobs");
    for (name, rows) in [
        ("cold | warm cache", "greedy tokens"),
        ("once | again", "prompt tokens"),
        ("alone | mixed", "prompt tokens"),
        ("alone | mixed", "greedy tokens"),
        ("A | B", "prompt tokens"),
        ("A | B", "greedy tokens"),
    ] {
        let one = compared(&document, name, rows);
        assert_eq!(one["result"]["verdict"]["verdict"], "pass", "{one:#}");
        assert_eq!(one["unproven"], Value::Null, "{one:#}");
        // 6 prompts of 95 predicted tokens, or of 16 generated ones.
        let want = if rows == "prompt tokens" { 570 } else { 96 };
        assert_eq!(one["result"]["stats"]["rows"], want, "{one:#}");
        assert_eq!(one["result"]["stats"]["kl"]["max"], 0.0, "{one:#}");
    }
    // 96 tokens in blocks of 16, the last of which must be computed.
    let cache = compared(&document, "cold | warm cache", "greedy tokens");
    let evidence = cache["evidence"].as_str().expect("text");
    assert!(
        evidence.contains("cold at most 0, warm at least 80 of 96"),
        "{evidence}"
    );
    let planted = document["planted"].as_array().expect("a list");
    assert_eq!(planted.len(), 10);
    for one in planted.iter().filter(|p| p["required"] == true) {
        assert_eq!(one["result"]["verdict"]["verdict"], "fail", "{one:#}");
    }
}

#[test]
fn a_wrong_position_in_later_chunks_fails_the_other_server() {
    let (a, b) = (
        Planted::start(exact(Fault::None, 512)),
        Planted::start(exact(Fault::RopePlusOneAfterFirstChunk, 48)),
    );
    let (code, document) = validate(&a, &["--against", &url(&b), "--background", "0"]);
    assert_eq!(code, 1, "{document:#}");
    let rows = compared(&document, "A | B", "prompt tokens");
    assert_eq!(rows["result"]["verdict"]["verdict"], "fail");
    // The first chunk has the right positions: no row before its end may differ. It ends with
    // token 47, whose row predicts token 48.
    let first = &rows["result"]["stats"]["flips"]["first_real"]["position"];
    assert!(first.as_u64().expect("a flip") > 48, "{first}");
    let clean = compared(&document, "cold | warm cache", "greedy tokens");
    assert_eq!(clean["result"]["verdict"]["verdict"], "pass", "{clean:#}");
}

#[test]
fn the_same_fault_shows_on_one_server_when_its_cache_is_warm() {
    // A whole prompt is one chunk here; behind a hit its rest is a later one.
    let engine = Planted::start(exact(Fault::RopePlusOneAfterFirstChunk, 512));
    let (code, document) = validate(&engine, &["--background", "0"]);
    assert_eq!(code, 1, "{document:#}");
    let warm = compared(&document, "cold | warm cache", "greedy tokens");
    assert_eq!(warm["result"]["verdict"]["verdict"], "fail", "{warm:#}");
    let again = compared(&document, "once | again", "prompt tokens");
    assert_eq!(again["result"]["verdict"]["verdict"], "pass", "{again:#}");
}

#[test]
fn a_server_without_a_cache_is_not_proven_warm() {
    let mut without = exact(Fault::None, 512);
    without.prefix_cache = pb_contract::PrefixCacheKind::None;
    let engine = Planted::start(without);
    let (code, document) = validate(&engine, &["--background", "0"]);
    assert_eq!(code, 3, "{document:#}");
    let why = &compared(&document, "cold | warm cache", "greedy tokens")["unproven"];
    let why = why.as_str().expect("a reason");
    assert!(why.contains("found less than half"), "{why}");
}

/// A question with a number and 80 with two choices.
fn items() -> String {
    let item = |n: usize| {
        let answer = ["A", "B"][n % 2];
        format!(
            "{{\"question\": \"Which of the two comes after {n}?\", \"choices\": [\"{}\", \
             \"{}\"], \"answer\": \"{answer}\"}}\n",
            n + 1,
            n + 7
        )
    };
    let number = "{\"question\": \"One and one?\", \"answer\": \"1+1=2\\n#### 2\"}\n";
    number.to_owned() + &(0..80).map(item).collect::<String>()
}

#[test]
fn tasks_are_scored_on_both_servers() {
    let (a, b) = (
        Planted::start(exact(Fault::None, 512)),
        Planted::start(exact(Fault::None, 48)),
    );
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("items.jsonl");
    std::fs::write(&file, items()).expect("written");
    let novel = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../workloads/prompts/northanger_abbey.txt"
    );
    let (url_a, url_b) = (url(&a), url(&b));
    let output = run(&[
        "validate",
        "tasks",
        "--base-url",
        &url_a,
        "--against",
        &url_b,
        "--model",
        MODEL,
        "--tasks",
        file.to_str().expect("UTF-8"),
        "--shots",
        "0",
        "--output-len",
        "16",
        "--perplexity",
        novel,
        "--windows",
        "4",
        "--window-len",
        "96",
        "--json",
    ]);
    let document: Value = serde_json::from_str(&stdout(&output))
        .unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)));
    assert_eq!(output.status.code(), Some(0), "{document:#}");
    let scores = &document["scores"];
    assert_eq!(
        (
            &scores["items"],
            &scores["lost"],
            &scores["gained"],
            &scores["p"]
        ),
        (&81.into(), &0.into(), &0.into(), &1.0.into())
    );
    // Two choices and an untrained model: some are right and some are wrong.
    let right = scores["a"]["right"].as_u64().expect("a count");
    assert!((9..81).contains(&right), "{right}");
    let perplexity = &document["perplexity"];
    assert_eq!(perplexity["tokens"], 4 * 95);
    assert_eq!(
        (&perplexity["delta_nll"], &perplexity["verdict"]["verdict"]),
        (&0.0.into(), &"pass".into())
    );
    assert!(perplexity["a"].as_f64() > Some(1.0));
}

#[test]
fn bad_input_says_what_and_exits_with_2() {
    const SERVER: &str = "validate --model m --base-url http://127.0.0.1:9";
    let with = |more: &str| format!("{SERVER}{more}");
    let tasks = "validate tasks --base-url http://127.0.0.1:9 --against http://127.0.0.1:9 \
                 --model m --tasks no-such-file";
    for (line, part) in [
        ("validate".to_owned(), "--model"),
        (
            "validate --model m --against http://127.0.0.1:9".to_owned(),
            "--base-url",
        ),
        (
            "validate --model m --base-url 127.0.0.1:9".to_owned(),
            "http://HOST:PORT",
        ),
        (with(""), "127.0.0.1:9"),
        (with(" --prompt-len 20"), "--prompt-len 20"),
        (with(" --chunks 4"), "--chunks"),
        (tasks.to_owned(), "no-such-file"),
    ] {
        let output = run(&line.split_whitespace().collect::<Vec<_>>());
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{line}: {said}");
        assert!(said.contains(part), "{line}: {said}");
        assert!(!said.contains("panicked"), "{line}: {said}");
    }
}
