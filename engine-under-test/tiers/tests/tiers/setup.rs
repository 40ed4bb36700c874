//! Keys, images and fake tiers.

use pb_contract::Stream;
use pb_kv::BlockHash;
use pb_tiers::TierKey;

/// Bytes that a disk or Redis tier writes before an image.
pub(crate) const HEADER_BYTES: u64 = 122;

/// The `n`-th key of an engine.
pub(crate) fn key_of(engine: u8, n: u32) -> TierKey {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&n.to_le_bytes());
    hash[31] = n as u8;
    TierKey {
        identity: [engine; 32],
        hash: BlockHash(hash),
    }
}

/// The `n`-th key of engine 1.
pub(crate) fn key(n: u32) -> TierKey {
    key_of(1, n)
}

/// An image of `bytes` bytes that depends on `n` alone.
pub(crate) fn image(n: u32, bytes: usize) -> Vec<u8> {
    let mut stream = Stream::new(u64::from(n), "image");
    (0..bytes).map(|_| stream.below(256) as u8).collect()
}
