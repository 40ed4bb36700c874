//! Reading request bodies.
//!
//! Two things that serde's derived types do not give: an error that names the field (they lose it
//! behind `flatten` and `untagged`), and a prompt of token ids that never exists as a tree of
//! JSON values, which would take many times the memory of the body.

use std::cell::Cell;
use std::fmt;

use axum::body::Body;
use axum::http::header;
use bytes::Bytes;
use http_body_util::BodyExt;
use pb_contract::TokenId;
use pb_contract::wire::Prompt;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess};
use serde::de::{Unexpected, Visitor};
use serde_json::{Map, Value};
use tokio::time::timeout;

use crate::app::App;
use crate::budget::Share;
use crate::error::ApiError;
use crate::phase::{Phase, reached};
use crate::value::{VALUES_MAX, ValueSeed};

/// Most texts or lists of ids in one prompt; an empty one takes many times its two bytes.
const PROMPTS_MAX: usize = 1 << 16;

/// A whole body and its share of the memory for bodies.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) bytes: Vec<u8>,
    /// To be kept as long as there is anything as large as the body.
    pub(crate) share: Share,
}

/// Reads a whole body.
///
/// Fails when it is larger than `limit_bytes`, when all bodies together take too much, when it
/// takes too long, and when the server ends meanwhile.
pub(crate) async fn read(
    app: &App,
    request: axum::extract::Request,
    limit_bytes: usize,
) -> Result<Whole, ApiError> {
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.parse::<u64>().ok());
    let too_long = length.is_some_and(|length| length > limit_bytes as u64);
    if too_long && request.headers().contains_key(header::EXPECT) {
        // This client waits to be told before it sends the body.
        return Err(ApiError::too_large(limit_bytes));
    }
    let mut body = request.into_body();
    let reading = async {
        let read = match app.check_accepting() {
            Ok(()) if too_long => Err(ApiError::too_large(limit_bytes)),
            Ok(()) => collect(app.bodies.share(), &mut body, limit_bytes).await,
            Err(error) => Err(error),
        };
        if read.is_err() {
            discard(&mut body, app.options.body_limit_bytes).await;
        }
        read
    };
    let mut phase = app.phase.clone();
    tokio::select! {
        read = timeout(app.options.body_timeout.to_duration(), reading) => {
            read.unwrap_or_else(|_| Err(ApiError::body_timeout()))
        }
        () = reached(&mut phase, Phase::Ending) => Err(ApiError::shutting_down()),
    }
}

/// Reads what is left of a refused body, up to a limit, and keeps none of it: a connection that
/// is closed with unread bytes may lose the answer.
async fn discard(body: &mut Body, limit_bytes: usize) {
    let mut left = limit_bytes;
    while let Some(Ok(frame)) = body.frame().await {
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        let Some(rest) = left.checked_sub(bytes) else {
            return;
        };
        left = rest;
    }
}

async fn collect(mut share: Share, body: &mut Body, limit_bytes: usize) -> Result<Whole, ApiError> {
    let mut bytes: Vec<u8> = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            ApiError::bad_request(format!("The request body could not be read: {error}"))
        })?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if data.len() > limit_bytes - bytes.len() {
            return Err(ApiError::too_large(limit_bytes));
        }
        if !share.grow(data.len()) {
            return Err(ApiError::unavailable(
                "The request bodies in flight take too much memory; try again later.",
            ));
        }
        // Room for a quarter more rather than, as by itself, for as much again: many bodies that
        // grow at once would take twice what is counted.
        if bytes.capacity() - bytes.len() < data.len() {
            bytes.reserve_exact(data.len().max(bytes.len() / 4));
        }
        bytes.extend_from_slice(&data);
    }
    Ok(Whole { bytes, share })
}

/// A body taken apart: the prompt, and the other known fields as JSON.
#[derive(Debug)]
pub(crate) struct RawBody {
    pub(crate) prompt: Option<Prompt>,
    pub(crate) fields: Map<String, Value>,
}

/// Takes a JSON object apart. Fields for which `known` is false are ignored, as vLLM ignores
/// them; a repeated field counts as its last occurrence. The field named by
/// `prompt`, if any, is read as a prompt.
pub(crate) fn parse(
    bytes: &[u8],
    prompt: Option<&str>,
    known: &dyn Fn(&str) -> bool,
) -> Result<RawBody, ApiError> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let seed = BodySeed { prompt, known };
    let parsed = seed.deserialize(&mut json).and_then(|body| {
        json.end()?;
        Ok(body)
    });
    parsed.map_err(|error| {
        let message = error.to_string();
        match prompt.zip(message.strip_prefix("prompt ")) {
            Some((prompt, rest)) => ApiError::field(prompt, format!("{prompt} {rest}")),
            None => ApiError::bad_request(format!("The request body is not valid: {message}")),
        }
    })
}

struct BodySeed<'a> {
    prompt: Option<&'a str>,
    known: &'a dyn Fn(&str) -> bool,
}

impl<'de> DeserializeSeed<'de> for BodySeed<'_> {
    type Value = RawBody;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<RawBody, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for BodySeed<'_> {
    type Value = RawBody;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawBody, A::Error> {
        let mut body = RawBody {
            prompt: None,
            fields: Map::new(),
        };
        let left = Cell::new(VALUES_MAX);
        while let Some(key) = map.next_key::<String>()? {
            if self.prompt == Some(&key) {
                body.prompt = map.next_value::<PromptField>()?.0;
            } else if (self.known)(&key) {
                let value = map.next_value_seed(ValueSeed { left: &left })?;
                body.fields.insert(key, value);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(body)
    }
}

/// A prompt, or null.
struct PromptField(Option<Prompt>);

impl<'de> Deserialize<'de> for PromptField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptVisitor)
    }
}

const PROMPT_KINDS: &str = "prompt must be a string, a list of strings, a list of token ids or a \
                            list of lists of token ids";

struct PromptVisitor;

impl<'de> Visitor<'de> for PromptVisitor {
    type Value = PromptField;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a prompt")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<PromptField, E> {
        Ok(PromptField(None))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<PromptField, E> {
        Ok(PromptField(Some(Prompt::Text(text.to_owned()))))
    }

    fn visit_bool<E: serde::de::Error>(self, _: bool) -> Result<PromptField, E> {
        Err(E::custom(PROMPT_KINDS))
    }

    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<PromptField, E> {
        Err(E::custom(PROMPT_KINDS))
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<PromptField, E> {
        Err(E::custom(PROMPT_KINDS))
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<PromptField, E> {
        Err(E::custom(PROMPT_KINDS))
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<PromptField, A::Error> {
        Err(A::Error::custom(PROMPT_KINDS))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<PromptField, A::Error> {
        let Some(first) = seq.next_element::<Item>()? else {
            return Ok(PromptField(Some(Prompt::Ids(Vec::new()))));
        };
        let mut prompt = match first {
            Item::Id(id) => Prompt::Ids(vec![id]),
            Item::Text(text) => Prompt::Texts(vec![text]),
            Item::Ids(ids) => Prompt::IdLists(vec![ids]),
        };
        while let Some(item) = seq.next_element::<Item>()? {
            match (&mut prompt, item) {
                (Prompt::Ids(ids), Item::Id(id)) => ids.push(id),
                (Prompt::Texts(texts), Item::Text(text)) => texts.push(text),
                (Prompt::IdLists(lists), Item::Ids(ids)) => lists.push(ids),
                _ => return Err(A::Error::custom(PROMPT_KINDS)),
            }
            let many = match &prompt {
                Prompt::Texts(texts) => texts.len(),
                Prompt::IdLists(lists) => lists.len(),
                Prompt::Text(_) | Prompt::Ids(_) => 1,
            };
            if many > PROMPTS_MAX {
                return Err(A::Error::custom(format!(
                    "prompt may hold at most {PROMPTS_MAX} prompts"
                )));
            }
        }
        Ok(PromptField(Some(prompt)))
    }
}

/// An element of a prompt list.
enum Item {
    Id(TokenId),
    Text(String),
    Ids(Vec<TokenId>),
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
        f.write_str("an element of a prompt")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Item, E> {
        Ok(Item::Text(text.to_owned()))
    }

    fn visit_u64<E: serde::de::Error>(self, id: u64) -> Result<Item, E> {
        id_of(id).map(Item::Id)
    }

    fn visit_i64<E: serde::de::Error>(self, id: i64) -> Result<Item, E> {
        Err(E::custom(format!(
            "prompt token id {id} is out of vocabulary"
        )))
    }

    /// Whole numbers written as `4.0` count as integers, as they do in vLLM.
    fn visit_f64<E: serde::de::Error>(self, id: f64) -> Result<Item, E> {
        if id.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&id) {
            return Ok(Item::Id(id as TokenId));
        }
        Err(E::custom(PROMPT_KINDS))
    }

    fn visit_bool<E: serde::de::Error>(self, _: bool) -> Result<Item, E> {
        Err(E::custom(PROMPT_KINDS))
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Item, E> {
        Err(E::custom(PROMPT_KINDS))
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Item, A::Error> {
        Err(A::Error::custom(PROMPT_KINDS))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Item, A::Error> {
        let mut ids = Vec::new();
        while let Some(Id(id)) = seq.next_element()? {
            ids.push(id);
        }
        Ok(Item::Ids(ids))
    }
}

/// A token id inside a list of lists.
struct Id(TokenId);

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Item::deserialize(deserializer)? {
            Item::Id(id) => Ok(Id(id)),
            Item::Text(_) | Item::Ids(_) => Err(D::Error::custom(PROMPT_KINDS)),
        }
    }
}

fn id_of<E: serde::de::Error>(id: u64) -> Result<TokenId, E> {
    TokenId::try_from(id).map_err(|_| {
        let got = Unexpected::Unsigned(id);
        E::custom(format!("prompt token id is out of vocabulary: {got}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(json: &str) -> Result<Option<Prompt>, String> {
        let body = format!("{{\"prompt\": {json}, \"other\": [1]}}");
        match parse(body.as_bytes(), Some("prompt"), &|_| false) {
            Ok(body) => {
                assert!(body.fields.is_empty());
                Ok(body.prompt)
            }
            Err(error) => {
                let error = error.body().error;
                assert_eq!(error.param.as_deref(), Some("prompt"), "{}", error.message);
                Err(error.message)
            }
        }
    }

    #[test]
    fn every_kind_of_prompt_is_read() {
        assert_eq!(prompt("null"), Ok(None));
        assert_eq!(prompt("\"a\""), Ok(Some(Prompt::Text("a".into()))));
        assert_eq!(prompt("[]"), Ok(Some(Prompt::Ids(vec![]))));
        assert_eq!(
            prompt("[1, 4294967295, 2.0]"),
            Ok(Some(Prompt::Ids(vec![1, u32::MAX, 2])))
        );
        assert_eq!(
            prompt("[\"a\", \"\"]"),
            Ok(Some(Prompt::Texts(vec!["a".into(), "".into()])))
        );
        assert_eq!(
            prompt("[[1], [2, 3]]"),
            Ok(Some(Prompt::IdLists(vec![vec![1], vec![2, 3]])))
        );
    }

    #[test]
    fn a_small_body_cannot_become_a_large_tree() {
        let many = |element: &str| format!("[{element}{}]", format!(",{element}").repeat(70_000));
        for element in ["[]", "\"\""] {
            let message = prompt(&many(element)).unwrap_err();
            assert!(
                message.starts_with("prompt may hold at most 65536"),
                "{message}"
            );
        }
        assert_eq!(prompt(&many("7")), Ok(Some(Prompt::Ids(vec![7; 70_001]))));
        let body = format!("{{\"tools\": [0{}]}}", ",0".repeat(VALUES_MAX));
        let error = parse(body.as_bytes(), Some("prompt"), &|name| name == "tools").unwrap_err();
        assert!(
            error
                .body()
                .error
                .message
                .contains("more than 262144 values")
        );
        assert!(
            parse(body.as_bytes(), Some("prompt"), &|_| false).is_ok(),
            "it is skipped"
        );
    }

    #[test]
    fn every_other_prompt_is_refused_by_name() {
        let wrong = [
            "3",
            "-3",
            "1.5",
            "true",
            "{}",
            "[1, \"a\"]",
            "[\"a\", 1]",
            "[[1], 2]",
            "[[\"a\"]]",
            "[[[1]]]",
            "[null]",
            "[1.5]",
            "[-1]",
            "[4294967296]",
            "[{}]",
            "[true]",
        ];
        for json in wrong {
            assert!(prompt(json).is_err(), "{json}");
        }
    }
}
