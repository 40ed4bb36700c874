//! Where KV blocks go that the device pool evicts, and where they come back from.
//!
//! The tiers are host memory, a directory on disk and a Redis-compatible server, fastest first.
//! A block evicted from one falls into the next; a hit lifts it into those above. An image that
//! comes back is the image that was stored, or it does not come back: what left the process
//! carries a checksum, and a torn, foreign or altered image is a miss, not an error of the engine.
//!
//! Reuse across processes is sound only when the name of an image covers all that its values
//! depend on. A [`TierKey`] therefore holds the engine's identity beside the block's digest, which
//! already covers prefix, adapter and salt (vllm #44250 is a store that forgot the adapter).
//!
//! ```
//! use pb_contract::{Fault, TierOptions};
//! use pb_kv::BlockHash;
//! use pb_tiers::{TierKind, TierStack};
//!
//! let options = TierOptions { host_bytes: 1 << 20, ..TierOptions::default() };
//! let mut tiers = TierStack::open(&options, [7; 32], Fault::None)?;
//! tiers.store(&BlockHash([1; 32]), b"keys and values");
//! let mut image = Vec::new();
//! assert_eq!(tiers.fetch(&BlockHash([1; 32]), &mut image), Some(TierKind::Host));
//! assert_eq!(image, b"keys and values");
//! # Ok::<(), pb_tiers::TierError>(())
//! ```

mod disk;
mod error;
mod frame;
mod host;
mod key;
mod lru;
mod redis_tier;
mod redis_worker;
mod stack;
mod tier;

pub use disk::{DiskTier, Victims};
pub use error::TierError;
pub use host::HostTier;
pub use key::TierKey;
pub use redis_tier::{PASSWORD_VARIABLE, RETRY_AFTER_OPERATIONS, RedisOptions, RedisTier, Secret};
pub use stack::TierStack;
pub use tier::{PutOutcome, Tier, TierKind, TierStats};
