//! Requests that are not wanted any more, at every state and on both sides.

use pb_contract::{RequestId, WallClock};
use pb_core::disagg::{KvSource, KvTask, OnFailure};
use pb_transfer::service::Remote;
use pb_transfer::{Granularity, Mode};

use crate::common::{config, greedy, prompt, seeded};
use crate::pair::{Pair, Rig, options, recompute};

const B: usize = 4;

#[test]
fn an_abort_after_any_turn_leaves_nothing_behind() {
    for rig in [Rig::Local, Rig::Tcp] {
        for on_failure in [OnFailure::Recompute, OnFailure::Fail] {
            for turns in 0..12 {
                let options = options(Mode::Pull, Granularity::Layer, on_failure);
                let mut narrow = config(B, 40);
                narrow.max_num_seqs = 2;
                let mut pair = Pair::toys(rig, config(B, 64), narrow, &options);
                for id in 0..6 {
                    let tokens = prompt(&format!("abort {id}"), 5 + 9 * id as usize % 31);
                    pair.send(seeded(id, &tokens, 12, id));
                }
                for _ in 0..turns {
                    pair.turn();
                }
                for id in [1, 4].map(RequestId) {
                    pair.prefill.as_mut().unwrap().abort(id);
                    pair.decode.as_mut().unwrap().abort(id);
                    pair.requests.remove(&id);
                    pair.finished.remove(&id);
                    pair.tokens.remove(&id);
                }
                pair.settle();
                pair.assert_expected();
                assert!(pair.failed.is_empty(), "{:?}", pair.failed);
                pair.until_idle();
            }
        }
    }
}

#[test]
fn what_makes_no_sense_is_refused_at_once() {
    let mut pair = Pair::toys(Rig::Local, config(B, 64), config(B, 64), &recompute());
    let remote = Remote {
        host: "local".to_owned(),
        port: 0,
    };
    let source = KvSource {
        remote,
        ticket: 1,
        tokens: 9,
        first_token: 3,
    };
    let request = greedy(1, &prompt("refused", 9), 8);
    let decode = pair.decode.as_mut().unwrap();
    let mut refused = |request, source| {
        let error = decode.add(request, KvTask::Take(source)).unwrap_err();
        error.to_string()
    };
    let mut other = source.clone();
    other.tokens = 10;
    let text = refused(request.clone(), other);
    assert!(
        text.contains("KV is of 10 tokens, the prompt has 9"),
        "{text}"
    );
    let mut other = source.clone();
    other.first_token = 999;
    let text = refused(request.clone(), other);
    assert!(text.contains("token 999 at position 9"), "{text}");
    let mut short = request.clone();
    short.sampling.max_tokens = 1;
    let text = refused(short, source.clone());
    assert!(text.contains("max_tokens = 1"), "{text}");
    let text = decode.add(request.clone(), KvTask::HandOff).unwrap_err();
    assert!(text.to_string().contains("--role prefill"), "{text}");
    let prefill = pair.prefill.as_mut().unwrap();
    let text = prefill.add(request, KvTask::Take(source)).unwrap_err();
    assert!(text.to_string().contains("--role decode"), "{text}");
    assert!(!prefill.has_work());
    pair.until_idle();
}

#[test]
fn a_prompt_in_chunks_is_handed_off_whole() {
    let mut small = config(B, 64);
    small.max_batched_tokens = 5;
    let mut pair = Pair::toys(Rig::Local, small, config(B, 64), &recompute());
    pair.send(greedy(1, &prompt("chunks", 23), 6));
    let prefill = pair.prefill.as_mut().unwrap();
    for _ in 0..4 {
        prefill.step(&WallClock).unwrap();
        assert!(prefill.take_handed_off().is_empty());
    }
    pair.settle();
    pair.assert_expected();
    pair.until_idle();
}
