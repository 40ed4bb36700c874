//! Serde for measurements that may be infinite.
//!
//! JSON has no infinity, and the usual writer turns it into null, which a reader takes for
//! "absent". A fault that makes an error infinite would then look like a missing value. So the
//! three special values are written as the strings `inf`, `-inf` and `nan`.
//!
//! Use `#[serde(with = "crate::real")]` on an `f64`, `crate::real::option` on an `Option<f64>` and
//! `crate::real::list` on a `Vec<f64>`.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// An `f64` that survives JSON whatever its value.
#[derive(Debug, Clone, Copy)]
struct Real(f64);

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Number(f64),
    Text(String),
}

impl Serialize for Real {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_finite() {
            serializer.serialize_f64(self.0)
        } else if self.0.is_nan() {
            serializer.serialize_str("nan")
        } else {
            serializer.serialize_str(if self.0 > 0.0 { "inf" } else { "-inf" })
        }
    }
}

impl<'de> Deserialize<'de> for Real {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Written::deserialize(deserializer)? {
            Written::Number(value) => Ok(Self(value)),
            Written::Text(text) => match text.as_str() {
                "inf" => Ok(Self(f64::INFINITY)),
                "-inf" => Ok(Self(f64::NEG_INFINITY)),
                "nan" => Ok(Self(f64::NAN)),
                _ => Err(de::Error::custom(format!(
                    "{text:?} is no number, inf, -inf or nan"
                ))),
            },
        }
    }
}

/// Writes a number, or the name of a special value.
pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    Real(*value).serialize(serializer)
}

/// Reads what [`serialize`] wrote.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Real::deserialize(deserializer).map(|real| real.0)
}

/// The same for optional values; None is null.
pub mod option {
    use super::{Deserialize, Deserializer, Real, Serialize, Serializer};

    /// Writes a number, the name of a special value, or null.
    pub fn serialize<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        value.map(Real).serialize(serializer)
    }

    /// Reads what [`serialize`] wrote.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<f64>, D::Error> {
        Ok(Option::<Real>::deserialize(deserializer)?.map(|real| real.0))
    }
}

/// The same for lists.
pub mod list {
    use super::{Deserialize, Deserializer, Real, Serializer};

    /// Writes numbers or the names of special values.
    pub fn serialize<S: Serializer>(values: &[f64], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().copied().map(Real))
    }

    /// Reads what [`serialize`] wrote.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f64>, D::Error> {
        let values = Vec::<Real>::deserialize(deserializer)?;
        Ok(values.into_iter().map(|real| real.0).collect())
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    struct Holder {
        #[serde(with = "super")]
        value: f64,
        #[serde(with = "super::option")]
        maybe: Option<f64>,
    }

    #[test]
    fn special_values_round_trip() {
        for (value, maybe, text) in [
            (1.5, None, r#"{"value":1.5,"maybe":null}"#),
            (
                f64::INFINITY,
                Some(f64::NEG_INFINITY),
                r#"{"value":"inf","maybe":"-inf"}"#,
            ),
            (2.0, Some(0.25), r#"{"value":2.0,"maybe":0.25}"#),
        ] {
            assert_eq!(
                serde_json::to_string(&Holder { value, maybe }).unwrap(),
                text
            );
            let back: Holder = serde_json::from_str(text).unwrap();
            assert_eq!((back.value, back.maybe), (value, maybe));
        }
        let nan: Holder = serde_json::from_str(r#"{"value":"nan","maybe":3}"#).unwrap();
        assert!(nan.value.is_nan() && nan.maybe == Some(3.0));
        assert!(serde_json::from_str::<Holder>(r#"{"value":"big","maybe":null}"#).is_err());
    }
}
