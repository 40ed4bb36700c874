//! A decode engine that is full makes the prefill engine hold, and wait.

use pb_contract::EngineRequest;
use pb_core::disagg::OnFailure;
use pb_transfer::{Granularity, Mode};

use crate::common::{config, prompt, seeded};
use crate::pair::{Pair, Rig, options};

const B: usize = 4;

#[test]
fn sixty_four_prompts_pass_through_a_decode_engine_of_one_place() {
    for mode in [Mode::Pull, Mode::Push] {
        let options = options(mode, Granularity::Bulk, OnFailure::Fail);
        // The prefill pool holds the KV of a few prompts only.
        let (from, mut to) = (config(B, 24), config(B, 24));
        to.max_num_seqs = 1;
        let mut pair = Pair::toys(Rig::Local, from, to, &options);
        let requests: Vec<EngineRequest> = (0..64)
            .map(|id| {
                seeded(
                    id,
                    &prompt(&format!("pressure {id}"), 6 + id as usize % 15),
                    8,
                    id,
                )
            })
            .collect();
        let mut saw = (false, 0);
        for request in &requests {
            pair.send(request.clone());
        }
        pair.until("end of all requests", |pair| {
            let prefill = pair.prefill.as_ref().unwrap();
            saw.0 |= prefill.is_blocked() && prefill.has_work();
            saw.1 = saw.1.max(prefill.stats().exports);
            pair.finished.len() == 64
        });
        pair.assert_expected();
        assert!(pair.failed.is_empty());
        assert!(saw.0, "admission has stopped for want of blocks");
        // A prompt has at most 20 tokens, so 24 blocks are at least four of them; and none is
        // smaller than two blocks.
        assert!((4..=12).contains(&saw.1), "{} held at a time", saw.1);
        assert!(pair.most_active <= 24);
        pair.until_idle();
    }
}

#[test]
fn held_blocks_do_not_make_the_engine_refuse_what_fits_without_them() {
    let options = options(Mode::Pull, Granularity::Bulk, OnFailure::Fail);
    let mut pair = Pair::toys(Rig::Local, config(B, 8), config(B, 64), &options);
    pair.keep = true;
    pair.send(seeded(1, &prompt("large one", 24), 8, 1));
    pair.until("hand-off", |pair| pair.kept.len() == 1);
    // Six of eight blocks are held; this one needs as many.
    pair.send(seeded(2, &prompt("large two", 24), 8, 2));
    for _ in 0..5 {
        pair.turn();
    }
    assert_eq!(pair.kept.len(), 1);
    assert!(pair.prefill.as_ref().unwrap().is_blocked());
    pair.keep = false;
    let first = pair.kept.remove(0);
    pair.pass_on(first);
    pair.settle();
    pair.assert_expected();
    pair.until_idle();
}
