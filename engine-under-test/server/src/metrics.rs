//! Counters and histograms of the server, and their Prometheus text.
//!
//! Names, labels and bucket bounds are vLLM's wherever the meaning is the same, so that one
//! dashboard and one scraper serve both. What vLLM has no name for is prefixed `prefillbench:`.

use std::fmt::Write;

use pb_contract::{Buckets, EngineConfig, FinishReason, Nanos, PrefixCacheKind};

use crate::core_api::CoreCounters;

const TTFT_BOUNDS_S: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
const ITL_BOUNDS_S: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];
const E2E_BOUNDS_S: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];

/// The moments of a request's life that the histograms need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestTimes {
    pub(crate) arrival: Nanos,
    /// Start of the first step that worked on it.
    pub(crate) admitted: Option<Nanos>,
    first_token: Option<Nanos>,
    last_token: Option<Nanos>,
}

impl RequestTimes {
    pub(crate) fn new(arrival: Nanos) -> Self {
        RequestTimes {
            arrival,
            admitted: None,
            first_token: None,
            last_token: None,
        }
    }
}

/// A histogram with fixed bounds.
#[derive(Clone, Debug)]
struct Histogram {
    bounds_s: &'static [f64],
    /// One count a bound, and one for what lies above.
    counts: Vec<u64>,
    sum: Nanos,
}

impl Histogram {
    fn new(bounds_s: &'static [f64]) -> Self {
        Histogram {
            bounds_s,
            counts: vec![0; bounds_s.len() + 1],
            sum: Nanos::ZERO,
        }
    }

    fn observe(&mut self, duration: Nanos) {
        let seconds = duration.as_secs_f64();
        self.counts[self.bounds_s.partition_point(|&bound| bound < seconds)] += 1;
        self.sum += duration;
    }
}

/// What the engine thread counts beyond the core's own counters.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    time_to_first_token: Histogram,
    inter_token_latency: Histogram,
    e2e_request_latency: Histogram,
    /// From the arrival to the first step.
    queue_time: Histogram,
    /// From the first step to the first token.
    prefill_time: Histogram,
    /// From the first token to the last.
    decode_time: Histogram,
    /// Stop, length, abort, error.
    finished: [u64; 4],
    steps: u64,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Metrics {
            time_to_first_token: Histogram::new(TTFT_BOUNDS_S),
            inter_token_latency: Histogram::new(ITL_BOUNDS_S),
            e2e_request_latency: Histogram::new(E2E_BOUNDS_S),
            queue_time: Histogram::new(E2E_BOUNDS_S),
            prefill_time: Histogram::new(E2E_BOUNDS_S),
            decode_time: Histogram::new(E2E_BOUNDS_S),
            finished: [0; 4],
            steps: 0,
        }
    }

    /// Counts a step.
    pub(crate) fn step(&mut self) {
        self.steps += 1;
    }

    /// Counts a request's next token, which came at `now`.
    pub(crate) fn token(&mut self, times: &mut RequestTimes, now: Nanos) {
        match times.last_token {
            None => self
                .time_to_first_token
                .observe(now.saturating_sub(times.arrival)),
            Some(last) => self.inter_token_latency.observe(now.saturating_sub(last)),
        }
        times.first_token.get_or_insert(now);
        times.last_token = Some(now);
    }

    /// Counts a request that ended.
    pub(crate) fn finish(&mut self, reason: FinishReason, times: RequestTimes, now: Nanos) {
        let slot = match reason {
            FinishReason::Stop => 0,
            FinishReason::Length => 1,
            FinishReason::Abort => 2,
        };
        self.finished[slot] += 1;
        // As in vLLM, an aborted request has no latency.
        if reason == FinishReason::Abort {
            return;
        }
        self.e2e_request_latency
            .observe(now.saturating_sub(times.arrival));
        if let (Some(admitted), Some(first), Some(last)) =
            (times.admitted, times.first_token, times.last_token)
        {
            self.queue_time
                .observe(admitted.saturating_sub(times.arrival));
            self.prefill_time.observe(first.saturating_sub(admitted));
            self.decode_time.observe(last.saturating_sub(first));
        }
    }

    /// Counts a request that the engine failed.
    pub(crate) fn error(&mut self) {
        self.finished[3] += 1;
    }
}

/// Everything that `/metrics` shows, at one moment.
pub(crate) struct Exposition<'a> {
    pub(crate) model_name: &'a str,
    pub(crate) config: &'a EngineConfig,
    pub(crate) metrics: &'a Metrics,
    pub(crate) counters: CoreCounters,
    pub(crate) buckets: Buckets,
}

impl Exposition<'_> {
    /// The Prometheus text.
    pub(crate) fn render(&self) -> String {
        let mut page = Page {
            out: String::new(),
            labels: self.labels(),
        };
        let (c, b) = (self.counters, self.buckets);
        page.gauge(
            "vllm:num_requests_running",
            "Requests in the running batch.",
            c.running as f64,
        );
        page.gauge(
            "vllm:num_requests_waiting",
            "Requests waiting.",
            c.waiting as f64,
        );
        let usage = b.active as f64 / b.total().max(1) as f64;
        page.gauge(
            "vllm:kv_cache_usage_perc",
            "KV blocks in use, 1 means all.",
            usage,
        );
        for (name, help, value) in self.counts() {
            page.head(name, help, "counter");
            page.sample(name, "", value as f64);
        }
        page.finished(&self.metrics.finished);
        page.blocks(b);
        for (name, help, histogram) in self.histograms() {
            page.histogram(name, help, histogram);
        }
        page.cache_config(self.config);
        page.out
    }

    /// Name, help and contents of every histogram.
    fn histograms(&self) -> [(&'static str, &'static str, &Histogram); 6] {
        let m = self.metrics;
        [
            (
                "time_to_first_token_seconds",
                "Time to first token.",
                &m.time_to_first_token,
            ),
            (
                "inter_token_latency_seconds",
                "Time between tokens.",
                &m.inter_token_latency,
            ),
            (
                "e2e_request_latency_seconds",
                "Time of a request.",
                &m.e2e_request_latency,
            ),
            (
                "request_queue_time_seconds",
                "Time from the arrival of a request to its first step.",
                &m.queue_time,
            ),
            (
                "request_prefill_time_seconds",
                "Time from the first step of a request to its first token.",
                &m.prefill_time,
            ),
            (
                "request_decode_time_seconds",
                "Time from the first token of a request to its last.",
                &m.decode_time,
            ),
        ]
    }

    /// Name, help and value of every plain counter.
    fn counts(&self) -> [(&'static str, &'static str, u64); 9] {
        let c = self.counters;
        [
            (
                "vllm:prefix_cache_queries_total",
                "Prefix cache queries, in tokens.",
                c.queried_tokens,
            ),
            (
                "vllm:prefix_cache_hits_total",
                "Prefix cache hits, in tokens.",
                c.hit_tokens,
            ),
            ("vllm:num_preemptions_total", "Preemptions.", c.preemptions),
            (
                "vllm:prompt_tokens_total",
                "Prompt tokens of admitted requests.",
                c.prompt_tokens,
            ),
            (
                "vllm:generation_tokens_total",
                "Tokens generated.",
                c.generation_tokens,
            ),
            (
                "prefillbench:preempted_prefix_cache_queries_total",
                "Prefix cache queries of requests that had been preempted, in tokens.",
                c.preempted_queried_tokens,
            ),
            (
                "prefillbench:preempted_prefix_cache_hits_total",
                "Prefix cache hits of requests that had been preempted, in tokens.",
                c.preempted_hit_tokens,
            ),
            (
                "prefillbench:evicted_blocks_total",
                "Cached KV blocks that lost their contents.",
                c.evicted_blocks,
            ),
            (
                "prefillbench:steps_total",
                "Engine steps.",
                self.metrics.steps,
            ),
        ]
    }

    fn labels(&self) -> String {
        let name = self
            .model_name
            .replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n");
        format!("engine=\"0\",model_name=\"{name}\"")
    }
}

struct Page {
    out: String,
    labels: String,
}

impl Page {
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // OK because writing into a String cannot fail.
        self.out.write_fmt(line).unwrap();
        self.out.push('\n');
    }

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
    }

    /// `more` is empty or further labels, each with a comma in front. Values are written as
    /// Python writes floats (`3.0`), as vLLM does.
    fn sample(&mut self, name: &str, more: &str, value: f64) {
        let labels = std::mem::take(&mut self.labels);
        self.line(format_args!("{name}{{{labels}{more}}} {value:?}"));
        self.labels = labels;
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, help, "gauge");
        self.sample(name, "", value);
    }

    fn finished(&mut self, finished: &[u64; 4]) {
        let name = "vllm:request_success_total";
        self.head(name, "Requests by the way they ended.", "counter");
        for (reason, count) in ["stop", "length", "abort", "error"].iter().zip(finished) {
            self.sample(
                name,
                &format!(",finished_reason=\"{reason}\""),
                *count as f64,
            );
        }
    }

    fn blocks(&mut self, buckets: Buckets) {
        let name = "prefillbench:kv_blocks";
        self.head(
            name,
            "KV blocks by bucket; the three sum to the pool.",
            "gauge",
        );
        let parts = [
            ("active", buckets.active),
            ("reclaimable", buckets.reclaimable),
            ("free", buckets.free),
        ];
        for (bucket, blocks) in parts {
            self.sample(name, &format!(",bucket=\"{bucket}\""), blocks as f64);
        }
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        let name = format!("vllm:{name}");
        self.head(&name, help, "histogram");
        let bucket = format!("{name}_bucket");
        let mut below = 0;
        for (bound, count) in histogram.bounds_s.iter().zip(&histogram.counts) {
            below += count;
            self.sample(&bucket, &format!(",le=\"{bound:?}\""), below as f64);
        }
        let all: u64 = histogram.counts.iter().sum();
        self.sample(&bucket, ",le=\"+Inf\"", all as f64);
        self.sample(&format!("{name}_count"), "", all as f64);
        self.sample(&format!("{name}_sum"), "", histogram.sum.as_secs_f64());
    }

    fn cache_config(&mut self, config: &EngineConfig) {
        let name = "vllm:cache_config_info";
        self.head(name, "Settings of the KV cache.", "gauge");
        let caching = match config.prefix_cache {
            PrefixCacheKind::None => "False",
            PrefixCacheKind::HashChain => "True",
        };
        // This one has no model label in vLLM either.
        self.line(format_args!(
            "{name}{{engine=\"0\",block_size=\"{}\",num_gpu_blocks=\"{}\",\
             enable_prefix_caching=\"{caching}\"}} 1.0",
            config.block_size, config.num_blocks
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_bound_counts_below_it() {
        // Prometheus: a bucket holds the observations less than or equal to its bound.
        let mut histogram = Histogram::new(&[0.5, 1.0]);
        for ms in [500, 501, 1000, 1001] {
            histogram.observe(Nanos::from_millis(ms));
        }
        assert_eq!(histogram.counts, vec![1, 2, 1]);
        assert_eq!(histogram.sum, Nanos::from_millis(3002));
    }

    #[test]
    fn first_tokens_and_gaps_go_to_their_own_histograms() {
        let mut metrics = Metrics::new();
        let mut times = RequestTimes::new(Nanos::from_millis(10));
        metrics.token(&mut times, Nanos::from_millis(110));
        metrics.token(&mut times, Nanos::from_millis(130));
        metrics.finish(FinishReason::Abort, times, Nanos::from_secs(1));
        assert_eq!(metrics.time_to_first_token.sum, Nanos::from_millis(100));
        assert_eq!(metrics.inter_token_latency.sum, Nanos::from_millis(20));
        assert_eq!(metrics.e2e_request_latency.sum, Nanos::ZERO);
        assert_eq!(metrics.finished, [0, 0, 1, 0]);
        assert_eq!(metrics.queue_time.sum, Nanos::ZERO);
    }

    #[test]
    fn a_request_waits_then_prefills_then_decodes() {
        let mut metrics = Metrics::new();
        let mut times = RequestTimes::new(Nanos::from_millis(10));
        times.admitted = Some(Nanos::from_millis(15));
        for ms in [45, 60, 145] {
            metrics.token(&mut times, Nanos::from_millis(ms));
        }
        metrics.finish(FinishReason::Stop, times, Nanos::from_millis(150));
        assert_eq!(metrics.queue_time.sum, Nanos::from_millis(5));
        assert_eq!(metrics.prefill_time.sum, Nanos::from_millis(30));
        assert_eq!(metrics.decode_time.sum, Nanos::from_millis(100));
        assert_eq!(metrics.e2e_request_latency.sum, Nanos::from_millis(140));
    }
}
