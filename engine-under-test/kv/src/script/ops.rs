//! The lines of a script: operations on a prefix cache, and the configuration before them.

use pb_contract::{Eviction, Fault, FreePlacement, HashAlgorithm, PrefixCacheKind, TokenId};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::KvConfig;

/// The first line of a script: which cache, and how large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename = "config", deny_unknown_fields)]
pub struct ConfigLine {
    /// Always `manager`: the layer between the cache's data structure and the scheduler.
    #[serde(default)]
    pub layer: Layer,
    /// How shared prefixes are found.
    #[serde(with = "underscored")]
    pub cache: PrefixCacheKind,
    /// Tokens in a block.
    #[serde(alias = "page_size")]
    pub block_size: usize,
    /// Blocks in the pool, the null block included.
    pub num_blocks: usize,
    /// Set block 0 aside.
    #[serde(default)]
    pub null_block: bool,
    /// Where freed blocks enter the queue.
    #[serde(default)]
    pub placement: FreePlacement,
    /// Digest of the block-hash chain.
    #[serde(default)]
    pub hash: HashAlgorithm,
    /// Compare tokens on every hit.
    #[serde(default)]
    pub verify_tokens: bool,
    /// Eviction order of the radix tree.
    #[serde(default)]
    pub eviction: Eviction,
    /// Planted fault.
    #[serde(default)]
    pub fault: Fault,
}

/// The layer that a script speaks to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// [`crate::PrefixCache`].
    #[default]
    Manager,
}

impl ConfigLine {
    /// The line that asks for `config`.
    pub fn of(config: &KvConfig) -> Self {
        ConfigLine {
            layer: Layer::Manager,
            cache: config.prefix_cache,
            block_size: config.block_size,
            num_blocks: config.num_blocks,
            null_block: config.null_block,
            placement: config.placement,
            hash: config.hash,
            verify_tokens: config.verify_tokens,
            eviction: config.eviction,
            fault: config.fault,
        }
    }

    /// What the line asks for.
    pub fn kv_config(&self) -> KvConfig {
        KvConfig {
            null_block: self.null_block,
            placement: self.placement,
            hash: self.hash,
            verify_tokens: self.verify_tokens,
            eviction: self.eviction,
            fault: self.fault,
            // The script's judge compares what is evicted with what it knows to be in the block.
            record_evictions: true,
            ..KvConfig::new(self.block_size, self.num_blocks, self.cache)
        }
    }
}

/// One operation. Requests are named by the script.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", deny_unknown_fields)]
pub enum Op {
    /// A new waiting request. A waiting request of the same name is replaced.
    #[serde(rename = "add")]
    Add {
        /// Name of the request.
        id: String,
        /// Its prompt.
        tokens: Vec<TokenId>,
        /// Name of the adapter.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        adapter: Option<String>,
        /// Isolation key of the tenant.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        salt: Option<String>,
        /// Any name of an engine's fixed settings.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        identity: Option<String>,
    },
    /// Tokens that were generated.
    #[serde(rename = "kv.append")]
    Append {
        /// Name of the request.
        id: String,
        /// The tokens in order.
        tokens: Vec<TokenId>,
    },
    /// How much of the request is cached.
    #[serde(rename = "kv.lookup")]
    Lookup {
        /// Name of the request.
        id: String,
    },
    /// Blocks for at most `tokens` more tokens; a waiting request is admitted with its hit.
    #[serde(rename = "kv.allocate")]
    Allocate {
        /// Name of the request.
        id: String,
        /// Tokens to compute in this step, cut to what the request still has to compute.
        tokens: usize,
        /// Whether an admission uses the cached prefix.
        #[serde(default = "yes", skip_serializing_if = "is_yes")]
        hit: bool,
    },
    /// The step has computed: of one request, or of all with a step in flight.
    #[serde(rename = "kv.commit")]
    Commit {
        /// Name of the request; all when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
    },
    /// A child shares the blocks of its parent's first tokens, and has these tokens. A waiting
    /// request of the child's name is replaced.
    #[serde(rename = "kv.fork")]
    Fork {
        /// Name of the parent.
        id: String,
        /// Name of the child.
        child: String,
        /// Tokens that are shared, at most those that the parent has computed.
        tokens: usize,
    },
    /// The request is done and goes.
    #[serde(rename = "kv.finish")]
    Finish {
        /// Name of the request.
        id: String,
    },
    /// The request is preempted: it loses its blocks and waits again. Whoever relies on a step of
    /// it that has not computed is preempted too.
    #[serde(rename = "kv.free")]
    Free {
        /// Name of the request.
        id: String,
    },
    /// Execution of the step failed: every request in flight is preempted.
    #[serde(rename = "kv.fail")]
    Fail,
    /// Forgets every cached prefix, unless a request holds blocks.
    #[serde(rename = "kv.reset")]
    Reset,
    /// Buckets, free queue and block tables.
    #[serde(rename = "state")]
    State,
}

impl Op {
    /// The request that the operation is about; that of a fork is the child.
    pub fn id(&self) -> Option<&str> {
        match self {
            Op::Add { id, .. }
            | Op::Append { id, .. }
            | Op::Lookup { id }
            | Op::Allocate { id, .. }
            | Op::Fork { child: id, .. }
            | Op::Finish { id }
            | Op::Free { id } => Some(id),
            Op::Commit { id } => id.as_deref(),
            Op::Fail | Op::Reset | Op::State => None,
        }
    }
}

fn yes() -> bool {
    true
}

fn is_yes(value: &bool) -> bool {
    *value
}

/// Scripts write `hash_chain` where configuration files write `hash-chain`; both are read.
mod underscored {
    use super::*;

    pub(super) fn serialize<S: Serializer>(
        kind: &PrefixCacheKind,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let name = serde_json::to_value(kind).map_err(serde::ser::Error::custom)?;
        let name = name.as_str().unwrap_or_default().replace('-', "_");
        serializer.serialize_str(&name)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<PrefixCacheKind, D::Error> {
        let name = String::deserialize(deserializer)?.replace('_', "-");
        serde_json::from_value(name.into()).map_err(serde::de::Error::custom)
    }
}
