//! The seam between block names and blocks.
//!
//! Different caches find shared prefixes differently; the manager only needs these operations.
//! Lookups are pure, so asking twice changes nothing and a scheduler may ask as often as it likes.

use pb_contract::BlockId;

use crate::digest::BlockHash;
use crate::tokens::HashedTokens;

/// Finds blocks whose data equals a prefix of a sequence.
///
/// A block is registered at most once at a time. The manager removes a block before it reuses it.
pub trait BlockIndex: std::fmt::Debug + Send {
    /// The longest run of registered blocks from the start of `seq`, of at most `max_blocks`.
    fn lookup(&self, seq: &HashedTokens, max_blocks: usize) -> Vec<BlockId>;

    /// Whether `block` is registered under the name of full block `index` of `seq`.
    fn holds(&self, seq: &HashedTokens, index: usize, block: BlockId) -> bool;

    /// Registers `block` as full block `index` of `seq`; `parent` is the block before it in the
    /// same block table. Returns false when the cache does not keep it.
    fn insert(
        &mut self,
        seq: &HashedTokens,
        index: usize,
        block: BlockId,
        parent: Option<BlockId>,
    ) -> bool;

    /// Forgets a registered block and returns its name; others with the same contents stay
    /// reachable. Panics when it is not registered.
    fn remove(&mut self, block: BlockId) -> BlockHash;

    /// Whether `block` is registered.
    fn is_registered(&self, block: BlockId) -> bool;

    /// Forgets everything.
    fn clear(&mut self);

    /// Registered blocks.
    fn len(&self) -> usize;

    /// Whether nothing is registered.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Verifies the cache's own laws.
    ///
    /// # Errors
    /// A sentence that names the law that does not hold.
    fn check(&self) -> Result<(), String>;
}

/// Keeps nothing: every lookup misses.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoIndex;

impl BlockIndex for NoIndex {
    fn lookup(&self, _seq: &HashedTokens, _max_blocks: usize) -> Vec<BlockId> {
        Vec::new()
    }

    fn holds(&self, _seq: &HashedTokens, _index: usize, _block: BlockId) -> bool {
        false
    }

    fn insert(
        &mut self,
        _seq: &HashedTokens,
        _index: usize,
        _block: BlockId,
        _parent: Option<BlockId>,
    ) -> bool {
        false
    }

    fn remove(&mut self, block: BlockId) -> BlockHash {
        unreachable!("block {} was never registered", block.0);
    }

    fn is_registered(&self, _block: BlockId) -> bool {
        false
    }

    fn clear(&mut self) {}

    fn len(&self) -> usize {
        0
    }

    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}
