//! The router by hand: every expected choice is worked out in the comment beside it.

mod choosing;
mod pressure;

use std::sync::Arc;

use pb_contract::{Nanos, RequestId};
use pb_kv::BlockHash;
use pb_router::{
    Ask, CacheChange, CacheEvent, Command, EventPage, Pool, Router, RouterConfig, WorkerId,
    WorkerSpec,
};

pub(crate) const B: usize = 16;
pub(crate) const W: [WorkerId; 4] = [WorkerId(0), WorkerId(1), WorkerId(2), WorkerId(3)];

pub(crate) fn names(numbers: impl IntoIterator<Item = u8>) -> Vec<BlockHash> {
    numbers.into_iter().map(|n| BlockHash([n; 32])).collect()
}

/// A prompt of `tokens` tokens whose full blocks are called `first`, `first + 1`, ...
pub(crate) fn ask(tokens: usize, first: u8) -> Ask {
    let full = (tokens / B) as u8;
    Ask {
        prompt_tokens: tokens,
        names: vec![Arc::from(names(first..first + full))],
        splittable: true,
    }
}

pub(crate) fn router(config: RouterConfig, pools: &[Pool]) -> Router {
    let mut router = Router::new(config).unwrap();
    for &pool in pools {
        router.add_worker(WorkerSpec::new(pool, B));
    }
    router
}

/// Tells the router that `worker` has these blocks.
pub(crate) fn cached(router: &mut Router, now: Nanos, worker: WorkerId, blocks: Vec<BlockHash>) {
    let seq = router.next_event(worker);
    let page = EventPage {
        engine: "e".to_owned(),
        oldest_seq: 0,
        next_seq: seq + 1,
        events: vec![CacheEvent {
            seq,
            change: CacheChange::Stored(blocks),
        }],
    };
    router.read_events(now, worker, &page);
}

pub(crate) fn commands(router: &mut Router) -> Vec<Command> {
    let commands = std::iter::from_fn(|| router.poll()).collect();
    assert_eq!(router.check(), Ok(()));
    commands
}

/// Where a request that arrives now is started, and whether for all of it.
pub(crate) fn started(router: &mut Router, now: u64, id: u64, ask: Ask) -> (WorkerId, bool) {
    router.arrive(Nanos(now), RequestId(id), ask);
    match commands(router)[..] {
        [Command::Start { at, whole, .. }] => (at, whole),
        ref other => panic!("{other:?}"),
    }
}
