//! What a writer left in its tables: rows, bytes and a digest of each, in `tables.json`.
//!
//! A row that is taken out of a finished table leaves the others consistent; only whoever wrote
//! the table can say that there were more.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// File of the receipts in a run directory.
pub const TABLES_FILE: &str = "tables.json";

/// What a table held when its run ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableReceipt {
    /// Rows, the header not among them.
    pub rows: u64,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// sha256 of the file, in lower-case hexadecimal.
    pub sha256: String,
}

/// The receipts of a run directory, by file name.
pub type Receipts = BTreeMap<String, TableReceipt>;

/// Size and digest of bytes that come piece by piece.
#[derive(Clone, Debug, Default)]
pub(crate) struct Digesting {
    bytes: u64,
    sha256: Sha256,
}

impl Digesting {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.sha256.update(bytes);
    }

    /// The receipt of a table with so many rows.
    pub(crate) fn receipt(&self, rows: u64) -> TableReceipt {
        let digest = self.sha256.clone().finalize();
        TableReceipt {
            rows,
            bytes: self.bytes,
            sha256: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
        }
    }
}

/// A reader that digests what it passes on.
#[derive(Debug)]
pub(crate) struct Digested<R> {
    inner: R,
    digesting: Digesting,
}

impl<R: Read> Digested<R> {
    pub(crate) fn new(inner: R) -> Self {
        Digested {
            inner,
            digesting: Digesting::default(),
        }
    }

    pub(crate) fn digesting(&self) -> &Digesting {
        &self.digesting
    }
}

impl<R: Read> Read for Digested<R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(out)?;
        self.digesting.update(&out[..read]);
        Ok(read)
    }
}

/// The receipts in `dir`; `None` when there are none.
///
/// # Errors
/// What is wrong with the file, in words.
pub(crate) fn receipts(dir: &Path) -> Result<Option<Receipts>, String> {
    let bytes = match std::fs::read(dir.join(TABLES_FILE)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{TABLES_FILE}: {error}")),
    };
    let parsed = serde_json::from_slice(&bytes);
    parsed
        .map(Some)
        .map_err(|error| format!("{TABLES_FILE}: {error}"))
}

/// How a table differs from its receipt.
pub(crate) fn difference(
    name: &str,
    found: &TableReceipt,
    receipt: &TableReceipt,
) -> Option<String> {
    if found == receipt {
        return None;
    }
    let size = |table: &TableReceipt| format!("{} rows, {} bytes", table.rows, table.bytes);
    let (now, then) = (size(found), size(receipt));
    Some(match now == then {
        true => format!("{name}: a value was changed; its sha256 is not that in {TABLES_FILE}"),
        false => format!("{name}: {now}; {TABLES_FILE} says {then}"),
    })
}
