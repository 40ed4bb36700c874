//! A tokenizer from a Hugging Face folder.

use std::path::Path;

use serde_json::Value;
use tokenizers::models::bpe::Vocab;

use super::bpe::check_merge;
use super::bytes::CharTable;
use super::pieces::Pieces;
use super::{ChatTemplate, Tokenizer};
use crate::error::{ModelError, Result};
use crate::hf::read_optional;

/// The file that errors name.
const ORIGIN: &str = "tokenizer.json";

/// See [`Tokenizer::from_dir`].
pub(super) fn from_dir(dir: &Path) -> Result<Tokenizer> {
    let path = dir.join(ORIGIN);
    let json = std::fs::read_to_string(&path).map_err(|e| ModelError::io(&path, e))?;
    let mut tokenizer = from_json(&json)?;
    tokenizer.chat = chat_template(dir)?;
    Ok(tokenizer)
}

/// See [`Tokenizer::from_json`].
pub(super) fn from_json(json: &str) -> Result<Tokenizer> {
    let value: Value = serde_json::from_str(json).map_err(|e| ModelError::format(ORIGIN, e))?;
    check_model(&value)?;
    let style = Style::of(&value)?;
    let mut inner = tokenizers::Tokenizer::from_bytes(json.as_bytes())
        .map_err(|e| ModelError::format(ORIGIN, e))?;
    // A file may ask for prompts to be cut or padded; a benchmark must never do either silently.
    inner
        .with_truncation(None)
        .map_err(|e| ModelError::tokenizer("truncation", e))?;
    inner.with_padding(None);
    let pieces = pieces(&inner, &style);
    let strip_leading_space = style.strips_leading_space();
    Ok(Tokenizer {
        inner,
        pieces,
        prefix: None,
        suffix: None,
        strip_leading_space,
        chat: None,
    })
}

/// How vocabulary entries spell bytes.
enum Style {
    /// GPT-2's stand-in characters.
    ByteLevel(CharTable),
    /// SentencePiece: `▁` is a space, `<0x0A>` a byte.
    ByteFallback { strip_leading_space: bool },
}

impl Style {
    /// Decides by the decoder, which is what defines the way back to text.
    fn of(file: &Value) -> Result<Style> {
        let decoder = &file["decoder"];
        if mentions(decoder, "ByteLevel").is_some() {
            return Ok(Style::ByteLevel(CharTable::new()));
        }
        if mentions(decoder, "ByteFallback").is_some() {
            let strip = mentions(decoder, "Strip");
            let strip_leading_space = strip.is_some_and(|strip| strip["start"] == 1);
            return Ok(Style::ByteFallback {
                strip_leading_space,
            });
        }
        let kind = decoder["type"].to_string();
        let problem = format!("{kind} is unsupported; ByteLevel and ByteFallback are");
        Err(ModelError::tokenizer("decoder", problem))
    }

    /// The bytes of an ordinary entry.
    fn bytes(&self, token: &str) -> Vec<u8> {
        match self {
            Style::ByteLevel(table) => table
                .decode(token)
                .unwrap_or_else(|| token.as_bytes().to_vec()),
            Style::ByteFallback { .. } => match hex_byte(token) {
                Some(byte) => vec![byte],
                None => token.replace('\u{2581}', " ").into_bytes(),
            },
        }
    }

    /// Whether the encoder puts a space in front that decoding must remove.
    fn strips_leading_space(&self) -> bool {
        matches!(
            self,
            Style::ByteFallback {
                strip_leading_space: true
            }
        )
    }
}

/// The byte that an entry such as `<0x0A>` stands for.
fn hex_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2)
        .then(|| u8::from_str_radix(digits, 16).ok())
        .flatten()
}

/// The component of type `kind`, alone or inside a sequence of one level.
fn mentions<'a>(component: &'a Value, kind: &str) -> Option<&'a Value> {
    if component["type"] == kind {
        return Some(component);
    }
    let inside = component["decoders"].as_array()?;
    inside.iter().find(|part| part["type"] == kind)
}

/// Checks the BPE model before the `tokenizers` crate sees it: that crate panics on a merge whose
/// result is longer than any token.
fn check_model(file: &Value) -> Result<()> {
    let model = &file["model"];
    if !matches!(model["type"].as_str(), None | Some("BPE")) {
        let problem = format!("{} is unsupported; BPE is", model["type"]);
        return Err(ModelError::tokenizer("model.type", problem));
    }
    for key in ["continuing_subword_prefix", "end_of_word_suffix"] {
        if model[key].as_str().is_some_and(|affix| !affix.is_empty()) {
            let problem = format!("{} is unsupported", model[key]);
            return Err(ModelError::tokenizer(format!("model.{key}"), problem));
        }
    }
    let bad = |problem: &str| ModelError::tokenizer("model.vocab", problem);
    let entries = model["vocab"]
        .as_object()
        .ok_or_else(|| bad("must be an object"))?;
    let mut vocab = Vocab::new();
    for (token, id) in entries {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
        // The two highest ids would overflow the crate's count of added tokens.
        let id = id.filter(|id| *id < u32::MAX - (1 << 20));
        vocab.insert(
            token.clone(),
            id.ok_or_else(|| bad("an id is not a token id"))?,
        );
    }
    let bad = |rank: usize, problem: &str| {
        ModelError::tokenizer("model.merges", format!("entry {rank} {problem}"))
    };
    let merges = model["merges"]
        .as_array()
        .ok_or_else(|| bad(0, "is missing"))?;
    for (rank, merge) in merges.iter().enumerate() {
        let sides = match merge {
            Value::String(text) => text.split_once(' '),
            Value::Array(pair) if pair.len() == 2 => pair[0].as_str().zip(pair[1].as_str()),
            _ => None,
        };
        let (left, right) = sides.ok_or_else(|| bad(rank, "is not a pair of tokens"))?;
        check_merge(&vocab, left, right).map_err(|problem| bad(rank, &problem))?;
    }
    Ok(())
}

/// The bytes behind every id.
fn pieces(inner: &tokenizers::Tokenizer, style: &Style) -> Pieces {
    let added = inner.get_added_tokens_decoder();
    let mut entries: Vec<(u32, Vec<u8>, bool)> = Vec::new();
    for (id, token) in &added {
        entries.push((*id, token.content.as_bytes().to_vec(), token.special));
    }
    for (token, id) in inner.get_vocab(false) {
        if !added.contains_key(&id) {
            entries.push((id, style.bytes(&token), false));
        }
    }
    // Two spellings of one id can only come from a broken file; keep the first in byte order.
    entries.sort();
    entries.dedup_by_key(|entry| entry.0);
    Pieces::new(entries)
}

/// The chat template: its own file, or the one in `tokenizer_config.json`.
fn chat_template(dir: &Path) -> Result<Option<ChatTemplate>> {
    let name = "tokenizer_config.json";
    let config = match read_optional(&dir.join(name))? {
        None => Value::Null,
        Some(json) => serde_json::from_str(&json).map_err(|e| ModelError::format(name, e))?,
    };
    let source = match read_optional(&dir.join("chat_template.jinja"))? {
        Some(source) => Some(source),
        None => default_template(&config["chat_template"])?,
    };
    let token = |key: &str| match &config[key] {
        Value::String(text) => text.clone(),
        object => object["content"].as_str().unwrap_or_default().to_string(),
    };
    source
        .map(|text| ChatTemplate::new(&text, &token("bos_token"), &token("eos_token")))
        .transpose()
}

/// The template text: a string, or the entry called "default" of a list.
fn default_template(value: &Value) -> Result<Option<String>> {
    let bad = || ModelError::Template("chat_template must be a string or a list".into());
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.clone())),
        Value::Array(list) => {
            let entry = list.iter().find(|entry| entry["name"] == "default");
            Ok(entry
                .and_then(|entry| entry["template"].as_str())
                .map(str::to_string))
        }
        _ => Err(bad()),
    }
}
