//! Payloads that are used again.
//!
//! A payload of a megabyte that is allocated for each frame is mapped, cleared and faulted in page
//! by page, each time.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

/// Buffers that are kept; more are in use only when the owner of a transport hoards cells.
const KEPT: usize = 32;
/// Longest buffer that is kept, bytes.
const KEPT_BYTES: usize = 2 << 20;

/// Buffers of one transport.
#[derive(Clone, Default)]
pub(super) struct Buffers(Arc<Mutex<Vec<Vec<u8>>>>);

impl Buffers {
    /// A buffer of `len` bytes, whose content is undefined.
    pub(super) fn take(&self, len: usize) -> CellBytes {
        // A list of buffers is whole whatever happened to its holder.
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut bytes = kept.unwrap_or_default();
        if bytes.len() < len {
            bytes.resize(len, 0);
        }
        CellBytes {
            bytes,
            len,
            home: Some(self.clone()),
        }
    }
}

/// The bytes of a frame's cells. Dropping it gives the buffer back to its transport.
pub struct CellBytes {
    bytes: Vec<u8>,
    len: usize,
    home: Option<Buffers>,
}

impl CellBytes {
    pub(super) fn empty() -> CellBytes {
        Vec::new().into()
    }
}

impl From<Vec<u8>> for CellBytes {
    fn from(bytes: Vec<u8>) -> CellBytes {
        CellBytes {
            len: bytes.len(),
            bytes,
            home: None,
        }
    }
}

impl Deref for CellBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl DerefMut for CellBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

impl std::fmt::Debug for CellBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes of cells", self.len)
    }
}

impl Drop for CellBytes {
    fn drop(&mut self) {
        let Some(home) = self.home.take() else {
            return;
        };
        let mut kept = home.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT && (1..=KEPT_BYTES).contains(&self.bytes.len()) {
            kept.push(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_as_long_as_asked_for_and_comes_back() {
        let buffers = Buffers::default();
        let mut long = buffers.take(100);
        long.fill(7);
        let at = long.as_ptr();
        drop(long);
        let short = buffers.take(10);
        assert_eq!((short.len(), short.as_ptr()), (10, at));
        let other = buffers.take(10);
        assert_ne!(other.as_ptr(), at);
        drop(short);
        assert_eq!(buffers.take(200).len(), 200);
        assert_eq!(buffers.take(0).len(), 0);
    }
}
