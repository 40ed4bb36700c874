//! Metadata values.
//!
//! Arrays keep their encoded bytes: a vocabulary is 50,000 short strings, and a `Vec<String>` of
//! them is several times the file's size, while the encoded form is read in order anyway and can
//! be written to another file as it is.

use super::types::ValueType;

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Unsigned byte.
    U8(u8),
    /// Signed byte.
    I8(i8),
    /// 16-bit unsigned.
    U16(u16),
    /// 16-bit signed.
    I16(i16),
    /// 32-bit unsigned.
    U32(u32),
    /// 32-bit signed.
    I32(i32),
    /// 32-bit float.
    F32(f32),
    /// Boolean.
    Bool(bool),
    /// Text.
    String(String),
    /// Elements of one type.
    Array(ArrayValue),
    /// 64-bit unsigned.
    U64(u64),
    /// 64-bit signed.
    I64(i64),
    /// 64-bit float.
    F64(f64),
}

impl Value {
    /// Its type.
    pub fn kind(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) => ValueType::String,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// Any integer type that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::U64(v) => Some(v),
            Value::I8(v) => v.try_into().ok(),
            Value::I16(v) => v.try_into().ok(),
            Value::I32(v) => v.try_into().ok(),
            Value::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }

    /// Either float type.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::F32(v) => Some(v.into()),
            Value::F64(v) => Some(v),
            _ => None,
        }
    }

    /// A boolean.
    pub fn as_bool(&self) -> Option<bool> {
        if let Value::Bool(v) = self {
            Some(*v)
        } else {
            None
        }
    }

    /// A string.
    pub fn as_str(&self) -> Option<&str> {
        if let Value::String(v) = self {
            Some(v)
        } else {
            None
        }
    }

    /// An array.
    pub fn as_array(&self) -> Option<&ArrayValue> {
        if let Value::Array(v) = self {
            Some(v)
        } else {
            None
        }
    }

    /// Appends the encoded value, without its type number.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Value::U8(v) => out.extend(v.to_le_bytes()),
            Value::I8(v) => out.extend(v.to_le_bytes()),
            Value::U16(v) => out.extend(v.to_le_bytes()),
            Value::I16(v) => out.extend(v.to_le_bytes()),
            Value::U32(v) => out.extend(v.to_le_bytes()),
            Value::I32(v) => out.extend(v.to_le_bytes()),
            Value::F32(v) => out.extend(v.to_le_bytes()),
            Value::Bool(v) => out.push(u8::from(*v)),
            Value::String(v) => encode_string(out, v),
            Value::Array(v) => {
                out.extend(v.elem.code().to_le_bytes());
                out.extend(v.len.to_le_bytes());
                out.extend_from_slice(&v.bytes);
            }
            Value::U64(v) => out.extend(v.to_le_bytes()),
            Value::I64(v) => out.extend(v.to_le_bytes()),
            Value::F64(v) => out.extend(v.to_le_bytes()),
        }
    }

    /// A short form for error messages.
    pub fn brief(&self) -> String {
        match self {
            Value::Array(v) => format!("array of {} {:?}", v.len, v.elem),
            Value::String(v) => {
                let start: String = v.chars().take(60).collect();
                format!("{start:?}")
            }
            other => format!("{other:?}"),
        }
    }
}

/// Appends a length-prefixed string.
pub(crate) fn encode_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Elements of one type, kept encoded and already checked.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayValue {
    pub(super) elem: ValueType,
    pub(super) len: u64,
    pub(super) bytes: Vec<u8>,
}

impl ArrayValue {
    /// An array of strings.
    pub fn of_strings<S: AsRef<str>>(items: impl IntoIterator<Item = S>) -> ArrayValue {
        let (mut bytes, mut len) = (Vec::new(), 0);
        for item in items {
            encode_string(&mut bytes, item.as_ref());
            len += 1;
        }
        ArrayValue {
            elem: ValueType::String,
            len,
            bytes,
        }
    }

    /// An array of 32-bit signed integers.
    pub fn of_i32s(items: impl IntoIterator<Item = i32>) -> ArrayValue {
        let bytes: Vec<u8> = items.into_iter().flat_map(i32::to_le_bytes).collect();
        ArrayValue {
            elem: ValueType::I32,
            len: (bytes.len() / 4) as u64,
            bytes,
        }
    }

    /// The type of the elements.
    pub fn elem(&self) -> ValueType {
        self.elem
    }

    /// Number of elements.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements in order, if they are strings.
    pub fn strings(&self) -> Option<impl Iterator<Item = &str>> {
        (self.elem == ValueType::String).then(|| {
            let mut rest = self.bytes.as_slice();
            std::iter::from_fn(move || {
                let (head, tail) = rest.split_first_chunk::<8>()?;
                let len = usize::try_from(u64::from_le_bytes(*head)).ok()?;
                let (text, after) = tail.split_at_checked(len)?;
                rest = after;
                std::str::from_utf8(text).ok()
            })
        })
    }

    /// The elements in order, if they are 32-bit integers.
    pub fn i32s(&self) -> Option<impl Iterator<Item = i32>> {
        matches!(self.elem, ValueType::I32 | ValueType::U32).then(|| {
            let (chunks, _) = self.bytes.as_chunks::<4>();
            chunks.iter().map(|chunk| i32::from_le_bytes(*chunk))
        })
    }
}
