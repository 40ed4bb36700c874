//! Choosing the next token.
//!
//! One uniform draw is taken for every token that is really chosen by chance, and none
//! otherwise: a partial chunk or a recomputation after preemption leaves the stream where it
//! was, so the text does not depend on chunking.

use pb_contract::{SamplingParams, Stream, TokenId};

use crate::logprobs::top_tokens;

/// Chooses a token from `logits`; `forbidden` tokens are never chosen (end-of-sequence before
/// `min_tokens`).
///
/// Order of operations as in vLLM: mask, temperature, top-k, top-p, draw.
pub fn sample(
    logits: &[f64],
    params: &SamplingParams,
    forbidden: &[TokenId],
    stream: &mut Stream,
) -> TokenId {
    let allowed = |id: TokenId| !forbidden.contains(&id);
    if params.temperature == 0.0 {
        return argmax(logits, allowed);
    }
    let candidates = candidates(logits, params, allowed);
    let Some(top) = candidates
        .iter()
        .map(|&t| logits[t as usize])
        .reduce(f64::max)
    else {
        return argmax(logits, |_| true);
    };
    let weight = |t: TokenId| libm::exp((logits[t as usize] - top) / params.temperature);
    let weights: Vec<f64> = candidates.iter().map(|&t| weight(t)).collect();
    let kept = nucleus(&weights, params.top_p);
    let total: f64 = weights[..kept].iter().sum();
    let target = stream.unit_f64() * total;
    let mut sum = 0.0;
    for (t, w) in candidates[..kept].iter().zip(&weights) {
        sum += w;
        if target < sum {
            return *t;
        }
    }
    candidates[kept - 1]
}

/// The tokens to draw from: most likely first where top-k or top-p need an order, in id order
/// (and without the cost of sorting the vocabulary) where they do not.
fn candidates(
    logits: &[f64],
    params: &SamplingParams,
    allowed: impl Fn(TokenId) -> bool,
) -> Vec<TokenId> {
    let all = 0..logits.len() as TokenId;
    if params.top_k == 0 && params.top_p >= 1.0 {
        return all.filter(|&t| allowed(t)).collect();
    }
    let forbidden = all.filter(|&t| !allowed(t)).count();
    let keep = if params.top_k == 0 {
        logits.len()
    } else {
        params.top_k as usize
    };
    let mut ranked = top_tokens(logits, keep.saturating_add(forbidden));
    ranked.retain(|&t| allowed(t));
    ranked.truncate(keep);
    ranked
}

/// How many of the ranked weights the nucleus keeps: the fewest whose mass reaches `top_p`, at
/// least one.
fn nucleus(weights: &[f64], top_p: f64) -> usize {
    if top_p >= 1.0 {
        return weights.len();
    }
    let goal = top_p * weights.iter().sum::<f64>();
    let mut sum = 0.0;
    for (i, w) in weights.iter().enumerate() {
        sum += w;
        if sum >= goal {
            return i + 1;
        }
    }
    weights.len()
}

/// The largest logit among the allowed tokens; ties go to the lower id.
fn argmax(logits: &[f64], allowed: impl Fn(TokenId) -> bool) -> TokenId {
    let mut best: Option<(TokenId, f64)> = None;
    for (id, &x) in logits.iter().enumerate() {
        let id = id as TokenId;
        if best.is_none_or(|(_, b)| x > b) && allowed(id) {
            best = Some((id, x));
        }
    }
    best.map_or(0, |(id, _)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(temperature: f64, top_k: u32, top_p: f64) -> SamplingParams {
        SamplingParams {
            temperature,
            top_k,
            top_p,
            ..SamplingParams::default()
        }
    }

    fn frequencies(logits: &[f64], p: &SamplingParams, n: usize) -> Vec<f64> {
        let mut stream = Stream::new(11, "sample test");
        let mut counts = vec![0usize; logits.len()];
        for _ in 0..n {
            counts[sample(logits, p, &[], &mut stream) as usize] += 1;
        }
        counts.iter().map(|&c| c as f64 / n as f64).collect()
    }

    #[test]
    fn frequencies_follow_the_distribution() {
        let logits: Vec<f64> = [0.1f64, 0.2, 0.3, 0.4].iter().map(|p| p.ln()).collect();
        let f = frequencies(&logits, &params(1.0, 0, 1.0), 100_000);
        for (got, want) in f.iter().zip([0.1, 0.2, 0.3, 0.4]) {
            assert!((got - want).abs() < 0.01, "{f:?}");
        }
        // Temperature 0.5 squares the odds: 1, 4, 9, 16 of 30.
        let f = frequencies(&logits, &params(0.5, 0, 1.0), 100_000);
        for (got, want) in f
            .iter()
            .zip([1.0 / 30.0, 4.0 / 30.0, 9.0 / 30.0, 16.0 / 30.0])
        {
            assert!((got - want).abs() < 0.01, "{f:?}");
        }
    }

    #[test]
    fn top_k_and_top_p_cut_the_tail() {
        let logits: Vec<f64> = [0.1f64, 0.2, 0.3, 0.4].iter().map(|p| p.ln()).collect();
        let f = frequencies(&logits, &params(1.0, 2, 1.0), 50_000);
        assert_eq!((f[0], f[1]), (0.0, 0.0));
        assert!((f[3] - 4.0 / 7.0).abs() < 0.01);
        // 0.4 + 0.3 = 0.7 reaches 0.65, so two tokens stay; a mass of 0 keeps one.
        let f = frequencies(&logits, &params(1.0, 0, 0.65), 50_000);
        assert_eq!((f[0], f[1]), (0.0, 0.0));
        assert_eq!(frequencies(&logits, &params(1.0, 0, 0.0), 100)[3], 1.0);
    }

    #[test]
    fn greedy_draws_nothing_and_breaks_ties_low() {
        let mut used = Stream::new(1, "x");
        let mut fresh = Stream::new(1, "x");
        assert_eq!(
            sample(&[0.0, 2.0, 2.0], &params(0.0, 0, 1.0), &[], &mut used),
            1
        );
        assert_eq!(
            sample(&[0.0, 2.0, 2.0], &params(0.0, 0, 1.0), &[1], &mut used),
            2
        );
        assert_eq!(used.next_u64(), fresh.next_u64());
    }

    #[test]
    fn forbidden_tokens_are_never_drawn() {
        let mut stream = Stream::new(5, "f");
        for _ in 0..1000 {
            let t = sample(&[5.0, 0.0, 0.0], &params(1.0, 1, 1.0), &[0], &mut stream);
            assert_eq!(t, 1);
        }
    }
}
