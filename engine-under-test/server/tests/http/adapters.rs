//! Adapters and priorities: what a request's `model` and `priority` choose.

use pb_contract::QueueOrder;
use serde_json::{Value, json};

use crate::client::{self, Open};
use crate::fake_core::{FakeCore, Stage, tokens};
use crate::fake_text::FakeText;
use crate::setup::{options, start, start_adapted};

fn text() -> FakeText {
    FakeText {
        chat: "x".to_owned(),
        ..FakeText::new(&["x", "y"])
    }
}

#[tokio::test]
async fn the_models_name_chooses_the_adapter() {
    let stage = Stage::new(None);
    let core = FakeCore::new(&stage, |_| tokens(&[0]));
    let server = start_adapted(core, text(), &["sql", "poems"]).await;
    let messages = json!([{ "role": "user", "content": "hi" }]);
    let mut answered = Vec::new();
    for model in [json!("poems"), json!("smollm2"), Value::Null, json!("sql")] {
        let body = json!({ "model": model, "prompt": "x", "max_tokens": 1 });
        let reply = client::post(server.addr, "/v1/completions", &body).await;
        answered.push(reply.json()["model"].clone());
        let body = json!({ "model": model, "messages": messages, "max_tokens": 1, "stream": true });
        let reply = client::post(server.addr, "/v1/chat/completions", &body).await;
        let event: Value = serde_json::from_str(&reply.events()[0]).unwrap();
        answered.push(event["model"].clone());
    }
    let names = ["poems", "smollm2", "smollm2", "sql"];
    let twice: Vec<&str> = names.into_iter().flat_map(|name| [name, name]).collect();
    assert_eq!(answered, twice, "the answer names what was asked for");
    let chosen: Vec<Option<String>> = stage.added().into_iter().map(|r| r.adapter).collect();
    let base = |name: &str| (name != "smollm2").then(|| name.to_owned());
    assert_eq!(chosen, twice.into_iter().map(base).collect::<Vec<_>>());
    server.shut_down().await;
}

#[tokio::test]
async fn an_unknown_adapter_is_not_found() {
    let stage = Stage::new(None);
    let core = FakeCore::new(&stage, |_| tokens(&[0]));
    let server = start_adapted(core, text(), &["sql"]).await;
    let bodies = [
        ("/v1/completions", json!({ "model": "sq", "prompt": "x" })),
        (
            "/v1/chat/completions",
            json!({ "model": "sq", "messages": [{ "role": "user", "content": "x" }] }),
        ),
        ("/tokenize", json!({ "model": "sq", "prompt": "x" })),
    ];
    for (path, body) in bodies {
        let reply = client::post(server.addr, path, &body).await;
        assert_eq!(reply.status, 404, "{path}");
        let error = reply.error();
        assert_eq!(
            (&error["type"], &error["param"]),
            (&json!("NotFoundError"), &json!("model"))
        );
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("`sq` does not exist"), "{message}");
        assert!(message.contains("smollm2, sql"), "{message}");
    }
    let reply = client::post(
        server.addr,
        "/tokenize",
        &json!({ "model": "sql", "prompt": "x" }),
    )
    .await;
    assert_eq!(reply.status, 200);
    assert!(stage.added().is_empty());
    server.shut_down().await;
}

#[tokio::test]
async fn adapters_are_listed_with_their_parent() {
    let core = FakeCore::new(&Stage::new(None), |_| tokens(&[0]));
    let server = start_adapted(core, text(), &["sql", "poems"]).await;
    let listed = client::get(server.addr, "/v1/models").await.json();
    let cards: Vec<Value> = listed["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|card| {
            json!([
                card["id"],
                card["parent"],
                card["root"],
                card["max_model_len"]
            ])
        })
        .collect();
    // vLLM's cards of adapters have no length.
    let expected = [
        json!(["smollm2", null, "fake", 8192]),
        json!(["sql", "smollm2", "adapters/sql", null]),
        json!(["poems", "smollm2", "adapters/poems", null]),
    ];
    assert_eq!(cards, expected);
    let info = client::get(server.addr, "/server_info").await.json();
    assert_eq!(info["adapters"][1]["name"], "poems");
    assert_eq!(info["adapters"][1]["digest"], "11".repeat(32));
    server.shut_down().await;
}

#[tokio::test]
async fn the_page_counts_requests_by_adapter() {
    let stage = Stage::new(Some(1));
    let mut core = FakeCore::new(&stage, |_| tokens(&[0]));
    core.config.max_model_len = 1 << 20;
    let server = start_adapted(core, text(), &["sql", "poems"]).await;
    let body = json!({ "model": "sql", "prompt": "x", "max_tokens": 9000, "n": 2, "stream": true });
    let mut open = Open::post(server.addr, "/v1/completions", &body).await;
    open.read_until(|text| text.contains("data: {")).await;
    let page = client::get(server.addr, "/metrics").await.text();
    let labels = |adapter: &str, state: &str| {
        format!(
            "prefillbench_adapter_requests{{engine=\"0\",model_name=\"smollm2\",\
             adapter=\"{adapter}\",state=\"{state}\"}}"
        )
    };
    for line in [
        labels("sql", "running") + " 2.0",
        labels("sql", "waiting") + " 0.0",
        labels("poems", "running") + " 0.0",
    ] {
        assert!(page.lines().any(|l| l == line), "{line}\n{page}");
    }
    let info = "vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"sql\",\
                waiting_lora_adapters=\"\"} ";
    assert!(page.contains(info), "{page}");
    drop(open);
    stage.open();
    stage
        .wait(2, |call| matches!(call, crate::fake_core::Call::Aborted(_)))
        .await;
    // An answer means that the commands before it have been obeyed.
    client::post(server.addr, "/reset_prefix_cache", &json!({})).await;
    let page = client::get(server.addr, "/metrics").await.text();
    let line = labels("sql", "running") + " 0.0";
    assert!(page.lines().any(|l| l == line), "{line}\n{page}");
    server.shut_down().await;
}

#[tokio::test]
async fn a_priority_is_heeded_or_refused() {
    let body = |priority: Value| json!({ "prompt": "x", "max_tokens": 1, "priority": priority });
    let stage = Stage::new(None);
    let mut core = FakeCore::new(&stage, |_| tokens(&[0]));
    core.config.scheduling.queue = QueueOrder::Priority;
    let server = start(core, text(), options()).await;
    for priority in [json!(-3), json!(7.0), Value::Null] {
        let reply = client::post(server.addr, "/v1/completions", &body(priority)).await;
        assert_eq!(reply.status, 200);
    }
    let priorities: Vec<i64> = stage.added().iter().map(|r| r.priority).collect();
    assert_eq!(priorities, [-3, 7, 0]);
    server.shut_down().await;

    // Without that queue order nobody would heed it; vLLM refuses it in these words.
    let core = FakeCore::new(&Stage::new(None), |_| tokens(&[0]));
    let server = start(core, text(), options()).await;
    let reply = client::post(server.addr, "/v1/completions", &body(json!(1))).await;
    assert_eq!(
        (reply.status, &reply.error()["param"]),
        (400, &json!("priority"))
    );
    let message = reply.error()["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("Got priority 1 but Priority scheduling is not enabled."));
    let reply = client::post(server.addr, "/v1/completions", &body(json!(0))).await;
    assert_eq!(reply.status, 200);
    server.shut_down().await;
}
