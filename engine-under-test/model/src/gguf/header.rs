//! The header: metadata and the directory of tensors.

use std::collections::BTreeMap;

use super::cursor::{Cursor, Stop};
use super::types::{TensorType, ValueType};
use super::value::{ArrayValue, Value};
use crate::error::{ModelError, Result};

/// Where a tensor is and how it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Dimensions as stored: `dims[0]` is contiguous (inputs), `dims[1]` the rows (outputs).
    pub dims: Vec<u64>,
    /// Storage type.
    pub kind: TensorType,
    /// Absolute offset of the data in the file, bytes.
    pub offset: u64,
    /// Length of the data, bytes.
    pub len_bytes: u64,
}

/// A parsed header, all of whose offsets lie inside the file.
#[derive(Clone, Debug)]
pub struct Header {
    /// GGUF version, 2 or 3.
    pub version: u32,
    /// Metadata in file order.
    pub metadata: Vec<(String, Value)>,
    /// Tensors in file order.
    pub tensors: Vec<TensorInfo>,
    key_index: BTreeMap<String, usize>,
    tensor_index: BTreeMap<String, usize>,
}

/// Data alignment when `general.alignment` is absent.
const DEFAULT_ALIGNMENT: u64 = 32;

impl Header {
    /// Parses a whole file in memory.
    ///
    /// # Errors
    /// [`ModelError::Gguf`] naming field, offset and value.
    pub fn parse(file: &[u8]) -> Result<Header> {
        match Header::parse_prefix(file, file.len() as u64) {
            Ok(header) => Ok(header),
            Err(Stop::Bad(error)) => Err(error),
            Err(Stop::NeedBytes(end)) => Err(ModelError::Gguf {
                field: "header".into(),
                offset: end,
                problem: format!("lies beyond the {} bytes of the file", file.len()),
            }),
        }
    }

    /// Parses the header from a prefix of a file of `file_len` bytes.
    pub(super) fn parse_prefix(prefix: &[u8], file_len: u64) -> std::result::Result<Header, Stop> {
        let mut cursor = Cursor::new(prefix, file_len);
        let version = magic_and_version(&mut cursor)?;
        let tensor_count = cursor.u64("tensor count")?;
        let key_count = cursor.u64("metadata count")?;
        // Neither count sizes an allocation: entries are pushed as their bytes are found.
        let mut header = Header {
            version,
            metadata: Vec::new(),
            tensors: Vec::new(),
            key_index: BTreeMap::new(),
            tensor_index: BTreeMap::new(),
        };
        for _ in 0..key_count {
            header.read_key_value(&mut cursor)?;
        }
        for _ in 0..tensor_count {
            header.read_tensor(&mut cursor)?;
        }
        header.place_tensors(&cursor, file_len)?;
        Ok(header)
    }

    /// Reads one metadata entry.
    fn read_key_value(&mut self, cursor: &mut Cursor<'_>) -> std::result::Result<(), Stop> {
        let start = cursor.offset();
        let key = cursor.string("metadata key")?.to_string();
        let kind = value_type(cursor, &key)?;
        let value = read_value(cursor, kind, &key)?;
        if self
            .key_index
            .insert(key.clone(), self.metadata.len())
            .is_some()
        {
            return Err(cursor.bad(&key, start, "the key appears twice"));
        }
        self.metadata.push((key, value));
        Ok(())
    }

    /// Reads one directory entry; its offset is made absolute later.
    fn read_tensor(&mut self, cursor: &mut Cursor<'_>) -> std::result::Result<(), Stop> {
        let start = cursor.offset();
        let name = cursor.string("tensor name")?.to_string();
        let dim_count = cursor.u32(&name)?;
        if !(1..=4).contains(&dim_count) {
            let problem = format!("has {dim_count} dimensions, 1 to 4 are allowed");
            return Err(cursor.bad(&name, start, problem));
        }
        let mut dims = Vec::with_capacity(dim_count as usize);
        for _ in 0..dim_count {
            dims.push(cursor.u64(&name)?);
        }
        let at = cursor.offset();
        let code = cursor.u32(&name)?;
        let Some(kind) = TensorType::from_code(code) else {
            let problem = format!(
                "tensor type {code} is unsupported, {:?} are",
                TensorType::ALL
            );
            return Err(cursor.bad(&name, at, problem));
        };
        let Some(len_bytes) = data_len(&dims, kind) else {
            let problem = format!(
                "shape {dims:?} is empty, too large, or not whole {kind:?} blocks of {}",
                kind.block_len()
            );
            return Err(cursor.bad(&name, start, problem));
        };
        let offset = cursor.u64(&name)?;
        if self
            .tensor_index
            .insert(name.clone(), self.tensors.len())
            .is_some()
        {
            return Err(cursor.bad(&name, start, "the tensor appears twice"));
        }
        self.tensors.push(TensorInfo {
            name,
            dims,
            kind,
            offset,
            len_bytes,
        });
        Ok(())
    }

    /// Turns relative offsets into absolute ones and checks that all data is in the file.
    fn place_tensors(
        &mut self,
        cursor: &Cursor<'_>,
        file_len: u64,
    ) -> std::result::Result<(), Stop> {
        let alignment = match self.get("general.alignment") {
            None => DEFAULT_ALIGNMENT,
            Some(value) => match value.as_u64() {
                Some(v) if v.is_power_of_two() && v <= 1 << 20 => v,
                _ => {
                    let problem = format!("{} is not a power of two up to 2^20", value.brief());
                    return Err(cursor.bad("general.alignment", 0, problem));
                }
            },
        };
        // A cursor never leaves the file, so this cannot overflow.
        let data_start = cursor.offset().next_multiple_of(alignment);
        let mut total: u64 = 0;
        for tensor in &mut self.tensors {
            let start = data_start.checked_add(tensor.offset);
            let end = start.and_then(|start| start.checked_add(tensor.len_bytes));
            total = total.saturating_add(tensor.len_bytes);
            match (start, end) {
                (Some(start), Some(end)) if end <= file_len => tensor.offset = start,
                _ => {
                    let problem = format!(
                        "{} bytes at data offset {} end beyond the file of {file_len} bytes",
                        tensor.len_bytes, tensor.offset
                    );
                    return Err(cursor.bad(&tensor.name, data_start, problem));
                }
            }
        }
        // Tensors that share bytes would make the weights larger than any bound by file size.
        if total > file_len {
            let problem = format!("{total} bytes in all, the file has {file_len}: they overlap");
            return Err(cursor.bad("tensor data", data_start, problem));
        }
        Ok(())
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.key_index
            .get(key)
            .map(|index| &self.metadata[*index].1)
    }

    /// The directory entry of `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensor_index
            .get(name)
            .map(|index| &self.tensors[*index])
    }

    /// The value of `key` as a string; an error if it has another type.
    ///
    /// # Errors
    /// [`ModelError::Config`] naming key and value.
    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, Value::as_str, "must be a string")
    }

    /// The value of `key` as an unsigned integer of any width.
    ///
    /// # Errors
    /// [`ModelError::Config`] naming key and value.
    pub fn uint(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, Value::as_u64, "must be a whole number")
    }

    /// The value of `key` as a float of either width.
    ///
    /// # Errors
    /// [`ModelError::Config`] naming key and value.
    pub fn real(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, Value::as_f64, "must be a float")
    }

    /// The value of `key` as a boolean.
    ///
    /// # Errors
    /// [`ModelError::Config`] naming key and value.
    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, Value::as_bool, "must be a boolean")
    }

    /// The value of `key` as an array.
    ///
    /// # Errors
    /// [`ModelError::Config`] naming key and value.
    pub fn array(&self, key: &str) -> Result<Option<&ArrayValue>> {
        self.typed(key, Value::as_array, "must be an array")
    }

    /// A value through `view`, or an error when it is there but `view` refuses it.
    fn typed<'a, T>(
        &'a self,
        key: &str,
        view: impl Fn(&'a Value) -> Option<T>,
        problem: &str,
    ) -> Result<Option<T>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => view(value)
                .map(Some)
                .ok_or_else(|| self.bad_key(key, problem)),
        }
    }

    /// An error about `key` that quotes its value.
    pub(crate) fn bad_key(&self, key: &str, problem: impl Into<String>) -> ModelError {
        ModelError::Config {
            origin: "GGUF metadata".into(),
            key: key.into(),
            value: self.get(key).map_or("(missing)".into(), Value::brief),
            problem: problem.into(),
        }
    }
}

/// Checks the first eight bytes.
fn magic_and_version(cursor: &mut Cursor<'_>) -> std::result::Result<u32, Stop> {
    let magic: [u8; 4] = cursor.array("magic")?;
    if magic != *b"GGUF" {
        return Err(cursor.bad("magic", 0, format!("{magic:02x?} is not \"GGUF\"")));
    }
    let version = cursor.u32("version")?;
    match version {
        2 | 3 => Ok(version),
        _ if version.swap_bytes() <= 3 => {
            let problem = format!("{version:#x}: big-endian files are unsupported");
            Err(cursor.bad("version", 4, problem))
        }
        _ => Err(cursor.bad(
            "version",
            4,
            format!("{version} is unsupported, 2 and 3 are"),
        )),
    }
}

/// Reads a value's type number.
fn value_type(cursor: &mut Cursor<'_>, key: &str) -> std::result::Result<ValueType, Stop> {
    let at = cursor.offset();
    let code = cursor.u32(key)?;
    ValueType::from_code(code)
        .ok_or_else(|| cursor.bad(key, at, format!("value type {code} does not exist")))
}

/// Reads one value of type `kind`.
fn read_value(
    cursor: &mut Cursor<'_>,
    kind: ValueType,
    key: &str,
) -> std::result::Result<Value, Stop> {
    Ok(match kind {
        ValueType::U8 => Value::U8(u8::from_le_bytes(cursor.array(key)?)),
        ValueType::I8 => Value::I8(i8::from_le_bytes(cursor.array(key)?)),
        ValueType::U16 => Value::U16(u16::from_le_bytes(cursor.array(key)?)),
        ValueType::I16 => Value::I16(i16::from_le_bytes(cursor.array(key)?)),
        ValueType::U32 => Value::U32(u32::from_le_bytes(cursor.array(key)?)),
        ValueType::I32 => Value::I32(i32::from_le_bytes(cursor.array(key)?)),
        ValueType::F32 => Value::F32(f32::from_le_bytes(cursor.array(key)?)),
        ValueType::U64 => Value::U64(u64::from_le_bytes(cursor.array(key)?)),
        ValueType::I64 => Value::I64(i64::from_le_bytes(cursor.array(key)?)),
        ValueType::F64 => Value::F64(f64::from_le_bytes(cursor.array(key)?)),
        ValueType::String => Value::String(cursor.string(key)?.to_string()),
        ValueType::Array => Value::Array(read_array(cursor, key)?),
        ValueType::Bool => {
            let at = cursor.offset();
            match cursor.array::<1>(key)? {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                [other] => {
                    return Err(cursor.bad(key, at, format!("{other} is not a boolean")));
                }
            }
        }
    })
}

/// Reads an array, walking over strings to find its end.
fn read_array(cursor: &mut Cursor<'_>, key: &str) -> std::result::Result<ArrayValue, Stop> {
    let at = cursor.offset();
    let elem = value_type(cursor, key)?;
    let len = cursor.u64(key)?;
    if elem == ValueType::Array {
        return Err(cursor.bad(key, at, "arrays of arrays are unsupported"));
    }
    let mut bytes = Vec::new();
    if let Some(width) = elem.fixed_bytes() {
        let Some(total) = len.checked_mul(width as u64) else {
            return Err(cursor.bad(key, at, format!("{len} elements do not fit any file")));
        };
        bytes.extend_from_slice(cursor.take(total, key)?);
    } else {
        for _ in 0..len {
            let text = cursor.string(key)?;
            super::value::encode_string(&mut bytes, text);
        }
    }
    Ok(ArrayValue { elem, len, bytes })
}

/// Bytes of a tensor, or `None` when its shape is empty, overflows or splits a block.
fn data_len(dims: &[u64], kind: TensorType) -> Option<u64> {
    let row = *dims.first()?;
    if !row.is_multiple_of(kind.block_len() as u64) {
        return None;
    }
    let elements = dims
        .iter()
        .try_fold(1u64, |product, dim| product.checked_mul(*dim))?;
    let blocks = elements / kind.block_len() as u64;
    (elements > 0).then_some(())?;
    blocks.checked_mul(kind.block_bytes() as u64)
}
