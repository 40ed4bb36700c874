//! One body of laws for every policy: each plan is legal, each admissible load ends, nothing
//! leaks, and the same load gives the same schedule.

mod common;

use common::arms::arms;
use common::{Counting, Sim, config};
use pb_contract::{EngineConfig, QueueOrder, Scheduling, Stream};
use pb_sched::{Observation, Policy};

const MAX_MODEL_LEN: usize = 96;
const BLOCK_SIZE: usize = 4;
const REQUESTS: u64 = 24;

type BoxedSim = Sim<Counting, Box<dyn Policy>>;

/// Sizes at random around an arm's settings.
fn sizes(rng: &mut Stream, chunked: bool, scheduling: Scheduling) -> EngineConfig {
    let least = if chunked { BLOCK_SIZE } else { MAX_MODEL_LEN };
    let queues = [
        QueueOrder::Fcfs,
        QueueOrder::Priority,
        QueueOrder::Lpm,
        QueueOrder::DfsWeight,
    ];
    let scheduling = Scheduling {
        queue: queues[rng.below(4) as usize],
        watermark_blocks: rng.below(3) as usize,
        reserve_full_prompt: rng.below(2) == 0,
        long_prefill_token_threshold: match chunked {
            true => rng.below(3) as usize * 5,
            false => 0,
        },
        ..scheduling
    };
    EngineConfig {
        max_num_seqs: 1 + rng.below(12) as usize,
        max_model_len: MAX_MODEL_LEN,
        block_size: BLOCK_SIZE,
        ..config(least + rng.below(64) as usize, chunked, scheduling)
    }
}

/// A load in which each request fits the pool alone; returns the tokens to compute.
fn load(rng: &mut Stream, sim: &mut BoxedSim, blocks: usize) -> usize {
    let longest = (blocks * BLOCK_SIZE).min(MAX_MODEL_LEN) as u64;
    let mut tokens = 0;
    for id in 0..REQUESTS {
        let prompt = 1 + rng.below(longest - 1) as usize;
        let output = 1 + rng.below((longest - prompt as u64).max(1)) as usize;
        sim.add(id, prompt, output);
        let req = sim.waiting.last_mut().unwrap();
        req.priority = rng.below(3) as i64;
        tokens += prompt + output;
    }
    tokens
}

/// Milliseconds that grow with the work, with a term of attention.
fn duration_ns(step: &Observation) -> u64 {
    let prompts = step
        .prefill
        .iter()
        .map(|&(tokens, context)| (tokens * (1000 + 10 * (context + tokens))) as u64);
    1_000_000 + prompts.sum::<u64>() * 100 + step.decode_seqs as u64 * 50_000
}

fn random(seed: u64, label: &str, chunked: bool, scheduling: Scheduling) -> (BoxedSim, usize) {
    let mut rng = Stream::new(seed, label);
    let blocks = 2 + rng.below(40) as usize;
    let config = sizes(&mut rng, chunked, scheduling);
    let mut sim = Sim::build(&config, Counting::new(BLOCK_SIZE, blocks));
    sim.duration_ns = duration_ns;
    let tokens = load(&mut rng, &mut sim, blocks);
    (sim, tokens)
}

#[test]
fn every_admissible_load_ends_under_every_policy() {
    for (name, chunked, scheduling) in arms() {
        let mut preemptions = 0;
        for seed in 0..120 {
            let (mut sim, tokens) = random(seed, name, chunked, scheduling);
            let blocks = sim.memory.free;
            // One token a step at least, and a request is computed anew at most once for each
            // that stands before it.
            let bound = tokens * REQUESTS as usize;
            for _ in 0..bound {
                if sim.running.is_empty() && sim.waiting.is_empty() {
                    break;
                }
                if let Err(broken) = sim.try_step(&|_| 0) {
                    panic!("{name}, seed {seed}: {broken}");
                }
            }
            let ended = sim.finished.len() as u64;
            assert_eq!(ended, REQUESTS, "{name}, seed {seed}: no end in {bound}");
            let left = (sim.memory.free, sim.memory.held.len());
            assert_eq!(left, (blocks, 0), "{name}, seed {seed}: a leak");
            preemptions += sim.preemptions;
        }
        // Reserving for the output is there to avoid it.
        let reserves = name.starts_with("sglang");
        assert!(
            reserves || preemptions > 100,
            "{name}: memory was never short"
        );
    }
}

#[test]
fn the_chunks_of_a_prompt_are_its_tokens_less_the_hit() {
    for (name, chunked, scheduling) in arms() {
        for hit in [0, 4, 60] {
            let config = config(256, chunked, scheduling);
            let mut sim = Sim::build(&config, Counting::unlimited());
            sim.duration_ns = duration_ns;
            sim.add_decodes(0..3, 200);
            sim.memory.hits.insert(pb_contract::RequestId(9), hit);
            sim.add(9, 101, 2);
            let chunks = common::chunks_of(&mut sim, 9);
            assert_eq!(
                chunks.iter().sum::<usize>(),
                101 - hit,
                "{name}: {chunks:?}"
            );
            assert!(chunks.iter().all(|&chunk| chunk > 0), "{name}: {chunks:?}");
            assert!(chunked || chunks.len() == 1, "{name} cut it: {chunks:?}");
        }
    }
}

#[test]
fn the_same_load_and_times_give_the_same_schedule() {
    for (name, chunked, scheduling) in arms() {
        let log = || {
            let (mut sim, _) = random(5, name, chunked, scheduling);
            (0..150)
                .map(|_| format!("{:?}\n", sim.step()))
                .collect::<String>()
        };
        assert_eq!(log(), log(), "{name}");
    }
}

#[test]
fn a_request_with_forks_takes_all_its_places_or_waits() {
    for (name, chunked, scheduling) in arms() {
        let config = EngineConfig {
            max_num_seqs: 4,
            ..config(256, chunked, scheduling)
        };
        let mut sim = Sim::build(&config, Counting::unlimited());
        sim.add_decodes(0..2, 3);
        sim.add(7, 8, 1);
        sim.waiting[0].places = 3;
        sim.add(8, 8, 1);
        let first = sim.step();
        let admitted = first.scheduled.iter().any(|row| row.hit_tokens.is_some());
        assert!(!admitted, "{name}: {first:?}");
        sim.drain(40);
        assert_eq!(sim.finished.len(), 4, "{name}");
    }
}
