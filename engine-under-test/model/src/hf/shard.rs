//! One safetensors file: a checked header and positional reads.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::error::{ModelError, Result};
use crate::gguf::TensorType;
use crate::gguf::dequant::dequantize;

/// Bytes of the length field in front of the header.
const LENGTH_BYTES: u64 = 8;
/// The format's own limit on its header.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// A tensor's entry in the header.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Entry {
    /// Element type, such as "BF16".
    dtype: String,
    /// Outermost dimension first.
    shape: Vec<u64>,
    /// Start and end in the data section, bytes.
    data_offsets: (u64, u64),
}

impl Entry {
    /// The element type, if weights may have it.
    fn kind(&self) -> Option<TensorType> {
        match self.dtype.as_str() {
            "F32" => Some(TensorType::F32),
            "F16" => Some(TensorType::F16),
            "BF16" => Some(TensorType::Bf16),
            _ => None,
        }
    }
}

/// Where a shard's bytes come from.
#[derive(Debug)]
enum Bytes {
    File(File, PathBuf),
    Memory(Vec<u8>),
}

/// An open safetensors file.
#[derive(Debug)]
pub struct Shard {
    bytes: Bytes,
    entries: BTreeMap<String, Entry>,
    data_start: u64,
}

impl Shard {
    /// Opens `path` and checks its header.
    ///
    /// # Errors
    /// [`ModelError::Io`], [`ModelError::Format`] or [`ModelError::Tensor`].
    pub fn open(path: &Path) -> Result<Shard> {
        let io = |e| ModelError::io(path, e);
        let file = File::open(path).map_err(io)?;
        let file_len = file.metadata().map_err(io)?.len();
        let origin = path.display().to_string();
        let mut length = [0; LENGTH_BYTES as usize];
        if file_len < LENGTH_BYTES {
            return Err(ModelError::format(
                origin,
                format!("{file_len} bytes hold no header"),
            ));
        }
        file.read_exact_at(&mut length, 0).map_err(io)?;
        let header_len = header_len(&origin, length, file_len)?;
        let mut header = vec![0; header_len];
        file.read_exact_at(&mut header, LENGTH_BYTES).map_err(io)?;
        let data_start = LENGTH_BYTES + header_len as u64;
        let entries = parse_header(&origin, &header, file_len - data_start)?;
        Ok(Shard {
            bytes: Bytes::File(file, path.into()),
            entries,
            data_start,
        })
    }

    /// Checks a whole file in memory.
    ///
    /// # Errors
    /// [`ModelError::Format`] or [`ModelError::Tensor`].
    pub fn from_bytes(file: &[u8]) -> Result<Shard> {
        let origin = "safetensors";
        let (length, rest) = file
            .split_first_chunk::<{ LENGTH_BYTES as usize }>()
            .ok_or_else(|| ModelError::format(origin, "no header"))?;
        let header_len = header_len(origin, *length, file.len() as u64)?;
        let (header, data) = rest.split_at(header_len);
        let entries = parse_header(origin, header, data.len() as u64)?;
        let data_start = LENGTH_BYTES + header_len as u64;
        Ok(Shard {
            bytes: Bytes::Memory(file.to_vec()),
            entries,
            data_start,
        })
    }

    /// Whether the file has a tensor called `name`.
    pub fn contains(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Names of all tensors, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The values of `name`, which must have the given shape.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] or [`ModelError::Io`].
    pub fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let entry = self
            .entries
            .get(name)
            .ok_or_else(|| ModelError::tensor(name, "is missing"))?;
        let wanted: Vec<u64> = shape.iter().map(|dim| *dim as u64).collect();
        if entry.shape != wanted {
            let problem = format!("has shape {:?}, the config needs {wanted:?}", entry.shape);
            return Err(ModelError::tensor(name, problem));
        }
        let kind = entry.kind().ok_or_else(|| {
            let problem = format!("type {} is unsupported; F32, F16 and BF16 are", entry.dtype);
            ModelError::tensor(name, problem)
        })?;
        let (start, end) = entry.data_offsets;
        let (start, len) = (self.data_start + start, end - start);
        // OK because the header check bounded both by the file's length, which was addressable.
        let size = |v: u64| usize::try_from(v).expect("checked against the file");
        match &self.bytes {
            Bytes::Memory(all) => Ok(dequantize(kind, &all[size(start)..size(start + len)])),
            Bytes::File(file, path) => {
                let mut bytes = vec![0; size(len)];
                file.read_exact_at(&mut bytes, start)
                    .map_err(|e| ModelError::io(path, e))?;
                Ok(dequantize(kind, &bytes))
            }
        }
    }
}

/// The header's length, checked against the file's.
fn header_len(origin: &str, field: [u8; 8], file_len: u64) -> Result<usize> {
    let len = u64::from_le_bytes(field);
    if len > (file_len - LENGTH_BYTES).min(MAX_HEADER_BYTES) {
        let problem = format!("header length {len} exceeds the file of {file_len} bytes");
        return Err(ModelError::format(origin, problem));
    }
    usize::try_from(len).map_err(|e| ModelError::format(origin, e))
}

/// Parses the JSON header of a file with `data_len` bytes behind it, checking every range.
///
/// # Errors
/// [`ModelError::Format`] when it is not such JSON, [`ModelError::Tensor`] naming the entry whose
/// range, shape or type do not agree.
pub fn parse_header(origin: &str, json: &[u8], data_len: u64) -> Result<BTreeMap<String, Entry>> {
    let object: BTreeMap<String, Value> =
        serde_json::from_slice(json).map_err(|e| ModelError::format(origin, e))?;
    let mut entries = BTreeMap::new();
    let mut total: u64 = 0;
    for (name, value) in object {
        if name == "__metadata__" {
            continue;
        }
        let entry: Entry =
            serde_json::from_value(value).map_err(|e| ModelError::tensor(&name, e.to_string()))?;
        let (start, end) = entry.data_offsets;
        if start > end || end > data_len {
            let problem = format!("bytes {start} to {end} leave the data of {data_len} bytes");
            return Err(ModelError::tensor(name, problem));
        }
        // Other types may be in the file as long as no weight has them.
        if let Some(kind) = entry.kind() {
            let elements = entry
                .shape
                .iter()
                .try_fold(1u64, |n, dim| n.checked_mul(*dim));
            let bytes = elements.and_then(|n| n.checked_mul(kind.block_bytes() as u64));
            if bytes != Some(end - start) {
                let problem = format!("{} bytes do not hold {:?}", end - start, entry.shape);
                return Err(ModelError::tensor(name, problem));
            }
        }
        total = total.saturating_add(end - start);
        entries.insert(name, entry);
    }
    if total > data_len {
        let problem = format!("tensors of {total} bytes overlap in {data_len} bytes of data");
        return Err(ModelError::format(origin, problem));
    }
    Ok(entries)
}
