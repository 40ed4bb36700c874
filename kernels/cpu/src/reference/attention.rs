//! f64 softmax attention over contiguous keys and values, with the mask spelled out per pair.

use crate::pool::{Pool, SharedMut};

/// Operands of [`attention_f64`]. All arrays are row-major and dense.
#[derive(Clone, Copy, Debug)]
pub struct RefAttention<'a> {
    /// Queries, `[queries][q_heads * d_head]`.
    pub q: &'a [f64],
    /// Keys, `[keys][kv_heads * d_head]`.
    pub k: &'a [f64],
    /// Values, `[keys][kv_heads * d_head]`.
    pub v: &'a [f64],
    /// Query heads.
    pub q_heads: usize,
    /// Key/value heads; adjacent query heads share one.
    pub kv_heads: usize,
    /// Dimension of a head.
    pub d_head: usize,
    /// Position of every query.
    pub query_pos: &'a [usize],
    /// Position of every key.
    pub key_pos: &'a [usize],
}

/// Softmax attention, scores scaled by `1 / sqrt(d_head)`; a query sees a key if and only if
/// `key_pos <= query_pos`. A query that sees no key gets zeros.
///
/// # Panics
/// When the lengths do not match the shapes.
pub fn attention_f64(pool: &Pool, args: &RefAttention<'_>, out: &mut [f64]) {
    let (queries, keys, d) = (args.query_pos.len(), args.key_pos.len(), args.d_head);
    assert!(
        args.kv_heads > 0 && args.q_heads.is_multiple_of(args.kv_heads),
        "heads do not divide"
    );
    assert_eq!(args.q.len(), queries * args.q_heads * d, "queries");
    assert_eq!(args.k.len(), keys * args.kv_heads * d, "keys");
    assert_eq!(args.v.len(), args.k.len(), "values");
    assert_eq!(out.len(), args.q.len(), "output");
    let width = args.q_heads * d;
    let shared = SharedMut::new(out);
    pool.run(queries, |i| {
        // SAFETY: each task owns the output row of its query.
        let row = unsafe { std::slice::from_raw_parts_mut(shared.at(i * width), width) };
        let mut weights = vec![0.0; keys];
        for (head, out) in row.chunks_exact_mut(d).enumerate() {
            one_head(args, i, head, &mut weights, out);
        }
    });
}

fn one_head(
    args: &RefAttention<'_>,
    query: usize,
    head: usize,
    weights: &mut [f64],
    out: &mut [f64],
) {
    let d = args.d_head;
    let q = &args.q[(query * args.q_heads + head) * d..][..d];
    let shared_by = args.q_heads / args.kv_heads;
    let kv_width = args.kv_heads * d;
    let offset = head / shared_by * d;
    let mut max = f64::NEG_INFINITY;
    for (j, weight) in weights.iter_mut().enumerate() {
        *weight = f64::NEG_INFINITY;
        if args.key_pos[j] <= args.query_pos[query] {
            *weight = dot(q, &args.k[j * kv_width + offset..][..d]) / (d as f64).sqrt();
            max = max.max(*weight);
        }
    }
    out.fill(0.0);
    if max == f64::NEG_INFINITY {
        return;
    }
    let mut total = 0.0;
    for (j, weight) in weights.iter().enumerate() {
        // A hidden key is skipped, not multiplied by zero: its memory may hold anything.
        if args.key_pos[j] > args.query_pos[query] {
            continue;
        }
        let p = (weight - max).exp();
        total += p;
        for (o, v) in out.iter_mut().zip(&args.v[j * kv_width + offset..][..d]) {
            *o += p * v;
        }
    }
    for o in out {
        *o /= total;
    }
}

/// Dot product in eight partial sums, which the compiler turns into vectors.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut acc = [0.0f64; 8];
    let (a8, b8) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f64 = a8
        .remainder()
        .iter()
        .zip(b8.remainder())
        .map(|(x, y)| x * y)
        .sum();
    for (x, y) in a8.zip(b8) {
        for l in 0..8 {
            acc[l] += x[l] * y[l];
        }
    }
    acc.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests {
    use super::{RefAttention, attention_f64};
    use crate::pool::Pool;

    #[test]
    fn a_case_worked_by_hand() {
        // One head of one dimension. Query 0 sees key 0 only; query 1 sees scores 0 and ln 3,
        // so its weights are 1/4 and 3/4. Key 2 lies in the future of both and is NaN.
        let (q, k) = ([7.0, 1.0], [0.0, 3f64.ln(), f64::NAN]);
        let args = RefAttention {
            q: &q,
            k: &k,
            v: &[4.0, 8.0, f64::NAN],
            q_heads: 1,
            kv_heads: 1,
            d_head: 1,
            query_pos: &[0, 1],
            key_pos: &[0, 1, 2],
        };
        let mut out = [0.0; 2];
        attention_f64(&Pool::new(1).unwrap(), &args, &mut out);
        assert!(
            (out[0] - 4.0).abs() < 1e-15 && (out[1] - 7.0).abs() < 1e-14,
            "{out:?}"
        );
    }
}
