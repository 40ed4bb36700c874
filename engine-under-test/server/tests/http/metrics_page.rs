//! The Prometheus page against the recorded page of a real vLLM server.

use std::collections::BTreeSet;

use pb_contract::Nanos;
use pb_core::{Counters, DeviceMemory, KernelTotal, PoolMemory, PurposeMemory, WholeMemory};
use pb_tiers::{TierKind, TierStats};
use serde_json::json;

use crate::client;
use crate::fake_core::{FakeCore, Script, Stage, tokens};
use crate::fake_text::FakeText;
use crate::recordings;
use crate::setup::{options, start};

/// One line of the page.
struct Sample {
    name: String,
    /// Names of the labels.
    labels: BTreeSet<String>,
    /// Upper bound of a bucket.
    bound: Option<String>,
}

fn samples(page: &str) -> Vec<Sample> {
    let lines = page
        .lines()
        .filter(|line| !line.starts_with('#') && line.contains('{'));
    let sample = |line: &str| {
        let (name, rest) = line.split_once('{').unwrap();
        let (labels, _) = rest.rsplit_once("} ").unwrap();
        let pairs: Vec<(&str, &str)> = labels
            .split("\",")
            .map(|pair| pair.split_once("=\"").unwrap())
            .collect();
        let bound = pairs.iter().find(|pair| pair.0 == "le");
        Sample {
            name: name.to_owned(),
            labels: pairs.iter().map(|pair| pair.0.to_owned()).collect(),
            bound: bound.map(|pair| pair.1.trim_end_matches('"').to_owned()),
        }
    };
    lines.map(sample).collect()
}

/// The page of a server that has served five prompt tokens, two of them cached, and made four.
async fn page() -> String {
    let stage = Stage::new(None);
    let core = FakeCore::new(&stage, |_| Script {
        cached_tokens: 2,
        ..tokens(&[0])
    });
    let server = start(core, FakeText::new(&["x"]), options()).await;
    let body = json!({ "prompt": "xxxxx", "max_tokens": 4 });
    let reply = client::post(server.addr, "/v1/completions", &body).await;
    assert_eq!(reply.status, 200);
    let page = client::get(server.addr, "/metrics").await;
    assert!(
        page.head
            .contains("content-type: text/plain; version=1.0.0; charset=utf-8")
    );
    server.shut_down().await;
    page.text()
}

#[tokio::test]
async fn names_types_and_labels_are_vllms() {
    let recorded = recordings::load("metrics").reply.text();
    let page = page().await;
    let theirs = samples(&recorded);
    let ours = samples(&page);
    let vllm = ours
        .iter()
        .filter(|sample| sample.name.starts_with("vllm:"));
    assert!(vllm.clone().count() > 70);
    // Recorded without its option for them; the names are those of its source
    // (vllm/v1/metrics/loggers.py), and so is their kind.
    let optional = |name: &str| name.starts_with("vllm:kv_block_");
    for sample in vllm.filter(|sample| !optional(&sample.name)) {
        let same = theirs.iter().find(|their| their.name == sample.name);
        let same = same.unwrap_or_else(|| panic!("vLLM has no {}", sample.name));
        assert!(
            sample.labels.is_subset(&same.labels),
            "{}: {:?}",
            sample.name,
            sample.labels
        );
    }
    for line in page.lines().filter(|line| line.starts_with("# TYPE vllm:")) {
        let known = match line.split(' ').nth(2) {
            Some(name) if optional(name) => line.ends_with(" histogram"),
            _ => recorded.lines().any(|their| their == line),
        };
        assert!(known, "{line}");
    }
}

#[tokio::test]
async fn buckets_have_vllms_bounds() {
    let recorded = samples(&recordings::load("metrics").reply.text());
    let page = samples(&page().await);
    for name in [
        "time_to_first_token",
        "inter_token_latency",
        "e2e_request_latency",
        "request_queue_time",
        "request_prefill_time",
        "request_decode_time",
        "request_inference_time",
    ] {
        let name = format!("vllm:{name}_seconds_bucket");
        let bounds = |samples: &[Sample]| -> Vec<Option<String>> {
            let own = samples.iter().filter(|sample| sample.name == name);
            own.map(|sample| sample.bound.clone()).collect()
        };
        assert!(bounds(&recorded).len() > 15, "{name}");
        assert_eq!(bounds(&page), bounds(&recorded), "{name}");
    }
}

#[tokio::test]
async fn values_are_what_was_served() {
    let page = page().await;
    let expected = [
        ("vllm:prompt_tokens_total", "", "5.0"),
        ("vllm:generation_tokens_total", "", "4.0"),
        ("vllm:prefix_cache_queries_total", "", "5.0"),
        ("vllm:prefix_cache_hits_total", "", "2.0"),
        ("vllm:num_requests_running", "", "0.0"),
        ("vllm:kv_cache_usage_perc", "", "0.0"),
        ("vllm:time_to_first_token_seconds_count", "", "1.0"),
        ("vllm:inter_token_latency_seconds_count", "", "3.0"),
        ("vllm:e2e_request_latency_seconds_count", "", "1.0"),
        ("vllm:request_queue_time_seconds_count", "", "1.0"),
        ("vllm:request_prefill_time_seconds_count", "", "1.0"),
        ("vllm:request_decode_time_seconds_count", "", "1.0"),
        (
            "vllm:request_success_total",
            ",finished_reason=\"length\"",
            "1.0",
        ),
        (
            "vllm:request_success_total",
            ",finished_reason=\"stop\"",
            "0.0",
        ),
        ("prefillbench_kv_blocks", ",bucket=\"reclaimable\"", "24.0"),
        ("prefillbench_steps_total", "", "4.0"),
        ("prefillbench_kv_blocks", ",bucket=\"free\"", "1000.0"),
        (
            "prefillbench_kv_blocks_free_including_reclaimable",
            "",
            "1024.0",
        ),
        ("prefillbench_kv_pool_bytes", "", "1048576.0"),
        ("prefillbench_step_seconds_total", ",part=\"plan\"", "1.0"),
        (
            "prefillbench_step_seconds_total",
            ",part=\"prefill_gemm\"",
            "2.0",
        ),
        (
            "prefillbench_step_seconds_total",
            ",part=\"sampling\"",
            "0.0",
        ),
        ("prefillbench_thrash_index", "", "NaN"),
        ("vllm:external_prefix_cache_queries_total", "", "0.0"),
        ("vllm:external_prefix_cache_hits_total", "", "0.0"),
    ];
    assert_has(&page, &expected);
    assert!(!page.contains("prefillbench_tier_") && !page.contains("lora"));
    assert!(!page.contains("prefillbench_device_") && !page.contains("prefillbench_kernel_"));
    let waited = "prefillbench_lock_wait_seconds_total{engine=\"0\",model_name=\"smollm2\"} ";
    let waited = page
        .lines()
        .find_map(|line| line.strip_prefix(waited))
        .unwrap();
    // Four times commands were looked for and the state was shown.
    assert!(waited.parse::<f64>().unwrap() > 0.0, "{waited}");
}

fn assert_has(page: &str, expected: &[(&str, &str, &str)]) {
    for (name, labels, value) in expected {
        let line = format!("{name}{{engine=\"0\",model_name=\"smollm2\"{labels}}} {value}");
        assert!(page.lines().any(|l| l == line), "{line} is not in\n{page}");
    }
}

/// A core that has used everything which only some configurations use.
fn busy_core() -> FakeCore {
    let mut core = FakeCore::new(&Stage::new(None), |_| tokens(&[0]));
    core.config.tiers.host_bytes = 1 << 20;
    core.counters = Counters {
        queried_tokens: 1000,
        hit_tokens: 600,
        host_hit_tokens: 160,
        disk_hit_tokens: 40,
        swapped_in_tokens: 32,
        swapped_out_blocks: 3,
        swap_full: 2,
        failed_loads: 1,
        pinned_blocks: 5,
        in_transfer_blocks: 6,
        swapped_blocks: 7,
        ..Counters::default()
    };
    let cache = &mut core.cache;
    (cache.evicted_blocks, cache.recomputed_blocks) = (8, 2);
    for ns in [500_000, 3_000_000, 2_000_000_000] {
        cache.lifetime_ns.record(ns);
    }
    cache.reuse_distance_blocks.record(3);
    let stats = TierStats {
        hits: 10,
        misses: 4,
        bytes: 4096,
        blocks: 2,
        errors: 1,
        ..TierStats::default()
    };
    core.tiers = vec![
        (TierKind::Host, stats),
        (TierKind::Disk, TierStats::default()),
    ];
    core
}

/// What its page says: name, further labels, value.
const BUSY_PAGE: &[(&str, &str, &str)] = &[
    // 600 found, 200 of them in tiers; the tiers were asked for what the pool had not.
    ("vllm:prefix_cache_queries_total", "", "1000.0"),
    ("vllm:prefix_cache_hits_total", "", "400.0"),
    ("vllm:external_prefix_cache_queries_total", "", "600.0"),
    ("vllm:external_prefix_cache_hits_total", "", "200.0"),
    ("vllm:prompt_tokens_cached_total", "", "600.0"),
    // Half a millisecond is below the first bound, 2^20 - 1 ns; 3 ms is below 2^22 - 1 ns.
    (
        "vllm:kv_block_lifetime_seconds_bucket",
        ",le=\"0.001048575\"",
        "1.0",
    ),
    (
        "vllm:kv_block_lifetime_seconds_bucket",
        ",le=\"0.004194303\"",
        "2.0",
    ),
    (
        "vllm:kv_block_lifetime_seconds_bucket",
        ",le=\"+Inf\"",
        "3.0",
    ),
    ("vllm:kv_block_lifetime_seconds_sum", "", "2.0035"),
    ("vllm:kv_block_reuse_gap_seconds_count", "", "0.0"),
    ("prefillbench_kv_block_reuse_distance_blocks_sum", "", "3.0"),
    ("prefillbench_thrash_index", "", "0.25"),
    ("prefillbench_recomputed_blocks_total", "", "2.0"),
    ("prefillbench_kv_blocks_held", ",by=\"pin\"", "5.0"),
    ("prefillbench_kv_blocks_held", ",by=\"transfer\"", "6.0"),
    ("prefillbench_swapped_blocks", "", "7.0"),
    ("prefillbench_swapped_out_blocks_total", "", "3.0"),
    ("prefillbench_swapped_in_tokens_total", "", "32.0"),
    ("prefillbench_swap_full_total", "", "2.0"),
    ("prefillbench_tier_hits_total", ",tier=\"host\"", "10.0"),
    ("prefillbench_tier_misses_total", ",tier=\"host\"", "4.0"),
    ("prefillbench_tier_bytes", ",tier=\"host\"", "4096.0"),
    ("prefillbench_tier_blocks", ",tier=\"disk\"", "0.0"),
    ("prefillbench_tier_errors_total", ",tier=\"host\"", "1.0"),
    (
        "prefillbench_tier_hit_tokens_total",
        ",tier=\"host\"",
        "160.0",
    ),
    (
        "prefillbench_tier_hit_tokens_total",
        ",tier=\"disk\"",
        "40.0",
    ),
    ("prefillbench_tier_failed_loads_total", "", "1.0"),
];

#[tokio::test]
async fn tiers_swap_and_the_lives_of_blocks_are_shown() {
    let server = start(busy_core(), FakeText::new(&["x"]), options()).await;
    let page = client::get(server.addr, "/metrics").await.text();
    server.shut_down().await;
    assert_has(&page, BUSY_PAGE);
    assert!(
        !page.contains("tier=\"redis\""),
        "a tier that is off is not shown"
    );
}

/// A device with weights and a pool.
fn device_core() -> FakeCore {
    let mut core = FakeCore::new(&Stage::new(None), |_| tokens(&[0]));
    let memory = |purpose, bytes, peak_bytes| PurposeMemory {
        purpose,
        bytes,
        peak_bytes,
    };
    core.device = Some(DeviceMemory {
        purposes: vec![
            memory("unattributed", 0, 0),
            memory("weights", 4096, 4096),
            memory("activations", 0, 512),
        ],
        peak_bytes: 1000,
        pinned_bytes: 64,
        pool: Some(PoolMemory {
            reserved_bytes: 1 << 25,
            used_bytes: 5000,
        }),
        whole: Some(WholeMemory {
            total_bytes: 1 << 37,
            free_bytes: 1 << 36,
        }),
    });
    core
}

/// What its page says after four steps.
const DEVICE_PAGE: &[(&str, &str, &str)] = &[
    (
        "prefillbench_device_allocated_bytes",
        ",purpose=\"weights\"",
        "4096.0",
    ),
    (
        "prefillbench_device_allocated_bytes",
        ",purpose=\"activations\"",
        "0.0",
    ),
    (
        "prefillbench_device_allocated_bytes",
        ",purpose=\"unattributed\"",
        "0.0",
    ),
    (
        "prefillbench_device_allocated_peak_bytes",
        ",purpose=\"activations\"",
        "512.0",
    ),
    // Looked at again for the page: 1000 and a byte a step.
    (
        "prefillbench_device_allocated_together_peak_bytes",
        "",
        "1004.0",
    ),
    ("prefillbench_device_pinned_host_bytes", "", "64.0"),
    (
        "prefillbench_device_pool_bytes",
        ",state=\"reserved\"",
        "33554432.0",
    ),
    (
        "prefillbench_device_pool_bytes",
        ",state=\"used\"",
        "5000.0",
    ),
    (
        "prefillbench_device_memory_bytes",
        ",state=\"total\"",
        "137438953472.0",
    ),
    (
        "prefillbench_device_memory_bytes",
        ",state=\"free\"",
        "68719476736.0",
    ),
];

#[tokio::test]
async fn a_devices_memory_is_told_apart_from_the_pools_blocks() {
    let server = start(device_core(), FakeText::new(&["x"]), options()).await;
    let before = client::get(server.addr, "/metrics").await.text();
    assert_has(
        &before,
        &[(
            "prefillbench_device_allocated_together_peak_bytes",
            "",
            "1000.0",
        )],
    );
    let body = json!({ "prompt": "x", "max_tokens": 4 });
    let reply = client::post(server.addr, "/v1/completions", &body).await;
    assert_eq!(reply.status, 200);
    let mut page = client::get(server.addr, "/metrics").await.text();
    for _ in 0..100 {
        // An engine that does not look in time leaves what it said before.
        let stale = |line: &str| line.contains("together_peak") && line.ends_with(" 1000.0");
        if !page.lines().any(stale) {
            break;
        }
        page = client::get(server.addr, "/metrics").await.text();
    }
    server.shut_down().await;
    assert_has(&page, DEVICE_PAGE);
    assert_has(
        &page,
        &[("prefillbench_kv_blocks", ",bucket=\"free\"", "1000.0")],
    );
}

#[tokio::test]
async fn times_of_kernels_are_told_in_full_and_as_counters() {
    let mut core = FakeCore::new(&Stage::new(None), |_| tokens(&[0]));
    let total = |kernel: &str, launches, time, overhead| KernelTotal {
        kernel: kernel.to_owned(),
        launches,
        time: Nanos(time),
        overhead: Nanos(overhead),
    };
    core.kernels = vec![
        total("gemm_bf16", 24, 1_500_000_000, 48_000),
        total("rmsnorm_bf16", 5, 250, 10),
    ];
    let server = start(core, FakeText::new(&["x"]), options()).await;
    let times = client::get(server.addr, "/kernel_times").await;
    let page = client::get(server.addr, "/metrics").await.text();
    server.shut_down().await;
    assert_eq!(times.status, 200);
    let expected = json!({ "kernels": [
        { "kernel": "gemm_bf16", "launches": 24, "time_ns": 1_500_000_000, "overhead_ns": 48_000 },
        { "kernel": "rmsnorm_bf16", "launches": 5, "time_ns": 250, "overhead_ns": 10 },
    ] });
    assert_eq!(times.json(), expected);
    let gemm = ",kernel=\"gemm_bf16\"";
    let expected = [
        ("prefillbench_kernel_launches_total", gemm, "24.0"),
        ("prefillbench_kernel_seconds_total", gemm, "1.5"),
        ("prefillbench_kernel_overhead_seconds_total", gemm, "4.8e-5"),
        (
            "prefillbench_kernel_launches_total",
            ",kernel=\"rmsnorm_bf16\"",
            "5.0",
        ),
    ];
    assert_has(&page, &expected);
}

#[tokio::test]
async fn a_server_that_times_no_kernels_says_how_to() {
    let core = FakeCore::new(&Stage::new(None), |_| tokens(&[0]));
    let server = start(core, FakeText::new(&["x"]), options()).await;
    let times = client::get(server.addr, "/kernel_times").await;
    server.shut_down().await;
    assert_eq!(times.status, 404);
    let text = times.text();
    assert!(
        text.contains("--device-times N") && text.contains("NotFoundError"),
        "{text}"
    );
}
