//! Rates that change during a run.
//!
//! Arrivals at a changing rate are those of the unit-rate process with time bent: arrival `i` is
//! due when the integral of the rate reaches the `i`-th arrival of the unit process. Gaps then
//! keep their distribution in units of the current rate, without ticks and without a gap drawn at
//! the old rate that reaches far into the new stage.

use std::fmt;
use std::str::FromStr;

use pb_contract::Nanos;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::WorkloadError;

/// Rates of two stages that differ by less than this are the same stage twice.
const RATE_STEP: f64 = 0.001;

/// Longest ramp.
const MAX_SECONDS: f64 = 7.0 * 86_400.0;

/// A rate that goes from one value to another in some time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Leg {
    /// Requests per second at its start.
    pub from: f64,
    /// Requests per second at its end.
    pub to: f64,
    /// Its length in seconds.
    pub seconds: f64,
}

/// How a rate changes from request to request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexRamp {
    /// By the same step.
    Linear,
    /// By the same factor.
    Exponential,
}

/// A rate that changes.
#[derive(Clone, Debug, PartialEq)]
pub enum Ramp {
    /// With time.
    Legs(Vec<Leg>),
    /// With the number of the request, as `vllm bench serve` does it with `--ramp-up-strategy`.
    ByIndex {
        /// How.
        strategy: IndexRamp,
        /// Requests per second at the first request.
        start: f64,
        /// Requests per second at the last request.
        end: f64,
    },
}

/// A stage of a run and what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// Start.
    pub from_ns: Nanos,
    /// End.
    pub to_ns: Nanos,
    /// Requests per second at its start.
    pub rate_from: f64,
    /// Requests per second at its end.
    pub rate_to: f64,
    /// Requests that are due in it.
    pub requests: u64,
}

impl Ramp {
    /// A ramp by the number of the request.
    ///
    /// # Errors
    /// A rate that is not a positive number.
    pub fn by_index(strategy: IndexRamp, start: f64, end: f64) -> Result<Self, WorkloadError> {
        for rate in [start, end] {
            if !(rate.is_finite() && rate > 0.0) {
                return Err(bad(rate, "a rate must be a positive number"));
            }
        }
        Ok(Ramp::ByIndex {
            strategy,
            start,
            end,
        })
    }

    /// Whole length of a ramp in time.
    pub(crate) fn seconds(&self) -> Option<f64> {
        match self {
            Ramp::Legs(legs) => Some(legs.iter().map(|leg| leg.seconds).sum()),
            Ramp::ByIndex { .. } => None,
        }
    }

    /// Whether time ends it.
    pub(crate) fn is_timed(&self) -> bool {
        matches!(self, Ramp::Legs(_))
    }

    /// Requests that are due on average.
    #[cfg(test)]
    fn expected(&self) -> Option<f64> {
        match self {
            Ramp::Legs(legs) => Some(legs.iter().map(Leg::area).sum()),
            Ramp::ByIndex { .. } => None,
        }
    }

    /// Offsets below `horizon`, ascending, at most `max`, from the arrivals of the unit-rate
    /// process, given by their gaps.
    pub(crate) fn offsets(
        &self,
        horizon: Nanos,
        max: usize,
        mut unit_gap: impl FnMut(usize) -> f64,
    ) -> Vec<Nanos> {
        let mut offsets = Vec::new();
        let (mut unit, mut at_s) = (0.0, 0.0);
        while offsets.len() < max {
            let gap = unit_gap(offsets.len());
            unit += gap;
            let next = match self {
                Ramp::Legs(legs) => instant(legs, unit),
                Ramp::ByIndex {
                    strategy,
                    start,
                    end,
                } => {
                    let progress = offsets.len() as f64 / (max.max(2) - 1) as f64;
                    at_s += gap / index_rate(*strategy, *start, *end, progress);
                    Some(at_s)
                }
            };
            let Some(at) = next.map(Nanos::from_secs_f64).filter(|&at| at < horizon) else {
                break;
            };
            offsets.push(at);
        }
        offsets
    }

    /// The stages, with the requests of `offsets` that fall into each.
    pub(crate) fn stages(&self, offsets: &[Nanos]) -> Vec<Stage> {
        let Ramp::Legs(legs) = self else {
            return Vec::new();
        };
        let mut start_s = 0.0;
        let stage = |leg: &Leg| {
            let from_ns = Nanos::from_secs_f64(start_s);
            start_s += leg.seconds;
            let to_ns = Nanos::from_secs_f64(start_s);
            let until = |at: Nanos| offsets.partition_point(|&offset| offset < at) as u64;
            Stage {
                from_ns,
                to_ns,
                rate_from: leg.from,
                rate_to: leg.to,
                requests: until(to_ns) - until(from_ns),
            }
        };
        legs.iter().map(stage).collect()
    }

    /// Checks a ramp, however it was made.
    ///
    /// # Errors
    /// Rates or times out of range; two flat stages of one rate.
    pub fn validate(&self) -> Result<(), WorkloadError> {
        let legs = match self {
            Ramp::ByIndex {
                strategy,
                start,
                end,
            } => return Ramp::by_index(*strategy, *start, *end).map(drop),
            Ramp::Legs(legs) => legs,
        };
        if legs.is_empty() {
            return Err(bad("", "give at least one stage, such as 5:60"));
        }
        for leg in legs {
            let rates = [leg.from, leg.to];
            if !rates.iter().all(|rate| rate.is_finite() && *rate >= 0.0) {
                return Err(bad(leg, "a rate must be a number from 0"));
            }
            if !(leg.seconds.is_finite() && leg.seconds > 0.0 && leg.seconds <= MAX_SECONDS) {
                return Err(bad(
                    leg,
                    "a stage must last more than 0 s and at most a week",
                ));
            }
        }
        if legs.iter().all(|leg| leg.area() == 0.0) {
            return Err(bad(self, "some stage must have a rate above 0"));
        }
        // A sweep that names one rate twice measures it twice and calls it two points.
        let mut flat: Vec<i64> = Vec::new();
        for leg in legs.iter().filter(|leg| leg.from == leg.to) {
            let rounded = (leg.from / RATE_STEP).round() as i64;
            if flat.contains(&rounded) {
                let fix = format!(
                    "rate {} comes twice (rates are compared to {RATE_STEP}/s): give each stage \
                     its own rate",
                    leg.from
                );
                return Err(bad(self, fix));
            }
            flat.push(rounded);
        }
        Ok(())
    }
}

fn bad(value: impl ToString, fix: impl Into<String>) -> WorkloadError {
    WorkloadError::parameter("ramp", value, fix)
}

fn index_rate(strategy: IndexRamp, start: f64, end: f64, progress: f64) -> f64 {
    match strategy {
        IndexRamp::Linear => start + (end - start) * progress,
        IndexRamp::Exponential => start * libm::pow(end / start, progress),
    }
}

/// When the integral of the rate reaches `unit`; `None` when it never does.
fn instant(legs: &[Leg], unit: f64) -> Option<f64> {
    let (mut left, mut start_s) = (unit, 0.0);
    for leg in legs {
        let area = leg.area();
        if left <= area && area > 0.0 {
            return Some(start_s + leg.time_of(left));
        }
        left -= area;
        start_s += leg.seconds;
    }
    None
}

impl Leg {
    /// Requests that are due in it on average.
    fn area(&self) -> f64 {
        (self.from + self.to) / 2.0 * self.seconds
    }

    /// Seconds from its start until `area` requests are due: the root of
    /// `from t + (to - from) / (2 seconds) t^2 = area`, in the form that also holds for a flat leg.
    fn time_of(&self, area: f64) -> f64 {
        let slope = (self.to - self.from) / self.seconds;
        let root = libm::sqrt((self.from * self.from + 2.0 * slope * area).max(0.0));
        let denominator = self.from + root;
        match denominator > 0.0 {
            true => (2.0 * area / denominator).min(self.seconds),
            false => 0.0,
        }
    }
}

impl fmt::Display for Leg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.from == self.to {
            true => write!(f, "{}:{}", self.from, self.seconds),
            false => write!(f, "{}..{}:{}", self.from, self.to, self.seconds),
        }
    }
}

impl fmt::Display for Ramp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ramp::Legs(legs) => {
                let legs: Vec<String> = legs.iter().map(Leg::to_string).collect();
                f.write_str(&legs.join(","))
            }
            Ramp::ByIndex {
                strategy,
                start,
                end,
            } => {
                let name = match strategy {
                    IndexRamp::Linear => "index-linear",
                    IndexRamp::Exponential => "index-exponential",
                };
                write!(f, "{name}:{start}..{end}")
            }
        }
    }
}

impl FromStr for Ramp {
    type Err = WorkloadError;

    /// `RATE:SECONDS` and `FROM..TO:SECONDS`, joined by commas; or `index-linear:FROM..TO` and
    /// `index-exponential:FROM..TO`.
    fn from_str(text: &str) -> Result<Self, WorkloadError> {
        let form = "must be stages RATE:SECONDS or FROM..TO:SECONDS, joined by commas";
        let number = |part: &str| part.trim().parse::<f64>().map_err(|_| bad(text, form));
        for (prefix, strategy) in [
            ("index-linear:", IndexRamp::Linear),
            ("index-exponential:", IndexRamp::Exponential),
        ] {
            if let Some(rates) = text.strip_prefix(prefix) {
                let (start, end) = rates.split_once("..").ok_or_else(|| bad(text, form))?;
                return Ramp::by_index(strategy, number(start)?, number(end)?);
            }
        }
        let leg = |part: &str| {
            let (rates, seconds) = part.split_once(':').ok_or_else(|| bad(text, form))?;
            let (from, to) = rates.split_once("..").unwrap_or((rates, rates));
            Ok(Leg {
                from: number(from)?,
                to: number(to)?,
                seconds: number(seconds)?,
            })
        };
        let legs = text.split(',').map(leg).collect::<Result<_, _>>()?;
        let ramp = Ramp::Legs(legs);
        ramp.validate()?;
        Ok(ramp)
    }
}

impl Serialize for Ramp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Ramp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use pb_contract::Stream;

    use super::*;

    #[test]
    fn row_49_a_rate_that_comes_twice_is_refused() {
        for text in ["2:10,2:20", "1:5,3:5,1.0004:5"] {
            let error = text.parse::<Ramp>().unwrap_err().to_string();
            assert!(error.contains("comes twice"), "{error}");
        }
        assert!("1:5,1.001:5".parse::<Ramp>().is_ok());
        assert!("1..5:5,5..1:5".parse::<Ramp>().is_ok());
    }

    #[test]
    fn row_49_what_is_no_ramp_is_refused() {
        for text in [
            "", "5", "5:0", "x:1", "5:-1", "1..x:4", "nan:3", "0:5", "5:inf", "1:1,",
        ] {
            let error = text.parse::<Ramp>().unwrap_err().to_string();
            assert!(error.starts_with("ramp = "), "{text}: {error}");
        }
        assert!("index-linear:0..4".parse::<Ramp>().is_err());
    }

    #[test]
    fn ramps_are_written_as_they_are_read() {
        for text in [
            "2:10,4:20.5",
            "1..9:60",
            "0..5:3,7:1",
            "index-exponential:1..64",
        ] {
            assert_eq!(text.parse::<Ramp>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_linear_ramp_by_hand() {
        // Rate 0 to 2 in 8 s: the integral is t^2 / 8, so arrival i of equal unit gaps is due at
        // sqrt(8 i): 2.828, 4, 4.899, ..., 8.
        let ramp: Ramp = "0..2:8".parse().unwrap();
        let offsets = ramp.offsets(Nanos::from_secs(100), 100, |_| 1.0);
        let ms: Vec<u64> = offsets.iter().map(|at| at.0 / 1_000_000).collect();
        assert_eq!(ms, [2828, 4000, 4898, 5656, 6324, 6928, 7483, 8000]);
    }

    #[test]
    fn a_stage_starts_at_its_own_rate_and_not_at_the_gap_of_the_one_before() {
        // 0.1/s for 5 s is half an arrival; the other half takes 0.05 s at 10/s.
        let ramp: Ramp = "0.1:5,10:1".parse().unwrap();
        let offsets = ramp.offsets(Nanos::from_secs(100), 100, |_| 1.0);
        assert_eq!(offsets[0], Nanos(5_050_000_000));
        assert_eq!(offsets[1], Nanos(5_150_000_000));
        assert_eq!(offsets.len(), 10);
        let stages = ramp.stages(&offsets);
        assert_eq!((stages[0].requests, stages[1].requests), (0, 10));
        assert_eq!(stages[1].to_ns, Nanos::from_secs(6));
    }

    #[test]
    fn counts_of_a_poisson_ramp_are_the_integral_of_its_rate() {
        let ramp: Ramp = "0..50:40,20:10,100..0:20".parse().unwrap();
        // 1000, 200 and 1000 on average, of one stream.
        assert_eq!(ramp.expected(), Some(2200.0));
        let mut counts = [0u64; 3];
        for seed in 0..40 {
            let mut stream = Stream::new(seed, "unit");
            let gap = |_| stream.exponential(1.0);
            let offsets = ramp.offsets(Nanos::from_secs(1000), usize::MAX, gap);
            assert!(offsets.is_sorted());
            for (count, stage) in counts.iter_mut().zip(ramp.stages(&offsets)) {
                *count += stage.requests;
            }
        }
        for (count, expected) in counts.into_iter().zip([40_000.0, 8_000.0, 40_000.0]) {
            // Poisson: six standard deviations.
            let off = (count as f64 - expected).abs();
            assert!(off < 6.0 * f64::sqrt(expected), "{count} of {expected}");
        }
    }

    #[test]
    fn a_ramp_by_index_has_the_rates_of_its_requests() {
        let linear = Ramp::by_index(IndexRamp::Linear, 1.0, 3.0).unwrap();
        let offsets = linear.offsets(Nanos::from_secs(100), 3, |_| 1.0);
        // Gaps 1/1, 1/2 and 1/3.
        assert_eq!(
            offsets,
            [1_000_000_000, 1_500_000_000, 1_833_333_333].map(Nanos)
        );
        let steep = Ramp::by_index(IndexRamp::Exponential, 1.0, 4.0).unwrap();
        let offsets = steep.offsets(Nanos::from_secs(100), 3, |_| 1.0);
        assert_eq!(
            offsets,
            [1_000_000_000, 1_500_000_000, 1_750_000_000].map(Nanos)
        );
    }
}
