//! What two engines give together is what one gives alone.

use pb_contract::{EngineRequest, PrefixCacheKind, RequestId};
use pb_core::disagg::{KvTask, OnFailure};
use pb_transfer::{Granularity, Mode};

use crate::common::{config, expected, greedy, prompt, seeded};
use crate::pair::{Pair, RIGS, Rig, options, recompute};

const B: usize = 4;

/// Prompts around the ends of blocks, greedy and drawn.
fn around_blocks(first_id: u64, label: &str) -> Vec<EngineRequest> {
    let lengths = [1, B - 1, B, B + 1, 3 * B, 3 * B + 1];
    let mut all = Vec::new();
    for n in lengths {
        let id = first_id + all.len() as u64;
        all.push(greedy(id, &prompt(&format!("{label} {n}"), n), 9));
        all.push(seeded(
            id + 1,
            &prompt(&format!("{label} {n}"), n),
            9,
            40 + n as u64,
        ));
    }
    all
}

#[test]
fn every_transport_mode_and_granularity_gives_the_tokens_of_one_engine() {
    for rig in RIGS {
        for mode in [Mode::Pull, Mode::Push] {
            for granularity in [Granularity::Bulk, Granularity::Chunk, Granularity::Layer] {
                let options = options(mode, granularity, OnFailure::Fail);
                let mut pair = Pair::toys(rig, config(B, 64), config(B, 64), &options);
                pair.expect(&around_blocks(0, "cold"));
                // Each prompt once more: now both sides have its prefix.
                pair.expect(&around_blocks(100, "cold"));
                let stats = pair.decode.as_ref().unwrap().stats();
                assert_eq!(
                    stats.received_transfers, 24,
                    "{rig:?} {mode:?} {granularity:?}"
                );
                pair.until_idle();
            }
        }
    }
}

#[test]
fn a_prefix_that_is_here_is_not_sent_and_the_last_block_always_is() {
    for kind in [
        PrefixCacheKind::HashChain,
        PrefixCacheKind::Radix,
        PrefixCacheKind::Oracle,
        PrefixCacheKind::None,
    ] {
        let with = |blocks| {
            let mut config = config(B, blocks);
            config.prefix_cache = kind;
            config
        };
        for n in [B, 3 * B, 3 * B + 1] {
            let options = options(Mode::Push, Granularity::Bulk, OnFailure::Fail);
            let mut pair = Pair::toys(Rig::Local, with(64), with(64), &options);
            // Only the decode engine has the prompt.
            let whole = greedy(900, &prompt("shared", n), 3);
            let decode = pair.decode.as_mut().unwrap();
            decode.add(whole.clone(), KvTask::Whole).unwrap();
            pair.requests.insert(whole.id, whole);
            pair.settle();
            pair.expect(&[greedy(1, &prompt("shared", n), 6)]);
            let have = match kind {
                PrefixCacheKind::None => 0,
                _ => (n - 1) / B * B,
            };
            assert_eq!(pair.cached[&RequestId(1)], have, "{kind:?} {n}");
            let stats = pair.decode.as_ref().unwrap().stats();
            // A toy's position has eight bytes, and blocks move whole.
            let blocks = n.div_ceil(B) - have / B;
            assert_eq!(
                stats.received_bytes,
                (blocks * B * 8 * crate::LAYERS) as u64,
                "{kind:?} {n}"
            );
            let counters = pair.decode.as_ref().unwrap().engine().counters();
            assert_eq!(counters.received_tokens, (n - have) as u64);
            // And what arrived can be found by the next.
            pair.expect(&[greedy(
                2,
                &[prompt("shared", n), prompt("more", 5)].concat(),
                6,
            )]);
            let found = match kind {
                PrefixCacheKind::None => 0,
                _ => n / B * B,
            };
            assert_eq!(pair.cached[&RequestId(2)], found, "{kind:?} {n}");
            pair.until_idle();
        }
    }
}

#[test]
fn adapters_and_salts_go_along() {
    let mut pair = Pair::toys(Rig::Local, config(B, 64), config(B, 64), &recompute());
    let mut requests = Vec::new();
    for (id, (adapter, salt)) in [(None, None), (Some("a"), None), (Some("b"), Some("tenant"))]
        .into_iter()
        .enumerate()
    {
        let mut request = greedy(id as u64, &prompt("scoped", 10), 8);
        request.adapter = adapter.map(str::to_owned);
        request.cache_salt = salt.map(str::to_owned);
        requests.push(request);
    }
    pair.expect(&requests);
    let stats = pair.decode.as_ref().unwrap().stats();
    assert_eq!((stats.received_transfers, stats.recomputed), (3, 0));
}

#[test]
fn a_request_that_ends_with_its_first_token_holds_nothing() {
    let mut pair = Pair::toys(Rig::Local, config(B, 64), config(B, 64), &recompute());
    pair.expect(&[greedy(1, &prompt("short", 9), 1)]);
    let mut stops = greedy(2, &prompt("stops", 9), 8);
    let first = expected(&stops)[0];
    stops.sampling.stop_token_ids = vec![first];
    pair.send(stops);
    pair.settle();
    assert_eq!(pair.tokens[&RequestId(2)], [first]);
    assert_eq!(
        pair.prefill
            .as_ref()
            .unwrap()
            .engine()
            .counters()
            .handed_off,
        0
    );
    pair.until_idle();
}

#[test]
fn many_requests_at_once_share_prefixes_on_both_sides() {
    let options = options(Mode::Pull, Granularity::Chunk, OnFailure::Fail);
    let mut pair = Pair::toys(Rig::Tcp, config(B, 40), config(B, 40), &options);
    let common = prompt("system", 13);
    let requests: Vec<EngineRequest> = (0..40)
        .map(|id| {
            let own = prompt(&format!("user {}", id % 7), 1 + (id as usize * 5) % 11);
            seeded(id, &[common.clone(), own].concat(), 3 + id as u32 % 9, id)
        })
        .collect();
    pair.expect(&requests);
    pair.until_idle();
}
