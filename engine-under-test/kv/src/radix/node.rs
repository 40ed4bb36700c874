//! Nodes of the radix tree, in an arena with a list of vacant places.

use std::collections::BTreeSet;

use pb_contract::{BlockId, TokenId};

use crate::digest::BlockHash;

/// No node: the parent of a root.
pub(super) const NIL: u32 = u32::MAX;

/// A node of a [`super::RadixTree`]. Valid as long as the node is locked, or until the next
/// change of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RadixNodeId(pub(super) u32);

impl RadixNodeId {
    /// The end of a match of no token. Locking it does nothing: a root is never evicted.
    pub const ROOT: RadixNodeId = RadixNodeId(NIL);
}

/// Place in the order of eviction: the smallest goes first. The second part is a reading of the
/// tree's clock, which no two leaves have in common.
pub(super) type Rank = (i64, u64);

/// A run of whole pages below its parent's run.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    pub(super) parent: u32,
    /// Place of the first page (see [`super::key::page_order`]) and node.
    pub(super) children: BTreeSet<(u64, u32)>,
    /// Of a root: the namespace.
    pub(super) namespace: Option<Vec<u8>>,
    pub(super) key: Vec<TokenId>,
    /// One a page.
    pub(super) values: Vec<BlockId>,
    /// One a page, or none at all.
    pub(super) hashes: Vec<BlockHash>,
    /// Locks of this node and of all below it.
    pub(super) locks: u32,
    pub(super) last_access: u64,
    pub(super) created: u64,
    pub(super) hits: u32,
    pub(super) priority: i64,
    /// Its place among the candidates for eviction, when it is one.
    pub(super) rank: Option<Rank>,
}

impl Node {
    pub(super) fn is_root(&self) -> bool {
        self.parent == NIL
    }
}

/// Nodes by number.
#[derive(Clone, Debug, Default)]
pub(super) struct Arena {
    nodes: Vec<Node>,
    vacant: Vec<u32>,
}

impl Arena {
    pub(super) fn add(&mut self, node: Node) -> u32 {
        if let Some(id) = self.vacant.pop() {
            self.nodes[id as usize] = node;
            return id;
        }
        let id = self.nodes.len();
        assert!(id < NIL as usize, "node numbers are 32 bits");
        self.nodes.push(node);
        id as u32
    }

    /// Takes a node out; its number may be given to another.
    pub(super) fn take(&mut self, id: u32) -> Node {
        self.vacant.push(id);
        std::mem::take(&mut self.nodes[id as usize])
    }

    /// Nodes, roots included.
    pub(super) fn len(&self) -> usize {
        self.nodes.len() - self.vacant.len()
    }

    /// One past the highest number ever given.
    pub(super) fn end(&self) -> usize {
        self.nodes.len()
    }
}

impl std::ops::Index<u32> for Arena {
    type Output = Node;

    fn index(&self, id: u32) -> &Node {
        &self.nodes[id as usize]
    }
}

impl std::ops::IndexMut<u32> for Arena {
    fn index_mut(&mut self, id: u32) -> &mut Node {
        &mut self.nodes[id as usize]
    }
}
