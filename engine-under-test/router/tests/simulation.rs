//! The router in virtual time: what its decisions do to the work.

use pb_contract::{Nanos, Stream, TokenId};
use pb_router::sim::{SimError, SimOptions, SimReport, SimRequest, SimTimes, simulate};
use pb_router::{Policy, Pool, PoolParams, RouterConfig};
use pb_workloads::{SharedPrefixParams, TextSource, shared_prefix};

/// Questions behind shared system prompts, in random order, at random times.
fn trace(groups: usize, per_group: usize, rate_per_s: f64, seed: u64) -> Vec<SimRequest> {
    let tokens = (0..9_000u32).map(|i| (i * 13 + i * i) % 977).collect();
    let mut text = TextSource::new(tokens, seed).unwrap();
    let params = SharedPrefixParams {
        groups,
        questions_per_group: per_group,
        system_len: 1024,
        question_len_min: 32,
        question_len_max: 96,
        output_len: 32,
    };
    let made = shared_prefix(&params, &mut text, seed).unwrap();
    let mut prompts: Vec<Vec<TokenId>> = made
        .warm
        .iter()
        .map(|body| body.prompt.ids().unwrap().to_vec())
        .collect();
    let mut rng = Stream::new(seed, "order and arrivals");
    rng.shuffle(&mut prompts);
    let mut at = 0.0;
    let requests = prompts.into_iter().map(|prompt| {
        at += rng.exponential(1e9 / rate_per_s);
        SimRequest {
            at_ns: Nanos(at as u64),
            prompt,
            output_tokens: 32,
        }
    });
    requests.collect()
}

fn options(pools: &[Pool], blocks: usize) -> SimOptions {
    SimOptions {
        pools: pools.to_vec(),
        flexible: false,
        block_size: 16,
        blocks,
        times: SimTimes::default(),
        events_every_ns: Some(Nanos::from_millis(50)),
        check_laws: true,
    }
}

fn run(policy: Policy, options: &SimOptions, requests: &[SimRequest]) -> SimReport {
    let config = RouterConfig {
        policy,
        ..RouterConfig::default()
    };
    simulate(&config, options, requests).unwrap()
}

const THREE_AND_TWO: [Pool; 5] = [
    Pool::Prefill,
    Pool::Prefill,
    Pool::Prefill,
    Pool::Decode,
    Pool::Decode,
];

#[test]
fn every_request_ends_whole_and_the_tokens_add_up() {
    let requests = trace(8, 20, 10.0, 1);
    for policy in [Policy::RoundRobin, Policy::LeastLoaded, Policy::KvAware] {
        let report = run(policy, &options(&THREE_AND_TWO, 2000), &requests);
        assert_eq!(report.stats.completed, 160);
        assert!(report.rows.iter().all(|row| row.output_tokens == 32));
        let prompts: usize = requests.iter().map(|request| request.prompt.len()).sum();
        assert_eq!(report.prompt_tokens, prompts as u64);
        // A worker that has seen a group computes the question alone, so at least each question
        // and each system prompt once, and at most everything.
        let least: usize = prompts - 160 * 1024 + 8 * 1024;
        assert!(report.computed_tokens >= least as u64);
        assert!(report.computed_tokens <= report.prompt_tokens);
        let rows = report.rows.iter();
        assert_eq!(
            rows.map(|row| row.computed_tokens).sum::<u64>(),
            report.computed_tokens
        );
    }
}

#[test]
fn kv_aware_routing_computes_fewer_tokens_than_round_robin() {
    // The system prompts of 24 groups are 64 blocks each, 1536 in all: one worker's 1000 blocks do
    // not hold them, and three workers' do.
    for seed in 1..4 {
        let requests = trace(24, 12, 12.0, seed);
        let options = SimOptions {
            check_laws: false,
            ..options(&THREE_AND_TWO, 1000)
        };
        let round = run(Policy::RoundRobin, &options, &requests);
        let aware = run(Policy::KvAware, &options, &requests);
        assert_eq!((round.stats.completed, aware.stats.completed), (288, 288));
        assert!(
            (aware.computed_tokens as f64) < 0.8 * round.computed_tokens as f64,
            "seed {seed}: {} against {}",
            aware.computed_tokens,
            round.computed_tokens
        );
    }
}

#[test]
fn predictions_do_where_workers_report_nothing() {
    let requests = trace(24, 12, 12.0, 1);
    let blind = SimOptions {
        events_every_ns: None,
        ..options(&THREE_AND_TWO, 1000)
    };
    let round = run(Policy::RoundRobin, &blind, &requests);
    let aware = run(Policy::KvAware, &blind, &requests);
    assert!(aware.computed_tokens < round.computed_tokens);
}

#[test]
fn a_small_decode_pool_holds_prefill_back_and_loses_nothing() {
    let requests = trace(4, 40, 200.0, 2);
    let config = RouterConfig {
        max_decodes: 2,
        max_prefills: 4,
        queue_max: 1000,
        queue_timeout_ns: Nanos::from_secs(3600),
        hold_max_ns: Nanos::from_secs(3600),
        ..RouterConfig::default()
    };
    let options = options(&[Pool::Prefill, Pool::Decode], 2000);
    let report = simulate(&config, &options, &requests).unwrap();
    assert_eq!(report.stats.completed, 160);
    // Four at most, held or fetched, however many wait.
    assert!(report.most_kept <= 4, "{}", report.most_kept);
    assert!(report.most_queued > 100, "{}", report.most_queued);
    // With a bound on the queue the rest is refused, and what is let in still ends.
    let config = RouterConfig {
        queue_max: 8,
        ..config
    };
    let report = simulate(&config, &options, &requests).unwrap();
    assert!(report.stats.refused_queue_full > 50);
    assert_eq!(
        report.stats.completed + report.stats.refused_queue_full,
        160
    );
    assert!(report.most_queued <= 8, "{}", report.most_queued);
}

#[test]
fn pools_follow_the_load_and_come_back() {
    // Long prompts and short answers, then short prompts and long answers.
    let mut rng = Stream::new(3, "two phases");
    let mut requests = Vec::new();
    for n in 0..160u64 {
        let first = n < 80;
        let (tokens, output) = if first { (3000, 8) } else { (64, 200) };
        requests.push(SimRequest {
            at_ns: Nanos::from_millis(n * 60),
            prompt: (0..tokens).map(|_| rng.below(30_000) as u32).collect(),
            output_tokens: output,
        });
    }
    let config = RouterConfig {
        pools: Some(PoolParams::default()),
        queue_max: 1000,
        ..RouterConfig::default()
    };
    let pools = [Pool::Prefill, Pool::Decode, Pool::Decode, Pool::Decode];
    let options = SimOptions {
        flexible: true,
        ..options(&pools, 4000)
    };
    let report = simulate(&config, &options, &requests).unwrap();
    assert_eq!(report.stats.completed, 160);
    assert!(report.stats.pool_moves > 0);
    assert_eq!(report.stats.pool_moves, report.stats.pool_returns);
}

#[test]
fn early_rejection_keeps_its_word_about_those_it_lets_in() {
    // All prompts differ: about 60 ms each by the model of time, for three workers 50 a second.
    let requests = trace(320, 1, 200.0, 4);
    let slo_ns = Nanos::from_millis(2000);
    let config = RouterConfig {
        slo_ttft_ns: Some(slo_ns),
        // What the model of time takes for a prompt of about 1100 tokens, and a little over it.
        prefill_ns_per_token: Some(60e3),
        queue_max: 10_000,
        max_prefills: 10_000,
        ..RouterConfig::default()
    };
    let options = SimOptions {
        check_laws: false,
        ..options(&THREE_AND_TWO, 8000)
    };
    let report = simulate(&config, &options, &requests).unwrap();
    assert!(report.stats.refused_early > 0);
    let late = report
        .rows
        .iter()
        .filter(|row| row.ttft_ns > Some(slo_ns.0));
    let late = late.count();
    let all = RouterConfig {
        slo_ttft_ns: None,
        ..config
    };
    let all = simulate(&all, &options, &requests).unwrap();
    let late_without = all.rows.iter().filter(|row| row.ttft_ns > Some(slo_ns.0));
    // The prediction is a rough one, so some are late; without it most are.
    assert!(
        late * 4 < late_without.clone().count(),
        "{late} of {}",
        late_without.count()
    );
}

#[test]
fn the_same_trace_gives_the_same_report() {
    let requests = trace(8, 10, 20.0, 9);
    let options = options(&THREE_AND_TWO, 500);
    let once = run(Policy::KvAware, &options, &requests);
    assert_eq!(once, run(Policy::KvAware, &options, &requests));
}

#[test]
fn what_cannot_be_simulated_is_named() {
    let options = options(&[Pool::Mixed], 4);
    let request = |tokens: u32, output_tokens| SimRequest {
        at_ns: Nanos(0),
        prompt: (0..tokens).collect(),
        output_tokens,
    };
    let config = RouterConfig::default();
    let fits = simulate(&config, &options, &[request(60, 4)]);
    assert_eq!(fits.unwrap().stats.completed, 1);
    assert!(matches!(
        simulate(&config, &options, &[request(60, 5)]),
        Err(SimError::TooLarge { tokens: 65, .. })
    ));
    for empty in [request(0, 4), request(4, 0)] {
        assert!(matches!(
            simulate(&config, &options, &[empty]),
            Err(SimError::Empty { index: 0 })
        ));
    }
}
