//! The scenarios: one for each hypothesis, and for each of them near misses, which look alike to
//! whoever goes by the symptom or by one figure.

use pb_bench::server::{Gauge, Gauges, Server};
use pb_contract::{EngineConfig, Nanos, Numerics, PolicyKind, PrefixCacheKind, Preset};
use pb_core::sim::{CostModel, DecodeCost, PrefillCost};
use pb_tests::engine;

use crate::recorder::{Arrival, Faults, Scenario};

/// Token ids where nothing ends an answer early.
const VOCAB: usize = 32_000;
/// Token ids where one in forty ends it.
const SMALL_VOCAB: usize = 40;

/// All of them.
pub(crate) fn all() -> Vec<Scenario> {
    let mut all = chunks();
    all.extend(host());
    all.extend(decode());
    all.extend(reservation());
    all.extend(preemption());
    all.extend(eviction());
    all
}

/// Decodes and chunks within a budget of tokens, and no prefix cache.
fn config(budget: usize, num_blocks: usize) -> EngineConfig {
    EngineConfig {
        chunked: true,
        max_batched_tokens: budget,
        ..engine::config(Numerics::Exact, num_blocks, 4096)
    }
}

fn cost(name: &str) -> CostModel {
    CostModel::builtin(name).expect("a cost model")
}

/// OPT-13B on an A100.
fn opt() -> CostModel {
    cost("opt-13b-a100")
}

/// Llama 3.1 8B on an RTX PRO 6000.
fn llama() -> CostModel {
    cost("llama31-8b-rtxpro6000")
}

/// Decode steps that go with the keys, or with the sequences.
fn made(context_token_ns: f64, sequence_ns: f64) -> CostModel {
    CostModel {
        source: "made for a diagnosis".into(),
        prefill: PrefillCost {
            step_ns: 5e6,
            token_ns: 2e3,
            pair_ns: 0.0,
        },
        decode: DecodeCost {
            step_ns: 5e6,
            context_token_ns,
            sequence_ns,
        },
    }
}

/// `n` requests, the first at `from` ms, `every` ms apart.
fn requests(n: u64, from: u64, every: u64, prompt: usize, max_tokens: u32) -> Vec<Arrival> {
    let one = |i| Arrival {
        at: Nanos::from_millis(from + i * every),
        prompt,
        shared: None,
        max_tokens,
        class: "request",
    };
    (0..n).map(one).collect()
}

/// Eight short requests, one after the other, and then `n` together: the same server, undisturbed
/// and loaded.
fn few_then_many(n: u64, prompt: usize, max_tokens: u32) -> Vec<Arrival> {
    let mut load = requests(8, 0, 1500, prompt.min(64), max_tokens);
    load.extend(requests(n, 12_000, 40, prompt, max_tokens));
    load
}

fn in_order(mut load: Vec<Arrival>) -> Vec<Arrival> {
    load.sort_by_key(|arrival| arrival.at);
    load
}

fn scenario(
    name: &'static str,
    config: EngineConfig,
    cost: CostModel,
    load: Vec<Arrival>,
) -> Scenario {
    Scenario {
        name,
        leads: None,
        not: Vec::new(),
        config,
        cost,
        load,
        faults: Faults::default(),
        vocab: VOCAB,
        ends: false,
        tells_steps: true,
        server: None,
    }
}

/// Four streams in three waves, and long prompts that join them.
fn streams_and_prompts() -> Vec<Arrival> {
    let mut load = Vec::new();
    for wave in 0..3 {
        load.extend(requests(4, wave * 2500, 40, 32, 60));
    }
    load.extend(
        requests(10, 400, 650, 2048, 2)
            .into_iter()
            .map(|long| Arrival {
                class: "long_prompt",
                ..long
            }),
    );
    in_order(load)
}

fn chunks() -> Vec<Scenario> {
    let whole = || EngineConfig {
        chunked: false,
        scheduling: pb_contract::Scheduling {
            policy: PolicyKind::Monolithic,
            ..Default::default()
        },
        ..config(4096, 2048)
    };
    let long = streams_and_prompts;
    let waves = || {
        let load = long().into_iter();
        load.filter(|arrival| arrival.class == "request").collect()
    };
    vec![
        Scenario {
            leads: Some("unbounded_chunks"),
            ..scenario("unbounded_chunks", whole(), opt(), long())
        },
        // The same requests in chunks: prefill still fills the long gaps.
        Scenario {
            not: vec![("unbounded_chunks", "chunks are bounded")],
            ..scenario("bounded_chunks", config(516, 2048), opt(), long())
        },
        // The same engine without long prompts; the client does not read in time.
        Scenario {
            not: vec![
                ("unbounded_chunks", "only"),
                ("lock_contention", "only"),
                ("preemption_thrashing", "only"),
            ],
            faults: Faults {
                reader_stalls: Some(Nanos::from_millis(250)),
                ..Faults::default()
            },
            ..scenario("late_reader", whole(), opt(), waves())
        },
        // The first one as a remote server shows it, with a figure of memory beside it.
        Scenario {
            not: vec![
                ("unbounded_chunks", "steps"),
                ("lock_contention", "lock wait"),
                ("decode_bandwidth", "attention time"),
                ("preemption_thrashing", "number of preemptions"),
                ("pool_reservation", "98 %"),
            ],
            tells_steps: false,
            server: Some(remote()),
            ..scenario("client_rows_only", whole(), opt(), long())
        },
    ]
}

/// A metrics page with a high usage.
fn remote() -> Server {
    Server {
        metrics_url: "http://127.0.0.1:8000/metrics".into(),
        scrapes: 9,
        gauges: Gauges {
            kv_usage: Some(Gauge {
                n: 9,
                mean: 0.97,
                max: 0.98,
            }),
            ..Gauges::default()
        },
        ..Server::default()
    }
}

fn host() -> Vec<Scenario> {
    let load = || few_then_many(24, 64, 48);
    vec![
        Scenario {
            leads: Some("lock_contention"),
            faults: Faults {
                lock_ns: 100_000,
                ..Faults::default()
            },
            ..scenario("lock_contention", config(512, 2048), llama(), load())
        },
        // As much host time, which grows as much, and no lock in it.
        Scenario {
            not: vec![("lock_contention", "planning and dispatch")],
            faults: Faults {
                planning_ns: 2_000_000,
                ..Faults::default()
            },
            ..scenario("slow_planning", config(512, 2048), llama(), load())
        },
    ]
}

fn decode() -> Vec<Scenario> {
    let load = |prompt| few_then_many(12, prompt, 90);
    vec![
        Scenario {
            leads: Some("decode_bandwidth"),
            ..scenario(
                "decode_bandwidth",
                config(1024, 2048),
                made(4e3, 1e4),
                load(800),
            )
        },
        // As slow with as many requests, by the width of the batch.
        Scenario {
            not: vec![("decode_bandwidth", "matrix products")],
            ..scenario(
                "wide_batches",
                config(1024, 2048),
                made(10.0, 4e6),
                load(16),
            )
        },
    ]
}

fn reservation() -> Vec<Scenario> {
    let reserving = |num_blocks| {
        let mut config = config(2048, num_blocks);
        Preset::Sglang.apply(&mut config);
        config.scheduling.reserved_decode.conservativeness = 1.5;
        config.prefix_cache = PrefixCacheKind::None;
        config
    };
    let early = |name, config, load| Scenario {
        vocab: SMALL_VOCAB,
        ends: true,
        ..scenario(name, config, llama(), load)
    };
    vec![
        Scenario {
            leads: Some("pool_reservation"),
            ..early(
                "pool_reservation",
                reserving(256),
                requests(40, 0, 30, 64, 1024),
            )
        },
        // The same rule where answers are as long as they may be.
        Scenario {
            not: vec![("pool_reservation", "what is kept is used")],
            ..scenario(
                "used_reservation",
                reserving(64),
                llama(),
                requests(30, 0, 30, 96, 64),
            )
        },
        // Answers that end early, and a queue that is a burst of prompts.
        Scenario {
            not: vec![("pool_reservation", "behind earlier prompts")],
            ..early(
                "arrival_burst",
                config(512, 4096),
                requests(30, 0, 0, 1024, 1024),
            )
        },
    ]
}

fn preemption() -> Vec<Scenario> {
    let cached = EngineConfig {
        prefix_cache: PrefixCacheKind::HashChain,
        max_num_seqs: 3,
        ..config(512, 300)
    };
    vec![
        Scenario {
            leads: Some("preemption_thrashing"),
            ..scenario(
                "preemption_thrashing",
                config(512, 120),
                llama(),
                requests(12, 0, 20, 128, 160),
            )
        },
        // A pool as full, long gaps, evictions and no hit: nobody is thrown out, nothing is shared.
        Scenario {
            not: vec![
                ("preemption_thrashing", "no request was preempted"),
                ("eviction_thrashing", "nothing to find"),
            ],
            ..scenario("full_pool", cached, opt(), requests(20, 0, 300, 1536, 40))
        },
    ]
}

/// Two hot prefixes, and between them others: ten that come round five times, or fifty new ones.
fn visits(cold_groups: u64) -> Vec<Arrival> {
    let visit = |i: u64| {
        let group = match i % 2 {
            0 => 1000 + i / 2 % 2,
            _ => i / 2 % cold_groups,
        };
        Arrival {
            at: Nanos::from_millis(i * 120),
            prompt: 16,
            shared: Some((group, 1536)),
            max_tokens: 4,
            class: "visit",
        }
    };
    (0..100).map(visit).collect()
}

fn eviction() -> Vec<Scenario> {
    let cached = || EngineConfig {
        prefix_cache: PrefixCacheKind::HashChain,
        ..config(2048, 700)
    };
    vec![
        Scenario {
            leads: Some("eviction_thrashing"),
            ..scenario("eviction_thrashing", cached(), llama(), visits(10))
        },
        // As many misses and evictions, of prompts that never come again.
        Scenario {
            not: vec![("eviction_thrashing", "; 0 % of all prefill")],
            ..scenario("new_prefixes", cached(), llama(), visits(50))
        },
    ]
}
