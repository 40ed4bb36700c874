//! Bit for bit: the blocks that arrive are those that were computed, of a real forward pass.

use std::sync::Arc;

use pb_contract::{EngineEvent, EngineRequest, Numerics, RequestId, TokenId, WallClock};
use pb_core::disagg::{KvEngine, KvOptions, KvPorts, OnFailure};
use pb_core::{Engine, EngineParts};
use pb_model::synth::{self, Kind, Size};
use pb_transfer::{Granularity, Mode};

use crate::common::{config, greedy, seeded};
use crate::pair::{Pair, RIGS, Rig, options, ports, with_ports};

const B: usize = 4;

fn parts() -> EngineParts {
    let model = synth::model(Kind::Sharp, Size::Tiny, 3).unwrap();
    EngineParts::new(Arc::new(model.weights), [7; 32])
}

fn engine_of(parts: &EngineParts, block_size: usize) -> Engine {
    let mut config = config(block_size, 256 / block_size);
    config.numerics = Numerics::Exact;
    parts.build(config).unwrap()
}

fn engine(parts: &EngineParts) -> Engine {
    engine_of(parts, B)
}

fn tokens(n: usize, salt: u32) -> Vec<TokenId> {
    (0..n as u32).map(|i| (i * 37 + 11 + salt) % 250).collect()
}

/// Images of the blocks that hold the first `tokens` tokens of a request.
fn images(engine: &Engine, id: RequestId, tokens: usize) -> Vec<Vec<u8>> {
    let table = engine.block_table(id).iter().take(tokens.div_ceil(B));
    table.map(|&block| engine.block_image(block)).collect()
}

fn kv_engine(parts: &EngineParts, ports: KvPorts, options: &KvOptions) -> KvEngine {
    with_ports(engine(parts), parts.kv_shape(), ports, options)
}

/// Tokens of a request that one engine computes alone, and the images of its prompt's blocks. The
/// prompt must fit into a step.
fn alone(parts: &EngineParts, request: &EngineRequest) -> (Vec<TokenId>, Vec<Vec<u8>>) {
    let mut engine = engine(parts);
    engine.add(request.clone()).unwrap();
    let (mut tokens, mut blocks) = (Vec::new(), Vec::new());
    while engine.has_work() {
        let events = engine.step(&WallClock).unwrap().events;
        if tokens.is_empty() {
            blocks = images(&engine, request.id, request.prompt.len());
        }
        tokens.extend(events.into_iter().filter_map(|event| match event {
            EngineEvent::Token { token, .. } => Some(token),
            _ => None,
        }));
    }
    (tokens, blocks)
}

#[test]
fn blocks_of_another_size_are_laid_out_anew() {
    let parts = parts();
    for (source, sink) in [(4, 8), (8, 4), (4, 16), (16, 4)] {
        let options = options(Mode::Pull, Granularity::Bulk, OnFailure::Fail);
        let (out, into, remote) = ports(Rig::Local);
        let shape = parts.kv_shape();
        let prefill = with_ports(engine_of(&parts, source), shape, out, &options);
        let decode = with_ports(engine_of(&parts, sink), shape, into, &options);
        let mut pair = Pair::new(prefill, decode, remote);
        // Twice: the second time with prefixes that are here, and are sent all the same.
        for round in 0..2 {
            for (at, n) in [1, 3, 4, 5, 8, 15, 16].into_iter().enumerate() {
                let request = greedy(100 * round + at as u64, &tokens(n, at as u32), 6);
                let (expected, _) = alone(&parts, &request);
                let id = request.id;
                pair.send(request);
                pair.settle();
                assert_eq!(pair.tokens[&id], expected, "{source} to {sink}, {n} tokens");
            }
        }
        let stats = pair.decode.as_ref().unwrap().stats();
        assert_eq!(stats.received_transfers, 14);
        pair.until_idle();
    }
}

#[test]
fn what_arrives_is_what_one_engine_computes() {
    let parts = parts();
    for rig in RIGS {
        for (mode, granularity) in [
            (Mode::Pull, Granularity::Bulk),
            (Mode::Push, Granularity::Chunk),
            (Mode::Pull, Granularity::Layer),
        ] {
            let options = options(mode, granularity, OnFailure::Fail);
            let (out, into, remote) = ports(rig);
            let prefill = kv_engine(&parts, out, &options);
            let decode = kv_engine(&parts, into, &options);
            let mut pair = Pair::new(prefill, decode, remote);
            for (at, n) in [1, B - 1, B, B + 1, 3 * B, 3 * B + 1]
                .into_iter()
                .enumerate()
            {
                let id = RequestId(at as u64);
                let prompt = tokens(n, at as u32);
                let mut request = greedy(id.0, &prompt, 6);
                if at % 2 == 1 {
                    request = seeded(id.0, &prompt, 6, 9);
                }
                let (expected, blocks) = alone(&parts, &request);
                pair.send(request);
                pair.settle();
                assert_eq!(
                    pair.tokens[&id], expected,
                    "{rig:?} {mode:?} {granularity:?} {n}"
                );
                // Full blocks stay findable under their names, so another request of the same
                // prompt shows them; the last one is compared by the tokens that follow from it.
                let full = n / B;
                let decode = pair.decode.as_mut().unwrap().engine_mut();
                let hold = decode.pin_prefix(&prompt, None, None).unwrap();
                assert_eq!(hold.is_some(), full > 0);
                if let Some(hold) = hold {
                    let table = decode.held_table(hold).to_vec();
                    assert_eq!(table.len(), full);
                    for (block, expected) in table.iter().zip(&blocks) {
                        assert!(decode.block_image(*block) == *expected, "{rig:?} {n}");
                    }
                    assert!(decode.unpin(hold));
                }
            }
            pair.until_idle();
        }
    }
}
