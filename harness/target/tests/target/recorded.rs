//! What real servers said: recordings of vLLM 0.32 and llama.cpp's server. The expected figures
//! were read from the pages by eye.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use pb_load::control::Exchange;
use pb_target::detect::judge;
use pb_target::{Counters, Exposition, Recovered, ServerKind, ServerStats};
use serde_json::Value;

/// Finds a recording in the repository, or in the shared folder beside it.
fn recording(name: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let places = ["golden/streams", "../shared/golden/streams"];
    let found = places.map(|place| root.join(place).join(format!("{name}.json")));
    let found = found.into_iter().find(|path| path.exists());
    if found.is_none() {
        println!("skipped: no recording {name}");
    }
    found
}

/// The response of a recording.
pub(crate) fn response(name: &str) -> Option<Exchange> {
    let text = std::fs::read_to_string(recording(name)?).unwrap();
    let recorded: Value = serde_json::from_str(&text).unwrap();
    let reads = recorded["reads"].as_array().unwrap();
    let decode = |read: &Value| BASE64_STANDARD.decode(read[1].as_str().unwrap()).unwrap();
    let bytes: Vec<u8> = reads.iter().flat_map(decode).collect();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let mut lines = head.lines();
    let status = lines
        .next()
        .unwrap()
        .split(' ')
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    let header = |line: &str| {
        let (name, value) = line.split_once(':').unwrap();
        (name.to_ascii_lowercase(), value.trim().to_owned())
    };
    let headers = lines.map(header).collect();
    Some(Exchange {
        status,
        headers,
        body: body.to_owned(),
    })
}

#[test]
fn vllm_metrics() {
    let Some(answer) = response("vllm_metrics") else {
        return;
    };
    let page = Exposition::parse(&answer.body);
    assert_eq!(page.rejected, []);
    let lines = answer
        .body
        .lines()
        .filter(|l| !l.starts_with('#') && !l.is_empty())
        .count();
    assert_eq!(page.samples.len(), lines);
    let stats = ServerStats::read(&page);
    assert_eq!((stats.running, stats.waiting), (Some(1.0), Some(0.0)));
    assert_eq!(stats.kv_usage, Some(0.0013755158184318717));
    assert_eq!(stats.block_size, Some(128));
    let expected = Counters {
        hit_tokens: Some(0),
        query_tokens: Some(938),
        external_hit_tokens: Some(0),
        preemptions: Some(0),
        prompt_tokens: Some(938),
        generation_tokens: Some(108),
    };
    assert_eq!(stats.counters, expected);
    assert!(stats.problems.is_empty(), "{:?}", stats.problems);

    let ttft = stats.latencies.ttft.unwrap();
    assert_eq!((ttft.count, ttft.bounds_s.len()), (10, 22));
    assert_eq!(ttft.mean_s(), Some(0.656847071647644));
    let between = |low_s, high_s| Recovered::Between { low_s, high_s };
    assert_eq!(ttft.quantile(0.5), between(0.1, 0.25));
    assert_eq!(ttft.quantile(0.99), between(2.5, 5.0));
    // All nine waits lie below the lowest bound.
    let queue = stats.latencies.queue.unwrap();
    assert!(matches!(
        queue.quantile(0.5),
        Recovered::NotRecoverable { .. }
    ));
    assert_eq!(stats.latencies.itl.unwrap().count, 98);
    assert_eq!(stats.latencies.e2e.unwrap().count, 9);
}

#[test]
fn llama_cpp_metrics() {
    let Some(answer) = response("llamacpp_metrics") else {
        return;
    };
    let stats = ServerStats::read(&Exposition::parse(&answer.body));
    assert_eq!((stats.running, stats.waiting), (Some(1.0), Some(0.0)));
    let expected = Counters {
        hit_tokens: Some(55),
        query_tokens: Some(880 + 55),
        external_hit_tokens: None,
        preemptions: None,
        prompt_tokens: Some(880 + 55),
        generation_tokens: Some(105),
    };
    assert_eq!(stats.counters, expected);
    assert_eq!(stats.latencies.all(), [None; 4]);
}

#[test]
fn kinds_of_recorded_servers() {
    let servers = [
        ("vllm", ServerKind::Vllm),
        ("llamacpp", ServerKind::LlamaCpp),
    ];
    for (prefix, kind) in servers {
        let routes = [("/v1/models", "models"), ("/metrics", "metrics")];
        let mut answers = Vec::new();
        for (route, name) in routes {
            if let Some(answer) = response(&format!("{prefix}_{name}")) {
                answers.push((route, answer));
            }
        }
        if !answers.is_empty() {
            let found = judge(&answers);
            assert_eq!(found.found, kind, "{found}");
            assert!(found.clues.len() >= 2, "{found}");
        }
    }
}
