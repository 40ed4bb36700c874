//! The name of a block: a digest of everything that its KV values depend on.
//!
//! A cached block may be reused only where the whole prefix, the model, the adapter and the
//! tenant are the same. The digest of a full block therefore covers the digest of the block
//! before it, the block's tokens in order, and keys tagged by their kind, so that an adapter
//! called `x` is never taken for a salt called `x`. The adapter is in every block; the salt only
//! in the first, because later blocks inherit it through the chain.

use pb_contract::TokenId;

/// Version of the encoding below; part of the root so that formats never mix.
const ROOT_CONTEXT: &[u8] = b"prefillbench kv block chain v1";

/// Kind tags of the extra keys. A tag is followed by a length, so no two key lists encode alike.
const TAG_TOKENS: u8 = 0;
const TAG_ADAPTER: u8 = 1;
const TAG_SALT: u8 = 2;

/// 256-bit digest of a full block and of all that precedes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(pub [u8; 32]);

/// What beside the tokens must be the same for KV blocks to be shared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheScope {
    /// Digest of what is fixed for one engine: weights, architecture, positional configuration,
    /// KV representation. It seeds the root of the chain.
    pub identity: [u8; 32],
    /// Adapter applied to the request; enters every block.
    pub adapter: Option<String>,
    /// Isolation key of the tenant or user; enters the first block.
    pub salt: Option<String>,
}

/// The digest function of the chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HashKind {
    /// BLAKE3, 256 bits: collisions need not be expected.
    #[default]
    Blake3,
    /// Every block gets the same digest. Only for proving that a collision cannot produce a wrong
    /// hit when tokens are compared; never for serving.
    ConstantStub,
}

/// The tokens of one request with the digests of its full blocks, kept up to date as tokens
/// arrive.
///
/// Partial blocks have no digest: only full blocks are ever shared.
#[derive(Clone, Debug)]
pub struct HashedTokens {
    block_size: usize,
    kind: HashKind,
    root: BlockHash,
    identity: [u8; 32],
    /// Encoded keys of every block.
    keys: Vec<u8>,
    /// Encoded keys of the first block (those of every block, then the salt).
    first_keys: Vec<u8>,
    tokens: Vec<TokenId>,
    hashes: Vec<BlockHash>,
}

impl HashedTokens {
    /// An empty sequence of blocks of `block_size` tokens. Panics when `block_size` is zero.
    pub fn new(block_size: usize, scope: &CacheScope) -> Self {
        Self::with_hash(block_size, scope, HashKind::Blake3)
    }

    /// As [`HashedTokens::new`] with a chosen digest function.
    pub fn with_hash(block_size: usize, scope: &CacheScope, kind: HashKind) -> Self {
        assert!(block_size > 0, "a block holds at least one token");
        let mut keys = Vec::new();
        if let Some(adapter) = &scope.adapter {
            push_key(&mut keys, TAG_ADAPTER, adapter.as_bytes());
        }
        let mut first_keys = keys.clone();
        if let Some(salt) = &scope.salt {
            push_key(&mut first_keys, TAG_SALT, salt.as_bytes());
        }
        let root = [ROOT_CONTEXT, &scope.identity].concat();
        HashedTokens {
            block_size,
            kind,
            root: BlockHash(*blake3::hash(&root).as_bytes()),
            identity: scope.identity,
            keys,
            first_keys,
            tokens: Vec::new(),
            hashes: Vec::new(),
        }
    }

    /// Appends one token.
    pub fn push(&mut self, token: TokenId) {
        self.tokens.push(token);
        if self.tokens.len().is_multiple_of(self.block_size) {
            self.hash_full_blocks();
        }
    }

    /// Appends tokens in order.
    pub fn extend(&mut self, tokens: &[TokenId]) {
        self.tokens.extend_from_slice(tokens);
        self.hash_full_blocks();
    }

    /// All tokens.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Digests of the full blocks, one a block.
    pub fn hashes(&self) -> &[BlockHash] {
        &self.hashes
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is no token yet.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Tokens in a full block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// The tokens of full block `index`. Panics when that block is not full.
    pub fn block_tokens(&self, index: usize) -> &[TokenId] {
        &self.tokens[index * self.block_size..(index + 1) * self.block_size]
    }

    /// What block `index` depends on beside its tokens and its parent, undigested: used where
    /// contents are compared instead of trusted to the digest.
    pub(crate) fn block_keys(&self, index: usize) -> Vec<u8> {
        match index {
            0 => [&self.identity[..], &self.first_keys].concat(),
            _ => self.keys.clone(),
        }
    }

    fn hash_full_blocks(&mut self) {
        let mut message = Vec::with_capacity(40 + self.first_keys.len() + 4 * self.block_size);
        for index in self.hashes.len()..self.tokens.len() / self.block_size {
            let hash = match self.kind {
                HashKind::Blake3 => self.block_hash(index, &mut message),
                HashKind::ConstantStub => BlockHash::default(),
            };
            self.hashes.push(hash);
        }
    }

    /// The digest of block `index`; its parent must have been digested before.
    fn block_hash(&self, index: usize, message: &mut Vec<u8>) -> BlockHash {
        let (parent, keys) = match index {
            0 => (&self.root, &self.first_keys),
            _ => (&self.hashes[index - 1], &self.keys),
        };
        message.clear();
        message.extend_from_slice(&parent.0);
        message.extend_from_slice(keys);
        message.push(TAG_TOKENS);
        for token in self.block_tokens(index) {
            message.extend_from_slice(&token.to_le_bytes());
        }
        BlockHash(*blake3::hash(message).as_bytes())
    }
}

fn push_key(keys: &mut Vec<u8>, tag: u8, value: &[u8]) {
    keys.push(tag);
    keys.extend_from_slice(&(value.len() as u64).to_le_bytes());
    keys.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(scope: &CacheScope, tokens: &[TokenId]) -> Vec<BlockHash> {
        let mut seq = HashedTokens::new(4, scope);
        seq.extend(tokens);
        seq.hashes().to_vec()
    }

    #[test]
    fn the_digest_is_the_documented_encoding() {
        // Written out by hand: root, then parent, keys, tag 0 and little-endian tokens.
        let root = blake3::hash(&[ROOT_CONTEXT, &[7u8; 32][..]].concat());
        let mut first = root.as_bytes().to_vec();
        first.extend([
            1, 1, 0, 0, 0, 0, 0, 0, 0, b'a', 2, 1, 0, 0, 0, 0, 0, 0, 0, b's', 0,
        ]);
        first.extend([1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 1, 0, 0]);
        let first = blake3::hash(&first);
        let mut second = first.as_bytes().to_vec();
        second.extend([1, 1, 0, 0, 0, 0, 0, 0, 0, b'a', 0]);
        second.extend([5, 0, 0, 0, 6, 0, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0]);
        let second = blake3::hash(&second);
        let scope = CacheScope {
            identity: [7; 32],
            adapter: Some("a".to_owned()),
            salt: Some("s".to_owned()),
        };
        let got = hashes(&scope, &[1, 2, 3, 256, 5, 6, 7, 8, 9]);
        assert_eq!(
            got,
            [BlockHash(*first.as_bytes()), BlockHash(*second.as_bytes())]
        );
    }

    #[test]
    fn pushing_one_by_one_equals_extending() {
        let tokens: Vec<TokenId> = (0..103).map(|i| i * 7).collect();
        let mut one_by_one = HashedTokens::new(4, &CacheScope::default());
        tokens.iter().for_each(|&t| one_by_one.push(t));
        assert_eq!(one_by_one.hashes(), hashes(&CacheScope::default(), &tokens));
        assert_eq!(one_by_one.hashes().len(), 25);
        assert_eq!(one_by_one.tokens(), tokens);
    }

    #[test]
    fn every_part_of_the_key_changes_every_block() {
        let tokens: Vec<TokenId> = (0..12).collect();
        let base = CacheScope::default();
        let with = |adapter: Option<&str>, salt: Option<&str>, identity: u8| CacheScope {
            identity: [identity; 32],
            adapter: adapter.map(str::to_owned),
            salt: salt.map(str::to_owned),
        };
        let scopes = [
            base,
            with(Some("x"), None, 0),
            with(None, Some("x"), 0),
            with(Some("y"), None, 0),
            with(None, Some("y"), 0),
            with(Some("x"), Some("x"), 0),
            with(Some("xx"), None, 0),
            with(Some(""), None, 0),
            with(None, Some(""), 0),
            with(None, None, 1),
        ];
        for (i, a) in scopes.iter().enumerate() {
            assert_eq!(hashes(a, &tokens), hashes(a, &tokens));
            for b in &scopes[i + 1..] {
                let pairs = hashes(a, &tokens).into_iter().zip(hashes(b, &tokens));
                pairs.for_each(|(x, y)| assert_ne!(x, y, "{a:?} {b:?}"));
            }
        }
    }
}
