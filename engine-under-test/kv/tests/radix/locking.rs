//! Locks and splits of the tree: what is read stays, and sums are conserved.

use pb_contract::{BlockId, Eviction, Stream, TokenId};
use pb_kv::{BlockHash, RadixNodeId, RadixTree, Run};

fn sum_of_locked_tokens(tree: &RadixTree) -> usize {
    let nodes = tree.state().nodes;
    nodes
        .iter()
        .map(|node| node.len * node.locks as usize)
        .sum()
}

/// bytedance-iaas/sglang #508: a port did not split on a partial match and leaked locks.
#[test]
fn report_39_locking_then_splitting_conserves_the_sum_of_locks() {
    for page_size in [1, 4, 16] {
        let mut tree = RadixTree::new(page_size, Eviction::Lru);
        let key: Vec<TokenId> = (0..8 * page_size as TokenId).collect();
        tree.insert(&Run::bare(None, &key));
        let whole = tree.touch_and_split(None, &key);
        tree.lock(whole.node);
        tree.lock(whole.node);
        let before = sum_of_locked_tokens(&tree);
        assert_eq!(before, 2 * key.len());
        for pages in [5, 2, 7, 1] {
            let part = tree.touch_and_split(None, &key[..pages * page_size]);
            assert_eq!(part.tokens, pages * page_size);
            assert_eq!(sum_of_locked_tokens(&tree), before);
            assert_eq!(tree.protected(), key.len());
            tree.check().unwrap();
        }
        // The holders' node is still the one that they unlock.
        tree.unlock(whole.node);
        tree.unlock(whole.node);
        assert!(tree.state().nodes.iter().all(|node| node.locks == 0));
        assert_eq!((tree.evictable(), tree.protected()), (key.len(), 0));
    }
}

/// SGLang #5221: with pages of more than a token a node was split within a page.
#[test]
fn report_36_every_node_is_whole_pages() {
    for page_size in [4, 16] {
        let mut tree = RadixTree::new(page_size, Eviction::Lru);
        let key: Vec<TokenId> = (0..4 * page_size as TokenId).collect();
        tree.insert(&Run::bare(None, &key));
        for shared in 1..key.len() {
            let mut other = key[..shared].to_vec();
            other.extend((0..2 * page_size as TokenId).map(|i| 1000 + i));
            let inserted = tree.insert(&Run::bare(None, &other));
            assert_eq!(inserted.already_present, shared / page_size * page_size);
        }
        let nodes = tree.state().nodes;
        assert!(nodes.iter().all(|node| node.len % page_size == 0));
        tree.check().unwrap();
    }
}

/// SGLang #16946: a split while the node was being copied lost what belonged to it.
#[test]
fn report_38_both_halves_of_a_split_keep_values_names_and_lock() {
    let mut tree = RadixTree::new(2, Eviction::Lru);
    let key: Vec<TokenId> = (0..12).collect();
    let values: Vec<_> = (10..16).map(BlockId).collect();
    let hashes: Vec<_> = (0..6).map(|page| BlockHash([page; 32])).collect();
    tree.insert(&Run {
        values: &values,
        hashes: &hashes,
        ..Run::bare(None, &key)
    });
    let copied = tree.touch_and_split(None, &key);
    tree.lock(copied.node); // who copies a node holds it
    let part = tree.touch_and_split(None, &key[..6]);
    assert_eq!(part.values, values[..3]);
    assert_eq!(tree.lookup(None, &key).values, values);
    assert_eq!(tree.evict(12).tokens, 0, "neither half may go");
    tree.unlock(copied.node);
    let mut pages = tree.evict(12).pages;
    pages.sort();
    let expected: Vec<_> = values
        .into_iter()
        .zip(hashes.into_iter().map(Some))
        .collect();
    assert_eq!(pages, expected);
}

/// Row 15: eviction never touches a locked path, and an idle tree has no lock.
#[test]
fn eviction_leaves_locked_paths_alone() {
    let mut rng = Stream::new(15, "radix-locks");
    for page_size in [1, 4, 16] {
        let mut tree = RadixTree::new(page_size, Eviction::Lru);
        let mut held: Vec<(Vec<TokenId>, RadixNodeId, usize)> = Vec::new();
        for _ in 0..2000 {
            let len = 1 + rng.below(10 * page_size as u64) as usize;
            let spread = page_size as TokenId;
            let key: Vec<TokenId> = (0..len)
                .map(|i| {
                    if (i as TokenId).is_multiple_of(spread) {
                        rng.below(3) as TokenId
                    } else {
                        7
                    }
                })
                .collect();
            match rng.below(4) {
                0 => {
                    tree.insert(&Run::bare(None, &key));
                }
                1 => {
                    let found = tree.touch_and_split(None, &key);
                    tree.lock(found.node);
                    held.push((key, found.node, found.tokens));
                }
                2 if !held.is_empty() => {
                    let (_, node, _) = held.swap_remove(rng.below(held.len() as u64) as usize);
                    tree.unlock(node);
                }
                _ => {
                    tree.evict(len);
                }
            }
            tree.check().unwrap();
            for (key, _, tokens) in &held {
                assert!(
                    tree.lookup(None, key).tokens >= *tokens,
                    "a locked prefix is gone"
                );
            }
        }
        held.into_iter().for_each(|(_, node, _)| tree.unlock(node));
        assert!(tree.state().nodes.iter().all(|node| node.locks == 0));
        let stored = tree.evictable();
        assert_eq!(tree.evict(usize::MAX).tokens, stored);
        assert!(tree.state().nodes.is_empty());
        tree.check().unwrap();
    }
}

#[test]
#[should_panic(expected = "unlocked more often than locked")]
fn one_unlock_too_many_is_caught() {
    let mut tree = RadixTree::new(1, Eviction::Lru);
    let node = tree.insert(&Run::bare(None, &[1])).node;
    tree.lock(node);
    tree.unlock(node);
    tree.unlock(node);
}

#[test]
fn the_match_of_nothing_can_be_locked_and_unlocked() {
    let mut tree = RadixTree::new(4, Eviction::Lru);
    let found = tree.touch_and_split(Some(b"a"), &[1, 2, 3]);
    assert_eq!((found.tokens, found.node), (0, RadixNodeId::ROOT));
    tree.lock(found.node);
    tree.unlock(found.node);
    assert_eq!(tree.insert(&Run::bare(None, &[1, 2, 3])).already_present, 0);
    assert!(
        tree.state().nodes.is_empty(),
        "less than a page is not stored"
    );
    tree.check().unwrap();
}
