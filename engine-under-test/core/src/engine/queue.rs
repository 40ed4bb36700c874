//! The waiting queue as the policy sees it.

use std::collections::BTreeMap;

use pb_contract::{BlockId, QueueOrder, RequestId, TokenId};
use pb_kv::PrefixCache;
use pb_sched::{QueueInfo, SeqView, arrange};

use super::Engine;
use crate::request::Live;

impl Engine {
    /// Views of the waiting requests in the order in which they should be admitted. A policy
    /// admits the first so many of them and never more than may run, so the rest of a long queue
    /// is left out.
    pub(super) fn waiting_views(&self) -> Vec<SeqView> {
        let most = self.config.max_num_seqs.saturating_add(1);
        let views = self.waiting.iter().map(|id| self.requests[id].view());
        let order = self.config.scheduling.queue;
        if order == QueueOrder::Fcfs {
            return views.take(most).collect();
        }
        let views: Vec<SeqView> = views.collect();
        let info = Info::new(self);
        let order = arrange(order, &views, &info);
        order.into_iter().take(most).map(|i| views[i]).collect()
    }
}

/// What a queue order may ask about waiting requests.
struct Info<'a> {
    requests: &'a BTreeMap<RequestId, Live>,
    kv: &'a dyn PrefixCache,
    /// A number for each pair of adapter and salt among the waiting requests.
    scopes: BTreeMap<(Option<usize>, Option<&'a str>), u64>,
}

impl<'a> Info<'a> {
    fn new(engine: &'a Engine) -> Self {
        let mut scopes = BTreeMap::new();
        for id in &engine.waiting {
            let next = scopes.len() as u64;
            scopes.entry(scope_of(&engine.requests[id])).or_insert(next);
        }
        Info {
            requests: &engine.requests,
            kv: engine.kv.as_ref(),
            scopes,
        }
    }
}

fn scope_of(live: &Live) -> (Option<usize>, Option<&str>) {
    (live.adapter, live.request.cache_salt.as_deref())
}

impl QueueInfo for Info<'_> {
    fn matched_blocks(&self, id: RequestId) -> Vec<BlockId> {
        self.kv.lookup(&self.requests[&id].seq).blocks
    }

    fn block_size(&self) -> usize {
        self.kv.config().block_size
    }

    fn tokens(&self, id: RequestId) -> &[TokenId] {
        self.requests[&id].seq.tokens()
    }

    fn scope_key(&self, id: RequestId) -> u64 {
        self.scopes[&scope_of(&self.requests[&id])]
    }
}
