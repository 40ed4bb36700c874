//! Text from tokens as they come, never half a character.
//!
//! A byte-level token may end inside a UTF-8 sequence. What is certain is emitted at once, an
//! unfinished sequence (at most three bytes) is held back until it is finished, refuted by the
//! next byte, or the stream ends. Emitted text is never taken back, and the concatenation equals
//! the lossy decoding of all bytes.

use super::Tokenizer;

/// The state of one output's decoding.
#[derive(Clone, Debug)]
pub struct DetokenizeStream {
    skip_special: bool,
    /// Still waiting for the first byte, from which a space is to be removed.
    strip_next_space: bool,
    /// The beginning of an unfinished character.
    held: Vec<u8>,
}

impl DetokenizeStream {
    /// Starts a stream; `skip_special` leaves control tokens out of the text.
    pub fn new(tokenizer: &Tokenizer, skip_special: bool) -> DetokenizeStream {
        DetokenizeStream {
            skip_special,
            strip_next_space: tokenizer.strip_leading_space,
            held: Vec::new(),
        }
    }

    /// The text that becomes certain with token `id`; possibly empty.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        if self.skip_special && tokenizer.is_special(id) {
            return String::new();
        }
        self.push_bytes(tokenizer.token_bytes(id))
    }

    /// The text that becomes certain with these bytes.
    fn push_bytes(&mut self, mut bytes: &[u8]) -> String {
        if self.strip_next_space && !bytes.is_empty() {
            self.strip_next_space = false;
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        self.held.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = self.held.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    rest = after;
                    let Some(wrong) = error.error_len() else {
                        break;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[wrong..];
                }
            }
        }
        let done = self.held.len() - rest.len();
        self.held.drain(..done);
        text
    }

    /// Ends the stream: what is held back becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> DetokenizeStream {
        DetokenizeStream {
            skip_special: false,
            strip_next_space: false,
            held: Vec::new(),
        }
    }

    #[test]
    fn every_split_of_a_mixed_text_gives_the_same_text() {
        // Two to four byte characters, stray continuation bytes, an overlong form, a surrogate
        // half and a truncated end; the expectation is the standard library's lossy decoding.
        let mut bytes = "aé€😀z".as_bytes().to_vec();
        bytes.extend([
            0x80, b'b', 0xc0, 0xaf, 0xed, 0xa0, 0x80, 0xf0, 0x9f, b'c', 0xe2, 0x82,
        ]);
        let expected = String::from_utf8_lossy(&bytes).into_owned();
        for first in 0..=bytes.len() {
            for second in first..=bytes.len() {
                let mut s = stream();
                let parts = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                let mut text: String = parts.iter().map(|part| s.push_bytes(part)).collect();
                text.push_str(&s.finish());
                assert_eq!(text, expected, "split at {first} and {second}");
            }
        }
    }

    #[test]
    fn a_character_appears_with_its_last_byte() {
        let mut s = stream();
        let pieces: Vec<String> = "😀!".bytes().map(|b| s.push_bytes(&[b])).collect();
        assert_eq!(pieces, ["", "", "", "😀", "!"]);
        assert_eq!(s.finish(), "");
    }

    #[test]
    fn only_the_first_space_is_stripped() {
        let mut s = DetokenizeStream {
            strip_next_space: true,
            ..stream()
        };
        let text = [s.push_bytes(b""), s.push_bytes(b" a"), s.push_bytes(b" b")].concat();
        assert_eq!(text, "a b");
    }
}
