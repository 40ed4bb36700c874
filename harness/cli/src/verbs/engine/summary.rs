//! What a simulated trace adds up to.

use std::collections::BTreeMap;

use pb_contract::{Nanos, RequestId};
use pb_core::Engine;
use pb_stats::nearest_rank;
use serde_json::{Value, json};

/// Instants of a request that is being served.
struct Open {
    arrival: Nanos,
    last_token: Option<Nanos>,
}

/// Times of requests, every sample kept.
#[derive(Default)]
pub(crate) struct Summary {
    open: BTreeMap<RequestId, Open>,
    /// First token after arrival, one a request.
    pub(crate) ttft_ns: Vec<Nanos>,
    /// Gaps between tokens of a request, pooled over requests.
    pub(crate) itl_ns: Vec<Nanos>,
    /// Last token after arrival, one a finished request.
    pub(crate) e2e_ns: Vec<Nanos>,
}

impl Summary {
    /// A request has arrived.
    pub(crate) fn arrive(&mut self, id: RequestId, at: Nanos) {
        let open = Open {
            arrival: at,
            last_token: None,
        };
        self.open.insert(id, open);
    }

    /// A request got a token.
    pub(crate) fn token(&mut self, id: RequestId, now: Nanos) {
        let Some(open) = self.open.get_mut(&id) else {
            return;
        };
        match open.last_token.replace(now) {
            None => self.ttft_ns.push(now - open.arrival),
            Some(before) => self.itl_ns.push(now - before),
        }
    }

    /// A request has ended.
    pub(crate) fn finish(&mut self, id: RequestId, now: Nanos) {
        if let Some(open) = self.open.remove(&id) {
            self.e2e_ns.push(now - open.arrival);
        }
    }

    /// Requests that have ended.
    pub(crate) fn finished(&self) -> usize {
        self.e2e_ns.len()
    }

    /// Steps that the engine has made.
    pub(crate) fn steps(&self, engine: &Engine) -> u64 {
        engine.counters().steps
    }
}

/// Count, mean and percentiles (nearest rank) in milliseconds; null when there is no sample.
pub(crate) fn milliseconds(samples: &[Nanos]) -> Value {
    if samples.is_empty() {
        return Value::Null;
    }
    let mut sorted: Vec<u64> = samples.iter().map(|ns| ns.0).collect();
    sorted.sort_unstable();
    let at = |p: f64| nearest_rank(&sorted, p).map(|ns| ns as f64 / 1e6);
    let sum: u128 = sorted.iter().map(|&ns| u128::from(ns)).sum();
    json!({
        "n": sorted.len(),
        "mean": sum as f64 / sorted.len() as f64 / 1e6,
        "p50": at(0.5),
        "p90": at(0.9),
        "p95": at(0.95),
        "p99": at(0.99),
        "max": sorted.last().map(|&ns| ns as f64 / 1e6),
    })
}

/// The document for people.
pub(crate) fn table(document: &Value) -> String {
    let d = document;
    let mut lines = vec![
        format!("trace    {}", text(&d["trace"])),
        format!("costs    {}", text(&d["cost"])),
        format!(
            "engine   {} over {} blocks of {} tokens, cache {}",
            text(&d["config"]["scheduling"]["policy"]),
            d["config"]["num_blocks"],
            d["config"]["block_size"],
            text(&d["config"]["prefix_cache"]),
        ),
        String::new(),
        format!(
            "requests {} offered, {} finished, {} steps, {:.1} s of virtual time",
            d["counts"]["offered"],
            d["counts"]["finished"],
            d["steps"],
            d["span_s"].as_f64().unwrap_or(0.0),
        ),
    ];
    if let Some(refused) = d["counts"]["refused"].as_object() {
        lines.extend(
            refused
                .iter()
                .map(|(why, n)| format!("refused  {n}: {why}")),
        );
    }
    let share = match d["hits"]["queried_tokens"].as_f64() {
        Some(queried) if queried > 0.0 => {
            let hit = d["hits"]["hit_tokens"].as_f64().unwrap_or(0.0);
            format!("{:.2} %", 100.0 * hit / queried)
        }
        _ => "-".to_owned(),
    };
    lines.push(format!(
        "hits     {} of {} prompt tokens ({share}), {} blocks",
        d["hits"]["hit_tokens"], d["hits"]["queried_tokens"], d["hits"]["hit_blocks"],
    ));
    lines.push(format!(
        "memory   {} preemptions, {} blocks evicted",
        d["preemptions"], d["evicted_blocks"],
    ));
    lines.push(String::new());
    let head = ["p50", "p90", "p95", "p99", "max"];
    lines.push(format!(
        "{:<8}{}",
        "ms",
        head.map(|h| format!("{h:>14}")).join("")
    ));
    for (name, key) in [("TTFT", "ttft_ms"), ("ITL", "itl_ms"), ("E2E", "e2e_ms")] {
        let cells = head.map(|h| match d[key][h].as_f64() {
            Some(ms) => format!("{ms:>14.3}"),
            None => format!("{:>14}", "-"),
        });
        lines.push(format!("{name:<8}{}", cells.join("")));
    }
    lines.join("\n")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}
