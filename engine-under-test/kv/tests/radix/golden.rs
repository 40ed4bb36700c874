//! Scripts that SGLang 0.5.23's own RadixCache has answered, answered again: every field.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pb_contract::{Eviction, TokenId};
use pb_kv::{RadixNodeId, RadixState, RadixTree, Run};
use serde_json::{Value, json};

struct Replay {
    tree: RadixTree,
    locks: BTreeMap<String, RadixNodeId>,
}

impl Replay {
    fn answer(&mut self, op: &Value) -> Value {
        let tokens = |key: &str| -> Vec<TokenId> {
            let list = op[key].as_array().unwrap().iter();
            list.map(|token| token.as_u64().unwrap() as TokenId)
                .collect()
        };
        let namespace = op["extra_key"].as_str().map(str::as_bytes);
        let answer = match op["op"].as_str().unwrap() {
            "cache.match" => {
                let key = tokens("tokens");
                let pure = self.tree.lookup(namespace, &key);
                let found = self.tree.touch_and_split(namespace, &key);
                assert_eq!(pure.tokens, found.tokens);
                if let Some(name) = op["lock"].as_str() {
                    self.tree.lock(found.node);
                    self.locks.insert(name.to_owned(), found.node);
                }
                json!({"hit_tokens": found.tokens})
            }
            "cache.unlock" => {
                let node = self.locks.remove(op["lock"].as_str().unwrap()).unwrap();
                self.tree.unlock(node);
                json!({})
            }
            "cache.insert" => {
                let inserted = self.tree.insert(&Run {
                    priority: op["priority"].as_i64().unwrap_or(0),
                    ..Run::bare(namespace, &tokens("tokens"))
                });
                json!({"already_present": inserted.already_present})
            }
            "cache.evict" => {
                let wanted = op["tokens"].as_u64().unwrap() as usize;
                json!({"evicted_tokens": self.tree.evict(wanted).tokens})
            }
            "state" => json!({"radix": shown(&self.tree.state())}),
            other => panic!("unknown op {other}"),
        };
        self.tree.check().unwrap();
        answer
    }
}

fn shown(state: &RadixState) -> Value {
    let nodes = state.nodes.iter().map(|node| {
        json!({
            "extra_key": node.extra_key, "depth": node.depth, "len": node.len,
            "locks": node.locks, "first": node.first,
        })
    });
    json!({
        "evictable": state.evictable, "protected": state.protected,
        "nodes": nodes.collect::<Vec<_>>(),
    })
}

fn scripts() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/replay/sglang-radix");
    let files = std::fs::read_dir(&dir).unwrap();
    let mut files: Vec<_> = files.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn every_answer_of_sglangs_radix_cache_is_reproduced() {
    let files = scripts();
    assert!(files.len() >= 15);
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let script: Value = serde_json::from_str(&text).unwrap();
        let ops = script["ops"].as_array().unwrap();
        let results = script["results"].as_array().unwrap();
        assert_eq!(ops.len(), results.len());
        let page_size = ops[0]["page_size"].as_u64().unwrap() as usize;
        let eviction: Eviction = serde_json::from_value(ops[0]["eviction"].clone()).unwrap();
        let mut replay = Replay {
            tree: RadixTree::new(page_size, eviction),
            locks: BTreeMap::new(),
        };
        for (index, (op, expected)) in ops.iter().zip(results).enumerate().skip(1) {
            let answer = replay.answer(op);
            assert_eq!(&answer, expected, "{} op {index}: {op}", path.display());
        }
    }
}
