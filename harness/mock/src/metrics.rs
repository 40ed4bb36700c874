//! Prometheus text with vLLM's names, consistent with what was really served.

use std::fmt::Write;

use pb_contract::Nanos;

use crate::log::{Ending, LoggedRequest};

/// Upper bounds of vLLM's buckets in seconds.
const TTFT_BOUNDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
const ITL_BOUNDS: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];
const E2E_BOUNDS: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
const TOKEN_BOUNDS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0,
];

#[derive(Clone, Debug)]
struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    count: u64,
    sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Histogram {
        Histogram {
            bounds,
            counts: vec![0; bounds.len()],
            count: 0,
            sum: 0.0,
        }
    }

    fn observe(&mut self, value: f64) {
        if let Some(i) = self.bounds.iter().position(|&bound| value <= bound) {
            self.counts[i] += 1;
        }
        self.count += 1;
        self.sum += value;
    }
}

/// State at the moment of a scrape.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) running: usize,
    pub(crate) waiting: usize,
    /// Share of the cache's blocks that running requests hold.
    pub(crate) kv_usage: f64,
}

/// Counters since the start.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    queries: u64,
    hits: u64,
    prompt_tokens: u64,
    generation_tokens: u64,
    /// Finished by reason: stop, length, abort, error.
    finished: [u64; 4],
    ttft: Histogram,
    itl: Histogram,
    e2e: Histogram,
    queue: Histogram,
    request_prompt: Histogram,
    request_generation: Histogram,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        Metrics {
            queries: 0,
            hits: 0,
            prompt_tokens: 0,
            generation_tokens: 0,
            finished: [0; 4],
            ttft: Histogram::new(TTFT_BOUNDS),
            itl: Histogram::new(ITL_BOUNDS),
            e2e: Histogram::new(E2E_BOUNDS),
            queue: Histogram::new(E2E_BOUNDS),
            request_prompt: Histogram::new(TOKEN_BOUNDS),
            request_generation: Histogram::new(TOKEN_BOUNDS),
        }
    }

    /// Counts the look-up of a prompt.
    pub(crate) fn looked_up(&mut self, prompt_tokens: usize, cached_tokens: usize) {
        self.queries += prompt_tokens as u64;
        self.hits += cached_tokens as u64;
        self.prompt_tokens += prompt_tokens as u64;
    }

    /// Counts a request that has ended, by the instants of its writes. Between tokens the server
    /// sees events, as vLLM does: a bundle is one gap.
    pub(crate) fn ended(&mut self, request: &LoggedRequest, finish: Option<&str>) {
        let seconds = |from: Nanos, to: Nanos| to.saturating_sub(from).as_secs_f64();
        let tokens = || request.writes.iter().filter(|write| write.tokens > 0);
        let mut last = None;
        for write in tokens() {
            match last {
                None => self
                    .ttft
                    .observe(seconds(request.first_byte_ns, write.written_ns)),
                Some(last) => self.itl.observe(seconds(last, write.written_ns)),
            }
            last = Some(write.written_ns);
        }
        let generated: u64 = tokens().map(|write| u64::from(write.tokens)).sum();
        self.generation_tokens += generated;
        let reason = match (request.ending, finish) {
            (Ending::ClientGone | Ending::Stopped, _) => 2,
            (Ending::Complete, Some("stop")) => 0,
            (Ending::Complete, Some(_)) => 1,
            _ => 3,
        };
        self.finished[reason] += 1;
        self.queue
            .observe(seconds(request.first_byte_ns, request.start_ns));
        self.request_prompt.observe(request.prompt_tokens as f64);
        self.request_generation.observe(generated as f64);
        if let Some(last) = last {
            self.e2e.observe(seconds(request.first_byte_ns, last));
        }
    }

    /// The text of `/metrics`.
    pub(crate) fn render(&self, model: &str, gauges: Gauges) -> String {
        let model = model
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n");
        let mut page = Page {
            text: String::new(),
            labels: format!("engine=\"0\",model_name=\"{model}\""),
        };
        page.single("num_requests_running", "gauge", gauges.running as f64);
        page.single("num_requests_waiting", "gauge", gauges.waiting as f64);
        page.single("kv_cache_usage_perc", "gauge", gauges.kv_usage);
        page.single("prefix_cache_queries_total", "counter", self.queries as f64);
        page.single("prefix_cache_hits_total", "counter", self.hits as f64);
        page.single("external_prefix_cache_queries_total", "counter", 0.0);
        page.single("external_prefix_cache_hits_total", "counter", 0.0);
        page.single("num_preemptions_total", "counter", 0.0);
        page.single("prompt_tokens_total", "counter", self.prompt_tokens as f64);
        page.single("prompt_tokens_cached_total", "counter", self.hits as f64);
        page.single(
            "generation_tokens_total",
            "counter",
            self.generation_tokens as f64,
        );
        page.kind("request_success_total", "counter");
        for (reason, count) in ["stop", "length", "abort", "error"]
            .iter()
            .zip(self.finished)
        {
            let label = format!(",finished_reason=\"{reason}\"");
            page.sample("request_success_total", &label, count as f64);
        }
        page.histogram("time_to_first_token_seconds", &self.ttft);
        page.histogram("inter_token_latency_seconds", &self.itl);
        page.histogram("e2e_request_latency_seconds", &self.e2e);
        page.histogram("request_queue_time_seconds", &self.queue);
        page.histogram("request_prompt_tokens", &self.request_prompt);
        page.histogram("request_generation_tokens", &self.request_generation);
        page.text
    }
}

struct Page {
    text: String,
    labels: String,
}

impl Page {
    fn kind(&mut self, name: &str, kind: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# TYPE vllm:{name} {kind}");
    }

    fn sample(&mut self, name: &str, label: &str, value: f64) {
        let _ = writeln!(self.text, "vllm:{name}{{{}{label}}} {value:?}", self.labels);
    }

    fn single(&mut self, name: &str, kind: &str, value: f64) {
        self.kind(name, kind);
        self.sample(name, "", value);
    }

    fn histogram(&mut self, name: &str, histogram: &Histogram) {
        self.kind(name, "histogram");
        let bucket = format!("{name}_bucket");
        let mut below = 0;
        for (bound, count) in histogram.bounds.iter().zip(&histogram.counts) {
            below += count;
            self.sample(&bucket, &format!(",le=\"{bound:?}\""), below as f64);
        }
        self.sample(&bucket, ",le=\"+Inf\"", histogram.count as f64);
        self.sample(&format!("{name}_count"), "", histogram.count as f64);
        self.sample(&format!("{name}_sum"), "", histogram.sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{LoggedWrite, WriteKind};

    #[test]
    fn counters_follow_from_the_writes() {
        let write = |ms: u64, tokens| LoggedWrite {
            due_ns: Nanos::from_millis(ms),
            written_ns: Nanos::from_millis(ms),
            bytes: 1,
            tokens,
            kind: WriteKind::Token,
            blocked: false,
        };
        let request = LoggedRequest {
            request: 0,
            x_request_id: None,
            path: "/v1/completions".into(),
            model: "m".into(),
            status: 200,
            prompt_tokens: 30,
            cached_tokens: 16,
            first_byte_ns: Nanos::from_millis(100),
            start_ns: Nanos::from_millis(100),
            ending: Ending::Complete,
            writes: vec![write(100, 0), write(130, 1), write(150, 2), write(150, 0)],
        };
        let mut metrics = Metrics::new();
        metrics.looked_up(30, 16);
        metrics.ended(&request, Some("length"));
        let text = metrics.render("m\"x", Gauges::default());
        let l = r#"engine="0",model_name="m\"x""#;
        for line in [
            format!("vllm:prefix_cache_queries_total{{{l}}} 30.0"),
            format!("vllm:prefix_cache_hits_total{{{l}}} 16.0"),
            format!("vllm:generation_tokens_total{{{l}}} 3.0"),
            format!("vllm:request_success_total{{{l},finished_reason=\"length\"}} 1.0"),
            // 30 ms to the first token and 20 ms to the next event.
            format!("vllm:time_to_first_token_seconds_bucket{{{l},le=\"0.02\"}} 0.0"),
            format!("vllm:time_to_first_token_seconds_bucket{{{l},le=\"0.04\"}} 1.0"),
            format!("vllm:inter_token_latency_seconds_bucket{{{l},le=\"0.025\"}} 1.0"),
            format!("vllm:inter_token_latency_seconds_sum{{{l}}} 0.02"),
            format!("vllm:e2e_request_latency_seconds_sum{{{l}}} 0.05"),
        ] {
            assert!(
                text.lines().any(|have| have == line),
                "{line} not in\n{text}"
            );
        }
    }
}
