//! Several continuations of one prompt share its blocks.

use pb_contract::{BlockId, RequestId};
use pb_kv::Hit;

use crate::{Subject, every_cache};

/// A parent that has computed `tokens` tokens.
fn parent(s: &mut Subject, tokens: usize) -> pb_kv::HashedTokens {
    let seq = s.seq(0..tokens as u32);
    s.admit(0, &seq);
    s.commit(0, &seq);
    s.cache.take_moves();
    seq
}

fn fork(s: &mut Subject, child: u64, tokens: usize) {
    s.cache.fork(RequestId(0), RequestId(child), tokens);
    s.check();
}

#[test]
fn a_fork_shares_all_blocks_and_takes_none() {
    every_cache(&[1, 4, 16], 20, |s| {
        let tokens = 2 * s.block_size() + 1;
        parent(s, tokens);
        let free = s.cache.free_blocks();
        for child in 1..4 {
            fork(s, child, tokens);
            assert_eq!(s.table(child), s.table(0));
        }
        assert_eq!(s.cache.free_blocks(), free);
        for block in s.table(0) {
            assert_eq!(s.cache.ref_count(block), 4);
            let holders: Vec<_> = (0..4).map(RequestId).collect();
            assert_eq!(s.cache.holders(block), holders);
        }
        (0..4).for_each(|id| s.free(id));
        assert_eq!(s.cache.free_blocks(), 20);
    });
}

#[test]
fn the_partial_block_is_copied_for_each_writer_but_the_last() {
    // vllm #5578 and its kind: n = 4 continuations of one prompt.
    every_cache(&[4, 16], 20, |s| {
        let tokens = 2 * s.block_size() + 2;
        let prompt = parent(s, tokens);
        (1..4).for_each(|child| fork(s, child, tokens));
        let shared = s.table(0);
        let mut written: Vec<BlockId> = Vec::new();
        for id in 0..4 {
            let mut seq = prompt.clone();
            seq.push(500 + id as u32);
            let last = id == 3;
            let needed = s
                .cache
                .blocks_needed(RequestId(id), tokens, &Hit::default(), 1);
            assert_eq!(needed, usize::from(!last), "continuation {id}");
            assert!(s.grow(id, &seq, tokens));
            let copies = s.cache.take_moves().copies;
            let table = s.table(id);
            assert_eq!(table[..2], shared[..2]);
            match last {
                true => assert_eq!((copies, table[2]), (vec![], shared[2])),
                false => assert_eq!(copies, [(shared[2], table[2])]),
            }
            written.push(table[2]);
            s.commit(id, &seq);
            // Once only: the next token goes into the same block.
            seq.push(900);
            assert!(s.grow(id, &seq, tokens + 1));
            assert!(s.cache.take_moves().copies.is_empty());
            s.commit(id, &seq);
        }
        written.sort_unstable();
        written.dedup();
        assert_eq!(written.len(), 4, "each writes into a block of its own");
        (0..4).for_each(|id| s.free(id));
        assert_eq!(s.cache.free_blocks(), 20);
    });
}

#[test]
fn a_fork_at_a_block_boundary_copies_nothing() {
    every_cache(&[1, 4, 16], 20, |s| {
        let tokens = 3 * s.block_size();
        let prompt = parent(s, tokens);
        fork(s, 1, tokens);
        for id in [0, 1] {
            let mut seq = prompt.clone();
            seq.push(70 + id as u32);
            assert!(s.grow(id, &seq, tokens));
            s.commit(id, &seq);
            assert_eq!(s.table(id)[..3], s.table(0)[..3]);
        }
        assert!(s.cache.take_moves().copies.is_empty());
        assert_ne!(s.table(0)[3], s.table(1)[3]);
    });
}

#[test]
fn a_fork_inside_a_cached_block_does_not_write_into_it() {
    every_cache(&[4, 16], 20, |s| {
        let b = s.block_size();
        let prompt = parent(s, 3 * b);
        let fork_at = b + 2;
        fork(s, 1, fork_at);
        let cached = s.table(0);
        assert_eq!(s.table(1), cached[..2]);
        s.finish(0, &prompt);
        // The child is the only holder now, and the block's data is still worth having.
        let mut seq = s.seq(0..fork_at as u32);
        seq.extend(&[600, 601]);
        assert!(s.grow(1, &seq, fork_at));
        s.commit(1, &seq);
        if s.shared(1) == 1 {
            assert_eq!(s.cache.take_moves().copies, [(cached[1], s.table(1)[1])]);
        }
        let again = s.seq(0..3 * b as u32 + 1);
        assert_eq!(s.hit_tokens(&again), s.shared(3 * b));
    });
}

#[test]
fn a_fork_without_room_for_its_copy_is_refused() {
    every_cache(&[4], 3, |s| {
        let prompt = parent(s, 10);
        fork(s, 1, 10);
        let mut seq = prompt.clone();
        seq.push(8);
        // All three blocks are in use, so there is no block for the copy.
        assert!(!s.grow(1, &seq, 10));
        assert!(s.cache.take_moves().copies.is_empty());
        s.free(0);
        assert!(s.grow(1, &seq, 10), "it is alone now and writes in place");
        assert!(s.cache.take_moves().copies.is_empty());
    });
}
