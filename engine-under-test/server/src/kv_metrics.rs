//! Transfers on the page `/metrics`, for a server that takes part in disaggregation.

use pb_core::Counters;
use pb_core::disagg::KvStats;

use crate::page::Page;

/// Writes the metrics of transfers.
pub(crate) fn write(page: &mut Page, counters: &Counters, stats: Option<&KvStats>) {
    let Some(stats) = stats else {
        return;
    };
    let pace = |value: fn(&pb_core::disagg::Pace) -> f64| {
        [
            ("sent", value(&stats.sent)),
            ("received", value(&stats.received)),
        ]
    };
    let latency = (
        "kv_transfer_latency_p99_ms",
        "99th percentile over the last 1024 transfers: sent, from the offer to the \
         acknowledgement; received, from the claim to the start.",
        "gauge",
    );
    page.family(
        latency,
        "direction",
        pace(|p| p.latency_ns_p99 as f64 / 1e6),
    );
    let rate = (
        "kv_transfer_bytes_per_sec",
        "Bytes of the last 1024 transfers by the sum of their times, each from the room at the \
         sink on.",
        "gauge",
    );
    page.family(rate, "direction", pace(|p| p.bytes_per_sec));
    page.gauge(
        "kv_transfer_queue_depth",
        "Transfers that wait: for a claim, or for room.",
        stats.queue_depth as f64,
    );
    requests(page, counters, stats);
    outcomes(page, stats);
}

/// Requests that are shared with other engines.
fn requests(page: &mut Page, counters: &Counters, stats: &KvStats) {
    let requests = [
        ("held", stats.exports as f64),
        ("expected", stats.imports as f64),
    ];
    let metric = (
        "prefillbench_kv_transfer_requests",
        "Requests whose blocks are held for another engine, and requests whose KV is to come.",
        "gauge",
    );
    page.family(metric, "state", requests);
    let counts = [
        (
            "prefillbench_received_tokens_total",
            "Prompt tokens whose KV another engine has computed; never cache hits.",
            counters.received_tokens,
        ),
        (
            "prefillbench_handed_off_requests_total",
            "Requests that were handed off after their first token.",
            counters.handed_off,
        ),
        (
            "prefillbench_kv_transfers_recomputed_total",
            "Requests whose KV did not come and whose prompt was computed here.",
            stats.recomputed,
        ),
    ];
    for (name, help, value) in counts {
        page.counter(name, help, value as f64);
    }
}

/// How transfers ended, and how much they moved.
fn outcomes(page: &mut Page, stats: &KvStats) {
    let bytes = [
        ("sent", stats.sent_bytes as f64),
        ("received", stats.received_bytes as f64),
    ];
    let metric = (
        "prefillbench_kv_transfer_bytes_total",
        "Bytes of KV; sent ones include what was sent again.",
        "counter",
    );
    page.family(metric, "direction", bytes);
    let ends = stats.sent_by_end.iter().map(|(end, n)| (*end, *n as f64));
    let metric = (
        "prefillbench_kv_transfers_sent_total",
        "Transfers from here by the way they ended.",
        "counter",
    );
    page.family(metric, "ended", ends);
    page.counter(
        "prefillbench_kv_transfers_received_total",
        "Transfers that have arrived here.",
        stats.received_transfers as f64,
    );
    let causes = stats.failed_by_cause.iter();
    let metric = (
        "prefillbench_kv_transfers_failed_total",
        "Requests whose KV did not come, by cause.",
        "counter",
    );
    page.family(
        metric,
        "cause",
        causes.map(|(cause, n)| (*cause, *n as f64)),
    );
}
