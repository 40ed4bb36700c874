//! Writing results to standard output.

use std::io::{ErrorKind, Write};

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::json;

use crate::console;

/// Writes `text` and a line feed; what would act on a terminal is escaped. A reader that went away
/// is no failure, and does not change the exit code that the result asks for.
///
/// # Errors
/// Any other failure to write: a result that cannot be handed over must not look like success.
pub(crate) fn line(text: &str) -> Result<()> {
    painted(&console::safe(text))
}

/// As [`line`] for people: lines that are too wide are cut between words.
///
/// # Errors
/// As [`line`].
pub(crate) fn table(text: &str) -> Result<()> {
    line(&console::fitted(text))
}

/// Writes one JSON document.
///
/// # Errors
/// As [`line`]; a value that JSON cannot hold.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    line(&serde_json::to_string_pretty(value)?)
}

/// As [`line`] for a text with colours, in which the caller has escaped everything else.
///
/// # Errors
/// As [`line`].
pub(crate) fn painted(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// Writes the document of a program that ends without a result, for a reader who asked for JSON.
pub(crate) fn error(message: &str, exit_code: u8) {
    let document = json!({ "error": { "message": message, "exit_code": exit_code } });
    // The message is on standard error too; that it is nowhere else changes nothing.
    let _ = json(&document);
}
