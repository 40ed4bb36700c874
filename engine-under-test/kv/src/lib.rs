//! Paged KV blocks and the prefix cache over them, without any tensor.
//!
//! Which physical block holds which tokens decides both memory use and whether a reused prefix is
//! the right one, and every public fault report of this kind is a bookkeeping fault. So the
//! bookkeeping stands alone here: it never sees keys or values, takes no lock, reads no clock and
//! states its conservation laws in [`PrefixCache::check`].
//!
//! Layers, lowest first: [`BlockPool`] (free queue and reference counts), [`HashedTokens`] (what
//! a block is called), [`PrefixCache`] (name to block), [`KvManager`] (block tables of requests).
//!
//! ```
//! use pb_contract::{PrefixCacheKind, RequestId};
//! use pb_kv::{CacheScope, Hit, KvConfig, build};
//!
//! let config = KvConfig::new(4, 8, PrefixCacheKind::HashChain);
//! let mut kv = build(config)?;
//! let mut seq = config.sequence(&CacheScope::default());
//! seq.extend(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
//! assert!(kv.allocate(RequestId(0), &seq, 0, &Hit::default(), 9));
//! assert_eq!(kv.lookup(&seq).tokens(4), 8); // a second request would share two blocks
//! kv.commit(RequestId(0), &seq, 9); // the step has computed them
//! kv.finish(RequestId(0), &seq);
//! assert_eq!(kv.buckets().reclaimable, 2);
//! # Ok::<(), pb_kv::KvError>(())
//! ```

mod block_index;
mod cache;
mod check;
mod config;
mod contents;
mod digest;
mod events;
mod hash_chain;
mod identity;
mod manager;
mod oracle;
mod pool;
mod radix;
pub mod script;
mod stats;
mod tokens;

pub use block_index::{BlockIndex, NoIndex};
pub use cache::{Evicted, Moves, PrefixCache, build};
pub use config::{KvConfig, KvError, MAX_BLOCKS};
pub use digest::{BlockHash, HashKind};
pub use events::CacheEvent;
pub use hash_chain::HashChain;
pub use identity::{CacheIdentity, EngineFormat, KvFormat, Positional};
pub use manager::{Hit, KvManager};
pub use oracle::OracleCache;
pub use pb_contract::FreePlacement;
pub use pool::{BlockPool, Popped};
pub use radix::{
    EvictedPages, Inserted, RadixCache, RadixMatch, RadixNodeId, RadixNodeState, RadixState,
    RadixTree, Run,
};
pub use stats::{Accounting, CacheStats, LOG2_BUCKETS, Log2Histogram};
pub use tokens::{AdapterKey, CacheScope, HashOptions, HashedTokens};
