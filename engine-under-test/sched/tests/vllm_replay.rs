//! Scripts that vLLM's own scheduler and KV-cache manager have answered, answered again here.
//!
//! The recordings (vLLM 0.32, no model) live in a folder beside the repository; without it the
//! test says so and passes. Every field that they give must be equal: who is scheduled from where
//! for how many tokens, hits, preemptions, outputs, buckets, block tables and the free queue.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use common::kv::Kv;
use common::{Req, Sim};
use pb_contract::{PrefixCacheKind, RequestId};
use pb_kv::KvConfig;
use pb_sched::{RunningOrder, TokenBudget};
use serde_json::{Value, json};

fn number(value: &Value, key: &str) -> usize {
    value[key].as_u64().unwrap_or(0) as usize
}

/// `r12` is request 12.
fn request_id(value: &Value) -> RequestId {
    RequestId(value.as_str().unwrap()[1..].parse().unwrap())
}

struct Replay {
    sim: Sim<Kv>,
}

impl Replay {
    fn new(config: &Value) -> Self {
        let block_size = number(config, "block_size");
        let num_blocks = number(config, "num_blocks");
        let kv = KvConfig {
            null_block: true,
            ..KvConfig::new(block_size, num_blocks, PrefixCacheKind::HashChain)
        };
        let policy = TokenBudget {
            long_prefill_token_threshold: number(config, "long_prefill_token_threshold"),
            threshold_spares_lone_request: true,
            order: RunningOrder::ListOrder,
            ..TokenBudget::new(
                number(config, "max_batched_tokens"),
                number(config, "max_num_seqs"),
                number(config, "max_model_len"),
                true,
            )
        };
        Replay {
            sim: Sim::new(policy, Kv::new(kv)),
        }
    }

    fn add(&mut self, op: &Value) {
        let id = request_id(&op["id"]);
        let tokens = op["tokens"].as_array().unwrap();
        let tokens: Vec<u32> = tokens.iter().map(|t| t.as_u64().unwrap() as u32).collect();
        let salt = op["salt"].as_str().map(str::to_owned);
        self.sim.memory.add(id.0, &tokens, salt);
        self.sim
            .waiting
            .push(Req::new(id.0, tokens.len(), number(op, "max_tokens")));
    }

    fn step(&mut self, op: &Value) -> Value {
        let before: BTreeMap<_, _> = self
            .sim
            .waiting
            .iter()
            .map(|req| (req.id, req.preempted))
            .collect();
        let done = self.sim.finished.len();
        let sample = |id: RequestId| op["sample"][format!("r{id}")].as_u64().unwrap() as u32;
        let plan = self.sim.step_with(&sample);
        let scheduled: Vec<_> = plan
            .scheduled
            .iter()
            .map(|s| {
                let mut row =
                    json!({"id": format!("r{}", s.id), "start": s.start, "count": s.count});
                if before.get(&s.id) == Some(&false) {
                    row["hit_tokens"] = json!(s.hit_tokens.unwrap());
                }
                row
            })
            .collect();
        let mut preempted: Vec<_> = plan.preempted.iter().map(|id| format!("r{id}")).collect();
        preempted.sort_unstable();
        let finished: Vec<_> = self.sim.finished[done..]
            .iter()
            .map(|req| json!({"id": format!("r{}", req.id), "output": req.output}))
            .collect();
        json!({"scheduled": scheduled, "preempted": preempted, "finished": finished})
    }

    fn state(&self) -> Value {
        let cache = &self.sim.memory.cache;
        let live = self.sim.running.iter().chain(&self.sim.waiting);
        let requests: serde_json::Map<_, _> = live
            .map(|req| {
                let blocks: Vec<_> = cache.block_table(req.id).iter().map(|b| b.0).collect();
                let state = json!({"computed": req.computed, "blocks": blocks});
                (format!("r{}", req.id), state)
            })
            .collect();
        let queue: Vec<_> = cache.free_queue().iter().map(|block| block.0).collect();
        json!({"buckets": cache.buckets(), "free_queue": queue, "requests": requests})
    }

    fn answer(&mut self, op: &Value) -> Value {
        let answer = match op["op"].as_str().unwrap() {
            "add" => {
                self.add(op);
                json!({})
            }
            "abort" => {
                self.sim.abort(request_id(&op["id"]));
                json!({})
            }
            "step" => self.step(op),
            "state" => self.state(),
            "reset_prefix_cache" => json!({"ok": self.sim.memory.cache.reset()}),
            other => panic!("unknown op {other}"),
        };
        self.sim.memory.cache.check().unwrap();
        answer
    }
}

/// The folder of recordings, by environment or beside one of the parents of this crate.
fn recordings() -> Option<PathBuf> {
    let inside = Path::new("golden/replay/vllm-v1");
    let named = std::env::var_os("PREFILLBENCH_SHARED").map(|dir| PathBuf::from(dir).join(inside));
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let parents = here
        .ancestors()
        .flat_map(|dir| [dir.join("shared").join(inside), dir.join(inside)]);
    named.into_iter().chain(parents).find(|dir| dir.is_dir())
}

#[test]
fn vllm_recordings_are_answered_equal_in_every_field() {
    let Some(dir) = recordings() else {
        eprintln!("skipped: no recordings; set PREFILLBENCH_SHARED to the folder with golden/");
        return;
    };
    let entries = std::fs::read_dir(&dir).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut steps = 0;
    for file in files
        .iter()
        .filter(|file| file.extension().is_some_and(|ext| ext == "json"))
    {
        let script: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        let (ops, results) = (
            script["ops"].as_array().unwrap(),
            script["results"].as_array().unwrap(),
        );
        assert_eq!(ops.len(), results.len());
        let mut replay = Replay::new(&ops[0]);
        for (line, (op, expected)) in ops.iter().zip(results).enumerate().skip(1) {
            let answer = replay.answer(op);
            assert_eq!(&answer, expected, "{} line {line}: {op}", file.display());
            steps += 1;
        }
    }
    assert!(
        steps > 100,
        "only {steps} lines replayed from {}",
        dir.display()
    );
}
