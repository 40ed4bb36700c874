//! Objectives: when a request counts as good, and how many have to.

use std::fmt;
use std::str::FromStr;

use pb_contract::{RequestRow, RequestStatus, TokenRow};
use pb_record::metrics::{Bundle, counted_itl, request_metrics};
use serde::{Deserialize, Serialize};

use crate::distribution::Distribution;

/// Share of the offered requests that must meet a limit when none is named.
const DEFAULT_SHARE: f64 = 0.99;

/// What an objective limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limited {
    /// Time to the first token.
    Ttft,
    /// 99th percentile of the token latencies within the request.
    Itl,
    /// Time per output token after the first.
    Tpot,
    /// Time to the last token.
    E2e,
}

impl Limited {
    /// The name as the user writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Limited::Ttft => "ttft",
            Limited::Itl => "itl",
            Limited::Tpot => "tpot",
            Limited::E2e => "e2el",
        }
    }
}

/// One limit that a good request meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Objective {
    /// What is limited.
    pub limited: Limited,
    /// The largest value that is good.
    pub limit_ns: u64,
}

impl Objective {
    /// The largest value that is good, in milliseconds.
    pub fn limit_ms(&self) -> f64 {
        self.limit_ns as f64 / 1e6
    }
}

/// As the user writes it: `ttft:200`.
impl fmt::Display for Objective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.limited.name(), self.limit_ms())
    }
}

impl FromStr for Objective {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || {
            format!(
                "`{text}` is no limit: write NAME:MS with NAME one of ttft, itl, tpot, e2el, as \
                 in ttft:200"
            )
        };
        let (name, ms) = text.split_once(':').ok_or_else(error)?;
        let limited = match name {
            "ttft" => Limited::Ttft,
            "itl" => Limited::Itl,
            "tpot" => Limited::Tpot,
            "e2el" => Limited::E2e,
            _ => return Err(error()),
        };
        match ms.parse::<f64>() {
            Ok(ms) if ms.is_finite() && ms > 0.0 => Ok(Objective {
                limited,
                limit_ns: (ms * 1e6).round() as u64,
            }),
            _ => Err(error()),
        }
    }
}

/// A demand on the share of the offered requests: a gate of the run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slo {
    /// The limit that they meet; absent when it is enough that they end well.
    pub objective: Option<Objective>,
    /// The smallest share, 0 to 1, that passes.
    pub share: f64,
}

/// As the user writes it: `ttft:200@0.99`, `success:0.999`.
impl fmt::Display for Slo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.objective {
            Some(objective) => write!(f, "{objective}@{}", self.share),
            None => write!(f, "success:{}", self.share),
        }
    }
}

impl FromStr for Slo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let share = |part: &str| match part.parse::<f64>() {
            Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
            _ => Err(format!(
                "`{text}`: the share `{part}` must be above 0 and at most 1, as in \
                 ttft:200@0.99 or success:0.999"
            )),
        };
        if let Some(part) = text.strip_prefix("success:") {
            return Ok(Slo {
                objective: None,
                share: share(part)?,
            });
        }
        let (limit, part) = match text.split_once('@') {
            Some((limit, part)) => (limit, share(part)?),
            None => (text, DEFAULT_SHARE),
        };
        let objective = limit.parse::<Objective>().map_err(|error| {
            format!("{error}; a share may follow, as in ttft:200@0.99; or write success:SHARE")
        })?;
        Ok(Slo {
            objective: Some(objective),
            share: part,
        })
    }
}

/// Whether a request ended well and within a limit. An answer of one token has no time between
/// tokens and meets a limit on it; a value that is absent for another reason misses.
pub fn meets(row: &RequestRow, tokens: &[TokenRow], objective: &Objective) -> bool {
    let metrics = request_metrics(row);
    let single = row.streamed_tokens <= 1 && !metrics.hidden_tokens;
    let value = match objective.limited {
        Limited::Ttft => metrics.ttft_ns,
        Limited::E2e => metrics.e2e_ns,
        Limited::Itl | Limited::Tpot if single => Some(0),
        Limited::Tpot => metrics.tpot_ns,
        Limited::Itl => {
            let itl = counted_itl(tokens, Bundle::Even);
            Distribution::with_runs(Vec::new(), itl).nearest_rank(0.99)
        }
    };
    row.status == RequestStatus::Ok && value.is_some_and(|ns| ns <= objective.limit_ns)
}

/// Whether a request ended well and within every limit.
pub fn is_good(row: &RequestRow, tokens: &[TokenRow], objectives: &[Objective]) -> bool {
    row.status == RequestStatus::Ok && objectives.iter().all(|o| meets(row, tokens, o))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demands_are_read_as_they_are_written() {
        for text in ["ttft:200@0.95", "itl:0.5@1", "success:0.999"] {
            assert_eq!(text.parse::<Slo>().unwrap().to_string(), text);
        }
        let slo: Slo = "e2el:1500".parse().unwrap();
        assert_eq!(slo.to_string(), "e2el:1500@0.99");
        assert_eq!(slo.objective.unwrap().limit_ns, 1_500_000_000);
        for text in [
            "ttft:200@0",
            "ttft:200@2",
            "success:",
            "success:99",
            "ttft@0.9",
            "x",
        ] {
            let error = text.parse::<Slo>().unwrap_err();
            assert!(error.contains("ttft:200@0.99"), "{text}: {error}");
        }
    }
}
