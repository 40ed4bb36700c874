//! Blocks are counted right, whatever happens.

use pb_contract::{Buckets, RequestId};
use pb_kv::Hit;

use crate::{Subject, every_cache};

const SIZES: [usize; 3] = [1, 4, 16];

#[test]
fn a_table_covers_its_tokens_and_not_a_block_more() {
    every_cache(&SIZES, 30, |s| {
        let b = s.block_size();
        let mut seq = s.seq([]);
        for (n, token) in (0..3 * b as u32 + 2).enumerate() {
            seq.push(token);
            let needed = s.cache.blocks_needed(RequestId(0), n, &Hit::default(), 1);
            assert_eq!(needed, usize::from(n.is_multiple_of(b)));
            assert!(s.grow(0, &seq, n));
            s.commit(0, &seq);
            assert_eq!(s.table(0).len(), seq.len().div_ceil(b));
            assert_eq!(s.cache.buckets().active, seq.len().div_ceil(b));
        }
    });
}

#[test]
fn a_need_is_announced_exactly_and_a_refusal_changes_nothing() {
    every_cache(&SIZES, 8, |s| {
        let b = s.block_size();
        let cached = s.seq(0..3 * b as u32);
        s.cache_all(0, &cached);
        let running = s.seq(100..100 + 2 * b as u32);
        s.admit(1, &running);
        s.commit(1, &running);
        // Six free, up to three of them with data that a longer prompt hits.
        assert_eq!(s.cache.free_blocks(), 6);
        for blocks in 4..=9 {
            let seq = s.seq(0..(blocks * b) as u32);
            let hit = s.cache.lookup(&seq);
            assert_eq!(hit.blocks.len(), s.shared(3));
            let new = seq.len() - hit.tokens(b);
            // The hit blocks are unreferenced, so they count like new ones.
            let needed = s.cache.blocks_needed(RequestId(2), 0, &hit, new);
            assert_eq!(needed, blocks);
            let seen = |s: &Subject| {
                let cache = &s.cache;
                let state = (cache.free_queue(), cache.buckets(), cache.evicted_total());
                (state, s.table(1), s.table(2), cache.live_requests())
            };
            let before = seen(s);
            let allocated = s.cache.allocate(RequestId(2), &seq, 0, &hit, new);
            s.check();
            assert_eq!(allocated, blocks <= 6, "{blocks} blocks");
            if allocated {
                assert_eq!(s.cache.free_blocks(), 6 - blocks);
                s.free(2);
                s.cache_all(3, &cached);
            } else {
                assert_eq!(seen(s), before);
            }
        }
        // With the hit referenced by another, only the new blocks count.
        let holder = s.seq(0..3 * b as u32 + 1);
        s.admit(4, &holder);
        let seq = s.seq(0..4 * b as u32);
        let hit = s.cache.lookup(&seq);
        let new = seq.len() - hit.tokens(b);
        let needed = s.cache.blocks_needed(RequestId(5), 0, &hit, new);
        assert_eq!(needed, 4 - s.shared(3));
    });
}

#[test]
fn everything_comes_back() {
    // sglang #6888, #11970, #140; sglang-jax #982.
    every_cache(&SIZES, 24, |s| {
        let b = s.block_size() as u32;
        let seqs: Vec<_> = (0..6)
            .map(|i| s.seq((0..(i % 3) * b).chain(100 * i..100 * i + b + 1)))
            .collect();
        for (id, seq) in seqs.iter().enumerate() {
            s.admit(id as u64, seq);
        }
        seqs.iter()
            .enumerate()
            .for_each(|(id, seq)| s.commit(id as u64, seq));
        for (id, seq) in seqs.iter().enumerate() {
            match id % 2 {
                0 => s.finish(id as u64, seq),
                _ => s.free(id as u64),
            }
            assert!(s.table(id as u64).is_empty());
        }
        let Buckets {
            active,
            reclaimable,
            free,
        } = s.cache.buckets();
        assert_eq!((active, reclaimable + free), (0, 24));
        assert_eq!((s.cache.free_blocks(), s.cache.live_requests()), (24, 0));
        // Releasing what holds nothing is fine: the request was still waiting.
        s.free(77);
        assert_eq!(s.cache.free_blocks(), 24);
        // And all of it can be used.
        s.admit_cold(50, &s.seq(5000..5000 + 24 * b));
        assert_eq!(s.cache.free_blocks(), 0);
    });
}

#[test]
fn blocks_in_use_are_not_handed_out() {
    every_cache(&SIZES, 10, |s| {
        let b = s.block_size() as u32;
        let shared = s.seq(0..3 * b + 1);
        s.admit(0, &shared);
        s.commit(0, &shared);
        let held = s.table(0);
        for round in 0..20 {
            let seq = s.seq(100 * (round + 1)..100 * (round + 1) + 6 * b);
            s.admit(1, &seq);
            s.commit(1, &seq);
            let table = s.table(1);
            assert!(table.iter().all(|block| !held.contains(block)));
            assert!(!s.grow(2, &s.seq(9000..9000 + b), 0), "the pool is full");
            s.finish(1, &seq);
        }
        assert_eq!(s.table(0), held);
        assert_eq!(s.hit_tokens(&shared), s.shared(3 * b as usize));
    });
}

#[test]
fn the_null_block_is_never_handed_out() {
    every_cache(&[4], 6, |s| {
        let null_block = s.cache.config().null_block;
        s.admit(0, &s.seq(0..24));
        assert_eq!(s.cache.usable_blocks(), 6);
        assert_eq!(s.table(0).contains(&pb_contract::BlockId(0)), !null_block);
    });
}

#[test]
fn a_reset_waits_for_running_requests_and_then_forgets_all() {
    every_cache(&SIZES, 12, |s| {
        let b = s.block_size() as u32;
        let known = s.seq(0..2 * b + 1);
        s.cache_all(0, &known);
        let running = s.seq(300..300 + b);
        s.admit(1, &running);
        assert!(!s.cache.reset());
        s.check();
        assert_eq!(s.hit_tokens(&known), s.shared(2 * b as usize));
        s.commit(1, &running);
        assert!(!s.cache.reset());
        s.finish(1, &running);
        assert!(s.cache.reset());
        s.check();
        assert_eq!(s.hit_tokens(&known), 0);
        assert_eq!(
            s.cache.buckets(),
            Buckets {
                active: 0,
                reclaimable: 0,
                free: 12
            }
        );
        // And it works on.
        s.cache_all(2, &known);
        assert_eq!(s.hit_tokens(&known), s.shared(2 * b as usize));
    });
}

#[test]
fn wrong_sizes_are_refused() {
    use pb_kv::{KvConfig, KvError, build};
    for config in crate::kinds(4, 8) {
        let with = |block_size, num_blocks| {
            let config = KvConfig {
                block_size,
                num_blocks,
                ..config
            };
            build(config).map(|_| ())
        };
        assert_eq!(with(0, 8), Err(KvError::ZeroBlockSize), "{config:?}");
        let smallest = usize::from(config.null_block);
        assert!(matches!(
            with(4, smallest),
            Err(KvError::NoUsableBlock { .. })
        ));
        assert!(matches!(
            with(4, usize::MAX),
            Err(KvError::TooManyBlocks { .. })
        ));
        assert_eq!(with(4, smallest + 1), Ok(()));
    }
}
