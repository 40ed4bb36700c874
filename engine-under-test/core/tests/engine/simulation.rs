//! The engine in virtual time, without a model.

use std::sync::Arc;

use crate::common::*;
use pb_contract::{
    Clock, EngineConfig, EngineRequest, Nanos, Preemption, RequestId, Stream, VirtualClock,
};
use pb_core::sim::simulated_token;
use pb_core::{CostModel, Engine, EngineSpec, Script, ScriptedExecutor, SimExecutor};

const SIM_VOCAB: usize = 32_000;

fn simulated(config: EngineConfig, clock: &Arc<VirtualClock>) -> Engine {
    let cost = CostModel::builtin("llama31-8b-rtxpro6000").unwrap();
    let executor = SimExecutor::new(cost, Arc::clone(clock), SIM_VOCAB);
    let spec = EngineSpec::simulated(SIM_VOCAB, 1 << 20);
    Engine::new(config, spec, Box::new(executor)).unwrap()
}

/// Arrivals with shared prefixes under memory pressure.
fn arrivals(seed: u64, n: u64) -> Vec<EngineRequest> {
    let mut stream = Stream::new(seed, "arrivals");
    let mut at = Nanos::ZERO;
    let make = |id| {
        at += Nanos(stream.exponential(40e6) as u64);
        let mut tokens: Vec<u32> = (0..512).collect();
        tokens.truncate(stream.below(513) as usize);
        let own = 1 + stream.below(900) as usize;
        tokens.extend((0..own).map(|_| stream.below(SIM_VOCAB as u64) as u32));
        let mut request = greedy(id, &tokens, 1 + stream.below(300) as u32);
        request.arrival = at;
        request
    };
    (0..n).map(make).collect()
}

/// Serves `requests` at their arrivals and writes one line a step.
fn step_log(mut config: EngineConfig, requests: &[EngineRequest]) -> String {
    config.max_model_len = 4096;
    config.max_batched_tokens = 512;
    config.max_num_seqs = 64;
    let clock = Arc::new(VirtualClock::new());
    let mut engine = simulated(config, &clock);
    let mut log = String::new();
    let mut arriving = requests.iter().peekable();
    while engine.has_work() || arriving.peek().is_some() {
        if let Some(next) = arriving.peek().filter(|_| !engine.has_work()) {
            clock.advance_to(next.arrival.max(clock.now()));
        }
        while let Some(request) = arriving.next_if(|r| r.arrival <= clock.now()) {
            engine.add(request.clone()).unwrap();
        }
        let step = engine.step(&*clock).unwrap();
        engine.check().unwrap();
        log += &format!("{step:?}\n");
    }
    assert_idle(&engine);
    log
}

/// Row 38: the same seed and load give the same log, byte for byte; another load does not.
#[test]
fn the_step_log_repeats_byte_for_byte() {
    let mut config = config(16, 400);
    config.scheduling.preemption = Preemption::Swap;
    config.scheduling.swap_blocks = 100;
    let first = step_log(config.clone(), &arrivals(1, 60));
    assert_eq!(first, step_log(config.clone(), &arrivals(1, 60)));
    assert_ne!(first, step_log(config, &arrivals(2, 60)));
    assert!(first.lines().count() > 100);
}

#[test]
fn virtual_time_is_the_cost_of_the_steps() {
    let clock = Arc::new(VirtualClock::new());
    let mut engine = simulated(config(16, 64), &clock);
    engine.add(greedy(0, &[7; 20], 3)).unwrap();
    let mut outcome = Outcome::default();
    let cost = CostModel::builtin("llama31-8b-rtxpro6000").unwrap();
    let (p, d) = (cost.prefill, cost.decode);
    // 16 tokens after none, 4 after 16, then decodes with 21 and 22 tokens of context.
    let want = [
        p.step_ns + 16.0 * p.token_ns + 136.0 * p.pair_ns,
        p.step_ns + 4.0 * p.token_ns + 74.0 * p.pair_ns,
        d.step_ns + 21.0 * d.context_token_ns + d.sequence_ns,
        d.step_ns + 22.0 * d.context_token_ns + d.sequence_ns,
    ];
    for (i, ns) in want.iter().enumerate() {
        step_with(&mut engine, &mut outcome, &*clock);
        let row = &outcome.steps[i].row;
        assert!((row.duration_ns.0 as f64 - ns).abs() < 3.0, "step {i}");
        assert_eq!(row.schedule_ns, Nanos::ZERO);
    }
    assert!(!engine.has_work());
    let total: f64 = want.iter().sum();
    assert!((clock.now().0 as f64 - total).abs() < 10.0);
}

#[test]
fn simulated_tokens_do_not_depend_on_the_schedule() {
    let clock = Arc::new(VirtualClock::new());
    for num_blocks in [12, 64] {
        let mut engine = simulated(config(4, num_blocks), &clock);
        let requests: Vec<_> = (0..3)
            .map(|i| greedy(i, &prompt(&format!("sim {i}"), 10), 30))
            .collect();
        let outcome = run(&mut engine, &requests);
        for request in &requests {
            let rule = |position| simulated_token(request.id, position, SIM_VOCAB);
            let want: Vec<u32> = (10..40).map(rule).collect();
            assert_eq!(outcome.tokens[&request.id], want);
        }
        assert_eq!(engine.counters().preemptions > 0, num_blocks == 12);
    }
}

#[test]
fn a_script_decides_the_tokens() {
    let script = Script::default();
    let executor = ScriptedExecutor::new(script.clone(), 100);
    let spec = EngineSpec::simulated(100, MAX_LEN);
    let mut engine = Engine::new(config(4, 64), spec, Box::new(executor)).unwrap();
    script.set(RequestId(5), 6, 42);
    script.set(RequestId(5), 8, 43);
    let outcome = run(&mut engine, &[greedy(5, &prompt("script", 6), 3)]);
    let rule = simulated_token(RequestId(5), 7, 100);
    assert_eq!(outcome.tokens[&RequestId(5)], [42, rule, 43]);
}
