//! Forks, copies on write, and what is told about data that must move.

mod common;

use common::{admit, extend, free, ids, manager, manager_with, miss, seq};
use pb_contract::{Buckets, PrefixCacheKind, RequestId};
use pb_kv::{Evicted, FreePlacement, KvConfig, KvManager, Moves};

const PARENT: RequestId = RequestId(0);

fn copies(kv: &mut KvManager) -> Vec<(u32, u32)> {
    let moves = kv.take_moves();
    assert!(moves.evicted.is_empty());
    let numbers = moves.copies.iter().map(|(from, to)| (from.0, to.0));
    numbers.collect()
}

#[test]
fn forks_share_and_copy_the_partial_block_once() {
    for kind in [PrefixCacheKind::HashChain, PrefixCacheKind::None] {
        // n = 3: ten prompt tokens in blocks 0, 1 and half of 2.
        let mut kv = KvManager::new(KvConfig::new(4, 12, kind)).unwrap();
        let prompt = seq(4, 0..10);
        admit(&mut kv, 0, &prompt);
        for child in [1, 2] {
            kv.fork(PARENT, RequestId(child), 10);
            kv.check().unwrap();
            assert_eq!(kv.block_table(RequestId(child)), ids(&[0, 1, 2]));
        }
        assert_eq!(kv.free_blocks(), 9, "sharing takes no block");
        ids(&[0, 1, 2])
            .iter()
            .for_each(|&b| assert_eq!(kv.ref_count(b), 3));
        assert_eq!(kv.holders(ids(&[2])[0]), [0, 1, 2].map(RequestId));
        // Each writes its first own token: two copies, and the last one keeps the original.
        let mut tables = Vec::new();
        for id in [1, 0, 2] {
            let own = seq(4, (0..10).chain([100 + id as u32]));
            let shared = kv.ref_count(ids(&[2])[0]) > 1;
            let needed = kv.blocks_needed(RequestId(id), 10, &miss(), 1);
            assert_eq!(needed, usize::from(shared));
            let before = kv.free_blocks();
            extend(&mut kv, id, &own, 10, 11);
            assert_eq!(kv.free_blocks(), before - needed);
            tables.push(kv.block_table(RequestId(id)).to_vec());
        }
        assert_eq!(tables, [ids(&[0, 1, 3]), ids(&[0, 1, 4]), ids(&[0, 1, 2])]);
        assert_eq!(copies(&mut kv), [(2, 3), (2, 4)]);
        assert_eq!(kv.take_moves(), Moves::default(), "told once");
        assert_eq!(kv.stats().copied_blocks, 2);
        // vllm 5578: everything comes back, each block once, whoever ends first.
        for id in [0, 2, 1] {
            free(&mut kv, id);
        }
        let reclaimable = if kind == PrefixCacheKind::None { 0 } else { 2 };
        let expected = Buckets {
            active: 0,
            reclaimable,
            free: 12 - reclaimable,
        };
        assert_eq!(kv.buckets(), expected);
    }
}

#[test]
fn full_blocks_are_never_copied() {
    let mut kv = manager(4, 8);
    let prompt = seq(4, 0..8);
    admit(&mut kv, 0, &prompt);
    kv.fork(PARENT, RequestId(1), 8);
    for id in [0, 1] {
        let own = seq(4, (0..8).chain([50 + id as u32]));
        assert_eq!(kv.blocks_needed(RequestId(id), 8, &miss(), 1), 1);
        extend(&mut kv, id, &own, 8, 9);
    }
    assert_eq!(copies(&mut kv), []);
    assert_eq!(kv.block_table(RequestId(1)), ids(&[0, 1, 3]));
}

#[test]
fn a_block_that_the_parent_filled_after_the_fork_point_is_copied() {
    // Block 1 is full and named by the parent, but half of it is not the child's: when only the
    // child holds it, writing in place would change what its name promises.
    let mut kv = manager(4, 8);
    admit(&mut kv, 0, &seq(4, 0..8));
    kv.fork(PARENT, RequestId(1), 6);
    free(&mut kv, 0);
    let child = seq(4, [0, 1, 2, 3, 4, 5, 60, 61, 62]);
    assert_eq!(kv.ref_count(ids(&[1])[0]), 1);
    extend(&mut kv, 1, &child, 6, 9);
    assert_eq!(copies(&mut kv), [(1, 2)]);
    assert_eq!(kv.block_table(RequestId(1)), ids(&[0, 2, 3]));
    assert_eq!(kv.lookup(&seq(4, 0..9)).blocks, ids(&[0, 1]));
    assert_eq!(kv.lookup(&child).blocks, ids(&[0, 2]));
}

#[test]
fn a_copy_that_does_not_fit_is_refused_without_effect() {
    let mut kv = manager(4, 2);
    admit(&mut kv, 0, &seq(4, 0..6));
    kv.fork(PARENT, RequestId(1), 6);
    let child = seq(4, 0..7);
    assert!(!kv.allocate(RequestId(1), &child, 6, &miss(), 1));
    assert_eq!(kv.block_table(RequestId(1)), ids(&[0, 1]));
    assert_eq!(copies(&mut kv), []);
    // vllm 5578: when the other ends, it goes on in place.
    free(&mut kv, 0);
    extend(&mut kv, 1, &child, 6, 7);
    assert_eq!(copies(&mut kv), []);
}

#[test]
fn a_fork_of_what_is_not_committed_is_refused() {
    let mut kv = manager(4, 8);
    assert!(kv.allocate(PARENT, &seq(4, 0..8), 0, &miss(), 8));
    let fork = std::panic::AssertUnwindSafe(|| kv.fork(PARENT, RequestId(1), 8));
    assert!(std::panic::catch_unwind(fork).is_err());
}

#[test]
fn evictions_are_told_with_their_names_when_asked_for() {
    for record_evictions in [true, false] {
        let config = KvConfig {
            record_evictions,
            placement: FreePlacement::Append,
            ..KvConfig::new(4, 4, PrefixCacheKind::HashChain)
        };
        let mut kv = KvManager::new(config).unwrap();
        let old = seq(4, 0..14);
        admit(&mut kv, 0, &old);
        free(&mut kv, 0);
        admit(&mut kv, 1, &seq(4, 100..110)); // queue 3,2,1,0: block 3 holds nothing
        let expected = [2, 1].map(|block| Evicted {
            block: ids(&[block])[0],
            hash: old.hashes()[block as usize],
        });
        let told = kv.take_moves().evicted;
        match record_evictions {
            true => assert_eq!(told, expected),
            false => assert_eq!(told, []),
        }
        assert_eq!(kv.evicted_total(), 2);
        assert_eq!(kv.take_moves(), Moves::default());
    }
}

#[test]
fn statistics_follow_the_injected_time() {
    let mut kv = manager_with(4, 4, false, FreePlacement::Append);
    let (first, other) = (seq(4, 0..16), seq(4, 100..116));
    kv.set_now(10);
    admit(&mut kv, 0, &first);
    kv.set_now(30);
    free(&mut kv, 0);
    kv.set_now(70);
    admit(&mut kv, 1, &seq(4, 0..9)); // two blocks after 40 ns and no allocation
    let stats = kv.stats();
    assert_eq!((stats.hit_blocks, stats.reuse_gap_ns.sum()), (2, 80));
    assert_eq!(stats.reuse_distance_blocks.sum(), 0);
    // The block for token 8 was block 3, evicted after 60 ns of which 40 were idle.
    assert_eq!(
        (stats.lifetime_ns.sum(), stats.idle_before_evict_ns.sum()),
        (60, 40)
    );
    kv.set_now(100);
    free(&mut kv, 1);
    kv.set_now(200);
    admit(&mut kv, 2, &other);
    kv.set_now(300);
    free(&mut kv, 2);
    // Three more evictions at 200: blocks 0 and 1 idle since 100, block 2 since 30.
    let stats = kv.stats();
    assert_eq!(stats.lifetime_ns.sum(), 60 + 3 * 190);
    assert_eq!(stats.idle_before_evict_ns.sum(), 40 + 100 + 100 + 170);
    assert_eq!(stats.thrash_index(), Some(0.0));
    // Three prompts of two blocks in turn: the first round is new, the second is work done again.
    for (id, first) in [300, 400, 500, 300, 400, 500].into_iter().enumerate() {
        admit(&mut kv, 3 + id as u64, &seq(4, first..first + 8));
        free(&mut kv, 3 + id as u64);
    }
    let stats = kv.stats();
    assert_eq!((stats.evicted_blocks, stats.recomputed_blocks), (4 + 12, 6));
    assert_eq!(stats.allocated_blocks, 4 + 1 + 4 + 12);
}
