//! Log-probabilities of one position.

use pb_contract::{TokenId, TokenLogprobs};

/// `ln(sum(exp(logits)))`, formed around the maximum.
pub fn log_sum_exp(logits: &[f64]) -> f64 {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|&x| libm::exp(x - max)).sum();
    max + libm::log(sum)
}

/// The log-probability and rank of `token`, and the `top` most likely tokens (ties: lower id
/// first). The rank counts tokens that are strictly more likely, plus one, as vLLM does.
pub fn token_logprobs(logits: &[f64], token: TokenId, top: usize) -> TokenLogprobs {
    let lse = log_sum_exp(logits);
    let own = logits[token as usize];
    let rank = 1 + logits.iter().filter(|&&x| x > own).count() as u32;
    TokenLogprobs {
        token,
        logprob: own - lse,
        rank,
        top: top_tokens(logits, top)
            .into_iter()
            .map(|t| (t, logits[t as usize] - lse))
            .collect(),
    }
}

/// The `k` tokens with the largest logits, best first; ties by lower id.
pub fn top_tokens(logits: &[f64], k: usize) -> Vec<TokenId> {
    let k = k.min(logits.len());
    if k == 0 {
        return Vec::new();
    }
    let mut ids: Vec<TokenId> = (0..logits.len() as TokenId).collect();
    let by_logit = |a: &TokenId, b: &TokenId| {
        logits[*b as usize]
            .total_cmp(&logits[*a as usize])
            .then(a.cmp(b))
    };
    if k < ids.len() {
        ids.select_nth_unstable_by(k - 1, by_logit);
        ids.truncate(k);
    }
    ids.sort_unstable_by(by_logit);
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logprobs_of_a_small_distribution() {
        // Probabilities 1/10, 2/10, 3/10, 4/10 by construction.
        let logits: Vec<f64> = [1.0f64, 2.0, 3.0, 4.0]
            .iter()
            .map(|p| p.ln() + 5.0)
            .collect();
        let lp = token_logprobs(&logits, 1, 2);
        assert!((lp.logprob - 0.2f64.ln()).abs() < 1e-12);
        assert_eq!(lp.rank, 3);
        assert_eq!(lp.top.iter().map(|t| t.0).collect::<Vec<_>>(), [3, 2]);
        assert!((lp.top[0].1 - 0.4f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn ties_go_to_the_lower_id() {
        assert_eq!(top_tokens(&[1.0, 3.0, 3.0, 2.0], 3), [1, 2, 3]);
        assert_eq!(top_tokens(&[1.0, 1.0], 9), [0, 1]);
    }
}
