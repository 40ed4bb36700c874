use pb_contract::plan::{ChatTurn, ClosedLoop, OpenRequest, PlannedPrompt};
use pb_contract::{Nanos, RequestId};
use pb_load::{Limits, RunContext, StopSignal, run_plan};
use pb_mock::{CacheModel, Dist, Handle, Mock, MockOptions, ResetStyle, Timing};
use pb_target::{Patience, ServerKind};

use super::super::observe::pages::{Page, Pages};
use super::super::observe::{ObservePlan, Observer};
use super::*;

/// A server with a prefix cache in blocks of 16 tokens.
fn mock(cache: CacheModel) -> Handle {
    let timing = Timing {
        ttft_ns: Dist::Fixed(3e6),
        itl_ns: Dist::Fixed(1e6),
        ..Timing::default()
    };
    Mock::start(MockOptions {
        timing,
        cache,
        ..MockOptions::default()
    })
    .unwrap()
}

struct World {
    _server: Handle,
    endpoint: Endpoint,
    target: Target,
    interrupt: Interrupt,
    extra: Map<String, Value>,
}

impl World {
    async fn new(cache: CacheModel) -> World {
        World::of(cache, None).await
    }

    async fn of(cache: CacheModel, kind: Option<ServerKind>) -> World {
        // Longer than any machine needs.
        World::within(cache, kind, Nanos::from_secs(60)).await
    }

    async fn within(cache: CacheModel, kind: Option<ServerKind>, limit_ns: Nanos) -> World {
        let server = mock(cache);
        let endpoint = Endpoint::parse(&server.base_url()).unwrap();
        let endpoint = endpoint.with_model("mock");
        let patience = Patience {
            retry_ns: Nanos::from_millis(5),
            limit_ns,
            ..Patience::default()
        };
        let target = Target::connect(&endpoint, kind, patience).await.unwrap();
        World {
            _server: server,
            endpoint,
            target,
            interrupt: Interrupt::default(),
            extra: Map::from_iter([("top_p".to_owned(), json!(0.9))]),
        }
    }

    fn ask(&self, nonce: u64) -> CacheAsk<'_> {
        CacheAsk {
            target: &self.target,
            endpoint: &self.endpoint,
            extra_body: &self.extra,
            chat: false,
            ids: (1000, 5000),
            probe: Prompt::Ids((4000..4288).collect()),
            nonce,
            block_size: Some(16),
            exact: false,
            interrupt: &self.interrupt,
        }
    }

    /// Runs the plan of a cell.
    async fn rows(&self, cell: &CacheCell) -> Vec<RequestRow> {
        let endpoint = self.endpoint.clone().with_extra_body(cell.fields.clone());
        let mut rows = Vec::new();
        let emit = |record: pb_load::Record| rows.push(record.row);
        let (plan, context) = (cell.plan.clone(), RunContext::default());
        let (limits, stop) = (Limits::default(), StopSignal::new());
        let run = run_plan(plan, context, &endpoint, limits, stop, emit);
        run.await.unwrap();
        assert!(rows.iter().all(|row| row.fail.is_none()), "{rows:?}");
        rows
    }

    /// The same, and holds its rows against what it claims.
    async fn judged(&self, cell: &CacheCell) -> CacheVerdict {
        cell.judge(&self.rows(cell).await, None)
    }
}

fn open(bodies: Vec<PlannedBody>) -> Plan {
    let request = |(id, body): (usize, PlannedBody)| OpenRequest {
        id: RequestId(id as u64),
        offset_ns: Nanos::from_millis(2 * id as u64),
        body,
    };
    Plan {
        open: bodies.into_iter().enumerate().map(request).collect(),
        horizon_ns: Nanos::from_secs(1),
        drain_ns: Nanos::from_secs(9),
        ..Plan::default()
    }
}

fn body(ids: impl IntoIterator<Item = TokenId>) -> PlannedBody {
    PlannedBody::of_ids("x", ids.into_iter().collect(), 4)
}

/// Eight prompts of 50 tokens that share nothing.
fn unshared() -> Plan {
    let prompt = |n: u32| {
        let mut body = body(1000 + 100 * n..1050 + 100 * n);
        body.planned_hit_tokens = Some(0);
        body
    };
    open((0..8).map(prompt).collect())
}

/// 40 tokens that all share, then 20 of each one's own.
fn shared() -> Plan {
    open(
        (0..6)
            .map(|n| body((1000..1040).chain(2000 + 50 * n..2020 + 50 * n)))
            .collect(),
    )
}

fn method(cell: &CacheCell) -> &Value {
    &cell.receipt["detail"]["proof"]["cold"]["method"]
}

const NO_REASONS: [String; 0] = [];

/// vllm #52884, #53920: the second run of a seed finds nothing of the first, however the server
/// lets its cache be emptied, or not at all.
#[tokio::test]
async fn row_54_the_same_seed_twice_is_cold_twice() {
    for (reset, salted, expected) in [
        (ResetStyle::WhenIdle, true, "reset"),
        (ResetStyle::Lie, true, "cache_salt"),
        (ResetStyle::Lie, false, "first_block_salt"),
    ] {
        let cache = CacheModel {
            reset,
            salted,
            ..CacheModel::default()
        };
        let world = World::new(cache).await;
        for nonce in [11, 12] {
            let cell = CacheCell::cold(&world.ask(nonce), unshared())
                .await
                .unwrap();
            let how = method(&cell);
            let name = how
                .as_str()
                .or(how.as_object().map(|m| m.keys().next().unwrap().as_str()));
            assert_eq!(name, Some(expected));
            assert_eq!(cell.fields["top_p"], 0.9, "the user's own fields stay");
            let verdict = world.judged(&cell).await;
            assert_eq!(verdict.reasons, NO_REASONS, "{expected} {nonce}");
            assert_eq!(verdict.cache.state, "cold");
            assert_eq!(verdict.cache.planned_hit_tokens, Some(0));
            assert_eq!(
                (verdict.cache.measured_hit_tokens, verdict.cache.known_rows),
                (Some(0), 8)
            );
        }
    }
}

/// The planted fault: a salt that was used before.
#[tokio::test]
async fn row_54_a_nonce_that_comes_again_voids_the_second_run() {
    let cache = CacheModel {
        reset: ResetStyle::Lie,
        salted: false,
        ..CacheModel::default()
    };
    let world = World::new(cache).await;
    let first = CacheCell::cold(&world.ask(11), unshared()).await.unwrap();
    assert_eq!(world.judged(&first).await.reasons, NO_REASONS);
    // The probe of the second would find its own salt: the proof must not be believed blindly.
    let verdict = world.judged(&first).await;
    assert!(
        verdict.reasons[0].starts_with("prefix hits other than planned: 8 of 8"),
        "{verdict:?}"
    );
    let second = CacheCell::cold(&world.ask(11), unshared()).await.unwrap();
    let verdict = world.judged(&second).await;
    assert!(!verdict.reasons.is_empty(), "{verdict:?}");
}

/// vllm #12284, #28827.
#[tokio::test]
async fn row_60_a_refused_reset_is_retried_and_then_aborts() {
    let refusing = |times| CacheModel {
        reset: ResetStyle::Refuse(times),
        ..CacheModel::default()
    };
    let world = World::new(refusing(3)).await;
    let cell = CacheCell::cold(&world.ask(1), unshared()).await.unwrap();
    assert_eq!(method(&cell)["reset"]["attempts"], 4, "{:?}", cell.receipt);
    let world = World::within(refusing(u32::MAX), None, Nanos::from_millis(500)).await;
    let error = CacheCell::cold(&world.ask(1), unshared())
        .await
        .unwrap_err();
    let text = format!("{error:#}");
    assert!(
        text.starts_with("--cache cold: POST /reset_prefix_cache was refused"),
        "{text}"
    );
}

/// sglang #33663, #33368: 400 from `/flush_cache` is "not now".
#[tokio::test]
async fn row_62_a_flush_that_is_not_idle_is_retried() {
    let cache = CacheModel {
        reset: ResetStyle::Refuse(2),
        ..CacheModel::default()
    };
    let world = World::of(cache, Some(ServerKind::Sglang)).await;
    let cell = CacheCell::cold(&world.ask(1), unshared()).await.unwrap();
    let reset = &method(&cell)["reset"];
    assert_eq!(
        (&reset["route"], &reset["attempts"]),
        (&json!("/flush_cache?timeout=5"), &json!(3))
    );
    assert_eq!(
        cell.receipt["detail"]["idle"], "metrics",
        "never before it is idle"
    );
    assert_eq!(world.judged(&cell).await.reasons, NO_REASONS);
}

/// GLM-5.3-EXL3 #31: no reset, no salt: the first block of every prompt is new.
#[tokio::test]
async fn row_72_without_a_reset_the_first_block_is_salted() {
    let cache = CacheModel {
        reset: ResetStyle::Absent,
        ..CacheModel::default()
    };
    let world = World::of(cache, Some(ServerKind::Tgi)).await;
    for nonce in [3, 4] {
        let cell = CacheCell::cold(&world.ask(nonce), shared()).await.unwrap();
        assert_eq!(method(&cell), "first_block_salt");
        let ids = |plan: &Plan, n: usize| plan.open[n].body.prompt.ids().unwrap().to_vec();
        assert_ne!(ids(&cell.plan, 0), ids(&shared(), 0));
        // What they share they still share: the planned hits stay.
        assert_eq!(ids(&cell.plan, 0)[..40], ids(&cell.plan, 5)[..40]);
        let verdict = world.judged(&cell).await;
        assert_eq!(verdict.reasons, NO_REASONS);
        let found = verdict.cache.measured_hit_tokens.unwrap();
        // Two blocks of the 40 shared tokens; who overlaps with the first may find nothing.
        assert!(found <= 5 * 32 && found > 0 && found % 16 == 0, "{found}");
    }
    // The template of a chat comes before its text, so a salted text would help nothing.
    let ask = CacheAsk {
        chat: true,
        ..world.ask(5)
    };
    let cell = CacheCell::cold(&ask, unshared()).await.unwrap();
    let verdict = world.judged(&cell).await;
    assert!(
        verdict.reasons[0].contains("--api completions"),
        "{verdict:?}"
    );
    assert_eq!(verdict.cache.state, "unproven");
}

/// A cache that is off is cold, and what requests share is not found either.
#[tokio::test]
async fn a_cache_that_is_off_finds_nothing() {
    let cache = CacheModel {
        enabled: false,
        ..CacheModel::default()
    };
    let world = World::new(cache).await;
    let cell = CacheCell::cold(&world.ask(1), shared()).await.unwrap();
    let verdict = world.judged(&cell).await;
    let off = method(&cell) == "cache_off";
    // Only a server that tells the length of its blocks can be believed.
    let unproven = verdict.cache.state == "unproven";
    assert!(off || unproven, "{:?}", cell.receipt);
    assert_eq!(verdict.reasons.is_empty(), off, "{verdict:?}");
    assert_eq!(verdict.cache.measured_hit_tokens, Some(0));
}

/// sglang #37359, #24083: flush, prime, verify, measure.
#[tokio::test]
async fn row_68_every_prompt_is_primed_verified_and_found() {
    let world = World::new(CacheModel::default()).await;
    let cell = CacheCell::warm(&world.ask(1), unshared(), Vec::new())
        .await
        .unwrap();
    let warm = &cell.receipt["detail"]["warm"];
    assert_eq!(
        (&warm["primed_prompts"], &warm["verified_prompts"]),
        (&json!(8), &json!(8))
    );
    // Three whole blocks of the 49 tokens that can be shared.
    assert_eq!(warm["found_tokens"], 8 * 48);
    assert!(
        !cell.receipt["detail"]["cold"]["cold"].is_null(),
        "{:?}",
        cell.receipt
    );
    let verdict = world.judged(&cell).await;
    assert_eq!(verdict.reasons, NO_REASONS);
    let expected = Cache {
        state: "warm",
        planned_hit_tokens: Some(8 * 48),
        measured_hit_tokens: Some(8 * 48),
        known_rows: 8,
    };
    assert_eq!(verdict.cache, expected);
}

#[tokio::test]
async fn a_common_beginning_alone_can_be_primed() {
    let world = World::new(CacheModel::default()).await;
    let prime = vec![body(1000..1040)];
    let cell = CacheCell::warm(&world.ask(1), shared(), prime)
        .await
        .unwrap();
    let verdict = world.judged(&cell).await;
    assert_eq!(verdict.reasons, NO_REASONS);
    // Two blocks of the 40 tokens; nothing depends on who overlaps with whom.
    assert_eq!(verdict.cache.planned_hit_tokens, Some(6 * 32));
    assert_eq!(verdict.cache.measured_hit_tokens, Some(6 * 32));
    assert_eq!(verdict.notes, NO_REASONS);
}

#[tokio::test]
async fn a_cache_that_does_not_hold_the_prompts_is_not_warm() {
    for (cache, part) in [
        // Three prompts of three blocks do not fit beside each other.
        (
            CacheModel {
                blocks: Some(7),
                ..CacheModel::default()
            },
            "were not found when they were sent again",
        ),
        (
            CacheModel {
                block_size: 64,
                ..CacheModel::default()
            },
            "its blocks are longer",
        ),
    ] {
        let world = World::new(cache).await;
        let cell = CacheCell::warm(&world.ask(1), unshared(), Vec::new())
            .await
            .unwrap();
        let verdict = world.judged(&cell).await;
        assert_eq!(verdict.cache.state, "unproven");
        let reason = &verdict.reasons[0];
        assert!(
            reason.starts_with("the cache was not shown to be warm"),
            "{reason}"
        );
        assert!(reason.contains(part), "{reason}");
    }
}

/// The planted fault: the cache is emptied between priming and measuring.
#[tokio::test]
async fn a_warm_cache_that_was_emptied_voids_the_run() {
    let world = World::new(CacheModel::default()).await;
    let cell = CacheCell::warm(&world.ask(1), unshared(), Vec::new())
        .await
        .unwrap();
    for reset in world.target.adapter().resets {
        world.target.reset_with(*reset).await.unwrap();
    }
    let verdict = world.judged(&cell).await;
    assert!(
        verdict.reasons[0].contains("0 in all where 384 were planned"),
        "{verdict:?}"
    );
}

#[tokio::test]
async fn chats_are_primed_through_their_own_route() {
    let world = World::new(CacheModel::default()).await;
    let chat = |n: usize| {
        let turn = ChatTurn {
            role: "user".into(),
            content: format!("{n} the same words again and again, and then {n} others"),
        };
        PlannedBody::of("x", PlannedPrompt::Chat(vec![turn]), 12, 4)
    };
    let ask = CacheAsk {
        chat: true,
        ..world.ask(1)
    };
    let plan = open((0..4).map(chat).collect());
    let cell = CacheCell::warm(&ask, plan, Vec::new()).await.unwrap();
    let verdict = world.judged(&cell).await;
    assert_eq!(verdict.reasons, NO_REASONS);
    let planned = verdict.cache.planned_hit_tokens.unwrap();
    assert!(planned > 0 && planned % 16 == 0, "{planned}");
    assert_eq!(verdict.cache.measured_hit_tokens, Some(planned));
}

/// A server whose answers say one thing and whose counters another.
#[tokio::test(flavor = "multi_thread")]
async fn counters_that_lie_void_the_run() {
    let world = World::new(CacheModel::default()).await;
    let cell = CacheCell::warm(&world.ask(1), unshared(), Vec::new())
        .await
        .unwrap();
    for (hits, reasons) in [(8 * 48, 0), (8 * 48 + 16, 1)] {
        let page = move |number| {
            let total = if number == 0 { (0, 0) } else { (8 * 50, hits) };
            Page::ok(format!(
                "vllm:prefix_cache_queries_total {}\nvllm:prefix_cache_hits_total {}\n",
                total.0, total.1
            ))
        };
        let endpoint = Pages::serve(page).endpoint();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        let start = move || {
            let plan = ObservePlan {
                endpoint,
                route: "/metrics".into(),
                every: Nanos::from_secs(60),
            };
            Observer::start(plan, &path).unwrap()
        };
        let observer = tokio::task::spawn_blocking(start).await.unwrap();
        let rows = world.rows(&cell).await;
        let seen = rows.clone();
        let observed = tokio::task::spawn_blocking(move || observer.stop(&seen).unwrap());
        let observed = observed.await.unwrap();
        let verdict = cell.judge(&rows, observed.window());
        assert_eq!(verdict.reasons.len(), reasons, "{verdict:?}");
        if reasons > 0 {
            let expected = "384 tokens were found, the server's counters 400";
            assert!(verdict.reasons[0].contains(expected), "{verdict:?}");
        }
    }
}

#[tokio::test]
async fn a_wish_to_stop_ends_every_phase() {
    let world = World::new(CacheModel::default()).await;
    world.interrupt.signal().stop();
    let cold = CacheCell::cold(&world.ask(1), unshared())
        .await
        .unwrap_err();
    assert!(cold.is::<Interrupted>(), "{cold:#}");
    let warm = CacheCell::warm(&world.ask(1), unshared(), Vec::new())
        .await
        .unwrap_err();
    assert!(warm.is::<Interrupted>(), "{warm:#}");
    let world = World::new(CacheModel::default()).await;
    let ask = world.ask(1);
    let slow: Vec<PlannedBody> = (0..3000).map(|n| body(n..n + 400)).collect();
    let priming = CacheCell::warm(&ask, unshared(), slow);
    let wish = async {
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        world.interrupt.signal().stop();
    };
    let (result, ()) = tokio::join!(priming, wish);
    let error = result.unwrap_err();
    assert!(error.is::<Interrupted>(), "{error:#}");
}

#[tokio::test]
async fn as_it_is_claims_nothing() {
    let world = World::new(CacheModel::default()).await;
    let part = ClosedLoop {
        streams: 1,
        first_id: RequestId(0),
        bodies: vec![body(0..50); 3],
    };
    let plan = Plan {
        closed: vec![part],
        horizon_ns: Nanos::from_secs(9),
        drain_ns: Nanos::from_secs(9),
        ..Plan::default()
    };
    let cell = CacheCell::asis(plan, &world.extra);
    let verdict = world.judged(&cell).await;
    assert_eq!((verdict.reasons.len(), verdict.cache.state), (0, "asis"));
    assert_eq!(verdict.cache.planned_hit_tokens, None);
    // One cold, two that find three blocks.
    assert_eq!(verdict.cache.measured_hit_tokens, Some(96));
}
