//! What the router must know of a request's body.
//!
//! The body goes to the workers byte for byte, with one field added; here is only looked at what
//! decides where. A prompt of token ids never becomes a tree of JSON values, which would take many
//! times its memory.

use std::fmt;

use pb_contract::TokenId;
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::join::PARAMS;

/// The prompt, as far as it can be looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum PromptPeek {
    /// Absent, null, or of a form that the worker will refuse.
    #[default]
    None,
    /// A text.
    Text {
        /// Its length.
        bytes: usize,
    },
    /// Token ids.
    Ids(Vec<TokenId>),
    /// Several prompts.
    Several,
}

/// The fields that are looked at.
#[derive(Debug, Default)]
struct Wire {
    model: Option<String>,
    prompt: PromptPeek,
    messages: Option<IgnoredAny>,
    stream: Option<bool>,
    /// Workers take `1.0` too.
    n: Option<f64>,
    best_of: Option<f64>,
    cache_salt: Option<String>,
    echo: Item,
    logprobs: Item,
    top_logprobs: Item,
    prompt_logprobs: Item,
    kv_transfer_params: Option<IgnoredAny>,
}

impl<'de> Deserialize<'de> for Wire {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(WireVisitor)
    }
}

struct WireVisitor;

impl<'de> Visitor<'de> for WireVisitor {
    type Value = Wire;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    /// Of a field that is there several times the last counts, as for the workers.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Wire, A::Error> {
        let mut wire = Wire::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "model" => wire.model = map.next_value()?,
                "prompt" => wire.prompt = map.next_value()?,
                "messages" => wire.messages = map.next_value()?,
                "stream" => wire.stream = map.next_value()?,
                "n" => wire.n = map.next_value()?,
                "best_of" => wire.best_of = map.next_value()?,
                "cache_salt" => wire.cache_salt = map.next_value()?,
                "echo" => wire.echo = map.next_value()?,
                "logprobs" => wire.logprobs = map.next_value()?,
                "top_logprobs" => wire.top_logprobs = map.next_value()?,
                "prompt_logprobs" => wire.prompt_logprobs = map.next_value()?,
                PARAMS => wire.kv_transfer_params = map.next_value()?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(wire)
    }
}

/// What was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Peek {
    /// Name of the model or adapter.
    pub(crate) model: Option<String>,
    /// The prompt.
    pub(crate) prompt: PromptPeek,
    /// Whether it is a conversation.
    pub(crate) chat: bool,
    /// Whether the answer is to be streamed.
    pub(crate) stream: bool,
    /// Isolation key of the prefix cache.
    pub(crate) cache_salt: Option<String>,
    /// Whether two workers may share it. Several choices, log-probabilities and an echoed prompt
    /// come from one worker: their parts have numbers that depend on what was before.
    pub(crate) splittable: bool,
}

impl Peek {
    /// Looks at a body.
    pub(crate) fn of(body: &[u8]) -> Result<Peek, String> {
        let wire: Wire = serde_json::from_slice(body)
            .map_err(|error| format!("The request body is not valid: {error}"))?;
        if wire.kv_transfer_params.is_some() {
            return Err(format!("{PARAMS} is the router's to give"));
        }
        for (name, count) in [("n", wire.n), ("best_of", wire.best_of)] {
            if let Some(count) = count.filter(|count| *count < 0.0 || count.fract() != 0.0) {
                return Err(format!("{name} must be a whole number, got {count}"));
            }
        }
        let one = [wire.n, wire.best_of]
            .iter()
            .all(|n| n.is_none_or(|n| n == 1.0));
        let chat = wire.messages.is_some();
        let prompt = chat || matches!(wire.prompt, PromptPeek::Text { .. } | PromptPeek::Ids(_));
        let plain = [
            wire.echo,
            wire.logprobs,
            wire.top_logprobs,
            wire.prompt_logprobs,
        ];
        let plain = plain.iter().all(|item| *item == Item::Nothing);
        Ok(Peek {
            model: wire.model,
            prompt: wire.prompt,
            chat,
            stream: wire.stream.unwrap_or(false),
            cache_salt: wire.cache_salt,
            splittable: one && prompt && plain,
        })
    }
}

/// The body with the field for the workers added. It is the last one, so it counts.
pub(crate) fn with_params(body: &[u8], params: &str) -> Vec<u8> {
    let end = body.iter().rposition(|&byte| byte == b'}').unwrap_or(0);
    let mut out = Vec::with_capacity(body.len() + params.len() + 32);
    out.extend_from_slice(&body[..end]);
    out.extend_from_slice(format!(",\"{PARAMS}\":{params}}}").as_bytes());
    out
}

impl<'de> Deserialize<'de> for PromptPeek {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptVisitor)
    }
}

struct PromptVisitor;

impl<'de> Visitor<'de> for PromptVisitor {
    type Value = PromptPeek;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a prompt")
    }

    fn visit_unit<E: Error>(self) -> Result<PromptPeek, E> {
        Ok(PromptPeek::None)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<PromptPeek, E> {
        Ok(PromptPeek::None)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<PromptPeek, E> {
        Ok(PromptPeek::None)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<PromptPeek, E> {
        Ok(PromptPeek::None)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<PromptPeek, E> {
        Ok(PromptPeek::None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PromptPeek, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(PromptPeek::None)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<PromptPeek, E> {
        Ok(PromptPeek::Text { bytes: text.len() })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<PromptPeek, A::Error> {
        let mut ids = Vec::new();
        let mut all_ids = true;
        while let Some(item) = seq.next_element::<Item>()? {
            match item {
                Item::Id(id) if all_ids => ids.push(id),
                _ => all_ids = false,
            }
        }
        Ok(if all_ids && !ids.is_empty() {
            PromptPeek::Ids(ids)
        } else {
            PromptPeek::Several
        })
    }
}

/// A value of which nothing is kept but what it could be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Item {
    /// Absent, null or false.
    #[default]
    Nothing,
    /// A token id.
    Id(TokenId),
    Other,
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ItemVisitor)
    }
}

struct ItemVisitor;

impl<'de> Visitor<'de> for ItemVisitor {
    type Value = Item;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_u64<E: Error>(self, id: u64) -> Result<Item, E> {
        Ok(TokenId::try_from(id).map_or(Item::Other, Item::Id))
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Item, E> {
        Ok(Item::Other)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Item, E> {
        Ok(Item::Other)
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Item, E> {
        Ok(if flag { Item::Other } else { Item::Nothing })
    }

    fn visit_unit<E: Error>(self) -> Result<Item, E> {
        Ok(Item::Nothing)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Item, E> {
        Ok(Item::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Item, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Item::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Item, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Item::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peek(json: &str) -> Peek {
        Peek::of(json.as_bytes()).unwrap()
    }

    #[test]
    fn prompts_of_every_form() {
        let prompt = |json: &str| peek(&format!("{{\"prompt\":{json}}}")).prompt;
        assert_eq!(prompt("\"abcd\""), PromptPeek::Text { bytes: 4 });
        assert_eq!(prompt("[1, 2, 3]"), PromptPeek::Ids(vec![1, 2, 3]));
        for several in [
            "[\"a\",\"b\"]",
            "[[1],[2]]",
            "[1,\"a\"]",
            "[]",
            "[-1]",
            "[4294967296]",
        ] {
            assert_eq!(prompt(several), PromptPeek::Several, "{several}");
        }
        for none in ["null", "3", "true", "{}", "{\"a\":1}", "-2", "1.5"] {
            assert_eq!(prompt(none), PromptPeek::None, "{none}");
        }
        assert_eq!(peek("{}").prompt, PromptPeek::None);
    }

    #[test]
    fn only_one_plain_choice_is_split() {
        for (json, splittable) in [
            (r#"{"prompt":"a"}"#, true),
            (
                r#"{"messages":[{"role":"user","content":"x"}],"stream":true}"#,
                true,
            ),
            (r#"{"prompt":[1],"n":1,"echo":false,"logprobs":null}"#, true),
            (r#"{"prompt":"a","logprobs":false}"#, true),
            (r#"{"prompt":"a","n":2}"#, false),
            (r#"{"prompt":"a","n":1.0,"best_of":1.0}"#, true),
            // The last counts.
            (r#"{"prompt":["a","b"],"n":2,"n":1,"prompt":"a"}"#, true),
            (r#"{"prompt":"a","n":1,"n":2}"#, false),
            (r#"{"prompt":"a","best_of":2}"#, false),
            (r#"{"prompt":"a","echo":true}"#, false),
            (r#"{"prompt":"a","logprobs":0}"#, false),
            (r#"{"messages":[],"logprobs":true}"#, false),
            (r#"{"prompt":"a","prompt_logprobs":1}"#, false),
            (r#"{"prompt":["a","b"]}"#, false),
            (r#"{"prompt":3}"#, false),
            ("{}", false),
        ] {
            assert_eq!(peek(json).splittable, splittable, "{json}");
        }
    }

    #[test]
    fn what_is_no_request_is_refused() {
        for json in [
            "",
            "{",
            "[]",
            "3",
            r#"{"stream":"yes"}"#,
            r#"{"n":-1}"#,
            r#"{"best_of":1.5}"#,
            r#"{"n":"1"}"#,
            r#"{"kv_transfer_params":false}"#,
            "{} {}",
        ] {
            assert!(Peek::of(json.as_bytes()).is_err(), "{json}");
        }
        let own = r#"{"prompt":"a","kv_transfer_params":{"do_remote_prefill":true}}"#;
        assert!(Peek::of(own.as_bytes()).unwrap_err().contains(PARAMS));
        assert!(Peek::of(br#"{"prompt":"a","kv_transfer_params":null}"#).is_ok());
    }

    #[test]
    fn the_field_is_added_behind_all_others() {
        let body = b"{\"prompt\": \"a}\", \"n\": 1}\n ";
        let with = with_params(body, r#"{"do_remote_decode":true}"#);
        let value: serde_json::Value = serde_json::from_slice(&with).unwrap();
        assert_eq!(value["prompt"], "a}");
        assert_eq!(value[PARAMS]["do_remote_decode"], true);
    }
}
