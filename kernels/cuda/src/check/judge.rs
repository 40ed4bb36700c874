//! The rule of acceptance, as FlashAttention's tests have it, and bounds that no setting by hand
//! enters: an error is allowed twice that of a naive evaluation in the low precision plus what f32
//! arithmetic may cost, and never more than the bound derived for the element.

use pb_kernels_cpu::bounds::F32_UNIT_ROUNDOFF;

/// Largest relative error after `k` roundings to f32.
pub fn gamma(k: usize) -> f64 {
    pb_kernels_cpu::bounds::gamma(k, F32_UNIT_ROUNDOFF)
}

/// One output element as exact arithmetic, a naive evaluation in the low precision and the
/// derivation have it.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// In exact arithmetic.
    pub exact: f64,
    /// With every step rounded to the low precision.
    pub naive: f64,
    /// Bound on the error of arithmetic in f32: what is granted beside twice the naive error.
    pub f32_bound: f64,
    /// Bound on the whole error, roundings to the low precision included.
    pub bound: f64,
}

/// Largest `|got - exact|` as a share of what the two rules allow.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    /// Share of twice the worst naive error plus the f32 bound.
    pub of_rule: f64,
    /// Share of the derived bound of the element.
    pub of_bound: f64,
}

impl Verdict {
    /// Whether neither is exceeded.
    pub fn passes(&self) -> bool {
        self.of_rule <= 1.0 && self.of_bound <= 1.0
    }
}

/// Judges a kernel's output. NaN and infinity never pass.
pub fn judge(got: &[f64], want: &[Expected]) -> Verdict {
    assert_eq!(got.len(), want.len(), "outputs");
    let naive = want.iter().map(|e| (e.naive - e.exact).abs());
    let naive = naive.fold(0.0, f64::max);
    let mut verdict = Verdict {
        of_rule: 0.0,
        of_bound: 0.0,
    };
    for (got, e) in got.iter().zip(want) {
        let error = (got - e.exact).abs();
        if !error.is_finite() {
            return Verdict {
                of_rule: f64::INFINITY,
                of_bound: f64::INFINITY,
            };
        }
        let share = |allowed: f64| if error == 0.0 { 0.0 } else { error / allowed };
        verdict.of_rule = verdict.of_rule.max(share(2.0 * naive + e.f32_bound));
        verdict.of_bound = verdict.of_bound.max(share(e.bound));
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::{Expected, judge};

    #[test]
    fn the_rule_refuses_what_is_off() {
        let want = [Expected {
            exact: 1.0,
            naive: 1.01,
            f32_bound: 0.0,
            bound: 0.02,
        }; 2];
        assert!(judge(&[1.0, 1.019], &want).passes());
        assert!(!judge(&[1.0, 1.021], &want).passes());
        assert!(!judge(&[f64::NAN, 1.0], &want).passes());
        assert!(!judge(&[f64::INFINITY, 1.0], &want).passes());
    }
}
