//! A backend that fails in any step takes the requests of that step with it and nothing else.

use pb_contract::{BlockId, Clock, EngineRequest, PrefixCacheKind, RequestId, VirtualClock};
use pb_core::{Chunk, Engine, Executor, ToyExecutor};
use pb_model::forward::{ForwardTiming, LogitSink};

use crate::common::*;

/// The toy, which fails once, in step `fails_at`, after half of the batch is computed.
struct Failing {
    toy: ToyExecutor,
    steps: usize,
    fails_at: usize,
}

impl Executor for Failing {
    fn execute(
        &mut self,
        chunks: &[Chunk<'_>],
        clock: &dyn Clock,
        sink: &mut dyn LogitSink,
    ) -> Result<ForwardTiming, String> {
        self.steps += 1;
        if self.steps - 1 == self.fails_at {
            self.toy.execute(&chunks[..chunks.len() / 2], clock, sink)?;
            return Err("out of luck".to_owned());
        }
        self.toy.execute(chunks, clock, sink)
    }

    fn resize_kv(&mut self, block_size: usize, num_blocks: usize) {
        self.toy.resize_kv(block_size, num_blocks);
    }

    fn kv_bytes(&self) -> usize {
        self.toy.kv_bytes()
    }

    fn copy_block(&mut self, from: BlockId, to: BlockId) {
        self.toy.copy_block(from, to);
    }

    fn read_block(&self, block: BlockId, out: &mut Vec<u8>) {
        self.toy.read_block(block, out);
    }

    fn write_block(&mut self, block: BlockId, image: &[u8]) -> Result<(), String> {
        self.toy.write_block(block, image)
    }
}

fn failing(cache: PrefixCacheKind, fails_at: usize) -> Engine {
    let mut config = config(4, 20);
    config.prefix_cache = cache;
    config.max_num_seqs = 3;
    let executor = Failing {
        toy: ToyExecutor::new(VOCAB),
        steps: 0,
        fails_at,
    };
    Engine::new(config, spec(), Box::new(executor)).unwrap()
}

/// Requests that share a prefix, two of them forks of the first.
fn requests() -> Vec<EngineRequest> {
    let shared = prompt("failures", 13);
    let one = |i: u64| {
        let own = prompt(&format!("failures {i}"), 3 + i as usize);
        let mut request = seeded(i, &[&shared[..], &own].concat(), 12, i);
        if i == 1 || i == 2 {
            request.prompt = [&shared[..], &prompt("failures 0", 3)].concat();
            request.fork_of = Some(RequestId(0));
        }
        request
    };
    (0..6).map(one).collect()
}

/// After the failure, and reports 15 and 27: what the lost step had named is not found, what it
/// had taken is given back, and everyone else goes on.
#[test]
fn a_failed_step_loses_its_own_requests_only() {
    for cache in [
        PrefixCacheKind::None,
        PrefixCacheKind::HashChain,
        PrefixCacheKind::Radix,
    ] {
        for fails_at in 0..20 {
            let mut engine = failing(cache, fails_at);
            let requests = requests();
            for request in &requests {
                engine.add(request.clone()).unwrap();
            }
            let mut outcome = Outcome::default();
            let mut failed = Vec::new();
            while engine.has_work() {
                match engine.step(&VirtualClock::new()) {
                    Ok(output) => outcome.take(output),
                    Err(error) => {
                        assert_eq!(error.message, "out of luck");
                        failed = error.failed;
                    }
                }
                engine.check().unwrap();
            }
            assert!(!failed.is_empty(), "step {fails_at} was never reached");
            let mut kept = requests.clone();
            kept.retain(|r| !failed.contains(&r.id));
            assert_expected(&outcome, &kept);
            assert_idle(&engine);
            // The lost ones come again, over what is still cached.
            let mut again = requests;
            again.retain(|r| failed.contains(&r.id));
            for request in &mut again {
                request.fork_of = None;
                request.id = RequestId(request.id.0 + 100);
            }
            let second = run(&mut engine, &again);
            assert_expected(&second, &again);
        }
    }
}
