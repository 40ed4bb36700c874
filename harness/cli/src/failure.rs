//! How a program that cannot go on says so: to people on standard error, and as a document to
//! whoever asked for JSON, who would otherwise have to tell an empty output from a lost one.

use std::ffi::OsString;
use std::process::ExitCode;

use crate::{console, output};

/// Exit code for bad usage, unreadable input and unreachable targets.
pub(crate) const EXIT_USAGE: u8 = 2;

/// Tells an error; with `as_json` on standard output too.
pub(crate) fn told(error: &anyhow::Error, as_json: bool) -> ExitCode {
    let message = chain(error);
    console::say(format!("error: {message}"));
    if as_json {
        output::error(&message, EXIT_USAGE);
    }
    ExitCode::from(EXIT_USAGE)
}

/// Ends a command line that cannot be read, or that asks for help.
pub(crate) fn usage(error: &clap::Error, as_json: bool) -> ExitCode {
    match error.use_stderr() {
        true => console::usage(&error.render()),
        // Help was asked for. Standard output may be closed.
        false => drop(error.print()),
    }
    let code = u8::try_from(error.exit_code()).unwrap_or(EXIT_USAGE);
    if as_json && error.use_stderr() {
        let text = error.to_string();
        // What follows the first blank line is advice about --help.
        let message = text.split("\n\n").next().unwrap_or_default();
        let message = message.strip_prefix("error: ").unwrap_or(message);
        output::error(message.trim(), code);
    }
    ExitCode::from(code)
}

/// Whether a command line asks for JSON, told before it is parsed: it may not be parsable.
pub(crate) fn asks_for_json(words: &[OsString]) -> bool {
    let pair = |pair: &[OsString]| pair[0] == "--format" && pair[1] == "json";
    let alone = |word: &OsString| word == "--json" || word == "--format=json";
    words.iter().any(alone) || words.windows(2).any(pair)
}

/// The messages from the outermost to the cause; one that the message before it already ends with
/// is not said twice.
fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.ends_with(&cause) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause);
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let error = anyhow!("disk full")
            .context("cannot write x: disk full")
            .context("saving");
        assert_eq!(chain(&error), "saving: cannot write x: disk full");
        let error = anyhow!("disk full").context("cannot write x");
        assert_eq!(chain(&error), "cannot write x: disk full");
    }

    #[test]
    fn json_is_asked_for_in_either_way() {
        for (line, asked) in [
            ("bench --json", true),
            ("bench --format json", true),
            ("bench --format=json", true),
            ("bench --format csv json", false),
            ("bench", false),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(asks_for_json(&words), asked, "{line}");
        }
    }
}
