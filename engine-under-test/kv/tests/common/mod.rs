//! Short hands for the tests of this crate.

#![allow(dead_code, reason = "each test binary uses its own part")]

use pb_contract::{BlockId, PrefixCacheKind, RequestId, TokenId};
use pb_kv::{
    AdapterKey, CacheScope, FreePlacement, HashKind, HashedTokens, Hit, KvConfig, KvManager,
};

/// A sequence of the default scope.
pub(crate) fn seq(block_size: usize, tokens: impl IntoIterator<Item = TokenId>) -> HashedTokens {
    scoped(block_size, &CacheScope::default(), tokens)
}

/// A sequence of a given scope.
pub(crate) fn scoped(
    block_size: usize,
    scope: &CacheScope,
    tokens: impl IntoIterator<Item = TokenId>,
) -> HashedTokens {
    with_hash(block_size, scope, HashKind::Blake3, tokens)
}

/// A sequence of a given scope and digest.
pub(crate) fn with_hash(
    block_size: usize,
    scope: &CacheScope,
    kind: HashKind,
    tokens: impl IntoIterator<Item = TokenId>,
) -> HashedTokens {
    let mut seq = HashedTokens::with_hash(block_size, scope, kind);
    seq.extend(&tokens.into_iter().collect::<Vec<_>>());
    seq
}

/// A scope with an adapter and a salt.
pub(crate) fn scope(adapter: Option<&str>, salt: Option<&str>) -> CacheScope {
    CacheScope {
        identity: [0; 32],
        adapter: adapter.map(|name| AdapterKey {
            name: name.to_owned(),
            digest: [0; 32],
        }),
        salt: salt.map(str::to_owned),
    }
}

/// A hash-chain manager with vLLM's placement of freed blocks.
pub(crate) fn manager(block_size: usize, num_blocks: usize) -> KvManager {
    KvManager::new(KvConfig::new(
        block_size,
        num_blocks,
        PrefixCacheKind::HashChain,
    ))
    .unwrap()
}

/// A manager with every option given.
pub(crate) fn manager_with(
    block_size: usize,
    num_blocks: usize,
    null_block: bool,
    placement: FreePlacement,
) -> KvManager {
    let config = KvConfig {
        null_block,
        placement,
        ..KvConfig::new(block_size, num_blocks, PrefixCacheKind::HashChain)
    };
    KvManager::new(config).unwrap()
}

/// Looks up and allocates the whole of `seq`; returns the hit in tokens. Panics when refused.
pub(crate) fn start(kv: &mut KvManager, id: u64, seq: &HashedTokens) -> usize {
    let hit = kv.lookup(seq);
    let hit_tokens = hit.tokens(seq.block_size());
    assert!(
        kv.allocate(RequestId(id), seq, 0, &hit, seq.len() - hit_tokens),
        "no room"
    );
    kv.check().unwrap();
    hit_tokens
}

/// As [`start`], and the step computes it.
pub(crate) fn admit(kv: &mut KvManager, id: u64, seq: &HashedTokens) -> usize {
    let hit_tokens = start(kv, id, seq);
    kv.commit(RequestId(id), seq.len());
    kv.check().unwrap();
    hit_tokens
}

/// One more chunk of `seq` up to `end` tokens, computed. Panics when refused.
pub(crate) fn extend(kv: &mut KvManager, id: u64, seq: &HashedTokens, from: usize, end: usize) {
    let id = RequestId(id);
    assert!(kv.allocate(id, seq, from, &miss(), end - from), "no room");
    kv.commit(id, end);
    kv.check().unwrap();
}

/// Frees and checks.
pub(crate) fn free(kv: &mut KvManager, id: u64) {
    kv.free(RequestId(id));
    kv.check().unwrap();
}

/// Block numbers as ids.
pub(crate) fn ids(blocks: &[u32]) -> Vec<BlockId> {
    blocks.iter().map(|&block| BlockId(block)).collect()
}

/// An empty hit.
pub(crate) fn miss() -> Hit {
    Hit::default()
}
