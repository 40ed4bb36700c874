//! Student's t and the normal distribution: distribution functions, tails and quantiles.
//!
//! Tails are computed as tails, not as one minus something, so that a p-value of 1e-12 is right.

use crate::special::{erfc, incomplete_beta};

/// `P(Z <= z)` for a standard normal Z.
pub fn normal_cdf(z: f64) -> f64 {
    0.5 * erfc(-z / std::f64::consts::SQRT_2)
}

/// `P(Z > z)` for a standard normal Z.
pub fn normal_upper_tail(z: f64) -> f64 {
    0.5 * erfc(z / std::f64::consts::SQRT_2)
}

/// The z with `P(Z <= z) = p`. NaN outside `[0, 1]`, infinite at its ends.
pub fn normal_quantile(p: f64) -> f64 {
    if !(0.0..=1.0).contains(&p) {
        return f64::NAN;
    }
    if p > 0.5 {
        return -normal_quantile(1.0 - p);
    }
    if p == 0.0 {
        return f64::NEG_INFINITY;
    }
    // Abramowitz and Stegun 26.2.23 starts within 5e-4; Newton steps on the logarithm of the tail,
    // which is nearly quadratic in z and so well behaved at any depth, finish it.
    let t = (-2.0 * p.ln()).sqrt();
    let top = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let bottom = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    let mut z = -(t - top / bottom);
    for _ in 0..6 {
        let tail = normal_cdf(z);
        let density = (-0.5 * z * z).exp() / std::f64::consts::TAU.sqrt();
        let step = (tail.ln() - p.ln()) * tail / density;
        z -= step;
        if step.abs() <= 1e-16 * z.abs() {
            break;
        }
    }
    z
}

/// `P(T > t)` for Student's t with `df > 0` degrees of freedom. NaN for a bad `df`.
pub fn t_upper_tail(t: f64, df: f64) -> f64 {
    if t.is_nan() || df.is_nan() || df <= 0.0 {
        return f64::NAN;
    }
    if t < 0.0 {
        return 1.0 - t_upper_tail(-t, df);
    }
    0.5 * t_two_sided_p(t, df)
}

/// `P(T <= t)` for Student's t with `df > 0` degrees of freedom. NaN for a bad `df`.
pub fn t_cdf(t: f64, df: f64) -> f64 {
    t_upper_tail(-t, df)
}

/// `P(|T| >= |t|)`, the two-sided p-value. An infinite t (no spread, non-zero mean) gives 0.
pub fn t_two_sided_p(t: f64, df: f64) -> f64 {
    if t.is_nan() || df.is_nan() || df <= 0.0 {
        return f64::NAN;
    }
    if df.is_infinite() {
        return 2.0 * normal_upper_tail(t.abs());
    }
    let square = t * t;
    if square.is_infinite() {
        return 0.0;
    }
    if square < df {
        // Near the centre the other branch would lose the small argument 1 - x.
        1.0 - incomplete_beta(0.5, 0.5 * df, square / (df + square))
    } else {
        incomplete_beta(0.5 * df, 0.5, df / (df + square))
    }
}

/// The t with `P(T <= t) = p`. NaN outside `[0, 1]` or for `df <= 0`, infinite at the ends.
pub fn t_quantile(p: f64, df: f64) -> f64 {
    if !(0.0..=1.0).contains(&p) || df.is_nan() || df <= 0.0 {
        return f64::NAN;
    }
    if p == 0.5 {
        return 0.0;
    }
    if p > 0.5 {
        return -t_quantile(1.0 - p, df);
    }
    if p == 0.0 {
        return f64::NEG_INFINITY;
    }
    // Bisection on the upper tail: a few more steps than Newton, but it cannot diverge for small
    // df, where the tails are so heavy that a Newton step overshoots.
    let mut high = 1.0;
    while t_upper_tail(high, df) > p && high < 1e300 {
        high *= 2.0;
    }
    let mut low = 0.0;
    loop {
        let middle = 0.5 * (low + high);
        if middle <= low || middle >= high {
            return -middle;
        }
        if t_upper_tail(middle, df) > p {
            low = middle;
        } else {
            high = middle;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::close;

    #[test]
    fn normal_cdf_and_tail_match_high_precision_values() {
        // mpmath 1.3 at 30 digits.
        close(normal_cdf(-8.0), 6.220_960_574_271_784e-16, 1e-13, 0.0);
        close(normal_cdf(-2.5), 0.006_209_665_325_776_135, 1e-14, 0.0);
        close(normal_cdf(-1.0), 0.158_655_253_931_457_05, 1e-14, 0.0);
        close(normal_cdf(0.3), 0.617_911_422_188_952_6, 1e-14, 0.0);
        close(normal_cdf(1.96), 0.975_002_104_851_779_6, 1e-15, 0.0);
        close(
            normal_upper_tail(8.0),
            6.220_960_574_271_784e-16,
            1e-13,
            0.0,
        );
    }

    #[test]
    fn normal_quantile_matches_high_precision_values() {
        close(normal_quantile(1e-300), -37.047_096_299_361_2, 1e-14, 0.0);
        close(normal_quantile(1e-10), -6.361_340_902_404_056, 1e-14, 0.0);
        close(normal_quantile(0.001), -3.090_232_306_167_813_5, 1e-14, 0.0);
        close(normal_quantile(0.025), -1.959_963_984_540_054_2, 1e-14, 0.0);
        close(normal_quantile(0.3), -0.524_400_512_708_040_8, 1e-14, 0.0);
        close(normal_quantile(0.975), 1.959_963_984_540_054_2, 1e-13, 0.0);
        assert!(normal_quantile(0.5).abs() < 1e-15);
        assert_eq!(normal_quantile(1.0), f64::INFINITY);
        assert!(normal_quantile(1.1).is_nan());
    }

    #[test]
    fn t_cdf_matches_high_precision_values() {
        close(t_cdf(1.0, 1.0), 0.75, 1e-14, 0.0);
        close(t_cdf(2.5, 3.0), 0.956_146_676_495_967_2, 1e-13, 0.0);
        close(t_cdf(-2.5, 3.0), 0.043_853_323_504_032_77, 1e-13, 0.0);
        close(t_cdf(0.3, 7.0), 0.613_554_974_798_932_7, 1e-13, 0.0);
        close(t_cdf(-30.0, 9.0), 1.241_852_352_079_131e-10, 1e-12, 0.0);
        close(t_cdf(1.96, 1000.0), 0.974_863_407_522_125_6, 1e-12, 0.0);
        close(t_cdf(-8.0, 2.5), 0.003_828_322_065_521_723, 1e-12, 0.0);
        assert!(t_cdf(1.0, 0.0).is_nan());
    }

    #[test]
    fn t_quantile_reproduces_the_nist_table() {
        // NIST/SEMATECH e-Handbook 1.3.6.7.2, upper critical values of Student's t, 3 decimals.
        let table = [
            (1.0, 0.95, 6.314),
            (1.0, 0.975, 12.706),
            (1.0, 0.99, 31.821),
            (1.0, 0.999, 318.313),
            (2.0, 0.975, 4.303),
            (3.0, 0.975, 3.182),
            (3.0, 0.995, 5.841),
            (5.0, 0.90, 1.476),
            (5.0, 0.975, 2.571),
            (7.0, 0.975, 2.365),
            (10.0, 0.99, 2.764),
            (20.0, 0.975, 2.086),
            (30.0, 0.975, 2.042),
            (100.0, 0.975, 1.984),
        ];
        for (df, p, want) in table {
            // The table's own last digit at df = 1, 0.999 is truncated from 318.3088.
            close(t_quantile(p, df), want, 1.5e-5, 5e-4);
            close(t_quantile(1.0 - p, df), -want, 1.5e-5, 5e-4);
        }
        assert_eq!(t_quantile(0.5, 4.0), 0.0);
        assert_eq!(t_quantile(0.0, 4.0), f64::NEG_INFINITY);
    }

    #[test]
    fn two_sided_p_is_zero_without_spread_and_one_at_the_centre() {
        assert_eq!(t_two_sided_p(f64::INFINITY, 3.0), 0.0);
        assert_eq!(t_two_sided_p(0.0, 3.0), 1.0);
        // df = 1 is Cauchy: P(|T| >= 1) = 1/2.
        close(t_two_sided_p(-1.0, 1.0), 0.5, 1e-14, 0.0);
    }
}
