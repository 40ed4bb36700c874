//! Each policy against schedules worked by hand.

mod common;

use common::{Counting, Sim, chunks_of, config, rows};
use pb_contract::{
    AdaptiveLoadOptions, EngineConfig, PolicyKind, Preset, QueueOrder, RequestId,
    ReservedDecodeOptions, RunningOrder, Scheduling, ShrinkingOptions, TimeBudgetOptions,
};
use pb_sched::{Policy, Requeue};

type BoxedSim = Sim<Counting, Box<dyn Policy>>;

fn policy(policy: PolicyKind) -> Scheduling {
    Scheduling {
        policy,
        ..Scheduling::default()
    }
}

fn sim(budget: usize, chunked: bool, scheduling: Scheduling) -> BoxedSim {
    let config = EngineConfig {
        max_num_seqs: 4096,
        max_model_len: if chunked { 1 << 20 } else { budget },
        ..config(budget, chunked, scheduling)
    };
    Sim::build(&config, Counting::unlimited())
}

/// Chunks of one prompt beside endless decodes.
fn chunks(mut sim: BoxedSim, decodes: u64, prompt: usize) -> Vec<usize> {
    sim.add_decodes(0..decodes, usize::MAX);
    sim.add(9999, prompt, usize::MAX);
    chunks_of(&mut sim, 9999)
}

#[test]
fn requirements_table_of_chunks_from_every_policy_that_mixes_under_a_budget() {
    let mixed = Scheduling {
        mixed_chunk: true,
        ..policy(PolicyKind::PrefillFirst)
    };
    // Rules of their own that never bind, so that the budget does.
    let lax = Scheduling {
        adaptive_load: AdaptiveLoadOptions {
            max_chunk: 1 << 20,
            min_chunk: 1 << 20,
            base: 1 << 20,
            threshold: 1,
        },
        shrinking: ShrinkingOptions {
            high: 1 << 20,
            low: 1 << 20,
            stages: 1,
            max_tokens: 1 << 20,
        },
        time_budget: TimeBudgetOptions {
            step_budget_ns: u64::MAX,
            min_chunk: 1 << 20,
        },
        ..Scheduling::default()
    };
    let lax = |policy| Scheduling { policy, ..lax };
    for scheduling in [
        policy(PolicyKind::TokenBudget),
        mixed,
        lax(PolicyKind::AdaptiveLoad),
        lax(PolicyKind::Shrinking),
        lax(PolicyKind::TimeBudget),
    ] {
        let name = scheduling.policy;
        let table = [
            (512, 4, 2048, vec![508, 508, 508, 508, 16]),
            (1024, 300, 3500, vec![724, 724, 724, 724, 604]),
        ];
        for (budget, decodes, prompt, expected) in table {
            let got = chunks(sim(budget, true, scheduling), decodes, prompt);
            assert_eq!(got, expected, "{name:?}");
        }
        let fixed = Scheduling {
            long_prefill_token_threshold: 512,
            ..scheduling
        };
        assert_eq!(
            chunks(sim(2048, true, fixed), 0, 8192),
            [512; 16],
            "{name:?}"
        );
        for budget in [512, 1024] {
            let mut sim = sim(budget, true, scheduling);
            sim.add_decodes(0..budget as u64, usize::MAX);
            sim.add(9999, 100, 1);
            for _ in 0..5 {
                let plan = sim.step();
                assert_eq!(plan.total_tokens(), budget, "{name:?}: decodes go on");
                assert_eq!(sim.waiting.len(), 1, "{name:?}: the prompt is put off");
            }
        }
    }
}

#[test]
fn monolithic_takes_whole_prompts_first_and_decodes_beside_them() {
    let mut sim = sim(100, false, policy(PolicyKind::Monolithic));
    sim.add_decodes(0..3, 9);
    sim.add(7, 98, 2);
    sim.add(8, 4, 2);
    // 98 tokens for the prompt, two decodes beside it, the third waits a step.
    assert_eq!(rows(&sim.step()), [(0, 1, 1), (1, 1, 1), (7, 0, 98)]);
    assert_eq!(
        rows(&sim.step()),
        [(0, 2, 1), (1, 2, 1), (2, 1, 1), (7, 98, 1), (8, 0, 4)]
    );
}

#[test]
fn the_naive_fix_still_holds_a_long_prompt_in_one_step() {
    let mut naive = sim(1000, false, policy(PolicyKind::DecodePriorityMonolithic));
    naive.add_decodes(0..3, 9);
    naive.add(7, 900, 2);
    // The decodes come first, and still their step is 300 times as long as one without a prompt.
    assert_eq!(
        rows(&naive.step()),
        [(0, 1, 1), (1, 1, 1), (2, 1, 1), (7, 0, 900)]
    );
    let chunked = chunks(sim(64, true, policy(PolicyKind::TokenBudget)), 3, 900);
    assert_eq!(
        chunked.iter().max(),
        Some(&61),
        "the budget less the decodes"
    );
    // A prompt that does not fit beside the decodes waits, whereas they never do.
    let mut full = sim(100, false, policy(PolicyKind::DecodePriorityMonolithic));
    full.add_decodes(0..3, 2);
    full.add(7, 98, 2);
    assert_eq!(rows(&full.step()), [(0, 1, 1), (1, 1, 1), (2, 1, 1)]);
    assert_eq!(rows(&full.step()), [(7, 0, 98)]);
}

#[test]
fn prefill_first_keeps_the_phases_apart() {
    let mut sim = sim(64, true, policy(PolicyKind::PrefillFirst));
    sim.add_decodes(0..2, 9);
    sim.add(7, 100, 3);
    sim.add(8, 20, 3);
    assert_eq!(rows(&sim.step()), [(7, 0, 64)]);
    assert_eq!(rows(&sim.step()), [(7, 64, 36), (8, 0, 20)]);
    assert_eq!(
        rows(&sim.step()),
        [(0, 1, 1), (1, 1, 1), (7, 100, 1), (8, 20, 1)]
    );
    assert_eq!(sim.policy.requeue(), Requeue::Front);
}

#[test]
fn sglang_1364_mixed_and_separate_phases_compute_the_same_tokens() {
    // Every token of every request is computed once, at its position, whichever way it goes.
    let computed = |mixed_chunk, enabled| {
        let scheduling = Scheduling {
            mixed_chunk,
            reserved_decode: ReservedDecodeOptions {
                enabled,
                ..ReservedDecodeOptions::default()
            },
            ..policy(PolicyKind::PrefillFirst)
        };
        let mut sim = sim(24, true, scheduling);
        sim.add_decodes(0..3, 12);
        (10..16).for_each(|id| sim.add(id, 10 * id as usize - 60, 5));
        let mut positions = Vec::new();
        while !(sim.running.is_empty() && sim.waiting.is_empty()) {
            for (id, start, count) in rows(&sim.step()) {
                positions.extend((start..start + count).map(|position| (id, position)));
            }
        }
        positions.sort_unstable();
        positions
    };
    let separate = computed(false, false);
    // Three decodes of 11 tokens after the first; prompts of 40 to 90 tokens and 4 outputs more.
    assert_eq!(
        separate.len(),
        3 * 11 + (40..=90).step_by(10).map(|n| n + 4).sum::<usize>()
    );
    assert!(
        separate.windows(2).all(|pair| pair[0] != pair[1]),
        "computed twice"
    );
    for (mixed, reserved) in [(true, false), (false, true), (true, true)] {
        assert_eq!(computed(mixed, reserved), separate, "{mixed} {reserved}");
    }
}

#[test]
fn adaptive_load_follows_the_rule() {
    let scheduling = policy(PolicyKind::AdaptiveLoad);
    // 512 - active * 24 by hand; 4096 alone; 128 from 16 on.
    let expected = [
        (0, 4096),
        (1, 488),
        (8, 320),
        (15, 152),
        (16, 128),
        (40, 128),
    ];
    for (decodes, chunk) in expected {
        let got = chunks(sim(8192, true, scheduling), decodes, 5000);
        assert_eq!(got[0], chunk, "{decodes} decodes");
        assert_eq!(got.iter().sum::<usize>(), 5000);
    }
    // The rule is for the step: two prompts share its allowance.
    let mut sim = sim(8192, true, scheduling);
    sim.add_decodes(0..8, 9);
    sim.add(20, 300, 1);
    sim.add(21, 300, 1);
    let plan = rows(&sim.step());
    assert_eq!(plan[8..], [(20, 0, 300), (21, 0, 20)]);
}

#[test]
fn shrinking_chunks_fall_in_stages_and_subtract_what_the_step_holds() {
    let scheduling = policy(PolicyKind::Shrinking);
    // Stages of 2048 tokens: 2048, 1440, 864, 256.
    let alone = chunks(sim(8192, true, scheduling), 0, 8000);
    // 2048 | 2048 -> stage 1: 1440, at 3488 again 1440 -> 4928, stage 2: 864, 5792: 864 -> 6656,
    // stage 3: 256 five times and a rest of 64.
    assert_eq!(
        alone,
        [2048, 1440, 1440, 864, 864, 256, 256, 256, 256, 256, 64]
    );
    let beside = chunks(sim(8192, true, scheduling), 100, 4000);
    assert_eq!(beside, [1948, 1948, 104]);
    // As many decodes as the last chunk: put off, and nobody is admitted meanwhile.
    let mut sim = sim(8192, true, scheduling);
    sim.add(1000, 7000, 1);
    (0..5).for_each(|_| drop(sim.step()));
    assert_eq!(sim.running[0].computed, 6656);
    sim.add_decodes(0..256, 3);
    sim.add(1001, 50, 1);
    assert_eq!(sim.step().total_tokens(), 256);
    assert_eq!(sim.step().total_tokens(), 256);
    assert_eq!(
        rows(&sim.step()),
        [(1000, 6656, 256), (1001, 0, 50)],
        "the decodes have ended"
    );
}

#[test]
fn priority_decides_who_gives_way_and_who_is_next() {
    let scheduling = Scheduling {
        queue: QueueOrder::Priority,
        ..Scheduling::default()
    };
    let config = config(64, true, scheduling);
    // Six blocks of four tokens; each request fills two and then needs a third.
    let mut sim = Sim::build(&config, Counting::new(4, 6));
    for (id, priority) in [(0, 1), (1, 5), (2, 5), (3, 0)] {
        sim.add(id, 8, 5);
        sim.waiting.last_mut().unwrap().priority = priority;
    }
    // Three fit; lowest priority value first, then arrival.
    assert_eq!(rows(&sim.step()), [(3, 0, 8), (0, 0, 8), (1, 0, 8)]);
    // Request 3 needs a block: the largest (priority, arrival) among the running is request 1.
    let plan = sim.step();
    assert_eq!(plan.preempted, [RequestId(1)]);
    assert_eq!(rows(&plan), [(3, 8, 1), (0, 8, 1)]);
    // 1 and 2 have one priority; the earlier arrival is next, preempted or not.
    sim.drain(60);
    let order: Vec<_> = sim.finished.iter().map(|req| req.id.0).collect();
    assert_eq!(order, [3, 0, 1, 2]);
}

#[test]
fn in_list_order_a_request_that_gives_way_itself_ends_the_round() {
    for (running_order, served) in [
        (RunningOrder::ListOrder, vec![]),
        (RunningOrder::DecodeFirst, vec![(1, 2, 1)]),
    ] {
        let scheduling = Scheduling {
            queue: QueueOrder::Priority,
            running_order,
            ..Scheduling::default()
        };
        // Four blocks of four tokens: three for request 0 up to position 11, one for request 1.
        let mut sim = Sim::build(&config(64, true, scheduling), Counting::new(4, 4));
        sim.add(0, 11, 5);
        sim.waiting.last_mut().unwrap().priority = 5;
        assert_eq!(rows(&sim.step()), [(0, 0, 11)]);
        sim.add(1, 2, 5);
        assert_eq!(rows(&sim.step()), [(0, 11, 1), (1, 0, 2)]);
        // Position 12 needs a fourth block, and nobody matters less than request 0.
        let plan = sim.step();
        assert_eq!(plan.preempted, [RequestId(0)]);
        assert_eq!(rows(&plan), served);
        sim.drain(60);
        assert_eq!(sim.finished.len(), 2);
    }
}

#[test]
fn without_priority_the_last_admitted_gives_way() {
    let mut sim = Sim::build(
        &config(64, true, Scheduling::default()),
        Counting::new(4, 6),
    );
    for (id, priority) in [(0, 9), (1, 5), (2, 0)] {
        sim.add(id, 8, 5);
        sim.waiting.last_mut().unwrap().priority = priority;
    }
    sim.step();
    assert_eq!(sim.step().preempted, [RequestId(2)]);
}

fn refused(config: EngineConfig) -> String {
    pb_sched::build(&config).unwrap_err().to_string()
}

#[test]
fn options_of_another_policy_are_refused() {
    let of = |chunked, scheduling| refused(config(256, chunked, scheduling));
    let mixed = Scheduling {
        mixed_chunk: true,
        ..Scheduling::default()
    };
    let reserved = Scheduling {
        reserved_decode: ReservedDecodeOptions {
            enabled: true,
            ..ReservedDecodeOptions::default()
        },
        ..Scheduling::default()
    };
    let threshold = Scheduling {
        long_prefill_token_threshold: 9,
        ..Scheduling::default()
    };
    let cases = [
        (
            of(true, policy(PolicyKind::Monolithic)),
            "scheduling.policy = monolithic: it never cuts a prompt, and chunked = true; \
             set chunked = false",
        ),
        (
            of(false, policy(PolicyKind::TimeBudget)),
            "scheduling.policy = time_budget: it chooses chunk sizes, and chunked = false",
        ),
        (
            of(true, mixed),
            "scheduling.mixed_chunk = true: only prefill_first",
        ),
        (
            of(true, reserved),
            "scheduling.reserved_decode.enabled = true: only prefill_first",
        ),
        (
            of(false, threshold),
            "scheduling.long_prefill_token_threshold = 9: it cuts prompts",
        ),
    ];
    for (message, expected) in cases {
        assert!(message.starts_with(expected), "{message}");
    }
}

#[test]
fn sizes_that_would_hang_are_refused() {
    let mut reserved = policy(PolicyKind::PrefillFirst);
    reserved.reserved_decode.enabled = true;
    let pages = refused(EngineConfig {
        block_size: 300,
        ..config(256, true, reserved)
    });
    let expected = "max_batched_tokens = 256: prompts are cut at whole blocks";
    assert!(pages.starts_with(expected), "{pages}");
    let whole = refused(EngineConfig {
        max_model_len: 257,
        ..config(256, false, policy(PolicyKind::Monolithic))
    });
    let expected = "max_batched_tokens = 256 is below max_model_len = 257 with chunking off";
    assert!(whole.starts_with(expected), "{whole}");
    let nobody = refused(EngineConfig {
        max_num_seqs: 0,
        ..config(256, true, Scheduling::default())
    });
    assert_eq!(nobody, "max_num_seqs = 0: must be at least 1");
}

#[test]
fn chunk_rules_that_cannot_work_are_refused() {
    let refused = |scheduling| refused(config(256, true, scheduling));
    let mut adaptive = policy(PolicyKind::AdaptiveLoad);
    adaptive.adaptive_load.min_chunk = 0;
    assert!(refused(adaptive).starts_with("scheduling.adaptive_load.min_chunk = 0"));
    adaptive.adaptive_load.min_chunk = 900;
    assert!(refused(adaptive).starts_with("scheduling.adaptive_load.base = 512: the chunk falls"));
    let mut shrinking = policy(PolicyKind::Shrinking);
    shrinking.shrinking.high = 100;
    assert!(refused(shrinking).starts_with("scheduling.shrinking.high = 100: chunks fall"));
    shrinking.shrinking.stages = 0;
    assert!(refused(shrinking).starts_with("scheduling.shrinking.stages = 0"));
    let mut time = policy(PolicyKind::TimeBudget);
    time.time_budget.min_chunk = 0;
    assert!(refused(time).starts_with("scheduling.time_budget.min_chunk = 0"));
    let mut reserved = policy(PolicyKind::PrefillFirst);
    reserved.reserved_decode.enabled = true;
    reserved.reserved_decode.max_prefill_tokens = 0;
    assert!(refused(reserved).starts_with("scheduling.reserved_decode.max_prefill_tokens = 0"));
}

#[test]
fn the_presets_build_the_policies_that_they_name() {
    for (preset, name, requeue) in [
        (Preset::VllmV1, "token_budget", Requeue::Front),
        (Preset::Sglang, "prefill_first", Requeue::Back),
    ] {
        let mut config = config(256, true, Scheduling::default());
        preset.apply(&mut config);
        let policy = pb_sched::build(&config).unwrap();
        assert_eq!((policy.name(), policy.requeue()), (name, requeue));
    }
}
