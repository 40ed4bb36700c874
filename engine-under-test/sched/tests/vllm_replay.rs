//! Scripts that vLLM's own scheduler and KV-cache manager have answered, answered again here.
//!
//! The recordings (vLLM 0.32, no model) live in a folder beside the repository; without it the
//! test says so and passes. Every field that they give must be equal: who is scheduled from where
//! for how many tokens, hits, preemptions, outputs, buckets, block tables and the free queue.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use common::{Memory, Req, Sim};
use pb_contract::{PrefixCacheKind, RequestId};
use pb_kv::{CacheScope, HashedTokens, Hit, KvConfig, KvManager};
use pb_sched::{Allocator, RunningOrder, TokenBudget};
use serde_json::{Value, json};

/// The real block manager behind the policy.
#[derive(Debug)]
struct Kv {
    manager: KvManager,
    seqs: BTreeMap<RequestId, HashedTokens>,
}

impl Kv {
    fn hit(&self, id: RequestId, hit_tokens: usize) -> Hit {
        match hit_tokens {
            0 => Hit::default(),
            _ => self.manager.lookup(&self.seqs[&id]),
        }
    }
}

impl Allocator for Kv {
    fn lookup(&self, id: RequestId) -> usize {
        self.manager
            .lookup(&self.seqs[&id])
            .tokens(self.manager.config().block_size)
    }

    fn blocks_needed(&self, id: RequestId, computed: usize, hit: usize, new: usize) -> usize {
        self.manager
            .blocks_needed(id, computed, &self.hit(id, hit), new)
    }

    fn free_blocks(&self) -> usize {
        self.manager.free_blocks()
    }

    fn allocate(&mut self, id: RequestId, computed: usize, hit: usize, new: usize) -> bool {
        let hit = self.hit(id, hit);
        self.manager
            .allocate(id, &self.seqs[&id], computed, &hit, new)
    }

    fn free(&mut self, id: RequestId) {
        self.manager.free(id);
    }
}

impl Memory for Kv {
    fn generated(&mut self, id: RequestId, token: u32) {
        self.seqs.get_mut(&id).unwrap().push(token);
    }
}

fn number(value: &Value, key: &str) -> usize {
    value[key].as_u64().unwrap_or(0) as usize
}

/// `r12` is request 12.
fn request_id(value: &Value) -> RequestId {
    RequestId(value.as_str().unwrap()[1..].parse().unwrap())
}

struct Replay {
    sim: Sim<Kv>,
    block_size: usize,
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
        let memory = Kv {
            manager: KvManager::new(kv).unwrap(),
            seqs: BTreeMap::new(),
        };
        Replay {
            sim: Sim::new(policy, memory),
            block_size,
        }
    }

    fn add(&mut self, op: &Value) {
        let id = request_id(&op["id"]);
        let tokens = op["tokens"].as_array().unwrap();
        let tokens: Vec<u32> = tokens.iter().map(|t| t.as_u64().unwrap() as u32).collect();
        let salt = op["salt"].as_str().map(str::to_owned);
        let scope = CacheScope {
            salt,
            ..CacheScope::default()
        };
        let mut seq = HashedTokens::new(self.block_size, &scope);
        seq.extend(&tokens);
        self.sim.memory.seqs.insert(id, seq);
        self.sim
            .waiting
            .push(Req::new(id.0, tokens.len(), number(op, "max_tokens")));
    }

    fn abort(&mut self, id: RequestId) {
        self.sim.memory.manager.free(id);
        self.sim.running.retain(|req| req.id != id);
        self.sim.waiting.retain(|req| req.id != id);
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
        let manager = &self.sim.memory.manager;
        let live = self.sim.running.iter().chain(&self.sim.waiting);
        let requests: serde_json::Map<_, _> = live
            .map(|req| {
                let blocks: Vec<_> = manager.block_table(req.id).iter().map(|b| b.0).collect();
                let state = json!({"computed": req.computed, "blocks": blocks});
                (format!("r{}", req.id), state)
            })
            .collect();
        let queue: Vec<_> = manager.free_queue().iter().map(|block| block.0).collect();
        json!({"buckets": manager.buckets(), "free_queue": queue, "requests": requests})
    }

    fn answer(&mut self, op: &Value) -> Value {
        let answer = match op["op"].as_str().unwrap() {
            "add" => {
                self.add(op);
                json!({})
            }
            "abort" => {
                self.abort(request_id(&op["id"]));
                json!({})
            }
            "step" => self.step(op),
            "state" => self.state(),
            "reset_prefix_cache" => json!({"ok": self.sim.memory.manager.reset()}),
            other => panic!("unknown op {other}"),
        };
        self.sim.memory.manager.check().unwrap();
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
