//! When will the first token come?
//!
//! A prefill worker is taken for a single server with a constant time for each token: what is
//! before a request, and its own tokens, times that. Attention over a long context makes tokens
//! dearer and batching makes them cheaper; neither is in the model, so the prediction refuses
//! requests that are hopeless and is no estimate of a latency.

use std::collections::BTreeMap;

use pb_contract::Nanos;

use crate::worker::WorkerId;

/// Share of a new observation in the time of a token.
const NEW: f64 = 0.2;

/// Learns the time of a prompt token from prefills as they end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Predictor {
    ns_per_token: Option<f64>,
    /// When each worker last ended a prefill: a later one has waited until then.
    last_end: BTreeMap<WorkerId, Nanos>,
}

impl Predictor {
    pub(crate) fn new(ns_per_token: Option<f64>) -> Self {
        Predictor {
            ns_per_token,
            last_end: BTreeMap::new(),
        }
    }

    /// A prefill of `tokens` tokens at `worker` lasted from `start` to `end`.
    pub(crate) fn observe(&mut self, worker: WorkerId, start: Nanos, end: Nanos, tokens: usize) {
        let before = self.last_end.insert(worker, end).unwrap_or(Nanos::ZERO);
        let busy = end.saturating_sub(start.max(before));
        let seen = busy.0 as f64 / tokens.max(1) as f64;
        if seen <= 0.0 {
            return;
        }
        self.ns_per_token = Some(match self.ns_per_token {
            Some(rate) => rate + NEW * (seen - rate),
            None => seen,
        });
    }

    /// Time to compute `tokens` tokens; none while nothing is known.
    pub(crate) fn predict_ns(&self, tokens: usize) -> Option<u64> {
        self.ns_per_token.map(|rate| (rate * tokens as f64) as u64)
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
}
