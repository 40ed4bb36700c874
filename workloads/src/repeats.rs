//! Proof that prompts do not repeat.
//!
//! A prompt that repeats the first block of an earlier one is served from the prefix cache and
//! makes a cold measurement warm without saying so. The makers here are built not to do that;
//! these functions check it on the finished plan, whatever made it.

use std::collections::BTreeMap;

use pb_contract::TokenId;
use pb_contract::plan::{Plan, PlannedBody};

use crate::error::WorkloadError;

/// Every body of a plan: open requests first, then the closed loops in order.
pub fn all_bodies(plan: &Plan) -> Vec<&PlannedBody> {
    let closed = plan.closed.iter().flat_map(|part| &part.bodies);
    plan.open
        .iter()
        .map(|request| &request.body)
        .chain(closed)
        .collect()
}

/// Checks that no two bodies share their first `block_size` tokens under the same cache salt.
/// Prompts that are shorter than a block have no full block to share and pass; so do texts, whose
/// tokens only the target knows.
///
/// # Errors
/// The first pair that repeats, in order of the list.
pub fn first_blocks_unique(
    bodies: &[&PlannedBody],
    block_size: usize,
) -> Result<(), WorkloadError> {
    if block_size == 0 {
        return Err(WorkloadError::parameter(
            "block_size",
            0,
            "must be at least 1",
        ));
    }
    let mut seen: BTreeMap<(Option<&str>, &[TokenId]), usize> = BTreeMap::new();
    for (index, body) in bodies.iter().enumerate() {
        let ids = body.prompt.ids().unwrap_or_default();
        let Some(block) = ids.get(..block_size) else {
            continue;
        };
        if let Some(&first) = seen.get(&(body.cache_salt.as_deref(), block)) {
            let class = body.class.clone();
            return Err(WorkloadError::Repeat {
                first,
                second: index,
                class,
                block_size,
            });
        }
        seen.insert((body.cache_salt.as_deref(), block), index);
    }
    Ok(())
}

/// The longest prefix that any two of the prompts share, in tokens; 0 for fewer than two.
pub fn longest_common_prefix(prompts: &[&[TokenId]]) -> usize {
    let mut sorted = prompts.to_vec();
    // In sorted order the two prompts that share most stand next to each other.
    sorted.sort_unstable();
    let shared = |w: &[&[TokenId]]| w[0].iter().zip(w[1]).take_while(|(a, b)| a == b).count();
    sorted.windows(2).map(shared).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use pb_contract::Stream;

    use super::*;
    use crate::text::TextSource;

    fn body(prompt: &[TokenId], salt: Option<&str>) -> PlannedBody {
        PlannedBody::of_ids("x", prompt.to_vec(), 1).with_salt(salt.map(str::to_owned))
    }

    #[test]
    fn a_repeated_first_block_is_named() {
        let (a, b, c) = (
            body(&[1, 2, 3], None),
            body(&[1, 2, 4], None),
            body(&[1, 2, 5], Some("s")),
        );
        assert!(first_blocks_unique(&[&a, &b, &c], 3).is_ok());
        let error = first_blocks_unique(&[&a, &c, &b], 2).unwrap_err();
        assert!(
            matches!(
                error,
                WorkloadError::Repeat {
                    first: 0,
                    second: 2,
                    ..
                }
            ),
            "{error}"
        );
        assert!(first_blocks_unique(&[&a, &b, &c], 4).is_ok());
        assert!(first_blocks_unique(&[], 0).is_err());
    }

    #[test]
    fn prefix_lengths_agree_with_all_pairs() {
        let mut stream = Stream::new(5, "lcp");
        let prompts: Vec<Vec<TokenId>> = (0..60)
            .map(|_| (0..6).map(|_| stream.below(3) as TokenId).collect())
            .collect();
        let views: Vec<&[TokenId]> = prompts.iter().map(Vec::as_slice).collect();
        let mut oracle = 0;
        for i in 0..views.len() {
            for j in 0..i {
                let same = (0..6).take_while(|&k| views[i][k] == views[j][k]).count();
                oracle = oracle.max(same);
            }
        }
        assert_eq!(longest_common_prefix(&views), oracle);
        assert_eq!(longest_common_prefix(&views[..1]), 0);
    }

    #[test]
    fn a_thousand_prompts_share_less_than_a_block() {
        let mut text =
            TextSource::new((0..9_000u32).map(|i| (i * 7 + i * i) % 401).collect(), 9).unwrap();
        let mut stream = Stream::new(1, "prompts");
        let prompts: Vec<Vec<TokenId>> = (0..1_000)
            .map(|_| text.prompt(128, &mut stream).unwrap())
            .collect();
        let views: Vec<&[TokenId]> = prompts.iter().map(Vec::as_slice).collect();
        assert!(longest_common_prefix(&views) < 8);
    }
}
