//! Too much at once, failures, and pools that help each other.

use pb_contract::{Nanos, RequestId};
use pb_router::{Command, Outcome, Pool, PoolParams, Refusal, Router, RouterConfig, WorkerSpec};

use crate::{B, W, ask, cached, commands, names, router, started};

#[test]
fn early_rejection_by_predicted_time() {
    let config = RouterConfig {
        slo_ttft_ns: Some(Nanos(1000)),
        prefill_ns_per_token: Some(5.0),
        max_prefills: 2,
        ..RouterConfig::default()
    };
    let mut router = router(config, &[Pool::Prefill, Pool::Decode]);
    // 100 tokens: 500 ns. Then 100 + 100: 1000 ns, just in time. Then 200 + 1: 1005 ns.
    started(&mut router, 0, 1, ask(100, 0));
    started(&mut router, 0, 2, ask(100, 50));
    router.arrive(Nanos(0), RequestId(3), ask(1, 0));
    let early = Refusal::Early {
        predicted_ns: 1005,
        slo_ns: 1000,
    };
    assert_eq!(
        commands(&mut router),
        [Command::Refuse {
            id: RequestId(3),
            why: early
        }]
    );
    assert_eq!(router.stats().refused_early, 1);
    router.prefilled(Nanos(500), RequestId(1));
    commands(&mut router);
    // 5 ns a token were observed, 100 tokens are left: 100 + 100 is just in time again.
    router.arrive(Nanos(500), RequestId(4), ask(100, 100));
    assert!(matches!(
        commands(&mut router)[..],
        [Command::Start { .. }] | []
    ));
    assert_eq!(router.stats().refused_early, 1);
}

#[test]
fn a_prompt_of_another_length_than_all_before_is_tried() {
    let config = RouterConfig {
        slo_ttft_ns: Some(Nanos(1000)),
        ..RouterConfig::default()
    };
    let mut router = router(config, &[Pool::Prefill, Pool::Decode]);
    // One token in 100 ns, most of which any prompt would take.
    started(&mut router, 0, 1, ask(1, 0));
    router.prefilled(Nanos(100), RequestId(1));
    commands(&mut router);
    // Four tokens are no more than four times the mean: 400 ns. Eleven would be 1100 ns.
    started(&mut router, 100, 2, ask(11, 0));
    assert_eq!(router.stats().refused_early, 0);
    // Behind it, nothing is learnt by waiting: 1100 + 1100.
    router.arrive(Nanos(150), RequestId(3), ask(11, 20));
    assert_eq!(router.stats().refused_early, 1);
    commands(&mut router);
    // It took 110 ns: a tenth more tokens would not take 1100.
    router.prefilled(Nanos(210), RequestId(2));
    commands(&mut router);
    started(&mut router, 300, 4, ask(11, 40));
}

#[test]
fn what_a_worker_is_changes_when_it_has_no_request() {
    let mut router = router(RouterConfig::default(), &[Pool::Mixed]);
    let id = router.workers()[0].id;
    let other = WorkerSpec {
        blocks_total: Some(7),
        ..WorkerSpec::new(Pool::Mixed, 2 * B)
    };
    started(&mut router, 0, 1, ask(10, 0));
    assert!(!router.set_spec(id, other.clone()));
    assert!(
        router.set_spec(id, WorkerSpec::new(Pool::Mixed, B)),
        "as it was"
    );
    router.ended(Nanos(5), RequestId(1), Outcome::Completed);
    assert!(router.set_spec(id, other));
}

/// Six requests arrive; which are started and which are refused.
fn six_at_once(router: &mut Router) -> (Vec<u64>, Vec<u64>) {
    let (mut started, mut refused) = (Vec::new(), Vec::new());
    for id in 0..6 {
        router.arrive(Nanos(id), RequestId(id), ask(160, 0));
        for command in commands(router) {
            match command {
                Command::Start { id, .. } => started.push(id.0),
                Command::Refuse { id, why } => {
                    assert_eq!(why, Refusal::QueueFull);
                    refused.push(id.0);
                }
                Command::Hand { .. } => panic!("nothing is computed"),
            }
        }
    }
    (started, refused)
}

#[test]
fn back_pressure_holds_then_stops_then_refuses_and_drains() {
    let config = RouterConfig {
        max_prefills: 2,
        max_decodes: 1,
        queue_max: 2,
        hold_max_ns: Nanos::from_secs(100),
        queue_timeout_ns: Nanos::from_secs(100),
        ..RouterConfig::default()
    };
    let mut router = router(config, &[Pool::Prefill, Pool::Decode]);
    let (started, refused) = six_at_once(&mut router);
    // Two at the prefill worker, two in the queue, the others are refused.
    assert_eq!((&started[..], &refused[..]), (&[0, 1][..], &[4, 5][..]));
    // Both are computed: the first is handed over, the second is held; the place of neither is
    // free before its KV has been fetched.
    router.prefilled(Nanos(10), RequestId(0));
    router.prefilled(Nanos(11), RequestId(1));
    let to = W[1];
    assert_eq!(
        commands(&mut router),
        [Command::Hand {
            id: RequestId(0),
            to
        }]
    );
    assert_eq!(router.waiting(), (2, 1));
    // Fetched: one place at the prefill worker.
    router.fetched(Nanos(12), RequestId(0));
    assert!(matches!(
        commands(&mut router)[..],
        [Command::Start {
            id: RequestId(2),
            ..
        }]
    ));
    router.prefilled(Nanos(13), RequestId(2));
    assert_eq!(commands(&mut router), []);
    assert_eq!(router.workers()[0].kept, 2);
    // The decode ends: everything moves up by one, in order.
    let mut handed = Vec::new();
    for (id, now) in [(0, 20), (1, 30), (2, 40), (3, 50)] {
        router.ended(Nanos(now), RequestId(id), Outcome::Completed);
        for command in commands(&mut router) {
            match command {
                Command::Hand { id, .. } => {
                    handed.push(id.0);
                    router.fetched(Nanos(now + 1), id);
                }
                Command::Start { id, .. } => router.prefilled(Nanos(now + 2), id),
                Command::Refuse { .. } => panic!("{command:?}"),
            }
        }
        for command in commands(&mut router) {
            if let Command::Start { id, .. } = command {
                router.prefilled(Nanos(now + 3), id);
            }
        }
    }
    assert_eq!(handed, [1, 2, 3]);
    assert_eq!((router.live(), router.stats().completed), (0, 4));
    assert!(router.workers().iter().all(|w| w.blocks + w.kept == 0));
}

#[test]
fn a_held_prompt_goes_to_a_full_worker_before_its_lease_is_over() {
    let config = RouterConfig {
        max_decodes: 1,
        hold_max_ns: Nanos(500),
        ..RouterConfig::default()
    };
    let mut router = router(config, &[Pool::Prefill, Pool::Decode]);
    let mut handed = 0;
    for id in [1, 2] {
        started(&mut router, 0, id, ask(32, 0));
        router.prefilled(Nanos(id * 10), RequestId(id));
        handed += commands(&mut router).len();
    }
    assert_eq!(handed, 1);
    assert_eq!(router.next_deadline(), Some(Nanos(520)));
    router.tick(Nanos(519));
    assert_eq!(commands(&mut router), []);
    router.tick(Nanos(520));
    let (id, to) = (RequestId(2), W[1]);
    assert_eq!(commands(&mut router), [Command::Hand { id, to }]);
    assert_eq!(router.stats().handed_without_room, 1);
}

#[test]
fn decode_room_is_counted_in_blocks_too() {
    let mut router = Router::new(RouterConfig {
        decode_fill_max: 0.5,
        ..RouterConfig::default()
    })
    .unwrap();
    router.add_worker(WorkerSpec::new(Pool::Prefill, B));
    router.add_worker(WorkerSpec {
        blocks_total: Some(20),
        ..WorkerSpec::new(Pool::Decode, B)
    });
    // Half of 20 is 10. 4 blocks and one for what follows: 5, then 8 + 1 = 9, then 12 + 1 = 13.
    let mut handed = 0;
    for id in [1, 2, 3] {
        started(&mut router, 0, id, ask(64, 20 * id as u8));
        router.prefilled(Nanos(id), RequestId(id));
        handed += commands(&mut router).len();
    }
    assert_eq!(handed, 2);
    router.ended(Nanos(9), RequestId(1), Outcome::Cancelled);
    assert_eq!(commands(&mut router).len(), 1);
    // One that is larger than the limit by itself is the worker's to refuse, not ours to keep.
    router.ended(Nanos(10), RequestId(2), Outcome::Completed);
    router.ended(Nanos(10), RequestId(3), Outcome::Completed);
    started(&mut router, 11, 4, ask(240, 100));
    router.prefilled(Nanos(12), RequestId(4));
    assert_eq!(commands(&mut router).len(), 1);
}

#[test]
fn a_computed_prompt_does_not_wait_for_the_places_of_prompts_that_are_not() {
    let mut router = Router::new(RouterConfig {
        decode_fill_max: 0.5,
        ..RouterConfig::default()
    })
    .unwrap();
    router.add_worker(WorkerSpec {
        stream_min_tokens: Some(100),
        ..WorkerSpec::new(Pool::Prefill, B)
    });
    router.add_worker(WorkerSpec {
        blocks_total: Some(20),
        ..WorkerSpec::new(Pool::Decode, B)
    });
    // Half of 20 is 10, and 7 are the place of the first, which is streamed. It may wait for the
    // blocks that the others have where they are computed.
    started(&mut router, 0, 1, ask(112, 0));
    assert_eq!(router.stats().ahead, 1);
    let mut handed = Vec::new();
    for id in [2, 3, 4] {
        started(&mut router, 0, id, ask(64, 20 * id as u8));
        router.prefilled(Nanos(id), RequestId(id));
        handed.push(commands(&mut router).len());
    }
    // 4 and one more, 8 and one more; the last would be 12, and waits for one of these.
    assert_eq!(handed, [1, 1, 0]);
    router.prefilled(Nanos(8), RequestId(1));
    let place = Command::Hand {
        id: RequestId(1),
        to: W[1],
    };
    assert_eq!(commands(&mut router), [place]);
    assert_eq!(router.stats().handed_without_room, 0);
    for id in [1, 2] {
        router.ended(Nanos(9), RequestId(id), Outcome::Completed);
    }
    let last = Command::Hand {
        id: RequestId(4),
        to: W[1],
    };
    assert_eq!(commands(&mut router), [last]);
}

#[test]
fn a_failed_request_starts_elsewhere_and_not_for_ever() {
    let config = RouterConfig {
        max_retries: 2,
        queue_max: 0,
        ..RouterConfig::default()
    };
    let pools = [Pool::Prefill, Pool::Prefill, Pool::Decode];
    let mut router = router(config, &pools);
    cached(&mut router, Nanos(0), W[1], names(0..10));
    assert_eq!(started(&mut router, 0, 1, ask(160, 0)).0, W[1]);
    // Worker 1 is still the cheapest, and it failed.
    assert!(router.retry(Nanos(1), RequestId(1), W[1]));
    assert!(matches!(commands(&mut router)[..], [Command::Start { at, .. }] if at == W[0]));
    assert_eq!(router.retries_of(RequestId(1)), 1);
    // Now both have failed once: the cheapest again.
    assert!(router.retry(Nanos(2), RequestId(1), W[0]));
    assert!(matches!(commands(&mut router)[..], [Command::Start { at, .. }] if at == W[1]));
    assert!(!router.retry(Nanos(3), RequestId(1), W[1]));
    assert_eq!((router.live(), router.stats().failed), (0, 1));
    assert_eq!(commands(&mut router), []);
}

#[test]
fn a_prompt_whose_decode_worker_is_lost_goes_to_another_one() {
    let config = RouterConfig {
        max_retries: 2,
        hold_max_ns: Nanos(500),
        ..RouterConfig::default()
    };
    let mut router = router(config, &[Pool::Prefill, Pool::Decode, Pool::Decode]);
    let id = RequestId(1);
    started(&mut router, 0, 1, ask(32, 0));
    assert!(!router.hand_again(Nanos(0), id, W[1]), "it is not handed");
    router.prefilled(Nanos(1), id);
    assert_eq!(commands(&mut router), [Command::Hand { id, to: W[1] }]);
    assert!(
        !router.hand_again(Nanos(2), id, W[2]),
        "that one has nothing"
    );
    assert!(router.hand_again(Nanos(2), id, W[1]));
    assert_eq!(commands(&mut router), [Command::Hand { id, to: W[2] }]);
    let account = |router: &Router| -> Vec<(usize, usize, usize)> {
        let views = router.workers();
        views
            .iter()
            .map(|w| (w.kept, w.decodes, w.blocks))
            .collect()
    };
    assert_eq!(account(&router), [(1, 0, 2), (0, 0, 0), (0, 1, 2)]);
    // Both are lost: it waits for one that answers, and its first token is not computed again.
    router.set_up(Nanos(3), W[1], false);
    router.set_up(Nanos(3), W[2], false);
    assert!(router.hand_again(Nanos(3), id, W[2]));
    assert_eq!(commands(&mut router), []);
    router.set_up(Nanos(400), W[1], true);
    assert_eq!(commands(&mut router), [Command::Hand { id, to: W[1] }]);
    // Twice it was; then it fails where it is.
    assert!(!router.hand_again(Nanos(401), id, W[1]));
    assert_eq!(router.retries_of(id), 2);
    router.fetched(Nanos(402), id);
    assert!(!router.hand_again(Nanos(403), id, W[1]), "it decodes");
    router.ended(Nanos(404), id, Outcome::Completed);
    assert_eq!(account(&router), [(0, 0, 0); 3]);
}

#[test]
fn a_dead_worker_is_passed_over_and_its_cache_forgotten() {
    let mut router = router(
        RouterConfig::default(),
        &[Pool::Prefill, Pool::Prefill, Pool::Decode],
    );
    cached(&mut router, Nanos(0), W[1], names(0..10));
    router.set_up(Nanos(1), W[1], false);
    assert_eq!(started(&mut router, 1, 1, ask(160, 0)).0, W[0]);
    router.set_up(Nanos(2), W[1], true);
    // Backlog 10 against none: worker 1, though nothing is known of its cache any more.
    router.arrive(Nanos(2), RequestId(2), ask(160, 0));
    let start = commands(&mut router);
    assert!(
        matches!(start[..], [Command::Start { at, overlap_tokens: 0, .. }] if at == W[1]),
        "{start:?}"
    );
    // No decode worker answers: a computed prompt waits as long as a queued one, and is refused
    // when its time is over.
    router.set_up(Nanos(3), W[2], false);
    router.prefilled(Nanos(4), RequestId(2));
    router.tick(Nanos(5) + RouterConfig::default().hold_max_ns);
    assert_eq!(commands(&mut router), []);
    let until = router.next_deadline().unwrap();
    assert_eq!(until, Nanos(2) + RouterConfig::default().queue_timeout_ns);
    router.tick(Nanos(until.0 - 1));
    assert_eq!(commands(&mut router), []);
    router.tick(until);
    assert!(matches!(
        commands(&mut router)[..],
        [Command::Refuse {
            id: RequestId(2),
            why: Refusal::NoWorker
        }]
    ));
}

#[test]
fn splitwise_lends_a_worker_and_takes_it_back() {
    let config = RouterConfig {
        pools: Some(PoolParams {
            prefill_max_pending_tokens: 100,
            decode_max_pending_tokens: 2,
        }),
        ..RouterConfig::default()
    };
    let mut router = Router::new(config).unwrap();
    for pool in [Pool::Prefill, Pool::Decode, Pool::Decode] {
        router.add_worker(WorkerSpec {
            flexible: true,
            ..WorkerSpec::new(pool, B)
        });
    }
    let pools =
        |router: &Router| -> Vec<Pool> { router.workers().iter().map(|view| view.pool).collect() };
    // 0 pending, then 101: worker 0 takes both 101s? No: the first leaves 101 pending, over 100.
    assert_eq!(started(&mut router, 0, 1, ask(101, 0)), (W[0], false));
    // The decode worker with the fewest pending is lent.
    assert_eq!(started(&mut router, 0, 2, ask(50, 20)), (W[1], false));
    assert_eq!(pools(&router), [Pool::Prefill, Pool::Mixed, Pool::Decode]);
    // 50 pending at the mixed one: still there; its decode would be worker 2's.
    assert_eq!(started(&mut router, 0, 3, ask(60, 40)), (W[1], false));
    // 110 pending there: the other decode worker computes it, and as nobody is left in the decode
    // pool, the mixed one (110 > 2 pending) is no target and the prefill one would be lent.
    assert_eq!(started(&mut router, 0, 4, ask(10, 60)), (W[2], false));
    assert_eq!(pools(&router), [Pool::Prefill, Pool::Mixed, Pool::Mixed]);
    // All prompts are done and fetched: each goes home.
    for id in [1, 2, 3, 4] {
        router.prefilled(Nanos(id), RequestId(id));
        commands(&mut router);
    }
    for id in [1, 2, 3, 4] {
        router.fetched(Nanos(10), RequestId(id));
        commands(&mut router);
    }
    for id in [1, 2, 3, 4] {
        router.ended(Nanos(20), RequestId(id), Outcome::Completed);
        commands(&mut router);
    }
    assert_eq!(pools(&router), [Pool::Prefill, Pool::Decode, Pool::Decode]);
    let stats = router.stats();
    assert_eq!((stats.completed, stats.pool_moves), (4, stats.pool_returns));
    assert!(stats.pool_moves >= 2);
}

#[test]
fn splitwise_without_a_pair_serves_at_one_worker() {
    let config = RouterConfig {
        pools: Some(PoolParams::default()),
        ..RouterConfig::default()
    };
    let mut router = Router::new(config).unwrap();
    router.add_worker(WorkerSpec {
        flexible: true,
        ..WorkerSpec::new(Pool::Decode, B)
    });
    assert_eq!(started(&mut router, 0, 1, ask(64, 0)), (W[0], true));
    router.prefilled(Nanos(1), RequestId(1));
    router.ended(Nanos(2), RequestId(1), Outcome::Completed);
    assert_eq!(router.live(), 0);
}

#[test]
fn a_worker_of_both_kinds_keeps_what_it_has_begun() {
    let mut router = router(RouterConfig::default(), &[Pool::Prefill, Pool::Mixed]);
    assert_eq!(started(&mut router, 0, 1, ask(64, 0)), (W[0], false));
    // Backlog 4 against 0.
    assert_eq!(started(&mut router, 0, 2, ask(64, 50)), (W[1], true));
}
