//! Made-up logits with known noise, for the tests of the rules.

use pb_stats::{RandomSource, SplitMix64};

use super::{PromptScores, ReferenceRow};

/// Size of the made-up vocabulary.
pub(super) const COLUMNS: usize = 64;

/// How a variant's logits come from the reference's.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Variation {
    /// Fresh noise of the monolithic pass's size.
    Clean,
    /// Bit-equal to the monolithic pass.
    Equal,
    /// Row i shows the logits of row i - 1 (after the boundary).
    ShiftedRows,
    /// One row, at `position` of prompt `prompt`, has its noise multiplied by `factor`.
    NoisyRow {
        prompt: usize,
        position: usize,
        factor: f64,
    },
    /// All noise after the boundary multiplied by a factor, in one prompt.
    NoisyPrompt { prompt: usize, factor: f64 },
    /// One value is NaN.
    NotFinite,
}

/// A standard normal by Box and Muller.
fn normal(rng: &mut SplitMix64) -> f64 {
    let mut unit = || ((rng.next_u64() >> 11) as f64 + 0.5) / 2.0_f64.powi(53);
    let (u, v) = (unit(), unit());
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

fn noisy(row: &[f64], sigma: f64, rng: &mut SplitMix64) -> Vec<f64> {
    row.iter().map(|v| v + sigma * normal(rng)).collect()
}

/// `prompts` prompts of `rows` rows, boundary at 4; noise of `sigma` logits on both passes.
pub(crate) fn scores(
    prompts: usize,
    rows: usize,
    sigma: f64,
    variation: Variation,
    seed: u64,
) -> Vec<PromptScores> {
    const BOUNDARY: usize = 4;
    let mut rng = SplitMix64::new(seed);
    let mut all = Vec::new();
    for p in 0..prompts {
        let reference: Vec<Vec<f64>> = (0..rows)
            .map(|_| (0..COLUMNS).map(|_| 3.0 * normal(&mut rng)).collect())
            .collect();
        let mut scores = PromptScores::new(format!("p{p}"), BOUNDARY as u32);
        for i in 0..rows {
            let next = (i + 1 < rows).then(|| (rng.next_u64() % COLUMNS as u64) as u32);
            let row = ReferenceRow::new(&reference[i], next).unwrap();
            let mono = noisy(&reference[i], sigma, &mut rng);
            let fresh = noisy(&reference[i], sigma, &mut rng);
            let scaled = |factor: f64| -> Vec<f64> {
                fresh
                    .iter()
                    .zip(&reference[i])
                    .map(|(x, r)| r + factor * (x - r))
                    .collect()
            };
            let variant = match variation {
                Variation::Clean => fresh,
                Variation::Equal => mono.clone(),
                Variation::ShiftedRows if i >= BOUNDARY => reference[i - 1].clone(),
                Variation::NoisyRow {
                    prompt,
                    position,
                    factor,
                } if (prompt, position) == (p, i) => scaled(factor),
                Variation::NoisyPrompt { prompt, factor } if prompt == p && i >= BOUNDARY => {
                    scaled(factor)
                }
                Variation::NotFinite if (p, i) == (0, 5) => {
                    let mut broken = fresh;
                    broken[3] = f64::NAN;
                    broken
                }
                _ => fresh,
            };
            scores.push_logits(i as u32, &row, &mono, &variant).unwrap();
        }
        all.push(scores);
    }
    all
}
