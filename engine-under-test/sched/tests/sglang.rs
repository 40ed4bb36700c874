//! SGLang's admission and retraction, worked by hand. Blocks (pages) have four tokens.

mod common;

use common::{Counting, Req, Sim, config, rows};
use pb_contract::{PolicyKind, RequestId, ReservedDecodeOptions, Scheduling};
use pb_sched::{Allocator, Policy, Requeue};

type BoxedSim = Sim<Counting, Box<dyn Policy>>;

fn sim(budget: usize, blocks: usize, options: ReservedDecodeOptions) -> BoxedSim {
    let scheduling = Scheduling {
        policy: PolicyKind::PrefillFirst,
        reserve_full_prompt: false,
        reserved_decode: ReservedDecodeOptions {
            enabled: true,
            ..options
        },
        ..Scheduling::default()
    };
    let config = config(budget, true, scheduling);
    Sim::build(&config, Counting::new(4, blocks))
}

/// A request that has computed all but its last output.
fn decoding(sim: &mut BoxedSim, id: u64, prompt: usize, outputs: usize) {
    let mut req = Req::new(id, prompt, 100);
    req.output = vec![0; outputs];
    req.computed = req.len() - 1;
    assert!(sim.memory.allocate(req.id, 0, 0, req.computed));
    sim.running.push(req);
}

#[test]
fn admission_reserves_for_the_output_of_running_requests() {
    let admitted_second = |conservativeness| {
        let options = ReservedDecodeOptions {
            conservativeness,
            ..ReservedDecodeOptions::default()
        };
        let mut sim = sim(64, 16, options);
        (0..3).for_each(|id| sim.add(id, 8, 20));
        // 64 tokens: request 0 is alone; request 1 needs 8 + 20 < 56 - 20; request 2 would need
        // 28 < 48 - 40.
        assert_eq!(rows(&sim.step()), [(0, 0, 8), (1, 0, 8)]);
        rows(&sim.step())
    };
    // 28 < 48 - 0.7 * (19 + 19) does not hold, so the decodes run.
    assert_eq!(admitted_second(1.0), [(0, 8, 1), (1, 8, 1)]);
    // 28 < 48 - 0.07 * 38 does.
    assert_eq!(admitted_second(0.1), [(2, 0, 8)]);
}

#[test]
fn the_output_that_counts_is_clipped() {
    let first_step = |clip_max_new_tokens| {
        let options = ReservedDecodeOptions {
            clip_max_new_tokens,
            ..ReservedDecodeOptions::default()
        };
        let mut sim = sim(64, 16, options);
        (0..3).for_each(|id| sim.add(id, 8, 50));
        rows(&sim.step()).len()
    };
    // 8 + 50 < 56 - 50 does not hold; 8 + 5 < 56 - 5 and 8 + 5 < 48 - 10 do.
    assert_eq!(first_step(4096), 1);
    assert_eq!(first_step(5), 3);
}

#[test]
fn one_chunked_request_at_a_time_goes_on_first_and_charges_are_whole_pages() {
    let mut sim = sim(24, 1 << 20, ReservedDecodeOptions::default());
    sim.add(0, 50, 3);
    sim.add(1, 6, 3);
    sim.add(2, 30, 3);
    assert_eq!(rows(&sim.step()), [(0, 0, 24)]);
    assert_eq!(rows(&sim.step()), [(0, 24, 24)]);
    // Two tokens are charged as four, six as eight: 24 - 4 - 8 = 12 are left for request 2.
    assert_eq!(rows(&sim.step()), [(0, 48, 2), (1, 0, 6), (2, 0, 12)]);
    // The chunked request before any decode.
    assert_eq!(rows(&sim.step()), [(2, 12, 18)]);
    assert_eq!(rows(&sim.step()), [(0, 50, 1), (1, 6, 1), (2, 30, 1)]);
}

#[test]
fn prompt_tokens_of_a_step_are_limited_but_the_first_prompt_always_goes() {
    let options = ReservedDecodeOptions {
        max_prefill_tokens: 16,
        ..ReservedDecodeOptions::default()
    };
    let mut sim = sim(64, 1 << 20, options);
    sim.add(0, 20, 3);
    (1..5).for_each(|id| sim.add(id, 4, 3));
    assert_eq!(rows(&sim.step()), [(0, 0, 20)]);
    // Three pages below 16 tokens; the fourth would reach the limit.
    assert_eq!(rows(&sim.step()), [(1, 0, 4), (2, 0, 4), (3, 0, 4)]);
}

#[test]
fn the_last_chunk_reserves_the_output_in_its_step() {
    let second_step = |max_tokens| {
        let mut sim = sim(16, 10, ReservedDecodeOptions::default());
        sim.add(0, 20, max_tokens);
        sim.add(1, 4, 4);
        // Nobody is admitted beside a chunk that is not the last.
        assert_eq!(rows(&sim.step()), [(0, 0, 16)]);
        rows(&sim.step())
    };
    // Of 40 tokens 20 are free. 4 + 4 < 20 - 20 does not hold, 4 + 4 < 20 - 4 does.
    assert_eq!(second_step(20), [(0, 16, 4)]);
    assert_eq!(second_step(4), [(0, 16, 4), (1, 0, 4)]);
}

#[test]
fn retraction_takes_the_fewest_outputs_then_the_longest_prompt() {
    let mut sim = sim(64, 7, ReservedDecodeOptions::default());
    decoding(&mut sim, 0, 8, 5);
    decoding(&mut sim, 1, 4, 1);
    decoding(&mut sim, 2, 12, 1);
    sim.add(3, 4, 4);
    assert_eq!(sim.memory.free, 0);
    let plan = sim.step();
    assert_eq!(plan.preempted, [RequestId(2)]);
    assert_eq!(rows(&plan), [(0, 12, 1), (1, 4, 1)]);
    // To the back of the queue.
    assert_eq!(sim.policy.requeue(), Requeue::Back);
    let queue: Vec<_> = sim.waiting.iter().map(|req| req.id.0).collect();
    assert_eq!(queue, [3, 2]);
}

#[test]
fn more_outputs_protect_even_the_last_of_the_list() {
    let mut sim = sim(64, 4, ReservedDecodeOptions::default());
    decoding(&mut sim, 0, 7, 2);
    decoding(&mut sim, 1, 6, 3);
    let plan = sim.step();
    assert_eq!(
        (plan.preempted, rows(&sim.step())),
        (vec![RequestId(0)], vec![(1, 9, 1)])
    );
}

#[test]
fn with_one_decode_left_the_partial_prompt_gives_way() {
    let mut sim = sim(64, 3, ReservedDecodeOptions::default());
    let mut partial = Req::new(0, 40, 4);
    partial.computed = 8;
    assert!(sim.memory.allocate(partial.id, 0, 0, 8));
    sim.running.push(partial);
    decoding(&mut sim, 1, 4, 1);
    let plan = sim.step();
    assert_eq!(
        (rows(&plan), plan.preempted),
        (vec![(1, 4, 1)], vec![RequestId(0)])
    );
}

#[test]
fn a_request_that_needs_the_whole_pool_is_admitted_alone() {
    // 8 + 32 tokens are the whole pool of 40, which "below the free tokens" would refuse for ever.
    let mut sim = sim(64, 10, ReservedDecodeOptions::default());
    sim.add(0, 8, 32);
    assert_eq!(rows(&sim.step()), [(0, 0, 8)]);
    sim.drain(40);
    assert_eq!(sim.preemptions, 0);
}
