use std::time::Duration;

use pb_bench::server::Bounds;
use pb_contract::RequestId;
use pb_contract::plan::{ClosedLoop, OpenRequest, Plan, PlannedBody};
use pb_load::{Limits, RunContext, StopSignal, run_plan_blocking};
use pb_mock::{Dist, Handle, Mock, MockOptions, Timing};

use super::pages::{Page, Pages};
use super::*;

/// Runs a plan and returns its rows.
fn run(endpoint: &Endpoint, plan: Plan) -> Vec<RequestRow> {
    let mut rows = Vec::new();
    let emit = |record: pb_load::Record| rows.push(record.row);
    let (context, limits) = (RunContext::default(), Limits::default());
    run_plan_blocking(plan, context, endpoint, limits, StopSignal::new(), emit).unwrap();
    rows
}

/// 24 requests of 40 tokens, four at once, with four tokens each.
fn closed() -> Plan {
    let part = ClosedLoop {
        streams: 4,
        first_id: RequestId(0),
        bodies: vec![PlannedBody::of_ids("x", vec![7; 40], 4); 24],
    };
    Plan {
        closed: vec![part],
        horizon_ns: Nanos::from_secs(60),
        drain_ns: Nanos::from_secs(60),
        ..Plan::default()
    }
}

fn mock() -> (Handle, Endpoint) {
    let timing = Timing {
        ttft_ns: Dist::Fixed(30e6),
        itl_ns: Dist::Fixed(2e6),
        ..Timing::default()
    };
    let server = Mock::start(MockOptions {
        timing,
        ..MockOptions::default()
    })
    .unwrap();
    let endpoint = Endpoint::parse(&server.base_url()).unwrap();
    (server, endpoint.with_model("mock"))
}

fn plan(endpoint: &Endpoint, ms: u64) -> ObservePlan {
    ObservePlan {
        endpoint: endpoint.clone(),
        route: "/metrics".into(),
        every: Nanos::from_millis(ms),
    }
}

fn lines(dir: &Path) -> Vec<Scrape> {
    let file = File::open(dir.join(SCRAPES_FILE)).unwrap();
    Scrape::read_lines(BufReader::new(file)).unwrap()
}

/// vllm #54628: what lies between the client and the server's own figures is told for every run.
#[test]
fn row_48_client_minus_server_over_the_window() {
    let (_server, endpoint) = mock();
    // What came before the window is not in it.
    run(&endpoint, closed());
    let dir = tempfile::tempdir().unwrap();
    let observer = Observer::start(plan(&endpoint, 20), dir.path()).unwrap();
    let rows = run(&endpoint, closed());
    let observed = observer.stop(&rows).unwrap();
    let doc = observed.document(&rows);
    assert_eq!(observed.reasons(), [] as [String; 0]);
    assert_eq!(doc.counters.prompt_tokens, Some(24 * 40));
    assert_eq!(doc.counters.query_tokens, Some(24 * 40));
    // Primed by the first run: two blocks of 16 of the 39 tokens that can be shared.
    assert_eq!(doc.counters.hit_tokens, Some(24 * 32));
    assert_eq!(doc.counters.generation_tokens, Some(24 * 4));
    assert_eq!(doc.counters.preemptions, Some(0));
    let gap = doc.client_minus_server_ttft.unwrap();
    assert_eq!((gap.client_n, gap.server_n), (24, 24));
    let (server, difference) = (gap.server_mean_ms.unwrap(), gap.mean_ms.unwrap());
    assert!((30.0..300.0).contains(&server), "{server}");
    // The server counts from the first byte it reads to the write of the token.
    assert!(difference > 0.0 && difference < 150.0, "{difference}");
    assert_eq!(doc.ttft.unwrap().n, 24);
    let running = doc.gauges.running.unwrap();
    assert!(running.max >= 1.0 && running.max <= 4.0, "{running:?}");
    let scrapes = lines(dir.path());
    assert_eq!(doc.scrapes, scrapes.len() as u64);
    assert_eq!(
        (scrapes[0].edge, scrapes.last().unwrap().edge),
        (Edge::Start, Edge::End)
    );
    // 24 requests of 36 ms, four at once, last 216 ms at least: ten ticks, some of which a busy
    // machine misses.
    let ticks = scrapes.len() as u64 + observed.summary.missed;
    assert!(
        scrapes.len() >= 3 && ticks >= 6,
        "{ticks} of {}",
        scrapes.len()
    );
    let series = std::fs::read_to_string(dir.path().join(SERVER_FILE)).unwrap();
    assert!(
        series.starts_with("at_ns,running,waiting,kv_usage,"),
        "{series}"
    );
    assert_eq!(series.lines().count(), scrapes.len() + 1);
    let last = series.lines().last().unwrap();
    assert!(
        last.starts_with(&format!("{},", scrapes.last().unwrap().at_ns.0)),
        "{last}"
    );
    // Twice as many as in the window, because counters count from the start of the server.
    assert!(
        last.ends_with(&format!(",{},{}", 48 * 40, 48 * 4)),
        "{last}"
    );
}

/// sglang #12064, vllm #55276: of what nearly all lies in the lowest bucket, and was there before
/// the window.
#[test]
fn row_11_a_histogram_that_is_too_coarse_gives_no_percentile() {
    let histogram = |name: &str, buckets: [u64; 3], sum: f64| {
        let [first, second, all] = buckets;
        let name = format!("vllm:{name}_seconds");
        format!(
            "{name}_bucket{{le=\"0.01\"}} {first}\n{name}_bucket{{le=\"0.1\"}} {second}\n\
             {name}_bucket{{le=\"+Inf\"}} {all}\n{name}_count {all}\n{name}_sum {sum}\n"
        )
    };
    let page = move |number| {
        let (itl, ttft) = match number {
            0 => (([0, 50, 50], 2.0), ([0, 7, 7], 0.5)),
            _ => (([99, 150, 150], 2.5), ([1, 10, 17], 0.75)),
        };
        let itl = histogram("inter_token_latency", itl.0, itl.1);
        Page::ok(itl + &histogram("time_to_first_token", ttft.0, ttft.1))
    };
    let pages = Pages::serve(page);
    let dir = tempfile::tempdir().unwrap();
    let observer = Observer::start(plan(&pages.endpoint(), 60_000), dir.path()).unwrap();
    let doc = observer.stop(&[]).unwrap().document(&[]);
    // Within the window: 99 of 100 gaps up to 10 ms, 0.5 s in all.
    let itl = doc.itl.unwrap();
    assert_eq!((itl.n, itl.mean_ms), (100, Some(5.0)));
    for quantile in [&itl.p50, &itl.p99] {
        assert!(matches!(quantile, Some(Bounds::Not { .. })), "{quantile:?}");
    }
    // Ten first tokens: one up to 10 ms, two more up to 100 ms, seven above.
    let ttft = doc.ttft.unwrap();
    assert_eq!((ttft.n, ttft.mean_ms), (10, Some(25.0)));
    assert!(matches!(ttft.p90, Some(Bounds::Not { .. })), "{ttft:?}");
}

#[test]
fn a_server_without_a_page_is_measured_all_the_same() {
    let missing = Page {
        status: 404,
        ..Page::default()
    };
    let pages = Pages::serve(move |_| missing.clone());
    let dir = tempfile::tempdir().unwrap();
    let observer = Observer::start(plan(&pages.endpoint(), 20), dir.path()).unwrap();
    let observed = observer.stop(&[]).unwrap();
    let doc = observed.document(&[]);
    assert_eq!(observed.reasons(), [] as [String; 0]);
    assert!(observed.window().is_none());
    assert_eq!((doc.ttft, doc.client_minus_server_ttft), (None, None));
    assert_eq!(doc.counters, WindowCounters::default());
    assert!(doc.notes[0].contains("HTTP 404"), "{:?}", doc.notes);
    assert!(doc.metrics_url.ends_with("/metrics"));
}

/// A page that takes 300 ms and the client's stamps: on one thread, nothing would be sent while it
/// is read.
#[test]
fn reading_the_page_does_not_disturb_the_client() {
    let slow = || Page {
        delay: Duration::from_millis(300),
        ..Page::ok("vllm:num_requests_running 1\n".repeat(20_000))
    };
    let pages = Pages::serve(move |_| slow());
    let (_server, endpoint) = mock();
    let dir = tempfile::tempdir().unwrap();
    let observer = Observer::start(plan(&pages.endpoint(), 10), dir.path()).unwrap();
    let request = |id| OpenRequest {
        id: RequestId(id),
        offset_ns: Nanos::from_millis(10 * id),
        body: PlannedBody::of_ids("x", vec![7; 40], 4),
    };
    let open = Plan {
        open: (0..100).map(request).collect(),
        horizon_ns: Nanos::from_secs(1),
        drain_ns: Nanos::from_secs(9),
        ..Plan::default()
    };
    let rows = run(&endpoint, open);
    let observed = observer.stop(&rows).unwrap();
    let scrapes = lines(dir.path());
    let took = |scrape: &Scrape| scrape.took_ns >= Nanos::from_millis(300);
    assert!(scrapes.len() >= 4 && scrapes.iter().all(took));
    // The page is made in the first 300 ms; its bytes come after that.
    let waits = scrapes
        .iter()
        .map(|scrape| (scrape.at_ns, scrape.at_ns + Nanos::from_millis(300)));
    let within = waits.filter(|(from, to)| {
        let sent = rows.iter().filter_map(|row| row.sent_ns);
        sent.filter(|at| (from..to).contains(&at)).count() >= 2
    });
    // Between the first page and the last, which lie around the requests.
    assert!(
        within.count() >= 1,
        "nothing was sent while a page was read"
    );
    let doc = observed.document(&rows);
    let missed = doc
        .notes
        .iter()
        .find(|note| note.contains("readings were left out"));
    assert!(missed.is_some(), "{:?}", doc.notes);
}

fn counters(prompts: u64) -> String {
    format!("vllm:prompt_tokens_total {prompts}\nvllm:prefix_cache_queries_total {prompts}\n")
}

fn row(tokens: u32) -> RequestRow {
    let row = serde_json::json!({
        "arm": "a", "block": 0, "request": 0, "class": "x", "intended_ns": 0, "sent_ns": 10,
        "first_token_ns": 20, "status": "ok", "prompt_tokens_planned": tokens,
        "prompt_tokens": tokens, "max_tokens": 4, "streamed_tokens": 4,
    });
    serde_json::from_value(row).unwrap()
}

#[test]
fn counters_that_come_late_are_waited_for() {
    // The first page is the start of the window; two more do not show the request yet.
    let late = |number| Page::ok(counters(if number < 3 { 100 } else { 140 }));
    let pages = Pages::serve(late);
    let dir = tempfile::tempdir().unwrap();
    let observer = Observer::start(plan(&pages.endpoint(), 60_000), dir.path()).unwrap();
    let observed = observer.stop(&[row(40)]).unwrap();
    assert_eq!(observed.window().unwrap().counters.prompt_tokens, Some(40));
    assert_eq!(observed.document(&[]).notes, [] as [String; 0]);
    assert_eq!(pages.asked(), 5, "the start, three looks, the end");
}

#[test]
fn counters_that_never_come_are_told() {
    let pages = Pages::serve(|_| Page::ok(counters(100)));
    let dir = tempfile::tempdir().unwrap();
    let observer = Observer::start(plan(&pages.endpoint(), 60_000), dir.path()).unwrap();
    let observed = observer.stop(&[row(40)]).unwrap();
    let notes = observed.document(&[]).notes;
    assert!(
        notes[0].contains("did not come to show all requests"),
        "{notes:?}"
    );
}

#[test]
fn a_restart_within_the_window_voids_the_run() {
    let pages = Pages::serve(|number| Page::ok(counters(if number == 0 { 900 } else { 40 })));
    let dir = tempfile::tempdir().unwrap();
    let observer = Observer::start(plan(&pages.endpoint(), 60_000), dir.path()).unwrap();
    let observed = observer.stop(&[row(40)]).unwrap();
    let reasons = observed.reasons();
    assert_eq!(reasons.len(), 1);
    assert!(reasons[0].contains("started again"), "{reasons:?}");
}

/// vllm #25780.
#[test]
fn row_65_preemptions_within_the_window_are_told() {
    let page = |number| {
        let count = if number == 0 { 5 } else { 8 };
        Page::ok(format!(
            "{}vllm:num_preemptions_total {count}\n",
            counters(number * 40)
        ))
    };
    let pages = Pages::serve(page);
    let dir = tempfile::tempdir().unwrap();
    let observer = Observer::start(plan(&pages.endpoint(), 60_000), dir.path()).unwrap();
    let doc = observer.stop(&[row(40)]).unwrap().document(&[]);
    assert_eq!(doc.counters.preemptions, Some(3));
    assert_eq!(doc.preempted(), Some(true));
    assert!(doc.notes[0].starts_with("3 preemptions"), "{:?}", doc.notes);
}

#[test]
fn a_directory_that_holds_pages_already_is_refused() {
    let pages = Pages::serve(|_| Page::ok(""));
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(SCRAPES_FILE), "").unwrap();
    let error = Observer::start(plan(&pages.endpoint(), 20), dir.path()).unwrap_err();
    assert!(format!("{error:#}").contains("scrapes.jsonl"), "{error:#}");
}
