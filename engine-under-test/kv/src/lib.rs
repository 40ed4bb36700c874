//! Paged KV blocks and the prefix cache over them, without any tensor.
//!
//! Which physical block holds which tokens decides both memory use and whether a reused prefix is
//! the right one, and every public fault report of this kind is a bookkeeping fault. So the
//! bookkeeping stands alone here: it never sees keys or values, takes no lock, reads no clock and
//! states its conservation laws in [`KvManager::check`].
//!
//! Layers, lowest first: [`BlockPool`] (free queue and reference counts), [`HashedTokens`] (what
//! a block is called), [`PrefixCache`] (name to block), [`KvManager`] (block tables of requests).
//!
//! ```
//! use pb_contract::{PrefixCacheKind, RequestId};
//! use pb_kv::{CacheScope, HashedTokens, Hit, KvConfig, KvManager};
//!
//! let mut kv = KvManager::new(KvConfig::new(4, 8, PrefixCacheKind::HashChain))?;
//! let mut seq = HashedTokens::new(4, &CacheScope::default());
//! seq.extend(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
//! assert!(kv.allocate(RequestId(0), &seq, 0, &Hit::default(), 9));
//! assert_eq!(kv.lookup(&seq).tokens(4), 8); // a second request would share two blocks
//! kv.free(RequestId(0));
//! assert_eq!(kv.buckets().reclaimable, 2);
//! # Ok::<(), pb_kv::KvError>(())
//! ```

mod cache;
mod check;
mod contents;
mod hash_chain;
mod manager;
mod pool;
mod tokens;

pub use cache::{NoCache, PrefixCache};
pub use hash_chain::HashChain;
pub use manager::{Hit, KvConfig, KvError, KvManager, MAX_BLOCKS};
pub use pool::{BlockPool, FreePlacement, Popped};
pub use tokens::{BlockHash, CacheScope, HashKind, HashedTokens};
