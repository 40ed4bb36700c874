//! Each planted planning fault is caught by the laws, under every policy that it can show in.

mod common;

use common::arms::arms;
use common::{Counting, Sim, config};
use pb_contract::{EngineConfig, Fault};

/// The first broken law of a load that keeps the step full, and who waits at its end.
fn verdict(config: &EngineConfig) -> Result<(), String> {
    let fault = config.fault;
    let mut sim = Sim::build(config, Counting::unlimited());
    // Decodes, a partial prompt and a queue, so that each fault has something to spoil.
    sim.add_decodes(0..6, 60);
    for id in 10..30 {
        sim.add(id, 100, 3);
    }
    for _ in 0..3000 {
        sim.try_step(&|_| 0)?;
    }
    assert!(
        fault != Fault::None || sim.waiting.is_empty(),
        "a clean load ends: {} wait",
        sim.waiting.len()
    );
    Ok(())
}

/// Arms in which a fault breaks a law with these words.
fn caught(fault: Fault, law: &str) -> Vec<&'static str> {
    let mut caught = Vec::new();
    for (name, chunked, scheduling) in arms() {
        let config = EngineConfig {
            max_num_seqs: 12,
            fault,
            ..config(if chunked { 64 } else { 256 }, chunked, scheduling)
        };
        match verdict(&config) {
            Ok(()) => {}
            Err(broken) if broken.starts_with(law) => caught.push(name),
            Err(broken) => panic!("{name}, {fault:?}: another law broke: {broken}"),
        }
    }
    caught
}

#[test]
fn the_clean_policies_pass() {
    assert!(caught(Fault::None, "nothing is expected").is_empty());
}

#[test]
fn chunk_beyond_budget_is_caught() {
    let caught = caught(Fault::ChunkBeyondBudget, "budget");
    for name in [
        "token_budget",
        "token_budget, list order",
        "prefill_first, cut",
        "prefill_first, mixed",
    ] {
        assert!(caught.contains(&name), "{name}: {caught:?}");
    }
}

#[test]
fn starvation_is_caught() {
    let caught = caught(Fault::Starvation, "order");
    assert_eq!(caught.len(), arms().len(), "{caught:?}");
}

#[test]
fn decode_skipped_is_caught() {
    let caught = caught(Fault::DecodeSkipped, "decodes");
    for name in [
        "decode_priority_monolithic",
        "prefill_first, mixed",
        "sglang, mixed",
        "token_budget",
        "token_budget, whole",
        "adaptive_load",
        "shrinking",
        "time_budget",
    ] {
        assert!(caught.contains(&name), "{name}: {caught:?}");
    }
}
