//! Bit for bit: the blocks that arrive are those that were computed, of a real forward pass.

use std::sync::Arc;

use pb_contract::{
    EngineEvent, EngineRequest, Numerics, PrefixCacheKind, RequestId, TokenId, WallClock,
};
use pb_core::disagg::{KvEngine, KvOptions, KvPorts, KvTask, OnFailure};
use pb_core::{Engine, EngineParts, build_executor};
use pb_model::synth::{self, Kind, Size};
use pb_transfer::{Granularity, Mode};

use crate::common::{config, greedy, seeded};
use crate::hooked::{Hook, Hooked};
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

/// Tokens of a request that one engine computes alone, and the images of its prompt's blocks.
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
                let arrived = arrived(&mut pair, &prompt);
                assert!(arrived == blocks[..n / B], "{rig:?} {n}");
            }
            pair.until_idle();
        }
    }
}

/// Images of the full blocks of a prompt at the decode engine. They stay findable under their
/// names, so another request of the same prompt shows them; what is in the last one shows in the
/// tokens that follow from it.
fn arrived(pair: &mut Pair, prompt: &[TokenId]) -> Vec<Vec<u8>> {
    let decode = pair.decode.as_mut().unwrap().engine_mut();
    let hold = decode.pin_prefix(prompt, None, None).unwrap();
    let table = hold.map_or(Vec::new(), |hold| decode.held_table(hold).to_vec());
    let images = table
        .iter()
        .map(|&block| decode.block_image(block))
        .collect();
    hold.map(|hold| decode.unpin(hold));
    images
}

/// A pair that streams by layers. The prefill engine takes several steps for a prompt and has
/// `blocks` blocks and perhaps a hook.
fn streaming_pair(parts: &EngineParts, rig: Rig, blocks: usize, hook: Option<Hook>) -> Pair {
    let options = KvOptions {
        stream_min_tokens: Some(0),
        ..options(Mode::Pull, Granularity::Layer, OnFailure::Fail)
    };
    let mut config = config(B, blocks);
    config.max_batched_tokens = 5;
    config.prefix_cache = PrefixCacheKind::None;
    // Admitted without room for all of it: a prompt may be preempted in between.
    config.scheduling.reserve_full_prompt = false;
    let mut executor = build_executor(parts, &config).unwrap();
    if let Some(hook) = hook {
        executor = Box::new(Hooked::new(executor, hook));
    }
    let engine = Engine::new(config, parts.spec(), executor).unwrap();
    let (out, into, remote) = ports(rig);
    let prefill = with_ports(engine, parts.kv_shape(), out, &options);
    let mut pair = Pair::new(prefill, kv_engine(parts, into, &options), remote);
    pair.streams = true;
    pair
}

#[test]
fn what_is_streamed_layer_by_layer_is_what_one_engine_computes() {
    let parts = parts();
    assert!(parts.kv_shape().layers > 1);
    for rig in RIGS {
        let mut pair = streaming_pair(&parts, rig, 64, None);
        for (at, n) in [1, B - 1, B, B + 1, 5, 3 * B, 3 * B + 1, 20, 31]
            .into_iter()
            .enumerate()
        {
            let prompt = tokens(n, at as u32);
            let request = seeded(at as u64, &prompt, 6, 9);
            let (expected, blocks) = alone(&parts, &request);
            let id = request.id;
            pair.send(request);
            pair.settle();
            assert_eq!(pair.tokens[&id], expected, "{rig:?} {n}");
            assert!(pair.streamed.contains(&id), "{rig:?} {n}");
            assert!(
                arrived(&mut pair, &prompt) == blocks[..n / B],
                "{rig:?} {n}"
            );
        }
        pair.until_idle();
    }
}

#[test]
fn a_preempted_prompt_that_is_streamed_has_the_same_bits() {
    let (parts, mut preempted) = (parts(), 0);
    for blocks in 9..14 {
        let mut pair = streaming_pair(&parts, Rig::Tcp, blocks, None);
        let whole = greedy(9, &tokens(6, 9), 24);
        let prefill = pair.prefill.as_mut().unwrap();
        prefill.add(whole.clone(), KvTask::Whole).unwrap();
        pair.requests.insert(whole.id, whole);
        let prompts = [tokens(23, 1), tokens(23, 2)];
        for (id, prompt) in prompts.iter().enumerate() {
            pair.send(greedy(id as u64, prompt, 6));
        }
        pair.settle();
        assert!(pair.failed.is_empty(), "{:?}", pair.failed);
        for (id, prompt) in prompts.iter().enumerate() {
            let (expected, blocks) = alone(&parts, &greedy(id as u64, prompt, 6));
            assert_eq!(pair.tokens[&RequestId(id as u64)], expected);
            assert!(arrived(&mut pair, prompt) == blocks[..23 / B]);
        }
        preempted += pair.preempted.iter().filter(|id| id.0 != 9).count();
        pair.until_idle();
    }
    assert!(
        preempted >= 2,
        "{preempted} streamed prompts were preempted"
    );
}

/// Planted: the cells of a layer have the data of the one below.
#[test]
fn a_layer_with_anothers_data_is_found_in_the_images() {
    let parts = parts();
    let layers = parts.kv_shape().layers;
    let hook: Hook = Box::new(move |layer, kv, told| {
        if layer == 0 {
            told.layer_written(0, kv);
        }
        if layer + 1 < layers {
            told.layer_written(layer + 1, kv);
        }
        Ok(())
    });
    let mut pair = streaming_pair(&parts, Rig::Local, 64, Some(hook));
    let prompt = tokens(23, 5);
    let request = greedy(1, &prompt, 6);
    let (_, blocks) = alone(&parts, &request);
    pair.send(request);
    pair.settle();
    let found = arrived(&mut pair, &prompt);
    let different = found.iter().zip(&blocks).filter(|(a, b)| a != b).count();
    // The last block of 23 tokens is not full.
    assert_eq!((found.len(), different), (5, 5));
    pair.until_idle();
}
