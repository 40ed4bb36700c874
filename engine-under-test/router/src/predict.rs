//! When will the first token come?
//!
//! A prefill worker is taken for a single server with a constant time for each token: what is
//! before a request, and its own tokens, times that. Attention over a long context makes tokens
//! dearer and batching makes them cheaper; neither is in the model, so the prediction refuses
//! requests that are hopeless and is no estimate of a latency. Nor is the part of a prefill that
//! does not depend on its length, which is most of a short one: short prefills teach little.

use std::collections::BTreeMap;

use pb_contract::Nanos;

use crate::worker::WorkerId;

/// Share of a new observation in the means.
const NEW: f64 = 0.2;
/// Prompts of more than so many times the mean are beyond what was learnt.
const BEYOND: f64 = 4.0;

/// Means over prefills.
#[derive(Clone, Copy, Debug)]
struct Means {
    ns: f64,
    tokens: f64,
}

/// Learns the time of a prompt token from prefills as they end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Predictor {
    /// What is believed before anything was seen.
    prior_ns_per_token: Option<f64>,
    means: Option<Means>,
    /// When each worker last ended a prefill: a later one has waited until then.
    last_end: BTreeMap<WorkerId, Nanos>,
}

impl Predictor {
    pub(crate) fn new(prior_ns_per_token: Option<f64>) -> Self {
        Predictor {
            prior_ns_per_token,
            means: None,
            last_end: BTreeMap::new(),
        }
    }

    /// A prefill of `tokens` tokens at `worker` lasted from `start` to `end`.
    pub(crate) fn observe(&mut self, worker: WorkerId, start: Nanos, end: Nanos, tokens: usize) {
        let before = self.last_end.insert(worker, end).unwrap_or(Nanos::ZERO);
        let busy = end.saturating_sub(start.max(before));
        let (ns, tokens) = (busy.0 as f64, tokens.max(1) as f64);
        if ns <= 0.0 {
            return;
        }
        let first = Means {
            ns: self.prior_ns_per_token.map_or(ns, |rate| rate * tokens),
            tokens,
        };
        let means = self.means.get_or_insert(first);
        // One of a tenth of the length counts a tenth.
        let share = NEW * (tokens / means.tokens).min(1.0);
        means.ns += share * (ns - means.ns);
        means.tokens += share * (tokens - means.tokens);
    }

    /// Time to compute `tokens` tokens; none while nothing is known.
    pub(crate) fn predict_ns(&self, tokens: usize) -> Option<u64> {
        let seen = self.means.map(|means| means.ns / means.tokens);
        let rate = seen.or(self.prior_ns_per_token)?;
        Some((rate * tokens as f64) as u64)
    }

    /// Whether a prompt of `tokens` tokens is so much longer than what was seen that only trying
    /// can tell.
    pub(crate) fn is_beyond(&self, tokens: usize) -> bool {
        self.means
            .is_some_and(|means| tokens as f64 > BEYOND * means.tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_token_is_learnt_without_the_wait() {
        let mut predictor = Predictor::new(None);
        assert_eq!(predictor.predict_ns(10), None);
        let w = WorkerId(0);
        // 100 tokens in 1000 ns: 10 each.
        predictor.observe(w, Nanos(0), Nanos(1000), 100);
        assert_eq!(predictor.predict_ns(7), Some(70));
        // Sent at 0 too, ended at 3000: it was computed from 1000 on, 20 each; 10 + 0.2 * 10 = 12.
        predictor.observe(w, Nanos(0), Nanos(3000), 100);
        assert_eq!(predictor.predict_ns(100), Some(1200));
        // Another worker has another past: 1200 / 100 = 12 changes nothing.
        predictor.observe(WorkerId(1), Nanos(2000), Nanos(3200), 100);
        assert_eq!(predictor.predict_ns(100), Some(1200));
    }

    #[test]
    fn short_prefills_teach_little_and_long_prompts_are_beyond_them() {
        let mut predictor = Predictor::new(None);
        let w = WorkerId(0);
        predictor.observe(w, Nanos(0), Nanos(200_000_000), 1000);
        // Thirty of one token in 5 ms each: each weighs 0.2 / 1000.
        for n in 1..=30_u64 {
            let start = Nanos(1_000_000_000 * n);
            predictor.observe(w, start, Nanos(start.0 + 5_000_000), 1);
        }
        let predicted = predictor.predict_ns(1000).unwrap();
        assert!(
            (200_000_000..203_000_000).contains(&predicted),
            "{predicted}"
        );
        assert!(!predictor.is_beyond(3000) && predictor.is_beyond(4100));
        // Nothing but short ones was ever seen.
        let mut predictor = Predictor::new(None);
        assert!(!predictor.is_beyond(1000));
        predictor.observe(w, Nanos(0), Nanos(5_000_000), 1);
        assert!(predictor.is_beyond(5) && !predictor.is_beyond(4));
    }
}
