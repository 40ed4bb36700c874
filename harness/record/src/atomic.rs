//! Whole files appear at once or not at all.
//!
//! A manifest that was half written when the process died would make a run unreadable, so every
//! file that is replaced as a whole is written beside its place and renamed into it.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use serde::Serialize;

use crate::error::RecordError;

/// Writes `bytes` to `path` so that a reader sees the old file or the new one, whenever the
/// writer is killed. The temporary file stands in the same directory.
///
/// # Errors
/// Whatever the file system says.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), RecordError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".tmp");
    let temporary = path.with_file_name(name);
    let mut file = File::create(&temporary).map_err(RecordError::io("create", &temporary))?;
    file.write_all(bytes)
        .map_err(RecordError::io("write", &temporary))?;
    file.sync_all()
        .map_err(RecordError::io("sync", &temporary))?;
    std::fs::rename(&temporary, path).map_err(RecordError::io("rename into", path))
}

/// Writes a value as indented JSON with a final newline, atomically.
///
/// # Errors
/// As [`write_atomic`]; a value that JSON cannot hold (a map with keys that are not strings).
pub fn write_json_atomic<T: Serialize + ?Sized>(path: &Path, value: &T) -> Result<(), RecordError> {
    let mut bytes =
        serde_json::to_vec_pretty(value).map_err(|error| RecordError::json(path, error))?;
    bytes.push(b'\n');
    write_atomic(path, &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_no_temporary_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        write_json_atomic(&path, &[1, 2]).unwrap();
        write_json_atomic(&path, &[3]).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "[\n  3\n]\n");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_directory_is_an_error_that_names_the_file() {
        let error = write_atomic(Path::new("/nonexistent-dir/x"), b"").unwrap_err();
        assert!(
            error.to_string().contains("/nonexistent-dir/x.tmp"),
            "{error}"
        );
    }
}
