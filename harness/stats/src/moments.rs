//! Mean and variance in one pass, without the cancellation of sum-of-squares formulas.

/// Welford's running count, mean and sum of squared deviations.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Moments {
    count: u64,
    mean: f64,
    sum_sq_dev: f64,
}

impl Moments {
    /// An empty accumulator.
    pub fn new() -> Self {
        Self::default()
    }

    /// The moments of a slice.
    pub fn of(values: &[f64]) -> Self {
        let mut moments = Self::new();
        for &value in values {
            moments.push(value);
        }
        moments
    }

    /// Adds one value.
    pub fn push(&mut self, value: f64) {
        self.count += 1;
        let delta = value - self.mean;
        self.mean += delta / self.count as f64;
        self.sum_sq_dev += delta * (value - self.mean);
    }

    /// Adds all values of another accumulator (Chan's parallel update).
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        let total = self.count + other.count;
        let delta = other.mean - self.mean;
        let weight = other.count as f64 / total as f64;
        self.sum_sq_dev += other.sum_sq_dev + delta * delta * self.count as f64 * weight;
        self.mean += delta * weight;
        self.count = total;
    }

    /// How many values were added.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Mean; None when empty.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then_some(self.mean)
    }

    /// Sample variance (divisor n - 1); None below two values.
    pub fn variance(&self) -> Option<f64> {
        (self.count > 1).then(|| self.sum_sq_dev / (self.count - 1) as f64)
    }

    /// Sample standard deviation; None below two values.
    pub fn sd(&self) -> Option<f64> {
        self.variance().map(f64::sqrt)
    }

    /// Standard error of the mean; None below two values.
    pub fn se(&self) -> Option<f64> {
        self.variance().map(|v| (v / self.count as f64).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::close;

    #[test]
    fn hand_worked_values() {
        // Mean 5; squared deviations 9+1+1+1+0+0+4+16 = 32; 32/7.
        let m = Moments::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert_eq!(m.mean(), Some(5.0));
        close(m.variance().unwrap(), 32.0 / 7.0, 1e-15, 0.0);
        close(m.se().unwrap(), (32.0_f64 / 56.0).sqrt(), 1e-15, 0.0);
    }

    #[test]
    fn large_offsets_do_not_cancel() {
        // NIST StRD NumAcc3 in small: deviations of 0.1 around 1e6 have variance 0.01.
        let values: Vec<f64> = (0..1001)
            .map(|i| {
                1_000_000.2
                    + if i == 0 {
                        0.0
                    } else if i % 2 == 1 {
                        -0.1
                    } else {
                        0.1
                    }
            })
            .collect();
        let m = Moments::of(&values);
        close(m.mean().unwrap(), 1_000_000.2, 1e-13, 0.0);
        close(m.sd().unwrap(), 0.1, 1e-8, 0.0);
    }

    #[test]
    fn merge_equals_one_pass_and_empty_is_none() {
        let values = [3.0, -1.0, 4.0, 1.5, 9.25, 2.5];
        let whole = Moments::of(&values);
        for cut in 0..=values.len() {
            let mut left = Moments::of(&values[..cut]);
            left.merge(&Moments::of(&values[cut..]));
            assert_eq!(left.count(), whole.count());
            close(left.mean().unwrap(), whole.mean().unwrap(), 1e-14, 0.0);
            close(
                left.variance().unwrap(),
                whole.variance().unwrap(),
                1e-13,
                0.0,
            );
        }
        assert_eq!(Moments::new().mean(), None);
        assert_eq!(Moments::of(&[1.0]).variance(), None);
    }
}
