//! GPT-2's printable stand-ins for bytes.
//!
//! Byte-level vocabularies are stored as text, so every byte needs a printable character:
//! printable Latin-1 characters stand for themselves and the other 68 bytes, in order, for the
//! code points from U+0100 on.

/// Whether byte `b` stands for itself.
fn is_itself(b: u8) -> bool {
    matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

/// The character that stands for byte `b`.
pub(crate) fn byte_to_char(b: u8) -> char {
    if is_itself(b) {
        return char::from(b);
    }
    let rank = (0..b).filter(|other| !is_itself(*other)).count() as u32;
    // OK because code points up to U+0143 are all assigned to characters.
    char::from_u32(0x100 + rank).expect("below the surrogates")
}

/// The table of all stand-ins, for decoding.
pub(super) struct CharTable {
    /// Byte behind each code point below U+0144.
    bytes: Vec<Option<u8>>,
}

impl CharTable {
    /// Builds the table.
    pub(super) fn new() -> CharTable {
        let mut bytes = vec![None; 0x144];
        for b in 0..=255 {
            bytes[byte_to_char(b) as usize] = Some(b);
        }
        CharTable { bytes }
    }

    /// The bytes of a vocabulary entry; `None` if a character is not a stand-in.
    pub(super) fn decode(&self, token: &str) -> Option<Vec<u8>> {
        token
            .chars()
            .map(|c| self.bytes.get(c as usize).copied().flatten())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_stand_ins() {
        // From GPT-2's vocabulary: space is Ġ, newline Ċ, tab ĉ; NUL is Ā, 0xad is the last.
        let known = [
            (b' ', 'Ġ'),
            (b'\n', 'Ċ'),
            (b'\t', 'ĉ'),
            (0, 'Ā'),
            (0xad, 'Ń'),
            (b'a', 'a'),
        ];
        for (byte, stand_in) in known {
            assert_eq!(byte_to_char(byte), stand_in);
        }
        let all: std::collections::BTreeSet<char> = (0..=255).map(byte_to_char).collect();
        assert_eq!(all.len(), 256);
        assert_eq!(CharTable::new().decode("Ġhé"), Some(vec![b' ', b'h', 0xe9]));
        assert_eq!(CharTable::new().decode("a b"), None);
    }
}
