//! The pretended prefix cache: full blocks by a chain of hashes, as vLLM keeps them.

use std::collections::BTreeMap;

use pb_contract::TokenId;
use xxhash_rust::xxh3::Xxh3;

use crate::options::CacheModel;

/// Identity of a block: the tokens up to its end and the salt. 128 bits without a key: good for a
/// pretended cache, not for one that guards something.
type BlockKey = u128;

/// Blocks that are in the cache.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    model: CacheModel,
    /// Last use of each block.
    blocks: BTreeMap<BlockKey, u64>,
    /// Blocks by last use.
    by_use: BTreeMap<u64, BlockKey>,
    uses: u64,
}

impl PrefixCache {
    /// An empty cache.
    pub(crate) fn new(model: CacheModel) -> PrefixCache {
        PrefixCache {
            model,
            blocks: BTreeMap::new(),
            by_use: BTreeMap::new(),
            uses: 0,
        }
    }

    /// Tokens of a prompt that are cached: whole blocks, and never the last token, because one
    /// must be computed. The blocks found count as used.
    pub(crate) fn hit(&mut self, tokens: &[TokenId], salt: Option<&str>) -> usize {
        if !self.model.enabled {
            return 0;
        }
        let shareable = tokens.len().saturating_sub(1);
        let mut found = Vec::new();
        for key in keys(&self.model, &tokens[..shareable], salt) {
            if !self.blocks.contains_key(&key) {
                break;
            }
            found.push(key);
        }
        self.touch(&found);
        found.len() * self.model.block_size
    }

    /// Puts the full blocks of a sequence in.
    pub(crate) fn insert(&mut self, tokens: &[TokenId], salt: Option<&str>) {
        if !self.model.enabled {
            return;
        }
        let keys: Vec<BlockKey> = keys(&self.model, tokens, salt).collect();
        self.touch(&keys);
        let most = self.model.blocks.unwrap_or(usize::MAX);
        while self.blocks.len() > most {
            let Some((_, key)) = self.by_use.pop_first() else {
                break;
            };
            self.blocks.remove(&key);
        }
    }

    /// Marks blocks as used, the last of a chain as the longest ago: it leaves first.
    fn touch(&mut self, keys: &[BlockKey]) {
        for &key in keys.iter().rev() {
            self.uses += 1;
            if let Some(before) = self.blocks.insert(key, self.uses) {
                self.by_use.remove(&before);
            }
            self.by_use.insert(self.uses, key);
        }
    }

    /// Empties it.
    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
        self.by_use.clear();
    }
}

/// Keys of the full blocks of a sequence, first to last.
fn keys<'a>(
    model: &CacheModel,
    tokens: &'a [TokenId],
    salt: Option<&str>,
) -> impl Iterator<Item = BlockKey> + use<'a> {
    let salt = salt.filter(|_| model.salted).unwrap_or("");
    let mut chain = xxhash_rust::xxh3::xxh3_128(salt.as_bytes());
    tokens.chunks_exact(model.block_size).map(move |block| {
        let mut hash = Xxh3::new();
        hash.update(&chain.to_le_bytes());
        for token in block {
            hash.update(&token.to_le_bytes());
        }
        chain = hash.digest128();
        chain
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(blocks: Option<usize>, salted: bool) -> PrefixCache {
        PrefixCache::new(CacheModel {
            block_size: 4,
            blocks,
            salted,
            ..CacheModel::default()
        })
    }

    #[test]
    fn row_67_the_last_token_is_never_shareable() {
        let mut cache = cache(None, true);
        let tokens: Vec<TokenId> = (0..13).collect();
        assert_eq!(cache.hit(&tokens, None), 0);
        cache.insert(&tokens, None);
        assert_eq!(cache.hit(&tokens[..12], None), 8);
        assert_eq!(cache.hit(&tokens[..13], None), 12);
        assert_eq!(cache.hit(&tokens[1..], None), 0);
        assert_eq!(cache.hit(&[], None), 0);
    }

    #[test]
    fn a_salt_separates_unless_the_server_forgets_it() {
        let tokens: Vec<TokenId> = (0..9).collect();
        for (salted, expected) in [(true, 0), (false, 8)] {
            let mut cache = cache(None, salted);
            cache.insert(&tokens, Some("a"));
            assert_eq!(cache.hit(&tokens, Some("a")), 8);
            assert_eq!(cache.hit(&tokens, Some("b")), expected);
            assert_eq!(cache.hit(&tokens, None), expected);
            cache.clear();
            assert_eq!(cache.hit(&tokens, Some("a")), 0);
        }
    }

    #[test]
    fn the_least_recently_used_chain_loses_its_end_first() {
        let mut cache = cache(Some(3), true);
        let (a, b): (Vec<TokenId>, Vec<TokenId>) = ((0..9).collect(), (100..109).collect());
        cache.insert(&a, None);
        cache.insert(&b, None);
        assert_eq!(cache.hit(&a, None), 4, "one block of a had to go");
        assert_eq!(cache.hit(&b, None), 8);
    }
}
