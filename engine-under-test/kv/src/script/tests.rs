use pb_contract::{Fault, PrefixCacheKind};

use super::*;
use crate::KvConfig;

const CONFIG: &str = r#"{"op":"config","cache":"hash_chain","block_size":4,"num_blocks":6}"#;

/// The answers to a configuration and further lines, without that to the configuration.
fn answers(config: &str, lines: &[&str]) -> Vec<Value> {
    let all = std::iter::once(config).chain(lines.iter().copied());
    let mut answers = run_script(all).unwrap();
    assert_eq!(answers.remove(0), json!({}));
    answers
}

fn refusal(lines: &[&str]) -> String {
    run_script(lines.iter().copied()).unwrap_err().to_string()
}

#[test]
fn a_request_comes_shares_and_goes() {
    let got = answers(
        CONFIG,
        &[
            r#"{"op":"add","id":"a","tokens":[1,2,3,4,5,6,7,8,9]}"#,
            r#"{"op":"kv.allocate","id":"a","tokens":9}"#,
            r#"{"op":"kv.commit"}"#,
            r#"{"op":"add","id":"b","tokens":[1,2,3,4,5,6,7,8,77,78]}"#,
            r#"{"op":"kv.lookup","id":"b"}"#,
            r#"{"op":"kv.allocate","id":"b","tokens":100}"#,
            r#"{"op":"kv.commit","id":"b"}"#,
            r#"{"op":"kv.fork","id":"b","child":"c","tokens":9}"#,
            r#"{"op":"kv.append","id":"c","tokens":[5]}"#,
            r#"{"op":"kv.allocate","id":"c","tokens":1}"#,
            r#"{"op":"kv.free","id":"c"}"#,
            r#"{"op":"kv.finish","id":"b"}"#,
            r#"{"op":"kv.reset"}"#,
            r#"{"op":"state"}"#,
            r#"{"op":"kv.finish","id":"a"}"#,
            r#"{"op":"kv.reset"}"#,
        ],
    );
    // By hand: blocks 0, 1, 2 for a; 0, 1 and 3 for b; c copies the partial block 3 to 4.
    let expected = [
        json!({}),
        json!({"allocated": true, "hit_tokens": 0, "new_tokens": 9,
               "blocks": [0, 1, 2], "copies": []}),
        json!({"committed": ["a"]}),
        json!({}),
        json!({"hit_tokens": 8}),
        json!({"allocated": true, "hit_tokens": 8, "new_tokens": 2,
               "blocks": [0, 1, 3], "copies": []}),
        json!({"committed": ["b"]}),
        json!({"blocks": [0, 1, 3]}),
        json!({}),
        json!({"allocated": true, "hit_tokens": 0, "new_tokens": 1,
               "blocks": [0, 1, 4], "copies": [[3, 4]]}),
        json!({"restarted": []}),
        json!({}),
        json!({"reset": false}),
        json!({"buckets": {"active": 3, "reclaimable": 0, "free": 3},
               "free_queue": [3, 4, 5],
               "requests": {"a": {"computed": 9, "blocks": [0, 1, 2]},
                            "c": {"computed": 0, "blocks": []}}}),
        json!({}),
        json!({"reset": true}),
    ];
    assert_eq!(got, expected);
}

#[test]
fn who_relies_on_a_step_that_will_not_run_starts_anew() {
    let steps = [
        r#"{"op":"add","id":"a","tokens":[1,2,3,4,5]}"#,
        r#"{"op":"add","id":"b","tokens":[1,2,3,4,6]}"#,
        r#"{"op":"kv.allocate","id":"a","tokens":5}"#,
        r#"{"op":"kv.allocate","id":"b","tokens":1}"#,
        r#"{"op":"kv.commit","id":"b"}"#,
        r#"{"op":"kv.free","id":"a"}"#,
        r#"{"op":"kv.lookup","id":"b"}"#,
    ];
    let got = answers(CONFIG, &steps);
    assert_eq!(got[3]["hit_tokens"], 4);
    let skipped = json!({"skipped": "it relies on a step of another request"});
    assert_eq!(got[4], skipped);
    assert_eq!(got[5], json!({"restarted": ["b"]}));
    assert_eq!(got[6], json!({"hit_tokens": 0}));
    // A radix tree shows nothing before it is computed, so nobody can rely on it.
    let radix = CONFIG.replace("hash_chain", "radix");
    let got = answers(&radix, &steps);
    assert_eq!(got[3]["hit_tokens"], 0);
    assert_eq!(got[4], json!({"committed": ["b"]}));
    assert_eq!(got[5], json!({"restarted": []}));
}

#[test]
fn what_does_not_apply_is_skipped_and_changes_nothing() {
    let got = answers(
        CONFIG,
        &[
            r#"{"op":"add","id":"a","tokens":[1,2,3,4,5]}"#,
            r#"{"op":"kv.allocate","id":"a","tokens":3}"#,
            r#"{"op":"state"}"#,
            r#"{"op":"kv.lookup","id":"zz"}"#,
            r#"{"op":"kv.append","id":"zz","tokens":[1]}"#,
            r#"{"op":"kv.append","id":"a","tokens":[1]}"#,
            r#"{"op":"kv.allocate","id":"zz","tokens":1}"#,
            r#"{"op":"kv.allocate","id":"a","tokens":1}"#,
            r#"{"op":"kv.commit","id":"zz"}"#,
            r#"{"op":"kv.fork","id":"zz","child":"c","tokens":1}"#,
            r#"{"op":"kv.fork","id":"a","child":"c","tokens":1}"#,
            r#"{"op":"kv.fork","id":"a","child":"a","tokens":1}"#,
            r#"{"op":"kv.finish","id":"zz"}"#,
            r#"{"op":"kv.finish","id":"a"}"#,
            r#"{"op":"kv.free","id":"zz"}"#,
            r#"{"op":"add","id":"a","tokens":[7]}"#,
            r#"{"op":"add","id":"d","tokens":[]}"#,
            r#"{"op":"state"}"#,
        ],
    );
    for (index, answer) in got[3..17].iter().enumerate() {
        assert!(answer["skipped"].is_string(), "line {index}: {answer}");
    }
    assert_eq!(got[2], got[17]);
}

#[test]
fn a_broken_law_is_named_and_ends_the_script() {
    let config = CONFIG.replace('}', r#","fault":"leaked-reference"}"#);
    let lines = [
        r#"{"op":"add","id":"a","tokens":[1,2]}"#,
        r#"{"op":"kv.allocate","id":"a","tokens":2}"#,
        r#"{"op":"kv.free","id":"a"}"#,
        r#"{"op":"state"}"#,
    ];
    let got = answers(&config, &lines);
    assert_eq!(got.len(), 3);
    let law = got[2]["broken"].as_str().unwrap();
    assert!(law.contains("references"), "{law}");

    let mut runner = ScriptRunner::default();
    for line in std::iter::once(config.as_str()).chain(lines[..3].iter().copied()) {
        assert!(!runner.broken());
        runner.line(line).unwrap();
    }
    assert!(runner.broken());
    let over = runner.line(lines[3]).unwrap_err().to_string();
    assert!(over.starts_with("line 5: the cache broke a law"), "{over}");
}

#[test]
fn bad_lines_are_refused_with_their_number_and_what_is_wrong() {
    let state = r#"{"op":"state"}"#;
    let cases: [(&[&str], &[&str]); 10] = [
        (&[state], &["line 1", "before the configuration"]),
        (&[CONFIG, CONFIG], &["line 2", "second configuration"]),
        (&[CONFIG, "{"], &["line 2", "EOF"]),
        (
            &[CONFIG, r#"{"op":"kv.look"}"#],
            &["line 2", "kv.look`", "kv.lookup"],
        ),
        (
            &[CONFIG, r#"{"op":"kv.lookup"}"#],
            &["line 2", "missing field `id`"],
        ),
        (
            &[CONFIG, r#"{"op":"kv.lookup","id":"a","x":1}"#],
            &["line 2", "unknown field `x`"],
        ),
        (
            &[r#"{"op":"config","cache":"lru","block_size":4,"num_blocks":6}"#],
            &["line 1", "`lru`", "hash-chain"],
        ),
        (
            &[r#"{"op":"config","cache":"radix","block_size":0,"num_blocks":6}"#],
            &["line 1", "block_size = 0", "at least 1"],
        ),
        (
            &[r#"{"op":"config","cache":"radix","block_size":9000000,"num_blocks":6}"#],
            &["line 1", "9000000 * 6", "16777216"],
        ),
        (
            &[r#"{"op":"config","layer":"engine","cache":"radix","block_size":1,"num_blocks":6}"#],
            &["line 1", "`engine`", "manager"],
        ),
    ];
    for (lines, expected) in cases {
        let error = refusal(lines);
        for part in expected {
            assert!(error.contains(part), "{error} does not name {part}");
        }
    }
}

#[test]
fn what_is_written_is_read_back() {
    let id = || "a".to_owned();
    let ops = [
        Op::Add {
            id: id(),
            tokens: vec![1, 2],
            adapter: Some("l".to_owned()),
            salt: None,
            identity: Some("i".to_owned()),
        },
        Op::Append {
            id: id(),
            tokens: vec![3],
        },
        Op::Lookup { id: id() },
        Op::Allocate {
            id: id(),
            tokens: 4,
            hit: false,
        },
        Op::Commit { id: None },
        Op::Commit { id: Some(id()) },
        Op::Fork {
            id: id(),
            child: "b".to_owned(),
            tokens: 2,
        },
        Op::Finish { id: id() },
        Op::Free { id: id() },
        Op::Fail,
        Op::Reset,
        Op::State,
    ];
    let config = KvConfig {
        null_block: true,
        fault: Fault::StaleHit,
        record_evictions: true,
        ..KvConfig::new(4, 7, PrefixCacheKind::HashChain)
    };
    let lines = to_lines(&ConfigLine::of(&config), &ops);
    assert_eq!(
        lines[4],
        r#"{"op":"kv.allocate","id":"a","tokens":4,"hit":false}"#
    );
    assert_eq!(lines[5], r#"{"op":"kv.commit"}"#);
    assert_eq!(lines[10], r#"{"op":"kv.fail"}"#);
    assert!(lines[0].starts_with(r#"{"op":"config","layer":"manager","cache":"hash_chain""#));
    for (line, op) in lines[1..].iter().zip(&ops) {
        assert_eq!(&serde_json::from_str::<Op>(line).unwrap(), op);
    }
    let config_line = lines[0].replacen(r#""op":"config","#, "", 1);
    let config_line: ConfigLine = serde_json::from_str(&config_line).unwrap();
    assert_eq!(config_line.kv_config(), config);
    // Both spellings of the kind, and the tree's name for a block.
    let other = r#"{"cache":"hash-chain","page_size":4,"num_blocks":7}"#;
    let other: ConfigLine = serde_json::from_str(other).unwrap();
    assert_eq!(
        (other.cache, other.block_size),
        (PrefixCacheKind::HashChain, 4)
    );
}
