//! Two answers become one.

use pb_router::Pool;
use serde_json::json;

use crate::setup::{options, pair, post, start};
use crate::worker::{Worker, answer, chunk, stream, stream_end, stream_head};

pub(crate) const PROMPT: &str =
    r#"{"model":"m","prompt":[1,2,3,4,5],"max_tokens":3,"stream":true}"#;
pub(crate) const WHOLE: &str = r#"{"model":"m","prompt":[1,2,3,4,5],"max_tokens":3}"#;

/// Of the prefill worker: the first token, then where its KV is.
pub(crate) const FIRST: &str = "\
    {\"id\":\"cmpl-p\",\"object\":\"text_completion\",\"created\":1,\"model\":\"m\",\
    \"choices\":[{\"index\":0,\"text\":\"A\",\"finish_reason\":null}]}";
pub(crate) const PARAMS: &str = "\
    {\"do_remote_prefill\":true,\"remote_engine_id\":\"e\",\"remote_host\":\"127.0.0.1\",\
    \"remote_port\":9,\"transfer_id\":77,\"remote_block_size\":4,\"num_tokens\":5,\
    \"first_token\":65,\"finished\":false}";

pub(crate) fn end_of_prefill(params: &str) -> String {
    format!(
        "\
            {{\"id\":\"cmpl-p\",\"object\":\"text_completion\",\"created\":1,\"model\":\"m\",\
            \"choices\":[{{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}}],\
            \"kv_transfer_params\":{params}}}"
    )
}

pub(crate) fn event(text: &str, finish: &str) -> String {
    format!(
        "\
            {{\"id\":\"cmpl-d\",\"object\":\"text_completion\",\"created\":2,\"model\":\"m\",\
            \"choices\":[{{\"index\":0,\"text\":\"{text}\",\"finish_reason\":{finish}}}]}}"
    )
}

#[tokio::test]
async fn a_stream_of_two_workers_is_one_stream() {
    let (prefill, decode, running) = pair().await;
    prefill.script(stream(&[FIRST, &end_of_prefill(PARAMS)]));
    decode.script(stream(&[&event("B", "null"), &event("C", "\"length\"")]));
    let reply = post(running.addr, "/v1/completions", PROMPT).await;
    assert_eq!(reply.status, 200);
    let renamed = |text: &str, finish: &str| {
        event(text, finish)
            .replace("cmpl-d", "cmpl-p")
            .replace("\"created\":2", "\"created\":1")
    };
    assert_eq!(
        reply.events(),
        [
            FIRST,
            &renamed("B", "null"),
            &renamed("C", "\"length\""),
            "[DONE]"
        ]
    );
    assert_eq!(reply.header("x-prefillbench-route"), Some("split"));
    assert_eq!(reply.header("x-prefillbench-retries"), Some("0"));
    assert_eq!(
        reply.header("content-type"),
        Some("text/event-stream; charset=utf-8")
    );
    // Each worker got the request as it was, with its own word on the KV.
    let (first, second) = (prefill.seen()[0].json(), decode.seen()[0].json());
    let mut expected: serde_json::Value = serde_json::from_str(PROMPT).unwrap();
    expected["kv_transfer_params"] = json!({ "do_remote_decode": true });
    assert_eq!(first, expected);
    expected["kv_transfer_params"] = serde_json::from_str(PARAMS).unwrap();
    assert_eq!(second, expected);
}

#[tokio::test]
async fn events_may_be_cut_anywhere() {
    let (prefill, decode, running) = pair().await;
    let text = format!(
        "data: {FIRST}\r\n\r\n: a comment\ndata: {}\n\n",
        end_of_prefill(PARAMS)
    );
    let mut steps = vec![stream_head()];
    steps.extend(
        text.as_bytes()
            .chunks(7)
            .map(|part| chunk(std::str::from_utf8(part).unwrap())),
    );
    // Without [DONE]: all has been said.
    steps.push(stream_end());
    prefill.script(steps);
    let mut steps = vec![stream_head()];
    let text = format!("data: {}\n\ndata: [DONE]\n\n", event("B", "\"stop\""));
    steps.extend(
        text.as_bytes()
            .chunks(3)
            .map(|part| chunk(std::str::from_utf8(part).unwrap())),
    );
    steps.push(stream_end());
    decode.script(steps);
    let reply = post(running.addr, "/v1/completions", PROMPT).await;
    let events = reply.events();
    assert_eq!(events.len(), 3, "{events:?}");
    assert_eq!(events[0], FIRST);
    assert_eq!(events[2], "[DONE]");
}

#[tokio::test]
async fn an_answer_of_two_workers_is_one_answer() {
    let (prefill, decode, running) = pair().await;
    let of = |id: &str, text: &str, finish: &str, count: u32, cached: u32| {
        json!({
            "id": id, "object": "text_completion", "created": 3, "model": "m",
            "choices": [{ "index": 0, "text": text, "finish_reason": finish }],
            "usage": { "prompt_tokens": 5, "total_tokens": 5 + count, "completion_tokens": count,
                       "prompt_tokens_details": { "cached_tokens": cached } },
        })
    };
    let mut first = of("p", "A", "length", 1, 4);
    first["kv_transfer_params"] = serde_json::from_str(PARAMS).unwrap();
    prefill.script(answer("200 OK", &first.to_string()));
    decode.script(answer("200 OK", &of("d", "BC", "stop", 3, 0).to_string()));
    let reply = post(running.addr, "/v1/completions", WHOLE).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.json(), of("p", "ABC", "stop", 3, 4));
    assert_eq!(reply.header("x-prefillbench-route"), Some("split"));
}

#[tokio::test]
async fn a_chat_of_two_workers_is_one_chat() {
    let (prefill, decode, running) = pair().await;
    let chat = |id: &str, delta: &str, finish: &str| {
        format!(
            "\
                {{\"id\":\"{id}\",\"object\":\"chat.completion.chunk\",\"created\":1,\
                \"model\":\"m\",\"choices\":[{{\"index\":0,\"delta\":{delta},\
                \"finish_reason\":{finish}}}]}}"
        )
    };
    let usage = |id: &str, count: u32, cached: u32, params: &str| {
        format!(
            "\
                {{\"id\":\"{id}\",\"object\":\"chat.completion.chunk\",\"created\":1,\
                \"model\":\"m\",\"choices\":[],\"usage\":{{\"prompt_tokens\":9,\
                \"completion_tokens\":{count},\
                \"prompt_tokens_details\":{{\"cached_tokens\":{cached}}}}}{params}}}"
        )
    };
    let role = r#"{"role":"assistant","content":""}"#;
    let params = format!(r#","kv_transfer_params":{PARAMS}"#);
    prefill.script(stream(&[
        &chat("p", role, "null"),
        &chat("p", r#"{"content":"A"}"#, "\"length\""),
        &usage("p", 1, 4, &params),
    ]));
    decode.script(stream(&[
        &chat("d", role, "null"),
        &chat("d", r#"{"content":"B"}"#, "\"stop\""),
        &usage("d", 2, 8, ""),
    ]));
    let body = "\
        {\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true,\
        \"stream_options\":{\"include_usage\":true}}";
    let reply = post(running.addr, "/v1/chat/completions", body).await;
    assert_eq!(
        reply.events(),
        [
            chat("p", role, "null"),
            chat("p", r#"{"content":"A"}"#, "null"),
            chat("p", r#"{"content":"B"}"#, "\"stop\""),
            usage("p", 2, 4, ""),
            "[DONE]".to_owned()
        ]
    );
    assert_eq!(prefill.seen()[0].path, "/v1/chat/completions");
}

#[tokio::test]
async fn a_request_that_ends_with_its_first_token_is_not_handed_over() {
    let (prefill, decode, running) = pair().await;
    let done = PARAMS.replace("\"finished\":false", "\"finished\":true");
    let only = end_of_prefill(&done).replace("\"text\":\"\"", "\"text\":\"A\"");
    prefill.script(stream(&[&only]));
    let reply = post(running.addr, "/v1/completions", PROMPT).await;
    let told = only.replace(&format!(",\"kv_transfer_params\":{done}"), "");
    assert_eq!(reply.events(), [told.as_str(), "[DONE]"]);
    prefill.script(answer("200 OK", &only));
    let reply = post(running.addr, "/v1/completions", WHOLE).await;
    assert_eq!(reply.text(), told);
    assert!(decode.seen().is_empty());
}

#[tokio::test]
async fn what_one_worker_does_is_passed_on_as_it_is() {
    let worker = Worker::of("both").await;
    let running = start(options(&[(Pool::Mixed, &worker)])).await;
    let events = [
        r#"{"id":"x","choices":[{"index":1,"text":"ä"}]}"#,
        r#"{"y": 2}"#,
    ];
    worker.script(stream(&events));
    let reply = post(running.addr, "/v1/completions", PROMPT).await;
    assert_eq!(reply.events(), [events[0], events[1], "[DONE]"]);
    assert_eq!(reply.header("x-prefillbench-route"), Some("whole"));
    worker.script(answer("200 OK", r#"{"any": "thing"}"#));
    let reply = post(running.addr, "/v1/completions", WHOLE).await;
    assert_eq!(reply.text(), r#"{"any": "thing"}"#);
    // Byte for byte what the client sent.
    assert_eq!(worker.seen()[1].body, WHOLE.as_bytes());
}

#[tokio::test]
async fn several_choices_go_to_one_worker() {
    let (prefill, decode, running) = pair().await;
    decode.script(answer("200 OK", "{}"));
    let body = r#"{"model":"m","prompt":[1,2],"n":2}"#;
    let reply = post(running.addr, "/v1/completions", body).await;
    assert_eq!(reply.header("x-prefillbench-route"), Some("whole"));
    assert!(prefill.seen().is_empty());
    assert_eq!(decode.seen()[0].body, body.as_bytes());
}
