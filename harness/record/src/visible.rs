//! Text from elsewhere, made safe to show.
//!
//! Arm names and server messages come from files that anyone may have written. A control character
//! can drive a terminal, and a bidirectional override makes a line read other than it is written.
//! Both are shown by their code, so that the reader sees that something is there.

/// The text with every control character, bidirectional control and line separator written as
/// `\u{…}`. Line breaks and tabs become spaces.
pub fn visible(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\r' | '\t' => safe.push(' '),
            c if hides(c) => safe.extend(c.escape_unicode()),
            c => safe.push(c),
        }
    }
    safe
}

/// The visible text broken between words into lines of at most `columns` characters, all but the
/// first indented by `indent` spaces. A word that is longer than a line is cut.
pub fn wrapped(text: &str, columns: usize, indent: usize) -> Vec<String> {
    let columns = columns.max(indent + 1);
    let (mut done, mut line, mut used) = (Vec::new(), String::new(), 0);
    let clean = visible(text);
    for word in clean.split_whitespace() {
        let mut rest: &str = word;
        loop {
            let start = if done.is_empty() { 0 } else { indent };
            let gap = usize::from(used > start);
            let length = rest.chars().count();
            if used + gap + length <= columns {
                line.push_str(&" ".repeat(gap));
                line.push_str(rest);
                used += gap + length;
                break;
            }
            if used <= start {
                let room = columns - used;
                let at = rest
                    .char_indices()
                    .nth(room)
                    .map_or(rest.len(), |(at, _)| at);
                line.push_str(&rest[..at]);
                rest = &rest[at..];
            }
            done.push(std::mem::take(&mut line));
            line = " ".repeat(indent);
            used = indent;
        }
    }
    done.push(line);
    done
}

/// Whether a character acts on the text around it instead of showing itself.
pub fn hides(character: char) -> bool {
    let bidirectional = matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    let separator = matches!(character, '\u{2028}' | '\u{2029}');
    character.is_control() || bidirectional || separator
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_never_exceed_the_width() {
        let text = format!("a bb {} c", "x".repeat(25));
        let lines = wrapped(&text, 10, 0);
        assert_eq!(lines, ["a bb", "xxxxxxxxxx", "xxxxxxxxxx", "xxxxx c"]);
        let lines = wrapped("note: one two three \u{1b} four", 12, 2);
        assert_eq!(lines, ["note: one", "  two three", "  \\u{1b}", "  four"]);
        assert_eq!(wrapped("", 10, 2), [""]);
        assert_eq!(wrapped("abcdefg", 0, 4), ["abcde", "    f", "    g"]);
    }

    #[test]
    fn controls_and_overrides_are_shown_by_code() {
        let text = visible("a\u{1b}[2J\u{9b}b\u{202e}c\u{2066}d\ne–é");
        assert_eq!(text, r"a\u{1b}[2J\u{9b}b\u{202e}c\u{2066}d e–é");
        for code in (0x202a..=0x202e).chain(0x2066..=0x2069) {
            let one = char::from_u32(code).unwrap().to_string();
            assert_eq!(visible(&one), format!("\\u{{{code:x}}}"));
        }
    }
}
