//! Block images: the keys and values of one block, all layers, as bytes.
//!
//! Layout, version 1, little-endian:
//!
//! | Bytes | Content |
//! |---|---|
//! | 0..4 | `PBKV` |
//! | 4 | version: 1 |
//! | 5 | element type: 0 f64, 1 f32, 2 bf16, 3 f16, 4 E4M3, 5 E5M2, 6 int8 |
//! | 6..8 | zero |
//! | 8..24 | layers, KV heads, head dimension, block size: u32 each |
//! | 24.. | for each layer: key scales, keys, value scales, values |
//!
//! Keys are `[kv_head][d][slot]`, values `[kv_head][slot][d]`. Scales are f32: none for the wide
//! types, one for fp8 (the layer's), `[kv_head][slot]` for int8. There is nothing else in an
//! image, so blocks with the same elements and scales have the same image, wherever they lie. A
//! block that is not full has an image of all its slots, the unused ones included.

use pb_contract::{BlockId, KvDtype};

use crate::config::LlamaConfig;

const MAGIC: &[u8; 4] = b"PBKV";
const VERSION: u8 = 1;
/// Bytes in front of the layers.
pub const HEADER_BYTES: usize = 24;

// Elements and scales are copied as they lie in memory.
const _: () = assert!(cfg!(target_endian = "little"), "images are little-endian");

/// Why an image was refused.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum ImageError {
    /// Not an image, or one of another version.
    #[error("block image starts with {found:02x?}: expected \"PBKV\" and version {VERSION}")]
    Format {
        /// First bytes, five at most.
        found: Vec<u8>,
    },
    /// From a decoder of another shape or element type.
    #[error(
        "block image has {key} = {found}, this cache has {expected}: images only move between \
         caches of one model, block size and KV dtype"
    )]
    Shape {
        /// Which property.
        key: &'static str,
        /// Its value in the image.
        found: u32,
        /// Its value in the cache.
        expected: u32,
    },
    /// Cut short or too long.
    #[error("block image of {found} bytes: expected {expected}")]
    Length {
        /// Bytes given.
        found: usize,
        /// Bytes needed.
        expected: usize,
    },
    /// The fp8 scales of the layer differ, so the same codes mean other values.
    #[error("block image has the scales {found:?} in layer {layer}, this cache has {expected:?}")]
    Scales {
        /// Layer.
        layer: usize,
        /// Scales of keys and values in the image.
        found: [f32; 2],
        /// Those of the cache.
        expected: [f32; 2],
    },
}

/// What an image says about its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageShape {
    /// Element type.
    pub dtype: KvDtype,
    /// Layers.
    pub layers: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Dimension of a head.
    pub d_head: usize,
    /// Tokens of a block.
    pub block_size: usize,
}

/// The code of an element type in the header.
fn dtype_code(dtype: KvDtype) -> u8 {
    match dtype {
        KvDtype::F64 => 0,
        KvDtype::F32 => 1,
        KvDtype::Bf16 => 2,
        KvDtype::F16 => 3,
        KvDtype::Fp8E4m3 => 4,
        KvDtype::Fp8E5m2 => 5,
        KvDtype::Int8 => 6,
    }
}

impl ImageShape {
    /// Of a cache of `config`.
    pub fn new(config: &LlamaConfig, dtype: KvDtype, block_size: usize) -> Self {
        ImageShape {
            dtype,
            layers: config.layers,
            kv_heads: config.kv_heads,
            d_head: config.d_head,
            block_size,
        }
    }

    fn fields(&self) -> [(&'static str, usize); 4] {
        [
            ("layers", self.layers),
            ("kv_heads", self.kv_heads),
            ("d_head", self.d_head),
            ("block_size", self.block_size),
        ]
    }

    /// Elements of one side (keys or values) of one layer.
    pub fn elems(&self) -> usize {
        self.block_size * self.kv_heads * self.d_head
    }

    /// Scales of one side of one layer.
    pub fn scales(&self) -> usize {
        match self.dtype {
            KvDtype::F64 | KvDtype::F32 | KvDtype::Bf16 | KvDtype::F16 => 0,
            KvDtype::Fp8E4m3 | KvDtype::Fp8E5m2 => 1,
            KvDtype::Int8 => self.block_size * self.kv_heads,
        }
    }

    /// Bytes of a whole image.
    pub fn bytes(&self) -> usize {
        let side = self.scales() * size_of::<f32>() + self.elems() * self.dtype.bytes();
        HEADER_BYTES + 2 * self.layers * side
    }

    /// Appends the header to `out`.
    pub fn push_header(&self, out: &mut Vec<u8>) {
        out.reserve(self.bytes());
        out.extend(MAGIC);
        out.extend([VERSION, dtype_code(self.dtype), 0, 0]);
        for (_, value) in self.fields() {
            out.extend((value as u32).to_le_bytes());
        }
    }

    /// Checks header and length of `image`; returns keys and values of each layer.
    ///
    /// # Errors
    /// [`ImageError`] when it is of another kind or was cut.
    pub fn layers<'a>(&self, image: &'a [u8]) -> Result<Vec<[Side<'a>; 2]>, ImageError> {
        let start = image.get(..5).unwrap_or(image);
        if image.len() < HEADER_BYTES || start[..4] != *MAGIC || start[4] != VERSION {
            return Err(ImageError::Format {
                found: start.to_vec(),
            });
        }
        let same = |key, found, expected| {
            if found == expected {
                return Ok(());
            }
            Err(ImageError::Shape {
                key,
                found,
                expected,
            })
        };
        let dtype = dtype_code(self.dtype);
        same("dtype", u32::from(image[5]), u32::from(dtype))?;
        for ((key, expected), bytes) in self.fields().into_iter().zip(image[8..].chunks_exact(4)) {
            let found = bytes.iter().rev().fold(0, |n, b| n << 8 | u32::from(*b));
            same(key, found, expected as u32)?;
        }
        if image.len() != self.bytes() {
            return Err(ImageError::Length {
                found: image.len(),
                expected: self.bytes(),
            });
        }
        let scale_bytes = self.scales() * size_of::<f32>();
        let side_bytes = scale_bytes + self.elems() * self.dtype.bytes();
        let side = |bytes: &'a [u8]| {
            let (scales, elems) = bytes.split_at(scale_bytes);
            Side { scales, elems }
        };
        let layers = image[HEADER_BYTES..].chunks_exact(2 * side_bytes);
        Ok(layers
            .map(|layer| {
                let (k, v) = layer.split_at(side_bytes);
                [side(k), side(v)]
            })
            .collect())
    }
}

/// Keys or values of one layer in an image.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// f32 scales.
    pub scales: &'a [u8],
    /// Elements.
    pub elems: &'a [u8],
}

impl Side<'_> {
    /// Scale `i`.
    pub fn scale(&self, i: usize) -> f32 {
        let b = &self.scales[4 * i..];
        f32::from_le_bytes([b[0], b[1], b[2], b[3]])
    }
}

/// Keys and values of one layer, while those of the layers above are still to come.
pub trait LayerKv {
    /// Appends the layer's part of the image of `block` to `out`: the same bytes that an image of
    /// all layers has there.
    ///
    /// # Panics
    /// When the block is not in the pool.
    fn read(&self, block: BlockId, out: &mut Vec<u8>);
}

/// Bytes of one block's image.
pub fn block_image_bytes(config: &LlamaConfig, dtype: KvDtype, block_size: usize) -> usize {
    ImageShape::new(config, dtype, block_size).bytes()
}
