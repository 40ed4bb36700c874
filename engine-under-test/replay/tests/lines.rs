//! Single lines: what they answer, and what is said about those that cannot be done.

use pb_replay::Replay;
use serde_json::{Value, json};

const CONFIG: &str = r#"{"op":"config","preset":"vllm-v1","block_size":4,"num_blocks":8}"#;

fn after(lines: &[&str]) -> (Replay, Vec<Value>) {
    let mut replay = Replay::default();
    let answers = lines.iter().map(|line| replay.line(line)).collect();
    (replay, answers)
}

fn last(lines: &[&str]) -> Value {
    after(lines).1.pop().unwrap()
}

/// vLLM's test vector: 55 tokens at block 16 with 11 blocks (null block 0), then 48 of the same
/// and 5 others; freed to the queue 5,4,6,7,8,9,10,3,2,1.
#[test]
fn the_test_vector_of_vllm_comes_out() {
    let (_, answers) = after(&[
        r#"{"op":"config","preset":"vllm-v1","block_size":16,"num_blocks":11}"#,
        r#"{"op":"add","id":"r0","tokens":{"range":[1,56]},"max_tokens":2}"#,
        r#"{"op":"step","sample":{"r0":900}}"#,
        r#"{"op":"state"}"#,
        r#"{"op":"add","id":"r1","tokens":[{"range":[1,49]},{"repeat":[7,5]}],"max_tokens":1}"#,
        r#"{"op":"step","sample":{"r0":901,"r1":902}}"#,
        r#"{"op":"state"}"#,
        r#"{"op":"reset_prefix_cache"}"#,
        r#"{"op":"state"}"#,
    ]);
    assert_eq!(answers[3]["requests"]["r0"]["blocks"], json!([1, 2, 3, 4]));
    assert_eq!(answers[3]["requests"]["r0"]["state"], "running");
    let step = &answers[5];
    assert_eq!(
        step["scheduled"][0],
        json!({"id": "r0", "start": 55, "count": 1})
    );
    let admitted = json!({"id": "r1", "start": 48, "count": 5, "hit_tokens": 48});
    assert_eq!(step["scheduled"][1], admitted);
    assert_eq!(
        step["finished"][0],
        json!({"id": "r0", "output": [900, 901]})
    );
    let state = &answers[6];
    assert_eq!(
        state["buckets"],
        json!({"active": 0, "reclaimable": 3, "free": 7})
    );
    assert_eq!(state["hits"]["hit_tokens"], 48);
    assert_eq!(state["hits"]["queried_tokens"], 55 + 53);
    assert_eq!(answers[7], json!({"ok": true}));
    assert_eq!(answers[8]["buckets"]["free"], 10);
}

#[test]
fn tokens_that_no_sample_names_follow_the_stated_rule() {
    let run = |sample: &str| {
        let step = format!(r#"{{"op":"step","sample":{sample}}}"#);
        let add = r#"{"op":"add","id":"r0","tokens":[1,2,3],"max_tokens":1}"#;
        last(&[CONFIG, add, &step])["finished"][0]["output"].clone()
    };
    // The rule of docs/REPLAY.md for request 0 and position 3, worked out in Python.
    let rule = 3809749232u32;
    assert_eq!(run("{}"), json!([rule]));
    assert_eq!(run(r#"{"nobody":5}"#), json!([rule]));
    assert_eq!(run(r#"{"r0":5}"#), json!([5]));
}

#[test]
fn several_sequences_share_the_prompt_and_copy_on_write() {
    let (_, answers) = after(&[
        CONFIG,
        r#"{"op":"add","id":"r","tokens":{"range":[1,7]},"max_tokens":3,"n":3}"#,
        r#"{"op":"state"}"#,
        r#"{"op":"step","sample":{"r":50,"r#1":51,"r#2":52}}"#,
        r#"{"op":"state"}"#,
        r#"{"op":"step","sample":{"r":60,"r#1":61,"r#2":62}}"#,
        r#"{"op":"state"}"#,
        r#"{"op":"step","sample":{"r":70,"r#1":71,"r#2":72}}"#,
        r#"{"op":"state"}"#,
    ]);
    assert_eq!(answers[2]["requests"]["r#1"]["state"], "forking");
    // Six tokens: one full block and a partial one, each shared by the three.
    assert_eq!(answers[4]["ref_counts"], json!({"1": 3, "2": 3}));
    // The full block is still shared; two copies of the partial one were made.
    let counts = answers[6]["ref_counts"].as_object().unwrap();
    assert_eq!(counts["1"], 3);
    assert_eq!(counts.len(), 4);
    let ended = answers[7]["finished"].as_array().unwrap();
    assert_eq!(ended.len(), 3);
    for (row, own) in ended.iter().zip([50, 51, 52]) {
        assert_eq!(row["output"], json!([own, own + 10, own + 20]));
    }
    assert_eq!(answers[8]["buckets"]["active"], 0);
}

#[test]
fn adapters_and_salts_do_not_share() {
    let hit = |other: &str| {
        let add =
            format!(r#"{{"op":"add","id":"b","tokens":{{"range":[1,10]}},"max_tokens":1{other}}}"#);
        let first = r#"{"op":"add","id":"a","tokens":{"range":[1,10]},"max_tokens":1,"salt":"x"}"#;
        let answer = last(&[CONFIG, first, r#"{"op":"step"}"#, &add, r#"{"op":"step"}"#]);
        answer["scheduled"][0]["hit_tokens"].clone()
    };
    assert_eq!(hit(r#","salt":"x""#), 8);
    assert_eq!(hit(""), 0);
    assert_eq!(hit(r#","salt":"y""#), 0);
    assert_eq!(hit(r#","adapter":"x""#), 0);
    assert_eq!(hit(r#","salt":"x","adapter":"a""#), 0);
}

#[test]
fn every_error_has_a_kind_and_the_script_goes_on() {
    let cases = [
        ("nonsense", "syntax"),
        ("[1]", "syntax"),
        (r#"{"id":"r0"}"#, "field"),
        (r#"{"op":"fly"}"#, "unknown_op"),
        (r#"{"op":"add","id":"x"}"#, "field"),
        (r#"{"op":"add","id":"x","tokens":[]}"#, "empty_prompt"),
        (
            r#"{"op":"add","id":"x","tokens":[1],"max_tokens":0}"#,
            "refused",
        ),
        (r#"{"op":"add","id":"x","tokens":[1],"n":0}"#, "field"),
        (r#"{"op":"add","id":"x","tokens":[1],"n":129}"#, "field"),
        (
            r#"{"op":"add","id":"x","tokens":{"repeat":[1,9000000]},"n":2}"#,
            "field",
        ),
        (r#"{"op":"add","id":"x","tokens":[1],"colour":1}"#, "field"),
        (
            r#"{"op":"add","id":"x","tokens":{"range":[1,30]}}"#,
            "prompt_too_long",
        ),
        (
            r#"{"op":"add","id":"r0","tokens":[1]}"#,
            "duplicate_request",
        ),
        (r#"{"op":"abort","id":"never"}"#, "unknown_request"),
        (r#"{"op":"step","sample":[1]}"#, "field"),
        (r#"{"op":"step","sample":{"r0":-1}}"#, "field"),
        (r#"{"op":"state","x":1}"#, "field"),
    ];
    let (mut replay, _) = after(&[CONFIG, r#"{"op":"add","id":"r0","tokens":[1,2]}"#]);
    for (line, kind) in cases {
        let answer = replay.line(line);
        assert_eq!(answer["error"]["kind"], kind, "{line}: {answer}");
        assert!(!answer["error"]["message"].as_str().unwrap().is_empty());
    }
    assert!(!replay.broken());
    let step = replay.line(r#"{"op":"step"}"#);
    assert_eq!(step["scheduled"].as_array().unwrap().len(), 1);
}

#[test]
fn a_config_that_makes_no_engine_is_refused() {
    for (config, key) in [
        (r#"{"op":"config"}"#, "num_blocks"),
        (r#"{"op":"config","num_blocks":0}"#, "num_blocks"),
        (
            r#"{"op":"config","num_blocks":1,"null_block":true}"#,
            "num_blocks",
        ),
        (
            r#"{"op":"config","num_blocks":8,"block_size":0}"#,
            "block_size",
        ),
        (
            r#"{"op":"config","num_blocks":8,"policy":"magic"}"#,
            "policy",
        ),
        (
            r#"{"op":"config","num_blocks":8,"cache":"lru"}"#,
            "prefix_cache",
        ),
        (r#"{"op":"config","num_blocks":8,"preset":"tgi"}"#, "preset"),
        (r#"{"op":"config","num_blocks":8,"speed":1}"#, "speed"),
        (r#"{"op":"config","num_blocks":99999999999}"#, "num_blocks"),
        (r#"{"op":"config","num_blocks":8,"layer":"x"}"#, "layer"),
        (
            r#"{"op":"config","num_blocks":9,"policy":"shrinking","shrinking":{"stages":1000000}}"#,
            "shrinking.stages",
        ),
        (
            r#"{"op":"config","num_blocks":9,"policy":"shrinking","shrinking":{"high":1e19}}"#,
            "high",
        ),
        (
            r#"{"op":"config","num_blocks":9,"policy":"shrinking",
                "shrinking":{"high":18446744073709551615}}"#,
            "shrinking.high",
        ),
        (
            r#"{"op":"config","layer":"cache","page_size":0}"#,
            "page_size",
        ),
        (
            r#"{"op":"config","layer":"cache","eviction":"random"}"#,
            "eviction",
        ),
    ] {
        let answer = last(&[config]);
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(key), "{config}: {message}");
    }
    assert_eq!(last(&[r#"{"op":"step"}"#])["error"]["kind"], "no_config");
}

#[test]
fn a_request_that_can_never_fit_is_refused() {
    let config = r#"{"op":"config","block_size":4,"num_blocks":3,"max_model_len":100}"#;
    let add = r#"{"op":"add","id":"r","tokens":{"range":[1,13]},"max_tokens":2}"#;
    assert_eq!(last(&[config, add])["error"]["kind"], "never_fits");
    let add = r#"{"op":"add","id":"r","tokens":{"range":[1,13]},"max_tokens":1}"#;
    assert_eq!(last(&[config, add]), json!({}));
}

#[test]
fn planted_faults_can_be_replayed() {
    let config = r#"{"op":"config","block_size":4,"num_blocks":9,"fault":"hit_off_by_one"}"#;
    let add = r#"{"op":"add","id":"a","tokens":{"range":[1,9]},"max_tokens":1}"#;
    let again = r#"{"op":"add","id":"b","tokens":{"range":[1,9]},"max_tokens":1}"#;
    let step = r#"{"op":"step"}"#;
    let mut replay = Replay::default();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        [config, add, step, again, step].map(|line| replay.line(line))
    }));
    // Eight tokens in two full blocks: a right cache hits one of them.
    if let Ok(answers) = outcome {
        assert_ne!(answers[4]["scheduled"][0]["hit_tokens"], 4);
    }
}

#[test]
fn locks_of_the_tree_have_names() {
    let config = r#"{"op":"config","layer":"cache","cache":"radix","page_size":2}"#;
    let (_, answers) = after(&[
        config,
        r#"{"op":"cache.insert","tokens":[1,2,3,4,5]}"#,
        r#"{"op":"cache.match","tokens":[1,2,9],"lock":"h"}"#,
        r#"{"op":"cache.match","tokens":[1,2],"lock":"h"}"#,
        r#"{"op":"cache.evict","tokens":99}"#,
        r#"{"op":"state"}"#,
        r#"{"op":"cache.unlock","lock":"h"}"#,
        r#"{"op":"cache.unlock","lock":"h"}"#,
        r#"{"op":"cache.evict","tokens":1}"#,
        r#"{"op":"add","id":"r0","tokens":[1]}"#,
    ]);
    assert_eq!(answers[2], json!({"hit_tokens": 2}));
    assert_eq!(answers[3]["error"]["kind"], "duplicate_lock");
    assert_eq!(answers[4], json!({"evicted_tokens": 2}));
    assert_eq!(answers[5]["radix"]["protected"], 2);
    assert_eq!(answers[6], json!({}));
    assert_eq!(answers[7]["error"]["kind"], "unknown_lock");
    assert_eq!(answers[8], json!({"evicted_tokens": 2}));
    assert_eq!(answers[9]["error"]["kind"], "unknown_op");
}

#[test]
fn a_config_that_fails_leaves_the_engine_as_it_was() {
    let add = r#"{"op":"add","id":"a","tokens":[1,2,3],"max_tokens":1}"#;
    let bad = r#"{"op":"config","num_blocks":0}"#;
    let (_, answers) = after(&[CONFIG, add, bad, r#"{"op":"step"}"#]);
    assert_eq!(answers[2]["error"]["kind"], "field");
    assert_eq!(answers[3]["scheduled"][0]["count"], 3);
}

#[test]
fn a_fault_of_the_forward_pass_is_refused() {
    let config = r#"{"op":"config","num_blocks":8,"fault":"mask_sees_future"}"#;
    let message = last(&[config])["error"]["message"].clone();
    assert!(message.as_str().unwrap().contains("fault"), "{message}");
}

#[test]
fn the_manager_layer_has_defaults_pieces_and_underscores() {
    let (replay, answers) = after(&[
        r#"{"op":"config","layer":"manager","block_size":4,"num_blocks":8,
            "placement":"unhashed_to_head"}"#,
        r#"{"op":"add","id":"r0","tokens":{"range":[0,10]},"salt":"s"}"#,
        r#"{"op":"kv.allocate","id":"r0","tokens":10}"#,
        r#"{"op":"kv.commit"}"#,
        r#"{"op":"add","id":"r1","tokens":[{"range":[0,8]},9,9],"salt":"s"}"#,
        r#"{"op":"kv.lookup","id":"r1"}"#,
        r#"{"op":"fly"}"#,
    ]);
    assert_eq!(answers[2]["blocks"], json!([0, 1, 2]));
    assert_eq!(answers[5], json!({"hit_tokens": 8}));
    assert_eq!(answers[6]["error"]["kind"], "manager");
    assert!(!replay.broken());
}
