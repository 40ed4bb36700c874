//! Options whose values are names of the engine's configuration, spelled as it spells them.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A name, other spellings of it (those of vLLM and SGLang where they mean the same), and help.
pub(super) type Name = (&'static str, &'static [&'static str], &'static str);

pub(super) const NUMERICS: &[Name] = &[
    ("f64", &[], "f64 throughout"),
    (
        "exact",
        &[],
        "f32, bit-identical for every chunking, batch and thread count",
    ),
    ("fast", &[], "bf16 weights, fastest kernels"),
];

pub(super) const KV_DTYPES: &[Name] = &[
    ("f32", &["float32"], "4 bytes an element"),
    ("bf16", &["bfloat16"], "2 bytes, the range of f32"),
    (
        "f16",
        &["float16", "half"],
        "2 bytes, three more bits of precision than bf16, up to 65,504",
    ),
    (
        "fp8-e4m3",
        &["fp8_e4m3", "fp8"],
        "1 byte: 8-bit float E4M3, up to 448",
    ),
    (
        "fp8-e5m2",
        &["fp8_e5m2"],
        "1 byte: 8-bit float E5M2, up to 57,344",
    ),
    (
        "int8",
        &["int8_per_token_head"],
        "1 byte and an f32 scale for each token and KV head",
    ),
];

pub(super) const CACHES: &[Name] = &[
    ("none", &[], "nothing is reused"),
    (
        "hash-chain",
        &["hash_chain"],
        "full blocks by a chain of block hashes, as vLLM",
    ),
    ("radix", &[], "pages in a tree of token runs, as SGLang"),
    ("oracle", &[], "brute force, slow, for judging the others"),
];

pub(super) const HASHES: &[Name] = &[
    ("blake3", &[], "256 bits, fast"),
    ("sha256", &[], "256 bits, vLLM's default"),
    (
        "xxh3",
        &["xxhash"],
        "128 bits, fastest; tokens are compared on a hit",
    ),
];

/// Eviction by priority is left out: requests bring no priority to the tree, so it would be LRU.
pub(super) const EVICTIONS: &[Name] = &[
    ("lru", &[], "least recently used"),
    ("lfu", &[], "least frequently used"),
    ("fifo", &[], "oldest"),
];

pub(super) const POLICIES: &[Name] = &[
    (
        "token_budget",
        &["token-budget"],
        "decodes, then chunks, within a budget of tokens",
    ),
    (
        "monolithic",
        &[],
        "whole prompts beside the decodes; turns chunking off",
    ),
    (
        "prefill_first",
        &["prefill-first"],
        "prompts first, decodes wait",
    ),
    (
        "decode_priority_monolithic",
        &["decode-priority-monolithic"],
        "decodes first, then whole prompts; turns chunking off",
    ),
    (
        "adaptive_load",
        &["adaptive-load"],
        "chunk size from the number of active decodes",
    ),
    (
        "shrinking",
        &[],
        "chunk size falls in stages as a prompt progresses",
    ),
    (
        "time_budget",
        &["time-budget"],
        "largest chunk whose predicted step time is within a budget",
    ),
];

pub(super) const QUEUES: &[Name] = &[
    ("fcfs", &[], "first come, first served"),
    ("priority", &[], "lowest `priority` of the requests first"),
    ("lpm", &[], "longest cached prefix first"),
    (
        "dfs-weight",
        &["dfs_weight"],
        "depth first through the tree of cached prefixes",
    ),
];

pub(super) const PREEMPTIONS: &[Name] = &[
    ("recompute", &[], "dropped and computed again"),
    ("swap", &[], "copied to host memory and back"),
];

pub(super) const PRESETS: &[Name] = &[
    ("vllm-v1", &["vllm"], "plain vLLM V1"),
    ("sglang", &[], "plain SGLang"),
];

/// Parses one of `names` into the configuration's own type.
pub(super) fn named<T>(names: &'static [Name]) -> impl TypedValueParser<Value = T>
where
    T: DeserializeOwned + Clone + Send + Sync + 'static,
{
    let values = names.iter().map(|&(name, others, help)| {
        PossibleValue::new(name)
            .aliases(others.iter().copied())
            .help(help)
    });
    PossibleValuesParser::new(values).try_map(|typed| {
        let is = |(name, others, _): &&Name| *name == typed || others.contains(&&*typed);
        let name = names.iter().find(is).map_or(&*typed, |name| name.0);
        serde_json::from_value::<T>(Value::from(name))
    })
}

#[cfg(test)]
mod tests {
    use pb_contract::{
        Eviction, HashAlgorithm, KvDtype, Numerics, PolicyKind, Preemption, PrefixCacheKind,
        Preset, QueueOrder,
    };

    use super::*;

    /// What the configuration reads each name as.
    fn read<T: DeserializeOwned>(names: &[Name]) -> Vec<T> {
        let value = |name: &Name| serde_json::from_value(Value::from(name.0)).expect(name.0);
        names.iter().map(value).collect()
    }

    #[test]
    fn every_name_is_one_of_the_configurations() {
        let kinds = read::<PrefixCacheKind>(CACHES);
        assert_eq!(kinds[1], PrefixCacheKind::HashChain);
        let dtypes = read::<KvDtype>(KV_DTYPES);
        assert_eq!(dtypes[3], KvDtype::Fp8E4m3);
        let counts = [
            read::<Numerics>(NUMERICS).len(),
            read::<HashAlgorithm>(HASHES).len(),
            read::<Eviction>(EVICTIONS).len(),
            read::<PolicyKind>(POLICIES).len(),
            read::<QueueOrder>(QUEUES).len(),
            read::<Preemption>(PREEMPTIONS).len(),
            read::<Preset>(PRESETS).len(),
        ];
        assert_eq!(counts, [3, 3, 3, 7, 4, 2, 2]);
    }
}
