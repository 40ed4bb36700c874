//! Public fault reports of schedulers, each as the scenario that it implies.
//!
//! Others are beside what they belong to: 46 (mixed chunks) in `policies`, 59 (negative chunk)
//! and 67 (head-of-line blocking) in `schedules`, 25 (starvation) and 27 (leaked slot) in
//! `liveness`.

mod common;

use std::collections::BTreeMap;

use common::arms::arms;
use common::{Counting, Memory, Req, Sim, config, rows};
use pb_contract::{EngineConfig, PolicyKind, RequestId, Scheduling};
use pb_sched::{Allocator, TokenBudget};

#[test]
fn sglang_2255_a_partly_computed_prompt_can_end_at_any_chunk() {
    for (name, chunked, scheduling) in arms() {
        if !chunked {
            continue;
        }
        for steps in 0..20 {
            let mut sim = Sim::build(&config(16, true, scheduling), Counting::new(4, 64));
            sim.add_decodes(0..2, 30);
            (10..13).for_each(|id| sim.add(id, 60, 3));
            (0..steps).for_each(|_| drop(sim.step()));
            let mut partial = sim.running.iter().filter(|req| req.output.is_empty());
            if let Some(id) = partial.next().map(|req| req.id) {
                sim.abort(id);
            }
            sim.drain(500);
            let left = (sim.memory.free, sim.memory.held.len());
            assert_eq!(left, (64, 0), "{name}, aborted after {steps} steps");
        }
    }
}

#[test]
fn sarathi_no_chunk_is_negative_when_decodes_exceed_the_budget() {
    // Budget 8, twelve decodes, a prompt: the law checker refuses an empty chunk and more than 8
    // tokens; what each policy does within that is its own.
    for (name, chunked, scheduling) in arms() {
        let config = EngineConfig {
            max_model_len: if chunked { 64 } else { 8 },
            ..config(8, chunked, scheduling)
        };
        let mut sim = Sim::build(&config, Counting::new(4, 1000));
        sim.add_decodes(0..12, 4);
        sim.add(50, 7, 1);
        let mut most = 0;
        for _ in 0..3 {
            let plan = sim.step();
            let decodes = plan.scheduled.iter().filter(|row| row.id.0 < 12).count();
            most = most.max(decodes);
        }
        assert_eq!(most, 8, "{name}");
        sim.drain(60);
        assert_eq!(sim.finished.len(), 13, "{name}");
    }
}

#[test]
fn vllm_39734_a_request_beyond_the_pool_takes_nothing_from_others() {
    // The engine refuses it at once. Were it queued all the same, it would get no block, and
    // those before it would end.
    for (name, chunked, scheduling) in arms() {
        let scheduling = Scheduling {
            reserve_full_prompt: true,
            ..scheduling
        };
        let mut sim = Sim::build(&config(256, chunked, scheduling), Counting::new(4, 10));
        sim.add(0, 20, 5);
        sim.add(1, 41, 5);
        for _ in 0..60 {
            sim.step();
            assert!(!sim.memory.held.contains_key(&RequestId(1)), "{name}");
        }
        assert_eq!((sim.finished.len(), sim.memory.free), (1, 10), "{name}");
    }
}

#[test]
fn vllm_42381_nothing_is_computed_beyond_the_longest_sequence() {
    // The engine refuses a prompt of max_model_len tokens. A running request stops one short of
    // the limit: the token at the last position is given out, never computed.
    for (name, chunked, scheduling) in arms() {
        let config = EngineConfig {
            max_model_len: 32,
            ..config(64, chunked, scheduling)
        };
        let mut sim = Sim::build(&config, Counting::unlimited());
        sim.add(0, 31, 100);
        let mut last = 0;
        for _ in 0..40 {
            let ends = rows(&sim.step());
            last = ends
                .iter()
                .map(|(_, start, count)| start + count)
                .fold(last, usize::max);
        }
        assert_eq!((last, sim.finished.len()), (31, 1), "{name}");
        // As if the sequence went on: nothing is left to compute.
        let mut endless = Req::new(1, 32, 100);
        (endless.computed, endless.output) = (31, vec![0]);
        sim.running.push(endless);
        assert!(rows(&sim.step()).is_empty(), "{name}");
    }
}

#[test]
fn vllm_11562_a_step_with_nothing_to_do_is_empty() {
    for (name, chunked, scheduling) in arms() {
        let mut sim = Sim::build(&config(256, chunked, scheduling), Counting::new(4, 0));
        assert!(rows(&sim.step()).is_empty(), "{name}");
        sim.add(0, 9, 2);
        for _ in 0..3 {
            assert!(rows(&sim.step()).is_empty(), "{name}: no block is free");
        }
        sim.memory.free = 64;
        sim.drain(30);
    }
}

/// Blocks for tokens that are drafted beside each known one.
struct Drafting {
    blocks: Counting,
    draft_tokens: usize,
}

impl Allocator for Drafting {
    fn lookup(&self, id: RequestId) -> usize {
        self.blocks.lookup(id)
    }

    fn blocks_needed(&self, id: RequestId, computed: usize, hit: usize, new: usize) -> usize {
        let new = new + self.draft_tokens;
        self.blocks.blocks_needed(id, computed, hit, new)
    }

    fn free_blocks(&self) -> usize {
        self.blocks.free
    }

    fn block_size(&self) -> usize {
        self.blocks.block_size
    }

    fn allocate(&mut self, id: RequestId, computed: usize, hit: usize, new: usize) -> bool {
        self.blocks
            .allocate(id, computed, hit, new + self.draft_tokens)
    }

    fn free(&mut self, id: RequestId) {
        self.blocks.free(id);
    }
}

impl Memory for Drafting {}

#[test]
fn vllm_57104_draft_tokens_under_memory_pressure_terminate() {
    for (name, chunked, scheduling) in arms() {
        for draft_tokens in [1, 3, 7] {
            let memory = Drafting {
                blocks: Counting::new(4, 12),
                draft_tokens,
            };
            let mut sim = Sim::build(&config(256, chunked, scheduling), memory);
            // With its drafts each fits the pool of 48 tokens alone, and hardly two together.
            (0..10).for_each(|id| sim.add(id, 18 + id as usize, 13));
            sim.drain(4000);
            assert_eq!(sim.finished.len(), 10, "{name}, {draft_tokens} drafts");
            assert_eq!(sim.memory.blocks.free, 12, "{name}: a leak");
        }
    }
}

/// Prefixes that arrive from elsewhere: their blocks are held while the request still waits, and
/// nobody can take them back.
struct Loading {
    blocks: Counting,
    /// Blocks that a request with a load may still need.
    promised: BTreeMap<RequestId, usize>,
    reserve_all: bool,
}

impl Loading {
    /// Starts a load: holds blocks for the prefix, if the rule allows.
    fn start(&mut self, id: RequestId, prefix: usize, total: usize) {
        let needed = |tokens: usize| tokens.div_ceil(self.blocks.block_size);
        let promised: usize = self.promised.values().sum();
        let demand = if self.reserve_all {
            needed(total) + promised
        } else {
            needed(prefix)
        };
        if self.promised.contains_key(&id) || demand > self.blocks.free {
            return;
        }
        self.promised.insert(id, needed(total) - needed(prefix));
        self.blocks.free -= needed(prefix);
        self.blocks.held.insert(id, needed(prefix));
        self.blocks.hits.insert(id, prefix);
    }
}

impl Allocator for Loading {
    fn lookup(&self, id: RequestId) -> usize {
        self.blocks.lookup(id)
    }

    fn blocks_needed(&self, id: RequestId, computed: usize, hit: usize, new: usize) -> usize {
        self.blocks.blocks_needed(id, computed, hit, new)
    }

    fn free_blocks(&self) -> usize {
        self.blocks.free
    }

    fn block_size(&self) -> usize {
        self.blocks.block_size
    }

    fn allocate(&mut self, id: RequestId, computed: usize, hit: usize, new: usize) -> bool {
        self.blocks.allocate(id, computed, hit, new)
    }

    fn free(&mut self, id: RequestId) {
        self.promised.remove(&id);
        self.blocks.hits.remove(&id);
        self.blocks.free(id);
    }
}

impl Memory for Loading {}

/// Two prompts of 24 tokens and 2 outputs, 16 of them loaded, in a pool of eight blocks of four.
/// Returns how many end.
fn loads(reserve_all: bool) -> usize {
    let memory = Loading {
        blocks: Counting::new(4, 8),
        promised: BTreeMap::new(),
        reserve_all,
    };
    let mut sim = Sim::new(TokenBudget::new(64, 8, 64, true), memory);
    sim.add(0, 24, 2);
    sim.add(1, 24, 2);
    for _ in 0..100 {
        for req in sim.waiting.clone() {
            sim.memory.start(req.id, 16, 26);
        }
        // Only what is loaded may run.
        let loaded = |req: &Req| sim.memory.promised.contains_key(&req.id);
        let (ready, rest) = sim.waiting.clone().into_iter().partition(loaded);
        sim.waiting = ready;
        sim.step();
        sim.waiting.extend(rest);
    }
    sim.finished.len()
}

#[test]
fn vllm_45388_loads_that_reserve_only_their_prefix_deadlock() {
    // Both prefixes fill the pool; neither request finds its last two blocks, nobody runs, and
    // nobody can be preempted. With the whole request reserved the second load waits instead.
    assert_eq!(loads(false), 0, "the trace is meant to expose the deadlock");
    assert_eq!(loads(true), 2);
}

#[test]
fn partial_prompts_that_hold_all_blocks_give_way_to_the_first() {
    // Without full-prompt reservation: three prompts of the whole pool are admitted chunk by
    // chunk under a threshold, until no block is left and none of them decodes.
    for kind in [PolicyKind::TokenBudget, PolicyKind::PrefillFirst] {
        let scheduling = Scheduling {
            policy: kind,
            reserve_full_prompt: false,
            long_prefill_token_threshold: 4,
            ..Scheduling::default()
        };
        let mut sim = Sim::build(&config(12, true, scheduling), Counting::new(4, 12));
        (0..3).for_each(|id| sim.add(id, 40, 4));
        sim.drain(400);
        assert_eq!(sim.finished.len(), 3, "{kind:?}");
        assert!(sim.preemptions > 0, "{kind:?}: nobody had to give way");
    }
}
