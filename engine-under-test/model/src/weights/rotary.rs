//! The two row orders of query and key projections, and the way between them.
//!
//! Rotary embedding turns pairs of dimensions. Hugging Face pairs dimension `j` of a head with
//! `j + d/2` (half-split); the llama GGUF files pair `2j` with `2j + 1` (interleaved). The maths
//! is the same, the rows are permuted, and nothing in a file says so except its architecture.

/// Rows `[heads * d_head][cols]` from interleaved to half-split order.
///
/// # Panics
/// When `rows` is not a whole number of heads, or `d_head` is odd.
pub fn half_split_from_interleaved(rows: &[f32], d_head: usize, cols: usize) -> Vec<f32> {
    permute(rows, d_head, cols, |i| {
        // Row i of the half-split head: pair i % half, member i / half.
        let half = d_head / 2;
        2 * (i % half) + i / half
    })
}

/// Rows `[heads * d_head][cols]` from half-split to interleaved order.
///
/// # Panics
/// As [`half_split_from_interleaved`].
pub fn interleaved_from_half_split(rows: &[f32], d_head: usize, cols: usize) -> Vec<f32> {
    permute(rows, d_head, cols, |i| (i % 2) * (d_head / 2) + i / 2)
}

/// Copies row `source(i)` of every head to row `i`.
fn permute(rows: &[f32], d_head: usize, cols: usize, source: impl Fn(usize) -> usize) -> Vec<f32> {
    assert!(
        d_head.is_multiple_of(2) && d_head > 0 && cols > 0,
        "heads have paired dimensions"
    );
    assert!(
        rows.len().is_multiple_of(d_head * cols),
        "rows are not a whole number of heads"
    );
    let mut out = Vec::with_capacity(rows.len());
    for head in rows.chunks_exact(d_head * cols) {
        for i in 0..d_head {
            let start = source(i) * cols;
            out.extend_from_slice(&head[start..start + cols]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_orders_of_a_six_wide_head() {
        // Interleaved pairs are (0,1) (2,3) (4,5); half-split puts the first members first.
        let interleaved = [
            0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
        ];
        let split = [
            0.0, 2.0, 4.0, 1.0, 3.0, 5.0, 10.0, 12.0, 14.0, 11.0, 13.0, 15.0,
        ];
        assert_eq!(half_split_from_interleaved(&interleaved, 6, 1), split);
        assert_eq!(interleaved_from_half_split(&split, 6, 1), interleaved);
    }

    #[test]
    fn whole_rows_move() {
        // One head of four rows, two columns each: rows a b c d become a c b d.
        let rows = [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5];
        let moved = half_split_from_interleaved(&rows, 4, 2);
        assert_eq!(moved, [1.0, 1.5, 3.0, 3.5, 2.0, 2.5, 4.0, 4.5]);
    }
}
