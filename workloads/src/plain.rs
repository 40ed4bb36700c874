//! What a deserialiser says, in the words of whoever wrote the file.
//!
//! "invalid type: string, expected u64 at line 1 column 9" speaks of the program's types and of a
//! column within one record. The reader wants to know what to write.

/// The message of a JSON or TOML deserialiser in plain words; a message that is of no known kind
/// stays as it is. Where it stands ("at line 1 column 9") is left out: say it in front.
pub fn plain(message: &str) -> String {
    let message = message.trim();
    let message = match message.rsplit_once(" at line ") {
        Some((what, place)) if is_place(place) => what,
        _ => message,
    };
    if let Some(key) = message.strip_prefix("missing field ") {
        return format!("{key} is missing: add it");
    }
    if let Some(key) = message.strip_prefix("duplicate field ") {
        return format!("{key} is there twice: keep one");
    }
    for (start, is_not) in [
        ("unknown field ", "is no key here"),
        ("unknown variant ", "is not known"),
    ] {
        let rest = message.strip_prefix(start);
        if let Some((name, known)) = rest.and_then(|rest| rest.split_once(", ")) {
            let known = known.strip_prefix("expected ").unwrap_or(known);
            let known = known.strip_prefix("one of ").unwrap_or(known);
            let names: Vec<&str> = known.split(", ").collect();
            if names.len() <= LISTED {
                return format!("{name} {is_not}: use {known}");
            }
            let near = nearest(name, names).join(", ");
            return format!("{name} {is_not}; the nearest are {near}");
        }
    }
    for start in ["invalid type: ", "invalid value: ", "invalid length "] {
        let rest = message.strip_prefix(start);
        if let Some((got, wanted)) = rest.and_then(|rest| rest.rsplit_once(", expected ")) {
            return format!("must be {}, not {}", wanted_text(wanted), got_text(got));
        }
    }
    syntax(message)
}

/// Of more names than these only the nearest are told: nobody reads eighty.
const LISTED: usize = 16;

/// How many of them.
const NEAREST: usize = 4;

/// The names that are most like `name`, the nearest first, equal ones in their order.
fn nearest<'a>(name: &str, mut names: Vec<&'a str>) -> Vec<&'a str> {
    names.sort_by_key(|other| edits(name, other));
    names.truncate(NEAREST);
    names
}

/// Letters to put in, take away or change to make one text of the other.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let changed = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// Whether a text is `1 column 9`.
fn is_place(text: &str) -> bool {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    text.split_once(" column ")
        .is_some_and(|(line, column)| digits(line) && digits(column))
}

fn wanted_text(wanted: &str) -> String {
    let number = match wanted {
        "u8" => Some(u64::from(u8::MAX)),
        "u16" => Some(u64::from(u16::MAX)),
        "u32" | "nonzero u32" => Some(u64::from(u32::MAX)),
        "u64" | "usize" | "nonzero u64" | "nonzero usize" => Some(u64::MAX),
        _ => None,
    };
    if let Some(most) = number {
        let least = u8::from(wanted.starts_with("nonzero"));
        return match most {
            u64::MAX => format!("a whole number, at least {least}"),
            _ => format!("a whole number from {least} to {most}"),
        };
    }
    let text = match wanted {
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a string" | "string" | "path string" | "a borrowed string" => "a text",
        "a boolean" | "boolean" => "true or false",
        "a sequence" | "sequence" => "a list",
        "a map" | "map" => "a table of keys",
        "option" => "a value",
        other if other.starts_with("struct ") => "a table of keys",
        other if other.contains("tagged enum ") => "a table of keys",
        other if other.starts_with("tuple ") => "a list",
        other => other,
    };
    text.to_owned()
}

fn got_text(got: &str) -> String {
    let text = got
        .strip_prefix("string ")
        .map(|text| format!("the text {text}"));
    if let Some(text) = text {
        return text;
    }
    for kind in ["integer ", "floating point ", "boolean ", "character "] {
        if let Some(value) = got.strip_prefix(kind) {
            return value.trim_matches('`').to_owned();
        }
    }
    match got {
        "map" => "a table of keys".to_owned(),
        "sequence" => "a list".to_owned(),
        "unit value" | "null" | "Option value" => "null".to_owned(),
        "string" => "a text".to_owned(),
        other => other.to_owned(),
    }
}

/// Messages about the text itself.
fn syntax(message: &str) -> String {
    if message.starts_with("EOF while parsing") {
        return "it ends in the middle of a value: was it cut off?".to_owned();
    }
    match message {
        "expected value" => "no JSON value begins here".to_owned(),
        "trailing characters" => "something follows the JSON value".to_owned(),
        "trailing comma" => "a comma stands before the end: take it away".to_owned(),
        "expected ident" => "a word that is none of true, false and null".to_owned(),
        "key must be a string" => "a key must stand in double quotes".to_owned(),
        other => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only read from texts that do not fit")]
    struct Row {
        tokens: u32,
        #[serde(default)]
        text: String,
        #[serde(default)]
        kind: Kind,
        #[serde(default)]
        ids: Vec<u64>,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Kind {
        #[default]
        Plain,
        Other,
    }

    #[test]
    fn messages_of_json_say_what_to_write() {
        for (text, expected) in [
            ("{}", "`tokens` is missing: add it"),
            (
                r#"{"tokens":"many"}"#,
                r#"must be a whole number from 0 to 4294967295, not the text "many""#,
            ),
            (
                r#"{"tokens":-1}"#,
                "must be a whole number from 0 to 4294967295, not -1",
            ),
            (
                r#"{"tokens":1,"tokens":2}"#,
                "`tokens` is there twice: keep one",
            ),
            (
                r#"{"tokens":1,"speed":2}"#,
                "`speed` is no key here: use `tokens`, `text`, `kind`, `ids`",
            ),
            (
                r#"{"tokens":1,"kind":"third"}"#,
                "`third` is not known: use `plain` or `other`",
            ),
            (r#"{"tokens":1,"text":5}"#, "must be a text, not 5"),
            (
                r#"{"tokens":1,"ids":{}}"#,
                "must be a list, not a table of keys",
            ),
            (
                r#"{"tokens":1"#,
                "it ends in the middle of a value: was it cut off?",
            ),
            ("nonsense", "a word that is none of true, false and null"),
            (r#"{"tokens":1} x"#, "something follows the JSON value"),
            (
                "[[1]]",
                "must be a whole number from 0 to 4294967295, not a list",
            ),
        ] {
            let error = serde_json::from_str::<Row>(text).unwrap_err().to_string();
            assert_eq!(plain(&error), expected, "{text}: {error}");
        }
    }

    #[test]
    fn messages_of_toml_say_what_to_write() {
        for (text, expected) in [
            ("", "`tokens` is missing: add it"),
            (
                "tokens = \"x\"",
                r#"must be a whole number from 0 to 4294967295, not the text "x""#,
            ),
            ("tokens = 1\ntext = true", "must be a text, not true"),
        ] {
            let error = toml::from_str::<Row>(text).unwrap_err();
            assert_eq!(plain(error.message()), expected, "{text}: {error}");
        }
    }

    #[test]
    fn of_many_keys_the_nearest_are_told() {
        let names: Vec<String> = (0..30).map(|n| format!("`other_{n}`")).collect();
        let names = names.join(", ");
        let message = format!("unknown field `num_prompt`, expected one of {names}, `num_prompts`");
        let told = plain(&message);
        let start = "`num_prompt` is no key here; the nearest are `num_prompts`, ";
        assert!(told.starts_with(start) && told.len() < 120, "{told}");
        // From the usual tables of edit distances.
        for (a, b, distance) in [
            ("kitten", "sitting", 3),
            ("saturday", "sunday", 3),
            ("", "abc", 3),
            ("flaw", "lawn", 2),
        ] {
            assert_eq!((edits(a, b), edits(b, a)), (distance, distance));
        }
    }

    #[test]
    fn other_messages_stay() {
        for text in [
            "`-1` must be a number above 0, or inf",
            "it stood at line 3",
        ] {
            assert_eq!(plain(text), text);
        }
    }
}
