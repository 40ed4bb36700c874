//! The Prometheus page against the recorded page of a real vLLM server.

use std::collections::BTreeSet;

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
    for sample in vllm {
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
        assert!(recorded.lines().any(|their| their == line), "{line}");
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
        ("prefillbench:kv_blocks", ",bucket=\"reclaimable\"", "24.0"),
        ("prefillbench:steps_total", "", "4.0"),
    ];
    for (name, labels, value) in expected {
        let line = format!("{name}{{engine=\"0\",model_name=\"smollm2\"{labels}}} {value}");
        assert!(page.lines().any(|l| l == line), "{line} is not in\n{page}");
    }
}
