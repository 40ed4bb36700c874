//! Instants as files write them, without loss.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Unit of the numbers in a time column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimeUnit {
    /// Seconds.
    S,
    /// Milliseconds.
    Ms,
    /// Microseconds.
    Us,
    /// Nanoseconds.
    Ns,
}

impl TimeUnit {
    /// Nanoseconds in one.
    pub fn ns(self) -> u64 {
        match self {
            TimeUnit::S => 1_000_000_000,
            TimeUnit::Ms => 1_000_000,
            TimeUnit::Us => 1_000,
            TimeUnit::Ns => 1,
        }
    }
}

impl fmt::Display for TimeUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TimeUnit::S => "s",
            TimeUnit::Ms => "ms",
            TimeUnit::Us => "us",
            TimeUnit::Ns => "ns",
        })
    }
}

/// A number that is not negative, in billionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Decimal(u128);

/// Billionths in one.
const BILLION: u128 = 1_000_000_000;

/// Largest number: far beyond any time in nanoseconds.
const MAX_WHOLE: u128 = 1 << 64;

impl Decimal {
    pub(crate) const ZERO: Decimal = Decimal(0);

    pub(crate) fn plus(self, other: Decimal) -> Decimal {
        Decimal(self.0 + other.0)
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.contains(['e', 'E']) {
            let value: f64 = text.parse().ok()?;
            let sound = value.is_finite() && (0.0..MAX_WHOLE as f64).contains(&value);
            return sound.then(|| Decimal::parse(&format!("{value:.9}")))?;
        }
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty() || !digits(whole) || !digits(fraction) {
            return None;
        }
        let whole: u128 = whole.parse().ok().filter(|&w| w < MAX_WHOLE)?;
        Some(Decimal(whole * BILLION + u128::from(nanos(fraction))))
    }

    /// Whether it has digits after the point that are not zero.
    pub(crate) fn is_fractional(self) -> bool {
        !self.0.is_multiple_of(BILLION)
    }

    /// In nanoseconds when it counts `unit`; `None` beyond 584 years.
    pub(crate) fn ns(self, unit: TimeUnit) -> Option<u64> {
        u64::try_from(self.0 * u128::from(unit.ns()) / BILLION).ok()
    }

    pub(crate) fn to_f64(self) -> f64 {
        self.0 as f64 / BILLION as f64
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.to_f64())
    }
}

/// Billionths of a run of digits after a point, rounded: up to 10^9. Files that were written from
/// binary fractions hold `5.8926549999999995` for 5.892655.
fn nanos(fraction: &str) -> u32 {
    let digits = fraction.bytes().chain(std::iter::repeat(b'0')).take(9);
    let cut = digits.fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'));
    cut + u32::from(
        fraction
            .as_bytes()
            .get(9)
            .is_some_and(|&digit| digit >= b'5'),
    )
}

/// `YYYY-MM-DD HH:MM:SS`, with a fraction of any length or none, and an offset from UTC or none:
/// nanoseconds since 1970. Azure's files of one year always have seven digits, those of another
/// six and none at all where they would be zeros.
pub(crate) fn datetime_ns(text: &str) -> Option<u64> {
    let text = text.trim();
    let (date, clock) = text.split_once([' ', 'T'])?;
    let mut parts = date.splitn(3, '-').map(number);
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let (clock, offset_s) = split_offset(clock)?;
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let mut parts = clock.splitn(3, ':').map(number);
    let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next()??);
    let sound = (1970..=2500).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60
        && !fraction.is_empty()
        && fraction.bytes().all(|b| b.is_ascii_digit());
    if !sound {
        return None;
    }
    let seconds = days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second - offset_s;
    let seconds = u64::try_from(seconds).ok()?;
    Some(seconds * 1_000_000_000 + u64::from(nanos(fraction)))
}

fn number(text: &str) -> Option<i64> {
    let plain = (1..=4).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| text.parse().ok())?
}

/// The clock without its offset from UTC, and that offset in seconds.
fn split_offset(clock: &str) -> Option<(&str, i64)> {
    if let Some(clock) = clock.strip_suffix(['Z', 'z']) {
        return Some((clock, 0));
    }
    let Some(at) = clock.find(['+', '-']) else {
        return Some((clock, 0));
    };
    let sign = if clock[at..].starts_with('-') { -1 } else { 1 };
    let (hours, minutes) = clock[at + 1..].split_once(':')?;
    Some((
        &clock[..at],
        sign * (number(hours)? * 3_600 + number(minutes)? * 60),
    ))
}

/// Days from 1970-01-01 in the Gregorian calendar: years begin in March, so that a leap day is the
/// last of its year.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_52_fractions_are_kept_to_the_nanosecond() {
        // `date -u -d '2023-11-16 18:15:46' +%s` and so on.
        let cases = [
            ("2023-11-16 18:15:46.6805900", 1_700_158_546_680_590_000),
            (
                "2024-05-10 00:00:00.009930+00:00",
                1_715_299_200_009_930_000,
            ),
            ("2024-05-12 00:00:00+00:00", 1_715_472_000_000_000_000),
            ("2024-02-29T23:59:59.5Z", 1_709_251_199_500_000_000),
            ("2024-05-12 02:00:00+02:00", 1_715_472_000_000_000_000),
            ("2024-05-11 19:30:00-04:30", 1_715_472_000_000_000_000),
            ("1970-01-01 00:00:00", 0),
        ];
        for (text, want) in cases {
            assert_eq!(datetime_ns(text), Some(want), "{text}");
        }
        for text in [
            "",
            "2023-11-16",
            "2023-13-16 00:00:00",
            "2023-11-16 24:00:00",
            "2023-11-16 00:00",
            "2023-11-16 00:00:00.",
            "2023-11-16 00:00:00.1x",
            "2023-11-16 00:00:00+0",
            "1969-11-16 00:00:00",
        ] {
            assert_eq!(datetime_ns(text), None, "{text}");
        }
    }

    #[test]
    fn row_52_numbers_keep_their_unit() {
        let ns = |text, unit| Decimal::parse(text).and_then(|d| d.ns(unit));
        assert_eq!(ns("27482", TimeUnit::Ms), Some(27_482_000_000));
        assert_eq!(ns("27482", TimeUnit::S), Some(27_482_000_000_000));
        assert_eq!(ns("4.314579", TimeUnit::S), Some(4_314_579_000));
        assert_eq!(ns("46.927", TimeUnit::Ms), Some(46_927_000));
        assert_eq!(
            ns("1700158546.680590123", TimeUnit::S),
            Some(1_700_158_546_680_590_123)
        );
        assert_eq!(ns("1.5e3", TimeUnit::Us), Some(1_500_000));
        assert_eq!(ns("5.8926549999999995", TimeUnit::S), Some(5_892_655_000));
        assert_eq!(ns("1.9999999996", TimeUnit::S), Some(2_000_000_000));
        assert_eq!(ns("18446744073709551615", TimeUnit::Ns), Some(u64::MAX));
        assert_eq!(ns("18446744073709551615", TimeUnit::Ms), None);
        for text in ["", "-1", "+1", "1.2.3", "nan", ".5", "1e300", "-1e2", "inf"] {
            assert_eq!(Decimal::parse(text), None, "{text}");
        }
    }
}
