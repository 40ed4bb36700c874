//! Schedules worked by hand, and the requirements' table from the running policy.

mod common;

use common::{Counting, Sim, rows};
use pb_contract::RequestId;
use pb_sched::{PlanError, RunningOrder, TokenBudget};

fn ids(ids: &[u64]) -> Vec<RequestId> {
    ids.iter().map(|&id| RequestId(id)).collect()
}

/// Chunks of one prompt beside `decodes` endless decodes, as the policy schedules them.
fn chunks(policy: TokenBudget, decodes: u64, prompt: usize, steps: usize) -> Vec<usize> {
    let mut sim = Sim::new(policy, Counting::unlimited());
    sim.add_decodes(0..decodes, usize::MAX);
    sim.add(9999, prompt, usize::MAX);
    let mut chunks = Vec::new();
    for _ in 0..steps {
        let plan = sim.step();
        let decoding = plan.scheduled.iter().filter(|s| s.id.0 < decodes).count();
        assert_eq!(
            decoding as u64, decodes,
            "every decode has its token in every step"
        );
        chunks.extend(
            plan.scheduled
                .iter()
                .filter(|s| s.id.0 == 9999)
                .map(|s| s.count),
        );
    }
    chunks
}

#[test]
fn requirements_table_of_chunks_from_the_running_policy() {
    let budget = |tokens| TokenBudget::new(tokens, 2048, 1 << 20, true);
    assert_eq!(chunks(budget(512), 4, 2048, 5), [508, 508, 508, 508, 16]);
    assert_eq!(
        chunks(budget(1024), 300, 3500, 5),
        [724, 724, 724, 724, 604]
    );
    let fixed = TokenBudget {
        long_prefill_token_threshold: 512,
        ..budget(2048)
    };
    assert_eq!(chunks(fixed, 0, 8192, 16), [512; 16]);
    // Deferral: the decodes go on, the prompt makes no progress, nothing breaks.
    assert!(chunks(budget(512), 512, 100, 20).is_empty());
    assert!(chunks(budget(1024), 1024, 7, 20).is_empty());
}

#[test]
fn sarathi_negative_chunk() {
    // Budget 8, twelve decodes and a prompt: eight decodes run, no chunk is zero or negative.
    let mut sim = Sim::new(TokenBudget::new(8, 64, 1024, true), Counting::unlimited());
    sim.add_decodes(0..12, 3);
    sim.add(100, 50, 1);
    assert_eq!(
        rows(&sim.step()),
        (0..8).map(|id| (id, 1, 1)).collect::<Vec<_>>()
    );
    assert_eq!(
        rows(&sim.step()),
        (0..8).map(|id| (id, 2, 1)).collect::<Vec<_>>()
    );
    // The first eight have ended with three tokens each; now there is room for the prompt.
    assert_eq!(
        rows(&sim.step()),
        [(8, 1, 1), (9, 1, 1), (10, 1, 1), (11, 1, 1), (100, 0, 4)]
    );
    sim.drain(20);
    assert_eq!(sim.finished.len(), 13);
}

#[test]
fn decodes_come_before_a_partial_prompt_and_before_admission() {
    let mut sim = Sim::new(TokenBudget::new(10, 8, 1024, true), Counting::unlimited());
    sim.add(0, 25, 2);
    sim.add(1, 3, 4);
    assert_eq!(rows(&sim.step()), [(0, 0, 10)]);
    sim.add_decodes(2..4, 9);
    assert_eq!(rows(&sim.step()), [(2, 1, 1), (3, 1, 1), (0, 10, 8)]);
    // The partial prompt ends, the newcomer takes the rest of the budget.
    assert_eq!(
        rows(&sim.step()),
        [(2, 2, 1), (3, 2, 1), (0, 18, 7), (1, 0, 1)]
    );
    assert_eq!(
        rows(&sim.step()),
        [(0, 25, 1), (2, 3, 1), (3, 3, 1), (1, 1, 2)]
    );
}

#[test]
fn list_order_serves_requests_in_order_of_admission() {
    let policy = TokenBudget {
        order: RunningOrder::ListOrder,
        ..TokenBudget::new(10, 8, 1024, true)
    };
    let mut sim = Sim::new(policy, Counting::unlimited());
    sim.add(0, 25, 2);
    assert_eq!(rows(&sim.step()), [(0, 0, 10)]);
    sim.add_decodes(2..4, 9);
    // The prompt takes the whole budget; the decodes behind it starve in this step.
    assert_eq!(rows(&sim.step()), [(0, 10, 10)]);
    assert_eq!(rows(&sim.step()), [(0, 20, 5), (2, 1, 1), (3, 1, 1)]);
}

#[test]
fn vllm_57413_short_prompts_progress_beside_a_long_one_with_a_threshold() {
    let long_then_short = |threshold| {
        let policy = TokenBudget {
            long_prefill_token_threshold: threshold,
            ..TokenBudget::new(64, 8, 100_000, true)
        };
        let mut sim = Sim::new(policy, Counting::unlimited());
        sim.add(0, 6400, 1);
        sim.add(1, 16, 1);
        let mut steps = 0;
        while !sim.finished.iter().any(|req| req.id == RequestId(1)) {
            sim.step();
            steps += 1;
        }
        steps
    };
    assert_eq!(
        long_then_short(48),
        1,
        "16 tokens of the first step are left for it"
    );
    assert_eq!(
        long_then_short(0),
        101,
        "without, it waits for all 100 chunks"
    );
}

#[test]
fn vllm_57951_a_lone_request_is_spared_the_threshold_when_asked() {
    let policy = TokenBudget {
        long_prefill_token_threshold: 4,
        threshold_spares_lone_request: true,
        ..TokenBudget::new(16, 8, 256, true)
    };
    let mut sim = Sim::new(policy, Counting::unlimited());
    sim.add(0, 40, 1);
    assert_eq!(rows(&sim.step()), [(0, 0, 16)]);
    sim.add(1, 9, 1);
    assert_eq!(
        rows(&sim.step()),
        [(0, 16, 4), (1, 0, 4)],
        "company brings it back"
    );
}

#[test]
fn chunking_off_admits_a_prompt_whole_or_not_at_all() {
    let mut sim = Sim::new(TokenBudget::new(100, 8, 100, false), Counting::unlimited());
    sim.add_decodes(0..2, 3);
    sim.add(5, 99, 1);
    sim.add(6, 4, 1);
    // 98 tokens are left: the long prompt waits and nobody overtakes it.
    assert_eq!(rows(&sim.step()), [(0, 1, 1), (1, 1, 1)]);
    assert_eq!(rows(&sim.step()), [(0, 2, 1), (1, 2, 1)]);
    assert_eq!(rows(&sim.step()), [(5, 0, 99)]);
    assert_eq!(rows(&sim.step()), [(6, 0, 4)]);
    let policy = TokenBudget {
        long_prefill_token_threshold: 7,
        ..sim.policy
    };
    let mut sim = Sim::new(policy, Counting::unlimited());
    sim.add(0, 50, 1);
    assert_eq!(
        rows(&sim.step()),
        [(0, 0, 50)],
        "a threshold does not cut without chunking"
    );
}

#[test]
fn preemption_takes_the_last_admitted_and_returns_its_tokens() {
    // Four blocks of four tokens: three requests of 4, 3 and 4 tokens hold three.
    let policy = TokenBudget {
        order: RunningOrder::ListOrder,
        ..TokenBudget::new(16, 8, 64, true)
    };
    let mut sim = Sim::new(policy, Counting::new(4, 4));
    sim.add(0, 4, 9);
    sim.add(1, 3, 9);
    sim.add(2, 4, 9);
    assert_eq!(rows(&sim.step()), [(0, 0, 4), (1, 0, 3), (2, 0, 4)]);
    sim.add(3, 1, 1);
    // Request 0 takes the last block; 1 has room in its own; 2 needs one and is itself the last.
    let plan = sim.step();
    assert_eq!(
        (rows(&plan), plan.preempted),
        (vec![(0, 4, 1), (1, 3, 1)], ids(&[2]))
    );
    // It waits in front of the newcomer, is computed anew, and does not fit beside the others:
    // five tokens need two blocks, of which one is free. Request 1 takes that block now.
    assert_eq!(
        sim.waiting.iter().map(|req| req.id.0).collect::<Vec<_>>(),
        [2, 3]
    );
    let plan = sim.step();
    assert_eq!(
        (rows(&plan), plan.preempted),
        (vec![(0, 5, 1), (1, 4, 1)], vec![])
    );
    sim.drain(100);
    assert_eq!(sim.finished.len(), 4);
    assert_eq!((sim.memory.free, sim.memory.held.len()), (4, 0));
}

#[test]
fn a_victim_that_was_served_already_gives_its_tokens_back() {
    // Decode-first serves request 1's token, then request 0's chunk lacks blocks and takes them.
    let mut sim = Sim::new(TokenBudget::new(8, 8, 64, true), Counting::new(4, 4));
    sim.policy.reserve_full_prompt = false;
    sim.add(0, 15, 1);
    assert_eq!(rows(&sim.step()), [(0, 0, 8)]);
    sim.add_decodes(1..2, 9);
    sim.running[1].prompt = 4;
    sim.running[1].computed = 4;
    let plan = sim.step();
    assert_eq!((rows(&plan), plan.preempted), (vec![(0, 8, 7)], ids(&[1])));
    assert_eq!(sim.finished.len(), 1);
}

#[test]
fn admission_stops_at_the_limits() {
    let mut sim = Sim::new(TokenBudget::new(64, 2, 256, true), Counting::new(16, 8));
    for id in 0..3 {
        sim.add(id, 8, 1);
    }
    assert_eq!(rows(&sim.step()), [(0, 0, 8), (1, 0, 8)], "max_num_seqs");
    sim.drain(9);
    // Full-prompt reservation: 129 tokens need nine blocks, though the first chunk needs four.
    sim.add(3, 129, 1);
    assert!(rows(&sim.step()).is_empty());
    sim.policy.reserve_full_prompt = false;
    assert_eq!(rows(&sim.step()), [(3, 0, 64)]);
}

#[test]
fn the_watermark_counts_only_in_a_step_that_has_work() {
    let policy = TokenBudget {
        watermark_blocks: 2,
        ..TokenBudget::new(64, 8, 64, true)
    };
    let mut sim = Sim::new(policy, Counting::new(16, 3));
    sim.add(0, 32, 1);
    sim.add(1, 16, 1);
    assert_eq!(
        rows(&sim.step()),
        [(0, 0, 32)],
        "one block is left, two must stay free"
    );
    assert_eq!(
        rows(&sim.step()),
        [(1, 0, 16)],
        "alone, it may take any block"
    );
}

#[test]
fn the_watermark_counts_against_the_whole_prompt_too() {
    // Two of five blocks go to the first request. The first chunk of the second needs one block,
    // all of it the remaining three.
    for (reserve_full_prompt, second) in [(true, None), (false, Some((1, 0, 8)))] {
        let policy = TokenBudget {
            watermark_blocks: 1,
            reserve_full_prompt,
            ..TokenBudget::new(40, 8, 64, true)
        };
        let mut sim = Sim::new(policy, Counting::new(16, 5));
        sim.add(0, 32, 1);
        sim.add(1, 48, 1);
        let expected: Vec<_> = std::iter::once((0, 0, 32)).chain(second).collect();
        assert_eq!(rows(&sim.step()), expected, "{reserve_full_prompt}");
    }
}

#[test]
fn hits_shorten_the_first_chunk_and_are_reported_once() {
    let mut sim = Sim::new(TokenBudget::new(20, 8, 256, true), Counting::unlimited());
    sim.memory.hits.insert(RequestId(0), 48);
    sim.add(0, 80, 2);
    let plan = sim.step();
    assert_eq!(
        (plan.scheduled[0].hit_tokens, rows(&plan)),
        (Some(48), vec![(0, 48, 20)])
    );
    let plan = sim.step();
    assert_eq!(
        (plan.scheduled[0].hit_tokens, rows(&plan)),
        (None, vec![(0, 68, 12)])
    );
}

#[test]
fn vllm_11562_an_empty_step_is_legal() {
    let mut sim = Sim::new(TokenBudget::new(20, 8, 256, true), Counting::new(16, 0));
    assert!(rows(&sim.step()).is_empty());
    sim.add(0, 8, 1);
    assert!(rows(&sim.step()).is_empty());
}

#[test]
fn limits_that_would_hang_are_refused() {
    let error = |policy: TokenBudget| policy.validate().unwrap_err();
    assert_eq!(
        error(TokenBudget::new(0, 1, 1, true)),
        PlanError::Zero {
            key: "max_batched_tokens"
        }
    );
    assert_eq!(
        error(TokenBudget::new(1, 0, 1, true)),
        PlanError::Zero {
            key: "max_num_seqs"
        }
    );
    assert_eq!(
        error(TokenBudget::new(1, 1, 0, true)),
        PlanError::Zero {
            key: "max_model_len"
        }
    );
    let monolithic = error(TokenBudget::new(99, 1, 100, false));
    assert_eq!(
        monolithic,
        PlanError::MonolithicBudget {
            budget: 99,
            max_model_len: 100
        }
    );
    assert!(TokenBudget::new(99, 1, 100, true).validate().is_ok());
}
