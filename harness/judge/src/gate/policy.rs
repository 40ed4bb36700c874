//! The policy file: what a candidate has to meet.
//!
//! ```toml
//! schema = 1
//! name = "nightly"
//!
//! [success]
//! min_rate = 0.99
//!
//! [[limit]]
//! metric = "ttft_p99"
//! max = 500
//!
//! [[change]]
//! metric = "itl_p99"
//! margin = 0.05
//! ```

use std::collections::BTreeSet;

use serde::Deserialize;
use thiserror::Error;
use toml::Spanned;

use crate::compare::{Metric, metric, metric_names};

/// The `schema` that policies name.
pub const POLICY_SCHEMA: u32 = 1;
/// Share of the requests that have to end well unless the policy says otherwise.
pub const DEFAULT_SUCCESS_RATE: f64 = 0.99;
/// Rules beyond which a policy is a mistake.
const MOST_RULES: usize = 1_000;

/// What a candidate has to meet.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Its name.
    pub name: String,
    /// Level of every claim.
    pub alpha: f64,
    /// Fewest blocks for any verdict on times.
    pub min_blocks: usize,
    /// Power at which blocks are planned.
    pub power: f64,
    /// Smallest share of the candidate's requests that end well.
    pub min_success_rate: f64,
    /// Whether checked outputs are demanded.
    pub outputs_required: bool,
    /// Limits on the candidate alone.
    pub limits: Vec<Limit>,
    /// Changes against the baseline.
    pub changes: Vec<Change>,
}

/// The side on which a limit lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// The candidate may have at most this, in the metric's unit.
    AtMost(f64),
    /// The candidate must have at least this, in the metric's unit.
    AtLeast(f64),
}

/// A limit on a metric of the candidate.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// The metric.
    pub metric: &'static Metric,
    /// The limit.
    pub bound: Bound,
}

/// How much worse than the baseline a metric may be.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// The metric.
    pub metric: &'static Metric,
    /// Relative margin (0.05 is 5 %), or points of a share (0.01 is one).
    pub margin: f64,
}

/// A file that is no policy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PolicyError {
    /// Not TOML, or keys and types that a policy does not have; the reader's own words.
    #[error("{0}")]
    Toml(String),
    /// A value that cannot be.
    #[error("line {line}: {what}")]
    Value {
        /// Line from 1.
        line: usize,
        /// Key, value and what to write instead.
        what: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    schema: Spanned<u32>,
    name: Option<String>,
    alpha: Option<Spanned<f64>>,
    min_blocks: Option<Spanned<usize>>,
    power: Option<Spanned<f64>>,
    success: Option<WrittenSuccess>,
    outputs: Option<WrittenOutputs>,
    #[serde(default)]
    limit: Vec<WrittenLimit>,
    #[serde(default)]
    change: Vec<WrittenChange>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenSuccess {
    min_rate: Spanned<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenOutputs {
    required: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLimit {
    metric: Spanned<String>,
    max: Option<Spanned<f64>>,
    min: Option<Spanned<f64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenChange {
    metric: Spanned<String>,
    margin: Spanned<f64>,
}

impl Policy {
    /// Reads a policy.
    ///
    /// # Errors
    /// Anything that is no policy; the message has the line, the key, its value and what to write.
    pub fn parse(text: &str) -> Result<Policy, PolicyError> {
        let written: Written = toml::from_str(text)
            .map_err(|error| PolicyError::Toml(error.to_string().trim_end().to_owned()))?;
        Reader { text }.policy(written)
    }
}

/// Checks values, with the text at hand for line numbers.
struct Reader<'a> {
    text: &'a str,
}

impl Reader<'_> {
    fn wrong<T>(&self, at: &Spanned<T>, what: String) -> PolicyError {
        let before = self.text.get(..at.span().start).unwrap_or("");
        PolicyError::Value {
            line: 1 + before.matches('\n').count(),
            what,
        }
    }

    fn policy(&self, written: Written) -> Result<Policy, PolicyError> {
        let schema = *written.schema.get_ref();
        if schema != POLICY_SCHEMA {
            let what = format!("schema = {schema}: this program reads schema {POLICY_SCHEMA}");
            return Err(self.wrong(&written.schema, what));
        }
        let success = written.success.as_ref().map(|success| &success.min_rate);
        let policy = Policy {
            name: written.name.unwrap_or_else(|| "gate".to_owned()),
            alpha: self.number("alpha", written.alpha.as_ref(), 0.05, (0.0, 0.5), false)?,
            min_blocks: self.blocks(written.min_blocks.as_ref())?,
            power: self.number("power", written.power.as_ref(), 0.8, (0.0, 1.0), false)?,
            min_success_rate: self.number(
                "success.min_rate",
                success,
                DEFAULT_SUCCESS_RATE,
                (0.0, 1.0),
                true,
            )?,
            outputs_required: written.outputs.is_some_and(|outputs| outputs.required),
            limits: self.limits(&written.limit)?,
            changes: self.changes(&written.change)?,
        };
        match policy.limits.len() + policy.changes.len() > MOST_RULES {
            true => Err(PolicyError::Value {
                line: 1,
                what: format!("more than {MOST_RULES} rules: leave some out"),
            }),
            false => Ok(policy),
        }
    }

    /// A number above the lower end and below the upper one, or at it where `closed`.
    fn number(
        &self,
        key: &str,
        given: Option<&Spanned<f64>>,
        usual: f64,
        (low, high): (f64, f64),
        closed: bool,
    ) -> Result<f64, PolicyError> {
        let Some(given) = given else {
            return Ok(usual);
        };
        let value = *given.get_ref();
        if value > low && (value < high || closed && value == high) {
            return Ok(value);
        }
        let end = if closed { "at most" } else { "below" };
        let what = format!("{key} = {value}: must be above {low} and {end} {high}");
        Err(self.wrong(given, what))
    }

    fn blocks(&self, given: Option<&Spanned<usize>>) -> Result<usize, PolicyError> {
        match given {
            None => Ok(3),
            Some(given) if (3..=10_000).contains(given.get_ref()) => Ok(*given.get_ref()),
            Some(given) => {
                let what = format!(
                    "min_blocks = {}: must be from 3 to 10000; fewer blocks have no usable \
                     interval",
                    given.get_ref()
                );
                Err(self.wrong(given, what))
            }
        }
    }

    fn metric(&self, key: &str, name: &Spanned<String>) -> Result<&'static Metric, PolicyError> {
        metric(name.get_ref()).ok_or_else(|| {
            let what = format!(
                "{key}.metric = \"{}\": no such metric; use {}",
                name.get_ref(),
                metric_names()
            );
            self.wrong(name, what)
        })
    }

    fn limits(&self, written: &[WrittenLimit]) -> Result<Vec<Limit>, PolicyError> {
        let (mut limits, mut seen) = (Vec::new(), BTreeSet::new());
        for one in written {
            let metric = self.metric("limit", &one.metric)?;
            let bounds = [
                (&one.max, "max", Bound::AtMost as fn(f64) -> Bound),
                (&one.min, "min", Bound::AtLeast as fn(f64) -> Bound),
            ];
            if one.max.is_none() && one.min.is_none() {
                let what = format!("limit of {}: write max = or min = beside it", metric.name);
                return Err(self.wrong(&one.metric, what));
            }
            for (given, key, bound) in bounds {
                let Some(given) = given else { continue };
                let value = *given.get_ref();
                let most = if metric.unit == "share" {
                    1.0
                } else {
                    f64::MAX
                };
                if !(value >= 0.0 && value <= most) {
                    let range = if metric.unit == "share" {
                        "from 0 to 1"
                    } else {
                        "a number from 0 on"
                    };
                    let what = format!(
                        "limit.{key} = {value}: must be {range}; leave the key out where there is \
                         to be no limit"
                    );
                    return Err(self.wrong(given, what));
                }
                if !seen.insert((metric.name, key)) {
                    let what = format!("limit.{key} of {} stands twice: keep one", metric.name);
                    return Err(self.wrong(given, what));
                }
                let bound = bound(value);
                limits.push(Limit { metric, bound });
            }
        }
        Ok(limits)
    }

    fn changes(&self, written: &[WrittenChange]) -> Result<Vec<Change>, PolicyError> {
        let (mut changes, mut seen) = (Vec::new(), BTreeSet::new());
        for one in written {
            let metric = self.metric("change", &one.metric)?;
            if !seen.insert(metric.name) {
                let what = format!("change of {} stands twice: keep one", metric.name);
                return Err(self.wrong(&one.metric, what));
            }
            let margin = *one.margin.get_ref();
            let words = match metric.is_ratio() {
                true => "a relative change, as 0.05 for 5 %, above 0 and at most 1",
                false => "points of a share, as 0.01 for one point, above 0 and at most 1",
            };
            if !(margin > 0.0 && margin <= 1.0) {
                let what = format!(
                    "change.margin = {margin} of {}: must be {words}",
                    metric.name
                );
                return Err(self.wrong(&one.margin, what));
            }
            changes.push(Change { metric, margin });
        }
        Ok(changes)
    }
}
