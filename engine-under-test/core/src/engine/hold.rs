//! Cached prefixes that must not be evicted: pinned by an operator, or being transferred.
//!
//! A hold is a table without a request. Its blocks are active like any other, and no request is
//! admitted that could not run beside all holds.

use std::collections::BTreeMap;

use pb_contract::{BlockId, RequestId, TokenId};
use pb_kv::Hit;

use super::Engine;
use crate::error::AdmitError;

/// Why blocks are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// So that the prefix stays.
    Pin,
    /// Because another engine reads them.
    Transfer,
}

/// Names a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HoldId(pub(super) RequestId);

/// The holds of an engine. Their ids count down from the largest request id.
#[derive(Default)]
pub(super) struct Holds {
    made: u64,
    kinds: BTreeMap<RequestId, Hold>,
}

impl Holds {
    /// Whether `id` names a hold.
    pub(super) fn is_hold(&self, id: RequestId) -> bool {
        self.kinds.contains_key(&id)
    }

    /// Registers a hold under a new id.
    pub(super) fn add(&mut self, kind: Hold) -> RequestId {
        let id = self.next();
        self.kinds.insert(id, kind);
        id
    }

    fn next(&mut self) -> RequestId {
        self.made += 1;
        RequestId(u64::MAX - self.made)
    }
}

impl Engine {
    /// Pins the cached prefix of `tokens`. See [`Engine::hold_prefix`].
    ///
    /// # Errors
    /// The adapter is not loaded.
    pub fn pin_prefix(
        &mut self,
        tokens: &[TokenId],
        salt: Option<&str>,
        adapter: Option<&str>,
    ) -> Result<Option<HoldId>, AdmitError> {
        self.hold_prefix(tokens, salt, adapter, Hold::Pin)
    }

    /// Holds the blocks of the full blocks of `tokens` that the pool has cached. None when it has
    /// none, or when a live request might no longer fit beside the holds.
    ///
    /// # Errors
    /// The adapter is not loaded.
    pub fn hold_prefix(
        &mut self,
        tokens: &[TokenId],
        salt: Option<&str>,
        adapter: Option<&str>,
        kind: Hold,
    ) -> Result<Option<HoldId>, AdmitError> {
        let adapter = self.adapter(adapter)?;
        let scope = self.scope(adapter, salt.map(str::to_owned));
        let mut seq = self.kv.config().sequence(&scope);
        seq.extend(tokens);
        // A lookup leaves the last token out, which here is this one.
        seq.push(0);
        let hit = self.kv.lookup(&seq);
        let needs = self.requests.values();
        let largest = needs
            .map(|live| self.blocks_at_most(live.prompt_tokens, live.outputs_at_most()))
            .max()
            .unwrap_or(0);
        let held = self.all_held_blocks() + hit.blocks.len();
        if hit.blocks.is_empty() || held + largest > self.kv.usable_blocks() {
            return Ok(None);
        }
        Ok(self.hold(&seq, &hit, kind))
    }

    /// Takes the references: a table with one block too many is made, and forked without it.
    fn hold(&mut self, seq: &pb_kv::HashedTokens, hit: &Hit, kind: Hold) -> Option<HoldId> {
        let tokens = hit.tokens(seq.block_size());
        let scaffold = self.holds.next();
        if !self.kv.allocate(scaffold, seq, 0, hit, 1) {
            return None;
        }
        let id = self.holds.add(kind);
        self.kv.commit(scaffold, seq, tokens);
        self.kv.fork(scaffold, id, tokens);
        self.kv.free(scaffold);
        Some(HoldId(id))
    }

    /// Ends a hold. False when there is no such hold (any more).
    pub fn unpin(&mut self, id: HoldId) -> bool {
        let held = self.holds.kinds.remove(&id.0).is_some();
        if held {
            self.kv.free(id.0);
        }
        held
    }

    /// Blocks of a hold, in the order of its tokens.
    pub fn held_table(&self, id: HoldId) -> &[BlockId] {
        self.kv.block_table(id.0)
    }

    /// Distinct blocks held for one reason.
    pub(super) fn held_blocks(&self, kind: Hold) -> usize {
        self.distinct_blocks(|k| k == kind)
    }

    /// Distinct blocks held for any reason.
    pub(super) fn all_held_blocks(&self) -> usize {
        self.distinct_blocks(|_| true)
    }

    /// Distinct blocks that another engine reads, or whose data is on its way here.
    pub(super) fn in_transfer_blocks(&self) -> usize {
        let holds = self.holds.kinds.iter();
        let read = holds.filter(|&(_, &kind)| kind == Hold::Transfer);
        self.distinct(read.map(|(&id, _)| id).chain(self.receiving()))
    }

    fn distinct_blocks(&self, wanted: impl Fn(Hold) -> bool) -> usize {
        let holds = self.holds.kinds.iter().filter(|&(_, &kind)| wanted(kind));
        self.distinct(holds.map(|(&id, _)| id))
    }

    fn distinct(&self, tables: impl Iterator<Item = RequestId>) -> usize {
        let mut blocks: Vec<BlockId> = tables
            .flat_map(|id| self.kv.block_table(id))
            .copied()
            .collect();
        blocks.sort_unstable();
        blocks.dedup();
        blocks.len()
    }

    /// Tables that are holds.
    pub(super) fn hold_count(&self) -> usize {
        self.holds.kinds.len()
    }
}
