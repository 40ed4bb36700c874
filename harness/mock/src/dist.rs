//! Distributions of times and lengths.

use std::fmt;
use std::str::FromStr;

use pb_contract::Stream;

/// A distribution of non-negative numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Dist {
    /// Always the same.
    Fixed(f64),
    /// Exponential with this mean.
    Exponential(f64),
    /// Log-normal with this median and this standard deviation of the logarithm.
    LogNormal {
        /// Median.
        median: f64,
        /// Standard deviation of the natural logarithm.
        sigma: f64,
    },
}

impl Dist {
    /// A value.
    pub fn draw(&self, stream: &mut Stream) -> f64 {
        match *self {
            Dist::Fixed(value) => value,
            Dist::Exponential(mean) => stream.exponential(mean),
            Dist::LogNormal { median, sigma } => median * libm::exp(sigma * stream.normal()),
        }
    }

    /// A value that tells its order of magnitude: the value, the mean, or the value that one draw
    /// in a thousand exceeds.
    pub(crate) fn typical(&self) -> f64 {
        match *self {
            Dist::Fixed(value) | Dist::Exponential(value) => value,
            Dist::LogNormal { median, sigma } => median * libm::exp(3.1 * sigma),
        }
    }

    /// The same distribution in another unit.
    pub fn scaled(self, factor: f64) -> Dist {
        match self {
            Dist::Fixed(value) => Dist::Fixed(value * factor),
            Dist::Exponential(mean) => Dist::Exponential(mean * factor),
            Dist::LogNormal { median, sigma } => Dist::LogNormal {
                median: median * factor,
                sigma,
            },
        }
    }
}

impl fmt::Display for Dist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dist::Fixed(value) => write!(f, "{value}"),
            Dist::Exponential(mean) => write!(f, "exp:{mean}"),
            Dist::LogNormal { median, sigma } => write!(f, "lognormal:{median},{sigma}"),
        }
    }
}

/// A text that is no distribution.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a distribution; write 50, exp:50 (mean) or lognormal:50,0.5 (median, sigma)")]
pub struct DistError(String);

impl FromStr for Dist {
    type Err = DistError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || DistError(text.to_string());
        let number = |part: &str| match part.trim().parse::<f64>() {
            Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
            _ => Err(error()),
        };
        match text.split_once(':') {
            None => number(text).map(Dist::Fixed),
            Some(("exp", mean)) => number(mean).map(Dist::Exponential),
            Some(("lognormal", parameters)) => {
                let (median, sigma) = parameters.split_once(',').ok_or_else(error)?;
                Ok(Dist::LogNormal {
                    median: number(median)?,
                    sigma: number(sigma)?,
                })
            }
            Some(_) => Err(error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_parse_and_print_alike() {
        for text in ["50", "0", "exp:12.5", "lognormal:50,0.5"] {
            assert_eq!(text.parse::<Dist>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "-1",
            "nan",
            "inf",
            "exp",
            "exp:x",
            "lognormal:3",
            "uniform:1,2",
        ] {
            let error = text.parse::<Dist>().unwrap_err().to_string();
            assert!(error.contains("lognormal:50,0.5"), "{error}");
        }
    }

    #[test]
    fn draws_have_the_stated_mean_and_median() {
        let mut stream = Stream::new(7, "dist");
        let n = 40_000;
        let mean = (0..n)
            .map(|_| Dist::Exponential(10.0).draw(&mut stream))
            .sum::<f64>()
            / n as f64;
        // Standard error 10/200 = 0.05.
        assert!((mean - 10.0).abs() < 0.3, "{mean}");
        let dist = Dist::LogNormal {
            median: 20.0,
            sigma: 0.5,
        };
        let mut draws: Vec<f64> = (0..n).map(|_| dist.draw(&mut stream)).collect();
        draws.sort_by(f64::total_cmp);
        let median = draws[n / 2];
        assert!((median - 20.0).abs() < 0.5, "{median}");
        assert_eq!(Dist::Fixed(3.0).scaled(2.0).draw(&mut stream), 6.0);
    }
}
