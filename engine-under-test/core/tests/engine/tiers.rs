//! Blocks that leave the pool for host memory or disk and come back on a hit.

use crate::common::*;
use pb_contract::{EngineConfig, EngineRequest, Fault, Preemption, PrefixCacheKind, RequestId};

/// A pool of 16 blocks over a host tier that holds everything.
fn over_host(cache: PrefixCacheKind) -> EngineConfig {
    let mut config = EngineConfig {
        prefix_cache: cache,
        ..config(4, 16)
    };
    config.tiers.host_bytes = 1 << 20;
    config
}

/// Requests with prompts of 40 tokens, of which two do not fit the pool together.
fn wide(first_id: u64, labels: &[&str]) -> Vec<EngineRequest> {
    let one = |(i, label): (usize, &&str)| seeded(first_id + i as u64, &prompt(label, 41), 6, 9);
    labels.iter().enumerate().map(one).collect()
}

#[test]
fn evicted_blocks_come_back_from_host_memory() {
    for cache in [PrefixCacheKind::HashChain, PrefixCacheKind::Radix] {
        let mut engine = toy(over_host(cache));
        for request in wide(0, &["x", "y", "z"]) {
            let outcome = run(&mut engine, std::slice::from_ref(&request));
            assert_expected(&outcome, std::slice::from_ref(&request));
        }
        assert!(engine.counters().host_blocks > 0);
        let before = engine.counters();
        // "x" has left the pool as a whole or in part; all its full blocks are somewhere.
        let again = &wide(10, &["x"])[0];
        let outcome = run(&mut engine, std::slice::from_ref(again));
        assert_expected(&outcome, std::slice::from_ref(again));
        assert_eq!(outcome.cached[&RequestId(10)], 40, "{cache:?}");
        let c = engine.counters();
        // Report 32 (vLLM #44607): what came from a tier can be told from what was in the pool.
        assert!(c.host_hit_tokens > 0);
        assert!(c.host_hit_tokens <= c.hit_tokens - before.hit_tokens);
        let row = &outcome.steps[0].row;
        assert_eq!(row.hit_tokens, 40);
        assert_eq!(row.host_hit_tokens as u64, c.host_hit_tokens);
        assert_eq!((row.disk_hit_tokens, row.remote_hit_tokens), (0, 0));
        assert_idle(&engine);
        assert!(engine.reset_prefix_cache());
        assert_eq!(engine.counters().host_blocks, 0);
    }
}

#[test]
fn disk_outlives_the_engine_and_other_models_find_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let config = |identity: u8| {
        let mut config = over_host(PrefixCacheKind::HashChain);
        config.tiers.host_bytes = 0;
        config.tiers.disk_dir = Some(dir.path().to_str().unwrap().to_owned());
        config.tiers.disk_bytes = 1 << 20;
        let spec = pb_core::EngineSpec {
            identity: [identity; 32],
            ..spec()
        };
        (config, spec)
    };
    let start = |identity: u8| {
        let (config, spec) = config(identity);
        let executor = Box::new(pb_core::ToyExecutor::new(VOCAB));
        pb_core::Engine::new(config, spec, executor).unwrap()
    };
    let mut engine = start(1);
    run(&mut engine, &wide(0, &["x"]));
    run(&mut engine, &wide(10, &["y", "z"]));
    assert!(engine.counters().disk_blocks > 0);
    drop(engine);
    let request = &wide(2, &["x"])[0];
    let mut other = start(2);
    let outcome = run(&mut other, std::slice::from_ref(request));
    assert_eq!(outcome.cached[&RequestId(2)], 0, "another model's blocks");
    assert_expected(&outcome, std::slice::from_ref(request));
    drop(other);
    let mut same = start(1);
    let outcome = run(&mut same, std::slice::from_ref(request));
    assert!(outcome.cached[&RequestId(2)] > 0);
    assert_eq!(
        same.counters().disk_hit_tokens,
        outcome.cached[&RequestId(2)] as u64
    );
    assert_expected(&outcome, std::slice::from_ref(request));
}

/// A file that was damaged on disk costs a hit and never a wrong token.
#[test]
fn a_damaged_block_is_computed_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = over_host(PrefixCacheKind::HashChain);
    config.tiers.host_bytes = 0;
    config.tiers.disk_dir = Some(dir.path().to_str().unwrap().to_owned());
    config.tiers.disk_bytes = 1 << 20;
    let mut engine = toy(config);
    for request in wide(0, &["x", "y"]) {
        run(&mut engine, &[request]);
    }
    let mut damaged = 0;
    let mut folders = vec![dir.path().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let length = path.metadata().unwrap().len();
            if path.is_dir() {
                folders.push(path);
            } else if length > 32 {
                // Large enough to hold a block's 32 bytes: the last byte is data or checksum.
                let mut bytes = std::fs::read(&path).unwrap();
                let last = bytes.len() - 1;
                bytes[last] ^= 1;
                std::fs::write(&path, bytes).unwrap();
                damaged += 1;
            }
        }
    }
    assert!(damaged > 0);
    let request = &wide(10, &["x"])[0];
    let outcome = run(&mut engine, std::slice::from_ref(request));
    assert_expected(&outcome, std::slice::from_ref(request));
    assert_eq!(engine.counters().disk_hit_tokens, 0);
    assert!(engine.counters().failed_loads > 0);
    assert_idle(&engine);
}

/// Tiers, swapping and preemption at once.
#[test]
fn tiers_and_swap_under_pressure_change_no_token() {
    for cache in [PrefixCacheKind::HashChain, PrefixCacheKind::Radix] {
        let mut config = over_host(cache);
        config.scheduling.preemption = Preemption::Swap;
        config.scheduling.swap_blocks = 9;
        let mut engine = toy(config);
        let mut requests = Vec::new();
        for round in 0..3 {
            for i in 0..4_u64 {
                let text = prompt(&format!("mixed {i}"), 13 + 4 * i as usize);
                requests.push(seeded(10 * round + i, &text, 28, round));
            }
        }
        let outcome = run(&mut engine, &requests);
        assert_expected(&outcome, &requests);
        let c = engine.counters();
        assert!(c.preemptions > 0 && c.swapped_in_tokens > 0);
        assert_idle(&engine);
    }
}

/// Report 9 (vLLM #44250): a tier that leaves adapter and salt out of its key gives one adapter's
/// blocks to another, and comparing tokens finds it.
#[test]
fn a_tier_key_without_scope_is_found() {
    let wrong = |fault: Fault| {
        let mut config = over_host(PrefixCacheKind::HashChain);
        config.fault = fault;
        let mut engine = toy(config);
        run(&mut engine, &wide(0, &["x"]));
        // Two more, so that all of the first is evicted.
        run(&mut engine, &wide(10, &["y", "z"]));
        let mut other = wide(2, &["x"]).remove(0);
        other.adapter = Some("a".to_owned());
        let outcome = run(&mut engine, std::slice::from_ref(&other));
        outcome.tokens[&other.id] != expected(&other)
    };
    assert!(!wrong(Fault::None));
    assert!(wrong(Fault::TierKeyWithoutScope));
}

/// A flipped bit that no checksum reports gives other tokens.
#[test]
fn a_silently_corrupted_block_is_found() {
    let wrong = |fault: Fault| {
        let mut config = over_host(PrefixCacheKind::HashChain);
        config.fault = fault;
        let mut engine = toy(config);
        run(&mut engine, &wide(0, &["x"]));
        run(&mut engine, &wide(1, &["y"]));
        let again = &wide(2, &["x"])[0];
        let outcome = run(&mut engine, std::slice::from_ref(again));
        assert!(engine.counters().host_hit_tokens > 0);
        outcome.tokens[&again.id] != expected(again)
    };
    assert!(!wrong(Fault::None));
    assert!(wrong(Fault::TierCorruption));
}

/// A swapped request that comes back without its last block gives other tokens.
#[test]
fn a_lost_swapped_block_is_found() {
    let wrong = |fault: Fault| {
        let mut config = config(4, 12);
        config.prefix_cache = PrefixCacheKind::None;
        config.scheduling.preemption = Preemption::Swap;
        config.scheduling.swap_blocks = 16;
        config.fault = fault;
        let mut engine = toy(config);
        let requests: Vec<_> = (0..2)
            .map(|i| greedy(i, &prompt(&format!("lost {i}"), 12), 30))
            .collect();
        let outcome = run(&mut engine, &requests);
        assert!(engine.counters().swapped_in_tokens > 0);
        requests
            .iter()
            .any(|r| outcome.tokens[&r.id] != expected(r))
    };
    assert!(!wrong(Fault::None));
    assert!(wrong(Fault::SwapLosesBlock));
}
