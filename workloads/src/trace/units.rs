//! Which unit the numbers of a time column count.
//!
//! Files do not say. Mooncake writes milliseconds under the very name that others use for seconds,
//! and a reader that guesses wrong replays a thousand times too fast or too slow. Two things can be
//! checked: what the format documents, and whether the rate that a unit implies can be real.

use crate::trace::formats::TraceFormat;
use crate::trace::time::{Decimal, TimeUnit};

/// Rates that a trace of a service can have, per second: one an hour to ten thousand a second.
const POSSIBLE: (f64, f64) = (1.0 / 3_600.0, 10_000.0);

/// Rates that a trace worth replaying has, per second. Only used to tell units apart.
const USUAL: (f64, f64) = (1.0 / 60.0, 1_000.0);

/// The times of a file.
#[derive(Clone, Debug, Default)]
pub(crate) struct TimeSurvey {
    count: u64,
    least: Option<Decimal>,
    most: Option<Decimal>,
    fractional: bool,
}

impl TimeSurvey {
    pub(crate) fn add(&mut self, at: Decimal) {
        self.count += 1;
        self.least = Some(self.least.map_or(at, |least| least.min(at)));
        self.most = Some(self.most.map_or(at, |most| most.max(at)));
        self.fractional |= at.is_fractional();
    }

    pub(crate) fn any(&self) -> bool {
        self.count > 0
    }

    /// Requests per second when the numbers count `unit`; `None` when all are the same.
    fn rate(&self, unit: TimeUnit) -> Option<f64> {
        let span = self.most?.to_f64() - self.least?.to_f64();
        let seconds = span * unit.ns() as f64 / 1e9;
        (seconds > 0.0).then(|| (self.count - 1) as f64 / seconds)
    }

    /// The unit, and why.
    ///
    /// # Errors
    /// It cannot be told: why not.
    pub(crate) fn decide(
        &self,
        format: TraceFormat,
        asked: Option<TimeUnit>,
    ) -> Result<(TimeUnit, String), String> {
        let seen = format!("{} mean rate", self.described());
        if let Some(unit) = asked {
            return Ok((unit, format!("as set; {seen}")));
        }
        let within = |unit, (low, high): (f64, f64)| {
            let rate = self.rate(unit);
            rate.is_none_or(|rate| (low..=high).contains(&rate))
        };
        if let Some(unit) = format.documented_unit() {
            // Conversations overlap as their starts are drawn, so their times imply no rate.
            if within(unit, POSSIBLE) || format.has_local_times() {
                return Ok((unit, format!("as documented for {format}; {seen}")));
            }
            return Err(format!(
                "{format} documents {unit}, which cannot be: {seen}, where one request an hour to \
                 10,000 a second is possible; set its unit"
            ));
        }
        let candidates = [TimeUnit::S, TimeUnit::Ms];
        let usual: Vec<TimeUnit> = candidates
            .into_iter()
            .filter(|&unit| within(unit, USUAL))
            .collect();
        let possible = candidates.into_iter().find(|&unit| within(unit, POSSIBLE));
        match (&usual[..], possible) {
            (&[unit], _) => Ok((unit, format!("the only one with a usual rate; {seen}"))),
            (&[], Some(_)) | (&[_, _], _) => Err(format!(
                "the unit of `timestamp` is ambiguous: {seen}; set its unit to s or ms"
            )),
            _ => Err(format!("no unit fits `timestamp`: {seen}; set its unit")),
        }
    }

    /// What each unit would mean.
    fn described(&self) -> String {
        let one = |unit: TimeUnit| match self.rate(unit) {
            Some(rate) if rate >= 0.1 => format!("{unit} would mean {rate:.3}/s"),
            Some(rate) => format!("{unit} would mean {:.3}/h", rate * 3_600.0),
            None => format!("{unit} would mean no"),
        };
        let kind = match self.fractional {
            true => "fractional",
            false => "whole",
        };
        format!(
            "{kind} numbers, {} and {}",
            one(TimeUnit::S),
            one(TimeUnit::Ms)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey(times: &[&str]) -> TimeSurvey {
        let mut survey = TimeSurvey::default();
        times
            .iter()
            .for_each(|t| survey.add(Decimal::parse(t).unwrap()));
        survey
    }

    #[test]
    fn a_documented_unit_holds_unless_its_rate_cannot_be() {
        let ms = survey(&["0", "27", "300"]);
        let (unit, why) = ms.decide(TraceFormat::Mooncake, None).unwrap();
        assert_eq!(unit, TimeUnit::Ms);
        assert!(why.contains("s would mean 24.000/h"), "{why}");
        // 100,001 requests in 100 ms are a million a second.
        let mut fast = TimeSurvey::default();
        (0..=100_000).for_each(|i| fast.add(Decimal::parse(&(i / 1_000).to_string()).unwrap()));
        let why = fast.decide(TraceFormat::Mooncake, None).unwrap_err();
        assert!(
            why.contains("cannot be") && why.contains("its unit"),
            "{why}"
        );
        assert_eq!(
            fast.decide(TraceFormat::Mooncake, Some(TimeUnit::S))
                .unwrap()
                .0,
            TimeUnit::S
        );
        let slow = survey(&["0", "36000"]);
        assert!(slow.decide(TraceFormat::Bailian, None).is_err());
        assert_eq!(
            survey(&["5", "5"])
                .decide(TraceFormat::Bailian, None)
                .unwrap()
                .0,
            TimeUnit::S
        );
    }

    #[test]
    fn an_undocumented_unit_is_told_by_its_rate_or_refused() {
        let decide = |times: &[&str]| survey(times).decide(TraceFormat::VllmTimed, None);
        assert_eq!(decide(&["12.4", "12.4", "13.15"]).unwrap().0, TimeUnit::S);
        // 72 units apart: 14 a second, or 50 an hour.
        assert_eq!(decide(&["46.9", "118.9", "190.9"]).unwrap().0, TimeUnit::Ms);
        // 20 units apart: 50 a second or three a minute, and both can be.
        let why = decide(&["0.5", "20.5", "40.5"]).unwrap_err();
        assert!(
            why.contains("ambiguous") && why.contains("unit to s or ms"),
            "{why}"
        );
        assert!(why.contains("ms would mean 50.000/s"), "{why}");
    }
}
