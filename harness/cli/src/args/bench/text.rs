//! Values that are written as text on the command line and as text or numbers in a file.
//!
//! Both go through the same parser, so that a suite file and a command line accept the same
//! values and refuse the others in the same words.

use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A value with the text that it was read from, which is what the manifest shows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Text<T> {
    text: String,
    /// The value.
    pub(crate) value: T,
}

impl<T: FromStr<Err = String>> FromStr for Text<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Text {
            value: text.parse()?,
            text: text.to_owned(),
        })
    }
}

impl<T> Display for Text<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<T> Serialize for Text<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de, T: FromStr<Err = String>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor(PhantomData))
    }
}

struct TextVisitor<T>(PhantomData<T>);

impl<T: FromStr<Err = String>> TextVisitor<T> {
    fn read<E: Error>(text: &str) -> Result<Text<T>, E> {
        text.parse()
            .map_err(|error: String| E::custom(format_args!("`{text}` {error}")))
    }
}

impl<T: FromStr<Err = String>> Visitor<'_> for TextVisitor<T> {
    type Value = Text<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a number")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Self::read(text)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        Self::read(&number.to_string())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        Self::read(&number.to_string())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Self::Value, E> {
        Self::read(&number.to_string())
    }
}

/// A whole number of at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Positive(pub(crate) usize);

impl FromStr for Positive {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        super::super::positive(text).map(Positive)
    }
}

/// A number above 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Above0(pub(crate) f64);

impl FromStr for Above0 {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<f64>() {
            Ok(value) if value.is_finite() && value > 0.0 => Ok(Above0(value)),
            _ => Err("must be a number above 0".into()),
        }
    }
}

/// Seconds that a limit may have: from 1 ms, which is the grain of waiting, to 30 years.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Timeout(pub(crate) f64);

impl FromStr for Timeout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<f64>() {
            Ok(value) if (1e-3..=1e9).contains(&value) => Ok(Timeout(value)),
            _ => Err("must be seconds from 0.001 to 1e9, as in 0.5".into()),
        }
    }
}

/// A number of at least 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AtLeast0(pub(crate) f64);

impl FromStr for AtLeast0 {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<f64>() {
            Ok(value) if value.is_finite() && value >= 0.0 => Ok(AtLeast0(value)),
            _ => Err("must be a number of at least 0".into()),
        }
    }
}

/// A share: above 0, at most 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Share(pub(crate) f64);

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<f64>() {
            Ok(value) if value > 0.0 && value <= 1.0 => Ok(Share(value)),
            _ => Err("must be a number above 0 and at most 1".into()),
        }
    }
}

/// Requests per second, or all at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate(pub(crate) f64);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "inf" => Ok(Rate(f64::INFINITY)),
            _ => match text.parse() {
                Ok(Above0(value)) => Ok(Rate(value)),
                Err(_) => Err("must be a number above 0, or inf".into()),
            },
        }
    }
}

/// Longest nonce, in bytes.
const MAX_NONCE: usize = 200;

/// A text that makes prompts other ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nonce(pub(crate) String);

impl FromStr for Nonce {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim().is_empty() || text.len() > MAX_NONCE {
            true => Err(format!(
                "must be a text of 1 to {MAX_NONCE} bytes, as in run-2"
            )),
            false => Ok(Nonce(text.to_owned())),
        }
    }
}

/// The path of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route(pub(crate) String);

impl FromStr for Route {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with('/') {
            return Ok(Route(text.to_owned()));
        }
        Err("must begin with /, as in /v1/completions".into())
    }
}

/// Fewer ids than these cannot make prompts that differ surely.
const MIN_IDS: u32 = 64;

/// Token ids from the first to the second, which is excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IdRange(pub(crate) u32, pub(crate) u32);

impl FromStr for IdRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bounds = text.split_once("..");
        let parsed = bounds.and_then(|(lo, hi)| Some((lo.parse().ok()?, hi.parse().ok()?)));
        match parsed {
            Some((lo, hi)) if hi >= lo && hi - lo >= MIN_IDS => Ok(IdRange(lo, hi)),
            _ => Err(format!(
                "must be LO..HI with at least {MIN_IDS} ids between, as in 1000..16000"
            )),
        }
    }
}

/// `NAME=VALUE`, shown as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair(pub(crate) String, pub(crate) String);

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok(Pair(name.into(), value.into())),
            _ => Err("must be NAME=VALUE".into()),
        }
    }
}

/// `NAME=VALUE` whose value may be a key: it is never shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(pub(crate) Pair);

impl Secret {
    /// The pair with its value hidden.
    pub(crate) fn shown(&self) -> String {
        format!("{}=(hidden)", self.0.0)
    }
}

impl FromStr for Secret {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Secret)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.shown())
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // The message must not repeat what may be a key.
        text.parse().map_err(D::Error::custom)
    }
}

/// Requests of a warm-up: more warm nothing further.
const MAX_WARMUP: usize = 100_000;

/// How much is sent before the measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Warmup {
    /// So many requests.
    Requests(usize),
    /// Requests one after the other for so many seconds.
    Seconds(f64),
}

impl FromStr for Warmup {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || "must be a number of requests, or of seconds as in 5s".to_owned();
        match text.strip_suffix('s') {
            Some(seconds) => match seconds.parse() {
                Ok(Above0(seconds)) => Ok(Warmup::Seconds(seconds)),
                Err(_) => Err(bad()),
            },
            None => match text.parse() {
                Ok(count) if count > MAX_WARMUP => Err(format!("must be at most {MAX_WARMUP}")),
                Ok(count) => Ok(Warmup::Requests(count)),
                Err(_) => Err(bad()),
            },
        }
    }
}

/// A JSON object.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct JsonObject(pub(crate) serde_json::Map<String, serde_json::Value>);

impl FromStr for JsonObject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map(JsonObject).map_err(|error| {
            let why = pb_workloads::plain(&error.to_string());
            format!("must be a JSON object, as in {{\"top_k\":20}}: {why}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_takes_numbers_and_texts_and_says_what_is_wrong() {
        #[derive(Debug, Deserialize)]
        struct Table {
            rate: Text<Rate>,
        }
        for (text, rate) in [
            ("rate = 4", 4.0),
            ("rate = 0.5", 0.5),
            ("rate = \"2.5\"", 2.5),
            ("rate = \"inf\"", f64::INFINITY),
        ] {
            assert_eq!(
                toml::from_str::<Table>(text).unwrap().rate.value,
                Rate(rate)
            );
        }
        let error = toml::from_str::<Table>("\nrate = -1")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("line 2") && error.contains("`-1`"),
            "{error}"
        );
        assert!(error.contains("or inf"), "{error}");
        let error = toml::from_str::<Table>("rate = true")
            .unwrap_err()
            .to_string();
        assert!(error.contains("a text or a number"), "{error}");
    }

    #[test]
    fn a_secret_is_shown_nowhere() {
        let secret: Secret = "authorization=hunter2".parse().unwrap();
        assert_eq!(secret.0.1, "hunter2");
        let shown = format!("{secret:?} {}", serde_json::to_string(&secret).unwrap());
        assert!(
            !shown.contains("hunter2") && shown.contains("authorization"),
            "{shown}"
        );
        let error = serde_json::from_str::<Secret>("\"hunter2\"")
            .unwrap_err()
            .to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }

    #[test]
    fn warm_ups_are_requests_or_seconds() {
        assert_eq!("8".parse(), Ok(Warmup::Requests(8)));
        assert_eq!("2.5s".parse(), Ok(Warmup::Seconds(2.5)));
        for bad in ["-1", "s", "0s", "infs", "2m"] {
            assert!(bad.parse::<Warmup>().unwrap_err().contains("5s"), "{bad}");
        }
    }

    #[test]
    fn numbers_outside_their_range_are_refused() {
        for bad in ["0", "-1", "nan", "inf", "x", ""] {
            assert!(bad.parse::<Above0>().is_err(), "{bad}");
        }
        for bad in ["1e-7", "0.0009", "0", "-1", "nan", "inf", "1.1e9", "x"] {
            assert!(
                bad.parse::<Timeout>().unwrap_err().contains("0.001"),
                "{bad}"
            );
        }
        assert_eq!("0.001".parse(), Ok(Timeout(0.001)));
        assert_eq!("0".parse(), Ok(AtLeast0(0.0)));
        for bad in ["0", "1.01", "nan"] {
            assert!(bad.parse::<Share>().is_err(), "{bad}");
        }
        for bad in ["5..9", "9..5", "1000", "a..b"] {
            assert!(bad.parse::<IdRange>().unwrap_err().contains("1000..16000"));
        }
    }
}
