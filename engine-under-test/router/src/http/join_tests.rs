//! What is joined, by hand.

use super::join::{JoinError, Joined, Joiner, PARAMS, join_whole, take_params};
use serde_json::{Value, json};

const P: &str = r#""kv_transfer_params":{"do_remote_prefill":true,"transfer_id":7,"finished":"#;

/// Events for the client, as text.
fn told(joined: Result<Joined, JoinError>) -> Vec<String> {
    match joined.unwrap() {
        Joined::Events(events) => events
            .into_iter()
            .map(|event| String::from_utf8(event).unwrap())
            .collect(),
        Joined::End => vec!["END".to_owned()],
    }
}

fn completion(id: &str, text: &str, finish: &str, more: &str) -> String {
    format!(
        "\
            {{\"id\":\"{id}\",\"object\":\"text_completion\",\"created\":{},\
            \"choices\":[{{\"index\":0,\"text\":\"{text}\",\
            \"finish_reason\":{finish}}}]{more}}}",
        if id == "p" { 1 } else { 2 }
    )
}

#[test]
fn a_token_that_comes_with_the_parameters() {
    let mut joiner = Joiner::default();
    let event = completion("p", "A", "\"length\"", &format!(",{P}false}}"));
    let first = told(joiner.prefill(event.as_bytes()));
    assert_eq!(first, [completion("p", "A", "null", "")]);
    assert_eq!(told(joiner.prefill(b"[DONE]")), ["END"]);
    assert_eq!(joiner.params().unwrap().rest["transfer_id"], 7);
    let second = completion("d", "B", "\"stop\"", "");
    assert_eq!(
        told(joiner.decode(second.as_bytes())),
        [completion("p", "B", "\"stop\"", "")]
    );
    assert_eq!(told(joiner.decode(b"[DONE]")), ["END"]);
}

#[test]
fn a_token_that_comes_before_the_parameters_is_not_kept_back() {
    let mut joiner = Joiner::default();
    let token = completion("p", "A", "null", "");
    assert_eq!(told(joiner.prefill(token.as_bytes())), [token]);
    assert_eq!(joiner.params(), None);
    let last = completion("p", "", "\"length\"", &format!(",{P}false}}"));
    assert_eq!(told(joiner.prefill(last.as_bytes())), Vec::<String>::new());
    assert!(!joiner.params().unwrap().finished);
}

#[test]
fn an_end_is_told_when_it_is_one() {
    // With the parameters behind it, and the usage too.
    let mut joiner = Joiner::default();
    let token = completion("p", "A", "\"stop\"", "");
    assert!(told(joiner.prefill(token.as_bytes())).is_empty());
    let usage = format!(r#"{{"id":"p","choices":[],"usage":{{"prompt_tokens":3}},{P}true}}}}"#);
    assert_eq!(
        told(joiner.prefill(usage.as_bytes())),
        [
            token,
            r#"{"id":"p","choices":[],"usage":{"prompt_tokens":3}}"#.to_owned()
        ]
    );
    assert_eq!(told(joiner.prefill(b"[DONE]")), ["END"]);
    // And when it is none.
    let mut joiner = Joiner::default();
    let token = completion("p", "A", "\"length\"", "");
    assert!(told(joiner.prefill(token.as_bytes())).is_empty());
    let usage = format!(r#"{{"choices":[],"usage":{{"prompt_tokens":3}},{P}false}}}}"#);
    assert_eq!(
        told(joiner.prefill(usage.as_bytes())),
        [completion("p", "A", "null", "")]
    );
}

#[test]
fn a_chat_has_one_role_and_one_usage() {
    let mut joiner = Joiner::default();
    let chat = |id: &str, delta: &str, finish: &str| {
        format!(
            "\
                {{\"id\":\"{id}\",\"created\":5,\"choices\":[{{\"index\":0,\
                \"delta\":{delta},\"finish_reason\":{finish}}}]}}"
        )
    };
    let role = chat("p", r#"{"role":"assistant","content":""}"#, "null");
    assert_eq!(told(joiner.prefill(role.as_bytes())), [role]);
    let token = chat("p", r#"{"content":"A"}"#, "null");
    assert_eq!(told(joiner.prefill(token.as_bytes())), [token]);
    let usage = format!(
        "\
            {{\"id\":\"p\",\"choices\":[],\"usage\":{{\"prompt_tokens\":9,\
            \"completion_tokens\":1,\"prompt_tokens_details\":{{\"cached_tokens\":4}}}},\
            {P}false}}}}"
    );
    assert!(told(joiner.prefill(usage.as_bytes())).is_empty());
    let role = chat("d", r#"{"role":"assistant","content":""}"#, "null");
    assert!(told(joiner.decode(role.as_bytes())).is_empty());
    let both = chat("d", r#"{"role":"assistant","content":"B"}"#, "null");
    assert_eq!(
        told(joiner.decode(both.as_bytes())),
        [chat("p", r#"{"content":"B"}"#, "null")]
    );
    let end = chat("d", r#"{"content":""}"#, "\"stop\"");
    assert_eq!(
        told(joiner.decode(end.as_bytes())),
        [chat("p", r#"{"content":""}"#, "\"stop\"")]
    );
    // KV from another worker is not what this answer calls cached.
    let usage = b"\
        {\"id\":\"d\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\
        \"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":8}}}";
    assert_eq!(
        told(joiner.decode(usage)),
        ["\
                {\"id\":\"p\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\
                \"completion_tokens\":2,\"prompt_tokens_details\":{\"cached_tokens\":4}}}"]
    );
}

#[test]
fn marks_of_a_last_event_go_with_its_finish() {
    let told_of = |event: &str| {
        let mut joiner = Joiner::default();
        told(joiner.prefill(format!("{{{event},{P}false}}}}").as_bytes()))
    };
    let chat = "\
        \"choices\":[{\"delta\":{\"content\":\"A\"},\"finish_reason\":\"length\",\
        \"stop_reason\":null}],\"system_fingerprint\":\"f\"";
    assert_eq!(
        told_of(chat),
        [r#"{"choices":[{"delta":{"content":"A"},"finish_reason":null}]}"#]
    );
    let completion = "\
        \"choices\":[{\"text\":\"A\",\"finish_reason\":\"length\",\"stop_reason\":7}],\
        \"system_fingerprint\":\"f\"";
    assert_eq!(
        told_of(completion),
        [r#"{"choices":[{"text":"A","finish_reason":null,"stop_reason":null}]}"#]
    );
}

#[test]
fn errors_and_nonsense_are_told_apart() {
    let mut joiner = Joiner::default();
    let error = br#"{"error":{"message":"m","code":503}}"#;
    assert!(matches!(
        joiner.prefill(error),
        Err(JoinError::Worker { status: 503, .. })
    ));
    assert!(matches!(
        joiner.decode(error),
        Err(JoinError::Worker { .. })
    ));
    for nonsense in [&b"{"[..], b"3", b"[DONE]"] {
        assert!(matches!(
            Joiner::default().prefill(nonsense),
            Err(JoinError::Protocol(_))
        ));
    }
    let bad = format!(
        "{{\"choices\":[],{}",
        P.replace("\"finished\":", "\"finished\":3}}")
    );
    assert!(matches!(
        joiner.prefill(bad.as_bytes()),
        Err(JoinError::Protocol(_))
    ));
}

#[test]
fn whole_answers() {
    let prefill = json!({
        "id": "p", "choices": [{"index": 0, "text": "A", "token_ids": [1],
            "finish_reason": "length", "stop_reason": null}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 1,
            "prompt_tokens_details": {"cached_tokens": 4}},
        "kv_transfer_params": {"transfer_id": 3, "finished": false},
    });
    let (prefill, params) = take_params(prefill.to_string().as_bytes()).unwrap();
    assert!(!params.finished && !prefill.contains_key(PARAMS));
    let decode = json!({
        "id": "d", "choices": [{"index": 0, "text": "BC", "token_ids": [2, 3],
            "finish_reason": "stop", "stop_reason": "X"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3,
            "prompt_tokens_details": {"cached_tokens": 8}},
    });
    let joined = join_whole(prefill, decode.to_string().as_bytes()).unwrap();
    let expected = json!({
        "id": "p", "choices": [{"index": 0, "text": "ABC", "token_ids": [1, 2, 3],
            "finish_reason": "stop", "stop_reason": "X"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3,
            "prompt_tokens_details": {"cached_tokens": 4}},
    });
    assert_eq!(serde_json::from_slice::<Value>(&joined).unwrap(), expected);
    assert!(take_params(b"{}").is_err(), "no word of the KV");
}
