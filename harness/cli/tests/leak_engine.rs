//! `leak` against the engine of this project, healthy and with its isolation fault planted. The
//! binary refuses to serve a planted fault, so the server runs here.

mod common;
mod planted;

use common::{run, stderr, stdout};
use pb_contract::Fault;
use planted::{MODEL, Planted, config};
use serde_json::Value;

/// Probes it with prompts of six blocks.
fn probe(engine: &Planted, trials: &str, args: &[&str]) -> Value {
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("run");
    let url = format!("http://{}", engine.address);
    let fixed = [
        "leak",
        "--base-url",
        &url,
        "--model",
        MODEL,
        "--prompt-len",
        "96",
    ];
    let ids = [
        "--random-range-ids",
        "32..200",
        "--trials",
        trials,
        "--json",
        "--out",
    ];
    let out = [out.to_str().expect("UTF-8")];
    let output = run(&[&fixed[..], &ids, &out, args].concat());
    let text = stdout(&output);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}{}", stderr(&output)))
}

/// CVE-2025-46570; vllm #16016: the planted fault leaves the salt out of a block's name.
#[test]
fn row_92_the_planted_missing_key_is_found() {
    let engine = Planted::start(config(Fault::MissingSaltKey));
    let doc = probe(&engine, "20", &[]);
    eprintln!("{doc:#}");
    assert_eq!(doc["verdict"], "leaks", "{doc}");
    // Five whole blocks of the 96 tokens: the last token must be computed.
    let other = &doc["arms"][1];
    assert_eq!(
        (&other["usage_hits"], &other["cached_tokens_max"]),
        (&20.into(), &80.into())
    );
}

/// With 400 trials an engine that isolates is shown to by timing alone 998 times in 1000, on a
/// machine that is quiet enough; one that is not leaves it open, and neither calls it a leak.
#[test]
fn row_92_the_healthy_engine_passes_and_shares_without_salts() {
    let engine = Planted::start(config(Fault::None));
    let mut doc = Value::Null;
    for _ in 0..3 {
        doc = probe(&engine, "400", &[]);
        let [same, other] = [0, 1].map(|arm| &doc["arms"][arm]);
        assert_eq!(
            (&same["usage_hits"], &other["usage_hits"]),
            (&400.into(), &0.into())
        );
        if doc["verdict"] == "isolated" {
            break;
        }
        let undecided = doc["reasons"].to_string().contains("times do not decide");
        assert!(doc["verdict"] == "inconclusive" && undecided, "{doc}");
    }
    eprintln!("{}", doc["verdict"]);
    let doc = probe(&engine, "20", &["--no-salt"]);
    assert_eq!(doc["verdict"], "leaks", "{doc}");
}
