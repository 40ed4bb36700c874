//! Text as tokens, as simple as can be stated in one line each.

use pb_contract::TokenId;
use xxhash_rust::xxh3::xxh3_64;

/// How text becomes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokenizer {
    /// One token for each byte of UTF-8; the id is the byte.
    Bytes,
    /// One token for each word between white space; the id is a 31-bit hash of the word.
    Words,
}

impl Tokenizer {
    /// The tokens of a text.
    pub fn encode(self, text: &str) -> Vec<TokenId> {
        match self {
            Tokenizer::Bytes => text.bytes().map(TokenId::from).collect(),
            Tokenizer::Words => text
                .split_whitespace()
                .map(|word| (xxh3_64(word.as_bytes()) >> 33) as TokenId)
                .collect(),
        }
    }

    /// The text of tokens; `None` when there is none (a hash has no way back).
    pub fn decode(self, tokens: &[TokenId]) -> Option<String> {
        let bytes = tokens.iter().map(|&id| u8::try_from(id).ok());
        match self {
            Tokenizer::Bytes => String::from_utf8(bytes.collect::<Option<_>>()?).ok(),
            Tokenizer::Words => None,
        }
    }

    /// Text of the generated token with this number: exactly one token, whatever came before.
    pub(crate) fn generated(self, number: u32) -> &'static str {
        const LETTERS: &str = "abcdefghijklmnopqrstuvwxyz";
        const WORDS: [&str; 8] = [
            " one", " two", " three", " four", " five", " six", " seven", " eight",
        ];
        match self {
            Tokenizer::Bytes => {
                let at = number as usize % LETTERS.len();
                &LETTERS[at..=at]
            }
            Tokenizer::Words => WORDS[number as usize % WORDS.len()],
        }
    }
}

/// The text of a chat: role and content of each message on lines of their own, then the line that
/// asks for the answer. Each turn's text begins with the text of the turn before and its answer.
pub(crate) fn chat_text(messages: &[(String, String)]) -> String {
    let mut text = String::new();
    for (role, content) in messages {
        text.push_str(role);
        text.push('\n');
        text.push_str(content);
        text.push('\n');
    }
    text.push_str("assistant\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_bytes_or_words() {
        assert_eq!(Tokenizer::Bytes.encode("é!"), [0xc3, 0xa9, 0x21]);
        assert_eq!(
            Tokenizer::Bytes.decode(&[0xc3, 0xa9, 0x21]),
            Some("é!".into())
        );
        assert_eq!(Tokenizer::Bytes.decode(&[0xc3]), None);
        assert_eq!(Tokenizer::Bytes.decode(&[256]), None);
        let ids = Tokenizer::Words.encode("a b\n a ");
        assert!(ids.len() == 3 && ids[0] == ids[2] && ids[0] != ids[1]);
    }

    #[test]
    fn a_generated_token_is_one_token_and_a_turn_extends_the_one_before() {
        for tokenizer in [Tokenizer::Bytes, Tokenizer::Words] {
            let answer: String = (0..40).map(|n| tokenizer.generated(n)).collect();
            assert_eq!(tokenizer.encode(&answer).len(), 40);
            let user = ("user".to_string(), "hi there".to_string());
            let first = chat_text(std::slice::from_ref(&user));
            let assistant = ("assistant".to_string(), answer.clone());
            let second = chat_text(&[user.clone(), assistant, user]);
            let mut expected = tokenizer.encode(&first);
            expected.extend(tokenizer.encode(&answer));
            assert!(tokenizer.encode(&second).starts_with(&expected));
        }
    }
}
