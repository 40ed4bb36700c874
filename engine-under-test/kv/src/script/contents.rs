//! What stands in every slot of every block, as the model would have written it.
//!
//! No keys or values are needed for that: what a slot must hold follows from the request's scope
//! and its tokens up to that position. Each such prefix gets a number, and a block is a row of
//! numbers. This is the strongest judge of a block cache, because every way of getting a wrong
//! block (stale name, shared write, lost copy, early reuse) ends in a slot with a wrong number.

use std::collections::BTreeMap;

use pb_contract::{BlockId, TokenId};

use crate::BlockHash;

/// Keys of a request's scope as the script gives them: adapter, salt and identity. Requests may
/// share blocks only where all three are the same.
pub(crate) type ScopeKeys = [Option<String>; 3];

/// Number of a prefix; [`NOTHING`] stands for unusable data.
pub(crate) type Prefix = u32;

/// Content of a slot that nobody has written, or that was lost.
pub(crate) const NOTHING: Prefix = 0;

/// Marks a slot that the step in flight will write.
const PROMISED: Prefix = 1 << 31;

/// Numbers of prefixes: a trie over scopes and tokens.
#[derive(Debug, Default)]
pub(crate) struct Prefixes {
    roots: BTreeMap<ScopeKeys, Prefix>,
    children: BTreeMap<(Prefix, TokenId), Prefix>,
    digests: BTreeMap<Prefix, BlockHash>,
    last: Prefix,
}

impl Prefixes {
    /// The empty prefix of a scope.
    pub(crate) fn root(&mut self, scope: &ScopeKeys) -> Prefix {
        if let Some(&root) = self.roots.get(scope) {
            return root;
        }
        self.last += 1;
        self.roots.insert(scope.clone(), self.last);
        self.last
    }

    /// `prefix` and one more token.
    pub(crate) fn child(&mut self, prefix: Prefix, token: TokenId) -> Prefix {
        let last = &mut self.last;
        let entry = self.children.entry((prefix, token));
        *entry.or_insert_with(|| {
            *last += 1;
            *last
        })
    }

    /// Records the digest of the full block that ends with `prefix`.
    pub(crate) fn set_digest(&mut self, prefix: Prefix, digest: BlockHash) {
        self.digests.insert(prefix, digest);
    }

    /// The digest of the full block that ends with `prefix`.
    pub(crate) fn digest(&self, prefix: Prefix) -> Option<BlockHash> {
        self.digests.get(&prefix).copied()
    }
}

/// The slots of the whole pool.
#[derive(Debug)]
pub(crate) struct Contents {
    block_size: usize,
    slots: Vec<Prefix>,
}

impl Contents {
    pub(crate) fn new(block_size: usize, num_blocks: usize) -> Self {
        Contents {
            block_size,
            slots: vec![NOTHING; block_size * num_blocks],
        }
    }

    fn block(&self, block: BlockId) -> &[Prefix] {
        let start = block.0 as usize * self.block_size;
        &self.slots[start..start + self.block_size]
    }

    fn block_mut(&mut self, block: BlockId) -> &mut [Prefix] {
        let start = block.0 as usize * self.block_size;
        &mut self.slots[start..start + self.block_size]
    }

    /// The prefix that a block with full, written data ends with.
    pub(crate) fn full(&self, block: BlockId) -> Option<Prefix> {
        let slots = self.block(block);
        let written = |&slot: &Prefix| slot != NOTHING && slot & PROMISED == 0;
        slots.iter().all(written).then(|| slots[slots.len() - 1])
    }

    /// Whether the block holds `path` (one block of prefixes), written or, when `promised`
    /// counts, to be written in the step in flight.
    pub(crate) fn holds(&self, block: BlockId, path: &[Prefix], promised: bool) -> bool {
        let mask = if promised { !PROMISED } else { Prefix::MAX };
        let mut slots = self.block(block).iter().zip(path);
        slots.all(|(&slot, &wanted)| slot & mask == wanted)
    }

    /// Leading blocks of `path`, at most `max_blocks`, that stand in any block of the pool.
    pub(crate) fn leading(&self, path: &[Prefix], max_blocks: usize, promised: bool) -> usize {
        let blocks = (self.slots.len() / self.block_size) as u32;
        let wanted = path.chunks_exact(self.block_size).take(max_blocks);
        let found = |path: &&[Prefix]| (0..blocks).any(|b| self.holds(BlockId(b), path, promised));
        wanted.take_while(found).count()
    }

    /// The first position of `0..tokens` whose slot does not hold what `path` wants.
    pub(crate) fn first_wrong(
        &self,
        table: &[BlockId],
        path: &[Prefix],
        tokens: usize,
        promised: bool,
    ) -> Option<usize> {
        let chunks = path[..tokens].chunks(self.block_size).zip(table);
        let wrong = chunks
            .enumerate()
            .find(|(_, (path, block))| !self.holds(**block, path, promised));
        let (index, (path, block)) = wrong?;
        let slots = self.block(*block);
        let mask = if promised { !PROMISED } else { Prefix::MAX };
        let at = (0..path.len()).find(|&at| slots[at] & mask != path[at])?;
        Some(index * self.block_size + at)
    }

    /// The data of a block is lost.
    pub(crate) fn lose(&mut self, block: BlockId) {
        self.block_mut(block).fill(NOTHING);
    }

    /// Everything is lost.
    pub(crate) fn lose_all(&mut self) {
        self.slots.fill(NOTHING);
    }

    /// Copies the first `slots` slots; the others of the new block are as good as lost, because
    /// the request that got the copy writes there.
    pub(crate) fn copy(&mut self, from: BlockId, to: BlockId, slots: usize) {
        let data = self.block(from)[..slots].to_vec();
        self.lose(to);
        self.block_mut(to)[..slots].copy_from_slice(&data);
    }

    /// The step in flight will write positions `range` of a table.
    pub(crate) fn promise(
        &mut self,
        table: &[BlockId],
        path: &[Prefix],
        range: std::ops::Range<usize>,
    ) {
        self.fill(table, range, |at| path[at] | PROMISED);
    }

    /// The step has written positions `range` of a table.
    pub(crate) fn write(
        &mut self,
        table: &[BlockId],
        path: &[Prefix],
        range: std::ops::Range<usize>,
    ) {
        self.fill(table, range, |at| path[at]);
    }

    /// The step that would have written positions `range` of a table will not run.
    pub(crate) fn withdraw(&mut self, table: &[BlockId], range: std::ops::Range<usize>) {
        self.fill(table, range, |_| NOTHING);
    }

    fn fill(
        &mut self,
        table: &[BlockId],
        range: std::ops::Range<usize>,
        content: impl Fn(usize) -> Prefix,
    ) {
        for at in range {
            let slot = table[at / self.block_size].0 as usize * self.block_size;
            self.slots[slot + at % self.block_size] = content(at);
        }
    }
}
