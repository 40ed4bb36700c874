//! The checksum of a block, by definition; `cu/checksum.cu` computes the same.

/// `sum of (word_i + 1) * m(i)` modulo 2^64 over the little-endian 32-bit words of `bytes`, with
/// odd multipliers `m(i) = splitmix64(i) | 1`.
///
/// An odd multiplier is invertible, so any change of a single word changes the sum; the 1 makes
/// the number of words count. Terms may be added in any order, hence by many threads. It guards
/// transfers against faults, not against an adversary.
///
/// # Panics
/// When `bytes` is not a whole number of words.
pub fn checksum(bytes: &[u8]) -> u64 {
    assert!(bytes.len().is_multiple_of(4), "{} bytes", bytes.len());
    let words = bytes.chunks_exact(4).enumerate();
    words.fold(0u64, |sum, (i, word)| {
        let word = u64::from(u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        sum.wrapping_add((word + 1).wrapping_mul(splitmix64(i as u64) | 1))
    })
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014) on its `i`-th state from zero.
fn splitmix64(i: u64) -> u64 {
    let mut z = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::{checksum, splitmix64};

    #[test]
    fn multipliers_are_the_published_sequence() {
        // First outputs of SplitMix64 with seed 0, as published with xoshiro.
        assert_eq!(splitmix64(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(splitmix64(1), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn changes_and_exchanges_of_words_show() {
        let data: Vec<u8> = (0..64u8).collect();
        let sum = checksum(&data);
        for bit in 0..data.len() * 8 {
            let mut other = data.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(checksum(&other), sum, "bit {bit}");
        }
        let mut swapped = data.clone();
        swapped[..8].rotate_left(4);
        assert_ne!(checksum(&swapped), sum);
        assert_ne!(checksum(&[0; 8]), checksum(&[0; 4]));
        assert_eq!(checksum(&[]), 0);
    }
}
