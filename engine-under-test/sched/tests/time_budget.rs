//! The time budget holds on a machine whose step times follow a formula, once they are known.

mod common;

use common::{Counting, Sim, config};
use pb_contract::{EngineConfig, PolicyKind, Scheduling, Stream, TimeBudgetOptions};
use pb_sched::laws::Laws;
use pb_sched::{Observation, TimeBudget};

const BUDGET_NS: u64 = 20_000_000;
const MIN_CHUNK: usize = 16;
/// Steps with prompts before the model is used.
const WARM_UP: usize = 6;

/// 1 ms, 10 us a prompt token, 3 ns a pair, 100 us a decode, 10 ns a decode key.
fn duration_ns(step: &Observation) -> u64 {
    let prompts = step.prefill.iter().map(|&(tokens, context)| {
        10_000 * tokens + 3 * (tokens * context + tokens * (tokens + 1) / 2)
    });
    let decodes = 100_000 * step.decode_seqs + 10 * step.decode_context;
    (1_000_000 + prompts.sum::<usize>() + decodes) as u64
}

fn sim() -> Sim<Counting, TimeBudget> {
    let scheduling = Scheduling {
        policy: PolicyKind::TimeBudget,
        time_budget: TimeBudgetOptions {
            step_budget_ns: BUDGET_NS,
            min_chunk: MIN_CHUNK,
        },
        ..Scheduling::default()
    };
    let config = EngineConfig {
        max_num_seqs: 512,
        max_model_len: 1 << 20,
        ..config(8192, true, scheduling)
    };
    let policy = TimeBudget::from_config(&config).unwrap();
    let memory = Counting::unlimited();
    let mut sim = Sim::of(policy, Laws::of(&config), config.max_model_len, memory);
    sim.duration_ns = duration_ns;
    sim
}

/// Learns from a few prompts of different lengths beside a few decodes.
fn trained() -> Sim<Counting, TimeBudget> {
    let mut sim = sim();
    for id in 0..20 {
        sim.add(id, 200 + 310 * id as usize, 4);
    }
    sim.drain(2000);
    sim
}

#[test]
fn the_first_steps_double_from_the_smallest_chunk() {
    let mut sim = sim();
    sim.add(0, 100_000, 1);
    let chunks: Vec<_> = (0..WARM_UP).map(|_| sim.step().total_tokens()).collect();
    assert_eq!(chunks, [16, 32, 64, 128, 256, 512]);
}

#[test]
fn predicted_times_stay_within_the_budget_but_for_one_smallest_chunk() {
    let mut sim = trained();
    let mut rng = Stream::new(1, "time budget");
    let mut steps = 0;
    for id in 100..160 {
        sim.add(id, 1 + rng.below(6000) as usize, 1 + rng.below(60) as usize);
    }
    while !(sim.running.is_empty() && sim.waiting.is_empty()) {
        let policy = sim.policy.clone();
        sim.step();
        let did = &sim.last;
        let predicted = policy
            .predict_ns(&did.prefill, did.decode_seqs, did.decode_context)
            .unwrap();
        let smallest = match did.prefill[..] {
            [] => true,
            [(tokens, _)] => tokens <= MIN_CHUNK,
            _ => false,
        };
        assert!(
            predicted <= BUDGET_NS as f64 || smallest,
            "{predicted}: {did:?}"
        );
        // The machine is as the model supposes, so the prediction is the truth.
        let truth = did.duration_ns as f64;
        assert!(
            (predicted / truth - 1.0).abs() < 0.01,
            "{predicted} of {truth}"
        );
        steps += 1;
    }
    assert!(steps > 100, "{steps}");
}

#[test]
fn chunks_shrink_with_the_context_and_fill_the_time() {
    let mut sim = trained();
    sim.add(900, 60_000, 1);
    let chunks = common::chunks_of(&mut sim, 900);
    assert_eq!(chunks.iter().sum::<usize>(), 60_000);
    let body = &chunks[..chunks.len() - 1];
    assert!(body.windows(2).all(|pair| pair[0] >= pair[1]), "{chunks:?}");
    assert!(body[0] > 4 * body[body.len() - 1], "{chunks:?}");
    // By hand: 10 us * x + 3 ns * x^2 / 2 = 19 ms gives x = 1554, one in a hundred either way.
    assert!((1539..1570).contains(&body[0]), "{}", body[0]);
}

#[test]
fn a_prompt_goes_on_beside_decodes_that_take_all_the_time() {
    let mut sim = trained();
    // 250 decodes take 26 ms of the 20.
    sim.add_decodes(1000..1250, 500);
    sim.add(900, 160, 1);
    let chunks = common::chunks_of(&mut sim, 900);
    assert_eq!(chunks, [MIN_CHUNK; 10]);
}

#[test]
fn times_alone_decide_so_equal_times_give_equal_schedules() {
    let log = || {
        let mut sim = sim();
        (0..30).for_each(|id| sim.add(id, 50 + 97 * id as usize, 9));
        (0..200)
            .map(|_| format!("{:?}", sim.step()))
            .collect::<Vec<_>>()
    };
    assert_eq!(log(), log());
}
