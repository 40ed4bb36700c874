//! KV that is given away layer by layer, while the layers above are computed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use pb_contract::{BlockId, PrefixCacheKind, RequestId, WallClock};
use pb_core::Engine;
use pb_core::disagg::{KvEngine, KvOptions, KvTask, OnFailure};
use pb_model::forward::LayerKv;
use pb_transfer::{Granularity, Mode};

use crate::LAYERS;
use crate::common::{config, expected, greedy, layered, prompt, seeded, spec};
use crate::hooked::{Hook, Hooked};
use crate::pair::{Pair, Rig, SHAPE, options, ports, prefetch_id, ticket, toy, with_ports};

const B: usize = 4;

/// Everything is streamed by layers.
pub(crate) fn streaming(on_failure: OnFailure) -> KvOptions {
    KvOptions {
        stream_min_tokens: Some(0),
        ..options(Mode::Pull, Granularity::Layer, on_failure)
    }
}

/// An engine over the toy, with a hook between.
pub(crate) fn hooked(step_tokens: usize, hook: Hook) -> Engine {
    let mut config = config(B, 64);
    config.max_batched_tokens = step_tokens;
    let executor = Box::new(Hooked::new(Box::new(layered()), hook));
    Engine::new(config, spec(), executor).unwrap()
}

/// What a toy's layer says of blocks that nothing was written to.
struct Unwritten;

impl LayerKv for Unwritten {
    fn read(&self, _block: BlockId, out: &mut Vec<u8>) {
        out.extend(
            [0x5555_aaaa_5555_aaaa_u64; B]
                .iter()
                .flat_map(|slot| slot.to_le_bytes()),
        );
    }
}

/// A pair whose prefill engine has a hook between its layers.
fn hooked_pair(rig: Rig, hook: Hook, options: &KvOptions) -> Pair {
    let (out, into, remote) = ports(rig);
    let prefill = with_ports(hooked(5, hook), SHAPE, out, options);
    let mut pair = Pair::new(prefill, toy(config(B, 64), into, options), remote);
    pair.streams = true;
    pair
}

/// Serves prompts of several lengths with a hook; how many have other tokens than the toy alone.
fn wrong(on_failure: OnFailure, mut hook: impl FnMut() -> Hook) -> usize {
    let mut wrong = 0;
    for n in [B, B + 1, 3 * B, 23] {
        let request = seeded(1, &prompt(&format!("planted {n}"), n), 12, 4);
        let mut pair = hooked_pair(Rig::Local, hook(), &streaming(on_failure));
        pair.send(request.clone());
        pair.settle();
        assert!(pair.failed.is_empty(), "{:?}", pair.failed);
        // The first token is chosen where the prompt is, and is right.
        assert_eq!(pair.tokens[&request.id][0], expected(&request)[0]);
        wrong += usize::from(pair.tokens[&request.id] != expected(&request));
        pair.until_idle();
    }
    wrong
}

#[test]
fn a_layer_that_is_told_of_too_soon_or_with_anothers_data_shows_in_the_tokens() {
    let honest = wrong(OnFailure::Fail, || {
        Box::new(|layer, kv, told| {
            told.layer_written(layer, kv);
            Ok(())
        })
    });
    assert_eq!(honest, 0);
    // Prompts of up to a block go with the first token, after the step; the others are wrong.
    let unwritten = wrong(OnFailure::Fail, || {
        Box::new(|layer, kv, told| {
            match layer {
                0 => told.layer_written(layer, kv),
                layer => told.layer_written(layer, &Unwritten),
            }
            Ok(())
        })
    });
    assert_eq!(unwritten, 3);
    let anothers = wrong(OnFailure::Fail, || {
        Box::new(|layer, kv, told| {
            if layer == 0 {
                told.layer_written(0, kv);
            }
            if layer + 1 < LAYERS {
                told.layer_written(layer + 1, kv);
            }
            Ok(())
        })
    });
    assert_eq!(anothers, 3);
    // A layer that is never told of cannot be read, so nothing is sent in its place: the transfer
    // fails.
    let missing = wrong(OnFailure::Recompute, || {
        Box::new(|layer, kv, told| {
            if layer != 1 {
                told.layer_written(layer, kv);
            }
            Ok(())
        })
    });
    assert_eq!(missing, 0);
}

#[test]
fn a_step_that_fails_between_two_layers_takes_everything_back() {
    for (fails_in, after) in (1..4).flat_map(|step| (0..LAYERS).map(move |layer| (step, layer))) {
        let mut step = 0;
        let hook: Hook = Box::new(move |layer, kv, told| {
            step += usize::from(layer == 0);
            told.layer_written(layer, kv);
            std::thread::sleep(Duration::from_millis(2));
            match (step, layer) == (fails_in, after) {
                true => Err("out of luck".to_owned()),
                false => Ok(()),
            }
        });
        let mut pair = hooked_pair(Rig::Tcp, hook, &streaming(OnFailure::Fail));
        let lost = greedy(1, &prompt("lost", 23), 6);
        pair.send(lost.clone());
        let prefill = pair.prefill.as_mut().unwrap();
        for at in 1..=fails_in {
            let stepped = prefill.step(&WallClock);
            assert_eq!(stepped.is_err(), at == fails_in);
            prefill.check().unwrap();
        }
        pair.requests.remove(&lost.id);
        let decode = pair.decode.as_mut().unwrap();
        decode.abort(prefetch_id(lost.id));
        pair.until_idle();
        // The engine goes on, and so do its transfers.
        pair.expect(&[greedy(2, &prompt("next", 23), 6)]);
        pair.until_idle();
    }
}

#[test]
fn a_sink_that_goes_in_the_middle_of_a_step_costs_its_request_nothing() {
    for (goes_in, before) in (1..4).flat_map(|step| (0..LAYERS).map(move |layer| (step, layer))) {
        let decode: Arc<Mutex<Option<KvEngine>>> = Arc::default();
        let going = Arc::clone(&decode);
        let mut step = 0;
        let hook: Hook = Box::new(move |layer, kv, told| {
            step += usize::from(layer == 0);
            if (step, layer) == (goes_in, before) {
                drop(going.lock().unwrap().take());
            }
            told.layer_written(layer, kv);
            // So that the sink has something when it goes.
            std::thread::sleep(Duration::from_millis(2));
            Ok(())
        });
        let mut pair = hooked_pair(Rig::Tcp, hook, &streaming(OnFailure::Fail));
        pair.keep = true;
        pair.send(greedy(1, &prompt("alone", 23), 6));
        *decode.lock().unwrap() = pair.decode.take();
        pair.until("hand-off", |pair| !pair.kept.is_empty());
        assert!(decode.lock().unwrap().is_none(), "it has gone");
        let prefill = pair.prefill.as_mut().unwrap();
        prefill.abort(RequestId(1));
        prefill.release(ticket(RequestId(1)));
        pair.requests.clear();
        pair.until_idle();
    }
}

#[test]
fn a_streamed_prompt_that_is_preempted_goes_on() {
    let mut preempted = 0;
    for granularity in [Granularity::Layer, Granularity::Chunk] {
        for cache in [PrefixCacheKind::HashChain, PrefixCacheKind::None] {
            for blocks in 9..15 {
                let options = KvOptions {
                    granularity,
                    ..streaming(OnFailure::Fail)
                };
                let mut tight = config(B, blocks);
                tight.max_batched_tokens = 5;
                tight.prefix_cache = cache;
                // Admitted without room for all of it, so that there is something to take.
                tight.scheduling.reserve_full_prompt = false;
                let mut pair = Pair::toys(Rig::Tcp, tight, config(B, 64), &options);
                pair.streams = true;
                // One that grows while the others are computed.
                let whole = greedy(9, &prompt("whole", 6), 24);
                let prefill = pair.prefill.as_mut().unwrap();
                prefill.add(whole.clone(), KvTask::Whole).unwrap();
                pair.requests.insert(whole.id, whole);
                let one = |id: u64| seeded(id, &prompt(&format!("tight {id}"), 23), 6, id);
                pair.expect(&[one(1), one(2)]);
                preempted += pair.preempted.iter().filter(|id| id.0 != 9).count();
                pair.until_idle();
            }
        }
    }
    assert!(
        preempted >= 8,
        "{preempted} streamed prompts were preempted"
    );
}
