//! A position in the header that cannot leave the file.

use crate::error::ModelError;

/// Why a header prefix did not parse.
pub(super) enum Stop {
    /// The prefix is too short: the header goes on at least to this byte of the file.
    NeedBytes(u64),
    /// The file is wrong.
    Bad(ModelError),
}

/// Reads little-endian fields from the first bytes of a file.
pub(super) struct Cursor<'a> {
    /// A prefix of the file.
    bytes: &'a [u8],
    /// Length of the whole file.
    file_len: u64,
    /// Next byte to read; never above `bytes.len()`.
    pos: usize,
}

impl<'a> Cursor<'a> {
    /// Starts at byte 0 of a file of `file_len` bytes whose first bytes are `bytes`.
    pub(super) fn new(bytes: &'a [u8], file_len: u64) -> Cursor<'a> {
        Cursor {
            bytes,
            file_len,
            pos: 0,
        }
    }

    /// Byte offset of the next field.
    pub(super) fn offset(&self) -> u64 {
        self.pos as u64
    }

    /// An error about a field that starts at `offset`.
    pub(super) fn bad(&self, field: &str, offset: u64, problem: impl Into<String>) -> Stop {
        Stop::Bad(ModelError::Gguf {
            field: field.into(),
            offset,
            problem: problem.into(),
        })
    }

    /// The next `len` bytes, which belong to `field`.
    pub(super) fn take(&mut self, len: u64, field: &str) -> Result<&'a [u8], Stop> {
        let start = self.offset();
        let end = start.checked_add(len).filter(|end| *end <= self.file_len);
        let Some(end) = end else {
            let left = self.file_len - start;
            let problem = format!("needs {len} bytes, the file has {left} more");
            return Err(self.bad(field, start, problem));
        };
        let in_prefix = usize::try_from(end)
            .ok()
            .and_then(|end| self.bytes.get(self.pos..end));
        let Some(taken) = in_prefix else {
            return Err(Stop::NeedBytes(end));
        };
        self.pos += taken.len();
        Ok(taken)
    }

    /// The next `N` bytes as an array.
    pub(super) fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N], Stop> {
        let taken = self.take(N as u64, field)?;
        let mut out = [0; N];
        out.copy_from_slice(taken);
        Ok(out)
    }

    /// A 32-bit count.
    pub(super) fn u32(&mut self, field: &str) -> Result<u32, Stop> {
        self.array(field).map(u32::from_le_bytes)
    }

    /// A 64-bit count.
    pub(super) fn u64(&mut self, field: &str) -> Result<u64, Stop> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// A length-prefixed UTF-8 string.
    pub(super) fn string(&mut self, field: &str) -> Result<&'a str, Stop> {
        let len = self.u64(field)?;
        let start = self.offset();
        let bytes = self.take(len, field)?;
        std::str::from_utf8(bytes)
            .map_err(|e| self.bad(field, start, format!("{len} bytes are not UTF-8: {e}")))
    }
}
