//! Looking early without paying twice: alpha spending at fixed looks.
//!
//! Testing at 5 % after every block, and stopping at the first success, finds "differences" between
//! equal arms in a fifth of all experiments after five looks. Lan and DeMets (1983) spend the 5 %
//! over the looks by a function fixed beforehand; that of O'Brien and Fleming (1979) spends almost
//! nothing early, so that the last look is nearly as sharp as a single test would have been.
//! Boundaries come from the recursive integration of Armitage, McPherson and Rowe (1969).

use crate::dist::{normal_cdf, normal_quantile, normal_upper_tail};
use crate::error::{StatError, check_open_unit};

/// Points of Simpson's rule between the boundaries; odd.
const GRID: usize = 401;

/// Most looks.
const LOOKS_LIMIT: usize = 200;

/// How much of the error may be spent by a given share of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Spending {
    /// `2 - 2 Phi(z / sqrt(t))` on either side, z the upper `alpha / 4` point: little early, nearly
    /// all at the end. The default.
    OBrienFleming,
    /// `alpha ln(1 + (e - 1) t)`: evenly, for large effects that should end a run early.
    Pocock,
}

impl Spending {
    /// The two-sided error spent once the share `t` in (0, 1] of all data is in.
    pub fn spent(self, alpha: f64, t: f64) -> f64 {
        match self {
            Self::OBrienFleming => {
                let z = normal_quantile(1.0 - 0.25 * alpha);
                (4.0 * normal_upper_tail(z / t.sqrt())).min(alpha)
            }
            Self::Pocock => (alpha * ((std::f64::consts::E - 1.0) * t).ln_1p()).min(alpha),
        }
    }
}

/// Two-sided critical values of a standard normal statistic at looks with the given shares of the
/// data (ascending in (0, 1]), so that under no difference the chance of ever crossing one by look
/// `k` is the error spent there. A look too early to spend anything has an infinite value.
pub fn group_sequential_bounds(
    shares: &[f64],
    alpha: f64,
    spending: Spending,
) -> Result<Vec<f64>, StatError> {
    check_open_unit("alpha", alpha)?;
    check_shares(shares)?;
    let mut bounds = Vec::with_capacity(shares.len());
    // The density of the score (sum over square root of all data) among runs not yet stopped.
    let mut open: Option<Density> = None;
    let (mut before, mut spent) = (0.0, 0.0);
    for &share in shares {
        let total = spending.spent(alpha, share);
        let step = (share - before).sqrt();
        let crossing = |z: f64| match &open {
            None => 2.0 * normal_upper_tail(z),
            Some(density) => density.crossing(z * share.sqrt(), step),
        };
        let z = solve(crossing, total - spent);
        let edge = z.min(40.0) * share.sqrt();
        open = Some(match &open {
            None => Density::first(edge, share.sqrt()),
            Some(density) => density.next(edge, step),
        });
        bounds.push(z);
        (before, spent) = (share, total);
    }
    Ok(bounds)
}

fn check_shares(shares: &[f64]) -> Result<(), StatError> {
    if shares.is_empty() || shares.len() > LOOKS_LIMIT {
        let (got, limit) = (shares.len(), LOOKS_LIMIT);
        return Err(StatError::TooMany { got, limit });
    }
    let mut before = 0.0;
    for &value in shares {
        if !(value > before && value <= 1.0) {
            let name = "look";
            return Err(StatError::BadParameter { name, value });
        }
        before = value;
    }
    Ok(())
}

/// The z at which a falling crossing probability equals `want`.
fn solve(crossing: impl Fn(f64) -> f64, want: f64) -> f64 {
    // Below this the boundary is beyond anything a run can reach.
    if want < 1e-14 {
        return f64::INFINITY;
    }
    let (mut low, mut high) = (0.0, 9.0);
    for _ in 0..48 {
        let middle = 0.5 * (low + high);
        if crossing(middle) > want {
            low = middle;
        } else {
            high = middle;
        }
    }
    0.5 * (low + high)
}

/// A density on an even grid over `(-edge, edge)`, with Simpson weights folded in.
struct Density {
    places: Vec<f64>,
    weighted: Vec<f64>,
}

impl Density {
    fn first(edge: f64, sd: f64) -> Self {
        // Beyond nine standard deviations there is nothing to integrate.
        Self::on(edge.min(9.0 * sd), |s| gauss(s / sd) / sd)
    }

    fn next(&self, edge: f64, step: f64) -> Self {
        let reach = self.places.last().copied().unwrap_or(0.0) + 9.0 * step;
        Self::on(edge.min(reach), |s| {
            let terms = self.places.iter().zip(&self.weighted);
            terms.map(|(u, w)| w * gauss((s - u) / step)).sum::<f64>() / step
        })
    }

    fn on(edge: f64, density: impl Fn(f64) -> f64) -> Self {
        let width = 2.0 * edge / (GRID - 1) as f64;
        let places: Vec<f64> = (0..GRID).map(|i| -edge + i as f64 * width).collect();
        let weighted = places
            .iter()
            .enumerate()
            .map(|(i, s)| {
                let weight = match i {
                    0 => 1.0,
                    i if i == GRID - 1 => 1.0,
                    i if i % 2 == 1 => 4.0,
                    _ => 2.0,
                };
                weight * width / 3.0 * density(*s)
            })
            .collect();
        Self { places, weighted }
    }

    /// Chance of leaving `(-edge, edge)` at the next look.
    fn crossing(&self, edge: f64, step: f64) -> f64 {
        let terms = self.places.iter().zip(&self.weighted);
        terms
            .map(|(u, w)| w * (normal_cdf((-edge - u) / step) + normal_cdf((u - edge) / step)))
            .sum()
    }
}

fn gauss(z: f64) -> f64 {
    (-0.5 * z * z).exp() / std::f64::consts::TAU.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::close;

    fn even(looks: usize) -> Vec<f64> {
        (1..=looks).map(|k| k as f64 / looks as f64).collect()
    }

    #[test]
    fn obrien_fleming_bounds_as_published() {
        // Lan-DeMets spending of O'Brien-Fleming type, two-sided 0.05, equal steps, as tabulated
        // by Reboussin, DeMets, Kim and Lan (2000) and printed by ldbounds and gsDesign.
        let table: [(usize, &[f64]); 4] = [
            (1, &[1.960]),
            (2, &[2.963, 1.969]),
            (4, &[4.333, 2.963, 2.359, 2.014]),
            (5, &[4.877, 3.357, 2.680, 2.290, 2.031]),
        ];
        for (looks, want) in table {
            let got = group_sequential_bounds(&even(looks), 0.05, Spending::OBrienFleming);
            for (got, want) in got.unwrap().iter().zip(want) {
                close(*got, *want, 0.0, 6e-4);
            }
        }
    }

    #[test]
    fn spending_ends_at_alpha_and_starts_small() {
        for rule in [Spending::OBrienFleming, Spending::Pocock] {
            close(rule.spent(0.05, 1.0), 0.05, 1e-12, 0.0);
            assert!(rule.spent(0.05, 0.2) < 0.05 * 0.35);
        }
        // Half of it on either side: 4 (1 - Phi(2.241403 / sqrt 0.5)) = 4 (1 - Phi(3.16982)).
        let half = Spending::OBrienFleming.spent(0.05, 0.5);
        close(half, 0.003_050_645_5, 1e-7, 0.0);
    }

    #[test]
    fn many_looks_and_very_early_looks() {
        let bounds = group_sequential_bounds(&even(60), 0.05, Spending::OBrienFleming).unwrap();
        assert_eq!(bounds[0], f64::INFINITY);
        assert!(
            bounds.windows(2).skip(1).all(|w| w[1] <= w[0] + 1e-6),
            "{bounds:?}"
        );
        assert!(bounds[59] > 1.96 && bounds[59] < 2.3, "{}", bounds[59]);
        let bad = group_sequential_bounds(&[0.5, 0.5], 0.05, Spending::Pocock);
        assert!(bad.is_err());
        assert!(group_sequential_bounds(&[], 0.05, Spending::Pocock).is_err());
        assert!(group_sequential_bounds(&[1.2], 0.05, Spending::Pocock).is_err());
    }
}
