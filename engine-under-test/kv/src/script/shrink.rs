//! Makes a failing script as short as it can be: the same input gives the same result.

use std::collections::BTreeSet;

use super::ops::Op;

/// The shortest script that this search finds in which `fails` still holds: whole requests are
/// dropped, then halves, quarters and so on down to single operations, then prompts are shortened,
/// again and again until nothing can go. `fails` must hold for `ops` and must answer the same way
/// every time.
pub fn shrink(ops: &[Op], mut fails: impl FnMut(&[Op]) -> bool) -> Vec<Op> {
    let mut shortest = ops.to_vec();
    loop {
        let before = size(&shortest);
        drop_requests(&mut shortest, &mut fails);
        drop_operations(&mut shortest, &mut fails);
        shorten_tokens(&mut shortest, &mut fails);
        if size(&shortest) == before {
            return shortest;
        }
    }
}

/// Operations, and tokens in them: what every round must make smaller.
fn size(ops: &[Op]) -> (usize, usize) {
    let tokens = ops.iter().map(|op| match op {
        Op::Add { tokens, .. } | Op::Append { tokens, .. } => tokens.len(),
        Op::Allocate { tokens, .. } | Op::Fork { tokens, .. } => *tokens,
        _ => 0,
    });
    (ops.len(), tokens.sum())
}

/// Drops all operations of one request at a time.
fn drop_requests(ops: &mut Vec<Op>, fails: &mut impl FnMut(&[Op]) -> bool) {
    let names: BTreeSet<String> = ops.iter().filter_map(Op::id).map(str::to_owned).collect();
    for name in names {
        let others = ops.iter().filter(|op| op.id() != Some(&name));
        let rest: Vec<Op> = others.cloned().collect();
        if fails(&rest) {
            *ops = rest;
        }
    }
}

/// Drops runs of operations, long runs first.
fn drop_operations(ops: &mut Vec<Op>, fails: &mut impl FnMut(&[Op]) -> bool) {
    let mut run = ops.len().div_ceil(2);
    while run > 0 {
        // From the end, because later operations are needed by none before them.
        let mut end = ops.len();
        while end > 0 {
            let start = end.saturating_sub(run);
            let mut rest = ops[..start].to_vec();
            rest.extend_from_slice(&ops[end..]);
            if fails(&rest) {
                *ops = rest;
            }
            end = start;
        }
        run = if run == 1 { 0 } else { run.div_ceil(2) };
    }
}

/// Halves token lists and counts, then takes single tokens off.
fn shorten_tokens(ops: &mut Vec<Op>, fails: &mut impl FnMut(&[Op]) -> bool) {
    for index in 0..ops.len() {
        for shorter in [half as fn(usize) -> usize, one_less] {
            while let Some(op) = shortened(&ops[index], shorter) {
                let mut candidate = ops.clone();
                candidate[index] = op;
                if !fails(&candidate) {
                    break;
                }
                *ops = candidate;
            }
        }
    }
}

fn half(length: usize) -> usize {
    length / 2
}

fn one_less(length: usize) -> usize {
    length.saturating_sub(1)
}

/// The operation with fewer tokens, if it can have fewer and any.
fn shortened(op: &Op, shorter: fn(usize) -> usize) -> Option<Op> {
    let mut op = op.clone();
    let length = match &mut op {
        Op::Add { tokens, .. } | Op::Append { tokens, .. } => {
            let length = shorter(tokens.len());
            tokens.truncate(length);
            length
        }
        Op::Allocate { tokens, .. } | Op::Fork { tokens, .. } => {
            *tokens = shorter(*tokens);
            *tokens
        }
        _ => 0,
    };
    (length > 0).then_some(op)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(id: usize) -> Op {
        Op::Lookup { id: id.to_string() }
    }

    #[test]
    fn what_remains_is_what_the_failure_needs() {
        let ops: Vec<Op> = (0..100).map(lookup).collect();
        let needed = [lookup(13), lookup(14), lookup(77)];
        let mut calls = 0;
        let shortest = shrink(&ops, |ops| {
            calls += 1;
            needed.iter().all(|op| ops.contains(op))
        });
        assert_eq!(shortest, needed);
        assert!(calls < 400, "{calls} tries");
    }

    #[test]
    fn token_lists_and_counts_are_cut_to_the_least_that_fails() {
        let add = |tokens: std::ops::Range<u32>| Op::Add {
            id: "a".to_owned(),
            tokens: tokens.collect(),
            adapter: None,
            salt: None,
            identity: None,
        };
        let allocate = |tokens| Op::Allocate {
            id: "a".to_owned(),
            tokens,
            hit: true,
        };
        let fails = |ops: &[Op]| {
            let [Op::Add { tokens, .. }, Op::Allocate { tokens: count, .. }] = ops else {
                return false;
            };
            tokens.len() >= 5 && *count >= 9
        };
        let shortest = shrink(&[add(0..40), lookup(0), allocate(33)], fails);
        assert_eq!(shortest, [add(0..5), allocate(9)]);
    }
}
