//! Histograms of a metrics page, with the error that their buckets bring.
//!
//! A bucket says that a value lies between two bounds and nothing more. A quantile is therefore
//! given as the bounds of its bucket, never as an interpolated value; when nearly everything lies
//! in the lowest bucket, or the value lies above the highest bound, it cannot be recovered at
//! all. The mean is exact, because sum and count are kept beside the buckets.

use serde::{Deserialize, Serialize};

use crate::prometheus::{Exposition, Sample};

/// Share of the lowest bucket from which on no quantile is given.
const LOWEST_SHARE: f64 = 0.99;

/// A histogram with cumulative counts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// Upper bounds in seconds, ascending, without the infinite one.
    pub bounds_s: Vec<f64>,
    /// Values at or below each bound.
    pub cumulative: Vec<u64>,
    /// All values.
    pub count: u64,
    /// Sum of all values in seconds.
    pub sum_s: f64,
}

/// What a histogram says of a quantile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recovered {
    /// No values.
    Empty,
    /// The quantile is greater than `low_s` and at most `high_s`.
    Between {
        /// Lower bound in seconds, excluded.
        low_s: f64,
        /// Upper bound in seconds.
        high_s: f64,
    },
    /// The buckets are too coarse.
    NotRecoverable {
        /// Why.
        why: String,
    },
}

impl Histogram {
    /// Reads the histogram `name`, summed over its label sets (engines, ranks, methods) that
    /// `keep` accepts; `None` when the page has none.
    ///
    /// # Errors
    /// The buckets contradict each other.
    pub fn read(
        page: &Exposition,
        name: &str,
        keep: impl Fn(&Sample) -> bool,
    ) -> Result<Option<Histogram>, String> {
        let total = |suffix: &str| -> Option<f64> {
            let name = format!("{name}{suffix}");
            let values: Vec<f64> = page
                .named(&name)
                .filter(|s| keep(s))
                .map(|s| s.value)
                .collect();
            (!values.is_empty()).then(|| values.iter().sum())
        };
        let bucket = format!("{name}_bucket");
        let mut rows: Vec<(f64, f64, usize)> = Vec::new();
        for sample in page.named(&bucket).filter(|s| keep(s)) {
            let bound = sample.label("le").and_then(|le| le.parse::<f64>().ok());
            let bound = bound.filter(|b| !b.is_nan());
            let bound = bound.ok_or_else(|| format!("{bucket}: a bucket without a bound"))?;
            match rows.iter_mut().find(|row| row.0 == bound) {
                Some(row) => (row.1, row.2) = (row.1 + sample.value, row.2 + 1),
                None => rows.push((bound, sample.value, 1)),
            }
        }
        if rows.is_empty() {
            return Ok(None);
        }
        rows.sort_by(|a, b| a.0.total_cmp(&b.0));
        if rows.iter().any(|row| row.2 != rows[0].2) {
            return Err(format!("{name}: its series have different buckets"));
        }
        let sum = total("_sum").filter(|sum| sum.is_finite());
        let sum_s = sum.ok_or_else(|| format!("{name}: no finite sum"))?;
        Self::from_rows(name, &rows, total("_count"), sum_s).map(Some)
    }

    fn from_rows(
        name: &str,
        rows: &[(f64, f64, usize)],
        count: Option<f64>,
        sum_s: f64,
    ) -> Result<Histogram, String> {
        let finite = rows.iter().filter(|row| row.0.is_finite());
        let whole: Option<Vec<u64>> = finite.clone().map(|row| whole(row.1)).collect();
        let infinite = rows.iter().find(|row| row.0 == f64::INFINITY);
        let top = infinite.map(|row| row.1);
        let count = count.or(top).and_then(crate::histogram::whole);
        let (Some(cumulative), Some(count)) = (whole, count) else {
            return Err(format!("{name}: a count that is not a whole number"));
        };
        if top.is_some_and(|top| top != count as f64) {
            return Err(format!("{name}: the infinite bucket is not the count"));
        }
        let falls = cumulative.windows(2).any(|pair| pair[0] > pair[1]);
        if falls || cumulative.last().is_some_and(|last| *last > count) {
            return Err(format!("{name}: the cumulative counts fall"));
        }
        Ok(Histogram {
            bounds_s: finite.map(|row| row.0).collect(),
            cumulative,
            count,
            sum_s,
        })
    }

    /// What came between an earlier reading and this one; `None` when the two do not belong to
    /// one run of the server.
    pub fn since(&self, earlier: &Histogram) -> Option<Histogram> {
        if self.bounds_s != earlier.bounds_s {
            return None;
        }
        let pairs = self.cumulative.iter().zip(&earlier.cumulative);
        let cumulative: Option<Vec<u64>> = pairs.map(|(a, b)| a.checked_sub(*b)).collect();
        Some(Histogram {
            bounds_s: self.bounds_s.clone(),
            cumulative: cumulative?,
            count: self.count.checked_sub(earlier.count)?,
            sum_s: (self.sum_s - earlier.sum_s).max(0.0),
        })
    }

    /// Mean in seconds; exact.
    pub fn mean_s(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum_s / self.count as f64)
    }

    /// The bucket of the nearest-rank quantile `q` of 0 to 1.
    pub fn quantile(&self, q: f64) -> Recovered {
        if self.count == 0 {
            return Recovered::Empty;
        }
        let lowest = self.cumulative.first().copied().unwrap_or(0);
        if lowest as f64 >= LOWEST_SHARE * self.count as f64 {
            let why = format!(
                "{lowest} of {} values lie in the lowest bucket, up to {} s",
                self.count, self.bounds_s[0]
            );
            return Recovered::NotRecoverable { why };
        }
        let rank = (q.clamp(0.0, 1.0) * self.count as f64).ceil().max(1.0) as u64;
        let Some(at) = self.cumulative.iter().position(|n| *n >= rank) else {
            let why = match self.bounds_s.last() {
                Some(last) => format!("the value lies above the highest bound, {last} s"),
                None => "the histogram has no finite bucket".to_owned(),
            };
            return Recovered::NotRecoverable { why };
        };
        let below = at.checked_sub(1).map(|at| self.bounds_s[at]);
        let high_s = self.bounds_s[at];
        Recovered::Between {
            // Latencies are not negative, whatever the lowest bound is.
            low_s: below.unwrap_or(high_s.min(0.0)),
            high_s,
        }
    }
}

/// A count as a whole number; a page writes all numbers as floating point.
pub(crate) fn whole(value: f64) -> Option<u64> {
    let fits = value >= 0.0 && value < 2f64.powi(53) && value.fract() == 0.0;
    fits.then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(rows: &[(&str, u64)], sum: &str, count: u64) -> Result<Option<Histogram>, String> {
        let bucket = |(le, n): &(&str, u64)| format!("h_bucket{{le=\"{le}\"}} {n}\n");
        let mut text: String = rows.iter().map(bucket).collect();
        text += &format!("h_sum {sum}\nh_count {count}\n");
        Histogram::read(&Exposition::parse(&text), "h", |_| true)
    }

    #[test]
    fn quantiles_are_buckets() {
        let rows = [("0.1", 2), ("0.2", 5), ("0.4", 9), ("+Inf", 10)];
        let h = read(&rows, "2.5", 10).unwrap().unwrap();
        let between = |low_s, high_s| Recovered::Between { low_s, high_s };
        assert_eq!(h.quantile(0.2), between(0.0, 0.1));
        assert_eq!(h.quantile(0.5), between(0.1, 0.2));
        assert_eq!(h.quantile(0.51), between(0.2, 0.4));
        let Recovered::NotRecoverable { why } = h.quantile(0.99) else {
            panic!("{:?}", h.quantile(0.99));
        };
        assert!(why.contains("above the highest bound, 0.4 s"), "{why}");
        assert_eq!(h.mean_s(), Some(0.25));
    }

    /// sglang #12064, vllm #55276: with the mass in the lowest bucket, any interpolated value is
    /// made up.
    #[test]
    fn row_11_mass_in_the_lowest_bucket_is_not_recoverable() {
        let full = read(&[("0.01", 99), ("0.02", 100), ("+Inf", 100)], "0.5", 100);
        let full = full.unwrap().unwrap();
        for q in [0.5, 0.99, 1.0] {
            let Recovered::NotRecoverable { why } = full.quantile(q) else {
                panic!("{q}: {:?}", full.quantile(q));
            };
            assert!(why.contains("99 of 100 values"), "{why}");
        }
        let spread = read(&[("0.01", 98), ("0.02", 100), ("+Inf", 100)], "0.5", 100);
        let below = Recovered::Between {
            low_s: 0.0,
            high_s: 0.01,
        };
        assert_eq!(spread.unwrap().unwrap().quantile(0.5), below);
    }

    #[test]
    fn no_values_give_no_number() {
        let empty = read(&[("0.1", 0), ("+Inf", 0)], "0", 0).unwrap().unwrap();
        assert_eq!(empty.quantile(0.5), Recovered::Empty);
        assert_eq!(empty.mean_s(), None);
        let page = Exposition::parse("other 1");
        assert_eq!(Histogram::read(&page, "h", |_| true), Ok(None));
    }

    #[test]
    fn contradictions_are_errors() {
        for (rows, sum, count, part) in [
            (vec![("0.1", 3), ("0.2", 2), ("+Inf", 3)], "1", 3, "fall"),
            (vec![("0.1", 1), ("+Inf", 2)], "1", 3, "infinite bucket"),
            (vec![("0.1", 4)], "1", 3, "fall"),
            (vec![("x", 1)], "1", 1, "without a bound"),
            (vec![("0.1", 1), ("+Inf", 1)], "NaN", 1, "finite sum"),
        ] {
            let error = read(&rows, sum, count).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_window_is_the_difference_of_its_edges() {
        let before = read(&[("0.1", 1), ("0.2", 1), ("+Inf", 1)], "0.05", 1);
        let after = read(&[("0.1", 1), ("0.2", 4), ("+Inf", 5)], "1.05", 5);
        let (before, after) = (before.unwrap().unwrap(), after.unwrap().unwrap());
        let window = after.since(&before).unwrap();
        assert_eq!((window.count, window.cumulative.clone()), (4, vec![0, 3]));
        assert_eq!(window.mean_s(), Some(0.25));
        assert_eq!(before.since(&after), None, "a restarted server");
    }

    #[test]
    fn label_sets_are_summed() {
        let page = Exposition::parse(
            "h_bucket{engine=\"0\",le=\"1\"} 1\nh_bucket{engine=\"1\",le=\"1\"} 2\n\
             h_bucket{engine=\"0\",le=\"+Inf\"} 2\nh_bucket{engine=\"1\",le=\"+Inf\"} 2\n\
             h_sum{engine=\"0\"} 3\nh_sum{engine=\"1\"} 1\nh_count{engine=\"0\"} 2\n\
             h_count{engine=\"1\"} 2\n",
        );
        let h = Histogram::read(&page, "h", |_| true).unwrap().unwrap();
        assert_eq!(
            (h.count, h.cumulative.as_slice(), h.sum_s),
            (4, &[3][..], 4.0)
        );
        let one = |s: &Sample| s.label("engine") == Some("1");
        let h = Histogram::read(&page, "h", one).unwrap().unwrap();
        assert_eq!((h.count, h.sum_s), (2, 1.0));
    }
}
