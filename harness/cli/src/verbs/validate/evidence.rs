//! What shows that a cache was cold, and warm.

use super::answer::Found;

/// What was seen, and why the states are not proven if they are not. `cold` and `warm` are what
/// the requests found of prompts of `len` tokens, in the same order.
pub(super) fn cache_states(cold: &[Found], warm: &[Found], len: u32) -> (String, Option<String>) {
    let cached = |all: &[Found]| -> Option<Vec<u32>> { all.iter().map(|f| f.cached).collect() };
    let (Some(cold_cached), Some(warm_cached)) = (cached(cold), cached(warm)) else {
        let evidence = "the server does not say how many tokens were cached";
        let why = "neither state is proven without cached tokens in the usage or the timings";
        return (evidence.to_owned(), Some(why.to_owned()));
    };
    let most = cold_cached.into_iter().max().unwrap_or(0);
    let least = warm_cached.into_iter().min().unwrap_or(0);
    let mut evidence =
        format!("cached prompt tokens: cold at most {most}, warm at least {least} of {len}");
    // A server that computed what it says it found, or found what it says it computed.
    let contradicts = |f: &&Found| f.computed.is_some_and(|n| f.cached.unwrap_or(0) + n != len);
    let all = || cold.iter().chain(warm);
    if all().all(|f| f.computed.is_some()) {
        evidence.push_str("; its count of computed tokens is the rest");
    }
    let why = if let Some(f) = all().find(contradicts) {
        let (cached, computed) = (f.cached.unwrap_or(0), f.computed.unwrap_or(0));
        format!(
            "a prompt of {len} tokens was answered with {cached} cached and {computed} computed: \
             one of these is wrong"
        )
    } else if most > 0 {
        "the cold requests found something in the cache".to_owned()
    } else if least < len / 2 {
        "the warm requests found less than half of their prompts".to_owned()
    } else {
        return (evidence, None);
    };
    (evidence, Some(why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(cached: Option<u32>, computed: Option<u32>) -> Found {
        Found { cached, computed }
    }

    /// The reason, where the states are not proven.
    fn why(cold: Found, warm: Found) -> Option<String> {
        let good = [said(Some(0), None), said(Some(96), None)];
        cache_states(&[good[0], cold], &[good[1], warm], 100).1
    }

    #[test]
    fn states_are_proven_by_what_both_sides_say() {
        assert_eq!(why(said(Some(0), None), said(Some(50), None)), None);
        assert_eq!(why(said(Some(0), Some(100)), said(Some(99), Some(1))), None);
        for (cold, warm, part) in [
            (
                said(Some(1), None),
                said(Some(99), None),
                "cold requests found",
            ),
            (said(Some(0), None), said(Some(49), None), "less than half"),
            (said(None, None), said(Some(99), None), "neither state"),
            (said(Some(0), None), said(None, Some(1)), "neither state"),
            // Zero is claimed, but only 4 of 100 were computed.
            (
                said(Some(0), Some(4)),
                said(Some(99), None),
                "0 cached and 4 computed",
            ),
            // A hit is claimed, but all of it was computed.
            (
                said(Some(0), None),
                said(Some(99), Some(100)),
                "99 cached and 100 computed",
            ),
        ] {
            let why = why(cold, warm).expect("not proven");
            assert!(why.contains(part), "{why}");
        }
    }
}
