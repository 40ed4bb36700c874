//! The digest functions of the block-hash chain.

use pb_contract::HashAlgorithm;
use sha2::Digest;

/// Digest of a full block and of all that precedes it. Digests under 256 bits are padded with
/// zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash(pub [u8; 32]);

impl BlockHash {
    /// The first eight bytes: uniform already, so a table needs no hash function of its own.
    pub(crate) fn word(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

/// The digest function of the chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HashKind {
    /// BLAKE3, 256 bits: collisions need not be expected.
    #[default]
    Blake3,
    /// SHA-256: collisions need not be expected.
    Sha256,
    /// XXH3, 128 bits, unkeyed: collisions can be constructed, so a hit always compares tokens.
    Xxh3,
    /// Every block gets the same digest. Only for proving that a collision cannot produce a wrong
    /// hit when tokens are compared; never for serving.
    ConstantStub,
}

impl HashKind {
    /// Whether an adversary can make two blocks of one name, so that hits must compare tokens.
    pub const fn needs_verification(self) -> bool {
        matches!(self, HashKind::Xxh3)
    }

    /// The digest of `message`.
    pub(crate) fn digest(self, message: &[u8]) -> BlockHash {
        match self {
            HashKind::Blake3 => BlockHash(*blake3::hash(message).as_bytes()),
            HashKind::Sha256 => BlockHash(sha2::Sha256::digest(message).into()),
            HashKind::Xxh3 => {
                let short = xxhash_rust::xxh3::xxh3_128(message).to_be_bytes();
                let mut hash = [0; 32];
                hash[..16].copy_from_slice(&short);
                BlockHash(hash)
            }
            HashKind::ConstantStub => BlockHash::default(),
        }
    }
}

impl From<HashAlgorithm> for HashKind {
    fn from(algorithm: HashAlgorithm) -> Self {
        match algorithm {
            HashAlgorithm::Blake3 => HashKind::Blake3,
            HashAlgorithm::Sha256 => HashKind::Sha256,
            HashAlgorithm::Xxh3 => HashKind::Xxh3,
        }
    }
}
