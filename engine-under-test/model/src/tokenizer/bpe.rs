//! A byte-level BPE tokenizer from GGUF metadata.
//!
//! The file has the vocabulary and the merges but only a name for the pre-tokenizer, the regular
//! expression that cuts text into words before merging. A wrong one gives token ids that decode
//! to the right text and yet are not what the model was trained on, so an unknown name is an
//! error rather than a guess.

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, PreTokenizerWrapper, SplitDelimiterBehavior};

use super::bytes::CharTable;
use super::pieces::Pieces;
use super::{ChatTemplate, Tokenizer};
use crate::error::{ModelError, Result};
use crate::gguf::Header;

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const CHAT_TEMPLATE: &str = "tokenizer.chat_template";

/// Token types of the format.
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

/// See [`Tokenizer::from_gguf`].
pub(super) fn from_gguf(header: &Header) -> Result<Tokenizer> {
    match header.text(MODEL)? {
        Some("gpt2") => {}
        _ => {
            let problem = "only gpt2 (byte-level BPE) is supported in GGUF files; load the \
                           model's Hugging Face folder instead";
            return Err(header.bad_key(MODEL, problem));
        }
    }
    let pre = Pre::from_name(header.text(PRE)?)
        .ok_or_else(|| header.bad_key(PRE, format!("supported are {}", Pre::NAMES.join(", "))))?;
    let tokens = vocabulary(header)?;
    let inner = build(header, pre, &tokens)?;
    let chat = chat_template(header, &tokens)?;
    let add = |key: &str, default| Ok::<bool, ModelError>(header.flag(key)?.unwrap_or(default));
    let prefix = match add("tokenizer.ggml.add_bos_token", pre == Pre::Llama3)? {
        true => Some(required_id(
            header,
            "tokenizer.ggml.bos_token_id",
            tokens.len(),
        )?),
        false => None,
    };
    let suffix = match add("tokenizer.ggml.add_eos_token", false)? {
        true => Some(required_id(
            header,
            "tokenizer.ggml.eos_token_id",
            tokens.len(),
        )?),
        false => None,
    };
    let pieces = pieces(&tokens);
    Ok(Tokenizer {
        inner,
        pieces,
        prefix,
        suffix,
        strip_leading_space: false,
        chat,
    })
}

/// The pre-tokenizers that are known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pre {
    Gpt2,
    Llama3,
    Qwen2,
}

impl Pre {
    /// Their names in the file.
    const NAMES: [&'static str; 4] = ["gpt-2", "smollm", "llama-bpe", "qwen2"];

    /// By name; files from before the key existed mean GPT-2's.
    ///
    /// SmolLM's own tokenizer.json cuts digits apart before anything else, transformers' GGUF
    /// conversion does not, and its vocabulary has no token with two digits. The two differ only
    /// where two or more spaces precede a digit. The reference results and vLLM's tokenizer come
    /// from the conversion, so this follows it.
    fn from_name(name: Option<&str>) -> Option<Pre> {
        match name {
            None | Some("default" | "gpt-2" | "smollm") => Some(Pre::Gpt2),
            Some("llama-bpe" | "llama3" | "llama-v3") => Some(Pre::Llama3),
            Some("qwen2") => Some(Pre::Qwen2),
            Some(_) => None,
        }
    }

    /// The published pre-tokenizer.
    fn pre_tokenizer(self) -> Result<PreTokenizerWrapper> {
        let byte_level = |use_regex| ByteLevel::new(false, true, use_regex);
        let digits = |max: &str| {
            format!(
                concat!(
                    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{max}",
                    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
                ),
                max = max
            )
        };
        let split = |pattern| {
            let pattern = SplitPattern::Regex(pattern);
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                .map_err(|e| ModelError::tokenizer(PRE, e))?;
            let parts: Vec<PreTokenizerWrapper> = vec![split.into(), byte_level(false).into()];
            Ok(Sequence::new(parts).into())
        };
        match self {
            Pre::Gpt2 => Ok(byte_level(true).into()),
            Pre::Llama3 => split(digits("{1,3}")),
            Pre::Qwen2 => split(digits("")),
        }
    }
}

/// One vocabulary entry.
struct Entry<'a> {
    text: &'a str,
    kind: i32,
}

impl Entry<'_> {
    /// Whether it is matched in text before merging, and written as it is.
    fn is_added(&self) -> bool {
        matches!(self.kind, UNKNOWN | CONTROL | USER_DEFINED)
    }

    /// Whether it is left out of decoded text on request.
    fn is_special(&self) -> bool {
        matches!(self.kind, UNKNOWN | CONTROL)
    }
}

/// The vocabulary in id order.
fn vocabulary(header: &Header) -> Result<Vec<Entry<'_>>> {
    let required = || header.bad_key(TOKENS, "is required");
    let array = header.array(TOKENS)?.ok_or_else(required)?;
    let texts = array
        .strings()
        .ok_or_else(|| header.bad_key(TOKENS, "must hold strings"))?;
    if u32::try_from(array.len()).is_err() {
        return Err(header.bad_key(TOKENS, "has more entries than token ids"));
    }
    let Some(types) = header.array(TOKEN_TYPES)? else {
        return Ok(texts.map(|text| Entry { text, kind: 1 }).collect());
    };
    if types.len() != array.len() {
        let problem = format!("must have one entry for each of {} tokens", array.len());
        return Err(header.bad_key(TOKEN_TYPES, problem));
    }
    let kinds = types
        .i32s()
        .ok_or_else(|| header.bad_key(TOKEN_TYPES, "must hold integers"))?;
    Ok(texts
        .zip(kinds)
        .map(|(text, kind)| Entry { text, kind })
        .collect())
}

/// The encoder.
fn build(header: &Header, pre: Pre, tokens: &[Entry<'_>]) -> Result<tokenizers::Tokenizer> {
    let mut vocab = Vocab::new();
    for (id, entry) in (0u32..).zip(tokens) {
        if let Some(first) = vocab.insert(entry.text.to_string(), id) {
            let problem = format!("tokens {first} and {id} are both {:?}", entry.text);
            return Err(ModelError::tokenizer(TOKENS, problem));
        }
    }
    let merges = merges(header, &vocab)?;
    let bpe = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .ignore_merges(pre == Pre::Llama3)
        .build()
        .map_err(|e| ModelError::tokenizer(MERGES, e))?;
    let mut inner = tokenizers::Tokenizer::new(bpe);
    inner.with_pre_tokenizer(Some(pre.pre_tokenizer()?));
    if pre == Pre::Qwen2 {
        inner
            .with_normalizer(Some(NFC))
            .map_err(|e| ModelError::tokenizer(PRE, e))?;
    }
    let added = tokens
        .iter()
        .filter(|entry| entry.is_added())
        .map(|entry| AddedToken::from(entry.text, entry.is_special()).normalized(false));
    inner
        .add_tokens(added)
        .map_err(|e| ModelError::tokenizer(TOKENS, e))?;
    Ok(inner)
}

/// The merges in order of rank, each checked to lie inside the vocabulary.
fn merges(header: &Header, vocab: &Vocab) -> Result<Vec<(String, String)>> {
    let required = || header.bad_key(MERGES, "is required");
    let array = header.array(MERGES)?.ok_or_else(required)?;
    let texts = array
        .strings()
        .ok_or_else(|| header.bad_key(MERGES, "must hold strings"))?;
    let mut merges = Vec::new();
    for (rank, text) in texts.enumerate() {
        let bad = |problem: &str| {
            ModelError::tokenizer(MERGES, format!("entry {rank} {text:?} {problem}"))
        };
        let (left, right) = text.split_once(' ').ok_or_else(|| bad("has no space"))?;
        check_merge(vocab, left, right).map_err(|problem| bad(&problem))?;
        merges.push((left.to_string(), right.to_string()));
    }
    Ok(merges)
}

/// Checks that both sides of a merge and its result are tokens. The `tokenizers` crate panics on
/// a result that is longer than any token, so this must come first.
pub(super) fn check_merge(
    vocab: &Vocab,
    left: &str,
    right: &str,
) -> std::result::Result<(), String> {
    let joined = format!("{left}{right}");
    match [left, right, &joined]
        .into_iter()
        .find(|token| !vocab.contains_key(*token))
    {
        Some(missing) => Err(format!("needs the token {missing:?}, which does not exist")),
        None => Ok(()),
    }
}

/// The bytes behind every id.
fn pieces(tokens: &[Entry<'_>]) -> Pieces {
    let table = CharTable::new();
    let bytes = |entry: &Entry<'_>| {
        let stored = if entry.is_added() {
            None
        } else {
            table.decode(entry.text)
        };
        stored.unwrap_or_else(|| entry.text.as_bytes().to_vec())
    };
    let entries = (0u32..).zip(tokens);
    Pieces::new(
        entries
            .map(|(id, entry)| (id, bytes(entry), entry.is_special()))
            .collect(),
    )
}

/// A token id that must be there and in the vocabulary.
fn required_id(header: &Header, key: &str, vocab_len: usize) -> Result<u32> {
    let id = header.uint(key)?.filter(|id| *id < vocab_len as u64);
    let id = id.and_then(|id| u32::try_from(id).ok());
    id.ok_or_else(|| header.bad_key(key, format!("must be an id below {vocab_len}")))
}

/// The chat template, which sees the texts of the begin and end tokens.
fn chat_template(header: &Header, tokens: &[Entry<'_>]) -> Result<Option<ChatTemplate>> {
    let Some(source) = header.text(CHAT_TEMPLATE)? else {
        return Ok(None);
    };
    let text = |key: &str| -> Result<&str> {
        let index = header.uint(key)?.and_then(|id| usize::try_from(id).ok());
        Ok(index
            .and_then(|index| tokens.get(index))
            .map_or("", |entry| entry.text))
    };
    let (bos, eos) = (
        text("tokenizer.ggml.bos_token_id")?,
        text("tokenizer.ggml.eos_token_id")?,
    );
    ChatTemplate::new(source, bos, eos).map(Some)
}
