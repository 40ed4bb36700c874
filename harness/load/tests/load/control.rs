//! The control plane and the step stream.

use std::sync::{Arc, Mutex};

use pb_contract::{Nanos, StepRow};
use pb_load::steps::read_steps;
use pb_load::{Control, LoadError, ResetReport, StepItem, StepReader, StopSignal};

use crate::script::{Answer, End, ScriptServer, eventually};

fn routes(asked: &crate::script::Asked) -> Answer {
    match (asked.method.as_str(), asked.path.as_str()) {
        // Not healthy, and refusing to reset, at first.
        ("GET", "/health") if asked.number < 2 => Answer::json("503 Service Unavailable", "wait"),
        ("POST", "/reset_prefix_cache") if asked.number < 5 => {
            Answer::json("200 OK", "{\"success\":false}")
        }
        ("POST", "/reset_prefix_cache") => Answer::json("200 OK", "{\"success\":true}"),
        ("GET", "/health") => Answer::json("200 OK", ""),
        ("GET", "/server_info") => Answer::json("200 OK", "{\"name\":\"x\"}"),
        ("GET", "/v1/models") => {
            Answer::json("200 OK", "{\"data\":[{\"id\":\"a\"},{\"id\":\"b\"}]}")
        }
        ("POST", "/tokenize") => {
            assert_eq!(asked.body["add_special_tokens"], false);
            Answer::json(
                "200 OK",
                "{\"count\":2,\"max_model_len\":9,\"tokens\":[4,5]}",
            )
        }
        ("POST", "/v1/completions") => {
            assert_eq!(asked.body["cache_salt"], "s");
            assert_eq!(asked.body.get("stream"), None);
            let usage = "\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1,\
                         \"prompt_tokens_details\":{\"cached_tokens\":2}}";
            let choices = "\"choices\":[{\"index\":0,\"text\":\" a\"}]";
            let head = "\"id\":\"c\",\"object\":\"text_completion\",\"created\":1,\"model\":\"m\"";
            Answer::json("200 OK", &format!("{{{head},{choices},{usage}}}"))
        }
        _ => Answer::json("404 Not Found", "{\"detail\":\"Not Found\"}"),
    }
}

#[tokio::test]
async fn the_control_plane_checks_what_it_is_told() {
    let server = ScriptServer::start(routes);
    let control = Control::new(&server.endpoint()).unwrap();
    control.wait_healthy(Nanos::from_secs(60)).await.unwrap();
    // Requests 0 to 2 asked for health; 3 and 4 are refused, 5 succeeds.
    let report = control
        .reset_prefix_cache(Nanos::from_secs(60))
        .await
        .unwrap();
    assert_eq!(
        report,
        ResetReport {
            attempts: 3,
            confirmed: true
        }
    );
    let probe = control.probe(&[1, 2, 3], 1, Some("s")).await.unwrap();
    assert_eq!((probe.prompt_tokens, probe.cached_tokens), (3, Some(2)));
    assert_eq!((probe.completion_tokens, probe.text.as_str()), (1, " a"));
    assert_eq!(control.server_info().await.unwrap().unwrap()["name"], "x");
    assert_eq!(control.model_names().await.unwrap(), ["a", "b"]);
    assert_eq!(control.tokenize("x y").await.unwrap(), [4, 5]);
    assert!(matches!(
        control.metrics().await,
        Err(LoadError::Unsupported { .. })
    ));
}

/// As recorded of llama.cpp's server: without `content` there is nothing to tokenize for it.
#[tokio::test]
async fn text_is_tokenized_under_the_name_that_the_server_reads() {
    let server = ScriptServer::start(|asked| match asked.body["content"].as_str() {
        None => Answer::json("200 OK", "{\"tokens\":[]}"),
        Some(text) => {
            assert_eq!((text, &asked.body["add_special"]), ("x y", &false.into()));
            Answer::json("200 OK", "{\"tokens\":[6,7]}")
        }
    });
    let control = Control::new(&server.endpoint()).unwrap();
    assert_eq!(control.tokenize("x y").await.unwrap(), [6, 7]);
    let wrong = ScriptServer::start(|_| Answer::json("200 OK", "{\"ids\":[1]}"));
    let control = Control::new(&wrong.endpoint()).unwrap();
    let error = control.tokenize("x").await.unwrap_err().to_string();
    assert!(error.contains("missing field `tokens`"), "{error}");
}

#[tokio::test]
async fn what_does_not_come_about_is_an_error_with_what_was_seen() {
    let server = ScriptServer::start(|asked| match asked.path.as_str() {
        "/reset_prefix_cache" => Answer::json("200 OK", "{\"success\":false}"),
        "/v1/models" => Answer::json(
            "404 Not Found",
            "{\"error\":{\"message\":\"no such model\"}}",
        ),
        "/v1/completions" => Answer::json("200 OK", "{\"id\":\"\"}"),
        "/server_info" => Answer::json("404 Not Found", "{\"detail\":\"Not Found\"}"),
        _ => Answer::json("503 Service Unavailable", "loading"),
    });
    let control = Control::new(&server.endpoint()).unwrap();
    // The longer ones are for a machine on which the first answer takes that long.
    let mut short = Nanos::from_millis(120);
    loop {
        let message = control.wait_healthy(short).await.unwrap_err().to_string();
        assert!(message.contains("healthy"), "{message}");
        if message.contains("503") {
            break;
        }
        assert!(short < Nanos::from_secs(60), "{message}");
        short += short;
    }
    let error = control.reset_prefix_cache(short).await.unwrap_err();
    // The one answer of a slow machine may be what did not come.
    let in_time = matches!(
        error,
        LoadError::TimedOut { .. } | LoadError::Control { .. }
    );
    assert!(in_time, "{error}");
    let error = control.model_names().await.unwrap_err();
    assert!(
        matches!(error, LoadError::Status { status: 404, .. }),
        "{error}"
    );
    assert!(control.probe(&[1], 1, None).await.is_err());
    assert_eq!(control.server_info().await.unwrap(), None);
}

fn step(number: u64) -> String {
    let row = StepRow {
        step: number,
        ..StepRow::default()
    };
    serde_json::to_string(&row).unwrap() + "\n"
}

#[test]
fn steps_are_read_until_the_stop_and_what_came_before_it_is_kept() {
    let server = ScriptServer::start(|asked| {
        assert_eq!(asked.path, "/steps/stream?from=7");
        let parts = vec![
            (0, step(7)),
            (20, "{\"dropped\":2}\n".to_owned()),
            (30, step(10) + &step(11)[..9]),
            (40, step(11)[9..].to_owned()),
        ];
        Answer {
            status: "200 OK",
            parts,
            end: End::Hang,
        }
    });
    let items = Arc::new(Mutex::new(Vec::new()));
    let shared = Arc::clone(&items);
    let on = move |item| shared.lock().unwrap().push(item);
    let reader = StepReader::spawn(&server.endpoint(), 7, on).unwrap();
    eventually("four items", || items.lock().unwrap().len() == 4);
    let end = reader.stop().unwrap();
    assert_eq!((end.rows, end.dropped, end.ended_by_server), (3, 2, false));
    let row = |number| {
        StepItem::Row(StepRow {
            step: number,
            ..StepRow::default()
        })
    };
    assert_eq!(
        *items.lock().unwrap(),
        [row(7), StepItem::Dropped(2), row(10), row(11)]
    );
}

#[tokio::test]
async fn a_server_without_steps_says_so_and_one_that_ends_is_noted() {
    let missing = ScriptServer::start(|_| Answer::json("404 Not Found", "{}"));
    let read = read_steps(&missing.endpoint(), 0, StopSignal::new(), |_| {}).await;
    assert!(
        matches!(read, Err(LoadError::Unsupported { .. })),
        "{read:?}"
    );
    let ending = ScriptServer::start(|_| Answer::json("200 OK", &step(0)));
    let end = read_steps(&ending.endpoint(), 0, StopSignal::new(), |_| {})
        .await
        .unwrap();
    assert_eq!((end.rows, end.ended_by_server), (1, true));
    let wrong = ScriptServer::start(|_| Answer::json("200 OK", "{\"step\":\"x\"}\n"));
    let error = read_steps(&wrong.endpoint(), 0, StopSignal::new(), |_| {})
        .await
        .unwrap_err();
    assert!(error.to_string().contains("not a row"), "{error}");
}
