//! Short hands.

use pb_contract::{BlockId, PrefixCacheKind, RequestId, TokenId};
use pb_kv::{CacheScope, HashedTokens, KvConfig, PrefixCache, RadixCache};

/// A cache of `num_blocks` blocks that reports what it evicts.
pub(crate) fn cache(block_size: usize, num_blocks: usize) -> RadixCache {
    RadixCache::new(config(block_size, num_blocks)).unwrap()
}

/// Its configuration.
pub(crate) fn config(block_size: usize, num_blocks: usize) -> KvConfig {
    KvConfig {
        record_evictions: true,
        ..KvConfig::new(block_size, num_blocks, PrefixCacheKind::Radix)
    }
}

/// A sequence of the default scope.
pub(crate) fn seq(cache: &RadixCache, tokens: impl IntoIterator<Item = TokenId>) -> HashedTokens {
    let mut seq = cache.config().sequence(&CacheScope::default());
    seq.extend(&tokens.into_iter().collect::<Vec<_>>());
    seq
}

/// Admits a request for its next `tokens` tokens; returns the hit, or nothing when refused.
pub(crate) fn admit(
    cache: &mut RadixCache,
    id: u64,
    seq: &HashedTokens,
    tokens: usize,
) -> Option<usize> {
    let hit = cache.lookup(seq);
    let hit_tokens = hit.tokens(seq.block_size());
    let admitted = cache.allocate(RequestId(id), seq, 0, &hit, tokens);
    cache.check().unwrap();
    admitted.then_some(hit_tokens)
}

/// Admits, computes and commits the whole of a sequence; returns the hit in tokens.
pub(crate) fn run(cache: &mut RadixCache, id: u64, seq: &HashedTokens) -> usize {
    let hit = cache.lookup(seq).tokens(seq.block_size());
    let admitted = admit(cache, id, seq, seq.len() - hit);
    assert_eq!(admitted, Some(hit), "no room");
    commit(cache, id, seq, seq.len());
    hit
}

/// One more chunk of a running request.
pub(crate) fn extend(
    cache: &mut RadixCache,
    id: u64,
    seq: &HashedTokens,
    computed: usize,
    tokens: usize,
) -> bool {
    let done = cache.allocate(RequestId(id), seq, computed, &Default::default(), tokens);
    cache.check().unwrap();
    done
}

pub(crate) fn commit(cache: &mut RadixCache, id: u64, seq: &HashedTokens, computed: usize) {
    cache.commit(RequestId(id), seq, computed);
    cache.check().unwrap();
}

pub(crate) fn finish(cache: &mut RadixCache, id: u64, seq: &HashedTokens) {
    cache.finish(RequestId(id), seq);
    cache.check().unwrap();
}

pub(crate) fn free(cache: &mut RadixCache, id: u64) {
    cache.free(RequestId(id));
    cache.check().unwrap();
}

pub(crate) fn table(cache: &RadixCache, id: u64) -> Vec<BlockId> {
    cache.block_table(RequestId(id)).to_vec()
}

/// Block numbers as ids.
pub(crate) fn ids(blocks: &[u32]) -> Vec<BlockId> {
    blocks.iter().map(|&block| BlockId(block)).collect()
}
