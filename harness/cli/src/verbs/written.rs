//! Reports that a verb writes beside its result, at a place that the user names.

use std::fs::{File, FileType};
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use pb_record::write_atomic;

/// A report before it is written.
#[derive(Clone, Copy)]
pub(crate) struct Report<'a> {
    /// Flag that names its place.
    pub(crate) flag: &'a str,
    /// Its place.
    pub(crate) path: &'a Path,
    /// How every such report begins, so that an earlier one is known.
    pub(crate) begins: &'a str,
}

/// Looks at the places before anything is judged: what stands there and is no earlier report of
/// the same kind stays as it is, and so do all `inputs`.
///
/// # Errors
/// A place that must not be written.
pub(crate) fn check(reports: &[Report<'_>], inputs: &[&Path]) -> Result<()> {
    let inputs: Vec<PathBuf> = inputs
        .iter()
        .filter_map(|path| path.canonicalize().ok())
        .collect();
    for (number, report) in reports.iter().enumerate() {
        let Report { flag, path, .. } = *report;
        let place = || format!("{flag} {}", path.display());
        if let Some(other) = reports[..number].iter().find(|other| other.path == path) {
            bail!("{}: {} names the same file", place(), other.flag);
        }
        let inside = |input: &PathBuf| match path.parent().and_then(|dir| dir.canonicalize().ok()) {
            Some(dir) => dir.starts_with(input),
            None => false,
        };
        if path.canonicalize().is_ok_and(|path| inputs.contains(&path)) {
            bail!("{}: is read; write to another file", place());
        }
        if inputs.iter().filter(|input| input.is_dir()).any(inside) {
            bail!(
                "{}: lies within a run that is read; write it elsewhere",
                place()
            );
        }
        overwritable(report).with_context(place)?;
    }
    Ok(())
}

/// Nothing, or a report of the same kind.
fn overwritable(report: &Report<'_>) -> Result<()> {
    let Ok(found) = report.path.symlink_metadata() else {
        return Ok(());
    };
    if !found.is_file() {
        bail!("there is {} already; name a file", kind(found.file_type()));
    }
    let mut start = vec![0; report.begins.len()];
    let read = File::open(report.path).and_then(|mut file| file.read_exact(&mut start));
    if found.len() > 0 && (read.is_err() || start != report.begins.as_bytes()) {
        bail!("exists and is no earlier report of this kind; name another file or remove it");
    }
    Ok(())
}

fn kind(found: FileType) -> &'static str {
    if found.is_symlink() {
        "a symbolic link"
    } else if found.is_dir() {
        "a directory"
    } else if found.is_fifo() {
        "a pipe"
    } else if found.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

/// Writes a report.
///
/// # Errors
/// Whatever the file system says.
pub(crate) fn write(report: &Report<'_>, text: &str) -> Result<()> {
    debug_assert!(text.starts_with(report.begins), "{}", report.flag);
    write_atomic(report.path, text.as_bytes()).context(report.flag.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(path: &Path, inputs: &[&Path]) -> Result<(), String> {
        let report = Report {
            flag: "--summary",
            path,
            begins: "# Gate",
        };
        check(&[report], inputs).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn only_an_earlier_report_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        assert_eq!(checked(&path("new.md"), &[]), Ok(()));
        for (name, text, replaced) in [
            ("earlier.md", "# Gate nightly\n", true),
            ("empty.md", "", true),
            ("short.md", "# G", false),
            ("policy.toml", "schema = 1\n", false),
        ] {
            std::fs::write(path(name), text).unwrap();
            let found = checked(&path(name), &[]);
            assert_eq!(found.is_ok(), replaced, "{name}: {found:?}");
            assert_eq!(std::fs::read_to_string(path(name)).unwrap(), text);
        }
        std::os::unix::fs::symlink(path("earlier.md"), path("link.md")).unwrap();
        let link = checked(&path("link.md"), &[]).unwrap_err();
        assert!(link.contains("a symbolic link"), "{link}");
        let device = checked(Path::new("/dev/null"), &[]).unwrap_err();
        assert!(device.contains("a device"), "{device}");
        let dir_itself = checked(dir.path(), &[]).unwrap_err();
        assert!(dir_itself.contains("a directory"), "{dir_itself}");
    }

    #[test]
    fn runs_that_are_read_stay_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        std::fs::create_dir(&run).unwrap();
        let inside = checked(&run.join("report.md"), &[&run]).unwrap_err();
        assert!(inside.contains("within a run"), "{inside}");
        assert_eq!(checked(&dir.path().join("report.md"), &[&run]), Ok(()));
        let policy = dir.path().join("gate.toml");
        std::fs::write(&policy, "# Gate\nschema = 1\n").unwrap();
        assert!(
            checked(&policy, &[&policy])
                .unwrap_err()
                .contains("is read")
        );
        let path = dir.path().join("both");
        let one = |flag| Report {
            flag,
            path: &path,
            begins: "",
        };
        let twice = check(&[one("--junit"), one("--summary")], &[]).unwrap_err();
        assert!(format!("{twice:#}").contains("--junit names the same file"));
    }
}
