//! `--open`: shows the page in the browser of whoever sits here.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The platform's program that opens a file.
const OPENER: &str = if cfg!(target_os = "macos") {
    "open"
} else {
    "xdg-open"
};

/// Refuses where nobody sits.
///
/// # Errors
/// The variable `CI` is set.
pub(super) fn check() -> Result<()> {
    if std::env::var_os("CI").is_some_and(|value| !value.is_empty()) {
        bail!("--open: CI is set, so nobody would see the page; leave --open out");
    }
    Ok(())
}

/// Opens the page and does not wait for it to be closed.
///
/// # Errors
/// There is no such program.
pub(super) fn open(page: &Path) -> Result<()> {
    let page = std::path::absolute(page)?;
    Command::new(OPENER)
        .arg(&page)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| {
            let page = page.display();
            format!("--open: cannot start {OPENER}; open {page} yourself")
        })?;
    Ok(())
}
