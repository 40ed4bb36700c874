//! The metrics page around and within a window.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use pb_contract::Nanos;
use pb_target::{Edge, Scrape, ScrapeReader, ScrapeSummary, ServerKind};

use crate::cold::probe;
use crate::fake::{Fake, Options};

const EVERY: (Nanos, Nanos) = (Nanos::from_millis(20), Nanos::from_secs(2));

/// Runs a window of one probe and some cadence.
async fn window(options: Options, route: &'static str) -> (ScrapeSummary, Vec<Scrape>) {
    let fake = Fake::start(options).await;
    let target = fake.target().await;
    let kept = Arc::new(Mutex::new(Vec::new()));
    let (into, endpoint) = (Arc::clone(&kept), fake.endpoint());
    let on = move |scrape: &Scrape| into.lock().unwrap().push(scrape.clone());
    let spawn = move || ScrapeReader::spawn(&endpoint, route, EVERY, on).unwrap();
    let reader = tokio::task::spawn_blocking(spawn).await.unwrap();
    target
        .probe(&probe(), &serde_json::Map::new())
        .await
        .unwrap();
    // Ticks that come too late are left out, so a count of them has no time of its own.
    let between = || {
        let kept = kept.lock().unwrap();
        kept.iter().filter(|s| s.edge == Edge::Between).count()
    };
    for _ in 0..60_000 {
        if between() >= 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let summary = tokio::task::spawn_blocking(|| reader.stop().unwrap())
        .await
        .unwrap();
    let kept = kept.lock().unwrap().clone();
    (summary, kept)
}

#[tokio::test(flavor = "multi_thread")]
async fn edges_and_cadence_are_kept_as_they_came() {
    let options = Options {
        preempts: 1,
        ..Options::of(ServerKind::Vllm)
    };
    let (summary, kept) = window(options, "/metrics").await;
    let edges: Vec<Edge> = kept.iter().map(|s| s.edge).collect();
    assert_eq!((edges[0], edges[edges.len() - 1]), (Edge::Start, Edge::End));
    let between = edges.iter().filter(|e| **e == Edge::Between).count();
    assert!(between >= 2, "{edges:?}");
    assert_eq!((summary.scrapes, summary.failed), (kept.len() as u64, 0));
    assert!(
        kept.windows(2)
            .all(|pair| pair[0].at_ns + pair[0].took_ns <= pair[1].at_ns)
    );
    let window = summary.window().unwrap();
    let counters = window.counters;
    assert_eq!(
        (counters.query_tokens, counters.hit_tokens),
        (Some(17), Some(0))
    );
    assert_eq!(
        (counters.preemptions, counters.generation_tokens),
        (Some(1), Some(1))
    );
    assert!(!window.restarted);
    assert_eq!(summary.waiting_max, Some(0.0));

    let mut bytes = Vec::new();
    for scrape in &kept {
        scrape.write_line(&mut bytes).unwrap();
    }
    assert!(
        kept[0]
            .body
            .as_ref()
            .unwrap()
            .contains("vllm:prefix_cache_queries_total 0\n")
    );
    assert_eq!(Scrape::read_lines(bytes.as_slice()).unwrap(), kept);
    assert!(Scrape::read_lines(&b"{}\n"[..]).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_is_missing_is_a_failed_reading_and_no_zero() {
    let (summary, kept) = window(Options::of(ServerKind::Vllm), "/nothing").await;
    assert_eq!(summary.failed, summary.scrapes);
    assert_eq!((summary.window(), summary.running_max), (None, None));
    assert_eq!(kept[0].error.as_deref(), Some("HTTP 404"));
}

#[test]
fn a_server_that_is_away_is_a_failed_reading() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let endpoint = pb_load::Endpoint::parse(&url).unwrap();
    let reader = ScrapeReader::spawn(&endpoint, "/metrics", EVERY, |_| {}).unwrap();
    let summary = reader.stop().unwrap();
    assert_eq!((summary.scrapes, summary.failed), (2, 2));
}
