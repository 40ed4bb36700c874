//! A simulated worker: real block memory, modelled time.

use std::collections::{BTreeMap, VecDeque};

use pb_contract::{Nanos, PrefixCacheKind, RequestId};
use pb_kv::{BlockHash, HashedTokens, KvConfig, KvError, PrefixCache, build};

use super::{SimOptions, SimTimes};
use crate::index::{CacheChange, CacheEvent};

/// A request at a worker.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: RequestId,
    /// Tokens that it will have blocks for.
    pub(super) sequence: HashedTokens,
    pub(super) prompt_tokens: usize,
    /// Whether it decodes here too.
    pub(super) whole: bool,
    /// Prompt tokens that were here when it got its blocks.
    pub(super) hit_tokens: usize,
}

/// What a step has brought.
#[derive(Debug)]
pub(super) enum Done {
    /// A prompt, and its first token.
    Prompt { id: RequestId, computed_tokens: u64 },
    /// A token for each of these.
    Tokens(Vec<RequestId>),
}

/// What is being done.
#[derive(Debug)]
enum Doing {
    Prompt(Job),
    Tokens(Vec<RequestId>),
}

#[derive(Debug)]
pub(super) struct SimWorker {
    kv: Box<dyn PrefixCache>,
    /// Requests whose prompts are to be computed, in order.
    pub(super) prompts: VecDeque<Job>,
    /// Requests that come with KV and have no blocks yet.
    pub(super) arriving: VecDeque<Job>,
    /// Requests with blocks here.
    resident: BTreeMap<RequestId, Job>,
    decoding: Vec<RequestId>,
    doing: Option<Doing>,
    /// Copies of each block name that can be found.
    copies: BTreeMap<BlockHash, u32>,
    /// All that happened to the cache.
    pub(super) events: Vec<CacheEvent>,
}

impl SimWorker {
    pub(super) fn new(options: &SimOptions) -> Result<Self, KvError> {
        let config = KvConfig {
            record_evictions: true,
            ..KvConfig::new(
                options.block_size,
                options.blocks,
                PrefixCacheKind::HashChain,
            )
        };
        Ok(SimWorker {
            kv: build(config)?,
            prompts: VecDeque::new(),
            arriving: VecDeque::new(),
            resident: BTreeMap::new(),
            decoding: Vec::new(),
            doing: None,
            copies: BTreeMap::new(),
            events: Vec::new(),
        })
    }

    fn tell(&mut self, change: CacheChange) {
        let seq = self.events.len() as u64;
        self.events.push(CacheEvent { seq, change });
    }

    /// Gives a job blocks for all its tokens; false when there is no room.
    fn allocate(&mut self, job: &mut Job) -> bool {
        let block_size = self.kv.config().block_size;
        let mut hit = self.kv.lookup(&job.sequence);
        // Only of the prompt: the answer is not known before.
        hit.truncate((job.prompt_tokens - 1) / block_size);
        let new_tokens = job.sequence.len() - hit.tokens(block_size);
        if !self.kv.allocate(job.id, &job.sequence, 0, &hit, new_tokens) {
            return false;
        }
        job.hit_tokens = hit.tokens(block_size);
        let mut gone = Vec::new();
        for evicted in self.kv.take_moves().evicted {
            if let Some(count) = self.copies.get_mut(&evicted.hash) {
                *count -= 1;
                if *count == 0 {
                    self.copies.remove(&evicted.hash);
                    gone.push(evicted.hash);
                }
            }
        }
        if !gone.is_empty() {
            self.tell(CacheChange::Removed(gone));
        }
        true
    }

    /// The blocks of the prompt of `job` hold data now.
    fn commit(&mut self, job: &Job) {
        let tokens = job.prompt_tokens;
        self.kv.commit(job.id, &job.sequence, tokens);
        let block_size = self.kv.config().block_size;
        let names = &job.sequence.hashes()[job.hit_tokens / block_size..tokens / block_size];
        for &name in names {
            *self.copies.entry(name).or_default() += 1;
        }
        if !names.is_empty() {
            self.tell(CacheChange::Stored(names.to_vec()));
        }
    }

    /// Gives blocks to requests that come with KV, in order; those that got them.
    pub(super) fn admit_arriving(&mut self) -> Vec<RequestId> {
        let mut admitted = Vec::new();
        while let Some(mut job) = self.arriving.pop_front() {
            if !self.allocate(&mut job) {
                self.arriving.push_front(job);
                break;
            }
            admitted.push(job.id);
            self.resident.insert(job.id, job);
        }
        admitted
    }

    /// The KV of `id` is here.
    pub(super) fn decode(&mut self, id: RequestId) {
        if let Some(job) = self.resident.remove(&id) {
            self.commit(&job);
            self.resident.insert(id, job);
            self.decoding.push(id);
        }
    }

    /// Gives back all that `id` has here.
    pub(super) fn release(&mut self, id: RequestId) {
        self.prompts.retain(|job| job.id != id);
        self.arriving.retain(|job| job.id != id);
        self.decoding.retain(|other| *other != id);
        if let Some(job) = self.resident.remove(&id) {
            self.kv.finish(id, &job.sequence);
        }
    }

    /// Begins the next step, if the worker is idle and has something to do; how long it takes.
    pub(super) fn begin(&mut self, times: &SimTimes) -> Option<Nanos> {
        if self.doing.is_some() {
            return None;
        }
        if let Some(mut job) = self.prompts.pop_front() {
            if self.allocate(&mut job) {
                let before = job.hit_tokens as f64;
                let fresh = (job.prompt_tokens - job.hit_tokens) as f64;
                let pairs = fresh * before + fresh * (fresh + 1.0) / 2.0;
                self.doing = Some(Doing::Prompt(job));
                let takes = times.step_ns + times.prompt_token_ns * fresh;
                return Some(Nanos((takes + times.prompt_pair_ns * pairs) as u64));
            }
            self.prompts.push_front(job);
        }
        if self.decoding.is_empty() {
            return None;
        }
        let ids = self.decoding.clone();
        let takes = times.step_ns + times.sequence_ns * ids.len() as f64;
        self.doing = Some(Doing::Tokens(ids));
        Some(Nanos(takes as u64))
    }

    /// Ends the step that is under way.
    pub(super) fn finish_step(&mut self) -> Done {
        // OK because a step is only planned when one has begun.
        match self.doing.take().expect("a step under way") {
            Doing::Prompt(job) => {
                self.commit(&job);
                let computed_tokens = (job.prompt_tokens - job.hit_tokens) as u64;
                let id = job.id;
                if job.whole {
                    self.decoding.push(id);
                }
                self.resident.insert(id, job);
                Done::Prompt {
                    id,
                    computed_tokens,
                }
            }
            Doing::Tokens(ids) => Done::Tokens(ids),
        }
    }
}
