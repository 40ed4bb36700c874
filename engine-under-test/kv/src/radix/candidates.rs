//! Eviction: whole leaves, in the order of the chosen rule.

use pb_contract::{BlockId, Eviction};

use super::key::page_order;
use super::node::{Node, Rank};
use super::tree::RadixTree;
use crate::digest::BlockHash;

/// What an eviction freed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvictedPages {
    /// Tokens: whole leaves, so possibly more than asked for.
    pub tokens: usize,
    /// Value and name of each page, in the order in which they were freed.
    pub pages: Vec<(BlockId, Option<BlockHash>)>,
}

impl RadixTree {
    /// Evicts leaves until at least `tokens` tokens are freed or nothing unlocked is left. A
    /// parent that becomes an unlocked leaf is a candidate at once.
    pub fn evict(&mut self, tokens: usize) -> EvictedPages {
        let mut evicted = EvictedPages::default();
        while evicted.tokens < tokens {
            let Some((_, leaf)) = self.candidates.pop_first() else {
                break;
            };
            let node = self.remove_leaf(leaf);
            evicted.tokens += node.key.len();
            let names = node.hashes.iter().copied().map(Some);
            let names = names.chain(std::iter::repeat(None));
            evicted.pages.extend(node.values.iter().copied().zip(names));
        }
        evicted
    }

    /// Values of all unlocked pages in the order in which evictions one by one would free them.
    pub fn eviction_order(&self) -> Vec<BlockId> {
        let mut order = Vec::with_capacity(self.evictable / self.page_size);
        let mut candidates = self.candidates.clone();
        let mut gone = vec![0; self.nodes.end()];
        while let Some((_, leaf)) = candidates.pop_first() {
            let node = &self.nodes[leaf];
            order.extend_from_slice(&node.values);
            let parent = &self.nodes[node.parent];
            gone[node.parent as usize] += 1;
            let is_leaf = gone[node.parent as usize] == parent.children.len();
            if is_leaf && parent.locks == 0 && !parent.is_root() {
                candidates.insert((self.rank(parent), node.parent));
            }
        }
        order
    }

    /// Brings the node's place among the candidates up to date with its children, lock and times.
    pub(super) fn refresh(&mut self, id: u32) {
        let node = &self.nodes[id];
        let candidate = node.children.is_empty() && node.locks == 0 && !node.is_root();
        let rank = candidate.then(|| self.rank(node));
        let before = node.rank;
        if rank == before {
            return;
        }
        if let Some(before) = before {
            self.candidates.remove(&(before, id));
        }
        if let Some(rank) = rank {
            self.candidates.insert((rank, id));
        }
        self.nodes[id].rank = rank;
    }

    pub(super) fn rank(&self, node: &Node) -> Rank {
        match self.eviction {
            Eviction::Lru => (0, node.last_access),
            Eviction::Lfu => (i64::from(node.hits), node.last_access),
            Eviction::Fifo => (0, node.created),
            Eviction::Priority => (node.priority, node.last_access),
        }
    }

    /// Takes a leaf out of the tree, and its root when nothing else is below it.
    fn remove_leaf(&mut self, leaf: u32) -> Node {
        let node = self.nodes.take(leaf);
        self.evictable -= node.key.len();
        let order = page_order(&node.key[..self.page_size]);
        let parent = &mut self.nodes[node.parent];
        parent.children.remove(&(order, leaf));
        if parent.is_root() && parent.children.is_empty() {
            let root = self.nodes.take(node.parent);
            match root.namespace {
                None => self.plain_root = None,
                Some(name) => {
                    self.named_roots.remove(&name);
                }
            }
        } else {
            self.refresh(node.parent);
        }
        node
    }
}
