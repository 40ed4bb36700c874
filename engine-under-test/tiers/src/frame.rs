//! The form in which an image leaves the process: a header that names and seals it.
//!
//! | offset | bytes | field |
//! |---:|---:|---|
//! | 0 | 8 | magic `pbKVblok` |
//! | 8 | 66 | key: format version (u16), identity, block digest |
//! | 74 | 8 | tick of the write (u64), orders files at the next start |
//! | 82 | 8 | length of the image (u64) |
//! | 90 | 32 | BLAKE3 of the 90 bytes before and of the image |
//! | 122 | - | image |
//!
//! Integers are little endian. The key lies in the frame too, so that a file that was renamed or
//! a value that was copied to another name is noticed.

use crate::key::TierKey;

const MAGIC: &[u8; 8] = b"pbKVblok";
const TICK_AT: usize = 8 + TierKey::ENCODED_BYTES;
const LENGTH_AT: usize = TICK_AT + 8;
const SUM_AT: usize = LENGTH_AT + 8;

/// Bytes before the image.
pub(crate) const HEADER_BYTES: usize = SUM_AT + 32;

/// The header for `image`.
pub(crate) fn header(key: &TierKey, tick: u64, image: &[u8]) -> [u8; HEADER_BYTES] {
    let mut out = [0; HEADER_BYTES];
    out[..8].copy_from_slice(MAGIC);
    out[8..TICK_AT].copy_from_slice(&key.encode());
    out[TICK_AT..LENGTH_AT].copy_from_slice(&tick.to_le_bytes());
    out[LENGTH_AT..SUM_AT].copy_from_slice(&(image.len() as u64).to_le_bytes());
    let sum = checksum(&out[..SUM_AT], image);
    out[SUM_AT..].copy_from_slice(&sum);
    out
}

/// Checks the header alone against the size of the whole frame and gives the tick of its write.
///
/// # Errors
/// How the header contradicts the key or the size.
pub(crate) fn read_header(
    key: &TierKey,
    header: &[u8],
    frame_bytes: u64,
) -> Result<u64, &'static str> {
    if header.len() < HEADER_BYTES {
        return Err("shorter than its header");
    }
    if &header[..8] != MAGIC {
        return Err("not a block image");
    }
    if header[8..TICK_AT] != key.encode() {
        return Err("written under another key or version");
    }
    if frame_bytes.checked_sub(HEADER_BYTES as u64) != Some(integer(header, LENGTH_AT)) {
        return Err("not of the length that its header gives");
    }
    Ok(integer(header, TICK_AT))
}

/// Checks a whole frame and gives its image.
///
/// # Errors
/// How the frame differs from what was written under `key`.
pub(crate) fn open<'a>(key: &TierKey, frame: &'a [u8]) -> Result<&'a [u8], &'static str> {
    read_header(key, frame, frame.len() as u64)?;
    let (header, image) = frame.split_at(HEADER_BYTES);
    if header[SUM_AT..] != checksum(&header[..SUM_AT], image) {
        return Err("altered since it was written (checksum)");
    }
    Ok(image)
}

fn integer(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn checksum(header: &[u8], image: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(header).update(image);
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use pb_kv::BlockHash;

    use super::*;

    fn key(n: u8) -> TierKey {
        TierKey {
            identity: [n; 32],
            hash: BlockHash([9; 32]),
        }
    }

    fn frame(image: &[u8]) -> Vec<u8> {
        [&header(&key(1), 5, image)[..], image].concat()
    }

    #[test]
    fn a_frame_gives_its_image_back() {
        let frame = frame(b"abc");
        assert_eq!(frame.len(), 122 + 3);
        assert_eq!(open(&key(1), &frame), Ok(&b"abc"[..]));
        assert_eq!(read_header(&key(1), &frame, 125), Ok(5));
        assert_eq!(open(&key(1), &self::frame(b"")), Ok(&b""[..]));
    }

    #[test]
    fn every_flipped_bit_every_cut_and_every_addition_is_noticed() {
        let good = frame(b"keys and values");
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(open(&key(1), &bad).is_err(), "bit {bit}");
        }
        for length in 0..good.len() {
            assert!(open(&key(1), &good[..length]).is_err(), "cut to {length}");
        }
        assert!(open(&key(1), &[&good[..], &[0]].concat()).is_err());
        assert!(open(&key(2), &good).is_err(), "another engine's image");
    }
}
