//! The name of a stored block image.

use pb_kv::BlockHash;

/// Version of the key and of the image's frame. A change of either makes old images misses.
pub(crate) const FORMAT_VERSION: u16 = 1;

/// The whole name of a stored image. Two engines share an image only when all of it is equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TierKey {
    /// Digest of what is fixed for one engine: weights, positions, KV representation, block size.
    pub identity: [u8; 32],
    /// Digest of the block: its tokens, all that precedes them, adapter and salt.
    pub hash: BlockHash,
}

impl TierKey {
    /// Bytes of [`TierKey::encode`].
    pub const ENCODED_BYTES: usize = 66;

    /// Version (little endian), identity and digest, in this order.
    pub fn encode(&self) -> [u8; Self::ENCODED_BYTES] {
        let mut out = [0; Self::ENCODED_BYTES];
        out[..2].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        out[2..34].copy_from_slice(&self.identity);
        out[34..].copy_from_slice(&self.hash.0);
        out
    }

    /// As text: `IDENTITY-HASH` in lower-case hexadecimal, 129 characters.
    pub fn to_hex(&self) -> String {
        let mut out = String::with_capacity(129);
        push_hex(&mut out, &self.identity);
        out.push('-');
        push_hex(&mut out, &self.hash.0);
        out
    }

    /// The inverse of [`TierKey::to_hex`]; `None` for any other text.
    pub fn from_hex(text: &str) -> Option<Self> {
        let (identity, hash) = text.split_once('-')?;
        Some(TierKey {
            identity: parse_hex(identity)?,
            hash: BlockHash(parse_hex(hash)?),
        })
    }
}

fn push_hex(out: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        out.push(DIGITS[usize::from(byte >> 4)] as char);
        out.push(DIGITS[usize::from(byte & 15)] as char);
    }
}

fn parse_hex(text: &str) -> Option<[u8; 32]> {
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let text = text.as_bytes();
    if text.len() != 64 {
        return None;
    }
    let mut out = [0; 32];
    for (byte, pair) in out.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_is_the_usual_one_and_comes_back() {
        let mut key = TierKey {
            identity: [0xab; 32],
            hash: BlockHash([0x05; 32]),
        };
        key.hash.0[31] = 0xf0;
        let text = format!("{}-{}f0", "ab".repeat(32), "05".repeat(31));
        assert_eq!(key.to_hex(), text);
        assert_eq!(TierKey::from_hex(&text), Some(key));
        for bad in [
            &text[1..],
            &text.to_uppercase(),
            &text.replace('-', "_"),
            "",
        ] {
            assert_eq!(TierKey::from_hex(bad), None, "{bad}");
        }
    }

    #[test]
    fn every_part_is_in_the_encoding() {
        let key = TierKey {
            identity: [1; 32],
            hash: BlockHash([2; 32]),
        };
        let mut expected = vec![1, 0];
        expected.extend([1; 32]);
        expected.extend([2; 32]);
        assert_eq!(key.encode().to_vec(), expected);
    }
}
