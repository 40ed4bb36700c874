//! Exact identity of cached prefixes, for caches whose digest may collide.
//!
//! A digest shorter than 256 bits (or the constant stub of the tests) can give two prefixes one
//! name. Here every distinct prefix is interned as a node that holds the block's tokens and keys
//! and points to its parent's node, so equal node numbers mean equal prefixes, all the way to the
//! root, and one comparison per block is enough.

use std::collections::BTreeMap;

use pb_contract::TokenId;

use crate::tokens::{BlockHash, HashedTokens};

/// Number of an interned prefix.
pub(crate) type NodeId = u32;

/// The parent of first blocks.
pub(crate) const ROOT: NodeId = NodeId::MAX;

#[derive(Clone, Debug)]
struct Node {
    parent: NodeId,
    hash: BlockHash,
    keys: Vec<u8>,
    tokens: Vec<TokenId>,
    /// Registered blocks with these contents, plus child nodes.
    refs: usize,
}

/// The interned prefixes. A node lives as long as a block or a child node refers to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contents {
    nodes: BTreeMap<NodeId, Node>,
    by_name: BTreeMap<(NodeId, BlockHash), Vec<NodeId>>,
    next: NodeId,
}

impl Contents {
    /// The node of full block `index` of `seq`, given the node of its parent.
    pub(crate) fn find(&self, parent: NodeId, seq: &HashedTokens, index: usize) -> Option<NodeId> {
        let candidates = self.by_name.get(&(parent, seq.hashes()[index]))?;
        let keys = seq.block_keys(index);
        candidates.iter().copied().find(|id| {
            let node = &self.nodes[id];
            node.tokens == seq.block_tokens(index) && node.keys == keys
        })
    }

    /// As [`Contents::find`], making the node when there is none; adds one reference.
    pub(crate) fn intern(&mut self, parent: NodeId, seq: &HashedTokens, index: usize) -> NodeId {
        if let Some(id) = self.find(parent, seq, index) {
            self.node_mut(id).refs += 1;
            return id;
        }
        let id = self.fresh_id();
        let hash = seq.hashes()[index];
        let tokens = seq.block_tokens(index).to_vec();
        self.nodes.insert(
            id,
            Node {
                parent,
                hash,
                keys: seq.block_keys(index),
                tokens,
                refs: 1,
            },
        );
        self.by_name.entry((parent, hash)).or_default().push(id);
        if parent != ROOT {
            self.node_mut(parent).refs += 1;
        }
        id
    }

    /// Drops one reference, and every ancestor that nothing refers to any more.
    pub(crate) fn release(&mut self, id: NodeId) {
        let mut at = id;
        while at != ROOT {
            let node = self.node_mut(at);
            node.refs -= 1;
            if node.refs > 0 {
                return;
            }
            let (parent, name) = (node.parent, (node.parent, node.hash));
            self.nodes.remove(&at);
            if let Some(siblings) = self.by_name.get_mut(&name) {
                siblings.retain(|&sibling| sibling != at);
                if siblings.is_empty() {
                    self.by_name.remove(&name);
                }
            }
            at = parent;
        }
    }

    /// Live nodes.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Sum of all reference counts minus the child links: the blocks that refer to nodes.
    pub(crate) fn block_refs(&self) -> usize {
        let all: usize = self.nodes.values().map(|node| node.refs).sum();
        all - self
            .nodes
            .values()
            .filter(|node| node.parent != ROOT)
            .count()
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.nodes.clear();
        self.by_name.clear();
    }

    /// An unused number. Numbers wrap after 2^32 insertions, so used ones are skipped.
    fn fresh_id(&mut self) -> NodeId {
        while self.next == ROOT || self.nodes.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        id
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes
            .get_mut(&id)
            // OK because a referenced node is never removed: losing one is our bug.
            .expect("a referenced prefix is interned")
    }
}
