//! In which order waiting requests are offered for admission.
//!
//! Policies admit the waiting queue from its front and let nobody be overtaken, so the order of
//! the queue decides who goes first. First come first served is the queue as it is; the others
//! sort it before each step, from what is cached at that moment.
//!
//! A cache-aware order can pass a request over for ever: whoever shares a cached prefix goes
//! first, and there may always be such a one. SGLang does nothing about it. Here a request that
//! more than [`PASSED_OVER_LIMIT`] later arrivals have overtaken goes in front of everyone, in
//! order of arrival.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use pb_contract::{BlockId, QueueOrder, RequestId, TokenId};

use crate::policy::SeqView;

/// Beyond this many waiting requests the longest-prefix order falls back to arrival (SGLang).
pub const LPM_QUEUE_LIMIT: usize = 128;
/// A request with at most this many cached tokens looks for its prefix among the requests before
/// it (SGLang).
pub const IN_BATCH_CHECK_TOKENS: usize = 32;
/// With at least this many tokens in common with a request before it, it waits for that one to
/// fill the cache (SGLang).
pub const IN_BATCH_SHARED_TOKENS: usize = 32;
/// Later arrivals that may overtake a request under a cache-aware order.
pub const PASSED_OVER_LIMIT: u64 = 128;

/// What the order of a queue may depend on, beside what a policy sees.
pub trait QueueInfo {
    /// Cached blocks of a request's prefix, in order; what a lookup would hit.
    fn matched_blocks(&self, id: RequestId) -> Vec<BlockId>;

    /// Tokens in a block.
    fn block_size(&self) -> usize;

    /// The known tokens of a request.
    fn tokens(&self, id: RequestId) -> &[TokenId];

    /// Equal for two requests exactly if equal tokens of both may share blocks: same adapter,
    /// same isolation key.
    fn scope_key(&self, id: RequestId) -> u64;
}

/// Indices into `waiting` in the order in which the requests should be admitted.
///
/// `waiting` comes in order of arrival, with preempted requests where they were put back.
pub fn arrange(order: QueueOrder, waiting: &[SeqView], info: &dyn QueueInfo) -> Vec<usize> {
    let mut all: Vec<usize> = (0..waiting.len()).collect();
    let sorted = match order {
        QueueOrder::Fcfs => return all,
        QueueOrder::Priority => {
            all.sort_by_key(|&index| (waiting[index].priority, waiting[index].arrival));
            return all;
        }
        QueueOrder::Lpm if waiting.len() > LPM_QUEUE_LIMIT => return all,
        QueueOrder::Lpm => longest_prefix_first(waiting, info),
        QueueOrder::DfsWeight => heaviest_branch_first(waiting, info),
    };
    passed_over_first(waiting, sorted)
}

/// Moves requests that were overtaken too often to the front, oldest first.
///
/// How often is known from arrival numbers alone: of the later arrivals, those that do not wait
/// any more have overtaken. The newest arrival that waits bounds the count from below.
fn passed_over_first(waiting: &[SeqView], sorted: Vec<usize>) -> Vec<usize> {
    let mut by_age: Vec<usize> = (0..waiting.len()).collect();
    by_age.sort_by_key(|&index| waiting[index].arrival);
    let newest = by_age.last().map_or(0, |&index| waiting[index].arrival);
    let mut first = vec![false; waiting.len()];
    for (age, &index) in by_age.iter().enumerate() {
        let still_waiting = (by_age.len() - 1 - age) as u64;
        let overtaken_by = (newest - waiting[index].arrival).saturating_sub(still_waiting);
        first[index] = overtaken_by > PASSED_OVER_LIMIT;
    }
    let front = by_age.iter().copied().filter(|&index| first[index]);
    let rest = sorted.into_iter().filter(|&index| !first[index]);
    front.chain(rest).collect()
}

/// Blocks that the request would take from the cache.
fn matched(seq: &SeqView, info: &dyn QueueInfo) -> Vec<BlockId> {
    if seq.skip_cache_read {
        return Vec::new();
    }
    info.matched_blocks(seq.id)
}

/// Longest cached prefix first; ties keep their order. Of several requests that share a prefix
/// which is not cached, all but the first go to the back: the first one will fill the cache.
fn longest_prefix_first(waiting: &[SeqView], info: &dyn QueueInfo) -> Vec<usize> {
    // SGLang keeps a radix tree of the prompts seen so far and asks it for the length of the
    // match. Whether that reaches the threshold depends on so many leading tokens alone.
    let mut seen: BTreeSet<(u64, &[TokenId])> = BTreeSet::new();
    let mut keys = Vec::with_capacity(waiting.len());
    for (index, seq) in waiting.iter().enumerate() {
        let cached = matched(seq, info).len() * info.block_size();
        let mut to_back = false;
        if cached <= IN_BATCH_CHECK_TOKENS {
            // The last token is computed in any case and is no part of a prefix.
            let tokens = info.tokens(seq.id);
            let prefix = &tokens[..tokens.len().saturating_sub(1)];
            if let Some(head) = prefix.get(..IN_BATCH_SHARED_TOKENS) {
                to_back = !seen.insert((info.scope_key(seq.id), head));
            }
        }
        // Those at the back keep their order, whatever is cached of them.
        let cached = if to_back { 0 } else { cached };
        keys.push((to_back, Reverse(cached), index));
    }
    keys.sort_unstable();
    keys.into_iter().map(|(_, _, index)| index).collect()
}

/// Requests whose matches go through the same cached block.
struct Branch {
    /// Range of the requests, sorted by their paths.
    start: usize,
    end: usize,
    /// Blocks that all of them share.
    depth: usize,
}

/// Depth first through the tree of cached prefixes, the child with the most requests below it
/// first, among equals the one with the earliest request. A node's own requests come after those
/// below it, so that the longest prefixes are used while they are cached.
fn heaviest_branch_first(waiting: &[SeqView], info: &dyn QueueInfo) -> Vec<usize> {
    let matches = waiting.iter().map(|seq| matched(seq, info));
    let mut paths: Vec<(Vec<BlockId>, usize)> = matches
        .enumerate()
        .map(|(index, path)| (path, index))
        .collect();
    // Sorted, the requests of every branch lie side by side, those that end at its node first.
    paths.sort_unstable();
    let mut reversed = Vec::with_capacity(paths.len());
    let root = Branch {
        start: 0,
        end: paths.len(),
        depth: 0,
    };
    // Walked backwards: a node's own requests, then its lightest child first.
    let mut open = vec![root];
    while let Some(branch) = open.pop() {
        let rows = &paths[branch.start..branch.end];
        let own = rows.partition_point(|(path, _)| path.len() == branch.depth);
        reversed.extend(rows[..own].iter().rev().map(|&(_, index)| index));
        let mut children = children(&paths, branch.start + own, &branch);
        children.sort_by_key(|child| {
            let rows = &paths[child.start..child.end];
            let earliest = rows.iter().map(|&(_, index)| index).min();
            (Reverse(rows.len()), earliest)
        });
        open.extend(children);
    }
    reversed.reverse();
    reversed
}

/// The branches below a node; the requests from `from` on go beyond it.
fn children(paths: &[(Vec<BlockId>, usize)], from: usize, node: &Branch) -> Vec<Branch> {
    let mut children = Vec::new();
    let mut start = from;
    while start < node.end {
        let block = paths[start].0[node.depth];
        let rows = &paths[start..node.end];
        let end = start + rows.partition_point(|(path, _)| path[node.depth] == block);
        // Down to where the branch divides: first and last of a sorted range differ there.
        let (first, last) = (&paths[start].0, &paths[end - 1].0);
        let common = first.iter().zip(last).take_while(|(a, b)| a == b).count();
        children.push(Branch {
            start,
            end,
            depth: common,
        });
        start = end;
    }
    children
}
