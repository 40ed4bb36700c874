//! The real prefix cache behind a policy.

use std::collections::BTreeMap;

use pb_contract::{BlockId, RequestId, TokenId};
use pb_kv::{CacheScope, HashedTokens, Hit, KvConfig, PrefixCache};
use pb_sched::{Allocator, QueueInfo};

use super::Memory;

/// A prefix cache and the tokens of its requests.
#[derive(Debug)]
pub(crate) struct Kv {
    pub(crate) cache: Box<dyn PrefixCache>,
    pub(crate) seqs: BTreeMap<RequestId, HashedTokens>,
}

impl Kv {
    pub(crate) fn new(config: KvConfig) -> Self {
        Kv {
            cache: pb_kv::build(config).unwrap(),
            seqs: BTreeMap::new(),
        }
    }

    /// Makes the tokens of a request known.
    pub(crate) fn add(&mut self, id: u64, tokens: &[TokenId], salt: Option<String>) {
        let scope = CacheScope {
            salt,
            ..CacheScope::default()
        };
        let mut seq = self.cache.config().sequence(&scope);
        seq.extend(tokens);
        self.seqs.insert(RequestId(id), seq);
    }

    fn hit(&self, id: RequestId, hit_tokens: usize) -> Hit {
        match hit_tokens {
            0 => Hit::default(),
            _ => self.cache.lookup(&self.seqs[&id]),
        }
    }
}

impl Allocator for Kv {
    fn lookup(&self, id: RequestId) -> usize {
        let hit = self.cache.lookup(&self.seqs[&id]);
        hit.tokens(self.cache.config().block_size)
    }

    fn blocks_needed(&self, id: RequestId, computed: usize, hit: usize, new: usize) -> usize {
        let hit = self.hit(id, hit);
        self.cache.blocks_needed(id, computed, &hit, new)
    }

    fn free_blocks(&self) -> usize {
        self.cache.free_blocks()
    }

    fn block_size(&self) -> usize {
        self.cache.config().block_size
    }

    fn allocate(&mut self, id: RequestId, computed: usize, hit: usize, new: usize) -> bool {
        let hit = self.hit(id, hit);
        self.cache
            .allocate(id, &self.seqs[&id], computed, &hit, new)
    }

    fn free(&mut self, id: RequestId) {
        self.cache.free(id);
    }
}

impl Memory for Kv {
    fn committed(&mut self, id: RequestId, computed: usize) {
        self.cache.commit(id, &self.seqs[&id], computed);
    }

    fn generated(&mut self, id: RequestId, token: u32) {
        self.seqs.get_mut(&id).unwrap().push(token);
    }

    fn finished(&mut self, id: RequestId) {
        self.cache.finish(id, &self.seqs[&id]);
    }

    fn info(&self) -> &dyn QueueInfo {
        self
    }
}

impl QueueInfo for Kv {
    fn matched_blocks(&self, id: RequestId) -> Vec<BlockId> {
        self.cache.lookup(&self.seqs[&id]).blocks
    }

    fn block_size(&self) -> usize {
        self.cache.config().block_size
    }

    fn tokens(&self, id: RequestId) -> &[TokenId] {
        self.seqs[&id].tokens()
    }

    fn scope_key(&self, _id: RequestId) -> u64 {
        0
    }
}
