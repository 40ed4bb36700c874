//! Keys that no text of a server may carry out of here.
//!
//! A key goes into a request's head. Servers and gateways repeat heads: in error messages, in
//! pages, in names. What they say lands in the rows, the manifest, the reports and on the screen,
//! so every text of a server is searched for the keys before it leaves this crate, and what is
//! found is replaced by `(hidden)`.
//!
//! Found are the key itself and its usual spellings: as JSON writes it (once and twice), as HTML
//! does, and percent-encoded. A key that a server cuts in two, or writes in another way, is not
//! found; and values shorter than 8 characters are not looked for, because they occur by chance
//! in numbers and words.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// Shortest text that is looked for, in characters.
const SHORTEST: usize = 8;

/// What stands in place of a key.
const HIDDEN: &str = "(hidden)";

/// Headers whose values are no keys and occur in what servers say of themselves.
const PUBLIC: [&str; 3] = ["accept", "content-type", "user-agent"];

/// Texts that are never shown; clones are the same list.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets {
    /// Longest first, so that no part of one is taken for another.
    spellings: Arc<Vec<String>>,
}

impl Secrets {
    /// With a key.
    pub(crate) fn with_key(&self, key: &str) -> Secrets {
        self.with_all(&[key])
    }

    /// With the value of a header; of a header for credentials the parts too, since a server may
    /// leave the scheme or the name of a cookie away.
    pub(crate) fn with_header(&self, name: &str, value: &str) -> Secrets {
        let name = name.to_ascii_lowercase();
        if PUBLIC.contains(&name.as_str()) {
            return self.clone();
        }
        let mut parts = vec![value];
        if name.ends_with("authorization") {
            parts.extend(value.split_ascii_whitespace());
        }
        if name == "cookie" {
            parts.extend(value.split([' ', ';', '=']));
        }
        self.with_all(&parts)
    }

    /// These and those of `other`.
    pub(crate) fn and(&self, other: &Secrets) -> Secrets {
        let mut spellings = Vec::clone(&self.spellings);
        spellings.extend(other.spellings.iter().cloned());
        Secrets::of(spellings)
    }

    fn with_all(&self, texts: &[&str]) -> Secrets {
        let mut spellings = Vec::clone(&self.spellings);
        for text in texts {
            if text.chars().count() >= SHORTEST {
                spellings.extend(spellings_of(text));
            }
        }
        Secrets::of(spellings)
    }

    fn of(mut spellings: Vec<String>) -> Secrets {
        spellings.sort_unstable_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        spellings.dedup();
        Secrets {
            spellings: Arc::new(spellings),
        }
    }

    /// The text with `(hidden)` in place of each key.
    pub fn hide<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut hidden = Cow::Borrowed(text);
        for spelling in self.spellings.iter() {
            if hidden.contains(spelling.as_str()) {
                hidden = Cow::Owned(hidden.replace(spelling.as_str(), HIDDEN));
            }
        }
        hidden
    }
}

/// Never the texts themselves.
impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets")
            .field("spellings", &self.spellings.len())
            .finish()
    }
}

/// What JSON writers escape beside what they must: nothing, the slash (PHP), what HTML gives a
/// meaning (Go), and all of that.
const ESCAPED: [&str; 4] = ["", "/", "<>&", "/<>&'"];

/// Each character by its number, as writers do that trust none: in JSON and in HTML.
const EVERY_CHAR: [fn(u32) -> String; 5] = [
    |code| format!("\\u{code:04x}"),
    |code| format!("\\u{code:04X}"),
    |code| format!("&#{code};"),
    |code| format!("&#x{code:x};"),
    |code| format!("&#x{code:X};"),
];

/// The ways in which servers write a text.
fn spellings_of(text: &str) -> Vec<String> {
    let mut all = vec![text.to_owned(), html(text)];
    for more in ESCAPED {
        let once = json(text, more);
        all.push(json(&once, more));
        all.push(once);
    }
    for safe in ["", "/"] {
        all.push(percent(text, safe, false));
        all.push(percent(text, safe, true));
    }
    for every in EVERY_CHAR {
        all.push(text.chars().map(|c| every(c as u32)).collect());
    }
    all
}

/// Within a JSON string, with `more` escaped than must be.
fn json(text: &str, more: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\t' => out.push_str("\\t"),
            '/' if more.contains(c) => out.push_str("\\/"),
            _ if more.contains(c) => out.push_str(&format!("\\u{:04x}", c as u32)),
            _ => out.push(c),
        }
    }
    out
}

fn html(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let text = text.replace('>', "&gt;").replace('"', "&quot;");
    text.replace('\'', "&#39;")
}

/// With everything escaped but what RFC 3986 leaves unreserved, and `safe`.
fn percent(text: &str, safe: &str, lower: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let c = char::from(byte);
        if c.is_ascii_alphanumeric() || "-._~".contains(c) || safe.contains(c) {
            out.push(c);
        } else if lower {
            out.push_str(&format!("%{byte:02x}"));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key with all that any spelling changes.
    const KEY: &str = "sk-\"a\\b/c+d=&<e>'f g";

    const NUMBERED: [&str; 3] = [
        concat!(
            r"\u0073\u006b\u002d\u0022\u0061\u005c\u0062\u002f\u0063\u002b",
            r"\u0064\u003d\u0026\u003c\u0065\u003e\u0027\u0066\u0020\u0067",
        ),
        concat!(
            r"\u0073\u006B\u002D\u0022\u0061\u005C\u0062\u002F\u0063\u002B",
            r"\u0064\u003D\u0026\u003C\u0065\u003E\u0027\u0066\u0020\u0067",
        ),
        concat!(
            r"&#x73;&#x6B;&#x2D;&#x22;&#x61;&#x5C;&#x62;&#x2F;&#x63;&#x2B;",
            r"&#x64;&#x3D;&#x26;&#x3C;&#x65;&#x3E;&#x27;&#x66;&#x20;&#x67;",
        ),
    ];

    #[test]
    fn a_key_is_found_in_every_usual_spelling() {
        let secrets = Secrets::default().with_key(KEY);
        let json = serde_json::to_string(KEY).unwrap();
        let twice = serde_json::to_string(&json).unwrap();
        for text in [
            format!("key {KEY}."),
            format!("key {json}."),
            format!("key {twice}."),
            // By hand, as Go's json, PHP's json_encode, Python's quote and JavaScript write it.
            r#"key sk-\"a\\b/c+d=\u0026\u003ce\u003e'f g."#.to_owned(),
            r#"key sk-\"a\\b\/c+d=\u0026\u003ce\u003e\u0027f g."#.to_owned(),
            "key sk-%22a%5Cb/c%2Bd%3D%26%3Ce%3E%27f%20g.".to_owned(),
            "key sk-%22a%5cb%2fc%2bd%3d%26%3ce%3e%27f%20g.".to_owned(),
            "key sk-&quot;a\\b/c+d=&amp;&lt;e&gt;&#39;f g.".to_owned(),
            // Every character by its number; made by Python's ord.
            format!("key {}.", NUMBERED[0]),
            format!("key {}.", NUMBERED[1]),
            format!("key {}.", NUMBERED[2]),
        ] {
            let hidden = secrets.hide(&text);
            assert!(hidden.contains(HIDDEN), "{text}: {hidden}");
            assert!(!hidden.contains("sk-"), "{text}: {hidden}");
            assert!(
                hidden.starts_with("key ") && hidden.ends_with('.'),
                "{hidden}"
            );
        }
    }

    #[test]
    fn the_parts_of_credentials_are_keys_and_other_values_are_one() {
        let secrets = Secrets::default()
            .with_header("Authorization", "Basic dXNlcjpwYXNz")
            .with_header("Cookie", "session=0123456789; theme=dark")
            .with_header("x-tenant", "team blue of the world")
            .with_header("Content-Type", "application/json");
        for (text, hidden) in [
            ("got dXNlcjpwYXNz", "got (hidden)"),
            ("got Basic dXNlcjpwYXNz", "got (hidden)"),
            ("session 0123456789", "session (hidden)"),
            ("dark theme", "dark theme"),
            ("team blue of the world", "(hidden)"),
            ("the world", "the world"),
            ("application/json", "application/json"),
        ] {
            assert_eq!(secrets.hide(text), hidden);
        }
        let both = secrets.and(&Secrets::default().with_key("0123456789abc"));
        // The longer one first: nothing of it is left.
        assert_eq!(both.hide("0123456789abc 0123456789"), "(hidden) (hidden)");
    }

    #[test]
    fn short_values_are_not_looked_for_and_nothing_is_printed() {
        let secrets = Secrets::default().with_key("1234567");
        assert_eq!(secrets.hide("12345678"), "12345678");
        let secrets = Secrets::default().with_key("12345678");
        assert_eq!(secrets.hide("123456789"), "(hidden)9");
        assert!(!format!("{secrets:?}").contains("1234"));
    }
}
