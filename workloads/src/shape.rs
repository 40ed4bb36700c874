//! The shape of a load: when requests are due, and how many.

use pb_contract::{Nanos, Stream};
use serde::{Deserialize, Serialize};

use crate::arrivals::{Arrivals, SHAPE_FIX, SHAPES};
use crate::error::WorkloadError;
use crate::ramp::{Ramp, Stage};

/// A closed loop without a duration ends by its number of requests, long before this.
pub(crate) const FOREVER: Nanos = Nanos::from_secs(7 * 24 * 3600);

/// Requests of an endless data set when nothing else says how many.
pub(crate) const DEFAULT_PROMPTS: usize = 1_000;

/// Requests of an endless data set that a duration bounds, at most.
pub(crate) const MAX_PROMPTS: usize = 1_000_000;

/// A rule for when requests are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArrivalKind {
    /// Exponential gaps.
    Poisson,
    /// Gamma gaps; the burstiness is their shape.
    Gamma,
    /// Equal gaps.
    Constant,
    /// All at the start.
    Burst,
    /// As recorded.
    Trace,
    /// Slots, each starting its next request at the end of the one before.
    Closed,
}

/// What a load is asked to look like.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoadShape {
    /// Rule for arrivals; see [`LoadShape::resolve`] for what holds without one.
    pub arrival: Option<ArrivalKind>,
    /// Requests per second; infinite means the same as none.
    pub request_rate: Option<f64>,
    /// Shape of gamma gaps: 1 is Poisson, below 1 burstier, above 1 more regular.
    pub burstiness: f64,
    /// Slots of a closed loop. For an open loop it is the driver's to keep, not the plan's.
    pub max_concurrency: Option<usize>,
    /// Requests, or sessions where the data set is made of them.
    pub num_prompts: Option<usize>,
    /// Nothing is due later than this.
    pub duration_s: Option<f64>,
    /// A rate that changes, in place of `request_rate`.
    pub ramp: Option<Ramp>,
}

impl Default for LoadShape {
    fn default() -> Self {
        LoadShape {
            arrival: None,
            request_rate: None,
            burstiness: 1.0,
            max_concurrency: None,
            num_prompts: None,
            duration_s: None,
            ramp: None,
        }
    }
}

/// Instants at which requests are due.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Due {
    pub(crate) offsets: Vec<Nanos>,
    pub(crate) stages: Vec<Stage>,
    /// End of the time in which something can be due; `None` when only the number ends it.
    pub(crate) end: Option<Nanos>,
    /// The number of requests ended it before the time did.
    pub(crate) cut_short: bool,
}

impl Due {
    /// Notes whether the number `max` was what ended it.
    pub(crate) fn ended_by(mut self, max: usize) -> Self {
        self.cut_short = self.end.is_some() && self.offsets.len() == max;
        self
    }
}

impl LoadShape {
    /// The rate, where there is one.
    fn rate(&self) -> Option<f64> {
        self.request_rate.filter(|&rate| rate != f64::INFINITY)
    }

    /// The rule that holds. Without one it is gamma where there is a rate or a ramp and a
    /// burstiness other than 1, Poisson where there is a rate or a ramp, `trace` for a data set
    /// with arrivals, closed where there is a concurrency, and a burst otherwise.
    ///
    /// # Errors
    /// Values out of range, or that contradict each other or the rule.
    pub fn resolve(&self, has_arrivals: bool) -> Result<ArrivalKind, WorkloadError> {
        self.check_values()?;
        let paced = self.rate().is_some() || self.ramp.is_some();
        let kind = self.arrival.unwrap_or(match paced {
            true if self.burstiness != 1.0 => ArrivalKind::Gamma,
            true => ArrivalKind::Poisson,
            false if has_arrivals => ArrivalKind::Trace,
            false if self.max_concurrency.is_some() => ArrivalKind::Closed,
            false => ArrivalKind::Burst,
        });
        let refuse = |key, value: String, fix: &str| {
            Err(WorkloadError::parameter(key, value, fix.to_owned()))
        };
        let name = format!("{kind:?}").to_lowercase();
        let needs_rate = matches!(
            kind,
            ArrivalKind::Poisson | ArrivalKind::Gamma | ArrivalKind::Constant
        );
        if needs_rate && !paced {
            return refuse("arrival", name, "needs request_rate or ramp");
        }
        if !needs_rate && paced {
            let fix = "has no rate: leave request_rate and ramp out, or choose poisson, gamma or \
                       constant";
            return refuse("arrival", name, fix);
        }
        if self.burstiness != 1.0 && kind != ArrivalKind::Gamma {
            let fix = "shapes gamma gaps: choose arrival gamma and a rate";
            return refuse("burstiness", self.burstiness.to_string(), fix);
        }
        if kind == ArrivalKind::Trace && !has_arrivals {
            return refuse("arrival", name, "the data set has no arrivals of its own");
        }
        if kind == ArrivalKind::Closed && self.max_concurrency.is_none() {
            return refuse("arrival", name, "needs max_concurrency");
        }
        if kind == ArrivalKind::Burst && self.duration_s.is_some() {
            return refuse("duration_s", name, "a burst has no duration: leave it out");
        }
        Ok(kind)
    }

    fn check_values(&self) -> Result<(), WorkloadError> {
        let positive = |key, value: Option<f64>| match value {
            Some(x) if !(x > 0.0 && x.is_finite()) => Err(WorkloadError::parameter(
                key,
                x,
                "must be a positive number",
            )),
            _ => Ok(()),
        };
        positive("request_rate", self.rate())?;
        if !SHAPES.contains(&self.burstiness) {
            let value = self.burstiness;
            return Err(WorkloadError::parameter("burstiness", value, SHAPE_FIX));
        }
        positive("duration_s", self.duration_s)?;
        for (key, value) in [
            ("max_concurrency", self.max_concurrency),
            ("num_prompts", self.num_prompts),
        ] {
            if value == Some(0) {
                return Err(WorkloadError::parameter(key, 0, "must be at least 1"));
            }
        }
        if let Some(ramp) = &self.ramp {
            ramp.validate()?;
            if self.rate().is_some() {
                let fix = "a ramp sets the rate: leave request_rate out";
                return Err(WorkloadError::parameter("ramp", ramp, fix));
            }
        }
        Ok(())
    }

    /// The duration as an instant.
    pub(crate) fn duration(&self) -> Option<Nanos> {
        self.duration_s.map(Nanos::from_secs_f64)
    }

    /// When requests are due under `kind`, which must be neither `trace` nor `closed`; at most
    /// `max` of them.
    pub(crate) fn due(
        &self,
        kind: ArrivalKind,
        max: usize,
        seed: u64,
    ) -> Result<Due, WorkloadError> {
        let mut stream = Stream::new(seed, "load/arrivals");
        let duration = self.duration();
        if let Some(ramp) = &self.ramp {
            return Ok(self.due_on_ramp(ramp, kind, max, &mut stream));
        }
        let rate_per_s = self.rate().unwrap_or(1.0);
        let arrivals = match kind {
            ArrivalKind::Poisson => Arrivals::Poisson { rate_per_s },
            ArrivalKind::Gamma => Arrivals::Gamma {
                rate_per_s,
                shape: self.burstiness,
            },
            ArrivalKind::Constant => Arrivals::Constant { rate_per_s },
            ArrivalKind::Burst | ArrivalKind::Trace | ArrivalKind::Closed => {
                Arrivals::Burst { count: max }
            }
        };
        let offsets = arrivals.offsets(duration.unwrap_or(FOREVER), max, &mut stream)?;
        if duration.is_none() && offsets.len() < max && kind != ArrivalKind::Burst {
            let fix = format!("{max} requests would take more than a week");
            return Err(WorkloadError::parameter("request_rate", rate_per_s, fix));
        }
        Ok(Due {
            offsets,
            end: duration,
            ..Due::default()
        })
    }

    fn due_on_ramp(&self, ramp: &Ramp, kind: ArrivalKind, max: usize, stream: &mut Stream) -> Due {
        let own_end = ramp.seconds().map(Nanos::from_secs_f64);
        let end = match (own_end, self.duration()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let shape = self.burstiness;
        let offsets = ramp.offsets(end.unwrap_or(FOREVER), max, |_| match kind {
            ArrivalKind::Constant => 1.0,
            ArrivalKind::Gamma => stream.gamma(shape, 1.0 / shape),
            _ => stream.exponential(1.0),
        });
        Due {
            stages: ramp.stages(&offsets),
            offsets,
            end,
            cut_short: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(text: &str) -> LoadShape {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn the_rule_follows_from_what_is_given() {
        for (text, has_arrivals, kind) in [
            ("", false, ArrivalKind::Burst),
            ("", true, ArrivalKind::Trace),
            ("request_rate = 4", true, ArrivalKind::Poisson),
            (
                "request_rate = 4\nburstiness = 0.5",
                false,
                ArrivalKind::Gamma,
            ),
            ("request_rate = inf", false, ArrivalKind::Burst),
            ("max_concurrency = 8", false, ArrivalKind::Closed),
            (
                "max_concurrency = 8\nrequest_rate = 4.0",
                false,
                ArrivalKind::Poisson,
            ),
            ("ramp = \"1..5:60\"", true, ArrivalKind::Poisson),
            (
                "arrival = \"constant\"\nrequest_rate = 4",
                false,
                ArrivalKind::Constant,
            ),
            (
                "arrival = \"closed\"\nmax_concurrency = 3",
                true,
                ArrivalKind::Closed,
            ),
        ] {
            assert_eq!(shape(text).resolve(has_arrivals).unwrap(), kind, "{text}");
        }
    }

    #[test]
    fn contradictions_are_named() {
        for (text, message) in [
            ("arrival = \"poisson\"", "needs request_rate or ramp"),
            ("arrival = \"burst\"\nrequest_rate = 3", "has no rate"),
            ("arrival = \"trace\"", "no arrivals of its own"),
            ("arrival = \"closed\"", "needs max_concurrency"),
            ("burstiness = 2", "shapes gamma gaps"),
            ("request_rate = 1\nburstiness = 1e308", "from 0.001 to 1e6"),
            ("request_rate = 1\nburstiness = 1e-308", "from 0.001 to 1e6"),
            ("request_rate = 1\nburstiness = nan", "from 0.001 to 1e6"),
            ("duration_s = 5", "a burst has no duration"),
            ("request_rate = -1", "request_rate = -1"),
            ("request_rate = nan", "request_rate = NaN"),
            ("num_prompts = 0", "num_prompts = 0"),
            ("ramp = \"1:5\"\nrequest_rate = 2", "leave request_rate out"),
        ] {
            let error = shape(text).resolve(false).unwrap_err().to_string();
            assert!(error.contains(message), "{text}: {error}");
        }
        assert!(toml::from_str::<LoadShape>("rate = 5").is_err());
    }

    #[test]
    fn a_duration_ends_arrivals_and_a_number_does_too() {
        let due = |text: &str, max| {
            let shape = shape(text);
            let kind = shape.resolve(false).unwrap();
            shape.due(kind, max, 7)
        };
        let timed = due("request_rate = 50\nduration_s = 4", 10_000).unwrap();
        assert_eq!(timed.end, Some(Nanos::from_secs(4)));
        assert!(timed.offsets.iter().all(|&at| at < Nanos::from_secs(4)));
        // 200 on average: six standard deviations.
        assert!(timed.offsets.len().abs_diff(200) < 85);
        assert_eq!(due("request_rate = 50", 30).unwrap().offsets.len(), 30);
        assert!(due("request_rate = 0.0001", 1_000).is_err());
        assert_eq!(due("", 3).unwrap().offsets, [Nanos::ZERO; 3]);
        let ramp = due("ramp = \"5:10,20:10\"\narrival = \"constant\"", 10_000).unwrap();
        assert_eq!(
            (ramp.stages[0].requests, ramp.stages[1].requests),
            (49, 200)
        );
    }
}
