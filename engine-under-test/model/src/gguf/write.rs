//! A small GGUF writer: metadata, a tensor directory, aligned data.

use std::borrow::Cow;
use std::io::{self, Write};

use half::bf16;

use super::types::TensorType;
use super::value::{Value, encode_string};

/// Data alignment of written files, the format's default.
const ALIGNMENT: usize = 32;

/// A tensor to write.
pub struct TensorOut<'a> {
    /// Its name.
    pub name: String,
    /// Dimensions in GGUF order, the contiguous one first.
    pub dims: Vec<u64>,
    /// Its elements.
    pub data: TensorData<'a>,
}

/// The elements of a tensor to write.
pub enum TensorData<'a> {
    /// Written as F32.
    F32(Cow<'a, [f32]>),
    /// Rounded to nearest-even and written as BF16.
    Bf16(Cow<'a, [f32]>),
    /// Bytes that are already encoded.
    Raw(TensorType, Cow<'a, [u8]>),
}

impl TensorData<'_> {
    /// The stored type.
    fn kind(&self) -> TensorType {
        match self {
            TensorData::F32(_) => TensorType::F32,
            TensorData::Bf16(_) => TensorType::Bf16,
            TensorData::Raw(kind, _) => *kind,
        }
    }

    /// Length of the encoded data.
    fn len_bytes(&self) -> usize {
        match self {
            TensorData::F32(values) => values.len() * 4,
            TensorData::Bf16(values) => values.len() * 2,
            TensorData::Raw(_, bytes) => bytes.len(),
        }
    }

    /// Writes the encoded data.
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        // Encoded in pieces, so that a large table is not held twice.
        const PIECE: usize = 1 << 14;
        match self {
            TensorData::Raw(_, bytes) => out.write_all(bytes),
            TensorData::F32(values) => values.chunks(PIECE).try_for_each(|piece| {
                let bytes: Vec<u8> = piece.iter().flat_map(|v| v.to_le_bytes()).collect();
                out.write_all(&bytes)
            }),
            TensorData::Bf16(values) => values.chunks(PIECE).try_for_each(|piece| {
                let bytes: Vec<u8> = piece
                    .iter()
                    .flat_map(|v| bf16::from_f32(*v).to_le_bytes())
                    .collect();
                out.write_all(&bytes)
            }),
        }
    }
}

/// Writes a version 3 file.
///
/// # Errors
/// Whatever `out` reports.
///
/// # Panics
/// When a tensor's data is not as long as its dimensions and type say.
pub fn write_gguf(
    out: &mut impl Write,
    metadata: &[(String, Value)],
    tensors: &[TensorOut<'_>],
) -> io::Result<()> {
    let mut header = Vec::new();
    header.extend_from_slice(b"GGUF");
    header.extend(3u32.to_le_bytes());
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        encode_string(&mut header, key);
        header.extend(value.kind().code().to_le_bytes());
        value.encode(&mut header);
    }
    let mut offset = 0;
    for tensor in tensors {
        let elements: u64 = tensor.dims.iter().product();
        let kind = tensor.data.kind();
        let blocks = elements / kind.block_len() as u64;
        let expected = blocks * kind.block_bytes() as u64;
        assert_eq!(
            tensor.data.len_bytes() as u64,
            expected,
            "data of {}",
            tensor.name
        );
        encode_string(&mut header, &tensor.name);
        header.extend((tensor.dims.len() as u32).to_le_bytes());
        tensor
            .dims
            .iter()
            .for_each(|dim| header.extend(dim.to_le_bytes()));
        header.extend(kind.code().to_le_bytes());
        header.extend((offset as u64).to_le_bytes());
        offset += tensor.data.len_bytes().next_multiple_of(ALIGNMENT);
    }
    pad(&mut header);
    out.write_all(&header)?;
    for tensor in tensors {
        tensor.data.write(out)?;
        let len = tensor.data.len_bytes();
        out.write_all(&[0; ALIGNMENT][..len.next_multiple_of(ALIGNMENT) - len])?;
    }
    out.flush()
}

/// Fills up to the alignment with zeros.
fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
}
