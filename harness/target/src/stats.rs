//! One vocabulary for what servers say of themselves.
//!
//! Every engine names its figures in its own way. The names are mapped here, once; a quantity
//! that a server does not have stays absent. Which names a figure was read from follows from the
//! page, not from the kind of the server, because names carry their engine as a prefix.

use serde::{Deserialize, Serialize};

use crate::histogram::{Histogram, whole};
use crate::prometheus::{Exposition, Sample};

/// A server at one instant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerStats {
    /// Requests being computed.
    pub running: Option<f64>,
    /// Requests in the queue.
    pub waiting: Option<f64>,
    /// Used share of the KV cache, 0 to 1; the fullest engine's where there are several.
    pub kv_usage: Option<f64>,
    /// Tokens of a block of the prefix cache.
    pub block_size: Option<u32>,
    /// Counters since the server started.
    pub counters: Counters,
    /// Latencies since the server started.
    pub latencies: Latencies,
    /// Figures that contradict themselves and were left out.
    pub problems: Vec<String>,
}

/// Counters of tokens and preemptions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Prompt tokens found in the device's prefix cache.
    pub hit_tokens: Option<u64>,
    /// Prompt tokens looked up.
    pub query_tokens: Option<u64>,
    /// Prompt tokens taken from another tier (host memory, disk, a connector).
    pub external_hit_tokens: Option<u64>,
    /// Requests that lost their blocks and were put back.
    pub preemptions: Option<u64>,
    /// Prompt tokens of started requests.
    pub prompt_tokens: Option<u64>,
    /// Output tokens.
    pub generation_tokens: Option<u64>,
}

/// Histograms of latencies in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latencies {
    /// From the request's arrival at the server to its first token.
    pub ttft: Option<Histogram>,
    /// Between tokens, or between events of several tokens: the server decides.
    pub itl: Option<Histogram>,
    /// In the queue.
    pub queue: Option<Histogram>,
    /// Whole request.
    pub e2e: Option<Histogram>,
}

impl Latencies {
    /// All four, in the order of the fields.
    pub fn all(&self) -> [Option<&Histogram>; 4] {
        [&self.ttft, &self.itl, &self.queue, &self.e2e].map(Option::as_ref)
    }
}

/// How the samples of a name become one figure.
#[derive(Clone, Copy)]
enum Join {
    /// Over engines and label sets.
    Sum,
    /// The fullest engine.
    Max,
}

const RUNNING: &[&str] = &[
    "vllm:num_requests_running",
    "sglang:num_running_reqs",
    "llamacpp:requests_processing",
    "tgi_batch_current_size",
    "trtllm_num_requests_running",
];
const WAITING: &[&str] = &[
    "vllm:num_requests_waiting",
    "sglang:num_queue_reqs",
    "llamacpp:requests_deferred",
    "tgi_queue_size",
    "trtllm_num_requests_waiting",
];
const KV_USAGE: &[&str] = &[
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "sglang:token_usage",
    "trtllm_kv_cache_utilization",
];
const HITS: &[&str] = &[
    "vllm:prefix_cache_hits",
    "vllm:gpu_prefix_cache_hits",
    "sglang:cached_tokens",
    "llamacpp:prompt_tokens_cached",
    "trtllm_prompt_cached_tokens",
];
const QUERIES: &[&str] = &[
    "vllm:prefix_cache_queries",
    "vllm:gpu_prefix_cache_queries",
    "sglang:prompt_tokens",
    "trtllm_prompt_tokens",
];
const EXTERNAL_HITS: &[&str] = &["vllm:external_prefix_cache_hits"];
const PREEMPTIONS: &[&str] = &["vllm:num_preemptions", "sglang:num_retracted_requests"];
const PROMPT_TOKENS: &[&str] = &[
    "vllm:prompt_tokens",
    "sglang:prompt_tokens",
    "trtllm_prompt_tokens",
];
const GENERATION_TOKENS: &[&str] = &[
    "vllm:generation_tokens",
    "sglang:generation_tokens",
    "llamacpp:tokens_predicted",
    "trtllm_generation_tokens",
];
const TTFT: &[&str] = &[
    "vllm:time_to_first_token_seconds",
    "sglang:time_to_first_token_seconds",
    "trtllm_time_to_first_token_seconds",
];
/// A mean per request, which some servers have under a similar name, is no inter-token latency.
const ITL: &[&str] = &[
    "vllm:inter_token_latency_seconds",
    "vllm:time_per_output_token_seconds",
    "sglang:inter_token_latency_seconds",
];
const QUEUE: &[&str] = &[
    "vllm:request_queue_time_seconds",
    "sglang:queue_time_seconds",
    "tgi_request_queue_duration",
    "trtllm_request_queue_time_seconds",
];
const E2E: &[&str] = &[
    "vllm:e2e_request_latency_seconds",
    "sglang:e2e_request_latency_seconds",
    "tgi_request_duration",
    "trtllm_e2e_request_latency_seconds",
];

/// Values of SGLang's label `cache_source` that are not the device.
fn is_external(sample: &Sample) -> bool {
    let source = sample.label("cache_source");
    source.is_some_and(|source| source != "device" && source != "total")
}

/// Ranks of one engine repeat its figures; the first speaks for all.
fn is_first_rank(sample: &Sample) -> bool {
    let first = |label: &str| sample.label(label).is_none_or(|rank| rank == "0");
    first("tp_rank") && first("pp_rank")
}

/// The samples of the first of `names` that the page has, each name with or without the suffix
/// of counters.
fn samples<'a>(page: &'a Exposition, names: &[&str]) -> Vec<&'a Sample> {
    for name in names {
        let total = format!("{name}_total");
        let is = |s: &&Sample| (s.name == *name || s.name == total) && is_first_rank(s);
        let found: Vec<&Sample> = page.samples.iter().filter(is).collect();
        if !found.is_empty() {
            return found;
        }
    }
    Vec::new()
}

fn figure(page: &Exposition, names: &[&str], join: Join) -> Option<f64> {
    let found = samples(page, names);
    let values = found.iter().map(|s| s.value);
    let joined = match join {
        Join::Sum => values.reduce(|a, b| a + b),
        Join::Max => values.reduce(f64::max),
    };
    joined.filter(|value| value.is_finite())
}

fn counter(page: &Exposition, names: &[&str], keep: fn(&Sample) -> bool) -> Option<u64> {
    let found = samples(page, names);
    let values: Vec<f64> = found.iter().filter(|s| keep(s)).map(|s| s.value).collect();
    if values.is_empty() {
        return None;
    }
    whole(values.iter().sum())
}

impl Counters {
    fn read(page: &Exposition) -> Counters {
        let any = |names| counter(page, names, |_| true);
        let mut read = Counters {
            hit_tokens: counter(page, HITS, |s| !is_external(s)),
            query_tokens: any(QUERIES),
            external_hit_tokens: any(EXTERNAL_HITS),
            preemptions: any(PREEMPTIONS),
            prompt_tokens: any(PROMPT_TOKENS),
            generation_tokens: any(GENERATION_TOKENS),
        };
        read.external_hit_tokens = read
            .external_hit_tokens
            .or(counter(page, HITS, is_external));
        // Its count of prompt tokens leaves the cached ones out.
        let computed = any(&["llamacpp:prompt_tokens"]);
        if let (Some(computed), Some(cached)) = (computed, read.hit_tokens) {
            read.query_tokens = Some(computed + cached);
            read.prompt_tokens = Some(computed + cached);
        }
        read
    }

    /// What came between an earlier reading and this one. A counter that is absent in one of the
    /// two, or that went backwards because the server was started again, is absent.
    pub fn since(&self, earlier: &Counters) -> Counters {
        let delta = |now: Option<u64>, then: Option<u64>| now?.checked_sub(then?);
        Counters {
            hit_tokens: delta(self.hit_tokens, earlier.hit_tokens),
            query_tokens: delta(self.query_tokens, earlier.query_tokens),
            external_hit_tokens: delta(self.external_hit_tokens, earlier.external_hit_tokens),
            preemptions: delta(self.preemptions, earlier.preemptions),
            prompt_tokens: delta(self.prompt_tokens, earlier.prompt_tokens),
            generation_tokens: delta(self.generation_tokens, earlier.generation_tokens),
        }
    }

    /// Hits on the device and in other tiers together.
    pub fn all_hit_tokens(&self) -> Option<u64> {
        let external = self.external_hit_tokens.unwrap_or(0);
        Some(self.hit_tokens? + external)
    }
}

impl ServerStats {
    /// Maps a page.
    pub fn read(page: &Exposition) -> ServerStats {
        let mut problems = Vec::new();
        let mut histogram = |names: &[&str]| {
            for name in names {
                match Histogram::read(page, name, is_first_rank) {
                    Ok(None) => {}
                    Ok(found) => return found,
                    Err(problem) => problems.push(problem),
                }
            }
            None
        };
        let latencies = Latencies {
            ttft: histogram(TTFT),
            itl: histogram(ITL),
            queue: histogram(QUEUE),
            e2e: histogram(E2E),
        };
        ServerStats {
            running: figure(page, RUNNING, Join::Sum),
            waiting: figure(page, WAITING, Join::Sum),
            kv_usage: figure(page, KV_USAGE, Join::Max),
            block_size: block_size(page),
            counters: Counters::read(page),
            latencies,
            problems,
        }
    }

    /// Requests running and waiting; `None` when the server says neither.
    pub fn busy(&self) -> Option<f64> {
        match (self.running, self.waiting) {
            (None, None) => None,
            (running, waiting) => Some(running.unwrap_or(0.0) + waiting.unwrap_or(0.0)),
        }
    }
}

fn block_size(page: &Exposition) -> Option<u32> {
    let info = [
        ("vllm:cache_config_info", "block_size"),
        ("sglang:cache_config_info", "page_size"),
    ];
    let size = |(name, label): (&str, &str)| {
        let sample = page.samples.iter().find(|s| s.name == name)?;
        sample.label(label)?.parse().ok()
    };
    info.into_iter().find_map(size)
}

/// What a server did between two readings, usually the edges of a measured window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerWindow {
    /// Differences of the counters.
    pub counters: Counters,
    /// Differences of the histograms.
    pub latencies: Latencies,
    /// A counter went backwards: the server was started again within the window.
    pub restarted: bool,
}

impl ServerWindow {
    /// From its edges.
    pub fn between(first: &ServerStats, last: &ServerStats) -> ServerWindow {
        let both = |now: Option<&Histogram>, then: Option<&Histogram>| now?.since(then?);
        let (now, then) = (last.latencies.all(), first.latencies.all());
        let [ttft, itl, queue, e2e] = std::array::from_fn(|i| both(now[i], then[i]));
        let pairs = [
            (first.counters.query_tokens, last.counters.query_tokens),
            (first.counters.prompt_tokens, last.counters.prompt_tokens),
            (
                first.counters.generation_tokens,
                last.counters.generation_tokens,
            ),
        ];
        let fell = |(then, now): &(Option<u64>, Option<u64>)| now < then && now.is_some();
        ServerWindow {
            counters: last.counters.since(&first.counters),
            latencies: Latencies {
                ttft,
                itl,
                queue,
                e2e,
            },
            restarted: pairs.iter().any(fell),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(text: &str) -> ServerStats {
        let page = Exposition::parse(text);
        assert_eq!(page.rejected, []);
        ServerStats::read(&page)
    }

    #[test]
    fn sglang_names() {
        let s = stats(
            "sglang:num_running_reqs{tp_rank=\"0\"} 3\nsglang:num_running_reqs{tp_rank=\"1\"} 3\n\
             sglang:num_queue_reqs{tp_rank=\"0\"} 2\nsglang:token_usage 0.25\n\
             sglang:cached_tokens_total{cache_source=\"device\"} 40\n\
             sglang:cached_tokens_total{cache_source=\"host\"} 8\n\
             sglang:cached_tokens_total{cache_source=\"storage\"} 1\n\
             sglang:prompt_tokens_total 100\nsglang:generation_tokens_total 7\n\
             sglang:num_retracted_reqs 1\nsglang:num_retracted_requests_total 48\n\
             sglang:cache_config_info{page_size=\"64\"} 1\n",
        );
        assert_eq!(
            (s.running, s.waiting, s.kv_usage),
            (Some(3.0), Some(2.0), Some(0.25))
        );
        let expected = Counters {
            hit_tokens: Some(40),
            query_tokens: Some(100),
            external_hit_tokens: Some(9),
            preemptions: Some(48),
            prompt_tokens: Some(100),
            generation_tokens: Some(7),
        };
        assert_eq!(s.counters, expected);
        assert_eq!(s.counters.all_hit_tokens(), Some(49));
        assert_eq!(s.block_size, Some(64));
    }

    #[test]
    fn tgi_and_tensorrt_llm_names() {
        let s = stats("tgi_queue_size 7\ntgi_batch_current_size 4\n");
        assert_eq!((s.running, s.waiting), (Some(4.0), Some(7.0)));
        assert_eq!(s.counters, Counters::default());
        let s = stats(
            "trtllm_kv_cache_utilization{m=\"q\"} 0.2\ntrtllm_prompt_cached_tokens_total 5\n\
             trtllm_prompt_tokens_total 9\n\
             trtllm_time_per_output_token_seconds_bucket{le=\"+Inf\"} 1\n\
             trtllm_time_per_output_token_seconds_sum 1\n",
        );
        assert_eq!((s.kv_usage, s.running), (Some(0.2), None));
        assert_eq!(s.counters.hit_tokens, Some(5));
        assert_eq!(
            s.latencies.itl, None,
            "a mean per request is no inter-token latency"
        );
    }

    #[test]
    fn several_engines_are_summed_and_the_fullest_shows() {
        let s = stats(
            "vllm:num_requests_running{engine=\"0\"} 1\nvllm:num_requests_running{engine=\"1\"} 4\n\
             vllm:kv_cache_usage_perc{engine=\"0\"} 0.5\n\
             vllm:kv_cache_usage_perc{engine=\"1\"} 0.75\n",
        );
        assert_eq!(
            (s.running, s.kv_usage, s.waiting),
            (Some(5.0), Some(0.75), None)
        );
        assert_eq!(s.busy(), Some(5.0));
        assert_eq!(stats("other 1").busy(), None);
    }

    #[test]
    fn absent_is_not_zero_and_a_restart_shows() {
        let first = stats("vllm:prompt_tokens_total 50\nvllm:prefix_cache_hits_total 10\n");
        let last = stats("vllm:prompt_tokens_total 80\nvllm:num_preemptions_total 2\n");
        let window = ServerWindow::between(&first, &last);
        assert_eq!(window.counters.prompt_tokens, Some(30));
        assert_eq!(window.counters.hit_tokens, None);
        assert_eq!(window.counters.preemptions, None);
        assert!(!window.restarted);
        let window = ServerWindow::between(&last, &first);
        assert_eq!(window.counters.prompt_tokens, None);
        assert!(window.restarted);
    }

    #[test]
    fn a_contradiction_is_left_out_and_named() {
        let s = stats(
            "vllm:time_to_first_token_seconds_bucket{le=\"1\"} 3\n\
             vllm:time_to_first_token_seconds_bucket{le=\"+Inf\"} 2\n\
             vllm:time_to_first_token_seconds_sum 1\nvllm:time_to_first_token_seconds_count 2\n",
        );
        assert_eq!(s.latencies.ttft, None);
        assert!(
            s.problems[0].contains("the cumulative counts fall"),
            "{:?}",
            s.problems
        );
    }
}
