//! What exactly was measured: the model's name and the digest of its weights.
//!
//! A result without the digest cannot be compared with another one: "SmolLM2" names a dozen
//! files. The digest is of the bytes on disk, so `sha256sum` reproduces it.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{ModelError, Result};

/// The file format that a model came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelKind {
    /// One GGUF file.
    Gguf,
    /// A Hugging Face folder.
    HfDir,
    /// Generated in memory from a seed.
    Synthetic,
}

/// Which model this is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelIdentity {
    /// The model's own name, or that of its file or folder.
    pub name: String,
    /// Where it was loaded from.
    pub path: PathBuf,
    /// The file format.
    pub kind: ModelKind,
    /// Lower-case hex sha256 of the weight file; for shards, of the lines
    /// `digest␣␣filename\n` in name order, which is what `sha256sum *.safetensors | sha256sum`
    /// computes inside the folder.
    pub sha256: String,
    /// Length of the weight files, bytes.
    pub weight_bytes: u64,
}

/// Digest and total length of one or more weight files.
///
/// # Errors
/// [`ModelError::Io`].
pub fn digest_files(files: &[PathBuf]) -> Result<(String, u64)> {
    let mut lines = String::new();
    let mut total = 0;
    for path in files {
        let (digest, len) = digest_file(path)?;
        total += len;
        if files.len() == 1 {
            return Ok((digest, total));
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        lines.push_str(&format!("{digest}  {name}\n"));
    }
    Ok((digest_bytes(lines.as_bytes()), total))
}

/// Digest and length of one file.
fn digest_file(path: &Path) -> Result<(String, u64)> {
    let io = |e| ModelError::io(path, e);
    let mut file = File::open(path).map_err(io)?;
    let (mut hasher, mut total) = (Sha256::new(), 0);
    let mut buffer = vec![0; 1 << 18];
    loop {
        let got = file.read(&mut buffer).map_err(io)?;
        if got == 0 {
            return Ok((hex(&hasher.finalize()), total));
        }
        hasher.update(&buffer[..got]);
        total += got as u64;
    }
}

/// Digest of bytes in memory.
pub(crate) fn digest_bytes(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Lower-case hexadecimal.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_match_sha256sum() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&a, "abc").unwrap();
        std::fs::write(&b, "").unwrap();
        // FIPS 180-4's example for "abc".
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(
            digest_files(std::slice::from_ref(&a)).unwrap(),
            (abc.into(), 3)
        );
        // printf abc > a; : > b; sha256sum a b | sha256sum
        let both = "09c7e0b8a02d027d95ec0375a600ed4ad4d6b26a1c93f16d9150cab5fec761a6";
        assert_eq!(digest_files(&[a, b]).unwrap(), (both.into(), 3));
    }
}
