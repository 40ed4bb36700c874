//! Faults that users of other engines have reported, each as the scenario that shows it.
//!
//! The number in a test's name is that of the report in the project that the name begins with.

mod common;

use common::{admit, extend, free, ids, manager, manager_with, miss, seq, start};
use pb_contract::{Buckets, PrefixCacheKind, RequestId};
use pb_kv::{FreePlacement, KvConfig, KvError, KvManager};

#[test]
fn vllm_11186_whole_prompt_cached_recomputes_one_block() {
    let mut kv = manager(16, 16);
    let prompt = seq(16, 0..64);
    admit(&mut kv, 0, &prompt);
    let hit = kv.lookup(&prompt);
    assert_eq!(hit.blocks.len(), 3);
    assert!(kv.allocate(RequestId(1), &prompt, 0, &hit, 16));
    // Its own copy of the last block: tables are append-only, duplicates are allowed.
    assert_eq!(kv.block_table(RequestId(0)), ids(&[0, 1, 2, 3]));
    assert_eq!(kv.block_table(RequestId(1)), ids(&[0, 1, 2, 4]));
    kv.check().unwrap();
}

#[test]
fn nano_vllm_144_a_single_full_block_never_hits_itself() {
    let mut kv = manager(16, 8);
    admit(&mut kv, 0, &seq(16, 0..16));
    assert_eq!(kv.lookup(&seq(16, 0..16)), miss());
}

#[test]
fn vllm_54607_prompt_shorter_than_a_block_misses() {
    let mut kv = manager(16, 8);
    admit(&mut kv, 0, &seq(16, 0..15));
    assert_eq!(kv.lookup(&seq(16, 0..15)), miss());
    free(&mut kv, 0);
    assert_eq!(
        kv.buckets(),
        Buckets {
            active: 0,
            reclaimable: 0,
            free: 8
        }
    );
}

#[test]
fn vllm_4764_an_evicted_block_is_never_a_hit() {
    let mut kv = manager_with(4, 4, false, FreePlacement::Append);
    let old = seq(4, 0..13);
    admit(&mut kv, 0, &old);
    free(&mut kv, 0);
    assert_eq!(kv.lookup(&old).blocks, ids(&[0, 1, 2]));
    // Queue 3,2,1,0: two blocks are taken, block 2 loses its data.
    admit(&mut kv, 1, &seq(4, 100..106));
    assert_eq!(kv.block_table(RequestId(1)), ids(&[3, 2]));
    assert_eq!(kv.lookup(&old).blocks, ids(&[0, 1]));
}

#[test]
fn vllm_5364_hit_blocks_are_referenced_before_new_ones_are_taken() {
    let mut kv = manager_with(4, 4, false, FreePlacement::Append);
    admit(&mut kv, 0, &seq(4, 0..16));
    free(&mut kv, 0);
    // Queue 3,2,1,0; the hit is at its tail, and the two new blocks are exactly the rest.
    let longer = seq(4, (0..8).chain(100..108));
    assert_eq!(admit(&mut kv, 1, &longer), 8);
    assert_eq!(kv.block_table(RequestId(1)), ids(&[0, 1, 3, 2]));
    // One more block than there is: the unreferenced hit counts into the need, nothing changes.
    free(&mut kv, 1);
    let queue = kv.free_queue();
    let too_long = seq(4, (0..8).chain(200..209));
    let hit = kv.lookup(&too_long);
    assert_eq!(
        (hit.blocks.len(), kv.blocks_needed(RequestId(2), 0, &hit, 9)),
        (2, 5)
    );
    assert!(!kv.allocate(RequestId(2), &too_long, 0, &hit, 9));
    assert_eq!((kv.free_queue(), kv.live_requests()), (queue, 0));
    assert_eq!(kv.lookup(&too_long), hit);
    kv.check().unwrap();
}

#[test]
fn vllm_7822_a_step_that_failed_leaves_nothing_to_hit() {
    let mut kv = manager(4, 32);
    let prompt = seq(4, 0..17);
    // Two equal prompts in one step: the second shares blocks that are being computed.
    start(&mut kv, 0, &prompt);
    assert_eq!(start(&mut kv, 1, &prompt), 16);
    // The execution failed, so the names of this step are taken back.
    let forgotten = kv.forget_uncomputed(RequestId(0), 0);
    assert_eq!(forgotten, ids(&[0, 1, 2, 3]));
    assert_eq!(kv.holders(forgotten[0]), [RequestId(0), RequestId(1)]);
    assert!(kv.forget_uncomputed(RequestId(1), 0).is_empty());
    kv.check().unwrap();
    assert_eq!(kv.lookup(&prompt), miss());
    free(&mut kv, 1);
    free(&mut kv, 0);
    assert_eq!(
        kv.buckets(),
        Buckets {
            active: 0,
            reclaimable: 0,
            free: 32
        }
    );
}

#[test]
fn vllm_7822_blocks_of_an_abort_before_execution_are_not_hit() {
    let mut kv = manager(4, 32);
    let prompt = seq(4, 0..17);
    // The first chunk ran; the second was scheduled when the request was aborted.
    extend(&mut kv, 0, &prompt, 0, 8);
    assert!(kv.allocate(RequestId(0), &prompt, 8, &miss(), 9));
    assert_eq!(
        kv.lookup(&prompt).blocks,
        ids(&[0, 1, 2, 3]),
        "named when scheduled"
    );
    free(&mut kv, 0);
    assert_eq!(kv.lookup(&prompt).blocks, ids(&[0, 1]));
    assert_eq!(kv.buckets().reclaimable, 2);
    // What came from the cache was computed by someone else and stays.
    assert_eq!(start(&mut kv, 1, &prompt), 8);
    free(&mut kv, 1);
    assert_eq!(kv.lookup(&prompt).blocks, ids(&[0, 1]));
}

#[test]
fn vllm_7822_an_orphaned_share_poisons_nothing() {
    // The engine must restart request 1 here. If it does not, its data is wrong, so no name that
    // builds on it may stay or come back, and the check says what happened.
    let mut kv = manager(4, 32);
    let long = seq(4, 0..21);
    start(&mut kv, 0, &seq(4, 0..9));
    assert_eq!(start(&mut kv, 1, &long), 8);
    kv.free(RequestId(0));
    let error = kv.check().unwrap_err();
    assert!(error.contains("which nobody computes"), "{error}");
    assert_eq!(kv.lookup(&long), miss());
    kv.commit(RequestId(1), 21);
    let mut longer = long.clone();
    longer.extend(&[21, 22, 23]);
    assert!(kv.allocate(RequestId(1), &longer, 21, &miss(), 3));
    assert_eq!(kv.lookup(&longer), miss());
    // Request 2 computes the head anew; the orphan's blocks must not continue it.
    let hit = kv.lookup(&longer);
    assert!(kv.allocate(RequestId(2), &longer, 0, &hit, 8));
    kv.commit(RequestId(2), 8);
    assert_eq!(kv.lookup(&longer).blocks, kv.block_table(RequestId(2)));
}

#[test]
fn a_failed_later_chunk_keeps_earlier_names_and_is_named_again() {
    let mut kv = manager(4, 32);
    let prompt = seq(4, 0..17);
    extend(&mut kv, 0, &prompt, 0, 8);
    assert!(kv.allocate(RequestId(0), &prompt, 8, &miss(), 9));
    assert_eq!(kv.forget_uncomputed(RequestId(0), 8), ids(&[2, 3]));
    assert_eq!(kv.lookup(&prompt).blocks, ids(&[0, 1]));
    // The chunk is scheduled again and its blocks get their names back.
    extend(&mut kv, 0, &prompt, 8, 17);
    assert_eq!(kv.lookup(&prompt).blocks, ids(&[0, 1, 2, 3]));
    free(&mut kv, 0);
    assert_eq!(kv.lookup(&prompt).blocks, ids(&[0, 1, 2, 3]));
}

#[test]
fn vllm_49250_forgetting_spares_blocks_that_came_from_the_cache() {
    let mut kv = manager(4, 32);
    admit(&mut kv, 0, &seq(4, 0..9));
    let longer = seq(4, 0..17);
    assert_eq!(start(&mut kv, 1, &longer), 8);
    assert_eq!(kv.forget_uncomputed(RequestId(1), 0), ids(&[3, 4]));
    assert_eq!(kv.lookup(&longer).blocks, ids(&[0, 1]));
    kv.check().unwrap();
}

#[test]
fn vllm_18957_a_hit_is_looked_up_again_at_admission() {
    let mut kv = manager_with(4, 5, false, FreePlacement::Append);
    admit(&mut kv, 0, &seq(4, 0..9));
    free(&mut kv, 0);
    // The first attempt fails: five blocks are needed beside two hits.
    let waiting = seq(4, (0..8).chain(50..64));
    let early = kv.lookup(&waiting);
    assert_eq!(early.blocks.len(), 2);
    assert!(!kv.allocate(RequestId(1), &waiting, 0, &early, 14));
    // Meanwhile the prefix is evicted.
    admit(&mut kv, 2, &seq(4, 100..117));
    free(&mut kv, 2);
    assert_eq!(kv.lookup(&waiting), miss());
    let stale = std::panic::AssertUnwindSafe(|| {
        kv.allocate(RequestId(1), &waiting, 0, &early, 4);
    });
    assert!(
        std::panic::catch_unwind(stale).is_err(),
        "a stale hit must never be accepted"
    );
}

#[test]
fn vllm_42656_blocks_without_data_do_not_displace_cached_ones() {
    for (placement, hit_tokens) in [
        (FreePlacement::UnhashedToHead, 8),
        (FreePlacement::Append, 0),
    ] {
        let mut kv = manager_with(4, 3, false, placement);
        let useful = seq(4, 0..9);
        admit(&mut kv, 0, &useful);
        free(&mut kv, 0);
        // Short prompts come and go; each needs one block.
        for id in 1..4 {
            admit(&mut kv, id, &seq(4, [77, 78, id as u32]));
            free(&mut kv, id);
        }
        assert_eq!(kv.lookup(&useful).tokens(4), hit_tokens, "{placement:?}");
    }
}

#[test]
fn nano_vllm_211_table_and_length_agree_after_preemption_and_hit() {
    let mut kv = manager(4, 8);
    let mut seq = seq(4, 0..13);
    admit(&mut kv, 0, &seq);
    seq.push(13);
    extend(&mut kv, 0, &seq, 13, 14);
    free(&mut kv, 0); // preempted
    assert_eq!(admit(&mut kv, 0, &seq), 12);
    assert_eq!(kv.block_table(RequestId(0)).len(), 14usize.div_ceil(4));
}

#[test]
fn dynamo_13188_blocks_of_every_chunk_are_hit() {
    for chunk in [1, 3, 4, 7, 16, 30] {
        let mut kv = manager(4, 16);
        let prompt = seq(4, 0..30);
        let mut done = 0;
        while done < 30 {
            let end = (done + chunk).min(30);
            extend(&mut kv, 0, &prompt, done, end);
            done = end;
        }
        assert_eq!(kv.lookup(&seq(4, 0..40)).blocks.len(), 30 / 4, "{chunk}");
        // sglang 2555: a prompt's own earlier chunks are no hits.
        assert_eq!(kv.stats().hit_blocks, 0, "{chunk}");
    }
}

#[test]
fn sglang_11898_a_preempted_request_hits_less_than_its_tokens() {
    let mut kv = manager(4, 16);
    let mut one = seq(4, 0..8);
    admit(&mut kv, 0, &one);
    for token in 8..24 {
        one.push(token);
        extend(&mut kv, 0, &one, token as usize, token as usize + 1);
        free(&mut kv, 0); // preempted at every length
        let hit = admit(&mut kv, 0, &one);
        assert_eq!(hit, (one.len() - 1) / 4 * 4);
    }
    assert_eq!(kv.evicted_total(), 0);
}

#[test]
fn sglang_16067_a_refused_allocation_leaves_everything_as_it_was() {
    // A pool of every size up to the need: whichever call is refused first changes nothing, and
    // giving up returns to the baseline (sglang 6888: free and reclaimable blocks are the pool).
    for num_blocks in 1..=8 {
        let mut kv = manager_with(4, num_blocks, false, FreePlacement::UnhashedToHead);
        let prompt = seq(4, 0..32);
        let mut done = 0;
        while done < 32 && kv.allocate(RequestId(0), &prompt, done, &miss(), 3.min(32 - done)) {
            done += 3.min(32 - done);
            kv.commit(RequestId(0), done);
        }
        assert_eq!(done < 32, num_blocks < 8);
        let before = (
            kv.free_queue(),
            kv.buckets(),
            kv.block_table(RequestId(0)).to_vec(),
        );
        if num_blocks < 8 {
            assert!(!kv.allocate(RequestId(0), &prompt, done, &miss(), 32 - done));
            assert!(!kv.allocate(RequestId(1), &seq(4, 50..90), 0, &miss(), 40));
        }
        let after = (
            kv.free_queue(),
            kv.buckets(),
            kv.block_table(RequestId(0)).to_vec(),
        );
        assert_eq!((before, kv.live_requests()), (after, 1));
        free(&mut kv, 0);
        let buckets = kv.buckets();
        assert_eq!(buckets.free + buckets.reclaimable, num_blocks);
        assert_eq!((buckets.active, buckets.reclaimable), (0, done / 4));
    }
}

#[test]
fn sglang_jax_982_the_free_queue_never_holds_a_block_twice() {
    let mut kv = manager_with(4, 8, true, FreePlacement::UnhashedToHead);
    for round in 0..40 {
        let shared = seq(4, (0..8).chain([100 + round]));
        admit(&mut kv, 0, &shared);
        admit(&mut kv, 1, &shared);
        for id in [round as u64 % 2, 1 - round as u64 % 2] {
            free(&mut kv, id);
            let mut queue = kv.free_queue();
            queue.sort_unstable();
            queue.dedup();
            assert_eq!(queue.len(), kv.free_blocks());
            free(&mut kv, id); // freeing what holds nothing is no second free
        }
        assert_eq!(kv.free_blocks(), 7);
    }
}

#[test]
fn evicting_one_duplicate_leaves_the_other_reachable() {
    for verify in [false, true] {
        let config = KvConfig {
            verify_tokens: verify,
            placement: FreePlacement::Append,
            ..KvConfig::new(4, 6, PrefixCacheKind::HashChain)
        };
        let mut kv = KvManager::new(config).unwrap();
        let prompt = seq(4, 0..5);
        // The second request skips the lookup, as one that wants prompt log-probabilities does.
        extend(&mut kv, 0, &prompt, 0, 5);
        extend(&mut kv, 1, &prompt, 0, 5);
        assert_eq!(kv.lookup(&prompt).blocks, ids(&[0]), "the first registered");
        free(&mut kv, 0); // queue 4,5,1,0
        admit(&mut kv, 2, &seq(4, 100..116));
        assert_eq!(kv.block_table(RequestId(2)), ids(&[4, 5, 1, 0]));
        assert_eq!(
            (kv.evicted_total(), kv.lookup(&prompt).blocks),
            (1, ids(&[2]))
        );
        free(&mut kv, 1);
        assert_eq!(kv.lookup(&prompt).blocks, ids(&[2]));
    }
}

#[test]
fn a_chain_continues_through_the_second_copy_of_its_head() {
    for verify in [false, true] {
        let config = KvConfig {
            verify_tokens: verify,
            ..KvConfig::new(4, 4, PrefixCacheKind::HashChain)
        };
        let mut kv = KvManager::new(config).unwrap();
        let long = seq(4, 0..9);
        extend(&mut kv, 0, &long, 0, 4);
        extend(&mut kv, 1, &long, 0, 8);
        free(&mut kv, 0);
        assert_eq!(kv.free_queue(), ids(&[3, 0]));
        admit(&mut kv, 2, &seq(4, 50..58)); // evicts block 0, the first registered head
        assert_eq!(
            kv.lookup(&long).blocks,
            ids(&[1, 2]),
            "the copy of the head is found"
        );
        kv.check().unwrap();
    }
}

#[test]
fn reset_is_refused_with_work_in_flight_and_then_all_miss() {
    let mut kv = manager_with(4, 9, true, FreePlacement::UnhashedToHead);
    let prompt = seq(4, 0..17);
    admit(&mut kv, 0, &prompt);
    assert!(!kv.reset());
    assert_eq!(
        kv.lookup(&prompt).tokens(4),
        16,
        "a refused reset changes nothing"
    );
    free(&mut kv, 0);
    assert!(kv.reset());
    kv.check().unwrap();
    assert_eq!(kv.lookup(&prompt), miss());
    assert_eq!(
        kv.buckets(),
        Buckets {
            active: 0,
            reclaimable: 0,
            free: 8
        }
    );
    assert_eq!(kv.evicted_total(), 0);
}

#[test]
fn without_a_cache_nothing_is_reclaimable() {
    let mut kv = KvManager::new(KvConfig::new(4, 8, PrefixCacheKind::None)).unwrap();
    let prompt = seq(4, 0..17);
    admit(&mut kv, 0, &prompt);
    assert_eq!(kv.lookup(&prompt), miss());
    free(&mut kv, 0);
    assert_eq!(
        kv.buckets(),
        Buckets {
            active: 0,
            reclaimable: 0,
            free: 8
        }
    );
    assert_eq!(
        kv.free_queue(),
        ids(&[5, 6, 7, 4, 3, 2, 1, 0]),
        "placement is append"
    );
}

#[test]
fn impossible_pools_are_refused_with_the_key_and_the_value() {
    let make = |block_size, num_blocks, null_block| {
        let config = KvConfig {
            null_block,
            ..KvConfig::new(block_size, num_blocks, PrefixCacheKind::HashChain)
        };
        KvManager::new(config).err().map(|error| error.to_string())
    };
    assert_eq!(
        make(0, 8, false).unwrap(),
        "block_size = 0: must be at least 1"
    );
    assert_eq!(
        make(4, 0, false).unwrap(),
        "num_blocks = 0: leaves no usable block"
    );
    let one = make(4, 1, true).unwrap();
    assert_eq!(
        one,
        "num_blocks = 1: leaves no usable block beside the null block"
    );
    let huge = KvConfig::new(4, usize::MAX, PrefixCacheKind::None);
    let error = KvManager::new(huge).unwrap_err();
    assert_eq!(
        error,
        KvError::TooManyBlocks {
            num_blocks: usize::MAX
        }
    );
    assert_eq!(make(4, 1, false), None);
    let tree = KvManager::new(KvConfig::new(4, 8, PrefixCacheKind::Radix)).unwrap_err();
    assert_eq!(
        tree.to_string(),
        "prefix_cache = Radix: not a block-hash chain; make it with `build`"
    );
}
