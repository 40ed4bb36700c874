//! Fields of a JSON object, with errors that name them.

use serde_json::{Map, Value};

use crate::plain::plain;
use crate::trace::error::{Place, TraceError};
use crate::trace::time::Decimal;
use crate::trace::{ChatTurn, RowPrompt};

/// Longest prompt or output in tokens.
pub(crate) const MAX_TOKENS: u64 = 1 << 24;

/// An object and where it was read.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    map: Map<String, Value>,
    place: &'a Place,
}

impl<'a> Fields<'a> {
    pub(crate) fn parse(record: &str, place: &'a Place) -> Result<Self, TraceError> {
        let map = serde_json::from_str(record);
        let not_one = |e: serde_json::Error| {
            let why = plain(&e.to_string());
            TraceError::line(place, format!("not a JSON object: {why}"))
        };
        let map = map.map_err(not_one)?;
        Ok(Fields { map, place })
    }

    /// The same place, another object.
    pub(crate) fn nested(value: &Value, place: &'a Place) -> Result<Self, TraceError> {
        match value {
            Value::Object(map) => Ok(Fields {
                map: map.clone(),
                place,
            }),
            other => Err(TraceError::line(
                place,
                format!("{other} is not a JSON object"),
            )),
        }
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// A field that is there and not null.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.map.keys().map(String::as_str)
    }

    /// Refuses keys that `format` does not have.
    pub(crate) fn only(&self, known: &[&str], format: &str) -> Result<(), TraceError> {
        match self
            .map
            .iter()
            .find(|(key, _)| !known.contains(&key.as_str()))
        {
            None => Ok(()),
            Some((key, value)) => {
                let fix = format!("not a key of {format}; is the file of another format?");
                Err(self.error(key, value, fix))
            }
        }
    }

    pub(crate) fn error(
        &self,
        key: &str,
        value: impl std::fmt::Display,
        fix: impl Into<String>,
    ) -> TraceError {
        TraceError::value(self.place, key, value, fix)
    }

    fn missing(&self, key: &str) -> TraceError {
        self.error(key, "(absent)", "every row must have it")
    }

    pub(crate) fn required(&self, key: &str) -> Result<&Value, TraceError> {
        self.get(key).ok_or_else(|| self.missing(key))
    }

    /// A number of tokens; `None` when the field is absent. Spreadsheets write whole numbers with
    /// a point.
    pub(crate) fn tokens(&self, key: &str, min: u64) -> Result<Option<usize>, TraceError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let whole = |f: &f64| f.fract() == 0.0 && (0.0..=MAX_TOKENS as f64).contains(f);
        let number = value.as_u64();
        let number = number.or_else(|| value.as_f64().filter(whole).map(|f| f as u64));
        match number.filter(|n| (min..=MAX_TOKENS).contains(n)) {
            Some(n) => Ok(Some(n as usize)),
            None => {
                let fix = format!("must be a whole number of tokens from {min} to {MAX_TOKENS}");
                Err(self.error(key, value, fix))
            }
        }
    }

    pub(crate) fn required_tokens(&self, key: &str, min: u64) -> Result<usize, TraceError> {
        self.tokens(key, min)?.ok_or_else(|| self.missing(key))
    }

    /// A time; `None` when the field is absent.
    pub(crate) fn time(&self, key: &str) -> Result<Option<Decimal>, TraceError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let number = value
            .is_number()
            .then(|| Decimal::parse(&value.to_string()));
        match number.flatten() {
            Some(time) => Ok(Some(time)),
            None => Err(self.error(key, value, "must be a time, a number from 0")),
        }
    }

    pub(crate) fn required_time(&self, key: &str) -> Result<Decimal, TraceError> {
        self.time(key)?.ok_or_else(|| self.missing(key))
    }

    /// Names of blocks, all 64 bits of them; `None` when the field is absent.
    pub(crate) fn ids(&self, key: &str) -> Result<Option<Vec<u64>>, TraceError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let list = value.as_array();
        let ids = list.and_then(|ids| ids.iter().map(Value::as_u64).collect());
        ids.map(Some).ok_or_else(|| {
            let fix = "must be a list of whole numbers from 0 to 2^64 - 1";
            self.error(key, value, fix)
        })
    }

    /// Text or a number, as text: identifiers are written either way.
    pub(crate) fn identifier(&self, key: &str) -> Result<Option<String>, TraceError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(Value::Number(number)) => Ok(Some(number.to_string())),
            Some(other) => Err(self.error(key, other, "must be text or a number")),
        }
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<String>, TraceError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(other) => Err(self.error(key, other, "must be text")),
        }
    }

    pub(crate) fn list(&self, key: &str) -> Result<&[Value], TraceError> {
        let value = self.required(key)?;
        match value.as_array() {
            Some(list) => Ok(list),
            None => Err(self.error(key, value, "must be a list")),
        }
    }

    /// Chat messages with text contents.
    pub(crate) fn messages(&self, key: &str) -> Result<RowPrompt, TraceError> {
        let mut turns = Vec::new();
        for value in self.list(key)? {
            let message = Fields::nested(value, self.place)?;
            let role = message
                .text("role")?
                .ok_or_else(|| message.missing("role"))?;
            let content = content_text(&message)?;
            turns.push(ChatTurn { role, content });
        }
        if turns.is_empty() {
            return Err(self.error(key, "[]", "must hold at least one message"));
        }
        Ok(RowPrompt::Chat(turns))
    }
}

/// The text of a message: a string, or a list of parts that are all text.
fn content_text(message: &Fields<'_>) -> Result<String, TraceError> {
    let key = "content";
    let Some(value) = message.get(key) else {
        return Ok(String::new());
    };
    let part = |part: &Value| Some(part.get("text")?.as_str()?.to_owned());
    let text = match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => parts.iter().map(part).collect(),
        _ => None,
    };
    text.ok_or_else(|| message.error(key, value, "must be text, or a list of text parts"))
}
