//! Writing results to standard output.

use std::io::{ErrorKind, Write};

use anyhow::{Context, Result};

/// Writes `text` and a line feed. A reader that went away is no failure, and does not change the
/// exit code that the result asks for.
///
/// # Errors
/// Any other failure to write: a result that cannot be handed over must not look like success.
pub(crate) fn line(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}
