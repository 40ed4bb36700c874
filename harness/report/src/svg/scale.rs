//! From values to pixels, and the ticks between.

use crate::format::significant;

/// How values spread over an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// Equal differences, equal lengths.
    Linear,
    /// Equal ratios, equal lengths. Only positive values have a place.
    Log,
}

/// An axis: a range of values over a range of pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    kind: Kind,
    low: f64,
    high: f64,
    from_px: f64,
    to_px: f64,
    /// The values are counts: there is nothing between two whole numbers.
    whole: bool,
}

impl Scale {
    /// A linear scale over the finite values given, widened when they span nothing.
    pub(crate) fn linear(values: impl IntoIterator<Item = f64>) -> Scale {
        let (low, high) = span(values.into_iter().filter(|v| v.is_finite())).unwrap_or((0.0, 1.0));
        let high = if high > low {
            high
        } else {
            low + low.abs().max(1.0)
        };
        Scale {
            kind: Kind::Linear,
            low,
            high,
            from_px: 0.0,
            to_px: 1.0,
            whole: false,
        }
    }

    /// A linear scale over counts from 0: its ticks are whole numbers.
    pub(crate) fn counts(values: impl IntoIterator<Item = f64>) -> Scale {
        Scale {
            whole: true,
            ..Scale::linear(std::iter::once(0.0).chain(values))
        }
    }

    /// A logarithmic scale over the positive values given, widened to a little more than them.
    pub(crate) fn log(values: impl IntoIterator<Item = f64>) -> Scale {
        let positive = values.into_iter().filter(|v| v.is_finite() && *v > 0.0);
        let (low, high) = span(positive).unwrap_or((1.0, 10.0));
        let (low, high) = (low / 1.15, high * 1.15);
        Scale {
            kind: Kind::Log,
            low,
            high,
            from_px: 0.0,
            to_px: 1.0,
            whole: false,
        }
    }

    /// The same scale of counts: no tick between whole numbers.
    pub(crate) fn whole(mut self) -> Scale {
        self.whole = true;
        self
    }

    /// The same values over other pixels.
    pub(crate) fn over(mut self, from_px: f64, to_px: f64) -> Scale {
        (self.from_px, self.to_px) = (from_px, to_px);
        self
    }

    /// Pixel of a value; values outside are put at the nearer end.
    pub(crate) fn px(&self, value: f64) -> f64 {
        let place = match self.kind {
            Kind::Linear => (value - self.low) / (self.high - self.low),
            Kind::Log if value <= 0.0 => 0.0,
            Kind::Log => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        self.from_px + place.clamp(0.0, 1.0) * (self.to_px - self.from_px)
    }

    /// Whole pixel column or row of a value.
    pub(crate) fn column(&self, value: f64) -> i64 {
        self.px(value).round() as i64
    }

    /// At most about eight tick values inside the range.
    pub(crate) fn ticks(&self) -> Vec<f64> {
        match self.kind {
            Kind::Linear => self.linear_ticks(),
            Kind::Log => self.log_ticks(),
        }
    }

    fn linear_ticks(&self) -> Vec<f64> {
        let raw = (self.high - self.low) / 6.0;
        let base = 10_f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .map(|m| m * base)
            .into_iter()
            .find(|s| *s >= raw);
        let least = if self.whole { 1.0 } else { 0.0 };
        let step = step.unwrap_or(10.0 * base).max(least);
        let first = (self.low / step - 1e-9).ceil() as i64;
        let last = (self.high / step + 1e-9).floor() as i64;
        // A range of about six steps: the count is small whatever the values.
        (first..=last).take(20).map(|i| i as f64 * step).collect()
    }

    fn log_ticks(&self) -> Vec<f64> {
        let decades = (self.high / self.low).log10();
        let marks: &[f64] = match decades {
            d if d > 3.0 => &[1.0],
            d if d > 1.2 => &[1.0, 3.0],
            d if d > 0.6 => &[1.0, 2.0, 5.0],
            _ => return self.linear_ticks(),
        };
        let (first, last) = (
            self.low.log10().floor() as i32,
            self.high.log10().ceil() as i32,
        );
        let every = ((last - first) / 8 + 1) as usize;
        let inside = |v: &f64| *v >= self.low && *v <= self.high;
        (first..=last)
            .step_by(every)
            .flat_map(|e| marks.iter().map(move |m| m * 10_f64.powi(e)))
            .filter(inside)
            .collect()
    }
}

fn span(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |known, value| match known {
        None => Some((value, value)),
        Some((low, high)) => Some((value.min(low), value.max(high))),
    })
}

/// A tick's label: no more digits than its value needs.
pub(crate) fn tick_label(value: f64) -> String {
    let text = significant(value);
    if !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_ticks_are_round() {
        let ticks = Scale::linear([0.0, 2048.0]).ticks();
        assert_eq!(ticks, [0.0, 500.0, 1000.0, 1500.0, 2000.0]);
    }

    #[test]
    fn counts_have_no_half_ticks() {
        let labels = |most: f64| -> Vec<String> {
            let ticks = Scale::counts([most]).ticks();
            ticks.into_iter().map(tick_label).collect()
        };
        assert_eq!(labels(2.0), ["0", "1", "2"]);
        assert_eq!(labels(0.0), ["0", "1"]);
        assert_eq!(labels(7.0), ["0", "2", "4", "6"]);
        assert_eq!(labels(900.0), ["0", "200", "400", "600", "800"]);
        // What is measured and not counted keeps them.
        assert_eq!(Scale::linear([0.0, 2.0]).ticks().len(), 5);
    }

    #[test]
    fn log_ticks_are_decades_over_a_wide_range() {
        let ticks: Vec<String> = Scale::log([0.5, 2000.0])
            .ticks()
            .into_iter()
            .map(tick_label)
            .collect();
        assert_eq!(ticks, ["1", "10", "100", "1000"]);
    }

    #[test]
    fn pixels_follow_the_kind() {
        let linear = Scale::linear([0.0, 10.0]).over(100.0, 200.0);
        assert_eq!(linear.px(2.5), 125.0);
        assert_eq!(linear.px(-3.0), 100.0);
        let log = Scale::log([1.15, 100.0 / 1.15]).over(0.0, 200.0);
        assert!((log.px(10.0) - 100.0).abs() < 1e-9, "{}", log.px(10.0));
        assert_eq!(log.px(0.0), 0.0);
    }

    #[test]
    fn odd_ranges_have_places_and_finite_ticks() {
        for scale in [
            Scale::linear([]),
            Scale::linear([5.0, 5.0]),
            Scale::linear([f64::NAN, 1.0]),
            Scale::log([]),
            Scale::log([3.0]),
            Scale::log([0.0, -1.0]),
            Scale::linear([1e300, 1.5e300]),
        ] {
            let ticks = scale.ticks();
            assert!(
                ticks.len() <= 20 && ticks.iter().all(|t| t.is_finite()),
                "{scale:?}"
            );
            assert!(scale.px(scale.low) < scale.px(scale.high), "{scale:?}");
        }
    }
}
