//! The sections of where the numbers came from: load, workload, server, client, shards.

use pb_bench::conditions::{LoadFacts, ShardNote};
use pb_bench::server::{Bounds, Gauge, Server, ServerLatency};
use pb_bench::{Calibration, Document};

use super::sections::{SPREAD, count, number, spread_row};
use crate::format::{ABSENT, significant};
use crate::sections::Section;
use crate::table::Table;

pub(super) fn load(document: &Document) -> Section {
    let mut section = Section::new("load", "The load and the workload");
    let load = &document.load;
    let mut table = Table::new("As asked for and as it became", 2, &["what", "value"]);
    let mut push = |name: &str, value: String| table.push(vec![name.to_owned(), value]);
    push("arrivals", asked(&load.asked));
    push("requests sent per second", number(load.achieved_rps));
    push("most in flight at once", load.max_in_flight.to_string());
    if load.held_back > 0 {
        push(
            "waited in the client for a slot",
            load.held_back.to_string(),
        );
    }
    push(
        "warm-up requests, in no number",
        load.asked.warmup_requests.to_string(),
    );
    if let Some(c) = load.asked.connections {
        let made = format!(
            "{} before the start, {} in all, {} because none was free",
            c.before_start, c.opened, c.during_requests
        );
        push("connections", made);
    }
    let workload = &document.workload;
    let facts = &workload.facts;
    push("rows of the source", count(facts.rows));
    push("different prompts", count(facts.unique_prompts));
    for (reason, n) in &facts.dropped {
        push(&format!("left out: {reason}"), n.to_string());
    }
    if let Some(mean) = workload.template_overhead_mean {
        let (low, high) = (
            workload.template_overhead_min,
            workload.template_overhead_max,
        );
        let overhead = format!(
            "{mean:+.1} on average, {:+} to {:+}",
            low.unwrap_or(0),
            high.unwrap_or(0)
        );
        push("prompt tokens, served minus planned", overhead);
    }
    section.tables.push(table);
    section
}

fn asked(load: &LoadFacts) -> String {
    let mut text = load.arrival.clone();
    if let Some(rate) = load.rate_rps {
        text.push_str(&format!(", {} per second", significant(rate)));
    }
    if let Some(shape) = load.burstiness.filter(|shape| *shape != 1.0) {
        text.push_str(&format!(", burstiness {}", significant(shape)));
    }
    if let Some(ramp) = &load.ramp {
        text.push_str(&format!(", ramp {ramp}"));
    }
    if let Some(most) = load.max_concurrency {
        let word = if load.capped { "at most" } else { "slots" };
        text.push_str(&format!(", {word} {most}"));
    }
    text
}

pub(super) fn server(server: &Server) -> Section {
    let mut section = Section::new("server", "What the server says");
    let from = match server.metrics_url.as_str() {
        "" => String::new(),
        url => format!(" of {url}"),
    };
    section.text.push(format!(
        "{} pages{from} were read, {} could not be.",
        server.scrapes, server.failed_scrapes
    ));
    section
        .text
        .extend(server.notes.iter().map(|note| format!("Note: {note}.")));
    let headers = ["histogram", "p50 ms", "p90 ms", "p99 ms", "n", "mean ms"];
    let caption = "Bounds of the bucket that holds the percentile, never a value between";
    let mut table = Table::new(caption, 4, &headers);
    for (name, latency) in [
        ("TTFT", &server.ttft),
        ("ITL", &server.itl),
        ("queue", &server.queue),
        ("E2E", &server.e2e),
    ] {
        table
            .rows
            .extend(latency.as_ref().map(|latency| histogram(name, latency)));
    }
    section.tables.push(table);
    if let Some(gap) = &server.client_minus_server_ttft {
        section.text.push(format!(
            "Service TTFT, mean: {} ms at the client, {} ms at the server, {} ms apart.",
            number(gap.client_mean_ms),
            number(gap.server_mean_ms),
            number(gap.mean_ms)
        ));
        section
            .text
            .extend(gap.notes.iter().map(|note| format!("Note: {note}.")));
    }
    let mut table = Table::new("Within the window", 1, &["what", "value", "largest"]);
    let c = &server.counters;
    for (name, value) in [
        ("prompt tokens found in the cache", c.hit_tokens),
        ("prompt tokens looked up", c.query_tokens),
        ("prompt tokens from another tier", c.external_hit_tokens),
        ("preempted requests", c.preemptions),
        ("prompt tokens", c.prompt_tokens),
        ("output tokens", c.generation_tokens),
    ] {
        table.push(vec![name.to_owned(), count(value), ABSENT.to_owned()]);
    }
    let gauges = &server.gauges;
    for (name, gauge) in [
        ("running, mean", gauges.running),
        ("waiting, mean", gauges.waiting),
        ("KV cache in use, mean share", gauges.kv_usage),
    ] {
        let of = |pick: fn(&Gauge) -> f64| number(gauge.as_ref().map(pick));
        table.push(vec![name.to_owned(), of(|g| g.mean), of(|g| g.max)]);
    }
    section.tables.push(table);
    section
}

fn histogram(name: &str, latency: &ServerLatency) -> Vec<String> {
    let bounds = |bounds: &Option<Bounds>| match bounds {
        None => ABSENT.to_owned(),
        Some(Bounds::Not { .. }) => "not recoverable".to_owned(),
        Some(Bounds::Between { low_ms, high_ms }) => {
            format!("{} to {}", significant(*low_ms), significant(*high_ms))
        }
    };
    vec![
        name.to_owned(),
        bounds(&latency.p50),
        bounds(&latency.p90),
        bounds(&latency.p99),
        latency.n.to_string(),
        number(latency.mean_ms),
    ]
}

pub(super) fn calibration(calibration: Option<&Calibration>) -> Section {
    let mut section = Section::new("calibration", "The client's own error");
    let Some(c) = calibration else {
        section
            .text
            .push("The client was not calibrated on this machine.".to_owned());
        return section;
    };
    if let Some(problem) = &c.problem {
        section.text.push(format!("No calibration: {problem}."));
    }
    section.text.push(format!(
        "Against a server of known times on this machine: {} requests, {} streams at most, {} \
         tokens; processor time {} of one core.",
        c.requests,
        c.streams,
        c.tokens,
        number(c.cpu_share)
    ));
    let mut table = Table::new("Errors in ms", 1, &SPREAD);
    for (name, spread) in [
        ("TTFT error", c.ttft_error_ms),
        ("ITL error", c.itl_error_ms),
        ("driver lag", c.driver_lag_ms),
        ("the server's own lateness", c.server_late_ms),
    ] {
        table.push(spread_row(name, spread));
    }
    section.tables.push(table);
    section
}

pub(super) fn shards(shards: &[ShardNote]) -> Option<Section> {
    if shards.is_empty() {
        return None;
    }
    let mut section = Section::new("shards", "Joined shards");
    let headers = [
        "shard",
        "state",
        "started",
        "requests",
        "clock offset s",
        "lag p99 ms",
    ];
    let caption = "Lag: of each client's calibration";
    let mut table = Table::new(caption, 3, &headers);
    for note in shards {
        let lag = note.calibration.as_ref().and_then(|c| c.driver_lag_ms);
        table.push(vec![
            note.shard.to_string(),
            note.state.clone(),
            note.created.clone(),
            note.rows.to_string(),
            format!("{:.3}", note.clock_offset_ns as f64 / 1e9),
            number(lag.map(|lag| lag.p99)),
        ]);
    }
    section.tables.push(table);
    Some(section)
}
