//! Lets a scheduling policy allocate blocks by request id.
//!
//! To a policy a token that need not be computed is a hit, wherever its keys and values are: in
//! the pool, in a tier, or swapped out. Here the three are told apart. A tier's image is fetched
//! and verified before blocks are given for it, so a hit is counted only when the data is in
//! hand; where a fetch fails the admission fails too, and the next attempt does not look there.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use pb_contract::{BlockId, Clock, Nanos, RequestId};
use pb_kv::{Hit, Moves, PrefixCache};
use pb_sched::Allocator;
use pb_tiers::{TierKind, TierStack};

use crate::request::Live;
use crate::swap::SwapPool;

/// Where the tokens of an admitted request came from, and the images to put into its blocks.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    pub(crate) id: RequestId,
    /// Tokens found in the pool.
    pub(crate) pool_tokens: usize,
    /// Tokens found in each tier, in the order of [`TierKind::ALL`].
    pub(crate) tier_tokens: [usize; 3],
    /// Tokens that come back from the swap pool.
    pub(crate) swapped_tokens: usize,
    /// Images fetched from tiers, with the number of the block in the request.
    pub(crate) images: Vec<(usize, Vec<u8>)>,
}

/// A released table that may be worth swapping out.
pub(crate) struct Released {
    pub(crate) id: RequestId,
    pub(crate) computed: usize,
    /// The blocks that have its data before the step's copies are made.
    pub(crate) blocks: Vec<BlockId>,
}

/// What happened to blocks while a step was planned.
#[derive(Default)]
pub(crate) struct PlanLog {
    pub(crate) admissions: Vec<Admission>,
    pub(crate) released: Vec<Released>,
    /// Requests one of whose blocks could not be fetched, with the number of that block.
    pub(crate) failed_loads: Vec<(RequestId, usize)>,
    /// Data movements so far.
    pub(crate) moves: Moves,
    pub(crate) lookup_ns: Nanos,
    pub(crate) allocate_ns: Nanos,
}

/// The last lookup, valid until a block changes hands.
struct Found {
    id: RequestId,
    hit: Hit,
    tokens: usize,
}

/// The KV manager together with the requests whose tokens it needs.
pub(crate) struct KvAdapter<'a> {
    pub(crate) kv: &'a mut dyn PrefixCache,
    pub(crate) requests: &'a BTreeMap<RequestId, Live>,
    pub(crate) tiers: &'a mut TierStack,
    pub(crate) swap: &'a SwapPool,
    /// Length of a block image; images of other lengths are not this engine's.
    pub(crate) image_bytes: usize,
    /// Whether released tables are to be logged for swapping.
    pub(crate) swaps: bool,
    pub(crate) clock: &'a dyn Clock,
    found: RefCell<Option<Found>>,
    lookup_ns: Cell<Nanos>,
    log: PlanLog,
}

impl PlanLog {
    /// Adds `moves` to those noted before.
    pub(crate) fn note(&mut self, moves: Moves) {
        self.moves.evicted.extend(moves.evicted);
        self.moves.copies.extend(moves.copies);
    }

    /// Where the data of `block` is as long as no copy noted so far has been made.
    fn source(&self, block: BlockId) -> BlockId {
        let copies = self.moves.copies.iter().rev();
        copies.fold(block, |at, &(from, to)| if to == at { from } else { at })
    }
}

impl<'a> KvAdapter<'a> {
    /// An adapter with an empty log.
    pub(crate) fn new(
        kv: &'a mut dyn PrefixCache,
        requests: &'a BTreeMap<RequestId, Live>,
        tiers: &'a mut TierStack,
        swap: &'a SwapPool,
        clock: &'a dyn Clock,
    ) -> Self {
        KvAdapter {
            kv,
            requests,
            tiers,
            swap,
            image_bytes: 0,
            swaps: false,
            clock,
            found: RefCell::new(None),
            lookup_ns: Cell::new(Nanos::ZERO),
            log: PlanLog::default(),
        }
    }

    /// What happened.
    pub(crate) fn into_log(self) -> PlanLog {
        PlanLog {
            lookup_ns: self.lookup_ns.get(),
            ..self.log
        }
    }

    /// Looks `id` up unless the last lookup was the same.
    fn find(&self, id: RequestId) -> usize {
        let mut found = self.found.borrow_mut();
        if let Some(found) = found.as_ref().filter(|f| f.id == id) {
            return found.tokens;
        }
        let start = self.clock.now();
        let seq = &self.requests[&id].seq;
        let hit = self.kv.lookup(seq);
        let tokens = self.tokens_of(id, &hit);
        *found = Some(Found { id, hit, tokens });
        self.lookup_ns
            .set(self.lookup_ns.get() + (self.clock.now() - start));
        tokens
    }

    /// Tokens of `id` that need not be computed, when `hit` is what the pool has.
    fn tokens_of(&self, id: RequestId, hit: &Hit) -> usize {
        let live = &self.requests[&id];
        let block_size = live.seq.block_size();
        let pool_tokens = hit.tokens(block_size);
        if let Some(swapped) = self.swap.get(id) {
            // Prompt log-probabilities have been reported as far as that, and no further.
            return match live.wants_prompt_logprobs() {
                true => swapped.tokens,
                false => pool_tokens.max(swapped.tokens),
            };
        }
        if self.tiers.is_empty() {
            return pool_tokens;
        }
        let last = live.tier_blocks.min((live.seq.len() - 1) / block_size);
        let failed = self.log.failed_loads.iter().filter(|(f, _)| *f == id);
        let last = failed.fold(last, |last, &(_, block)| last.min(block));
        let wanted = live.seq.hashes().get(hit.blocks.len()..last).unwrap_or(&[]);
        pool_tokens + self.tiers.leading(wanted.iter().copied()) * block_size
    }

    /// The pool's part of a hit of `hit_tokens` tokens.
    fn pool_hit(&self, id: RequestId, hit_tokens: usize) -> Hit {
        if hit_tokens == 0 {
            return Hit::default();
        }
        self.find(id);
        let found = self.found.borrow();
        let mut hit = found.as_ref().map(|f| f.hit.clone()).unwrap_or_default();
        hit.truncate(hit_tokens / self.kv.config().block_size);
        hit
    }

    fn admit(&mut self, id: RequestId, hit_tokens: usize, new_tokens: usize) -> bool {
        let live = &self.requests[&id];
        let block_size = live.seq.block_size();
        let hit = self.pool_hit(id, hit_tokens);
        let mut admission = Admission {
            id,
            pool_tokens: hit.tokens(block_size),
            ..Admission::default()
        };
        let rest = hit_tokens - admission.pool_tokens;
        if self.kv.blocks_needed(id, 0, &hit, rest + new_tokens) > self.kv.free_blocks() {
            return false;
        }
        if self.swap.get(id).is_some() {
            admission.swapped_tokens = rest;
        } else if !self.fetch(&mut admission, hit.blocks.len(), rest / block_size) {
            *self.found.get_mut() = None;
            return false;
        }
        if !self.kv.allocate(id, &live.seq, 0, &hit, rest + new_tokens) {
            return false;
        }
        self.log.admissions.push(admission);
        true
    }

    /// Fetches the images of `count` blocks from block `first` on. False when one is not there.
    fn fetch(&mut self, admission: &mut Admission, first: usize, count: usize) -> bool {
        let hashes = self.requests[&admission.id].seq.hashes();
        for (block, hash) in hashes.iter().enumerate().skip(first).take(count) {
            let mut image = Vec::with_capacity(self.image_bytes);
            let kind = self.tiers.fetch(hash, &mut image);
            let Some(kind) = kind.filter(|_| image.len() == self.image_bytes) else {
                self.log.failed_loads.push((admission.id, block));
                return false;
            };
            admission.tier_tokens[tier_index(kind)] += self.kv.config().block_size;
            admission.images.push((block, image));
        }
        true
    }
}

/// Place of a tier in [`Admission::tier_tokens`].
pub(crate) fn tier_index(kind: TierKind) -> usize {
    match kind {
        TierKind::Host => 0,
        TierKind::Disk => 1,
        TierKind::Redis => 2,
    }
}

impl Allocator for KvAdapter<'_> {
    fn lookup(&self, id: RequestId) -> usize {
        self.find(id)
    }

    fn blocks_needed(
        &self,
        id: RequestId,
        computed: usize,
        hit_tokens: usize,
        new_tokens: usize,
    ) -> usize {
        let hit = self.pool_hit(id, hit_tokens);
        let rest = hit_tokens - hit.tokens(self.kv.config().block_size);
        self.kv.blocks_needed(id, computed, &hit, rest + new_tokens)
    }

    fn free_blocks(&self) -> usize {
        self.kv.free_blocks()
    }

    fn allocate(
        &mut self,
        id: RequestId,
        computed: usize,
        hit_tokens: usize,
        new_tokens: usize,
    ) -> bool {
        let start = self.clock.now();
        let done = if computed == 0 && self.kv.block_table(id).is_empty() {
            self.admit(id, hit_tokens, new_tokens)
        } else {
            let seq = &self.requests[&id].seq;
            self.kv
                .allocate(id, seq, computed, &Hit::default(), new_tokens)
        };
        if done {
            *self.found.get_mut() = None;
        }
        self.log.allocate_ns += self.clock.now() - start;
        done
    }

    fn block_size(&self) -> usize {
        self.kv.config().block_size
    }

    fn free(&mut self, id: RequestId) {
        let start = self.clock.now();
        self.log.admissions.retain(|a| a.id != id);
        let computed = self.requests[&id].computed;
        if self.swaps && computed > 0 {
            let moves = self.kv.take_moves();
            self.log.note(moves);
            let filled = computed.div_ceil(self.kv.config().block_size);
            let table = self.kv.block_table(id).iter().take(filled);
            let blocks = table.map(|&block| self.log.source(block)).collect();
            self.log.released.push(Released {
                id,
                computed,
                blocks,
            });
        }
        self.kv.free(id);
        *self.found.get_mut() = None;
        self.log.allocate_ns += self.clock.now() - start;
    }
}
