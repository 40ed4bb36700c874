//! Servers that repeat the key: it is in nothing that comes out of the client.

use pb_contract::Nanos;
use pb_load::control::Method;
use pb_load::rows::Record;
use pb_load::{Control, Endpoint, Limits, RunContext, StopSignal, read_steps, run_plan_blocking};

use crate::driver::plan;
use crate::script::{Answer, Asked, End, ScriptServer};
use crate::wall::token;

const KEY: &str = "sk-live-51H/x+y=\"z";
const HEADER: &str = "tenant-Qw8Zx9Kv";

/// What a header of the request had, as the server read it.
fn said(asked: &Asked, name: &str) -> String {
    let line = asked.raw_headers.lines().find(|line| {
        let key = line.split(':').next().unwrap_or_default();
        key.eq_ignore_ascii_case(name)
    });
    line.unwrap().split_once(": ").unwrap().1.to_owned()
}

fn both(asked: &Asked) -> String {
    format!(
        "{} and {}",
        said(asked, "authorization"),
        said(asked, "x-tenant")
    )
}

fn endpoint(server: &ScriptServer) -> Endpoint {
    let endpoint = server.endpoint().with_api_key(KEY).unwrap();
    endpoint.with_header("x-tenant", HEADER).unwrap()
}

/// Every way in which a stream can say something that ends in a row.
fn answer(asked: &Asked) -> Answer {
    let text = both(asked);
    let json = serde_json::to_string(&text).unwrap();
    let event = |data: String| Answer::json("200 OK", &format!("data: {data}\n\n"));
    match asked.number {
        0 => Answer::json("401 Unauthorized", &text),
        1 => Answer::json("401 No", &format!("{{\"error\":{{\"message\":{json}}}}}")),
        2 => event(format!("{{\"error\":{{\"message\":{json}}}}}")),
        3 => Answer::json("200 OK", &format!("error: {text}\n\n")),
        4 => Answer::json("200 OK", &format!("event: error\ndata: {text}\n\n")),
        // Cut within the key where it is not hidden before.
        5 => event(format!("{}{text}", "x".repeat(66))),
        6 => Answer::json("400 No", &format!("{}{text}", "x".repeat(485))),
        7 => event(format!("{{\"choices\":{json}")),
        8 => event(format!(
            "{{\"choices\":[],\"usage\":{{}},\"error\":{json}}}"
        )),
        9 => {
            let finish = format!("{{\"choices\":[{{\"text\":\"\",\"finish_reason\":{json}}}]}}");
            let parts = [token("a", 1), format!("data: {finish}\n\n")];
            Answer::new("200 OK", &[(0, &parts.concat())], End::Proper)
        }
        _ => Answer::json("200 OK", &format!("{{\"error\":{json}}}")),
    }
}

fn holds_no_key(text: &str) {
    for part in ["51H", "x+y", "tenant-", "Qw8Z"] {
        assert!(!text.contains(part), "{text}");
    }
}

#[test]
fn rows_hold_no_key_wherever_the_server_repeats_it() {
    let server = ScriptServer::start(answer);
    let mut requests = plan(vec![], vec![crate::driver::closed(0, 1, 11)]);
    (requests.horizon_ns, requests.drain_ns) = (Nanos::from_secs(600), Nanos::from_secs(60));
    let mut records: Vec<Record> = Vec::new();
    run_plan_blocking(
        requests,
        RunContext::default(),
        &endpoint(&server),
        Limits::default(),
        StopSignal::new(),
        |record| records.push(record),
    )
    .unwrap();
    assert_eq!(records.len(), 11);
    let mut hidden = 0;
    for record in &records {
        let text = format!("{record:?}");
        holds_no_key(&text);
        hidden += usize::from(text.contains("(hidden)"));
    }
    // Of answer 5 the message ends within what is hidden; of 7 and 10 it has words of our own.
    assert!(hidden >= 8, "{hidden}: {records:#?}");
}

#[tokio::test]
async fn control_answers_and_errors_hold_no_key() {
    let server = ScriptServer::start(|asked| {
        let text = both(asked);
        let json = serde_json::to_string(&text).unwrap();
        match asked.path.as_str() {
            "/v1/models" => Answer::json("200 OK", &format!("{{\"data\":[{{\"id\":{json}}}]}}")),
            "/metrics" => Answer::json("200 OK", &format!("up{{key={json}}} 1\n")),
            "/head" => Answer::json(
                Box::leak(format!("200 OK\r\nx-seen: {text}").into_boxed_str()),
                "",
            ),
            "/steps/stream?from=0" => Answer::json("200 OK", &format!("{text}\n")),
            _ => Answer::json("500 No", &text),
        }
    });
    let endpoint = endpoint(&server);
    let control = Control::new(&endpoint).unwrap();
    let names = control.model_names().await.unwrap();
    assert_eq!(names, ["Bearer (hidden) and (hidden)"]);
    let page = control.metrics().await.unwrap();
    assert_eq!(page, "up{key=\"Bearer (hidden) and (hidden)\"} 1\n");
    let head = control.exchange(Method::GET, "/head", None).await.unwrap();
    holds_no_key(&format!("{head:?}"));
    assert!(
        head.headers
            .iter()
            .any(|(_, value)| value.contains("(hidden)"))
    );
    for error in [
        control.tokenize("x").await.unwrap_err(),
        control.server_info().await.unwrap_err(),
        control
            .reset_prefix_cache(Nanos::from_secs(60))
            .await
            .unwrap_err(),
        read_steps(&endpoint, 0, StopSignal::new(), |_| {})
            .await
            .unwrap_err(),
    ] {
        let text = format!("{error} {error:?}");
        holds_no_key(&text);
        assert!(text.contains("(hidden)"), "{text}");
    }
    // A second address of the same target does not show the key either.
    let other = Endpoint::parse(&endpoint.url("")).unwrap();
    let other = other
        .beside(&endpoint)
        .with_header("x-tenant", "b")
        .unwrap();
    holds_no_key(&other.secrets().hide(&format!("{KEY} {HEADER}")));
}
