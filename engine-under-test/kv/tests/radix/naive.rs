//! Random insertions, matches, locks and evictions against a set of prefixes.
//!
//! The oracle keeps every stored prefix of whole pages with its value, and no structure at all.
//! It cannot say which leaf must go (the recorded scripts do), but it knows what may: only
//! prefixes that nothing longer is stored of, and none that is locked.

use std::collections::BTreeMap;

use pb_contract::{BlockId, Eviction, Stream, TokenId};
use pb_kv::{RadixNodeId, RadixTree, Run};

type Key = (Option<Vec<u8>>, Vec<TokenId>);

#[derive(Default)]
struct Naive {
    stored: BTreeMap<Key, BlockId>,
    locked: Vec<(Key, RadixNodeId)>,
}

impl Naive {
    /// Values of the stored prefixes of a key, shortest first.
    fn matched(&self, (namespace, tokens): &Key, page_size: usize) -> Vec<BlockId> {
        let ends = (page_size..=tokens.len()).step_by(page_size);
        let values = ends.map(|end| {
            self.stored
                .get(&(namespace.clone(), tokens[..end].to_vec()))
        });
        values.map_while(|value| value.copied()).collect()
    }

    fn is_locked(&self, key: &Key) -> bool {
        let mut locked = self.locked.iter().map(|(locked, _)| locked);
        locked.any(|(namespace, tokens)| *namespace == key.0 && tokens.starts_with(&key.1))
    }

    /// Removes an evicted page, which must have been allowed to go.
    fn remove(&mut self, value: BlockId) {
        let found = self.stored.iter().find(|(_, v)| **v == value);
        let key = found.expect("only stored pages are evicted").0.clone();
        assert!(!self.is_locked(&key), "{key:?} is locked");
        self.stored.remove(&key);
    }

    fn has_no_gap(&self, page_size: usize) -> bool {
        self.stored.keys().all(|(namespace, tokens)| {
            let shorter = tokens[..tokens.len() - page_size].to_vec();
            shorter.is_empty() || self.stored.contains_key(&(namespace.clone(), shorter))
        })
    }
}

struct History {
    tree: RadixTree,
    naive: Naive,
    rng: Stream,
    page_size: usize,
    next_value: u32,
}

impl History {
    fn key(&mut self) -> Key {
        let namespaces = [None, Some(b"a".to_vec()), Some(b"b".to_vec())];
        let namespace = namespaces[self.rng.below(3) as usize].clone();
        let len = self.rng.below(7 * self.page_size as u64) as usize;
        // Two letters, and changes anywhere within a page.
        let tokens = (0..len).map(|_| (self.rng.below(self.page_size as u64 * 3) == 0).into());
        (namespace, tokens.collect())
    }

    fn step(&mut self) {
        let key = self.key();
        let expected = self.naive.matched(&key, self.page_size);
        let namespace = key.0.as_deref();
        let pure = self.tree.lookup(namespace, &key.1);
        assert_eq!(pure.values, expected);
        match self.rng.below(8) {
            0..=2 => self.insert(key, &expected),
            3 | 4 => {
                let found = self.tree.touch_and_split(namespace, &key.1);
                assert_eq!(found.values, expected);
                assert_eq!(found.tokens, expected.len() * self.page_size);
                self.tree.lock(found.node);
                let locked = (key.0, key.1[..found.tokens].to_vec());
                self.naive.locked.push((locked, found.node));
            }
            5 | 6 if !self.naive.locked.is_empty() => {
                let at = self.rng.below(self.naive.locked.len() as u64) as usize;
                let (_, node) = self.naive.locked.swap_remove(at);
                self.tree.unlock(node);
            }
            _ => self.evict(),
        }
        self.tree.check().unwrap();
        self.sums();
    }

    fn insert(&mut self, (namespace, tokens): Key, expected: &[BlockId]) {
        let pages = tokens.len() / self.page_size;
        let values: Vec<_> = (self.next_value..).map(BlockId).take(pages).collect();
        self.next_value += pages as u32;
        let inserted = self.tree.insert(&Run {
            values: &values,
            ..Run::bare(namespace.as_deref(), &tokens)
        });
        assert_eq!(inserted.present, expected);
        assert_eq!(inserted.already_present, expected.len() * self.page_size);
        for page in expected.len()..pages {
            let prefix = tokens[..(page + 1) * self.page_size].to_vec();
            self.naive
                .stored
                .insert((namespace.clone(), prefix), values[page]);
        }
    }

    fn evict(&mut self) {
        let wanted = 1 + self.rng.below(3 * self.page_size as u64) as usize;
        let announced = self.tree.eviction_order();
        let evictable = self.tree.evictable();
        let evicted = self.tree.evict(wanted);
        assert!(evicted.tokens >= wanted.min(evictable));
        assert_eq!(evicted.tokens, evicted.pages.len() * self.page_size);
        let values: Vec<_> = evicted.pages.iter().map(|page| page.0).collect();
        assert_eq!(values, announced[..values.len()]);
        values
            .into_iter()
            .for_each(|value| self.naive.remove(value));
        assert!(
            self.naive.has_no_gap(self.page_size),
            "a parent went before its child"
        );
    }

    fn sums(&self) {
        let locked = self
            .naive
            .stored
            .keys()
            .filter(|key| self.naive.is_locked(key));
        let protected = locked.count() * self.page_size;
        assert_eq!(self.tree.protected(), protected);
        let stored = self.naive.stored.len() * self.page_size;
        assert_eq!(self.tree.evictable(), stored - protected);
    }
}

/// Row 14, on the tree alone.
#[test]
fn random_operations_agree_with_a_set_of_prefixes() {
    for eviction in [
        Eviction::Lru,
        Eviction::Lfu,
        Eviction::Fifo,
        Eviction::Priority,
    ] {
        for page_size in [1, 4, 16] {
            let mut run = History {
                tree: RadixTree::new(page_size, eviction),
                naive: Naive::default(),
                rng: Stream::new(page_size as u64, "radix-naive"),
                page_size,
                next_value: 0,
            };
            (0..3000).for_each(|_| run.step());
        }
    }
}

#[test]
fn a_lookup_changes_nothing() {
    let mut tree = RadixTree::new(2, Eviction::Lru);
    tree.insert(&Run::bare(None, &[1, 1, 2, 2, 3, 3]));
    tree.insert(&Run::bare(Some(b"x"), &[1, 1, 2, 2]));
    let before = format!("{tree:?}");
    assert_eq!(tree.lookup(None, &[1, 1, 2, 2, 9, 9]).tokens, 4);
    assert_eq!(tree.lookup(Some(b"x"), &[1, 1, 9, 9]).tokens, 2);
    assert_eq!(tree.lookup(Some(b"y"), &[1, 1]).tokens, 0);
    assert_eq!(format!("{tree:?}"), before);
    tree.touch_and_split(None, &[1, 1, 2, 2, 9, 9]);
    assert_ne!(format!("{tree:?}"), before);
}
