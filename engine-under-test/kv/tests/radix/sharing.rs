//! Requests that share pages of the tree: chunk by chunk, by hits and by forks.

use pb_contract::{Buckets, RequestId};
use pb_kv::{Hit, PrefixCache};

use crate::short::{admit, cache, commit, extend, finish, free, ids, run, seq, table};

/// Row 16: two identical prompts interleaved chunk by chunk. Both compute all of it, so that
/// every page has a duplicate, and each block is freed once.
#[test]
fn two_identical_prompts_interleaved_chunk_by_chunk() {
    for page_size in [1, 4] {
        let mut kv = cache(page_size, 32 / page_size);
        let prompt = seq(&kv, 0..14);
        let chunks = [(0, 5), (5, 4), (9, 5)];
        for (computed, tokens) in chunks {
            for id in [0, 1] {
                match computed {
                    // Looked up before anything is committed: both miss.
                    0 => assert_eq!(admit(&mut kv, id, &prompt, tokens), Some(0)),
                    _ => assert!(extend(&mut kv, id, &prompt, computed, tokens)),
                }
            }
            for id in [0, 1] {
                commit(&mut kv, id, &prompt, computed + tokens);
            }
            let whole = (computed + tokens) / page_size;
            let (first, second) = (table(&kv, 0), table(&kv, 1));
            assert_eq!(
                first[..whole],
                second[..whole],
                "both read the tree's pages"
            );
            let own = first.len() - whole;
            let expected = whole + 2 * own;
            assert_eq!(kv.buckets().active, expected, "no page twice but the tails");
        }
        finish(&mut kv, 0, &prompt);
        finish(&mut kv, 1, &prompt);
        let pages = 14 / page_size;
        let idle = Buckets {
            active: 0,
            reclaimable: pages,
            free: 32 / page_size - pages,
        };
        assert_eq!(kv.buckets(), idle);
        assert_eq!(kv.free_queue().len(), 32 / page_size);
    }
}

/// At most `n - 1` tokens, down to whole pages (1b, row 9).
#[test]
fn the_last_token_is_never_hit() {
    let mut kv = cache(4, 16);
    let stored = seq(&kv, 0..12);
    run(&mut kv, 0, &stored);
    finish(&mut kv, 0, &stored);
    for (len, hit) in [(12, 8), (13, 12), (8, 4), (4, 0), (3, 0), (1, 0)] {
        let prompt = seq(&kv, 0..len);
        assert_eq!(kv.lookup(&prompt).tokens(4), hit, "{len} tokens");
    }
}

/// Free blocks are handed out first in, first out, and eviction adds a leaf's pages in order.
#[test]
fn blocks_are_handed_out_in_the_announced_order() {
    let mut kv = cache(2, 8);
    let first = seq(&kv, [1, 1, 2, 2, 3, 3]);
    run(&mut kv, 0, &first);
    assert_eq!(table(&kv, 0), ids(&[0, 1, 2]));
    finish(&mut kv, 0, &first);
    let second = seq(&kv, [5, 5, 6]);
    run(&mut kv, 1, &second);
    assert_eq!(table(&kv, 1), ids(&[3, 4]));
    finish(&mut kv, 1, &second); // block 4 was half full: free, behind 5, 6 and 7
    assert_eq!(kv.free_queue(), ids(&[5, 6, 7, 4, 0, 1, 2, 3]));
    let third = seq(&kv, 100..110);
    assert_eq!(admit(&mut kv, 2, &third, 10), Some(0));
    // One block short: the oldest leaf goes whole, and two of its blocks stay free.
    assert_eq!(table(&kv, 2), ids(&[5, 6, 7, 4, 0]));
    assert_eq!(kv.free_queue(), ids(&[1, 2, 3]));
    assert_eq!(kv.evicted_total(), 3);
    let hashes = first.hashes();
    let evicted = kv.take_moves().evicted;
    assert_eq!(evicted.len(), 3);
    assert!(
        evicted
            .iter()
            .zip(hashes)
            .all(|(moved, hash)| moved.hash == *hash)
    );
}

/// Row 22: children share the whole pages and the partial one; only the partial one is copied.
#[test]
fn a_fork_copies_the_partial_page_alone() {
    let mut kv = cache(4, 16);
    let prompt = seq(&kv, 0..10);
    run(&mut kv, 0, &prompt);
    kv.fork(RequestId(0), RequestId(1), 10);
    kv.fork(RequestId(0), RequestId(2), 10);
    kv.check().unwrap();
    assert_eq!(table(&kv, 1), table(&kv, 0));
    let partial = table(&kv, 0)[2];
    assert_eq!(kv.ref_count(partial), 3);
    let free_before = kv.free_blocks();
    for (id, token) in [(0, 50), (1, 51), (2, 52)] {
        let mut own = prompt.clone();
        own.push(token);
        let needed = kv.blocks_needed(RequestId(id), 10, &Hit::default(), 1);
        assert_eq!(
            needed,
            usize::from(id < 2),
            "the last holder writes in place"
        );
        assert!(extend(&mut kv, id, &own, 10, 1));
        commit(&mut kv, id, &own, 11);
    }
    let copies = kv.take_moves().copies;
    assert_eq!(
        copies,
        [(partial, table(&kv, 0)[2]), (partial, table(&kv, 1)[2])]
    );
    assert_eq!(table(&kv, 2)[2], partial);
    assert_eq!(free_before - kv.free_blocks(), 2);
    for id in 0..3 {
        free(&mut kv, id);
    }
    assert_eq!((kv.buckets().active, kv.buckets().reclaimable), (0, 2));
}

/// A fork in the middle of a page that is in the tree: the tree's page is never written.
#[test]
fn a_fork_within_a_stored_page_copies_it() {
    let mut kv = cache(4, 16);
    let prompt = seq(&kv, 0..12);
    run(&mut kv, 0, &prompt);
    kv.fork(RequestId(0), RequestId(1), 6);
    kv.check().unwrap();
    let stored = table(&kv, 0)[1];
    finish(&mut kv, 0, &prompt);
    // The child alone holds the page now, and it is in the tree all the same.
    assert_eq!(kv.ref_count(stored), 1);
    let child = seq(&kv, [0, 1, 2, 3, 4, 5, 90, 91, 92]);
    assert_eq!(kv.blocks_needed(RequestId(1), 6, &Hit::default(), 3), 2);
    assert!(extend(&mut kv, 1, &child, 6, 3));
    assert_eq!(kv.take_moves().copies, [(stored, table(&kv, 1)[1])]);
    commit(&mut kv, 1, &child, 9);
    assert_eq!(kv.lookup(&seq(&kv, 0..13)).tokens(4), 12);
    finish(&mut kv, 1, &child);
}

/// Row 13, 1b row 17: a flush is refused while anything runs, and all-miss after it.
#[test]
fn a_flush_is_refused_while_a_request_runs() {
    let mut kv = cache(4, 8);
    let prompt = seq(&kv, 0..9);
    run(&mut kv, 0, &prompt);
    assert!(!kv.reset());
    assert_eq!(kv.lookup(&prompt).tokens(4), 8);
    finish(&mut kv, 0, &prompt);
    assert!(kv.reset());
    kv.check().unwrap();
    assert_eq!(kv.lookup(&prompt).tokens(4), 0);
    assert_eq!(kv.free_queue(), ids(&[0, 1, 2, 3, 4, 5, 6, 7]));
}

/// An answer of a thousand tokens does not become a thousand nodes.
#[test]
fn decoding_extends_the_requests_own_node() {
    let mut kv = cache(1, 1100);
    let mut answer = seq(&kv, 0..10);
    run(&mut kv, 0, &answer);
    for computed in 10..1010 {
        answer.push(computed as u32);
        assert!(kv.allocate(RequestId(0), &answer, computed, &Hit::default(), 1));
        kv.commit(RequestId(0), &answer, computed + 1);
    }
    kv.check().unwrap();
    assert!(kv.tree().state().nodes.len() <= 2);
    // Held by two, the node is left alone.
    assert_eq!(run(&mut kv, 1, &answer), 1009);
    answer.push(5000);
    assert!(extend(&mut kv, 1, &answer, 1010, 1));
    commit(&mut kv, 1, &answer, 1011);
    finish(&mut kv, 0, &answer);
    finish(&mut kv, 1, &answer);
    assert_eq!(kv.buckets().reclaimable, 1011);
}
