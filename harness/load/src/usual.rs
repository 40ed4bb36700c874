//! The event that differs from the one before it in its text and its token ids alone.
//!
//! Of a hundred events of a stream ninety-eight differ in nothing else. What one of them means is
//! known from the last one that was parsed: a JSON document keeps its meaning when the characters
//! between the quotes of one string are replaced by others that need no escape, but for that
//! string; and when the numbers of one list are replaced by others, but for that list. Comparing
//! bytes costs a tenth of parsing them, and the time spent on an event delays the next one.

use crate::body::EventBody;

/// How the list of token ids begins.
const IDS: &str = "\"token_ids\":[";

/// The bytes around what changes in an event that was parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usual {
    before: String,
    /// Between the text and the ids; without ids up to the end.
    middle: String,
    /// What follows the ids.
    end: Option<String>,
}

/// What changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Changed<'a> {
    /// The text; never empty.
    pub(crate) text: &'a str,
    /// How many ids, when the learned event had some.
    pub(crate) ids: Option<u32>,
}

impl Usual {
    /// Learns from an event whose `text` is borrowed from `data` and which lists so many token
    /// ids. `None` when these places cannot be told for sure.
    pub(crate) fn learn(data: &str, text: &str, ids: Option<u32>) -> Option<Usual> {
        let start = (text.as_ptr() as usize).checked_sub(data.as_ptr() as usize)?;
        let (before, rest) = data.split_at_checked(start)?;
        let (inside, after) = rest.split_at_checked(text.len())?;
        let quoted = before.ends_with('"') && after.starts_with('"');
        if !quoted || inside != text || !is_plain(text) {
            return None;
        }
        let Some(ids) = ids else {
            return Some(Usual {
                before: before.to_owned(),
                middle: after.to_owned(),
                end: None,
            });
        };
        let from = after.rfind(IDS)? + IDS.len();
        let length = after[from..].find(']')?;
        let usual = Usual {
            before: before.to_owned(),
            middle: after[..from].to_owned(),
            end: Some(after[from + length..].to_owned()),
        };
        let found = count_ids(&after[from..from + length])?;
        (found == ids && usual.is_the_list(text, ids)).then_some(usual)
    }

    /// Whether the place is the list of the choice's token ids: another list there changes their
    /// number. Up to that place a parser sees the same bytes in each event.
    fn is_the_list(&self, text: &str, ids: u32) -> bool {
        let other = if ids == 3 { "1,2" } else { "1,2,3" };
        let end = self.end.as_deref().unwrap_or("");
        let data = format!("{}{text}{}{other}{end}", self.before, self.middle);
        let body: Result<EventBody<'_>, _> = serde_json::from_str(&data);
        let length = body.ok().and_then(|body| match body.choices.0.as_slice() {
            [choice] => choice.0.token_ids.length(),
            _ => None,
        });
        length == count_ids(other)
    }

    /// What changed in an event that differs from the learned one in these places alone.
    pub(crate) fn changed<'a>(&self, data: &'a str) -> Option<Changed<'a>> {
        let rest = data.strip_prefix(self.before.as_str())?;
        let Some(end) = &self.end else {
            let text = rest.strip_suffix(self.middle.as_str())?;
            let is_text = !text.is_empty() && is_plain(text);
            return is_text.then_some(Changed { text, ids: None });
        };
        let length = memchr::memchr2(b'"', b'\\', rest.as_bytes())?;
        let (text, rest) = rest.split_at_checked(length)?;
        let ids = rest.strip_prefix(self.middle.as_str())?;
        let ids = count_ids(ids.strip_suffix(end.as_str())?)?;
        let is_text = !text.is_empty() && is_plain(text);
        is_text.then_some(Changed {
            text,
            ids: Some(ids),
        })
    }
}

/// Whether a JSON string holds these characters as they are.
fn is_plain(text: &str) -> bool {
    let plain = |byte: u8| byte >= b' ' && byte != b'"' && byte != b'\\';
    text.bytes().all(plain)
}

/// How many whole numbers a list without blanks has; `None` when it is something else.
fn count_ids(list: &str) -> Option<u32> {
    let number = |text: &str| {
        let digits = (1..=10).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        digits && (text.len() == 1 || !text.starts_with('0'))
    };
    let mut count = 0;
    for part in list.split(',') {
        if !number(part) {
            return None;
        }
        count += 1;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: &str = r#"{"id":"x","choices":[{"text":"ab","n":null}]}"#;
    const WITH_IDS: &str =
        r#"{"choices":[{"index":0,"text":"ab","finish_reason":null,"token_ids":[7]}],"x":1}"#;

    fn usual(data: &str, ids: Option<u32>) -> Option<Usual> {
        let start = data.find("ab").unwrap();
        Usual::learn(data, &data[start..start + 2], ids)
    }

    #[test]
    fn only_the_text_may_differ() {
        let usual = usual(DATA, None).unwrap();
        for text in ["ab", "a", " longer \u{e9} than before", "}]"] {
            let changed = Changed { text, ids: None };
            assert_eq!(usual.changed(&DATA.replace("ab", text)), Some(changed));
        }
        for text in ["", "a\"b", "a\\n", "a\nb"] {
            assert_eq!(usual.changed(&DATA.replace("ab", text)), None, "{text}");
        }
        for other in [
            "",
            "{}",
            &DATA[..DATA.len() - 1],
            &DATA.replace("null", "1"),
        ] {
            assert_eq!(usual.changed(other), None, "{other}");
        }
    }

    #[test]
    fn the_text_and_the_ids_may_differ() {
        let usual = usual(WITH_IDS, Some(1)).unwrap();
        for (text, list, ids) in [("c", "0", 1), ("de", "12,3", 2), ("f", "4294967295", 1)] {
            let data = WITH_IDS
                .replace("ab", text)
                .replace("[7]", &format!("[{list}]"));
            let changed = Changed {
                text,
                ids: Some(ids),
            };
            assert_eq!(usual.changed(&data), Some(changed), "{data}");
        }
        for list in [
            "",
            "01",
            "1,",
            "1, 2",
            "-1",
            "1.5",
            "null",
            "1],[2",
            "12345678901",
        ] {
            let data = WITH_IDS.replace("[7]", &format!("[{list}]"));
            assert_eq!(usual.changed(&data), None, "{data}");
        }
        assert_eq!(usual.changed(&WITH_IDS.replace("\"x\":1", "\"x\":2")), None);
    }

    #[test]
    fn places_that_are_not_sure_teach_nothing() {
        assert_eq!(Usual::learn(DATA, "ab", None), None, "equal, but elsewhere");
        let number = DATA.find("null").unwrap();
        assert_eq!(Usual::learn(DATA, &DATA[number..number + 4], None), None);
        // The last list of that name is not the choice's.
        let other = WITH_IDS.replace("\"x\":1", "\"y\":{\"token_ids\":[7]}");
        assert_eq!(usual(&other, Some(1)), None);
        let text = WITH_IDS.replace("\"x\":1", "\"y\":\"\\\"token_ids\\\":[7]\"");
        assert!(
            usual(&text, Some(1)).is_some(),
            "a quote in a string is escaped"
        );
        assert_eq!(usual(WITH_IDS, Some(2)), None);
    }
}
