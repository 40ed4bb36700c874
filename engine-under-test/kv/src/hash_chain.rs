//! The prefix cache of vLLM V1: a map from the chained digest of a full block to the blocks that
//! hold it.
//!
//! Several blocks may carry one digest, because block tables are append-only: a request that
//! computes what another has cached in the meantime keeps its own copy. The first registered is
//! the one that a lookup returns; when it goes, the next takes its place. The copies are linked
//! through per-block entries, so no operation allocates and all are O(1).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use pb_contract::BlockId;

use crate::cache::PrefixCache;
use crate::contents::{Contents, NodeId, ROOT};
use crate::tokens::{BlockHash, HashedTokens};

const NIL: u32 = u32::MAX;

/// Uses eight bytes of the digest as the table's hash: they are uniform already.
#[derive(Clone, Copy, Debug, Default)]
struct DigestHasher(u64);

impl Hasher for DigestHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = self.0.rotate_left(5) ^ u64::from_le_bytes(word);
        }
    }

    fn write_usize(&mut self, _length: usize) {}
}

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
    map: HashMap<BlockHash, Copies, BuildHasherDefault<DigestHasher>>,
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
            map: HashMap::default(),
            entries: vec![None; num_blocks],
            len: 0,
            contents: verify_tokens.then(Contents::default),
        }
    }

    /// The first registered block under `hash` whose prefix is `node` (any, when contents are not
    /// compared).
    fn first_copy(&self, hash: &BlockHash, node: Option<NodeId>) -> Option<u32> {
        let mut at = self.map.get(hash)?.first;
        while at != NIL {
            let entry = self.entry(at);
            if node.is_none_or(|node| node == entry.node) {
                return Some(at);
            }
            at = entry.next;
        }
        None
    }

    fn entry(&self, block: u32) -> &Entry {
        self.entries[block as usize]
            .as_ref()
            // OK because links only lead to registered blocks: anything else is our bug.
            .expect("linked blocks are registered")
    }

    fn entry_mut(&mut self, block: u32) -> &mut Entry {
        self.entries[block as usize]
            .as_mut()
            // OK because links only lead to registered blocks: anything else is our bug.
            .expect("linked blocks are registered")
    }

    /// The node of `parent`'s contents; `None` when the parent is not registered.
    fn parent_node(&self, parent: Option<BlockId>) -> Option<NodeId> {
        match parent {
            None => Some(ROOT),
            Some(block) => self.entries[block.0 as usize].map(|entry| entry.node),
        }
    }
}

impl PrefixCache for HashChain {
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
        let copies = self.map.entry(hash).or_insert(Copies {
            first: block.0,
            last: NIL,
        });
        let prev = std::mem::replace(&mut copies.last, block.0);
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

    fn remove(&mut self, block: BlockId) {
        let Entry {
            hash,
            prev,
            next,
            node,
        } = *self.entry(block.0);
        self.entries[block.0 as usize] = None;
        self.len -= 1;
        if prev != NIL {
            self.entry_mut(prev).next = next;
        }
        if next != NIL {
            self.entry_mut(next).prev = prev;
        }
        if let Some(copies) = self.map.get_mut(&hash) {
            if copies.first == block.0 {
                copies.first = next;
            }
            if copies.last == block.0 {
                copies.last = prev;
            }
            if copies.first == NIL {
                self.map.remove(&hash);
            }
        }
        if let Some(contents) = &mut self.contents {
            contents.release(node);
        }
    }

    fn is_registered(&self, block: BlockId) -> bool {
        self.entries[block.0 as usize].is_some()
    }

    fn clear(&mut self) {
        self.map.clear();
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
            let Some(copies) = self.map.get(&entry.hash) else {
                return Err(format!(
                    "block {block} is registered but its name is not in the map"
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
        if count != self.len || firsts != self.map.len() {
            return Err(format!(
                "{count} blocks under {firsts} names are registered; the counters say {} and {}",
                self.len,
                self.map.len()
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
