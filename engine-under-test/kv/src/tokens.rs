//! The name of a block: a digest of everything that its KV values depend on.
//!
//! A cached block may be reused only where the whole prefix, the model, the adapter and the
//! tenant are the same. The digest of a full block therefore covers the digest of the block
//! before it, the block's tokens in order, and keys tagged by their kind, so that an adapter
//! called `x` is never taken for a salt called `x`. The adapter is in every block; the salt only
//! in the first, because later blocks inherit it through the chain.

use pb_contract::{Fault, TokenId};

use crate::digest::{BlockHash, HashKind};
use crate::identity::push_tagged;

/// Version of the encoding below; part of the root so that formats never mix.
const ROOT_CONTEXT: &[u8] = b"prefillbench kv block chain v2";

/// Kind tags of the extra keys. A tag is followed by a length, so no two key lists encode alike.
const TAG_TOKENS: u8 = 0;
const TAG_ADAPTER: u8 = 1;
const TAG_SALT: u8 = 2;
const TAG_ADAPTER_DIGEST: u8 = 3;

/// Bytes of the parent's digest, with which every message begins.
const PARENT_BYTES: usize = 32;

/// Which adapter was applied, by name and by contents: an adapter that is loaded again under the
/// same name with other weights is another adapter.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct AdapterKey {
    /// The name that requests use.
    pub name: String,
    /// Digest of the adapter's configuration and weights.
    pub digest: [u8; 32],
}

/// What beside the tokens must be the same for KV blocks to be shared.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CacheScope {
    /// Digest of what is fixed for one engine, see [`crate::CacheIdentity`]. It seeds the root of
    /// the chain.
    pub identity: [u8; 32],
    /// Adapter applied to the request; enters every block.
    pub adapter: Option<AdapterKey>,
    /// Isolation key of the tenant or user; enters the first block.
    pub salt: Option<String>,
}

/// How names are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HashOptions {
    /// Digest function.
    pub kind: HashKind,
    /// Planted fault: [`Fault::WrongParent`] and the missing keys act here, others do not.
    pub fault: Fault,
}

/// The tokens of one request with the digests of its full blocks, kept up to date as tokens
/// arrive.
///
/// Partial blocks have no digest: only full blocks are ever shared.
#[derive(Clone, Debug)]
pub struct HashedTokens {
    block_size: usize,
    options: HashOptions,
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
    /// An empty sequence of blocks of `block_size` tokens, named by BLAKE3. Panics when
    /// `block_size` is zero.
    pub fn new(block_size: usize, scope: &CacheScope) -> Self {
        Self::with_hash(block_size, scope, HashKind::Blake3)
    }

    /// As [`HashedTokens::new`] with a chosen digest function.
    pub fn with_hash(block_size: usize, scope: &CacheScope, kind: HashKind) -> Self {
        let options = HashOptions {
            kind,
            fault: Fault::None,
        };
        Self::with_options(block_size, scope, options)
    }

    /// As [`HashedTokens::new`] with every option given.
    pub fn with_options(block_size: usize, scope: &CacheScope, options: HashOptions) -> Self {
        assert!(block_size > 0, "a block holds at least one token");
        let fault = options.fault;
        let mut keys = Vec::new();
        if let Some(adapter) = &scope.adapter
            && fault != Fault::MissingAdapterKey
        {
            push_tagged(&mut keys, TAG_ADAPTER, adapter.name.as_bytes());
            push_tagged(&mut keys, TAG_ADAPTER_DIGEST, &adapter.digest);
        }
        let mut first_keys = keys.clone();
        if let Some(salt) = &scope.salt
            && fault != Fault::MissingSaltKey
        {
            push_tagged(&mut first_keys, TAG_SALT, salt.as_bytes());
        }
        let identity = match fault {
            Fault::MissingIdentityKey => [0; 32],
            _ => scope.identity,
        };
        HashedTokens {
            block_size,
            options,
            root: options.kind.digest(&[ROOT_CONTEXT, &identity].concat()),
            identity,
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

    /// How its names are made.
    pub fn options(&self) -> HashOptions {
        self.options
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
    /// contents are compared instead of trusted to the digest. One key in two parts.
    pub(crate) fn block_keys(&self, index: usize) -> (&[u8], &[u8]) {
        match index {
            0 => (&self.identity, &self.first_keys),
            _ => (&[], &self.keys),
        }
    }

    /// One message buffer serves all blocks: parent, keys and tokens are written over those of the
    /// block before.
    fn hash_full_blocks(&mut self) {
        let full = self.tokens.len() / self.block_size;
        if self.hashes.len() == full {
            return;
        }
        self.hashes.reserve(full - self.hashes.len());
        let mut message = Vec::new();
        if self.hashes.is_empty() {
            self.start_message(&mut message, &self.first_keys);
            self.hash_block(0, self.root, &mut message);
        }
        self.start_message(&mut message, &self.keys);
        for index in self.hashes.len()..full {
            let parent = match self.options.fault {
                Fault::WrongParent => self.root,
                _ => self.hashes[index - 1],
            };
            self.hash_block(index, parent, &mut message);
        }
    }

    /// Room for the parent, the keys, the tag of the tokens and room for the tokens.
    fn start_message(&self, message: &mut Vec<u8>, keys: &[u8]) {
        message.clear();
        message.resize(PARENT_BYTES, 0);
        message.extend_from_slice(keys);
        message.push(TAG_TOKENS);
        message.resize(message.len() + self.block_size * size_of::<TokenId>(), 0);
    }

    /// Appends the digest of block `index`.
    fn hash_block(&mut self, index: usize, parent: BlockHash, message: &mut [u8]) {
        let start = message.len() - self.block_size * size_of::<TokenId>();
        message[..PARENT_BYTES].copy_from_slice(&parent.0);
        let slots = message[start..].chunks_exact_mut(size_of::<TokenId>());
        for (slot, token) in slots.zip(self.block_tokens(index)) {
            slot.copy_from_slice(&token.to_le_bytes());
        }
        self.hashes.push(self.options.kind.digest(message));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(scope: &CacheScope, tokens: &[TokenId]) -> Vec<BlockHash> {
        let mut seq = HashedTokens::new(4, scope);
        seq.extend(tokens);
        seq.hashes().to_vec()
    }

    fn hex(hash: &BlockHash) -> String {
        hash.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Made by Python's hashlib (3.11), xxhash (4.1.0) and blake3 (1.0.11), with `h` one of
    /// `hashlib.sha256(m).digest()`, `xxhash.xxh3_128(m).digest().ljust(32, b'\0')` and
    /// `blake3.blake3(m).digest()`:
    ///
    /// ```text
    /// key = lambda tag, v: bytes([tag]) + struct.pack('<Q', len(v)) + v
    /// every = key(1, b'a') + key(3, bytes([9]) * 32)
    /// root = h(b'prefillbench kv block chain v2' + bytes([7]) * 32)
    /// one = h(root + every + key(2, b's') + b'\0' + struct.pack('<4I', 1, 2, 3, 256))
    /// two = h(one + every + b'\0' + struct.pack('<4I', 5, 6, 7, 4294967295))
    /// print(one.hex(), two.hex())
    /// ```
    const VECTORS: [(HashKind, [&str; 2]); 3] = [
        (
            HashKind::Blake3,
            [
                "585fb62105524aa00c1b305729210a8373bfcea4c51ccce19e9222b0da740459",
                "ac5e7d49e2fe49c535f8d8728a4a2ddc4b12c0fbf71576ea3ed96f05431fca14",
            ],
        ),
        (
            HashKind::Sha256,
            [
                "0fefd1c0e9f6ff74c793f01ff98a744a80817d46fbeb4e4c8aecdcd04c86d9b4",
                "1978fa5b8803ea3cc5727b0f2197f0e329ad1e6c6f0585fd37b93cf4711bcaf9",
            ],
        ),
        (
            HashKind::Xxh3,
            [
                "d10f5811643fb1843c4390c940034da300000000000000000000000000000000",
                "836e01842b67fe2b96119ac86547ee4300000000000000000000000000000000",
            ],
        ),
    ];

    #[test]
    fn digests_are_those_of_other_implementations() {
        let scope = CacheScope {
            identity: [7; 32],
            adapter: Some(AdapterKey {
                name: "a".to_owned(),
                digest: [9; 32],
            }),
            salt: Some("s".to_owned()),
        };
        for (kind, expected) in VECTORS {
            let mut seq = HashedTokens::with_hash(4, &scope, kind);
            seq.extend(&[1, 2, 3, 256, 5, 6, 7, u32::MAX, 9]);
            let got: Vec<String> = seq.hashes().iter().map(hex).collect();
            assert_eq!(got, expected, "{kind:?}");
        }
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
        let with = |adapter: Option<(&str, u8)>, salt: Option<&str>, identity: u8| CacheScope {
            identity: [identity; 32],
            adapter: adapter.map(|(name, digest)| AdapterKey {
                name: name.to_owned(),
                digest: [digest; 32],
            }),
            salt: salt.map(str::to_owned),
        };
        let scopes = [
            CacheScope::default(),
            with(Some(("x", 0)), None, 0),
            with(Some(("x", 1)), None, 0),
            with(None, Some("x"), 0),
            with(Some(("y", 0)), None, 0),
            with(None, Some("y"), 0),
            with(Some(("x", 0)), Some("x"), 0),
            with(Some(("xx", 0)), None, 0),
            with(Some(("", 0)), None, 0),
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
