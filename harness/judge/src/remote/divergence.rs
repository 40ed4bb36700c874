//! The smallest divergence that two lists of most likely tokens allow.
//!
//! Each list gives some tokens exactly; of the others only their sum is known, and that none is
//! likelier than the last one listed. `KL(a || b)` of the whole distributions is not determined by
//! that, but its minimum over everything that fits is, and a server that exceeds a limit by the
//! minimum exceeds it in truth. By the log-sum inequality lumping tokens together never raises the
//! divergence, so the tokens that neither list has are one lump; a token that only `a` lists may
//! have any probability in `b` up to that of `b`'s last one, and gets the one that costs least.

use std::collections::BTreeMap;

/// Sums of `k` probabilities printed with seven digits are off by less. Smaller rests are rounding.
const REST_FLOOR: f64 = 1e-6;

/// The divergence and how much of both distributions it rests on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bounds {
    /// The smallest `KL(a || b)` in nats.
    pub(super) least: f64,
    /// Probability under `a` of the tokens that are not in both lists.
    pub(super) unseen: f64,
}

/// Log-probabilities by token, and the largest that an unlisted token may have.
pub(super) type List<'a> = (&'a BTreeMap<String, f64>, f64);

/// The smallest divergence of `b` from `a`.
pub(super) fn bounds((a, _): List<'_>, (b, b_cutoff): List<'_>) -> Bounds {
    let (mut shared, mut p_shared, mut q_shared) = (0.0, 0.0, 0.0);
    let mut only_a = Vec::new();
    for (token, &lp) in a {
        let p = lp.exp();
        match b.get(token) {
            Some(&lq) => {
                shared += p * (lp - lq);
                p_shared += p;
                q_shared += lq.exp();
            }
            None => only_a.push(p),
        }
    }
    let (p_rest, q_rest) = (rest(p_shared), rest(q_shared));
    let least = shared + least_of_rest(only_a, p_rest, q_rest, b_cutoff.exp());
    Bounds {
        least: least.max(0.0),
        unseen: p_rest,
    }
}

fn rest(listed: f64) -> f64 {
    (1.0 - listed).clamp(REST_FLOOR, 1.0)
}

/// The smallest sum of `p ln(p / q)` over what is not in both lists. `only_a` are the known
/// probabilities among it; each has at most `cap` in `b`. Without the cap all would take the share
/// `q_rest / p_rest`; those that would exceed it get the cap, and the others share what is left.
fn least_of_rest(mut only_a: Vec<f64>, p_rest: f64, q_rest: f64, cap: f64) -> f64 {
    only_a.sort_unstable_by(|x, y| y.total_cmp(x));
    let (mut p_left, mut q_left, mut sum) = (p_rest, q_rest, 0.0);
    for p in only_a {
        // The likeliest first: once one fits, all after it fit, and the lump takes them.
        if p <= 0.0 || p * q_left <= cap * p_left || q_left <= cap || p_left <= p {
            break;
        }
        sum += p * (p / cap).ln();
        p_left -= p;
        q_left -= cap;
    }
    let (p_left, q_left) = (p_left.max(REST_FLOOR), q_left.max(REST_FLOOR));
    sum + p_left * (p_left / q_left).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(pairs: &[(&str, f64)]) -> BTreeMap<String, f64> {
        let named = |&(token, p): &(&str, f64)| (token.to_owned(), f64::ln(p));
        pairs.iter().map(named).collect()
    }

    fn least(a: &[(&str, f64)], b: &[(&str, f64)]) -> f64 {
        let cutoff = |pairs: &[(&str, f64)]| pairs.iter().map(|p| p.1.ln()).fold(0.0, f64::min);
        let (la, lb) = (list(a), list(b));
        bounds((&la, cutoff(a)), (&lb, cutoff(b))).least
    }

    /// The definition, over a whole vocabulary.
    fn whole(a: &[f64], b: &[f64]) -> f64 {
        a.iter().zip(b).map(|(p, q)| p * (p / q).ln()).sum()
    }

    #[test]
    fn complete_lists_give_the_divergence_itself() {
        let (a, b) = ([0.5, 0.25, 0.25], [0.25, 0.5, 0.25]);
        let named = |p: [f64; 3]| [("x", p[0]), ("y", p[1]), ("z", p[2])];
        let got = least(&named(a), &named(b));
        assert!((got - whole(&a, &b)).abs() < 1e-9, "{got}");
        assert_eq!(least(&named(a), &named(a)), 0.0);
    }

    #[test]
    fn what_is_not_listed_counts_as_one_lump() {
        // 0.6 against 0.4 listed, 0.4 against 0.6 not.
        let want = 0.6 * (0.6_f64 / 0.4).ln() + 0.4 * (0.4_f64 / 0.6).ln();
        let got = least(&[("x", 0.6)], &[("x", 0.4)]);
        assert!((got - want).abs() < 1e-12, "{got} {want}");
    }

    #[test]
    fn a_token_that_only_one_side_lists_costs_at_least_what_its_bound_says() {
        // b lists x 0.5 and z 0.1, so y has at most 0.1 of the 0.5 that are left there.
        let got = least(&[("x", 0.5), ("y", 0.4)], &[("x", 0.5), ("z", 0.1)]);
        // y: 0.4 ln(0.4/0.1); the rest: 0.1 against 0.4.
        let want = 0.4 * 4.0_f64.ln() + 0.1 * (0.1_f64 / 0.4).ln();
        assert!((got - want).abs() < 1e-12, "{got} {want}");
        let one_lump = 0.0;
        assert!(got > one_lump + 0.4);
    }

    /// Whatever the tails are, the bound is never above the truth: random distributions over 30
    /// tokens, cut to lists of 5.
    #[test]
    fn it_never_exceeds_the_divergence_of_the_whole_rows() {
        use pb_stats::{RandomSource, SplitMix64};
        let mut rng = SplitMix64::new(3);
        let mut unit = || (rng.next_u64() >> 11) as f64 / 2.0_f64.powi(53);
        let mut tight = 0;
        for round in 0..2000 {
            let noise = if round % 2 == 0 { 0.05 } else { 2.0 };
            let base: Vec<f64> = (0..30).map(|_| 6.0 * unit()).collect();
            let moved: Vec<f64> = base.iter().map(|v| v + noise * (unit() - 0.5)).collect();
            let normal = |logits: &[f64]| -> Vec<f64> {
                let sum: f64 = logits.iter().map(|v| v.exp()).sum();
                logits.iter().map(|v| v.exp() / sum).collect()
            };
            let (a, b) = (normal(&base), normal(&moved));
            let top = |p: &[f64]| -> (BTreeMap<String, f64>, f64) {
                let mut order: Vec<usize> = (0..p.len()).collect();
                order.sort_by(|&i, &j| p[j].total_cmp(&p[i]));
                let named = |&i: &usize| (format!("{i}"), p[i].ln());
                let cutoff = p[order[4]].ln();
                (order[..5].iter().map(named).collect(), cutoff)
            };
            let ((la, ca), (lb, cb)) = (top(&a), top(&b));
            let got = bounds((&la, ca), (&lb, cb)).least;
            let truth = whole(&a, &b);
            assert!(got <= truth + 1e-12, "round {round}: {got} > {truth}");
            tight += usize::from(got > 0.3 * truth);
        }
        // And it is no empty promise: mostly a good part of the truth.
        assert!(tight > 1000, "{tight}");
    }
}
