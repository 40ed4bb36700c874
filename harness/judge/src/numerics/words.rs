//! Rules and their numbers in plain words, in one place, so that the reasons of a verdict and the
//! tables of a report say the same thing in the same way.
//!
//! Nobody reads `6.1532e5` at a glance. Numbers are rounded to what a reader can use, but never so
//! far that a value beyond its limit looks equal to it.

use super::rules::{Check, CheckName, ConfigVerdict, Outcome};
use crate::verdict::Verdict;

impl CheckName {
    /// The statistic in words, for example `mean log error ratio`.
    pub const fn words(self) -> &'static str {
        match self {
            CheckName::Finite => "non-finite logits",
            CheckName::MeanRho => "mean log error ratio",
            CheckName::MaxRho => "worst prompt's log error ratio",
            CheckName::MaxZ => "worst row's error (z)",
            CheckName::DecidableFlips => "top-1 flips, decidable rows",
            CheckName::DeltaNll => "mean change of NLL",
            CheckName::KlMean => "KL divergence mean",
            CheckName::KlP999 => "KL divergence p99.9",
            CheckName::KlMax => "KL divergence max",
            CheckName::RmsDeltaP => "RMS change of p(true token)",
        }
    }

    /// Whether its values are counts, of which none is allowed.
    const fn is_count(self) -> bool {
        matches!(self, CheckName::Finite | CheckName::DecidableFlips)
    }
}

impl Check {
    /// The value in words; `unknown` when nothing could be measured. Shown with all its digits
    /// where rounding would make it look equal to the limit.
    pub fn value_words(&self) -> String {
        match self.value {
            None => "unknown".to_owned(),
            Some(v) if self.name.is_count() && v.is_finite() => grouped(v as u64),
            Some(v) => {
                let blurred = v.abs() != self.limit && plain(v.abs()) == plain(self.limit);
                if blurred { v.to_string() } else { plain(v) }
            }
        }
    }

    /// The statistic, its value with its interval or place, and the limit, in one sentence.
    pub fn sentence(&self) -> String {
        let note = match self.interval {
            Some((low, high)) => format!("interval {} to {}", plain(low), plain(high)),
            None => self.detail.clone(),
        };
        let is = if self.name.is_count() { ":" } else { " is" };
        let (name, value, limit) = (self.name.words(), self.value_words(), plain(self.limit));
        let words = format!("{name}{is} {value} ({note}), limit {limit}");
        match (self.name, self.outcome, self.value) {
            (CheckName::MeanRho, Outcome::Fail, Some(v)) => {
                let side = if v < 0.0 { "more" } else { "less" };
                format!("differs in accuracy from the monolithic pass: {side} accurate, {words}")
            }
            _ => words,
        }
    }

    /// Whether it failed because the variant is closer to the reference than the monolithic pass.
    fn is_more_accurate(&self) -> bool {
        self.name == CheckName::MeanRho && self.value.is_some_and(|v| v < 0.0)
    }
}

impl ConfigVerdict {
    /// The verdict with its reasons put into today's words, also when an older version stored it.
    pub fn restated(&self) -> Verdict {
        let now = verdict_of(&self.checks);
        // The stored verdict is the one that counts; only its wording may be renewed.
        if std::mem::discriminant(&now) == std::mem::discriminant(&self.verdict) {
            now
        } else {
            self.verdict.clone()
        }
    }

    /// Whether it failed only because the variant is more accurate than the monolithic pass. That
    /// is a difference, so not an equivalence, but no error either.
    pub fn is_only_more_accurate(&self) -> bool {
        let failed = || self.checks.iter().filter(|c| c.outcome == Outcome::Fail);
        self.verdict.is_fail() && failed().next().is_some() && failed().all(Check::is_more_accurate)
    }
}

/// The verdict over the checks of one configuration, with a sentence for each that did not pass.
pub(crate) fn verdict_of(checks: &[Check]) -> Verdict {
    let pick = |outcome: Outcome| -> Vec<String> {
        let picked = checks.iter().filter(|check| check.outcome == outcome);
        picked.map(Check::sentence).collect()
    };
    Verdict::from_findings(pick(Outcome::Fail), pick(Outcome::Inconclusive))
}

/// A count with its digits in groups of three, for example `26,345,438`.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number rounded for reading and without an exponent: two or more decimals below 10, three
/// significant digits above, thousands in groups. For example `-0.62`, `0.0010`, `20`, `615,000`.
pub fn plain(value: f64) -> String {
    let size = value.abs();
    if value.is_nan() {
        return "not a number".to_owned();
    }
    let sign = if value < 0.0 { "-" } else { "" };
    match size {
        0.0 => "0".to_owned(),
        s if s.is_infinite() => format!("{sign}∞"),
        s if s >= 1e15 => format!("{value:.2e}"),
        s if s >= 999.5 => {
            let unit = 10_f64.powi(s.log10().floor() as i32 - 2).max(1.0);
            format!("{sign}{}", grouped(((s / unit).round() * unit) as u64))
        }
        s if s >= 99.95 => format!("{value:.0}"),
        s if s >= 9.995 => {
            let text = format!("{value:.1}");
            text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
        }
        s => {
            let decimals = (1 - s.log10().floor() as i32).clamp(2, 17) as usize;
            format!("{value:.decimals$}")
        }
    }
}

/// Two different values with four decimals, or with all digits where four cannot tell them apart.
pub(super) fn apart(got: f64, expected: f64) -> (String, String) {
    let short = (format!("{got:.4}"), format!("{expected:.4}"));
    if short.0 == short.1 {
        (got.to_string(), expected.to_string())
    } else {
        short
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: CheckName, value: f64, limit: f64, detail: &str) -> Check {
        Check {
            name,
            value: Some(value),
            limit,
            share: Some(value.abs() / limit),
            interval: None,
            p: None,
            p_beyond: None,
            outcome: Outcome::Fail,
            detail: detail.to_owned(),
        }
    }

    #[test]
    fn numbers_read_without_an_exponent() {
        let pairs = [
            (-0.624_23, "-0.62"),
            (0.1, "0.10"),
            (0.001, "0.0010"),
            (-3.11e-7, "-0.00000031"),
            (2.5, "2.50"),
            (9.996, "10"),
            (20.0, "20"),
            (11.268, "11.3"),
            (334.4, "334"),
            (999.7, "1,000"),
            (615_321.5, "615,000"),
            (-1_234_567.0, "-1,230,000"),
            (0.0, "0"),
            (f64::INFINITY, "∞"),
        ];
        for (value, text) in pairs {
            assert_eq!(plain(value), text);
        }
        assert_eq!(grouped(26_345_438), "26,345,438");
        assert_eq!(
            [grouped(0), grouped(999), grouped(1000)],
            ["0", "999", "1,000"]
        );
    }

    #[test]
    fn a_more_accurate_variant_is_called_that_and_still_fails() {
        let mut mean = check(CheckName::MeanRho, -0.624_23, 0.1, "");
        mean.interval = Some((-0.7485, -0.5));
        assert_eq!(
            mean.sentence(),
            "differs in accuracy from the monolithic pass: more accurate, mean log error ratio is \
             -0.62 (interval -0.75 to -0.50), limit 0.10"
        );
        assert!(verdict_of(std::slice::from_ref(&mean)).is_fail());
        assert!(mean.is_more_accurate());
        mean.value = Some(0.624_23);
        assert!(!mean.is_more_accurate());
        assert!(mean.sentence().contains("pass: less accurate, mean log"));
        // Undecided is no difference: nothing is said of accuracy.
        mean.outcome = Outcome::Inconclusive;
        assert_eq!(
            mean.sentence(),
            "mean log error ratio is 0.62 (interval -0.75 to -0.50), limit 0.10"
        );
    }

    #[test]
    fn maxima_and_counts_name_their_place() {
        let z = check(CheckName::MaxZ, 615_321.5, 20.0, "at prompt 2 position 16");
        assert_eq!(
            z.sentence(),
            "worst row's error (z) is 615,000 (at prompt 2 position 16), limit 20"
        );
        let flips = check(
            CheckName::DecidableFlips,
            21.0,
            0.0,
            "664 of 664 rows decidable",
        );
        assert_eq!(
            flips.sentence(),
            "top-1 flips, decidable rows: 21 (664 of 664 rows decidable), limit 0"
        );
    }

    #[test]
    fn rounding_never_hides_that_a_limit_is_passed() {
        let rho = check(CheckName::MaxRho, 0.4001, 0.4, "at prompt 1");
        assert!(
            rho.sentence().contains(" is 0.4001 (at"),
            "{}",
            rho.sentence()
        );
        assert_eq!(
            apart(3.847_78, 2.776_77),
            ("3.8478".into(), "2.7768".into())
        );
        let (got, expected) = apart(1.000_000_1, 1.0);
        assert_eq!((got.as_str(), expected.as_str()), ("1.0000001", "1"));
    }
}
