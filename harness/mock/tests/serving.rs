//! The pretended cache, the counters and the other endpoints.

mod common;

use pb_mock::{CacheModel, Dist, Handle, MockOptions, ResetStyle, Timing};
use serde_json::Value;

use common::{PATIENCE, ask, eventually, start, streaming};

fn server(cache: CacheModel) -> Handle {
    start(MockOptions {
        timing: Timing {
            ttft_ns: Dist::Fixed(1e6),
            itl_ns: Dist::Fixed(1e6),
            ..Timing::default()
        },
        cache,
        ..MockOptions::default()
    })
}

fn post(server: &Handle, path: &str, body: &str) -> Value {
    let seen = ask(server, "POST", path, body, PATIENCE);
    assert_eq!(seen.status(), 200, "{}", seen.text());
    serde_json::from_str(&seen.body()).unwrap()
}

fn cached(server: &Handle, prompt: &str, salt: &str) -> u64 {
    let body = format!(r#"{{"prompt":{prompt},"max_tokens":1,"cache_salt":"{salt}"}}"#);
    let answer = post(server, "/v1/completions", &body);
    answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        .as_u64()
        .unwrap()
}

/// Value of a sample of `/metrics`.
fn metric(server: &Handle, name: &str) -> f64 {
    let page = ask(server, "GET", "/metrics", "", PATIENCE).body();
    let line = page
        .lines()
        .find(|l| l.starts_with(&format!("vllm:{name}{{")));
    let line = line.unwrap_or_else(|| panic!("no {name} in {page}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn ids(n: usize) -> String {
    format!("{:?}", (0..n).collect::<Vec<_>>())
}

#[test]
fn hits_are_whole_blocks_of_the_same_salt() {
    let server = server(CacheModel::default());
    assert_eq!(cached(&server, &ids(48), "a"), 0);
    assert_eq!(cached(&server, &ids(48), "a"), 32);
    assert_eq!(cached(&server, &ids(49), "a"), 48);
    assert_eq!(cached(&server, &ids(49), "b"), 0);
    assert_eq!(metric(&server, "prefix_cache_queries_total"), 194.0);
    assert_eq!(metric(&server, "prefix_cache_hits_total"), 80.0);
    assert_eq!(metric(&server, "generation_tokens_total"), 4.0);
    assert_eq!(metric(&server, "time_to_first_token_seconds_count"), 4.0);
    assert_eq!(metric(&server, "num_requests_running"), 0.0);
}

#[test]
fn the_second_turn_of_a_chat_hits_the_first_and_its_answer() {
    let server = server(CacheModel {
        block_size: 4,
        ..CacheModel::default()
    });
    let first = r#"{"messages":[{"role":"user","content":"hello"}],"max_tokens":8}"#;
    let answer = post(&server, "/v1/chat/completions", first);
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    let second = format!(
        r#"{{"messages":[{{"role":"user","content":"hello"}},
            {{"role":"assistant","content":"{text}"}},{{"role":"user","content":"more"}}]}}"#
    );
    let usage = &post(&server, "/v1/chat/completions", &second)["usage"];
    // "user\nhello\nassistant\n" and 8 tokens of the answer are 29: seven blocks of 4.
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 28);
}

#[test]
fn the_time_of_the_first_token_depends_on_what_is_cached() {
    let server = start(MockOptions {
        timing: Timing {
            ttft_ns: Dist::Fixed(1e6),
            prefill_ns_per_token: 1e6,
            ..Timing::default()
        },
        ..MockOptions::default()
    });
    for _ in 0..2 {
        cached(&server, &ids(65), "");
    }
    let log = server.stop();
    let due = |i: usize| -> u64 {
        let request = &log.requests[i];
        (request.writes[0].due_ns - request.start_ns).0 / 1_000_000
    };
    assert_eq!((due(0), due(1)), (66, 2));
    assert_eq!(log.requests[1].cached_tokens, 64);
}

#[test]
fn row_60_a_reset_may_succeed_be_refused_lie_or_not_exist() {
    for (reset, answers, hit) in [
        (ResetStyle::WhenIdle, vec![true], 0),
        (ResetStyle::Refuse(2), vec![false, false, true], 0),
        (ResetStyle::Lie, vec![true], 32),
    ] {
        let server = server(CacheModel {
            reset,
            ..CacheModel::default()
        });
        cached(&server, &ids(48), "");
        for expected in answers {
            let answer = post(&server, "/reset_prefix_cache", "");
            assert_eq!(answer["success"], expected, "{reset:?}");
        }
        assert_eq!(cached(&server, &ids(48), ""), hit, "{reset:?}");
    }
    let server = server(CacheModel {
        reset: ResetStyle::Absent,
        ..CacheModel::default()
    });
    let seen = ask(&server, "POST", "/reset_prefix_cache", "", PATIENCE);
    assert_eq!(seen.status(), 404);
}

#[test]
fn row_62_a_flush_is_refused_while_requests_run() {
    let server = server(CacheModel::default());
    let long = r#"{"prompt":"x","max_tokens":100000,"stream":true}"#;
    let client = streaming(&server, long);
    let flush = |method: &str, path: &str| ask(&server, method, path, "", PATIENCE).status();
    assert_eq!(flush("POST", "/flush_cache"), 400);
    assert_eq!(post(&server, "/reset_prefix_cache", "")["success"], false);
    assert_eq!(metric(&server, "num_requests_running"), 1.0);
    drop(client);
    eventually("the request ends", || {
        metric(&server, "num_requests_running") == 0.0
    });
    assert_eq!(flush("GET", "/flush_cache?timeout=5"), 200);
}

#[test]
fn the_other_endpoints_answer_as_a_server_does() {
    let server = server(CacheModel::default());
    let get = |path| ask(&server, "GET", path, "", PATIENCE);
    assert_eq!(get("/health").status(), 200);
    assert_eq!(get("/nothing").status(), 404);
    assert_eq!(get("/tokenize").status(), 405);
    let models: Value = serde_json::from_str(&get("/v1/models").body()).unwrap();
    assert_eq!(models["data"][0]["id"], "mock");
    let tokens = post(&server, "/tokenize", r#"{"prompt":"hé"}"#);
    assert_eq!(
        (&tokens["count"], tokens["tokens"].to_string().as_str()),
        (&Value::from(3), "[104,195,169]")
    );
    let text = post(&server, "/detokenize", r#"{"tokens":[104,195,169]}"#);
    assert_eq!(text["prompt"], "hé");
    cached(&server, "[1,2]", "");
    let csv = get("/mock/log").body();
    assert_eq!(csv.lines().count(), 2, "{csv}");
    assert!(
        csv.contains(",complete,0,") && csv.contains(",body,false"),
        "{csv}"
    );
    assert_eq!(
        ask(&server, "DELETE", "/mock/log", "", PATIENCE).status(),
        200
    );
    assert_eq!(get("/mock/log").body().lines().count(), 1);
}
