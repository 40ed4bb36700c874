//! What a cache is asked to be, and why it may be refused.

use pb_contract::{Eviction, Fault, FreePlacement, HashAlgorithm, PrefixCacheKind};

use crate::digest::HashKind;
use crate::tokens::{CacheScope, HashOptions, HashedTokens};

/// Largest pool. At 16 tokens a block this is a quarter of a billion tokens.
pub const MAX_BLOCKS: usize = 1 << 24;

/// Why a pool cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// A block must hold a token.
    #[error("block_size = 0: must be at least 1")]
    ZeroBlockSize,
    /// Nothing could ever be allocated.
    #[error("num_blocks = {num_blocks}: leaves no usable block{}", null_note(*null_block))]
    NoUsableBlock {
        /// Blocks asked for.
        num_blocks: usize,
        /// Whether one of them is the null block.
        null_block: bool,
    },
    /// More blocks than the pool's bookkeeping is made for.
    #[error("num_blocks = {num_blocks}: must be at most {MAX_BLOCKS}")]
    TooManyBlocks {
        /// Blocks asked for.
        num_blocks: usize,
    },
    /// The manager of block tables keeps no tree and no oracle.
    #[error("prefix_cache = {kind:?}: not a block-hash chain; make it with `build`")]
    NotAChain {
        /// The cache asked for.
        kind: PrefixCacheKind,
    },
}

fn null_note(null_block: bool) -> &'static str {
    if null_block {
        " beside the null block"
    } else {
        ""
    }
}

/// What a cache is asked to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvConfig {
    /// Tokens in a block.
    pub block_size: usize,
    /// Blocks in the pool, the null block included.
    pub num_blocks: usize,
    /// How shared prefixes are found.
    pub prefix_cache: PrefixCacheKind,
    /// Set block 0 aside (as vLLM does, whose block numbers then agree with ours).
    pub null_block: bool,
    /// Where freed blocks enter the queue. Without a prefix cache always [`FreePlacement::Append`].
    pub placement: FreePlacement,
    /// Compare tokens and keys on a hit, for a digest that may collide. Always on with
    /// [`HashAlgorithm::Xxh3`].
    pub verify_tokens: bool,
    /// Digest of the block-hash chain.
    pub hash: HashAlgorithm,
    /// Eviction order of the radix tree.
    pub eviction: Eviction,
    /// Report evicted blocks in [`crate::Moves`], for an engine with a tier. It must take the
    /// moves before every step then, because the list grows until it does.
    pub record_evictions: bool,
    /// Planted fault; those that are not of the cache have no effect here.
    pub fault: Fault,
}

impl KvConfig {
    /// The defaults: no null block, blocks without data reused first, digest trusted.
    pub const fn new(block_size: usize, num_blocks: usize, prefix_cache: PrefixCacheKind) -> Self {
        KvConfig {
            block_size,
            num_blocks,
            prefix_cache,
            null_block: false,
            placement: FreePlacement::UnhashedToHead,
            verify_tokens: false,
            hash: HashAlgorithm::Blake3,
            eviction: Eviction::Lru,
            record_evictions: false,
            fault: Fault::None,
        }
    }

    /// Checks the sizes against each other.
    ///
    /// # Errors
    /// When they leave nothing to allocate or are beyond [`MAX_BLOCKS`].
    pub const fn validate(&self) -> Result<(), KvError> {
        let (num_blocks, null_block) = (self.num_blocks, self.null_block);
        if self.block_size == 0 {
            return Err(KvError::ZeroBlockSize);
        }
        if num_blocks <= null_block as usize {
            return Err(KvError::NoUsableBlock {
                num_blocks,
                null_block,
            });
        }
        if num_blocks > MAX_BLOCKS {
            return Err(KvError::TooManyBlocks { num_blocks });
        }
        Ok(())
    }

    /// Whether a hit compares tokens and keys.
    pub fn verifies(&self) -> bool {
        self.verify_tokens || HashKind::from(self.hash).needs_verification()
    }

    /// An empty sequence whose names this cache understands. Panics when `block_size` is zero.
    pub fn sequence(&self, scope: &CacheScope) -> HashedTokens {
        let options = HashOptions {
            kind: self.hash.into(),
            fault: self.fault,
        };
        HashedTokens::with_options(self.block_size, scope, options)
    }
}
