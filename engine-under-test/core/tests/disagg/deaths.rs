//! An engine dies, a lease ends, a ticket is wrong: no request is lost, no block leaks, no token is
//! another's.

use std::time::Duration;

use pb_contract::{Nanos, RequestId};
use pb_core::disagg::{KvEngine, KvOptions, OnFailure};
use pb_transfer::{Ended, Granularity, Mode, TransferRow};

use crate::common::{config, expected, greedy, prompt, seeded};
use crate::pair::{Pair, Rig, options, recompute};

const B: usize = 4;

fn requests() -> Vec<pb_contract::EngineRequest> {
    (0..6)
        .map(|id| {
            seeded(
                id,
                &prompt(&format!("death {id}"), 5 + 9 * id as usize % 31),
                12,
                id,
            )
        })
        .collect()
}

/// Decode places for two, so that some requests wait for room while others run.
fn pair(rig: Rig, options: &KvOptions) -> Pair {
    let mut narrow = config(B, 40);
    narrow.max_num_seqs = 2;
    Pair::toys(rig, config(B, 64), narrow, options)
}

/// No block is in use, nothing is staged and nobody is waited for.
fn assert_idle(engine: &KvEngine) {
    engine.check().unwrap();
    assert_eq!(engine.engine().buckets().active, 0);
    let stats = engine.stats();
    assert_eq!((stats.exports, stats.imports), (0, 0));
}

#[test]
fn whenever_the_prefill_engine_dies_the_text_is_the_local_one_or_an_error() {
    for rig in [Rig::Local, Rig::Tcp] {
        for on_failure in [OnFailure::Recompute, OnFailure::Fail] {
            let mut outcomes = [0, 0, 0];
            // After so many turns, or at last when some requests have arrived and others wait.
            for turns in (0..14).map(Some).chain([None]) {
                let options = options(Mode::Pull, Granularity::Layer, on_failure);
                let mut pair = pair(rig, &options);
                requests()
                    .into_iter()
                    .for_each(|request| pair.send(request));
                for _ in 0..turns.unwrap_or(0) {
                    pair.turn();
                }
                if turns.is_none() {
                    pair.until_queued();
                }
                pair.prefill = None;
                // What was not handed on yet died with the engine; the router would send it again.
                let known: Vec<RequestId> = pair.requests.keys().copied().collect();
                for id in known {
                    let begun = pair.tokens.contains_key(&id);
                    if !begun {
                        pair.requests.remove(&id);
                        outcomes[2] += 1;
                    }
                }
                pair.settle();
                pair.assert_expected();
                if on_failure == OnFailure::Recompute {
                    assert!(pair.failed.is_empty(), "{:?}", pair.failed);
                }
                outcomes[0] += pair.finished.len();
                outcomes[1] += pair.failed.len();
                pair.until_idle();
                assert_idle(pair.decode.as_ref().unwrap());
            }
            assert!(outcomes[0] > 0 && outcomes[2] > 0, "{outcomes:?}");
            let some_fail = outcomes[1] > 0;
            assert_eq!(some_fail, on_failure == OnFailure::Fail, "{outcomes:?}");
        }
    }
}

#[test]
fn whenever_the_decode_engine_dies_the_prefill_engine_gets_its_blocks_back() {
    // What was handed off and not claimed by then is given back when its lease is over.
    let options = KvOptions {
        lease: Nanos::from_millis(400),
        ..recompute()
    };
    for rig in [Rig::Local, Rig::Shm, Rig::Tcp] {
        let mut by_death = 0;
        for turns in [Some(0), Some(2), Some(4), Some(9), None] {
            let mut pair = pair(rig, &options);
            requests()
                .into_iter()
                .for_each(|request| pair.send(request));
            for _ in 0..turns.unwrap_or(0) {
                pair.turn();
            }
            if turns.is_none() {
                pair.until_queued();
            }
            pair.decode = None;
            pair.until_idle();
            let prefill = pair.prefill.as_mut().unwrap();
            assert_idle(prefill);
            let dead = |row: &&TransferRow| row.ended == Ended::PeerDead;
            by_death += prefill.take_rows().iter().filter(dead).count();
        }
        assert!(by_death > 0, "{rig:?}: no transfer was cut");
    }
}

#[test]
fn what_nobody_claims_is_freed_and_a_late_claim_finds_nothing() {
    let options = KvOptions {
        lease: Nanos::from_millis(30),
        ..recompute()
    };
    let mut pair = Pair::toys(Rig::Tcp, config(B, 64), config(B, 64), &options);
    pair.keep = true;
    let request = greedy(1, &prompt("late", 10), 8);
    pair.send(request.clone());
    pair.until("hand-off", |pair| !pair.kept.is_empty());
    assert_eq!(
        pair.prefill
            .as_ref()
            .unwrap()
            .engine()
            .counters()
            .in_transfer_blocks,
        3
    );
    pair.until_idle();
    let prefill = pair.prefill.as_mut().unwrap();
    let rows = prefill.take_rows();
    assert_eq!(rows.len(), 1);
    assert_eq!(
        (rows[0].cells, rows[0].cause.as_deref()),
        (0, Some("expired"))
    );
    assert!(
        rows[0].total_ns >= 30_000_000,
        "not before the lease is over"
    );
    let over = pair.kept.pop().unwrap();
    pair.pass_on(over);
    pair.settle();
    pair.assert_expected();
    let stats = pair.decode.as_ref().unwrap().stats();
    assert_eq!(stats.recomputed, 1);
    assert_eq!(stats.failed_by_cause.get("expired"), Some(&1));
    pair.until_idle();
}

#[test]
fn a_ticket_of_another_prompt_is_declined() {
    for on_failure in [OnFailure::Recompute, OnFailure::Fail] {
        let options = options(Mode::Pull, Granularity::Bulk, on_failure);
        let mut pair = Pair::toys(Rig::Local, config(B, 64), config(B, 64), &options);
        pair.keep = true;
        let (one, other) = (prompt("one", 10), prompt("another", 10));
        pair.send(greedy(1, &one, 8));
        pair.send(greedy(2, &other, 8));
        pair.until("hand-off", |pair| pair.kept.len() == 2);
        let (first, second) = (pair.kept[0], pair.kept[1]);
        // Request 2 with the ticket of request 1, and its own first token.
        let mut forged = second;
        forged.ticket = first.ticket;
        pair.pass_on(forged);
        pair.requests.remove(&RequestId(1));
        pair.settle();
        let stats = pair.decode.as_ref().unwrap().stats();
        assert_eq!(stats.failed_by_cause.get("mismatch"), Some(&1));
        match on_failure {
            OnFailure::Recompute => pair.assert_expected(),
            OnFailure::Fail => assert!(pair.failed[&RequestId(2)].contains("not this prompt's")),
        }
        // Both are still held for whoever has the right prompt.
        assert_eq!(pair.prefill.as_ref().unwrap().stats().exports, 2);
        // The other's adapter and salt are as wrong as the other's tokens.
        for (adapter, salt) in [(Some("a"), None), (None, Some("tenant"))] {
            pair.requests.clear();
            pair.failed.clear();
            pair.finished.remove(&RequestId(3));
            pair.tokens.remove(&RequestId(3));
            let mut request = greedy(3, &one, 8);
            request.adapter = adapter.map(str::to_owned);
            request.cache_salt = salt.map(str::to_owned);
            let local = expected(&request);
            let mut forged = first;
            (forged.id, forged.first_token) = (request.id, local[0]);
            pair.requests.insert(request.id, request);
            pair.pass_on(forged);
            pair.settle();
            if on_failure == OnFailure::Recompute {
                assert_eq!(pair.tokens[&RequestId(3)], local[1..]);
            }
        }
        pair.requests.clear();
        pair.failed.clear();
        pair.requests.insert(RequestId(1), greedy(1, &one, 8));
        pair.pass_on(first);
        pair.settle();
        assert_eq!(pair.tokens[&RequestId(1)], expected(&greedy(1, &one, 8)));
    }
}

#[test]
fn a_broken_connection_is_made_anew_for_the_next_claim() {
    let (out, into, remote) = crate::pair::ports(Rig::Tcp);
    let prefill = crate::pair::toy(config(B, 64), out, &recompute());
    let decode = crate::pair::toy(config(B, 64), into, &recompute());
    let mut pair = Pair::new(prefill, decode, remote.clone());
    pair.expect(&[greedy(1, &prompt("before", 10), 6)]);
    pair.until_idle();
    // The same address, another process.
    pair.prefill = None;
    let at = format!("{}:{}", remote.host, remote.port).parse().unwrap();
    let stall = Duration::from_secs(120);
    let bound = pb_transfer::service::KvListener::tcp(at, stall, crate::pair::clock());
    let Ok((listener, _)) = bound else {
        // Another process has taken the port meanwhile: nothing to be seen here.
        return;
    };
    let ports = pb_core::disagg::KvPorts {
        listener: Some(listener),
        dial: None,
    };
    pair.prefill = Some(crate::pair::toy(config(B, 64), ports, &recompute()));
    pair.expect(&[greedy(2, &prompt("after", 10), 6)]);
    let stats = pair.decode.as_ref().unwrap().stats();
    assert_eq!((stats.received_transfers, stats.recomputed), (2, 0));
}

#[test]
fn strangers_that_say_nothing_keep_nobody_waiting() {
    let (out, into, remote) = crate::pair::ports(Rig::Shm);
    let prefill = crate::pair::toy(config(B, 64), out, &recompute());
    let decode = crate::pair::toy(config(B, 64), into, &recompute());
    let mut pair = Pair::new(prefill, decode, remote.clone());
    // The exporter would wait for each of them for as long as `STALL`, two minutes.
    let strangers: Vec<_> = (0..3)
        .map(|_| std::os::unix::net::UnixStream::connect(&remote.host).unwrap())
        .collect();
    pair.expect(&[greedy(1, &prompt("beside strangers", 10), 6)]);
    let stats = pair.decode.as_ref().unwrap().stats();
    assert_eq!((stats.received_transfers, stats.recomputed), (1, 0));
    drop(strangers);
}
