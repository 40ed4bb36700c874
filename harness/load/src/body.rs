//! The fields of a stream's event that matter, read without building the whole document.
//!
//! An event is read between two reads of the socket, so the time it takes delays the stamp of the
//! next one. The fields are borrowed from the text of the event and everything else is skipped.
//! Servers differ in what they leave out and in what they send as null, so a field of another
//! type than expected reads as if it were absent.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// One event.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct EventBody<'a> {
    #[serde(borrow)]
    pub(crate) choices: List<Object<ChoiceBody<'a>>>,
    /// Rare and small: read as a document.
    pub(crate) usage: Value,
    /// What llama.cpp adds to its last event.
    pub(crate) timings: Value,
    #[serde(borrow)]
    pub(crate) error: Loose<'a>,
}

/// One choice.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ChoiceBody<'a> {
    #[serde(borrow)]
    pub(crate) text: Loose<'a>,
    #[serde(borrow)]
    pub(crate) delta: Object<DeltaBody<'a>>,
    #[serde(borrow)]
    pub(crate) token_ids: Loose<'a>,
    #[serde(borrow)]
    pub(crate) logprobs: Object<LogprobsBody<'a>>,
    #[serde(borrow)]
    pub(crate) finish_reason: Loose<'a>,
}

/// The new part of a chat message.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct DeltaBody<'a> {
    #[serde(borrow)]
    pub(crate) content: Loose<'a>,
    #[serde(borrow)]
    pub(crate) reasoning: Loose<'a>,
    #[serde(borrow)]
    pub(crate) reasoning_content: Loose<'a>,
    #[serde(borrow)]
    pub(crate) tool_calls: List<Object<CallBody<'a>>>,
}

/// A tool call, or the new part of one.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct CallBody<'a> {
    #[serde(borrow)]
    pub(crate) function: Object<FunctionBody<'a>>,
}

/// The function that a tool call names.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct FunctionBody<'a> {
    #[serde(borrow)]
    pub(crate) name: Loose<'a>,
    #[serde(borrow)]
    pub(crate) arguments: Loose<'a>,
}

/// Log-probabilities in the layout of completions (`tokens`) or of chat (`content`).
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct LogprobsBody<'a> {
    #[serde(borrow)]
    pub(crate) tokens: Loose<'a>,
    #[serde(borrow)]
    pub(crate) content: Loose<'a>,
}

/// Any value, as far as a count or a text needs it.
#[derive(Debug, Default)]
pub(crate) enum Loose<'a> {
    /// Null or absent.
    #[default]
    Null,
    /// A string.
    Text(Cow<'a, str>),
    /// A list of so many elements.
    Length(u32),
    /// A number, a truth value or an object.
    Other,
}

impl Loose<'_> {
    /// The string, when there is one and it is not empty.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Loose::Text(text) if !text.is_empty() => Some(text),
            _ => None,
        }
    }

    /// The number of elements, when it is a list.
    pub(crate) fn length(&self) -> Option<u32> {
        match self {
            Loose::Length(length) => Some(*length),
            _ => None,
        }
    }

    /// Whether it is there and not null.
    pub(crate) fn is_present(&self) -> bool {
        !matches!(self, Loose::Null)
    }
}

/// An object; anything else reads as an empty one.
#[derive(Debug, Default)]
pub(crate) struct Object<T>(pub(crate) T);

/// A list; anything else reads as an empty one.
#[derive(Debug)]
pub(crate) struct List<T>(pub(crate) Vec<T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        List(Vec::new())
    }
}

/// Visitor methods by which every scalar reads as `$scalar`.
macro_rules! scalars_read_as {
    ($scalar:expr, $null:expr) => {
        fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
            Ok($scalar)
        }
        fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
            Ok($scalar)
        }
        fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
            Ok($scalar)
        }
        fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
            Ok($scalar)
        }
        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok($null)
        }
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("any value")
        }
    };
}

fn skip_list<'de, A: SeqAccess<'de>>(mut list: A) -> Result<u32, A::Error> {
    let mut length = 0;
    while list.next_element::<IgnoredAny>()?.is_some() {
        length += 1;
    }
    Ok(length)
}

fn skip_object<'de, A: MapAccess<'de>>(mut object: A) -> Result<(), A::Error> {
    while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
    Ok(())
}

struct LooseVisitor;

impl<'de> Visitor<'de> for LooseVisitor {
    type Value = Loose<'de>;

    scalars_read_as!(Loose::Other, Loose::Null);

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Loose::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Loose::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        skip_list(list).map(Loose::Length)
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<Self::Value, A::Error> {
        skip_object(object).map(|()| Loose::Other)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Loose<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LooseVisitor)
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de> + Default> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    scalars_read_as!(Object::default(), Object::default());

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(Object::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        skip_list(list).map(|_| Object::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(object)).map(Object)
    }
}

impl<'de, T: Deserialize<'de> + Default> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ObjectVisitor(PhantomData))
    }
}

struct ListVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
    type Value = List<T>;

    scalars_read_as!(List::default(), List::default());

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(List::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = list.next_element()? {
            elements.push(element);
        }
        Ok(List(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<Self::Value, A::Error> {
        skip_object(object).map(|()| List::default())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ListVisitor(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_wrong_type_read_as_absent() {
        for text in [
            r#"{"choices":7}"#,
            r#"{"choices":{"a":[1]},"usage":null}"#,
            r#"{"choices":[]}"#,
            r#"{"choices":"x","error":null}"#,
            "{}",
        ] {
            let body: EventBody = serde_json::from_str(text).unwrap();
            assert!(body.choices.0.is_empty(), "{text}");
            assert!(!body.error.is_present(), "{text}");
        }
        let text = r#"{"choices":[null,5,[1],{"text":3,"delta":"x","token_ids":null,
            "logprobs":[2],"finish_reason":false}],"error":0}"#;
        let body: EventBody = serde_json::from_str(text).unwrap();
        assert_eq!(body.choices.0.len(), 4);
        for choice in &body.choices.0 {
            assert_eq!(
                (choice.0.text.text(), choice.0.token_ids.length()),
                (None, None)
            );
            assert_eq!(choice.0.finish_reason.text(), None);
        }
        assert!(body.error.is_present());
    }

    #[test]
    fn texts_are_borrowed_unless_they_have_escapes() {
        let text = r#"{"choices":[{"text":"plain","finish_reason":"a\nb"}]}"#;
        let body: EventBody = serde_json::from_str(text).unwrap();
        let choice = &body.choices.0[0].0;
        assert!(matches!(choice.text, Loose::Text(Cow::Borrowed("plain"))));
        assert_eq!(choice.finish_reason.text(), Some("a\nb"));
    }
}
