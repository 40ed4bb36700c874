//! Distributions of lengths and of think times.
//!
//! A number stands for itself; anything else names its distribution, so that a suite file reads as
//! what it asks for: `output_len = { dist = "lognormal", median = 200, sigma = 1.0, max = 4096 }`.

use std::fmt;
use std::str::FromStr;

use pb_contract::{Nanos, Stream};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::WorkloadError;

/// Longest length in tokens, and longest think time in seconds: far beyond any real one.
const MAX: f64 = (1u32 << 24) as f64;

/// A distribution of positive numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "dist", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Dist {
    /// Always the same.
    Fixed {
        /// That one.
        value: f64,
    },
    /// Every value from `min` to `max` alike, both included where values are whole.
    Uniform {
        /// Smallest.
        min: f64,
        /// Largest.
        max: f64,
    },
    /// The logarithm is normal.
    Lognormal {
        /// Half of the values lie below.
        median: f64,
        /// Standard deviation of the natural logarithm.
        sigma: f64,
        /// Smaller values become this.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        min: Option<f64>,
        /// Larger values become this.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max: Option<f64>,
    },
    /// Gamma by mean and shape.
    Gamma {
        /// Mean.
        mean: f64,
        /// Shape: 1 is exponential, larger is narrower.
        shape: f64,
        /// Smaller values become this.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        min: Option<f64>,
        /// Larger values become this.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max: Option<f64>,
    },
    /// Pareto: heavy-tailed, `P(X > x) = (scale / x)^alpha`.
    Pareto {
        /// Smallest value.
        scale: f64,
        /// Tail index.
        alpha: f64,
        /// Larger values become this.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max: Option<f64>,
    },
    /// Values with weights, as counted somewhere.
    Histogram {
        /// Values.
        values: Vec<f64>,
        /// How often each of them was seen; need not sum to 1.
        weights: Vec<f64>,
    },
    /// One of several distributions.
    Mixture {
        /// Its parts.
        parts: Vec<Weighted>,
    },
}

/// A part of a mixture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weighted {
    /// Share of the part; need not sum to 1 over the parts.
    pub weight: f64,
    /// Its distribution.
    pub of: Real,
}

impl Dist {
    fn draw(&self, stream: &mut Stream) -> f64 {
        let clamp = |x: f64, min: &Option<f64>, max: &Option<f64>| {
            x.max(min.unwrap_or(0.0)).min(max.unwrap_or(MAX))
        };
        match self {
            Dist::Fixed { value } => *value,
            Dist::Uniform { min, max } => min + (max - min) * stream.unit_f64(),
            Dist::Lognormal {
                median,
                sigma,
                min,
                max,
            } => clamp(median * libm::exp(sigma * stream.normal()), min, max),
            Dist::Gamma {
                mean,
                shape,
                min,
                max,
            } => clamp(stream.gamma(*shape, mean / shape), min, max),
            Dist::Pareto { scale, alpha, max } => {
                let u = 1.0 - stream.unit_f64();
                clamp(scale / libm::pow(u, 1.0 / alpha), &None, max)
            }
            Dist::Histogram { values, weights } => values[pick(weights.iter().copied(), stream)],
            Dist::Mixture { parts } => {
                let part = pick(parts.iter().map(|part| part.weight), stream);
                parts[part].of.0.draw(stream)
            }
        }
    }

    fn validate(&self, key: &'static str, least: f64) -> Result<(), WorkloadError> {
        let bad = |what: String, fix: String| Err(WorkloadError::parameter(key, what, fix));
        let value = |name: &str, x: f64, low: f64| match x.is_finite() && x >= low && x <= MAX {
            true => Ok(()),
            false => bad(format!("{name} {x}"), format!("must be {low} to {MAX}")),
        };
        let positive = |name: &str, x: f64| match x.is_finite() && x > 0.0 && x <= MAX {
            true => Ok(()),
            false => bad(format!("{name} {x}"), "must be a positive number".into()),
        };
        let range = |min: &Option<f64>, max: &Option<f64>| {
            let (low, high) = (min.unwrap_or(least), max.unwrap_or(MAX));
            value("min", low, least)?;
            value("max", high, least)?;
            match low <= high {
                true => Ok(()),
                false => bad(format!("max {high}"), format!("must be at least min {low}")),
            }
        };
        match self {
            Dist::Fixed { value: x } => value("value", *x, least),
            Dist::Uniform { min, max } => range(&Some(*min), &Some(*max)),
            Dist::Lognormal {
                median,
                sigma,
                min,
                max,
            } => {
                positive("median", *median)?;
                value("sigma", *sigma, 0.0)?;
                range(min, max)
            }
            Dist::Gamma {
                mean,
                shape,
                min,
                max,
            } => {
                positive("mean", *mean)?;
                positive("shape", *shape)?;
                range(min, max)
            }
            Dist::Pareto { scale, alpha, max } => {
                positive("scale", *scale)?;
                positive("alpha", *alpha)?;
                range(&None, max)
            }
            Dist::Histogram { values, weights } => {
                for &x in values {
                    value("values", x, least)?;
                }
                weighted(key, values.len(), weights)
            }
            Dist::Mixture { parts } => {
                let weights: Vec<f64> = parts.iter().map(|part| part.weight).collect();
                weighted(key, parts.len(), &weights)?;
                parts
                    .iter()
                    .try_for_each(|part| part.of.0.validate(key, least))
            }
        }
    }

    /// The largest value that can come out.
    fn most(&self) -> f64 {
        match self {
            Dist::Fixed { value } => *value,
            Dist::Uniform { max, .. } => *max,
            Dist::Lognormal { max, .. } | Dist::Gamma { max, .. } | Dist::Pareto { max, .. } => {
                max.unwrap_or(MAX)
            }
            Dist::Histogram { values, .. } => values.iter().copied().fold(0.0, f64::max),
            Dist::Mixture { parts } => parts.iter().map(|p| p.of.0.most()).fold(0.0, f64::max),
        }
    }
}

fn weighted(key: &'static str, values: usize, weights: &[f64]) -> Result<(), WorkloadError> {
    let sound = weights.iter().all(|w| w.is_finite() && *w >= 0.0);
    let sum: f64 = weights.iter().sum();
    if values == weights.len() && sound && sum > 0.0 {
        return Ok(());
    }
    Err(WorkloadError::parameter(
        key,
        format!("{values} values, weights {weights:?}"),
        "give each value a weight of at least 0, and one of them a positive one",
    ))
}

/// An index, with a chance in proportion to its weight.
pub(crate) fn pick(weights: impl Iterator<Item = f64> + Clone, stream: &mut Stream) -> usize {
    let total: f64 = weights.clone().sum();
    let at = stream.unit_f64() * total;
    let (mut below, mut last) = (0.0, 0);
    for (index, weight) in weights.enumerate() {
        below += weight;
        if weight > 0.0 {
            last = index;
        }
        if at < below {
            return index;
        }
    }
    last
}

/// A distribution of real numbers, such as seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Real(pub Dist);

/// A distribution of whole numbers of tokens, turns or calls, at least 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Length(pub Dist);

impl Real {
    /// Always `value`.
    pub fn fixed(value: f64) -> Self {
        Real(Dist::Fixed { value })
    }

    /// A value in seconds as a duration.
    pub fn draw_ns(&self, stream: &mut Stream) -> Nanos {
        Nanos::from_secs_f64(self.0.draw(stream))
    }

    /// Checks the parameters; `key` is the parameter that holds them.
    ///
    /// # Errors
    /// One out of range.
    pub fn validate(&self, key: &'static str) -> Result<(), WorkloadError> {
        self.0.validate(key, 0.0)
    }
}

impl Length {
    /// Always `value`.
    pub fn fixed(value: u32) -> Self {
        Length(Dist::Fixed {
            value: f64::from(value),
        })
    }

    /// Every whole number from `min` to `max` alike.
    pub fn uniform(min: u32, max: u32) -> Self {
        Length(Dist::Uniform {
            min: f64::from(min),
            max: f64::from(max),
        })
    }

    /// Lognormal by its median and the standard deviation of the logarithm, up to `max`.
    pub fn lognormal(median: u32, sigma: f64, max: u32) -> Self {
        Length(Dist::Lognormal {
            median: f64::from(median),
            sigma,
            min: None,
            max: Some(f64::from(max)),
        })
    }

    /// A value: rounded, and at least 1.
    pub fn draw(&self, stream: &mut Stream) -> u32 {
        if let Dist::Uniform { min, max } = self.0 {
            let (low, high) = (min.ceil().max(1.0) as u64, max.floor().max(1.0) as u64);
            return (low + stream.below(high.saturating_sub(low) + 1)) as u32;
        }
        self.0.draw(stream).round().clamp(1.0, MAX) as u32
    }

    /// The largest value that can be drawn.
    pub fn most(&self) -> u32 {
        self.0.most().round().clamp(1.0, MAX) as u32
    }

    /// Checks the parameters; `key` is the parameter that holds them.
    ///
    /// # Errors
    /// One out of range.
    pub fn validate(&self, key: &'static str) -> Result<(), WorkloadError> {
        self.0.validate(key, 1.0)?;
        match self.0 {
            Dist::Uniform { min, max } if min.ceil() > max.floor() => {
                let fix = "no whole number lies between them";
                Err(WorkloadError::parameter(
                    key,
                    format!("{min} to {max}"),
                    fix,
                ))
            }
            _ => Ok(()),
        }
    }
}

/// `1024`, `uniform:100,200`, `lognormal:MEDIAN,SIGMA`, `gamma:MEAN,SHAPE` or `pareto:SCALE,ALPHA`.
fn parse(text: &str) -> Result<Dist, String> {
    let bad = || {
        format!(
            "{text}: must be a number, uniform:MIN,MAX, lognormal:MEDIAN,SIGMA, gamma:MEAN,SHAPE \
             or pareto:SCALE,ALPHA"
        )
    };
    let number = |text: &str| text.trim().parse::<f64>().map_err(|_| bad());
    let Some((name, values)) = text.split_once(':') else {
        let value = number(text)?;
        return Ok(Dist::Fixed { value });
    };
    let (first, second) = values.split_once(',').ok_or_else(bad)?;
    let (first, second) = (number(first)?, number(second)?);
    let (min, max) = (None, None);
    match name.trim() {
        "uniform" => Ok(Dist::Uniform {
            min: first,
            max: second,
        }),
        "lognormal" => Ok(Dist::Lognormal {
            median: first,
            sigma: second,
            min,
            max,
        }),
        "gamma" => Ok(Dist::Gamma {
            mean: first,
            shape: second,
            min,
            max,
        }),
        "pareto" => Ok(Dist::Pareto {
            scale: first,
            alpha: second,
            max,
        }),
        _ => Err(bad()),
    }
}

/// Reads a number, a short form in text, or a table with `dist`.
struct DistVisitor;

impl<'de> Visitor<'de> for DistVisitor {
    type Value = Dist;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, a text such as \"uniform:100,200\" or a table with the key dist")
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Dist, E> {
        self.visit_f64(value as f64)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Dist, E> {
        self.visit_f64(value as f64)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Dist, E> {
        Ok(Dist::Fixed { value })
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Dist, E> {
        parse(text).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Dist, A::Error> {
        Dist::deserialize(MapAccessDeserializer::new(map))
    }
}

macro_rules! as_text_number_or_table {
    ($type:ident) => {
        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                parse(text).map($type)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(DistVisitor).map($type)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match &self.0 {
                    Dist::Fixed { value }
                        if value.fract() == 0.0 && (0.0..=MAX).contains(value) =>
                    {
                        serializer.serialize_u64(*value as u64)
                    }
                    Dist::Fixed { value } => serializer.serialize_f64(*value),
                    other => other.serialize(serializer),
                }
            }
        }
    };
}

as_text_number_or_table!(Real);
as_text_number_or_table!(Length);

#[cfg(test)]
#[path = "length_tests.rs"]
mod tests;
