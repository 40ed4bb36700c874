//! The keys of one line: each is taken once, and what is left over is an error.

use serde_json::{Map, Value};

use crate::error::ReplayError;

/// Keys not yet taken.
pub(crate) struct Fields {
    rest: Map<String, Value>,
}

impl Fields {
    /// The keys of an object.
    pub(crate) fn new(value: &Value) -> Result<Self, ReplayError> {
        match value {
            Value::Object(map) => Ok(Fields { rest: map.clone() }),
            other => Err(ReplayError::Syntax(format!("found {other}"))),
        }
    }

    /// Takes a key if it is there and not null.
    pub(crate) fn take(&mut self, key: &str) -> Option<Value> {
        self.rest.remove(key).filter(|value| !value.is_null())
    }

    /// Takes every key that is left.
    pub(crate) fn take_all(&mut self) -> Map<String, Value> {
        std::mem::take(&mut self.rest)
    }

    pub(crate) fn required(&mut self, key: &str) -> Result<Value, ReplayError> {
        self.take(key)
            .ok_or_else(|| ReplayError::Missing(key.to_owned()))
    }

    pub(crate) fn text(&mut self, key: &str) -> Result<String, ReplayError> {
        let value = self.required(key)?;
        text(key, value)
    }

    pub(crate) fn optional_text(&mut self, key: &str) -> Result<Option<String>, ReplayError> {
        self.take(key).map(|value| text(key, value)).transpose()
    }

    pub(crate) fn number(&mut self, key: &str) -> Result<u64, ReplayError> {
        let value = self.required(key)?;
        number(key, &value)
    }

    pub(crate) fn optional_number(&mut self, key: &str) -> Result<Option<u64>, ReplayError> {
        self.take(key).map(|value| number(key, &value)).transpose()
    }

    pub(crate) fn optional_integer(&mut self, key: &str) -> Result<Option<i64>, ReplayError> {
        let Some(value) = self.take(key) else {
            return Ok(None);
        };
        match value.as_i64() {
            Some(n) => Ok(Some(n)),
            None => Err(wrong(key, &value, "must be a whole number")),
        }
    }

    /// Refuses keys that nobody took.
    pub(crate) fn done(self) -> Result<(), ReplayError> {
        match self.rest.iter().next() {
            None => Ok(()),
            Some((key, value)) => Err(wrong(key, value, "is not a key of this line")),
        }
    }
}

/// The error for a key whose value is JSON.
pub(crate) fn wrong(key: &str, value: &Value, problem: &str) -> ReplayError {
    ReplayError::Field {
        key: key.to_owned(),
        value: value.to_string(),
        problem: problem.to_owned(),
    }
}

fn text(key: &str, value: Value) -> Result<String, ReplayError> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(wrong(key, &other, "must be a string")),
    }
}

/// A whole number of at least zero.
pub(crate) fn number(key: &str, value: &Value) -> Result<u64, ReplayError> {
    value
        .as_u64()
        .ok_or_else(|| wrong(key, value, "must be a whole number of at least 0"))
}
