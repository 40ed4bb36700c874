//! The shape of a rank's KV blocks, and where each element lies in one.
//!
//! A *segment* is one layer of one block: key scales, keys, value scales, values, as in the block
//! images of the engine (`pb_model::forward::image`, version 1), of which it is one layer without
//! the header. Keys are `[kv_head][d][slot]`, values `[kv_head][slot][d]`, so that a range of heads
//! is one run of bytes on each side, and a segment of fewer heads is a segment of the same form.

use std::ops::Range;

use pb_contract::KvDtype;

/// Largest count of layers, KV heads or head dimension that a peer is believed.
pub const MAX_DIMENSION: usize = 4096;
/// Largest block, tokens.
pub const MAX_BLOCK_TOKENS: usize = 65_536;
/// Largest degree of tensor parallelism.
pub const MAX_TP_DEGREE: usize = 1024;

/// Keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// Keys.
    Key,
    /// Values.
    Value,
}

impl Side {
    /// Both, in the order of a segment.
    pub const ALL: [Side; 2] = [Side::Key, Side::Value];

    /// `key` or `value`.
    pub const fn name(self) -> &'static str {
        match self {
            Side::Key => "key",
            Side::Value => "value",
        }
    }
}

/// Why a geometry is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// A dimension is zero or larger than is believed.
    #[error("{field} is {value}, must be 1 to {largest}")]
    Range {
        /// Which.
        field: &'static str,
        /// Its value.
        value: usize,
        /// Largest accepted.
        largest: usize,
    },
    /// Heads cannot be shared out evenly.
    #[error(
        "tp_degree {tp_degree} does not fit {kv_heads} KV heads: one must be a multiple of the \
         other"
    )]
    Heads {
        /// Ranks.
        tp_degree: usize,
        /// KV heads of the model.
        kv_heads: usize,
    },
    /// The rank is not below the degree.
    #[error("tp_rank is {rank}, must be below tp_degree {tp_degree}")]
    Rank {
        /// Rank.
        rank: usize,
        /// Ranks.
        tp_degree: usize,
    },
}

/// Shape of the KV cache of an engine whose heads are shared by `tp_degree` ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvGeometry {
    /// Layers.
    pub layers: usize,
    /// KV heads of the whole model.
    pub kv_heads: usize,
    /// Elements of one head's key or value.
    pub d_head: usize,
    /// Tokens in a block.
    pub block_size: usize,
    /// Element type.
    pub dtype: KvDtype,
    /// Ranks that share the heads.
    pub tp_degree: usize,
}

impl KvGeometry {
    /// Checks the ranges, and that heads and ranks divide.
    ///
    /// # Errors
    /// [`GeometryError`], naming the field.
    pub fn check(&self) -> Result<(), GeometryError> {
        for (field, value, largest) in [
            ("layers", self.layers, MAX_DIMENSION),
            ("kv_heads", self.kv_heads, MAX_DIMENSION),
            ("d_head", self.d_head, MAX_DIMENSION),
            ("block_size", self.block_size, MAX_BLOCK_TOKENS),
            ("tp_degree", self.tp_degree, MAX_TP_DEGREE),
        ] {
            if value == 0 || value > largest {
                return Err(GeometryError::Range {
                    field,
                    value,
                    largest,
                });
            }
        }
        let (tp_degree, kv_heads) = (self.tp_degree, self.kv_heads);
        if !kv_heads.is_multiple_of(tp_degree) && !tp_degree.is_multiple_of(kv_heads) {
            return Err(GeometryError::Heads {
                tp_degree,
                kv_heads,
            });
        }
        Ok(())
    }

    /// The heads of a rank. With more ranks than heads, neighbouring ranks hold the same head, as
    /// in vLLM.
    pub fn heads(&self, rank: usize) -> Range<usize> {
        let share = (self.kv_heads / self.tp_degree).max(1);
        let first = rank * self.kv_heads / self.tp_degree;
        first..first + share
    }

    /// Blocks that hold `tokens` tokens.
    pub fn blocks_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_size)
    }

    /// Blocks that a decode engine needs to take over `tokens` tokens and compute one more: one
    /// more than was sent when the last block is full.
    pub fn decode_blocks_for(&self, tokens: usize) -> usize {
        self.blocks_for(tokens + 1)
    }

    /// One layer of one block with `heads` of the heads.
    pub fn segment(&self, heads: usize) -> Segment {
        Segment {
            heads,
            d_head: self.d_head,
            block_size: self.block_size,
            dtype: self.dtype,
        }
    }
}

/// One layer of one block on one rank, or of a part of its heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// KV heads in it.
    pub heads: usize,
    /// Elements of one head's key or value.
    pub d_head: usize,
    /// Tokens.
    pub block_size: usize,
    /// Element type.
    pub dtype: KvDtype,
}

impl Segment {
    /// Bytes of one head's elements, keys or values.
    fn head_bytes(&self) -> usize {
        self.d_head * self.block_size * self.dtype.bytes()
    }

    /// Bytes of the scales in front of the elements of one side.
    fn scale_bytes(&self) -> usize {
        match self.dtype {
            KvDtype::F64 | KvDtype::F32 | KvDtype::Bf16 | KvDtype::F16 => 0,
            KvDtype::Fp8E4m3 | KvDtype::Fp8E5m2 => size_of::<f32>(),
            KvDtype::Int8 => size_of::<f32>() * self.block_size * self.heads,
        }
    }

    fn side_bytes(&self) -> usize {
        self.scale_bytes() + self.heads * self.head_bytes()
    }

    fn side_at(&self, side: Side) -> usize {
        match side {
            Side::Key => 0,
            Side::Value => self.side_bytes(),
        }
    }

    /// Bytes of the segment.
    pub fn bytes(&self) -> usize {
        2 * self.side_bytes()
    }

    /// Byte offset of the scale of `head` and `slot`; `None` for types without.
    pub fn scale_at(&self, side: Side, head: usize, slot: usize) -> Option<usize> {
        let start = self.side_at(side);
        match self.dtype {
            KvDtype::F64 | KvDtype::F32 | KvDtype::Bf16 | KvDtype::F16 => None,
            KvDtype::Fp8E4m3 | KvDtype::Fp8E5m2 => Some(start),
            KvDtype::Int8 => Some(start + size_of::<f32>() * (head * self.block_size + slot)),
        }
    }

    /// Byte offset of element `d` of `head` in `slot`.
    pub fn elem_at(&self, side: Side, head: usize, slot: usize, d: usize) -> usize {
        let within = match side {
            Side::Key => d * self.block_size + slot,
            Side::Value => slot * self.d_head + d,
        };
        let start = self.side_at(side) + self.scale_bytes() + head * self.head_bytes();
        start + within * self.dtype.bytes()
    }

    /// The runs of bytes which in this order are the segment of `heads` alone. Runs that touch are
    /// one, so all heads are one run.
    pub fn pieces(&self, heads: Range<usize>) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::with_capacity(4);
        for side in Side::ALL {
            let start = self.side_at(side);
            let per_head = match self.dtype {
                KvDtype::Int8 => self.scale_bytes() / self.heads.max(1),
                _ => 0,
            };
            let scales = match per_head {
                0 => start..start + self.scale_bytes(),
                n => start + heads.start * n..start + heads.end * n,
            };
            let elems = start + self.scale_bytes();
            let n = self.head_bytes();
            for run in [scales, elems + heads.start * n..elems + heads.end * n] {
                match runs.last_mut() {
                    Some(last) if last.end == run.start => last.end = run.end,
                    _ if run.is_empty() => {}
                    _ => runs.push(run),
                }
            }
        }
        runs
    }
}

/// What one source rank sends to one sink rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leg {
    /// Rank of the source.
    pub source_rank: usize,
    /// Heads, by their number in the model.
    pub heads: Range<usize>,
}

/// The legs that together give rank `sink_rank` of `sink` all its heads, each head once, in the
/// order of the heads. Where several source ranks hold a head, sink ranks take them in turn.
pub fn legs(source: &KvGeometry, sink: &KvGeometry, sink_rank: usize) -> Vec<Leg> {
    let copies = (source.tp_degree / source.kv_heads).max(1);
    let share = (source.kv_heads / source.tp_degree).max(1);
    let mut legs: Vec<Leg> = Vec::new();
    for head in sink.heads(sink_rank) {
        let source_rank = head / share * copies + sink_rank % copies;
        match legs.last_mut() {
            Some(leg) if leg.source_rank == source_rank => leg.heads.end = head + 1,
            _ => legs.push(Leg {
                source_rank,
                heads: head..head + 1,
            }),
        }
    }
    legs
}
