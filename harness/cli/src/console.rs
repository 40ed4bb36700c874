//! What people see: nothing in it may act on the terminal, and no line is wider than a table.
//!
//! Much of what is printed was written by others: names in suite files, rows of traces, models
//! and messages of servers. An escape sequence among them could move the cursor, recolour the
//! screen or hide what stands there. So every text passes [`safe`] on its way out.

use std::io::{IsTerminal, Write};

use pb_record::visible::hides;

/// Widest line, in characters; only a word that is longer makes a longer one.
pub(crate) const WIDTH: usize = 100;

/// Spaces before the further lines of one that was cut.
const HANG: usize = 2;

/// The text with every character that acts on a terminal written as `\u001b`; line feeds and
/// tabs stay. JSON stays the same JSON, since such characters are within its strings only.
pub(crate) fn safe(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\t' => out.push(character),
            c if hides(c) => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out
}

/// A text in lines of at most `width` characters, cut between words; a longer word stays whole,
/// so that an address or a path can be copied.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if columns(line) + 1 + columns(word) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The text with lines that are too wide cut between words; what follows is indented.
pub(crate) fn fitted(text: &str) -> String {
    let line = |line: &str| {
        if columns(line) <= WIDTH {
            return line.to_owned();
        }
        let indent = line.chars().take_while(|c| *c == ' ').count();
        let parts = wrapped(line, WIDTH - (indent + HANG).min(WIDTH / 2));
        let further = format!("\n{}", " ".repeat(indent + HANG));
        " ".repeat(indent) + &parts.join(&further)
    };
    let lines: Vec<String> = text.split('\n').map(line).collect();
    lines.join("\n")
}

/// Columns of a line: escape sequences that set a colour take none.
fn columns(line: &str) -> usize {
    let mut parts = line.split("\u{1b}[");
    let plain = parts.next().map_or(0, |part| part.chars().count());
    let rest = parts.map(|part| {
        let after = part.split_once('m').map_or(part, |(_, after)| after);
        after.chars().count()
    });
    plain + rest.sum::<usize>()
}

/// Says what is wrong with a command line, in lines that fit; in colours on a terminal that takes
/// them.
pub(crate) fn usage(text: &clap::builder::StyledStr) {
    let mut err = std::io::stderr().lock();
    let colors = err.is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let text = match colors {
        true => fitted(&text.ansi().to_string()),
        false => fitted(&safe(&text.to_string())),
    };
    // Standard error may be closed.
    let _ = write!(err, "{text}");
}

/// Says something on standard error. That it is closed or full changes nothing: the result goes
/// elsewhere, and there is nobody left to be told.
pub(crate) fn say(text: impl AsRef<str>) {
    let mut err = std::io::stderr().lock();
    let text = safe(text.as_ref());
    // In a log a message is one line, so that it can be searched for.
    let text = if err.is_terminal() {
        fitted(&text)
    } else {
        text
    };
    let _ = writeln!(err, "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_acts_on_the_terminal() {
        let hostile = "a\u{1b}[31mb\u{9b}2Jc\rd\u{202e}e\u{7f}\n\tf";
        let shown = safe(hostile);
        assert_eq!(shown, "a\\u001b[31mb\\u009b2Jc\\u000dd\\u202ee\\u007f\n\tf");
        // The same JSON for whoever reads it.
        let json = serde_json::to_string(&["\u{9b}2J", "\u{202e}", "plain é"]).unwrap();
        let read: Vec<String> = serde_json::from_str(&safe(&json)).unwrap();
        assert_eq!(read, ["\u{9b}2J", "\u{202e}", "plain é"]);
        assert_ne!(safe(&json), json);
    }

    #[test]
    fn long_lines_are_cut_between_words_and_indented() {
        let long = format!("  note: {}", "word ".repeat(40));
        let text = fitted(&format!("short\n{}\nend", long.trim_end()));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines[0], lines[lines.len() - 1]), ("short", "end"));
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH));
        assert!(lines[1].starts_with("  note: word") && lines[2].starts_with("    word"));
        assert_eq!(text.matches("word").count(), 40);
        // Colours take no columns.
        let colored = "\u{1b}[32mword\u{1b}[0m, ".repeat(40);
        let lines = fitted(&colored);
        assert_eq!(columns("\u{1b}[1ma\u{1b}[0mb"), 2);
        assert!(lines.lines().all(|line| columns(line) <= WIDTH));
        assert!(lines.lines().next().is_some_and(|line| columns(line) > 90));
        // What is one word stays one.
        let path = "x".repeat(150);
        assert!(fitted(&format!("see {path}")).contains(&path));
    }
}
