//! KV that is given away while the prompt is computed.

use std::collections::BTreeSet;

use pb_contract::{EngineRequest, RequestId, WallClock};
use pb_core::disagg::{EarlySource, KvEngine, KvOptions, KvTask, OnFailure};
use pb_transfer::{Ended, Granularity, Mode};

use crate::common::{config, expected, greedy, prompt, seeded};
use crate::pair::{Pair, RIGS, Rig, options, ports, prefetch_id, ticket, toy};

const B: usize = 4;
/// Tokens of a step of the prefill engine: prompts take several.
const STEP: usize = 5;

fn streaming(mode: Mode, granularity: Granularity, on_failure: OnFailure) -> KvOptions {
    KvOptions {
        stream_min_tokens: Some(0),
        ..options(mode, granularity, on_failure)
    }
}

fn pair(rig: Rig, options: &KvOptions) -> Pair {
    let mut small = config(B, 64);
    small.max_batched_tokens = STEP;
    let mut pair = Pair::toys(rig, small, config(B, 64), options);
    pair.streams = true;
    pair
}

/// Prompts around the ends of blocks and of steps, greedy and drawn.
fn around(first_id: u64, label: &str) -> Vec<EngineRequest> {
    let lengths = [1, B - 1, B, B + 1, STEP, 3 * B, 3 * B + 1, 4 * STEP, 41];
    let mut all = Vec::new();
    for n in lengths {
        let id = first_id + all.len() as u64;
        let tokens = prompt(&format!("{label} {n}"), n);
        all.push(greedy(id, &tokens, 9));
        all.push(seeded(id + 1, &tokens, 9, 40 + n as u64));
    }
    all
}

#[test]
fn streamed_requests_have_the_tokens_of_one_engine() {
    for rig in RIGS {
        for mode in [Mode::Pull, Mode::Push] {
            for granularity in [Granularity::Chunk, Granularity::Layer] {
                for on_failure in [OnFailure::Fail, OnFailure::Recompute] {
                    let mut pair = pair(rig, &streaming(mode, granularity, on_failure));
                    // One after the other: a prompt that is here already is not fetched ahead.
                    for request in around(0, "cold") {
                        pair.expect(&[request]);
                    }
                    let cold: BTreeSet<RequestId> = (0..18).step_by(2).map(RequestId).collect();
                    assert!(pair.streamed.is_superset(&cold), "{:?}", pair.streamed);
                    // All at once, with prefixes on both sides and without.
                    pair.expect(&[around(100, "cold"), around(200, "new")].concat());
                    let stats = pair.decode.as_ref().unwrap().stats();
                    assert_eq!((stats.received_transfers, stats.recomputed), (54, 0));
                    pair.until_idle();
                }
            }
        }
    }
}

/// Runs the prefill engine for some steps, and waits until what they computed is on its way.
fn on_the_way(pair: &mut Pair, request: &EngineRequest, steps: usize) {
    pair.send(request.clone());
    let prefill = pair.prefill.as_mut().unwrap();
    for _ in 0..steps {
        prefill.step(&WallClock).unwrap();
        assert!(prefill.take_handed_off().is_empty());
    }
    let (mut prefill, steps) = (pair.prefill.take(), pair.finished.len());
    let engine = prefill.as_mut().unwrap();
    // Between a claim and the offer nothing is counted, so one look is not enough.
    let mut looks = 0;
    pair.until("claim", |_| {
        engine.take_news();
        looks = match engine.stats().queue_depth {
            0 => looks + 1,
            _ => 0,
        };
        looks == 300
    });
    assert_eq!(pair.finished.len(), steps);
    pair.prefill = prefill;
}

#[test]
fn blocks_are_sent_before_the_prompt_is_computed() {
    for granularity in [Granularity::Chunk, Granularity::Layer] {
        let mut pair = pair(
            Rig::Tcp,
            &streaming(Mode::Pull, granularity, OnFailure::Fail),
        );
        let request = greedy(1, &prompt("early", 23), 6);
        // Ten tokens of 23 are computed: two blocks of six.
        on_the_way(&mut pair, &request, 2);
        pair.settle();
        pair.assert_expected();
        pair.until_idle();
        let rows = pair.prefill.as_mut().unwrap().take_rows();
        assert_eq!(rows.len(), 1);
        let row = &rows[0];
        assert_eq!((row.ended, row.tokens), (Ended::Acknowledged, 23));
        // A toy's position has eight bytes in each layer.
        let block_bytes = (B * 8 * crate::LAYERS) as u64;
        assert_eq!(row.bytes, 6 * block_bytes);
        assert!(row.early_bytes >= 2 * block_bytes, "{row:?}");
        // The last block goes when the first token is known, and never before.
        assert!(row.early_bytes <= 5 * block_bytes, "{row:?}");
        assert!(row.exposed_ns < Some(row.total_ns), "{row:?}");
    }
}

#[test]
fn short_prompts_and_bulk_are_handed_off_as_ever() {
    let chunk = streaming(Mode::Pull, Granularity::Chunk, OnFailure::Fail);
    let bulk = streaming(Mode::Pull, Granularity::Bulk, OnFailure::Fail);
    let long = KvOptions {
        stream_min_tokens: Some(24),
        ..chunk
    };
    let never = KvOptions {
        stream_min_tokens: None,
        ..chunk
    };
    for (options, streamed) in [(chunk, true), (bulk, false), (long, false), (never, false)] {
        let mut pair = pair(Rig::Local, &options);
        pair.expect(&[greedy(1, &prompt("short", 23), 6)]);
        assert_eq!(!pair.streamed.is_empty(), streamed, "{options:?}");
        pair.until_idle();
    }
}

#[test]
fn a_first_token_that_is_the_last_takes_everything_back() {
    let both = [Granularity::Chunk, Granularity::Layer];
    for (claimed, granularity) in [false, true].into_iter().flat_map(|c| both.map(|g| (c, g))) {
        let options = streaming(Mode::Pull, granularity, OnFailure::Fail);
        let mut pair = pair(Rig::Tcp, &options);
        let mut stops = greedy(2, &prompt("stops", 23), 8);
        stops.sampling.stop_token_ids = vec![expected(&stops)[0]];
        let steps = usize::from(claimed) * 2;
        match claimed {
            true => on_the_way(&mut pair, &stops, steps),
            false => pair.send(stops),
        }
        pair.settle();
        let counters = pair.prefill.as_ref().unwrap().engine().counters();
        assert_eq!(counters.handed_off, 0);
        let decode = pair.decode.as_mut().unwrap();
        decode.abort(prefetch_id(RequestId(2)));
        pair.until_idle();
    }
}

#[test]
fn an_abort_after_any_turn_leaves_nothing_behind() {
    for rig in [Rig::Local, Rig::Tcp] {
        for on_failure in [OnFailure::Recompute, OnFailure::Fail] {
            for turns in 0..14 {
                let mut pair = pair(rig, &streaming(Mode::Pull, Granularity::Layer, on_failure));
                for id in 0..6 {
                    let tokens = prompt(&format!("abort {id}"), 5 + 9 * id as usize % 31);
                    pair.send(seeded(id, &tokens, 12, id));
                }
                for _ in 0..turns {
                    pair.turn();
                }
                for id in [1, 4].map(RequestId) {
                    pair.prefill.as_mut().unwrap().abort(id);
                    let decode = pair.decode.as_mut().unwrap();
                    decode.abort(prefetch_id(id));
                    decode.abort(id);
                    pair.requests.remove(&id);
                    pair.finished.remove(&id);
                    pair.tokens.remove(&id);
                }
                // Both forget these; nobody else is touched.
                pair.settle();
                pair.assert_expected();
                assert!(pair.failed.is_empty(), "{:?}", pair.failed);
                pair.until_idle();
            }
        }
    }
}

#[test]
fn a_prefetch_that_ends_early_costs_its_request_nothing() {
    // The decode engine gives its prefetch up in the middle: the request is handed off under
    // another ticket.
    let options = streaming(Mode::Pull, Granularity::Layer, OnFailure::Fail);
    let mut pair = pair(Rig::Tcp, &options);
    let request = greedy(1, &prompt("early", 23), 6);
    on_the_way(&mut pair, &request, 2);
    assert!(pair.decode.as_mut().unwrap().abort(prefetch_id(request.id)));
    let prefill = pair.prefill.as_mut().unwrap();
    while prefill.stats().exports > 0 {
        prefill.wait_news(std::time::Duration::from_millis(1));
    }
    pair.settle();
    pair.assert_expected();
    assert!(pair.streamed.is_empty());
    pair.until_idle();
    let ended: Vec<Ended> = pair
        .prefill
        .as_mut()
        .unwrap()
        .take_rows()
        .iter()
        .map(|r| r.ended)
        .collect();
    assert_eq!(ended, [Ended::Aborted, Ended::Acknowledged]);
}

#[test]
fn either_engine_may_die_after_any_turn() {
    for on_failure in [OnFailure::Recompute, OnFailure::Fail] {
        let each = (0..12).flat_map(|n| [(true, n), (false, n)]);
        let both = [Granularity::Chunk, Granularity::Layer];
        let each = each.flat_map(|how| both.map(|granularity| (how, granularity)));
        for ((dies_first, turns), granularity) in each {
            let mut pair = pair(Rig::Tcp, &streaming(Mode::Push, granularity, on_failure));
            for id in 0..4 {
                let tokens = prompt(&format!("death {id}"), 7 + 8 * id as usize);
                pair.send(greedy(id, &tokens, 8));
            }
            for _ in 0..turns {
                pair.turn();
            }
            if !dies_first {
                // What is computed is kept until nobody can claim it, or taken back.
                pair.decode = None;
                let prefill = pair.prefill.as_mut().unwrap();
                for id in (0..4).map(RequestId) {
                    prefill.abort(id);
                    prefill.release(ticket(id));
                }
                pair.until_idle();
                continue;
            }
            pair.prefill = None;
            // Those that were not handed on are nobody's; their prefetches end by themselves.
            let known: Vec<RequestId> = pair.requests.keys().copied().collect();
            let decode = pair.decode.as_mut().unwrap();
            for id in known {
                decode.abort(prefetch_id(id));
            }
            let given = |pair: &Pair| -> BTreeSet<RequestId> {
                let started = pair.tokens.keys().copied();
                started.collect()
            };
            let given = given(&pair);
            pair.requests.retain(|id, _| given.contains(id));
            pair.settle();
            match on_failure {
                OnFailure::Recompute => assert!(pair.failed.is_empty(), "{:?}", pair.failed),
                OnFailure::Fail => {}
            }
            pair.assert_expected();
            pair.until_idle();
        }
    }
}

#[test]
fn the_pool_bounds_what_is_fetched_ahead() {
    let options = streaming(Mode::Pull, Granularity::Chunk, OnFailure::Fail);
    let mut small = config(B, 64);
    small.max_batched_tokens = STEP;
    // Each prompt has 8 of 11 blocks: one can be fetched ahead at a time.
    let mut pair = Pair::toys(Rig::Local, small, config(B, 12), &options);
    pair.streams = true;
    let requests: Vec<EngineRequest> = (0..5)
        .map(|id| greedy(id, &prompt(&format!("wide {id}"), 31), 5))
        .collect();
    pair.expect(&requests);
    pair.until_idle();
    let fetched = pair.decode.as_mut().unwrap().take_fetched();
    assert!(fetched.len() <= 5, "{fetched:?}");
}

#[test]
fn the_pool_bounds_the_copies_of_prompts_that_have_a_prefix_in_common() {
    for granularity in [Granularity::Chunk, Granularity::Layer] {
        let options = streaming(Mode::Pull, granularity, OnFailure::Fail);
        let (out, _, _remote) = ports(Rig::Local);
        // Eight blocks each, seven of them in common: 13 of the pool's 23, but 48 copies.
        let mut engine = toy(config(B, 23), out, &options);
        let common = prompt("common", 7 * B);
        for id in 1..=6 {
            let mut tokens = common.clone();
            tokens.extend(prompt(&format!("own {id}"), 3));
            let task = KvTask::Stream(ticket(RequestId(id)));
            engine.add(greedy(id, &tokens, 5), task).unwrap();
        }
        let mut over = Vec::new();
        while over.len() < 6 {
            engine.step(&WallClock).unwrap();
            engine.check().unwrap();
            over.extend(engine.take_handed_off());
        }
        let streamed = over.iter().filter(|over| over.ticket == ticket(over.id));
        assert_eq!(streamed.count(), 2, "{granularity:?}: {over:?}");
        // What is freed is room for others.
        for over in &over {
            assert!(engine.release(over.ticket));
        }
        let task = KvTask::Stream(ticket(RequestId(7)));
        engine.add(greedy(7, &common, 5), task).unwrap();
        let mut over = Vec::new();
        while over.is_empty() {
            engine.step(&WallClock).unwrap();
            engine.check().unwrap();
            over = engine.take_handed_off();
        }
        assert_eq!(over[0].ticket, ticket(RequestId(7)));
        assert!(engine.release(over[0].ticket));
        engine.check().unwrap();
        assert_eq!(engine.engine().buckets().active, 0);
    }
}

#[test]
fn kv_of_another_prompt_is_not_taken_over() {
    for on_failure in [OnFailure::Recompute, OnFailure::Fail] {
        let mut pair = pair(
            Rig::Local,
            &streaming(Mode::Pull, Granularity::Chunk, on_failure),
        );
        let other = greedy(1, &prompt("other", 23), 6);
        pair.send(other.clone());
        pair.keep = true;
        pair.until("hand-off", |pair| !pair.kept.is_empty());
        let mut over = pair.kept.remove(0);
        // The ticket of one prompt with the request of another of the same length.
        let wrong = greedy(9, &prompt("wrong", 23), 6);
        pair.tokens.insert(wrong.id, vec![expected(&wrong)[0]]);
        over.first_token = expected(&wrong)[0];
        over.id = wrong.id;
        pair.requests.remove(&other.id);
        pair.tokens.remove(&other.id);
        pair.requests.insert(wrong.id, wrong);
        pair.pass_on(over);
        pair.settle();
        pair.assert_expected();
        assert_eq!(
            pair.failed.len(),
            usize::from(on_failure == OnFailure::Fail)
        );
        let decode = pair.decode.as_mut().unwrap();
        decode.abort(prefetch_id(RequestId(1)));
        pair.until_idle();
    }
}

#[test]
fn a_ticket_is_for_one_prefetch_and_a_hold_can_be_released() {
    let options = streaming(Mode::Pull, Granularity::Chunk, OnFailure::Fail);
    let mut pair = pair(Rig::Local, &options);
    let request = greedy(1, &prompt("twice", 23), 6);
    pair.streams = false;
    let source = EarlySource {
        remote: pair.remote.clone(),
        ticket: 77,
    };
    let decode: &mut KvEngine = pair.decode.as_mut().unwrap();
    for id in [50, 51] {
        let mut ahead = request.clone();
        ahead.id = RequestId(id);
        decode.add(ahead, KvTask::Prefetch(source.clone())).unwrap();
    }
    assert_eq!(decode.take_fetched(), [RequestId(51)], "the second of two");
    assert!(decode.abort(RequestId(50)) && !decode.abort(RequestId(50)));
    // Nobody comes for what is held: it is given back at once when that is known.
    pair.keep = true;
    pair.send(request);
    pair.until("hand-off", |pair| !pair.kept.is_empty());
    let held = pair.kept.remove(0).ticket;
    let prefill = pair.prefill.as_mut().unwrap();
    assert!(!prefill.release(held + 1), "another ticket");
    assert!(prefill.engine().buckets().active > 0);
    assert!(prefill.release(held) && !prefill.release(held));
    assert_eq!(prefill.engine().buckets().active, 0);
    pair.requests.clear();
    pair.until_idle();
}
