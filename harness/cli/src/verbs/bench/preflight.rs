//! What stands against a run and can be known before anything is sent: places that cannot be
//! written to, and more connections than this machine has. Found out after the calibration or
//! after the measurement, it would cost the run.

use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use pb_load::{Endpoint, ensure_descriptors, ensure_ports};
use pb_record::RecordError;
use pb_workloads::ArrivalKind;

use super::settings::Settings;

/// Where run directories go by themselves.
const RESULTS: &str = "results";

/// What only a directory that holds a run has.
const RUN_FILES: [&str; 2] = ["manifest.json", "requests.csv"];

/// Checks the places that are going to be written to and the slots of a closed loop, before the
/// server is asked anything.
///
/// # Errors
/// The first that does not do; the message names the flag, the value and what to change.
pub(crate) fn check(settings: &Settings) -> Result<()> {
    let options = &settings.options;
    match &options.out {
        Some(out) => {
            writable("--out", out)?;
            if RUN_FILES.iter().any(|name| out.join(name).exists()) {
                return Err(RecordError::Exists(out.clone()).into());
            }
        }
        None => writable("--out", Path::new(RESULTS))?,
    }
    if options.save_result == Some(true) || options.save_detailed == Some(true) {
        result_place(settings)?;
    }
    if let Some(url) = &options.metrics_url {
        Endpoint::parse(url).with_context(|| format!("--metrics-url {url}"))?;
    }
    let closed = settings.shape.resolve(true).ok() == Some(ArrivalKind::Closed);
    if let Some(slots) = settings.shape.max_concurrency.filter(|_| closed) {
        ensure_descriptors(slots).with_context(|| format!("--max-concurrency {slots}"))?;
    }
    Ok(())
}

/// Makes sure of `connections` to the target.
///
/// # Errors
/// Too few file descriptors or local ports.
pub(crate) fn connections(endpoint: &Endpoint, connections: usize) -> Result<()> {
    const WHAT: &str = "the schedule needs a connection for each request that is due at once";
    ensure_descriptors(connections).context(WHAT)?;
    // A name that does not resolve is told by who connects.
    if let Ok(addresses) = endpoint.authority().to_socket_addrs() {
        ensure_ports(connections, addresses.count()).context(WHAT)?;
    }
    Ok(())
}

fn result_place(settings: &Settings) -> Result<()> {
    let folder = settings.options.result_dir.clone().unwrap_or_default();
    writable("--result-dir", &folder)?;
    let Some(name) = &settings.options.result_filename else {
        return Ok(());
    };
    let path = folder.join(name);
    if path.is_dir() || path.file_name().is_none() {
        bail!("--result-filename {name}: is a directory; give the name of a file");
    }
    match path.parent() {
        Some(parent) => writable("--result-filename", parent),
        None => Ok(()),
    }
}

/// Whether files can be made in `dir`, which need not exist yet: tried in the part of it that does.
fn writable(flag: &str, dir: &Path) -> Result<()> {
    let here = |path: &Path| match path.as_os_str().is_empty() {
        true => PathBuf::from("."),
        false => path.to_owned(),
    };
    let shown = here(dir);
    let shown = shown.display();
    let existing = dir.ancestors().map(here).find(|path| path.exists());
    let existing = existing.unwrap_or_else(|| PathBuf::from("."));
    if !existing.is_dir() {
        bail!(
            "{flag} {shown}: {} is a file; name a directory, or one that can be made",
            existing.display()
        );
    }
    let probe = existing.join(format!(".prefillbench-{}", std::process::id()));
    let made = std::fs::File::create(&probe);
    made.with_context(|| {
        format!(
            "{flag} {shown}: cannot write into {}; name another place",
            existing.display()
        )
    })?;
    // What cannot be taken away is empty and has a name that says whose it is.
    let _ = std::fs::remove_file(&probe);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(dir: &Path, text: &str) -> Result<()> {
        let text = text.replace("DIR", dir.to_str().unwrap());
        let text = format!("base_url = \"http://127.0.0.1:9\"\n{text}");
        check(&Settings::new(toml::from_str(&text).unwrap(), false).unwrap())
    }

    #[test]
    fn places_that_cannot_be_written_to_are_found_before_the_run() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        std::fs::create_dir(dir.path().join("folder")).unwrap();
        std::fs::create_dir(dir.path().join("run")).unwrap();
        std::fs::write(dir.path().join("run/manifest.json"), "{}").unwrap();
        for (text, part) in [
            ("out = \"DIR/file\"", "--out"),
            ("out = \"DIR/file/run\"", "file is a file"),
            ("out = \"DIR/run\"", "run"),
            (
                "out = \"DIR/o\"\nsave_result = true\nresult_dir = \"DIR/file/x\"",
                "--result-dir",
            ),
            (
                "out = \"DIR/o\"\nsave_result = true\nresult_dir = \"DIR\"\n\
                 result_filename = \"folder\"",
                "--result-filename folder",
            ),
            ("out = \"/proc/no/run\"", "cannot write into /proc"),
        ] {
            let error = format!("{:#}", checked(dir.path(), text).unwrap_err());
            assert!(error.contains(part), "{text}: {error}");
        }
        checked(dir.path(), "out = \"DIR/a/b/c\"").unwrap();
        let kept = "out = \"DIR/o\"\nsave_result = true\nresult_dir = \"DIR/new/files\"\n\
                    result_filename = \"deep/r.json\"";
        checked(dir.path(), kept).unwrap();
        // Nothing is left behind.
        let names = std::fs::read_dir(dir.path()).unwrap();
        assert_eq!(names.count(), 3);
    }
}
