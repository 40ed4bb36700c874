//! Faults that users of other engines have reported, each as the scenario that shows it.
//!
//! The number in a test's name is that of the report in the project that the name begins with.

mod common;

use common::{admit, free, ids, manager, manager_with, miss, scope, scoped, seq, with_hash};
use pb_contract::{Buckets, PrefixCacheKind, RequestId};
use pb_kv::{CacheScope, FreePlacement, HashKind, KvConfig, KvError, KvManager};

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
fn vllm_3264_another_adapter_never_shares() {
    let mut kv = manager(4, 32);
    admit(&mut kv, 0, &scoped(4, &scope(Some("a"), None), 0..17));
    assert_eq!(
        kv.lookup(&scoped(4, &scope(Some("b"), None), 0..17)),
        miss()
    );
    assert_eq!(kv.lookup(&seq(4, 0..17)), miss());
    assert_eq!(
        kv.lookup(&scoped(4, &scope(Some("a"), None), 0..17))
            .tokens(4),
        16
    );
}

#[test]
fn vllm_30931_a_changed_identity_never_shares() {
    // The identity digests what is fixed for an engine: weights, adapter contents, positions, KV.
    let mut kv = manager(4, 32);
    let before = CacheScope {
        identity: [1; 32],
        ..scope(Some("a"), None)
    };
    let after = CacheScope {
        identity: [2; 32],
        ..before.clone()
    };
    admit(&mut kv, 0, &scoped(4, &before, 0..17));
    assert_eq!(kv.lookup(&scoped(4, &after, 0..17)), miss());
    assert_eq!(kv.lookup(&scoped(4, &before, 0..17)).tokens(4), 16);
}

#[test]
fn vllm_44701_adapter_x_is_not_salt_x() {
    let mut kv = manager(4, 32);
    admit(&mut kv, 0, &scoped(4, &scope(Some("x"), None), 0..17));
    assert_eq!(
        kv.lookup(&scoped(4, &scope(None, Some("x")), 0..17)),
        miss()
    );
    admit(&mut kv, 1, &scoped(4, &scope(None, Some("x")), 0..17));
    assert_eq!(
        kv.lookup(&scoped(4, &scope(None, Some("x")), 0..17))
            .tokens(4),
        16
    );
}

fn verifying(num_blocks: usize) -> KvManager {
    let config = KvConfig {
        verify_tokens: true,
        ..KvConfig::new(4, num_blocks, PrefixCacheKind::HashChain)
    };
    KvManager::new(config).unwrap()
}

#[test]
fn vllm_12621_a_colliding_digest_gives_no_wrong_hit() {
    let mut kv = verifying(64);
    let stub = |scope: &CacheScope, tokens: std::ops::Range<u32>| {
        with_hash(4, scope, HashKind::ConstantStub, tokens)
    };
    let plain = CacheScope::default();
    admit(&mut kv, 0, &stub(&plain, 0..17));
    assert_eq!(kv.lookup(&stub(&plain, 100..117)), miss());
    // The second block's own tokens agree, its prefix does not: 4..8 stands in both.
    let moved = with_hash(4, &plain, HashKind::ConstantStub, (50..54).chain(4..17));
    assert_eq!(kv.lookup(&moved), miss());
    // The right prefix is still found.
    assert_eq!(kv.lookup(&stub(&plain, 0..17)).blocks, ids(&[0, 1, 2, 3]));
    let diverging = with_hash(4, &plain, HashKind::ConstantStub, (0..8).chain(90..99));
    assert_eq!(kv.lookup(&diverging).blocks, ids(&[0, 1]));
}

#[test]
fn vllm_29163_a_colliding_digest_respects_every_key() {
    let mut kv = verifying(64);
    let scopes = [
        scope(None, None),
        scope(Some("x"), None),
        scope(None, Some("x")),
        CacheScope {
            identity: [1; 32],
            ..CacheScope::default()
        },
    ];
    for (id, one) in scopes.iter().enumerate() {
        let seq = with_hash(4, one, HashKind::ConstantStub, 0..17);
        assert_eq!(admit(&mut kv, id as u64, &seq), 0, "{one:?}");
        assert_eq!(kv.lookup(&seq).tokens(4), 16);
    }
}

#[test]
fn a_colliding_digest_without_comparison_does_give_a_wrong_hit() {
    // The control of the two tests above: what the comparison prevents really happens.
    let mut kv = manager(4, 64);
    let plain = CacheScope::default();
    admit(
        &mut kv,
        0,
        &with_hash(4, &plain, HashKind::ConstantStub, 0..17),
    );
    let other = with_hash(4, &plain, HashKind::ConstantStub, 100..117);
    assert_eq!(kv.lookup(&other).tokens(4), 16);
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
    admit(&mut kv, 0, &prompt);
    assert_eq!(admit(&mut kv, 1, &prompt), 16);
    // The execution failed, so the names of this step are taken back.
    let forgotten = kv.forget_uncomputed(RequestId(0), 0);
    assert_eq!(forgotten, ids(&[0, 1, 2, 3]));
    assert_eq!(kv.holders(forgotten[0]), [RequestId(0), RequestId(1)]);
    assert!(kv.forget_uncomputed(RequestId(1), 0).is_empty());
    kv.check().unwrap();
    assert_eq!(kv.lookup(&prompt), miss());
    free(&mut kv, 0);
    free(&mut kv, 1);
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
fn a_failed_later_chunk_keeps_earlier_names_and_is_named_again() {
    let mut kv = manager(4, 32);
    let prompt = seq(4, 0..17);
    assert!(kv.allocate(RequestId(0), &prompt, 0, &miss(), 8));
    assert!(kv.allocate(RequestId(0), &prompt, 8, &miss(), 9));
    assert_eq!(kv.forget_uncomputed(RequestId(0), 8), ids(&[2, 3]));
    assert_eq!(kv.lookup(&prompt).blocks, ids(&[0, 1]));
    // The chunk is scheduled again and its blocks get their names back.
    assert!(kv.allocate(RequestId(0), &prompt, 8, &miss(), 9));
    assert_eq!(kv.lookup(&prompt).blocks, ids(&[0, 1, 2, 3]));
    kv.check().unwrap();
}

#[test]
fn vllm_49250_forgetting_spares_blocks_that_came_from_the_cache() {
    let mut kv = manager(4, 32);
    admit(&mut kv, 0, &seq(4, 0..9));
    let longer = seq(4, 0..17);
    assert_eq!(admit(&mut kv, 1, &longer), 8);
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
    assert!(kv.allocate(RequestId(0), &seq, 13, &miss(), 1));
    free(&mut kv, 0); // preempted
    assert_eq!(admit(&mut kv, 0, &seq), 12);
    assert_eq!(kv.block_table(RequestId(0)).len(), 14usize.div_ceil(4));
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
        assert!(kv.allocate(RequestId(0), &prompt, 0, &miss(), 5));
        assert!(kv.allocate(RequestId(1), &prompt, 0, &miss(), 5));
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
        assert!(kv.allocate(RequestId(0), &long, 0, &miss(), 4));
        assert!(kv.allocate(RequestId(1), &long, 0, &miss(), 8));
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
}
