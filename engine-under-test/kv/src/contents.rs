//! Exact identity of cached prefixes, for caches whose digest may collide.
//!
//! A digest shorter than 256 bits (or the constant stub of the tests) can give two prefixes one
//! name. Here every distinct prefix is interned as a node that holds the block's tokens and keys
//! and points to its parent's node, so equal node numbers mean equal prefixes, all the way to the
//! root, and one comparison per block is enough.

use hashbrown::HashTable;
use pb_contract::TokenId;

use crate::digest::BlockHash;
use crate::tokens::HashedTokens;

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

impl Node {
    fn is(&self, parent: NodeId, seq: &HashedTokens, index: usize) -> bool {
        let (front, back) = seq.block_keys(index);
        self.parent == parent
            && self.hash == seq.hashes()[index]
            && self.tokens == seq.block_tokens(index)
            && self.keys.strip_prefix(front) == Some(back)
    }

    fn place(&self) -> u64 {
        place(self.parent, &self.hash)
    }
}

/// Where a node stands in the table: nodes of one name under different parents differ.
fn place(parent: NodeId, hash: &BlockHash) -> u64 {
    hash.word() ^ u64::from(parent).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The interned prefixes. A node lives as long as a block or a child node refers to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contents {
    nodes: Vec<Option<Node>>,
    /// Numbers of dead nodes.
    vacant: Vec<NodeId>,
    by_name: HashTable<NodeId>,
}

impl Contents {
    /// The node of full block `index` of `seq`, given the node of its parent.
    pub(crate) fn find(&self, parent: NodeId, seq: &HashedTokens, index: usize) -> Option<NodeId> {
        let same = |&id: &NodeId| live(&self.nodes, id).is(parent, seq, index);
        let place = place(parent, &seq.hashes()[index]);
        self.by_name.find(place, same).copied()
    }

    /// As [`Contents::find`], making the node when there is none; adds one reference.
    pub(crate) fn intern(&mut self, parent: NodeId, seq: &HashedTokens, index: usize) -> NodeId {
        if let Some(id) = self.find(parent, seq, index) {
            self.node_mut(id).refs += 1;
            return id;
        }
        let (front, back) = seq.block_keys(index);
        let node = Node {
            parent,
            hash: seq.hashes()[index],
            keys: [front, back].concat(),
            tokens: seq.block_tokens(index).to_vec(),
            refs: 1,
        };
        let place = node.place();
        let id = match self.vacant.pop() {
            Some(id) => id,
            None => {
                self.nodes.push(None);
                (self.nodes.len() - 1) as NodeId
            }
        };
        self.nodes[id as usize] = Some(node);
        let nodes = &self.nodes;
        self.by_name
            .insert_unique(place, id, |&id| live(nodes, id).place());
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
            let (parent, place) = (node.parent, node.place());
            if let Ok(entry) = self.by_name.find_entry(place, |&other| other == at) {
                entry.remove();
            }
            self.nodes[at as usize] = None;
            self.vacant.push(at);
            at = parent;
        }
    }

    /// Live nodes.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len() - self.vacant.len()
    }

    /// Sum of all reference counts minus the child links: the blocks that refer to nodes.
    pub(crate) fn block_refs(&self) -> usize {
        let live = || self.nodes.iter().flatten();
        let all: usize = live().map(|node| node.refs).sum();
        all - live().filter(|node| node.parent != ROOT).count()
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = Contents::default();
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id as usize]
            .as_mut()
            // OK because a referenced node is never removed: losing one is our bug.
            .expect("a referenced prefix is interned")
    }
}

fn live(nodes: &[Option<Node>], id: NodeId) -> &Node {
    nodes[id as usize]
        .as_ref()
        // OK because a referenced node is never removed: losing one is our bug.
        .expect("a referenced prefix is interned")
}
