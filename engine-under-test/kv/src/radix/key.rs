//! Comparing runs of tokens, and finding a child by its first page.

use pb_contract::TokenId;

/// Tokens compared at once: long enough that the comparison is one of memory, short enough that
/// the end of a shared run is found in a few steps.
const STRIDE: usize = 64;

/// Where a page stands among the children of a node. A page of one token stands for itself; two
/// longer pages may share a value, so whoever finds one compares the tokens too.
pub(super) fn page_order(page: &[TokenId]) -> u64 {
    if let [token] = page {
        return u64::from(*token);
    }
    page.iter().fold(0, |order: u64, &token| {
        (order.rotate_left(5) ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    })
}

/// Tokens that both runs start with, down to whole pages.
pub(super) fn shared_len(a: &[TokenId], b: &[TokenId], page_size: usize) -> usize {
    let limit = a.len().min(b.len());
    let (a, b) = (&a[..limit], &b[..limit]);
    let mut at = 0;
    while at + STRIDE <= limit && a[at..at + STRIDE] == b[at..at + STRIDE] {
        at += STRIDE;
    }
    let rest = a[at..].iter().zip(&b[at..]);
    let shared = at + rest.take_while(|(x, y)| x == y).count();
    shared - shared % page_size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shared_length_is_that_of_a_loop_over_tokens() {
        for (len, differs_at) in [(0, 0), (1, 1), (63, 62), (64, 64), (200, 64), (200, 131)] {
            let a: Vec<TokenId> = (0..len).collect();
            let mut b = a.clone();
            if let Some(token) = b.get_mut(differs_at) {
                *token += 1000;
            }
            for page_size in [1, 4, 16] {
                let expected = differs_at.min(len as usize) / page_size * page_size;
                assert_eq!(
                    shared_len(&a, &b, page_size),
                    expected,
                    "{len} {differs_at}"
                );
            }
        }
    }

    #[test]
    fn pages_in_another_order_stand_elsewhere() {
        assert_eq!(page_order(&[7]), 7);
        assert_ne!(page_order(&[1, 2]), page_order(&[2, 1]));
        assert_ne!(page_order(&[0, 5]), page_order(&[5]));
    }
}
