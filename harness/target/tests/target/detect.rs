//! Which kind of server it is.

use pb_load::control::Exchange;
use pb_target::detect::judge;
use pb_target::{Patience, ServerKind, Target};

use crate::fake::{Fake, Options};

#[tokio::test]
async fn every_kind_is_told_by_its_own_evidence() {
    for kind in ServerKind::ALL {
        let fake = Fake::start(Options::of(kind)).await;
        let target = fake.target().await;
        assert_eq!(target.kind(), kind, "{}", target.detection());
    }
}

#[tokio::test]
async fn version_and_evidence_are_reported_and_can_be_overruled() {
    let fake = Fake::start(Options::of(ServerKind::LlamaCpp)).await;
    let shown = fake.target().await.detection().to_string();
    for part in [
        "llama-cpp b1: ",
        "owned_by \"llamacpp\" at /v1/models",
        "llamacpp:* at /metrics",
    ] {
        assert!(shown.contains(part), "{shown}");
    }
    let given = Some(ServerKind::Vllm);
    let target = Target::connect(&fake.endpoint(), given, Patience::default())
        .await
        .unwrap();
    assert_eq!(target.adapter().kind, ServerKind::Vllm);
    let shown = target.detection().to_string();
    assert!(
        shown.contains("vllm b1 (given; the evidence says llama-cpp)"),
        "{shown}"
    );
}

#[tokio::test]
async fn no_evidence_is_unknown() {
    let fake = Fake::start(Options::of(ServerKind::Unknown)).await;
    assert_eq!(
        fake.target().await.detection().to_string(),
        "unknown: no evidence"
    );
}

fn ok(body: &str, headers: &[(&str, &str)]) -> Exchange {
    let own = |(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned());
    let headers = headers.iter().map(own).collect();
    Exchange {
        status: 200,
        headers,
        body: body.to_owned(),
    }
}

#[test]
fn borrowed_names_do_not_outweigh_a_servers_own() {
    let models = ok(r#"{"data":[{"owned_by":"prefillbench"}]}"#, &[]);
    let page = ok("vllm:num_requests_running 0\n", &[]);
    let version = ok(r#"{"version":"1"}"#, &[]);
    let answers = [
        ("/v1/models", models),
        ("/metrics", page),
        ("/version", version),
    ];
    assert_eq!(judge(&answers).found, ServerKind::OwnEngine);
}

#[test]
fn a_tie_is_unknown_and_error_answers_are_no_evidence() {
    let vllm = ok(r#"{"data":[{"owned_by":"vllm"}]}"#, &[]);
    let header = ok("", &[("server", "llama.cpp")]);
    let tie = judge(&[("/v1/models", vllm.clone()), ("/info", header)]);
    assert_eq!((tie.found, tie.clues.len()), (ServerKind::Unknown, 2));
    let error = Exchange {
        status: 500,
        ..vllm
    };
    assert_eq!(judge(&[("/v1/models", error)]).found, ServerKind::Unknown);
}
