//! Several sequences of one prompt: computed once, forked, and gone without a trace (row 22).

use crate::common::*;
use pb_contract::{EngineConfig, EngineRequest, Preemption, PrefixCacheKind, RequestId};
use pb_core::{AdmitError, Engine};

fn caches() -> [PrefixCacheKind; 4] {
    [
        PrefixCacheKind::None,
        PrefixCacheKind::HashChain,
        PrefixCacheKind::Radix,
        PrefixCacheKind::Oracle,
    ]
}

/// `n` requests over one prompt, seeded apart, all forks of the first.
fn family(n: u64, prompt: &[u32], max_tokens: u32) -> Vec<EngineRequest> {
    (0..n)
        .map(|i| EngineRequest {
            fork_of: (i > 0).then_some(RequestId(0)),
            ..seeded(i, prompt, max_tokens, 40 + i)
        })
        .collect()
}

fn engine_with(cache: PrefixCacheKind, num_blocks: usize) -> Engine {
    toy(EngineConfig {
        prefix_cache: cache,
        ..config(4, num_blocks)
    })
}

#[test]
fn the_prompt_is_computed_once_and_its_blocks_are_shared() {
    for cache in caches() {
        // Ends within a block, at its border, and one token after it.
        for n in [22, 24, 25] {
            let requests = family(4, &prompt("family", n), 9);
            let mut engine = engine_with(cache, 64);
            for request in &requests {
                engine.add(request.clone()).unwrap();
            }
            let mut outcome = Outcome::default();
            while outcome.tokens.is_empty() {
                step(&mut engine, &mut outcome);
            }
            assert_eq!(outcome.tokens.len(), 4, "all start in one step");
            let tables: Vec<_> = requests.iter().map(|r| engine.block_table(r.id)).collect();
            assert!(tables.iter().all(|table| *table == tables[0]));
            assert!(tables[0].iter().all(|&b| engine.kv().ref_count(b) == 4));
            // The whole blocks stay shared; a partly filled last one is copied for all but one.
            step(&mut engine, &mut outcome);
            let tables: Vec<_> = requests.iter().map(|r| engine.block_table(r.id)).collect();
            for index in 0..n.div_ceil(4) {
                let mut blocks: Vec<_> = tables.iter().map(|table| table[index]).collect();
                blocks.sort_unstable();
                blocks.dedup();
                let distinct = if index < n / 4 { 1 } else { 4 };
                assert_eq!(
                    blocks.len(),
                    distinct,
                    "{cache:?} {n} tokens, block {index}"
                );
            }
            drain(&mut engine, &mut outcome, 100);
            assert_expected(&outcome, &requests);
            let prefill: usize = outcome.steps.iter().map(|s| s.row.prefill_tokens).sum();
            assert_eq!(prefill, n, "{cache:?}");
            assert_idle(&engine);
        }
    }
}

/// Report 25 (vLLM #5578): sequences of one prompt under memory pressure end, swapped or not.
#[test]
fn families_under_pressure_end() {
    for cache in caches() {
        for preemption in [Preemption::Recompute, Preemption::Swap] {
            let mut config = config(4, 16);
            config.prefix_cache = cache;
            config.scheduling.preemption = preemption;
            config.scheduling.swap_blocks = 12;
            let mut engine = toy(config);
            let mut requests = family(4, &prompt("family", 14), 30);
            for (i, request) in family(4, &prompt("other", 10), 25).into_iter().enumerate() {
                let id = 10 + i as u64;
                requests.push(EngineRequest {
                    id: RequestId(id),
                    fork_of: (i > 0).then_some(RequestId(10)),
                    ..request
                });
            }
            let outcome = run(&mut engine, &requests);
            assert!(engine.counters().preemptions > 0);
            assert_expected(&outcome, &requests);
            assert_idle(&engine);
        }
    }
}

#[test]
fn a_leader_that_ends_at_once_leaves_its_followers() {
    for cache in caches() {
        let mut requests = family(3, &prompt("short", 9), 6);
        requests[0].sampling.max_tokens = 1;
        let mut engine = engine_with(cache, 32);
        let outcome = run(&mut engine, &requests);
        assert_expected(&outcome, &requests);
        assert_idle(&engine);
    }
}

#[test]
fn a_follower_inherits_from_an_aborted_leader() {
    for cache in caches() {
        // Before its first step, in the middle of its prompt, and after the fork.
        for steps in [0, 1, 4] {
            let requests = family(3, &prompt("heirs", 40), 6);
            let mut engine = engine_with(cache, 64);
            for request in &requests {
                engine.add(request.clone()).unwrap();
            }
            let mut outcome = Outcome::default();
            (0..steps).for_each(|_| step(&mut engine, &mut outcome));
            assert!(engine.abort(RequestId(0)));
            engine.check().unwrap();
            drain(&mut engine, &mut outcome, 100);
            assert_expected(&outcome, &requests[1..]);
            assert_idle(&engine);
        }
    }
}

#[test]
fn a_follower_may_leave_while_it_waits_or_runs() {
    for cache in caches() {
        for steps in [0, 1, 4] {
            let requests = family(3, &prompt("leaves", 40), 6);
            let mut engine = engine_with(cache, 64);
            for request in &requests {
                engine.add(request.clone()).unwrap();
            }
            let mut outcome = Outcome::default();
            (0..steps).for_each(|_| step(&mut engine, &mut outcome));
            assert!(engine.abort(RequestId(1)));
            engine.check().unwrap();
            drain(&mut engine, &mut outcome, 100);
            assert_expected(&outcome, &[requests[0].clone(), requests[2].clone()]);
            assert_idle(&engine);
        }
    }
}

#[test]
fn everyone_may_leave() {
    let requests = family(3, &prompt("all", 40), 6);
    let mut engine = engine_with(PrefixCacheKind::HashChain, 64);
    for request in &requests {
        engine.add(request.clone()).unwrap();
    }
    let mut outcome = Outcome::default();
    step(&mut engine, &mut outcome);
    for request in &requests {
        assert!(engine.abort(request.id));
        engine.check().unwrap();
    }
    assert!(!engine.has_work());
    assert_idle(&engine);
}

#[test]
fn forks_are_checked() {
    let mut engine = toy(EngineConfig {
        max_num_seqs: 3,
        ..config(4, 64)
    });
    let requests = family(4, &prompt("checked", 12), 6);
    for request in &requests[..3] {
        engine.add(request.clone()).unwrap();
    }
    assert_eq!(
        engine.add(requests[3].clone()).unwrap_err(),
        AdmitError::TooManySequences {
            sequences: 4,
            max_num_seqs: 3
        }
    );
    let mut other = requests[3].clone();
    other.prompt[3] ^= 1;
    assert!(matches!(
        engine.add(other).unwrap_err(),
        AdmitError::ForkMismatch { .. }
    ));
    let mut outcome = Outcome::default();
    step(&mut engine, &mut outcome);
    // Too late to fork: it computes its prompt itself, as far as the cache does not have it.
    engine.add(requests[3].clone()).unwrap();
    drain(&mut engine, &mut outcome, 100);
    assert_expected(&outcome, &requests);
    assert_idle(&engine);
}
