//! The index of a golden folder: `index.toml` with one table a set.
//!
//! A set is a folder. Its table says which command made the files, where the tolerance of the
//! tests that read them comes from, why they were blessed last, and the sha256 of each. Notes
//! (`.md`) and programs (`.py`) are not expected values and are not listed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Name of the index.
const INDEX: &str = "index.toml";

/// What is no expected value.
const NOT_LISTED: [&str; 2] = ["md", "py"];

/// The index.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Index {
    #[serde(default)]
    set: BTreeMap<String, Set>,
}

/// The files of one folder.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Set {
    /// Command or program that made them.
    generator: String,
    /// Where the tolerance of their tests comes from.
    tolerance: String,
    /// Why they were blessed last.
    reason: String,
    /// sha256 by path inside the set, in lower-case hexadecimal.
    files: BTreeMap<String, String>,
}

/// What is not as the index says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Finding {
    /// Another content.
    Changed {
        file: String,
        listed_sha256: String,
        found_sha256: String,
    },
    /// Listed and not there.
    Missing { file: String, listed_sha256: String },
    /// There and not listed.
    Unlisted { file: String, found_sha256: String },
}

impl Finding {
    /// In words.
    pub(super) fn text(&self) -> String {
        match self {
            Finding::Changed {
                file,
                listed_sha256,
                found_sha256,
            } => format!("changed   {file}\n  listed  {listed_sha256}\n  found   {found_sha256}"),
            Finding::Missing {
                file,
                listed_sha256,
            } => format!("missing   {file}\n  listed  {listed_sha256}"),
            Finding::Unlisted { file, found_sha256 } => {
                format!("unlisted  {file}\n  found   {found_sha256}")
            }
        }
    }
}

/// What to write into the index.
pub(super) struct Bless<'a> {
    pub(super) set: &'a str,
    pub(super) reason: &'a str,
    pub(super) generator: Option<&'a str>,
    pub(super) tolerance: Option<&'a str>,
}

fn load(dir: &Path) -> Result<Option<Index>> {
    let path = dir.join(INDEX);
    if !path.exists() {
        ensure!(dir.is_dir(), "{}: no such folder", dir.display());
        return Ok(None);
    }
    let text = std::fs::read_to_string(&path);
    let text = text.with_context(|| path.display().to_string())?;
    let index = toml::from_str(&text).with_context(|| path.display().to_string())?;
    Ok(Some(index))
}

/// Compares every file with the index. The number of listed files and what differs.
///
/// # Errors
/// There is no index, or a file cannot be read.
pub(super) fn verify(dir: &Path) -> Result<(usize, Vec<Finding>)> {
    let index = load(dir)?.with_context(|| {
        format!(
            "{}: there is no {INDEX}; `prefillbench golden bless SET` begins one",
            dir.display()
        )
    })?;
    let mut listed = BTreeMap::new();
    for (set, table) in &index.set {
        for (file, sha256) in &table.files {
            listed.insert(format!("{set}/{file}"), sha256.clone());
        }
    }
    let mut found = BTreeMap::new();
    collect(dir, "", &mut found)?;
    let mut findings = Vec::new();
    for (file, listed_sha256) in &listed {
        let (file, listed_sha256) = (file.clone(), listed_sha256.clone());
        match found.remove(&file) {
            None => findings.push(Finding::Missing {
                file,
                listed_sha256,
            }),
            Some(found_sha256) if found_sha256 != listed_sha256 => {
                findings.push(Finding::Changed {
                    file,
                    listed_sha256,
                    found_sha256,
                });
            }
            Some(_) => {}
        }
    }
    let unlisted = found.into_iter();
    findings.extend(unlisted.map(|(file, found_sha256)| Finding::Unlisted { file, found_sha256 }));
    Ok((listed.len(), findings))
}

/// Writes the files of a set into the index as they are. How many are new, changed or gone.
///
/// # Errors
/// No such set, a new one without its generator and tolerance, or a file that cannot be read or
/// written.
pub(super) fn bless(dir: &Path, bless: &Bless<'_>) -> Result<usize> {
    let set = bless.set;
    let plain = !set.is_empty() && !set.contains(['/', '\\']) && !set.starts_with('.');
    ensure!(
        plain,
        "set {set:?}: write the name of a folder inside {}",
        dir.display()
    );
    let folder = dir.join(set);
    ensure!(folder.is_dir(), "{}: no such folder", folder.display());
    let mut index = load(dir)?.unwrap_or_default();
    let mut files = BTreeMap::new();
    collect(&folder, "", &mut files)?;
    ensure!(!files.is_empty(), "{}: no file to list", folder.display());
    let old = index.set.remove(set);
    let keep = |given: Option<&str>, old: Option<&String>, flag: &str| -> Result<String> {
        match given.map(str::to_owned).or(old.cloned()) {
            Some(text) => Ok(text),
            None => bail!("set {set}: it is new: say {flag}"),
        }
    };
    let generator = keep(
        bless.generator,
        old.as_ref().map(|o| &o.generator),
        "--generator",
    )?;
    let tolerance = keep(
        bless.tolerance,
        old.as_ref().map(|o| &o.tolerance),
        "--tolerance",
    )?;
    let before = old.map(|old| old.files).unwrap_or_default();
    let changed = files
        .iter()
        .filter(|(file, sha)| before.get(*file) != Some(sha));
    let gone = before.keys().filter(|file| !files.contains_key(*file));
    let count = changed.count() + gone.count();
    index.set.insert(
        set.to_owned(),
        Set {
            generator,
            tolerance,
            reason: bless.reason.to_owned(),
            files,
        },
    );
    let path = dir.join(INDEX);
    let text = toml::to_string_pretty(&index).context("the index")?;
    // Beside and renamed: a reader never sees half of it.
    let part = dir.join(format!("{INDEX}.part"));
    std::fs::write(&part, text).with_context(|| part.display().to_string())?;
    std::fs::rename(&part, &path).with_context(|| path.display().to_string())?;
    Ok(count)
}

/// sha256 of every expected value under `dir`, by path with `/`.
fn collect(dir: &Path, prefix: &str, into: &mut BTreeMap<String, String>) -> Result<()> {
    let place = || dir.display().to_string();
    let mut entries: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(place)? {
        entries.push(entry.with_context(place)?.path());
    }
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let named = format!("{prefix}{name}");
        let extension = path.extension().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            // What Python leaves beside a generator.
            if name != "__pycache__" {
                collect(&path, &format!("{named}/"), into)?;
            }
        } else if named != INDEX && !NOT_LISTED.contains(&&*extension) {
            let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
            let digest = Sha256::digest(&bytes);
            let hex = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            into.insert(named, hex);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// sha256 of `abc`, as FIPS 180-2 gives it.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn first(reason: &str) -> Bless<'_> {
        Bless {
            set: "logits",
            reason,
            generator: Some("python make.py"),
            tolerance: Some("rounding of f32"),
        }
    }

    #[test]
    fn a_changed_byte_is_named_with_both_hashes() {
        let dir = tempfile::tempdir().unwrap();
        let set = dir.path().join("logits");
        std::fs::create_dir_all(set.join("deep")).unwrap();
        std::fs::write(set.join("a.json"), "abc").unwrap();
        std::fs::write(set.join("deep/b.bin"), [0, 1]).unwrap();
        std::fs::write(set.join("make.py"), "not listed").unwrap();
        assert!(verify(dir.path()).is_err(), "there is no index yet");
        assert_eq!(bless(dir.path(), &first("new")).unwrap(), 2);
        assert_eq!(verify(dir.path()).unwrap(), (2, vec![]));
        std::fs::write(set.join("a.json"), "abd").unwrap();
        let (_, findings) = verify(dir.path()).unwrap();
        let [
            Finding::Changed {
                file,
                listed_sha256,
                found_sha256,
            },
        ] = &findings[..]
        else {
            panic!("{findings:?}");
        };
        assert_eq!((&file[..], &listed_sha256[..]), ("logits/a.json", ABC));
        assert!(found_sha256.len() == 64 && found_sha256 != ABC);
        // Blessed anew, with what was said of the set before.
        let again = Bless {
            generator: None,
            tolerance: None,
            ..first("the letter was wrong")
        };
        assert_eq!(bless(dir.path(), &again).unwrap(), 1);
        assert_eq!(verify(dir.path()).unwrap().1, vec![]);
        let text = std::fs::read_to_string(dir.path().join(INDEX)).unwrap();
        assert!(text.contains("the letter was wrong") && text.contains("python make.py"));
    }

    #[test]
    fn missing_and_unlisted_files_are_findings_and_bad_sets_errors() {
        let dir = tempfile::tempdir().unwrap();
        let set = dir.path().join("logits");
        std::fs::create_dir_all(&set).unwrap();
        assert!(bless(dir.path(), &first("empty")).is_err());
        std::fs::write(set.join("a.json"), "abc").unwrap();
        let bare = Bless {
            tolerance: None,
            ..first("new")
        };
        let error = bless(dir.path(), &bare).unwrap_err().to_string();
        assert!(error.contains("--tolerance"), "{error}");
        bless(dir.path(), &first("new")).unwrap();
        std::fs::rename(set.join("a.json"), set.join("c.json")).unwrap();
        let (_, findings) = verify(dir.path()).unwrap();
        let text: Vec<String> = findings.iter().map(Finding::text).collect();
        assert!(text[0].starts_with("missing   logits/a.json"), "{text:?}");
        assert!(text[1].starts_with("unlisted  logits/c.json"), "{text:?}");
        for wrong in ["", "..", "a/b", "no-such"] {
            let wrong = Bless {
                set: wrong,
                ..first("x")
            };
            assert!(bless(dir.path(), &wrong).is_err());
        }
    }
}
