//! Orders of eviction, worked out by hand.

use pb_contract::{BlockId, Eviction, TokenId};
use pb_kv::{RadixTree, Run};

fn insert(tree: &mut RadixTree, tokens: &[TokenId], priority: i64) {
    tree.insert(&Run {
        priority,
        ..Run::bare(None, tokens)
    });
    tree.check().unwrap();
}

/// Evicts leaf after leaf; the first token and length of each, found by what is left.
fn evicted(tree: &mut RadixTree) -> Vec<(TokenId, usize)> {
    let mut order = Vec::new();
    loop {
        let before = tree.state();
        let freed = tree.evict(1).tokens;
        if freed == 0 {
            return order;
        }
        let after = tree.state();
        let gone = before.nodes.iter().find(|node| !after.nodes.contains(node));
        let gone = gone.unwrap();
        assert_eq!(gone.len, freed);
        order.push((gone.first, freed));
        tree.check().unwrap();
    }
}

/// Keys 1.., 2.. and 3.. are stored in this order, with priorities 5, 1 and 3; then 1.. is stored
/// twice more and 2.. once, and last 3.. is matched.
fn three_keys(eviction: Eviction) -> RadixTree {
    let mut tree = RadixTree::new(1, eviction);
    for (key, priority) in [([1, 1], 5), ([2, 2], 1), ([3, 3], 3)] {
        insert(&mut tree, &key, priority);
    }
    for key in [[1, 1], [1, 1], [2, 2]] {
        insert(&mut tree, &key, 0);
    }
    assert_eq!(tree.touch_and_split(None, &[3, 3]).tokens, 2);
    tree
}

#[test]
fn each_rule_evicts_in_its_own_order() {
    let orders = [
        (Eviction::Lru, [1, 2, 3]),
        (Eviction::Lfu, [3, 2, 1]),
        (Eviction::Fifo, [1, 2, 3]),
        (Eviction::Priority, [2, 3, 1]),
    ];
    for (eviction, expected) in orders {
        let order = evicted(&mut three_keys(eviction));
        assert_eq!(order, expected.map(|key| (key, 2)), "{eviction:?}");
    }
    // A match splits 1.. and uses both halves; only the upper one is new.
    let orders = [
        (Eviction::Lru, [(2, 2), (3, 2), (1, 1), (1, 1)]),
        (Eviction::Fifo, [(1, 1), (2, 2), (3, 2), (1, 1)]),
    ];
    for (eviction, expected) in orders {
        let mut tree = three_keys(eviction);
        tree.touch_and_split(None, &[1]);
        assert_eq!(evicted(&mut tree), expected, "{eviction:?}");
    }
}

/// Part of a prompt in many chunks is no use of its own.
#[test]
fn chunks_of_one_request_do_not_make_its_prefix_popular() {
    let mut tree = RadixTree::new(1, Eviction::Lfu);
    insert(&mut tree, &[9, 9], 0);
    insert(&mut tree, &[9, 9], 0);
    for end in 1..=4 {
        tree.insert(&Run {
            chunked: true,
            ..Run::bare(None, &[7, 7, 7, 7][..end])
        });
    }
    tree.touch_and_split(None, &[9, 9]);
    tree.touch_and_split(None, &[7, 7, 7, 7]);
    let order: Vec<_> = evicted(&mut tree).iter().map(|&(key, _)| key).collect();
    assert_eq!(order.last(), Some(&9));
}

/// A split makes its upper half anew, so the half is younger than everything before; it can only
/// go after its children. mini-sglang keeps the old time, and the order is another.
#[test]
fn the_upper_half_of_a_split_is_the_younger_one() {
    let mut tree = RadixTree::new(1, Eviction::Lru);
    insert(&mut tree, &[1, 2, 3, 4], 0);
    insert(&mut tree, &[8, 8], 0);
    // The match ends midway: both halves are touched, and the upper is made after the touch.
    assert_eq!(tree.touch_and_split(None, &[1, 2, 9]).tokens, 2);
    assert_eq!(evicted(&mut tree), [(8, 2), (3, 2), (1, 2)]);
    // Creation time of the upper half is that of the split.
    let mut tree = RadixTree::new(1, Eviction::Fifo);
    insert(&mut tree, &[1, 2, 3, 4], 0);
    insert(&mut tree, &[8, 8], 0);
    tree.touch_and_split(None, &[1, 2, 9]);
    assert_eq!(evicted(&mut tree), [(3, 2), (8, 2), (1, 2)]);
}

#[test]
fn whole_leaves_go_and_a_bared_parent_is_next_in_its_turn() {
    let mut tree = RadixTree::new(2, Eviction::Lru);
    insert(&mut tree, &[1, 1, 2, 2, 3, 3], 0);
    insert(&mut tree, &[1, 1, 5, 5], 0);
    insert(&mut tree, &[6, 6], 0);
    // Leaves by age: [2,2,3,3], [5,5], [6,6]; the shared [1,1] was used with [5,5].
    let values = tree.eviction_order().len();
    assert_eq!(values, 5);
    assert_eq!(tree.evict(1).tokens, 4, "the whole leaf, not one token");
    assert_eq!(
        tree.evict(3).tokens,
        4,
        "[5,5], then its bared parent [1,1]"
    );
    assert_eq!(tree.evict(100).tokens, 2);
    assert_eq!(tree.evict(1).tokens, 0);
    assert!(tree.state().nodes.is_empty());
    tree.check().unwrap();
}

#[test]
fn the_announced_order_is_the_order_of_evictions() {
    let mut tree = RadixTree::new(1, Eviction::Lru);
    let keys: [&[TokenId]; 5] = [&[1, 2, 3], &[1, 2, 4], &[5], &[1, 7, 8], &[5, 6]];
    let mut next = 0;
    for key in keys {
        let values: Vec<_> = (next..).map(BlockId).take(key.len()).collect();
        next += 10;
        tree.insert(&Run {
            values: &values,
            ..Run::bare(None, key)
        });
    }
    let locked = tree.touch_and_split(None, &[1, 7]);
    tree.lock(locked.node);
    let announced = tree.eviction_order();
    let mut happened = Vec::new();
    while let [page, ..] = &tree.evict(1).pages[..] {
        happened.push(page.0);
        tree.check().unwrap();
    }
    // All keys but the locked [1, 7]; every leaf here is one page.
    assert_eq!(announced, happened);
    assert_eq!(announced.len(), 6);
}
