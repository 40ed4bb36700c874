//! The prefix cache of vLLM V1: a map from the chained digest of a full block to the blocks that
//! hold it.
//!
//! Several blocks may carry one digest, because block tables are append-only: a request that
//! computes what another has cached in the meantime keeps its own copy. The first registered is
//! the one that a lookup returns; when it goes, the next takes its place. The copies are linked
//! through per-block entries, so no operation allocates and all are O(1).

use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Place;
use pb_contract::BlockId;

use crate::block_index::BlockIndex;
use crate::contents::{Contents, NodeId, ROOT};
use crate::digest::BlockHash;
use crate::tokens::HashedTokens;

const NIL: u32 = u32::MAX;

/// First and last of the blocks with one digest, in order of registration.
#[derive(Clone, Copy, Debug)]
struct Copies {
    first: u32,
    last: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: BlockHash,
    prev: u32,
    next: u32,
    node: NodeId,
}

/// Full blocks found by a chain of digests.
#[derive(Clone, Debug)]
pub struct HashChain {
    /// Found by digest, which stands in the entry of the first copy.
    names: HashTable<Copies>,
    entries: Vec<Option<Entry>>,
    len: usize,
    /// Present when contents are compared on a hit.
    contents: Option<Contents>,
}

impl HashChain {
    /// An empty cache over blocks `0..num_blocks`. With `verify_tokens` a hit also needs equal
    /// tokens and keys all the way to the root; a digest under 256 bits must have it.
    pub fn new(num_blocks: usize, verify_tokens: bool) -> Self {
        HashChain {
            names: HashTable::new(),
            entries: vec![None; num_blocks],
            len: 0,
            contents: verify_tokens.then(Contents::default),
        }
    }

    /// The first registered block under `hash` whose prefix is `node` (any, when contents are not
    /// compared).
    fn first_copy(&self, hash: &BlockHash, node: Option<NodeId>) -> Option<u32> {
        let mut at = self.copies(hash)?.first;
        while at != NIL {
            let entry = self.entry(at);
            if node.is_none_or(|node| node == entry.node) {
                return Some(at);
            }
            at = entry.next;
        }
        None
    }

    fn copies(&self, hash: &BlockHash) -> Option<&Copies> {
        let same = |copies: &Copies| self.entry(copies.first).hash == *hash;
        self.names.find(hash.word(), same)
    }

    fn entry(&self, block: u32) -> &Entry {
        linked(&self.entries, block)
    }

    fn entry_mut(&mut self, block: u32) -> &mut Entry {
        self.entries[block as usize]
            .as_mut()
            // OK because links only lead to registered blocks: anything else is our bug.
            .expect("linked blocks are registered")
    }

    /// Makes `block` the last of the blocks called `hash`; returns the last before it, or [`NIL`].
    fn append_copy(&mut self, hash: BlockHash, block: u32) -> u32 {
        let entries = &self.entries;
        let same = |copies: &Copies| linked(entries, copies.first).hash == hash;
        let rehash = |copies: &Copies| linked(entries, copies.first).hash.word();
        match self.names.entry(hash.word(), same, rehash) {
            Place::Occupied(mut place) => std::mem::replace(&mut place.get_mut().last, block),
            Place::Vacant(place) => {
                place.insert(Copies {
                    first: block,
                    last: block,
                });
                NIL
            }
        }
    }

    /// Takes `block` out of the ends of the list of its name, and an empty list away.
    fn drop_copy(&mut self, removed: &Entry, block: u32) {
        let entries = &self.entries;
        let same = |copies: &Copies| linked(entries, copies.first).hash == removed.hash;
        let Ok(mut place) = self.names.find_entry(removed.hash.word(), same) else {
            return;
        };
        let copies = place.get_mut();
        if copies.first == block {
            copies.first = removed.next;
        }
        if copies.last == block {
            copies.last = removed.prev;
        }
        if copies.first == NIL {
            place.remove();
        }
    }

    /// The node of `parent`'s contents; `None` when the parent is not registered.
    fn parent_node(&self, parent: Option<BlockId>) -> Option<NodeId> {
        match parent {
            None => Some(ROOT),
            Some(block) => self.entries[block.0 as usize].map(|entry| entry.node),
        }
    }
}

/// The entry of a block that a link or a name leads to.
fn linked(entries: &[Option<Entry>], block: u32) -> &Entry {
    entries[block as usize]
        .as_ref()
        // OK because links only lead to registered blocks: anything else is our bug.
        .expect("linked blocks are registered")
}

impl BlockIndex for HashChain {
    fn lookup(&self, seq: &HashedTokens, max_blocks: usize) -> Vec<BlockId> {
        let mut blocks = Vec::new();
        let mut node = ROOT;
        for (index, hash) in seq.hashes().iter().enumerate().take(max_blocks) {
            let wanted = match &self.contents {
                None => None,
                Some(contents) => match contents.find(node, seq, index) {
                    None => break,
                    found => found,
                },
            };
            let Some(block) = self.first_copy(hash, wanted) else {
                break;
            };
            node = self.entry(block).node;
            blocks.push(BlockId(block));
        }
        blocks
    }

    fn holds(&self, seq: &HashedTokens, index: usize, block: BlockId) -> bool {
        let entry = &self.entries[block.0 as usize];
        entry.is_some_and(|entry| seq.hashes().get(index) == Some(&entry.hash))
    }

    fn insert(
        &mut self,
        seq: &HashedTokens,
        index: usize,
        block: BlockId,
        parent: Option<BlockId>,
    ) -> bool {
        assert!(
            !self.is_registered(block),
            "block {} is registered already",
            block.0
        );
        let mut node = ROOT;
        if self.contents.is_some() {
            // Without its parent a block can never be reached, and its contents not be named.
            let Some(parent) = self.parent_node(parent) else {
                return false;
            };
            if let Some(contents) = &mut self.contents {
                node = contents.intern(parent, seq, index);
            }
        }
        let hash = seq.hashes()[index];
        let prev = self.append_copy(hash, block.0);
        self.entries[block.0 as usize] = Some(Entry {
            hash,
            prev,
            next: NIL,
            node,
        });
        if prev != NIL {
            self.entry_mut(prev).next = block.0;
        }
        self.len += 1;
        true
    }

    fn remove(&mut self, block: BlockId) -> BlockHash {
        let removed = *self.entry(block.0);
        self.drop_copy(&removed, block.0);
        self.entries[block.0 as usize] = None;
        self.len -= 1;
        if removed.prev != NIL {
            self.entry_mut(removed.prev).next = removed.next;
        }
        if removed.next != NIL {
            self.entry_mut(removed.next).prev = removed.prev;
        }
        if let Some(contents) = &mut self.contents {
            contents.release(removed.node);
        }
        removed.hash
    }

    fn is_registered(&self, block: BlockId) -> bool {
        self.entries[block.0 as usize].is_some()
    }

    fn clear(&mut self) {
        self.names.clear();
        self.entries.fill(None);
        self.len = 0;
        if let Some(contents) = &mut self.contents {
            contents.clear();
        }
    }

    fn len(&self) -> usize {
        self.len
    }

    fn check(&self) -> Result<(), String> {
        let (mut count, mut firsts) = (0, 0);
        for (block, entry) in self.entries.iter().enumerate() {
            let Some(entry) = entry else { continue };
            count += 1;
            let Some(copies) = self.copies(&entry.hash) else {
                return Err(format!(
                    "block {block} is registered but its name is not found"
                ));
            };
            let back = match entry.prev {
                NIL => copies.first,
                prev => self.entries[prev as usize].map_or(NIL, |e| e.next),
            };
            let forth = match entry.next {
                NIL => copies.last,
                next => self.entries[next as usize].map_or(NIL, |e| e.prev),
            };
            if back as usize != block || forth as usize != block {
                return Err(format!("the copies of block {block} are not linked to it"));
            }
            firsts += usize::from(entry.prev == NIL);
        }
        if count != self.len || firsts != self.names.len() {
            return Err(format!(
                "{count} blocks under {firsts} names are registered; the counters say {} and {}",
                self.len,
                self.names.len()
            ));
        }
        match &self.contents {
            Some(contents) if contents.block_refs() != count => Err(format!(
                "{} prefixes are referred to by {} blocks, not by {count}",
                contents.len(),
                contents.block_refs()
            )),
            _ => Ok(()),
        }
    }
}
