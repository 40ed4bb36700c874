//! A model of step time, fitted while serving.
//!
//! `t = c + g * prompt tokens + a * query-key pairs of prompts + d * decodes + e * decode keys`:
//! one term each for what a step costs anyway, for the matrix products of a prompt, for its
//! attention, and the same two for decodes. The form is that of the published time models (a
//! chunk of `x` tokens at offset `L` costs `b x + a (2 L x + x^2)`). Coefficients come from ridge
//! least squares over the steps seen, older ones fading, and are kept at or above zero: more work
//! never takes less time, which the search for the largest chunk relies on.

/// Terms of the model.
const TERMS: usize = 5;
/// Typical size of each term, so that the normal equations stay well conditioned.
const SCALES: [f64; TERMS] = [1.0, 1e3, 1e6, 1e2, 1e5];
/// Weight of a step relative to the next one: a memory of about two hundred steps.
const FADING: f64 = 0.995;
/// Ridge, relative to the diagonal.
const RIDGE: f64 = 1e-9;

/// What a step computes, as far as its time depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Work {
    prompt_tokens: f64,
    prompt_pairs: f64,
    decodes: f64,
    decode_keys: f64,
}

impl Work {
    /// `seqs` decoding sequences that attend to `keys` keys in all.
    pub(crate) fn decodes(seqs: usize, keys: usize) -> Self {
        Work {
            decodes: seqs as f64,
            decode_keys: keys as f64,
            ..Work::default()
        }
    }

    /// With `tokens` more prompt tokens after `context` computed ones: each attends to the
    /// context and, causally, to its own chunk.
    pub(crate) fn with_chunk(self, tokens: usize, context: usize) -> Self {
        let (tokens, context) = (tokens as f64, context as f64);
        Work {
            prompt_tokens: self.prompt_tokens + tokens,
            prompt_pairs: self.prompt_pairs + tokens * context + tokens * (tokens + 1.0) / 2.0,
            ..self
        }
    }

    fn terms(self) -> [f64; TERMS] {
        let raw = [
            1.0,
            self.prompt_tokens,
            self.prompt_pairs,
            self.decodes,
            self.decode_keys,
        ];
        std::array::from_fn(|term| raw[term] / SCALES[term])
    }
}

/// The fit.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepModel {
    /// Normal equations: sums of products of terms, and of terms with times.
    products: [[f64; TERMS]; TERMS],
    times: [f64; TERMS],
    /// Nanoseconds for each scaled term.
    coefficients: [f64; TERMS],
}

impl StepModel {
    /// Takes in a step that did `work` in `duration_ns`.
    pub(crate) fn observe(&mut self, work: Work, duration_ns: u64) {
        let terms = work.terms();
        for (row, &x) in terms.iter().enumerate() {
            for (column, &y) in terms.iter().enumerate() {
                self.products[row][column] = self.products[row][column] * FADING + x * y;
            }
            self.times[row] = self.times[row] * FADING + x * duration_ns as f64;
        }
        self.coefficients = self.fit();
    }

    /// Predicted time of `work` in nanoseconds.
    pub(crate) fn predict_ns(&self, work: Work) -> f64 {
        let terms = work.terms();
        let sum = terms.iter().zip(&self.coefficients).map(|(x, c)| x * c);
        sum.sum()
    }

    /// Least squares with the most negative coefficient taken out until none is negative.
    fn fit(&self) -> [f64; TERMS] {
        let mut active: Vec<usize> = (0..TERMS)
            .filter(|&term| self.products[term][term] > 0.0)
            .collect();
        loop {
            let solution = self.solve(&active);
            let worst = (0..active.len()).min_by(|&a, &b| solution[a].total_cmp(&solution[b]));
            match worst {
                Some(position) if solution[position] < 0.0 => {
                    active.remove(position);
                }
                _ => {
                    let mut coefficients = [0.0; TERMS];
                    for (&term, value) in active.iter().zip(solution) {
                        coefficients[term] = value;
                    }
                    return coefficients;
                }
            }
        }
    }

    /// Solves the ridge normal equations over `active` terms by Cholesky decomposition.
    fn solve(&self, active: &[usize]) -> Vec<f64> {
        let n = active.len();
        let mut lower = vec![vec![0.0; n]; n];
        for row in 0..n {
            for column in 0..=row {
                let (a, b) = (active[row], active[column]);
                let ridge = if row == column { 1.0 + RIDGE } else { 1.0 };
                let known = lower[row].iter().zip(&lower[column]).take(column);
                let known: f64 = known.map(|(x, y)| x * y).sum();
                let rest = self.products[a][b] * ridge - known;
                lower[row][column] = if row == column {
                    // The ridge keeps it positive but for rounding.
                    rest.max(RIDGE * RIDGE * self.products[a][a]).sqrt()
                } else {
                    rest / lower[column][column]
                };
            }
        }
        let mut solution = vec![0.0; n];
        for row in 0..n {
            let known: f64 = (0..row).map(|k| lower[row][k] * solution[k]).sum();
            solution[row] = (self.times[active[row]] - known) / lower[row][row];
        }
        for row in (0..n).rev() {
            let known: f64 = (row + 1..n).map(|k| lower[k][row] * solution[k]).sum();
            solution[row] = (solution[row] - known) / lower[row][row];
        }
        solution
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pb_contract::Stream;

    /// Milliseconds by the formula, written out for the test.
    fn truth_ns(tokens: usize, context: usize, decodes: usize, keys: usize) -> u64 {
        let (t, l) = (tokens as f64, context as f64);
        let pairs = t * l + t * (t + 1.0) / 2.0;
        (2e6 + 9e3 * t + 1.5 * pairs + 8e4 * decodes as f64 + 20.0 * keys as f64) as u64
    }

    fn trained(noise: f64) -> StepModel {
        let mut rng = Stream::new(3, "step model");
        let mut model = StepModel::default();
        for _ in 0..300 {
            let (tokens, context) = (rng.below(512) as usize, rng.below(8000) as usize);
            let decodes = rng.below(64) as usize;
            let keys = decodes * (100 + rng.below(4000) as usize);
            let work = Work::decodes(decodes, keys).with_chunk(tokens, context);
            let time = truth_ns(tokens, context, decodes, keys) as f64;
            model.observe(work, (time * (1.0 + noise * rng.normal())) as u64);
        }
        model
    }

    #[test]
    fn a_linear_machine_is_learnt() {
        let (clean, noisy) = (trained(0.0), trained(0.05));
        for (tokens, context, decodes) in [(1, 0, 0), (256, 4000, 8), (2048, 16_000, 60)] {
            let work = Work::decodes(decodes, decodes * 1000).with_chunk(tokens, context);
            let truth = truth_ns(tokens, context, decodes, decodes * 1000) as f64;
            let error = |model: &StepModel| (model.predict_ns(work) / truth - 1.0).abs();
            assert!(error(&clean) < 1e-3, "{} of {truth}", error(&clean));
            // The smallest step is the intercept alone, which 5 % noise of far larger steps
            // leaves uncertain.
            let bound = if tokens == 1 { 0.5 } else { 0.05 };
            assert!(error(&noisy) < bound, "{} of {truth}", error(&noisy));
        }
    }

    #[test]
    fn more_work_never_takes_less_time() {
        for seed in 0..50 {
            let mut rng = Stream::new(seed, "arbitrary times");
            let mut model = StepModel::default();
            for _ in 0..40 {
                let decodes = rng.below(20) as usize;
                let work = Work::decodes(decodes, decodes * rng.below(999) as usize)
                    .with_chunk(rng.below(300) as usize, rng.below(3000) as usize);
                model.observe(work, rng.below(50_000_000));
                let small = Work::decodes(3, 100).with_chunk(10, 50);
                let large = Work::decodes(4, 200).with_chunk(20, 60);
                let (small, large) = (model.predict_ns(small), model.predict_ns(large));
                assert!(
                    small >= 0.0 && small <= large,
                    "seed {seed}: {small} {large}"
                );
            }
        }
    }

    #[test]
    fn equal_steps_are_predicted_as_they_were() {
        // One kind of step only: the terms cannot be told apart, their sum can.
        let mut model = StepModel::default();
        let work = Work::decodes(4, 400).with_chunk(128, 0);
        (0..20).for_each(|_| model.observe(work, 7_000_000));
        assert!((model.predict_ns(work) / 7e6 - 1.0).abs() < 1e-3);
    }
}
