//! Prompts of token ids, cut from a text with the server's own tokenizer.

use anyhow::{Context, Result, ensure};
use pb_contract::{Stream, TokenId};

use super::ask::Asker;

/// Characters that surely hold a token; English has about four to the token.
const CHARS_PER_TOKEN: usize = 12;

/// `count` pieces of `len` tokens, cut at seeded places of `text`. A piece begins at a word.
///
/// # Errors
/// The text is too short, or the server has no tokenizer to ask.
pub(super) async fn cut(
    asker: &Asker,
    text: &str,
    (count, len): (usize, usize),
    seed: u64,
) -> Result<Vec<Vec<TokenId>>> {
    let chars: Vec<char> = text.chars().collect();
    let want = len.saturating_mul(CHARS_PER_TOKEN);
    ensure!(
        chars.len() > want,
        "a text of {} characters is too short for prompts of {len} tokens: {} are needed",
        chars.len(),
        want + 1
    );
    let mut stream = Stream::new(seed, "remote validation prompts");
    let mut pieces = Vec::with_capacity(count);
    for _ in 0..count {
        let mut at = stream.below((chars.len() - want) as u64) as usize;
        while at > 0 && !chars[at - 1].is_whitespace() {
            at -= 1;
        }
        let piece: String = chars[at..at + want].iter().collect();
        let tokens = asker.control.tokenize(&piece).await;
        let mut tokens = tokens.with_context(|| {
            format!("{}: prompts are cut with the server's tokenizer", asker.url)
        })?;
        let got = tokens.len();
        ensure!(
            got >= len,
            "{}: {want} characters of the text are only {got} tokens; lower --prompt-len",
            asker.url
        );
        tokens.truncate(len);
        pieces.push(tokens);
    }
    Ok(pieces)
}
