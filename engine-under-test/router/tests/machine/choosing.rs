//! Who gets a request.

use pb_contract::{Nanos, RequestId};
use pb_router::{
    Ask, Command, CostParams, Outcome, Policy, Pool, Refusal, RouterConfig, WorkerId, WorkerSpec,
};

use crate::{B, W, ask, cached, commands, names, router, started};

#[test]
fn kv_aware_prefill_weighs_overlap_against_backlog() {
    let mut router = router(
        RouterConfig::default(),
        &[Pool::Prefill, Pool::Prefill, Pool::Decode],
    );
    // Worker 1 has blocks 0..6 of the prompts that follow.
    cached(&mut router, Nanos(0), W[1], names(0..6));
    // 10 blocks: worker 0 costs 0 + 10 - 0 = 10, worker 1 costs 0 + 10 - 6 = 4.
    assert_eq!(started(&mut router, 0, 1, ask(160, 0)).0, W[1]);
    // Worker 1 has now 160 - 96 = 64 tokens = 4 blocks to do: 10 against 4 + 10 - 6 = 8.
    assert_eq!(started(&mut router, 0, 2, ask(160, 0)).0, W[1]);
    // 8 blocks to do: 10 against 8 + 10 - 6 = 12.
    assert_eq!(started(&mut router, 0, 3, ask(160, 0)).0, W[0]);
    // Worker 0 has 10: 10 + 10 = 20 against 12.
    assert_eq!(started(&mut router, 0, 4, ask(160, 0)).0, W[1]);
    // A prompt that nobody has: 10 + 4 against 12 + 4: worker 0.
    assert_eq!(started(&mut router, 0, 5, ask(64, 100)).0, W[0]);
}

#[test]
fn ties_go_to_the_lower_number_and_weight_zero_ignores_the_cache() {
    let mut equal = router(RouterConfig::default(), &[Pool::Prefill; 3]);
    equal.add_worker(WorkerSpec::new(Pool::Decode, B));
    // 0, then 1 (0 has a backlog of 2), then 2, then all have 2 again.
    let order: Vec<WorkerId> = (0..4)
        .map(|id| started(&mut equal, 0, id, ask(32, 10 * id as u8)).0)
        .collect();
    assert_eq!(order, [W[0], W[1], W[2], W[0]]);

    let config = RouterConfig {
        cost: CostParams {
            overlap_credit: 0.0,
            ..CostParams::default()
        },
        ..RouterConfig::default()
    };
    let mut blind = router(config, &[Pool::Prefill, Pool::Prefill, Pool::Decode]);
    cached(&mut blind, Nanos(0), W[1], names(0..6));
    assert_eq!(started(&mut blind, 0, 1, ask(160, 0)).0, W[0]);
}

#[test]
fn decode_goes_where_fewest_blocks_are_used_and_shared_ones_count_once() {
    let pools = [Pool::Prefill, Pool::Decode, Pool::Decode];
    let mut router = router(RouterConfig::default(), &pools);
    let mut hand = |now: u64, id: u64, ask: Ask| {
        started(&mut router, now, id, ask);
        router.prefilled(Nanos(now), RequestId(id));
        let to = match commands(&mut router)[..] {
            [Command::Hand { to, .. }] => to,
            ref other => panic!("{other:?}"),
        };
        router.fetched(Nanos(now), RequestId(id));
        to
    };
    // 4 blocks each; 0 + 4 against 0 + 4: the lower number.
    assert_eq!(hand(0, 1, ask(64, 0)), W[1]);
    // Other 4: 4 + 4 against 0 + 4.
    assert_eq!(hand(1, 2, ask(64, 50)), W[2]);
    // The first 4 again: worker 1 has them in use, 4 against 4 + 4.
    assert_eq!(hand(2, 3, ask(64, 0)), W[1]);
    // A fifth block behind them: 5 against 4 + 5.
    assert_eq!(hand(3, 4, ask(80, 0)), W[1]);
    let blocks: Vec<usize> = router.workers().iter().map(|w| w.blocks).collect();
    assert_eq!(blocks, [0, 5, 4]);
}

#[test]
fn a_block_that_was_removed_is_believed_in_no_longer_than_the_bound() {
    let config = RouterConfig {
        max_staleness_ns: Nanos(1000),
        ..RouterConfig::default()
    };
    let mut router = router(config, &[Pool::Prefill, Pool::Prefill, Pool::Decode]);
    cached(&mut router, Nanos(0), W[1], names(0..10));
    // The worker evicts them at 100, and the router hears of it at 1100 at the earliest.
    let (at, _) = started(&mut router, 1000, 1, ask(160, 0));
    assert_eq!(at, W[1], "within the bound: a wrong guess costs a prefill");
    router.ended(Nanos(1000), RequestId(1), Outcome::Completed);
    let (at, _) = started(&mut router, 1001, 2, ask(160, 0));
    assert_eq!(at, W[0], "beyond the bound nothing is believed");
}

#[test]
fn overlap_is_that_of_the_whole_prompt_and_the_last_token_is_computed() {
    let mut router = router(RouterConfig::default(), &[Pool::Prefill, Pool::Decode]);
    cached(&mut router, Nanos(0), W[0], names(0..100));
    let mut overlap = |id: u64, tokens: usize| {
        router.arrive(Nanos(0), RequestId(id), ask(tokens, 0));
        match commands(&mut router)[..] {
            [Command::Start { overlap_tokens, .. }] => overlap_tokens,
            ref other => panic!("{other:?}"),
        }
    };
    // floor(n / B) blocks are cached, of which at most floor((n - 1) / B) are used.
    assert_eq!(overlap(1, 1000), 992);
    assert_eq!(overlap(2, 1008), 992);
    assert_eq!(overlap(3, 1009), 1008);
    assert_eq!(overlap(4, 16), 0);
    assert_eq!(overlap(5, 1), 0);
}

#[test]
fn round_robin_and_least_loaded() {
    let round = RouterConfig {
        policy: Policy::RoundRobin,
        ..RouterConfig::default()
    };
    let pools = [Pool::Prefill, Pool::Prefill, Pool::Prefill, Pool::Decode];
    let mut round = router(round, &pools);
    let order: Vec<u32> = (0..5)
        .map(|id| started(&mut round, 0, id, ask(32, 0)).0.0)
        .collect();
    assert_eq!(order, [0, 1, 2, 0, 1]);

    let least = RouterConfig {
        policy: Policy::LeastLoaded,
        ..RouterConfig::default()
    };
    let mut least = router(least, &pools);
    // Tokens after each: 100/0/0, 100/40/0, 100/40/50, then 40 is the least, then 50.
    let lengths = [100, 40, 50, 20, 1];
    let order: Vec<u32> = (0..5)
        .map(|id| started(&mut least, 0, id, ask(lengths[id as usize], 0)).0.0)
        .collect();
    assert_eq!(order, [0, 1, 2, 1, 2]);
}

#[test]
fn short_prompts_stay_and_long_ones_are_split() {
    let config = RouterConfig {
        local_prefill_max_tokens: 64,
        ..RouterConfig::default()
    };
    let mut router = router(config, &[Pool::Prefill, Pool::Decode, Pool::Decode]);
    assert_eq!(started(&mut router, 0, 1, ask(64, 0)), (W[1], true));
    assert_eq!(started(&mut router, 0, 2, ask(65, 50)), (W[0], false));
    // 160 tokens of which worker 2 has 96: 64 are left, and that is short.
    cached(&mut router, Nanos(0), W[2], names(100..106));
    assert_eq!(started(&mut router, 0, 3, ask(160, 100)), (W[2], true));
    // What cannot be split goes to a decode worker as a whole.
    let whole = Ask {
        splittable: false,
        ..ask(160, 150)
    };
    assert!(started(&mut router, 0, 4, whole).1);
    assert_eq!(router.stats().local_prefill, 2);
}

#[test]
fn a_backlog_of_all_prefill_workers_makes_prefill_local() {
    let config = RouterConfig {
        prefill_backlog_max_tokens: Some(150),
        ..RouterConfig::default()
    };
    let mut router = router(config, &[Pool::Prefill, Pool::Prefill, Pool::Decode]);
    // Backlogs 0/0, 160/0, 160/160: the least is over 150 for the third.
    assert_eq!(started(&mut router, 0, 1, ask(160, 0)), (W[0], false));
    assert_eq!(started(&mut router, 0, 2, ask(160, 50)), (W[1], false));
    assert_eq!(started(&mut router, 0, 3, ask(160, 100)), (W[2], true));
}

#[test]
fn without_prefill_workers_decode_workers_do_it_unless_that_is_forbidden() {
    let mut lenient = router(RouterConfig::default(), &[Pool::Prefill, Pool::Decode]);
    lenient.set_up(Nanos(0), W[0], false);
    assert_eq!(started(&mut lenient, 0, 1, ask(160, 0)), (W[1], true));

    let strict = RouterConfig {
        enforce_disaggregation: true,
        queue_timeout_ns: Nanos(1000),
        ..RouterConfig::default()
    };
    let mut strict = router(strict, &[Pool::Prefill, Pool::Decode]);
    strict.set_up(Nanos(0), W[0], false);
    strict.arrive(Nanos(0), RequestId(1), ask(160, 0));
    assert_eq!(commands(&mut strict), []);
    assert!(!strict.can_serve());
    // It comes back in time for the first and not for the second.
    strict.set_up(Nanos(10), W[0], true);
    assert!(matches!(
        commands(&mut strict)[..],
        [Command::Start { whole: false, .. }]
    ));
    strict.set_up(Nanos(20), W[0], false);
    strict.arrive(Nanos(30), RequestId(2), ask(160, 0));
    assert_eq!(strict.next_deadline(), Some(Nanos(1030)));
    strict.tick(Nanos(1030));
    let why = Refusal::NoWorker;
    assert_eq!(
        commands(&mut strict),
        [Command::Refuse {
            id: RequestId(2),
            why
        }]
    );
}
