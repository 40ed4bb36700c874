//! Every admissible load ends, whatever the memory does.

mod common;

use common::{Counting, Sim};
use pb_contract::Stream;
use pb_sched::{RunningOrder, TokenBudget};

const MAX_MODEL_LEN: usize = 96;
const BLOCK_SIZE: usize = 4;

fn policy(rng: &mut Stream) -> TokenBudget {
    let chunked = rng.below(3) > 0;
    let least = if chunked { 1 } else { MAX_MODEL_LEN as u64 };
    let budget = least + rng.below(64);
    TokenBudget {
        long_prefill_token_threshold: rng.below(3) as usize * 5,
        threshold_spares_lone_request: rng.below(2) == 0,
        reserve_full_prompt: rng.below(2) == 0,
        watermark_blocks: rng.below(3) as usize,
        order: [RunningOrder::DecodeFirst, RunningOrder::ListOrder][rng.below(2) as usize],
        ..TokenBudget::new(
            budget as usize,
            1 + rng.below(12) as usize,
            MAX_MODEL_LEN,
            chunked,
        )
    }
}

/// Requests that each fit the pool alone; returns the total of tokens to compute.
fn load(rng: &mut Stream, sim: &mut Sim<Counting>, requests: u64, blocks: usize) -> usize {
    let longest = (blocks * BLOCK_SIZE).min(MAX_MODEL_LEN) as u64;
    let mut tokens = 0;
    for id in 0..requests {
        let prompt = 1 + rng.below(longest - 1) as usize;
        let output = 1 + rng.below((longest - prompt as u64).max(1)) as usize;
        sim.add(id, prompt, output);
        tokens += prompt + output;
    }
    tokens
}

#[test]
fn random_loads_end_within_a_bound() {
    let mut preemptions = 0;
    for seed in 0..400 {
        let mut rng = Stream::new(seed, "liveness");
        let blocks = 2 + rng.below(40) as usize;
        let mut sim = Sim::new(policy(&mut rng), Counting::new(BLOCK_SIZE, blocks));
        let tokens = load(&mut rng, &mut sim, 30, blocks);
        // The head of the list progresses in every step in which it is served, and it is served
        // unless decodes fill the budget; recomputation repeats work at most once per request
        // ahead of it.
        sim.drain(40 * tokens);
        assert_eq!(sim.finished.len(), 30, "seed {seed}");
        assert_eq!(
            (sim.memory.free, sim.memory.held.len()),
            (blocks, 0),
            "seed {seed}: a leak"
        );
        preemptions += sim.preemptions;
    }
    assert!(
        preemptions > 1000,
        "the loads are meant to run out of memory: {preemptions}"
    );
}

#[test]
fn vllm_5578_many_sequences_under_memory_pressure_terminate() {
    for order in [RunningOrder::DecodeFirst, RunningOrder::ListOrder] {
        let policy = TokenBudget {
            order,
            ..TokenBudget::new(16, 16, 64, true)
        };
        let mut sim = Sim::new(policy, Counting::new(BLOCK_SIZE, 16));
        (0..16).for_each(|id| sim.add(id, 8, 56));
        sim.drain(16 * 64 * 16);
        assert_eq!(sim.finished.len(), 16);
        assert!(sim.preemptions > 0);
    }
}

#[test]
fn sglang_16067_a_refused_allocation_leaks_nothing() {
    // Refuse each call in turn, whatever it is for: the load ends and all blocks come back.
    let total_calls = refusing(None);
    assert!(total_calls > 40);
    for call in 1..=total_calls {
        refusing(Some(call));
    }
}

fn refusing(call: Option<usize>) -> usize {
    let mut sim = Sim::new(
        TokenBudget::new(12, 4, 64, true),
        Counting::new(BLOCK_SIZE, 20),
    );
    sim.memory.refuse_call = call;
    (0..6).for_each(|id| sim.add(id, 10, 6));
    sim.drain(1000);
    assert_eq!(
        (sim.finished.len(), sim.memory.free, sim.memory.held.len()),
        (6, 20, 0)
    );
    sim.memory.calls
}

#[test]
fn abort_anywhere_returns_the_blocks() {
    for seed in 0..100 {
        let mut rng = Stream::new(seed, "abort");
        let mut sim = Sim::new(policy(&mut rng), Counting::new(BLOCK_SIZE, 24));
        load(&mut rng, &mut sim, 12, 24);
        for _ in 0..rng.below(40) {
            sim.step();
            if !sim.running.is_empty() && rng.below(3) == 0 {
                let at = rng.below(sim.running.len() as u64) as usize;
                sim.abort(sim.running[at].id);
            }
        }
        for req in sim.running.drain(..) {
            pb_sched::Allocator::free(&mut sim.memory, req.id);
        }
        assert_eq!(
            (sim.memory.free, sim.memory.held.len()),
            (24, 0),
            "seed {seed}"
        );
    }
}

#[test]
fn the_same_load_gives_the_same_schedule() {
    let log = || {
        let mut rng = Stream::new(11, "determinism");
        let mut sim = Sim::new(
            TokenBudget::new(12, 6, 96, true),
            Counting::new(BLOCK_SIZE, 24),
        );
        load(&mut rng, &mut sim, 12, 24);
        (0..200)
            .map(|_| format!("{:?}\n", sim.step()))
            .collect::<String>()
    };
    assert_eq!(log(), log());
}
