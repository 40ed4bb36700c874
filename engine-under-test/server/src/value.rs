//! JSON values of a bounded number.
//!
//! A value in memory takes dozens of bytes where `0,` takes two, so a body within its limit could
//! still fill the memory. Fields are small; what is large (prompts) has a parser of its own.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Most values in the fields of one body: enough for a conversation of tens of thousands of turns.
pub(crate) const VALUES_MAX: usize = 1 << 18;

/// Reads a value, each of its parts counted off `left`.
#[derive(Clone, Copy)]
pub(crate) struct ValueSeed<'a> {
    pub(crate) left: &'a Cell<usize>,
}

impl<'de> DeserializeSeed<'de> for ValueSeed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let Some(left) = self.left.get().checked_sub(1) else {
            return Err(D::Error::custom(format!(
                "its fields hold more than {VALUES_MAX} values"
            )));
        };
        self.left.set(left);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Bool(flag))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Value, E> {
        Ok(Value::from(number))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Value, E> {
        Ok(Value::from(number))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
        Number::from_f64(number)
            .map(Value::Number)
            .ok_or_else(|| E::custom("a number is not finite"))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = seq.next_element_seed(self)? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            object.insert(key, map.next_value_seed(self)?);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str, left: usize) -> Result<Value, String> {
        let left = Cell::new(left);
        let seed = ValueSeed { left: &left };
        let value = seed.deserialize(&mut serde_json::Deserializer::from_str(json));
        value.map_err(|error| error.to_string())
    }

    #[test]
    fn a_value_reads_as_serde_json_reads_it_and_every_part_counts() {
        // The object, its four members, the list's two elements and the inner object's member.
        let json = r#"{"a": [1, -2], "b": {"c": null}, "d": "x\u00e9", "e": 1.5}"#;
        let expected: Value = serde_json::from_str(json).unwrap();
        assert_eq!(read(json, 8), Ok(expected));
        assert!(read(json, 7).unwrap_err().contains("more than"));
    }
}
