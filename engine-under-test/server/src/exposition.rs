//! The page `/metrics`.
//!
//! Names, labels and bucket bounds are vLLM's wherever the meaning is the same, so that one
//! dashboard and one scraper serve both. What vLLM has no name for is prefixed `prefillbench_`.

use pb_contract::{EngineConfig, PrefixCacheKind};
use pb_core::DeviceMemory;
use pb_tiers::TierStats;

use crate::core_api::CoreStatus;
use crate::device_metrics;
use crate::kv_metrics;
use crate::metrics::{Histogram, Metrics, STEP_PARTS};
use crate::page::{Page, escaped};
use crate::text::ServedAdapter;

/// The bucket of a [`pb_kv::Log2Histogram`] of nanoseconds that ends near a millisecond;
/// what is shorter is not told apart.
const NEAR_A_MILLISECOND: usize = 20;

/// Everything that `/metrics` shows, at one moment.
pub(crate) struct Exposition<'a> {
    pub(crate) model_name: &'a str,
    pub(crate) config: &'a EngineConfig,
    pub(crate) kv_pool_bytes: usize,
    pub(crate) adapters: &'a [ServedAdapter],
    /// Unix seconds.
    pub(crate) created: u64,
    pub(crate) metrics: &'a Metrics,
    pub(crate) status: &'a CoreStatus,
    pub(crate) device: Option<&'a DeviceMemory>,
}

impl Exposition<'_> {
    /// The Prometheus text.
    pub(crate) fn render(&self) -> String {
        let mut page = Page::new(self.model_name);
        self.gauges(&mut page);
        for (name, help, value) in self.counts() {
            page.counter(name, help, value as f64);
        }
        self.endings(&mut page);
        self.blocks(&mut page);
        device_metrics::memory(&mut page, self.device);
        self.block_lives(&mut page);
        self.tiers(&mut page);
        self.swap(&mut page);
        kv_metrics::write(&mut page, &self.status.counters, self.status.kv.as_ref());
        for (name, help, histogram) in self.latencies() {
            page.histogram(name, help, histogram);
        }
        self.step_time(&mut page);
        device_metrics::kernels(&mut page, &self.status.kernels);
        self.adapters(&mut page);
        self.cache_config(&mut page);
        page.into_text()
    }

    fn gauges(&self, page: &mut Page) {
        let (counters, buckets) = (&self.status.counters, self.status.buckets);
        let gauges = [
            (
                "vllm:num_requests_running",
                "Requests in the running batch.",
                counters.running as f64,
            ),
            (
                "vllm:num_requests_waiting",
                "Requests waiting.",
                counters.waiting as f64,
            ),
            (
                "vllm:kv_cache_usage_perc",
                "KV blocks in use, 1 means all.",
                buckets.active as f64 / buckets.total().max(1) as f64,
            ),
        ];
        for (name, help, value) in gauges {
            page.gauge(name, help, value);
        }
    }

    /// Name, help and value of every plain counter. vLLM counts hits in its own pool and hits
    /// elsewhere apart, and asks elsewhere only for what its own pool did not have.
    fn counts(&self) -> [(&'static str, &'static str, u64); 12] {
        let c = &self.status.counters;
        let external = c.host_hit_tokens + c.disk_hit_tokens + c.remote_hit_tokens;
        let local = c.hit_tokens.saturating_sub(external);
        let asked = match self.config.tiers.any() {
            true => c.queried_tokens.saturating_sub(local),
            false => 0,
        };
        [
            (
                "vllm:prefix_cache_queries_total",
                "Prefix cache queries, in tokens.",
                c.queried_tokens,
            ),
            (
                "vllm:prefix_cache_hits_total",
                "Prefix cache hits in the pool, in tokens.",
                local,
            ),
            (
                "vllm:external_prefix_cache_queries_total",
                "Tokens that the pool did not have and the tiers were asked for.",
                asked,
            ),
            (
                "vllm:external_prefix_cache_hits_total",
                "Prefix cache hits in the tiers, in tokens.",
                external,
            ),
            (
                "vllm:prompt_tokens_cached_total",
                "Prompt tokens taken from the pool or a tier.",
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
                "prefillbench_preempted_prefix_cache_queries_total",
                "Prefix cache queries of requests that had been preempted, in tokens.",
                c.preempted_queried_tokens,
            ),
            (
                "prefillbench_preempted_prefix_cache_hits_total",
                "Prefix cache hits of requests that had been preempted, in tokens.",
                c.preempted_hit_tokens,
            ),
            (
                "prefillbench_evicted_blocks_total",
                "Cached KV blocks that lost their contents.",
                c.evicted_blocks,
            ),
            (
                "prefillbench_steps_total",
                "Engine steps.",
                self.metrics.steps,
            ),
        ]
    }

    fn endings(&self, page: &mut Page) {
        let metric = (
            "vllm:request_success_total",
            "Requests by the way they ended.",
            "counter",
        );
        let reasons = ["stop", "length", "abort", "error"].into_iter();
        let counts = self.metrics.finished.iter().map(|&count| count as f64);
        page.family(metric, "finished_reason", reasons.zip(counts));
    }

    /// The pool in two views, which must never be added.
    fn blocks(&self, page: &mut Page) {
        let buckets = self.status.buckets;
        let disjoint = [
            ("active", buckets.active as f64),
            ("reclaimable", buckets.reclaimable as f64),
            ("free", buckets.free as f64),
        ];
        let metric = (
            "prefillbench_kv_blocks",
            "KV blocks by bucket; the three are disjoint and sum to the pool.",
            "gauge",
        );
        page.family(metric, "bucket", disjoint);
        page.gauge(
            "prefillbench_kv_blocks_free_including_reclaimable",
            "KV blocks that can be handed out, reclaimable ones included; never add these.",
            buckets.free_including_reclaimable() as f64,
        );
        let counters = &self.status.counters;
        let held = [
            ("pin", counters.pinned_blocks as f64),
            ("transfer", counters.in_transfer_blocks as f64),
        ];
        let metric = (
            "prefillbench_kv_blocks_held",
            "Of the active KV blocks, those held by a pin or for a transfer.",
            "gauge",
        );
        page.family(metric, "by", held);
        page.gauge(
            "prefillbench_kv_pool_bytes",
            "Memory reserved for the KV pool; says nothing about how full it is.",
            self.kv_pool_bytes as f64,
        );
    }

    /// What became of cached blocks. vLLM samples some blocks, this engine counts all.
    fn block_lives(&self, page: &mut Page) {
        let cache = &self.status.cache;
        let seconds = [
            (
                (
                    "vllm:kv_block_lifetime_seconds",
                    "From allocation to eviction, of evicted KV blocks.",
                ),
                &cache.lifetime_ns,
            ),
            (
                (
                    "vllm:kv_block_idle_before_evict_seconds",
                    "From the last release to eviction, of evicted KV blocks.",
                ),
                &cache.idle_before_evict_ns,
            ),
            (
                (
                    "vllm:kv_block_reuse_gap_seconds",
                    "From release to the next hit, of KV blocks that nobody used in between.",
                ),
                &cache.reuse_gap_ns,
            ),
        ];
        for (metric, histogram) in seconds {
            page.log2_histogram(metric, histogram, 1e9, NEAR_A_MILLISECOND);
        }
        let metric = (
            "prefillbench_kv_block_reuse_distance_blocks",
            "KV blocks handed out between a release and the next hit.",
        );
        page.log2_histogram(metric, &cache.reuse_distance_blocks, 1.0, 0);
        page.counter(
            "prefillbench_recomputed_blocks_total",
            "KV blocks computed again soon after they had been evicted.",
            cache.recomputed_blocks as f64,
        );
        page.counter(
            "prefillbench_copied_blocks_total",
            "Shared partial KV blocks copied before a write.",
            cache.copied_blocks as f64,
        );
        page.gauge(
            "prefillbench_thrash_index",
            "Share of evicted KV blocks that were computed again soon after; NaN before the \
             first eviction.",
            cache.thrash_index().unwrap_or(f64::NAN),
        );
    }

    fn tiers(&self, page: &mut Page) {
        type Value = fn(&TierStats) -> u64;
        let metrics: [(&str, &str, &str, Value); 8] = [
            ("blocks", "Blocks held.", "gauge", |t| t.blocks),
            ("bytes", "Bytes held.", "gauge", |t| t.bytes),
            ("hits_total", "Blocks found.", "counter", |t| t.hits),
            ("misses_total", "Blocks not found.", "counter", |t| t.misses),
            ("stored_total", "Blocks written.", "counter", |t| t.stored),
            ("evicted_total", "Blocks that made room.", "counter", |t| {
                t.evicted
            }),
            ("refused_total", "Blocks not taken.", "counter", |t| {
                t.refused
            }),
            ("errors_total", "Operations that failed.", "counter", |t| {
                t.errors
            }),
        ];
        let tiers = &self.status.tiers;
        if tiers.is_empty() {
            return;
        }
        for (name, help, kind, value) in metrics {
            let name = format!("prefillbench_tier_{name}");
            let samples = tiers
                .iter()
                .map(|(t, stats)| (t.name(), value(stats) as f64));
            page.family((&name, help, kind), "tier", samples);
        }
        let c = &self.status.counters;
        let tokens = [
            ("host", c.host_hit_tokens as f64),
            ("disk", c.disk_hit_tokens as f64),
            ("redis", c.remote_hit_tokens as f64),
        ];
        let on = |name: &str| tiers.iter().any(|(tier, _)| tier.name() == name);
        let metric = (
            "prefillbench_tier_hit_tokens_total",
            "Prompt tokens taken from each tier.",
            "counter",
        );
        let samples = tokens.into_iter().filter(|(name, _)| on(name));
        page.family(metric, "tier", samples);
        page.counter(
            "prefillbench_tier_failed_loads_total",
            "Blocks that a tier promised and could not give; they are computed again.",
            c.failed_loads as f64,
        );
    }

    fn swap(&self, page: &mut Page) {
        let c = &self.status.counters;
        page.gauge(
            "prefillbench_swapped_blocks",
            "Host blocks of swapped requests.",
            c.swapped_blocks as f64,
        );
        let counters = [
            (
                "prefillbench_swapped_out_blocks_total",
                "KV blocks copied to host memory by preemption.",
                c.swapped_out_blocks,
            ),
            (
                "prefillbench_swapped_in_tokens_total",
                "Tokens of swapped requests that came back; never hits.",
                c.swapped_in_tokens,
            ),
            (
                "prefillbench_swap_full_total",
                "Preempted requests that host memory had no room for.",
                c.swap_full,
            ),
        ];
        for (name, help, value) in counters {
            page.counter(name, help, value as f64);
        }
    }

    /// Name, help and contents of every histogram of latencies.
    fn latencies(&self) -> [(&'static str, &'static str, &Histogram); 7] {
        let m = self.metrics;
        [
            (
                "vllm:time_to_first_token_seconds",
                "Time to first token.",
                &m.time_to_first_token,
            ),
            (
                "vllm:inter_token_latency_seconds",
                "Time between tokens.",
                &m.inter_token_latency,
            ),
            (
                "vllm:e2e_request_latency_seconds",
                "Time of a request.",
                &m.e2e_request_latency,
            ),
            (
                "vllm:request_queue_time_seconds",
                "Time from the arrival of a request to its first step.",
                &m.queue_time,
            ),
            (
                "vllm:request_inference_time_seconds",
                "Time from the first step of a request to its last token.",
                &m.inference_time,
            ),
            (
                "vllm:request_prefill_time_seconds",
                "Time from the first step of a request to its first token.",
                &m.prefill_time,
            ),
            (
                "vllm:request_decode_time_seconds",
                "Time from the first token of a request to its last.",
                &m.decode_time,
            ),
        ]
    }

    fn step_time(&self, page: &mut Page) {
        let times = STEP_PARTS.iter().zip(&self.metrics.step_time);
        let metric = (
            "prefillbench_step_seconds_total",
            "Time of engine steps by part; lookup, allocate, plan and dispatch are the host's.",
            "counter",
        );
        let samples = times.map(|((part, _), time)| (*part, time.as_secs_f64()));
        page.family(metric, "part", samples);
        page.counter(
            "prefillbench_lock_wait_seconds_total",
            "Time that the engine thread spent between steps on commands and locks.",
            self.metrics.lock_wait.as_secs_f64(),
        );
    }

    /// vLLM writes the adapters in use as two lists, with the time as the value.
    fn adapters(&self, page: &mut Page) {
        if self.adapters.is_empty() {
            return;
        }
        let loads = &self.metrics.adapters;
        let names = |busy: fn(&crate::metrics::AdapterLoad) -> usize| {
            let busy = loads.iter().filter(|(_, load)| busy(load) > 0);
            let names: Vec<String> = busy.map(|(name, _)| escaped(name)).collect();
            names.join(",")
        };
        let name = "vllm:lora_requests_info";
        page.head(name, "Adapters in use.", "gauge");
        page.line(format_args!(
            "{name}{{max_lora=\"{}\",running_lora_adapters=\"{}\",waiting_lora_adapters=\"{}\"}} \
             {:?}",
            self.adapters.len(),
            names(|load| load.running),
            names(|load| load.waiting),
            self.created as f64
        ));
        let name = "prefillbench_adapter_requests";
        page.head(name, "Requests by adapter and state.", "gauge");
        for adapter in self.adapters {
            let load = loads.get(&adapter.name).copied().unwrap_or_default();
            let states = [("running", load.running), ("waiting", load.waiting)];
            for (state, requests) in states {
                let adapter = escaped(&adapter.name);
                let labels = format!(",adapter=\"{adapter}\",state=\"{state}\"");
                page.sample(name, &labels, requests as f64);
            }
        }
    }

    fn cache_config(&self, page: &mut Page) {
        let config = self.config;
        let name = "vllm:cache_config_info";
        page.head(name, "Settings of the KV cache.", "gauge");
        let caching = match config.prefix_cache {
            PrefixCacheKind::None => "False",
            PrefixCacheKind::HashChain | PrefixCacheKind::Radix | PrefixCacheKind::Oracle => "True",
        };
        // This one has no model label in vLLM either.
        page.line(format_args!(
            "{name}{{engine=\"0\",block_size=\"{}\",num_gpu_blocks=\"{}\",\
             enable_prefix_caching=\"{caching}\"}} 1.0",
            config.block_size, config.num_blocks
        ));
    }
}
