//! The type numbers that a GGUF file uses, and the sizes that follow from them.

/// How a tensor's elements are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorType {
    /// 32-bit float.
    F32,
    /// 16-bit IEEE float.
    F16,
    /// 32 weights: f16 scale, 4-bit codes around 8.
    Q4_0,
    /// 32 weights: f16 scale and minimum, 4-bit codes.
    Q4_1,
    /// 32 weights: f16 scale, 8-bit codes.
    Q8_0,
    /// 256 weights: eight 6-bit scales and minima, 4-bit codes.
    Q4K,
    /// 256 weights: sixteen 8-bit scales, 6-bit codes.
    Q6K,
    /// The upper half of a 32-bit float.
    Bf16,
}

impl TensorType {
    /// Every supported type.
    pub const ALL: [TensorType; 8] = [
        TensorType::F32,
        TensorType::F16,
        TensorType::Q4_0,
        TensorType::Q4_1,
        TensorType::Q8_0,
        TensorType::Q4K,
        TensorType::Q6K,
        TensorType::Bf16,
    ];

    /// The number in the file.
    pub fn code(self) -> u32 {
        match self {
            TensorType::F32 => 0,
            TensorType::F16 => 1,
            TensorType::Q4_0 => 2,
            TensorType::Q4_1 => 3,
            TensorType::Q8_0 => 8,
            TensorType::Q4K => 12,
            TensorType::Q6K => 14,
            TensorType::Bf16 => 30,
        }
    }

    /// The type with that number, if supported.
    pub fn from_code(code: u32) -> Option<TensorType> {
        TensorType::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// Elements in one block; a row is a whole number of blocks.
    pub fn block_len(self) -> usize {
        match self {
            TensorType::F32 | TensorType::F16 | TensorType::Bf16 => 1,
            TensorType::Q4_0 | TensorType::Q4_1 | TensorType::Q8_0 => 32,
            TensorType::Q4K | TensorType::Q6K => 256,
        }
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> usize {
        match self {
            TensorType::F32 => 4,
            TensorType::F16 | TensorType::Bf16 => 2,
            TensorType::Q4_0 => 2 + 16,
            TensorType::Q4_1 => 2 + 2 + 16,
            TensorType::Q8_0 => 2 + 32,
            TensorType::Q4K => 2 + 2 + 12 + 128,
            TensorType::Q6K => 128 + 64 + 16 + 2,
        }
    }
}

/// How a metadata value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// Unsigned byte.
    U8,
    /// Signed byte.
    I8,
    /// 16-bit unsigned.
    U16,
    /// 16-bit signed.
    I16,
    /// 32-bit unsigned.
    U32,
    /// 32-bit signed.
    I32,
    /// 32-bit float.
    F32,
    /// One byte, 0 or 1.
    Bool,
    /// 64-bit length, then UTF-8.
    String,
    /// Element type, 64-bit count, then the elements.
    Array,
    /// 64-bit unsigned.
    U64,
    /// 64-bit signed.
    I64,
    /// 64-bit float.
    F64,
}

impl ValueType {
    /// In the order of their numbers, 0 to 12.
    const BY_CODE: [ValueType; 13] = [
        ValueType::U8,
        ValueType::I8,
        ValueType::U16,
        ValueType::I16,
        ValueType::U32,
        ValueType::I32,
        ValueType::F32,
        ValueType::Bool,
        ValueType::String,
        ValueType::Array,
        ValueType::U64,
        ValueType::I64,
        ValueType::F64,
    ];

    /// The type with that number, if there is one.
    pub fn from_code(code: u32) -> Option<ValueType> {
        ValueType::BY_CODE.get(code as usize).copied()
    }

    /// The number in the file.
    pub fn code(self) -> u32 {
        // The declaration order is the numbering, as BY_CODE spells out.
        self as u32
    }

    /// Bytes of a value of fixed size; `None` for strings and arrays.
    pub fn fixed_bytes(self) -> Option<usize> {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => Some(1),
            ValueType::U16 | ValueType::I16 => Some(2),
            ValueType::U32 | ValueType::I32 | ValueType::F32 => Some(4),
            ValueType::U64 | ValueType::I64 | ValueType::F64 => Some(8),
            ValueType::String | ValueType::Array => None,
        }
    }
}
