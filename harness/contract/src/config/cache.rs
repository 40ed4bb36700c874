//! How the prefix cache names, places and evicts blocks, and where evicted blocks go.

use serde::{Deserialize, Serialize};

/// Digest of the block-hash chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HashAlgorithm {
    /// 256 bits, fast, collisions not to be expected.
    #[default]
    Blake3,
    /// 256 bits, vLLM's default.
    Sha256,
    /// XXH3, 128 bits: fastest, not collision-proof against an adversary, so tokens are compared.
    Xxh3,
}

/// Where freed blocks enter the free queue, whose head is reused first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FreePlacement {
    /// All at the tail (vLLM up to 0.23).
    Append,
    /// Blocks without reusable data at the head, the others at the tail (vLLM from 0.24): a
    /// worthless block never pushes a useful one out.
    #[default]
    UnhashedToHead,
}

/// Which unlocked leaf of the radix tree goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Eviction {
    /// Least recently used.
    #[default]
    Lru,
    /// Least frequently used; among equals the least recently used.
    Lfu,
    /// Oldest.
    Fifo,
    /// Lowest priority; among equals the least recently used.
    Priority,
}

/// Details of the prefix cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CacheOptions {
    /// Digest of the block-hash chain.
    pub hash: HashAlgorithm,
    /// Set block 0 aside (as vLLM does, whose block numbers then agree with ours).
    pub null_block: bool,
    /// Where freed blocks enter the free queue (hash chain).
    pub placement: FreePlacement,
    /// Compare tokens and keys on every hit, whatever the digest (hash chain).
    pub verify_tokens: bool,
    /// Eviction order (radix).
    pub eviction: Eviction,
}

/// Where blocks go that the device pool evicts, fastest tier first. All off by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TierOptions {
    /// Bytes of host memory; 0 is none.
    pub host_bytes: u64,
    /// Directory of the disk tier; absent is none.
    pub disk_dir: Option<String>,
    /// Bytes that the disk tier may hold.
    pub disk_bytes: u64,
    /// Address of a Redis-compatible server, without credentials; absent is none.
    pub redis_url: Option<String>,
}

impl TierOptions {
    /// Whether any tier is on.
    pub fn any(&self) -> bool {
        self.host_bytes > 0 || self.disk_dir.is_some() || self.redis_url.is_some()
    }
}
