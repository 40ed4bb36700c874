//! Memory that blocks lie in, and where.
//!
//! A transport never sees a pool: it sees memory that was registered with it and descriptors of
//! ranges in it, as NIXL and Mooncake do. What costs there is the number of descriptors (vllm
//! #55434: more than half of a transfer spent on posting them), so neighbours are merged here.

use std::ops::Range;
use std::sync::{PoisonError, RwLock};

use pb_contract::BlockId;

use crate::cells::{Order, Span};

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryKind {
    /// Of the host.
    Host,
    /// Of an accelerator.
    Device {
        /// Its number.
        ordinal: u32,
    },
}

/// Why memory could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// Beyond its end.
    #[error("bytes {at}..{end} of a memory of {bytes} bytes")]
    Range {
        /// First byte.
        at: u64,
        /// One past the last.
        end: u64,
        /// Length of the memory.
        bytes: u64,
    },
    /// The device refused.
    #[error("device {ordinal}: {problem}")]
    Device {
        /// Its number.
        ordinal: u32,
        /// What it said.
        problem: String,
    },
}

/// Bytes that can be registered with a transport.
pub trait Memory: Send + Sync + std::fmt::Debug {
    /// Where it is.
    fn kind(&self) -> MemoryKind;

    /// Length, bytes.
    fn bytes(&self) -> u64;

    /// Copies the bytes from `at` on to `out`.
    ///
    /// # Errors
    /// Out of range, or the device refused; `out` is then undefined.
    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), MemoryError>;

    /// Copies `from` to the bytes from `at` on.
    ///
    /// # Errors
    /// Out of range, and nothing is written; or the device refused.
    fn write(&self, at: u64, from: &[u8]) -> Result<(), MemoryError>;

    /// Shows `see` the ranges where they lie, all at once and in their order, each as one part or
    /// several; false where memory can only be copied, which is the default. Whoever writes the
    /// memory may have to wait meanwhile, so `see` must not.
    ///
    /// # Errors
    /// Out of range, and nothing is shown.
    fn view(
        &self,
        _ranges: &[Descriptor],
        _see: &mut dyn FnMut(&[&[u8]]),
    ) -> Result<bool, MemoryError> {
        Ok(false)
    }
}

/// Memory of this process.
#[derive(Debug)]
pub struct HostMemory(RwLock<Vec<u8>>);

impl HostMemory {
    /// `bytes` zero bytes.
    pub fn new(bytes: usize) -> HostMemory {
        HostMemory(RwLock::new(vec![0; bytes]))
    }

    fn range(at: u64, n: usize, bytes: usize) -> Result<Range<usize>, MemoryError> {
        let end = at.saturating_add(n as u64);
        if end > bytes as u64 {
            let bytes = bytes as u64;
            return Err(MemoryError::Range { at, end, bytes });
        }
        Ok(at as usize..end as usize)
    }
}

impl Memory for HostMemory {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Host
    }

    fn bytes(&self) -> u64 {
        // Bytes have no invariant that a panic of another holder could have broken.
        self.0.read().unwrap_or_else(PoisonError::into_inner).len() as u64
    }

    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), MemoryError> {
        let bytes = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let range = HostMemory::range(at, out.len(), bytes.len())?;
        out.copy_from_slice(&bytes[range]);
        Ok(())
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), MemoryError> {
        let mut bytes = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let range = HostMemory::range(at, from.len(), bytes.len())?;
        bytes[range].copy_from_slice(from);
        Ok(())
    }

    fn view(
        &self,
        ranges: &[Descriptor],
        see: &mut dyn FnMut(&[&[u8]]),
    ) -> Result<bool, MemoryError> {
        let bytes = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let part = |d: &Descriptor| {
            let range = HostMemory::range(d.at, d.bytes as usize, bytes.len())?;
            Ok(&bytes[range])
        };
        let parts: Result<Vec<&[u8]>, MemoryError> = ranges.iter().map(part).collect();
        see(&parts?);
        Ok(true)
    }
}

/// A range of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// First byte.
    pub at: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Where in a memory the segments of a pool's blocks lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    base: u64,
    block_stride: u64,
    layer_stride: u64,
    segment_bytes: u64,
}

impl Region {
    /// Blocks one after the other, each with all its layers and `header_bytes` in front of them, as
    /// block images lie; starts at `base`.
    pub fn block_major(base: u64, header_bytes: u64, layers: u32, segment_bytes: u64) -> Region {
        Region {
            base: base + header_bytes,
            block_stride: header_bytes + u64::from(layers) * segment_bytes,
            layer_stride: segment_bytes,
            segment_bytes,
        }
    }

    /// Layers one after the other, each with all `blocks` blocks, as vLLM's tensors lie.
    pub fn layer_major(base: u64, blocks: u32, segment_bytes: u64) -> Region {
        Region {
            base,
            block_stride: segment_bytes,
            layer_stride: u64::from(blocks) * segment_bytes,
            segment_bytes,
        }
    }

    /// The direction in which it is contiguous.
    pub fn order(&self) -> Order {
        if self.layer_stride == self.segment_bytes {
            Order::BlockMajor
        } else {
            Order::LayerMajor
        }
    }

    /// Bytes of one layer of one block.
    pub fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// First byte of a segment.
    pub fn offset(&self, block: BlockId, layer: u32) -> u64 {
        self.base + u64::from(block.0) * self.block_stride + u64::from(layer) * self.layer_stride
    }

    /// The ranges that are the cells of `span`, one after the other, where `table` names the
    /// transfer's blocks and `pieces` the parts of a segment that are in a cell. Ranges that touch
    /// are one.
    ///
    /// # Panics
    /// When the span reaches beyond the table.
    pub fn descriptors(
        &self,
        table: &[BlockId],
        span: Span,
        pieces: &[Range<usize>],
    ) -> Vec<Descriptor> {
        let mut all: Vec<Descriptor> = Vec::new();
        for (block, layer) in span.iter() {
            let start = self.offset(table[block as usize], layer);
            for piece in pieces {
                let (at, bytes) = (start + piece.start as u64, piece.len() as u64);
                match all.last_mut() {
                    Some(last) if last.at + last.bytes == at => last.bytes += bytes,
                    _ => all.push(Descriptor { at, bytes }),
                }
            }
        }
        all
    }
}

/// Reads the ranges one after the other to the end of `out`.
///
/// # Errors
/// As [`Memory::read`].
pub fn gather(
    memory: &dyn Memory,
    from: &[Descriptor],
    out: &mut Vec<u8>,
) -> Result<(), MemoryError> {
    for range in from {
        let start = out.len();
        let end = range.at.saturating_add(range.bytes);
        if end > memory.bytes() {
            let (at, bytes) = (range.at, memory.bytes());
            return Err(MemoryError::Range { at, end, bytes });
        }
        out.resize(start + range.bytes as usize, 0);
        memory.read(range.at, &mut out[start..])?;
    }
    Ok(())
}

/// Writes `from` to the ranges one after the other.
///
/// # Errors
/// As [`Memory::write`]; [`MemoryError::Range`] when the ranges are not as long as `from`.
pub fn scatter(memory: &dyn Memory, to: &[Descriptor], from: &[u8]) -> Result<(), MemoryError> {
    let bytes: u64 = to.iter().map(|d| d.bytes).sum();
    if bytes != from.len() as u64 {
        let end = from.len() as u64;
        return Err(MemoryError::Range { at: 0, end, bytes });
    }
    let mut rest = from;
    for range in to {
        let (now, later) = rest.split_at(range.bytes as usize);
        memory.write(range.at, now)?;
        rest = later;
    }
    Ok(())
}
