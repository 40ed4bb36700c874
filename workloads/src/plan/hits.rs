//! Prompt tokens that a prefix cache has found when each request was served.

use std::collections::BTreeSet;

use pb_contract::plan::{Plan, PlannedBody};
use pb_contract::{Nanos, TokenId};
use serde::{Deserialize, Serialize};

use crate::realise::hashes;
use crate::trace::lru::LruSet;

/// How far planned hits hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HitKnowledge {
    /// Every request finds exactly its planned tokens, however many run at once: what it shares was
    /// primed, or was served before it by its own session or the only slot.
    Exact,
    /// Every request finds exactly its planned tokens if those that share with it were computed
    /// before it arrived. With several at once it may find fewer.
    Ideal,
    /// The target's tokens are not known, so neither are its blocks: requests carry no planned hit,
    /// and the total is an estimate.
    Estimate,
}

/// What is known of a request's prompt.
#[derive(Clone, Debug)]
pub(super) struct Meta {
    /// Hashes of its prefixes that end with each full block.
    pub(super) chain: Vec<u64>,
    pub(super) whole: u64,
    pub(super) tokens: u32,
    pub(super) max_tokens: u32,
    pub(super) exact: bool,
}

impl Meta {
    /// Blocks that a cache may give: the last token of a prompt is always computed.
    fn findable(&self, block_size: usize) -> &[u64] {
        let most = (self.tokens as usize).saturating_sub(1) / block_size;
        &self.chain[..most.min(self.chain.len())]
    }
}

/// Planned hits of a whole plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hits {
    pub(super) tokens: u64,
    pub(super) knowledge: HitKnowledge,
}

/// Writes the planned hits into the plan's requests.
pub(super) fn plan_hits(
    plan: &mut Plan,
    metas: &[Meta],
    primed: &[Vec<u64>],
    block_size: usize,
    nothing_shared: bool,
) -> Hits {
    let mut found = vec![0u32; metas.len()];
    let mut cache = LruSet::new(None);
    primed
        .iter()
        .flatten()
        .for_each(|&block| cache.touch(block));
    for id in in_order(plan) {
        let meta = &metas[id];
        let blocks = meta.findable(block_size).iter();
        let hits = blocks.take_while(|&&block| cache.contains(block)).count();
        found[id] = (hits * block_size) as u32;
        meta.chain.iter().for_each(|&block| cache.touch(block));
    }
    let tokens = found.iter().map(|&tokens| u64::from(tokens)).sum();
    let exact = metas.iter().all(|meta| meta.exact) || (nothing_shared && tokens == 0);
    let knowledge = match exact {
        false => HitKnowledge::Estimate,
        true if one_after_the_other(plan) => HitKnowledge::Exact,
        true if found == sure_hits(plan, metas, primed, block_size) => HitKnowledge::Exact,
        true => HitKnowledge::Ideal,
    };
    if knowledge != HitKnowledge::Estimate {
        for (id, body) in bodies_mut(plan) {
            body.planned_hit_tokens = Some(found[id]);
        }
    }
    Hits { tokens, knowledge }
}

/// Every request with its id.
fn bodies_mut(plan: &mut Plan) -> impl Iterator<Item = (usize, &mut PlannedBody)> {
    let open = plan.open.iter_mut().map(|r| (r.id.0 as usize, &mut r.body));
    let closed = plan.closed.iter_mut().flat_map(|part| {
        let ids = part.first_id.0 as usize..;
        ids.zip(&mut part.bodies)
    });
    let turns = plan
        .sessions
        .iter_mut()
        .flat_map(|session| &mut session.turns);
    let turns = turns.map(|turn| (turn.id.0 as usize, &mut turn.body));
    open.chain(closed).chain(turns)
}

/// Ids in the order of arrival. When a later turn arrives is not known; it finds the same wherever
/// it stands after the turns before it, because sessions share only what their first turns hold.
fn in_order(plan: &Plan) -> Vec<usize> {
    let mut keyed: Vec<(usize, Nanos, usize)> = Vec::new();
    for request in &plan.open {
        keyed.push((0, request.offset_ns, request.id.0 as usize));
    }
    for part in &plan.closed {
        let first = part.first_id.0 as usize;
        keyed.extend((first..first + part.bodies.len()).map(|id| (0, Nanos::ZERO, id)));
    }
    for session in &plan.sessions {
        let turns = session.turns.iter().enumerate();
        keyed.extend(turns.map(|(number, turn)| (number, session.offset_ns, turn.id.0 as usize)));
    }
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, _, id)| id).collect()
}

/// Whether no two requests ever run at once.
fn one_after_the_other(plan: &Plan) -> bool {
    match (&plan.open[..], &plan.closed[..], &plan.sessions[..]) {
        ([], [part], []) => part.streams == 1,
        ([], [], [_]) | ([_], [], []) => true,
        _ => false,
    }
}

/// Hits that do not depend on what else runs: in what was primed and in the own session.
fn sure_hits(plan: &Plan, metas: &[Meta], primed: &[Vec<u64>], block_size: usize) -> Vec<u32> {
    let primed: BTreeSet<u64> = primed.iter().flatten().copied().collect();
    let hits = |meta: &Meta, own: &BTreeSet<u64>| {
        let blocks = meta.findable(block_size).iter();
        let held = |block: &&u64| primed.contains(*block) || own.contains(*block);
        (blocks.take_while(held).count() * block_size) as u32
    };
    let nothing = BTreeSet::new();
    let mut sure: Vec<u32> = metas.iter().map(|meta| hits(meta, &nothing)).collect();
    for session in &plan.sessions {
        let mut own = BTreeSet::new();
        for turn in &session.turns {
            let id = turn.id.0 as usize;
            sure[id] = hits(&metas[id], &own);
            own.extend(metas[id].chain.iter().copied());
        }
    }
    sure
}

/// Tokens that each of the prompts finds in an unbounded cache of full blocks when they come one
/// after the other. The last token of a prompt is always computed, so a prompt of `k` whole blocks
/// that came before finds `k - 1` of them.
///
/// Panics when `block_size` is zero.
pub fn ideal_hits(prompts: &[&[TokenId]], block_size: usize) -> Vec<usize> {
    assert!(block_size > 0, "a block holds at least one token");
    let mut cache = LruSet::new(None);
    let hits = |ids: &&[TokenId]| {
        let (chain, _) = hashes(ids, block_size);
        let most = ids.len().saturating_sub(1) / block_size;
        let found = chain.iter().take(most);
        let found = found.take_while(|&&block| cache.contains(block)).count();
        chain.into_iter().for_each(|block| cache.touch(block));
        found * block_size
    };
    prompts.iter().map(hits).collect()
}
