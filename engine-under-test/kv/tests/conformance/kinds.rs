//! Every cache that must keep the laws.

use pb_contract::{Eviction, HashAlgorithm, PrefixCacheKind};
use pb_kv::{FreePlacement, KvConfig};

/// All caches at one block size and one number of usable blocks.
pub(crate) fn kinds(block_size: usize, usable_blocks: usize) -> Vec<KvConfig> {
    let of = |kind| KvConfig {
        record_evictions: true,
        ..KvConfig::new(block_size, usable_blocks, kind)
    };
    let mut kinds = vec![of(PrefixCacheKind::None), of(PrefixCacheKind::Oracle)];
    for hash in [
        HashAlgorithm::Blake3,
        HashAlgorithm::Sha256,
        HashAlgorithm::Xxh3,
    ] {
        for placement in [FreePlacement::Append, FreePlacement::UnhashedToHead] {
            kinds.push(KvConfig {
                hash,
                placement,
                ..of(PrefixCacheKind::HashChain)
            });
        }
    }
    kinds.push(KvConfig {
        verify_tokens: true,
        ..of(PrefixCacheKind::HashChain)
    });
    for kind in [PrefixCacheKind::HashChain, PrefixCacheKind::Oracle] {
        kinds.push(KvConfig {
            null_block: true,
            num_blocks: usable_blocks + 1,
            ..of(kind)
        });
    }
    let evictions = [
        Eviction::Lru,
        Eviction::Lfu,
        Eviction::Fifo,
        Eviction::Priority,
    ];
    kinds.extend(evictions.map(|eviction| KvConfig {
        eviction,
        ..of(PrefixCacheKind::Radix)
    }));
    kinds
}
