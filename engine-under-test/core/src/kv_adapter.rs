//! Lets a scheduling policy allocate blocks by request id.

use std::collections::BTreeMap;

use pb_contract::RequestId;
use pb_kv::{Hit, KvManager};
use pb_sched::Allocator;

use crate::request::Live;

/// The KV manager together with the requests whose tokens it needs.
pub(crate) struct KvAdapter<'a> {
    pub(crate) kv: &'a mut KvManager,
    pub(crate) requests: &'a BTreeMap<RequestId, Live>,
}

impl KvAdapter<'_> {
    fn hit(&self, id: RequestId, hit_tokens: usize) -> Hit {
        if hit_tokens == 0 {
            return Hit::default();
        }
        let seq = &self.requests[&id].seq;
        let mut hit = self.kv.lookup(seq);
        hit.truncate(hit_tokens / seq.block_size());
        hit
    }
}

impl Allocator for KvAdapter<'_> {
    fn lookup(&self, id: RequestId) -> usize {
        let seq = &self.requests[&id].seq;
        self.kv.lookup(seq).tokens(seq.block_size())
    }

    fn blocks_needed(
        &self,
        id: RequestId,
        computed: usize,
        hit_tokens: usize,
        new_tokens: usize,
    ) -> usize {
        self.kv
            .blocks_needed(id, computed, &self.hit(id, hit_tokens), new_tokens)
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
        let hit = self.hit(id, hit_tokens);
        self.kv
            .allocate(id, &self.requests[&id].seq, computed, &hit, new_tokens)
    }

    fn free(&mut self, id: RequestId) {
        self.kv.free(id);
    }
}
