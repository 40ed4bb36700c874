//! Every way in which a request fails, over a real socket: a kind and a message each.

use pb_contract::{FailKind, Nanos, RequestStatus};
use pb_load::Limits;
use pb_load::rows::Record;

use crate::driver::{closed, open, patient};
use crate::script::{Answer, End, ScriptServer};
use crate::wall::{run, token};

pub(crate) fn one(answer: impl Fn() -> Answer + Send + Sync + 'static, limits: Limits) -> Record {
    let server = ScriptServer::start(move |_| answer());
    let (mut records, _) = run(&server, patient(vec![open(0, 0)], vec![]), limits);
    assert_eq!(records.len(), 1);
    records.remove(0)
}

pub(crate) fn limits(first_ms: u64, idle_ms: u64, total_ms: u64) -> Limits {
    Limits {
        first_token_ns: Nanos::from_millis(first_ms),
        idle_ns: Nanos::from_millis(idle_ms),
        total_ns: Nanos::from_millis(total_ms),
        ..Limits::default()
    }
}

pub(crate) fn fails(record: &Record, kind: FailKind, part: &str) {
    assert_eq!(record.row.fail, Some(kind), "{:?}", record.row);
    let message = record.row.fail_message.as_deref().unwrap();
    assert!(message.contains(part), "{message}");
}

#[test]
fn an_error_status_keeps_its_code_and_message() {
    let body = "{\"error\":{\"message\":\"too long\",\"type\":\"BadRequestError\",\
                \"param\":null,\"code\":400}}";
    let record = one(
        move || Answer::json("400 Bad Request", body),
        Limits::default(),
    );
    fails(&record, FailKind::HttpStatus, "400 Bad Request: too long");
    assert_eq!(
        (record.row.status, record.row.http_status),
        (RequestStatus::Failed, Some(400))
    );
    assert!(record.row.first_token_ns.is_none() && record.row.headers_ns.is_some());
    let record = one(
        || Answer::json("503 Service Unavailable", "busy"),
        Limits::default(),
    );
    fails(&record, FailKind::HttpStatus, "busy");
}

#[test]
fn row_28_a_refusal_is_recorded_once_and_not_retried() {
    let server = ScriptServer::start(|asked| {
        if asked.number == 0 {
            Answer::json("503 Service Unavailable", "busy")
        } else {
            Answer::new(
                "200 OK",
                &[(0, &token("a", 1)), (0, "data: [DONE]\n\n")],
                End::Proper,
            )
        }
    });
    let (records, _) = run(
        &server,
        patient(vec![], vec![closed(0, 1, 2)]),
        Limits::default(),
    );
    fails(&records[0], FailKind::HttpStatus, "busy");
    assert_eq!(records[1].row.status, RequestStatus::Ok);
    assert_eq!(server.count(|seen| &seen.requests), 2);
}

#[test]
fn row_27_a_stream_that_breaks_off_is_truncated() {
    let parts = || vec![(0, token("a", 1)), (1, token("b", 2)), (2, token("c", 3))];
    for end in [End::Cut, End::Proper] {
        let answer = move || Answer {
            status: "200 OK",
            parts: parts(),
            end,
        };
        let record = one(answer, Limits::default());
        fails(&record, FailKind::Truncated, "");
        assert_eq!(record.row.status, RequestStatus::Truncated);
        assert_eq!(record.tokens.len(), 3);
    }
}

#[test]
fn the_three_silences_are_told_apart() {
    let hang = |parts: Vec<(u64, String)>| {
        move || Answer {
            status: "200 OK",
            parts: parts.clone(),
            end: End::Hang,
        }
    };
    let record = one(hang(vec![]), limits(150, 10_000, 20_000));
    fails(&record, FailKind::TimeoutFirstToken, "first token");
    // Keep-alive comments are no tokens.
    let pings = (0..8).map(|i| (50 * i, ": ping\n\n".to_owned())).collect();
    let record = one(hang(pings), limits(200, 10_000, 20_000));
    fails(&record, FailKind::TimeoutFirstToken, "first token");

    let record = one(hang(vec![(0, token("a", 1))]), limits(10_000, 150, 20_000));
    fails(&record, FailKind::TimeoutIdle, "silent");
    assert_eq!(
        (record.tokens.len(), record.row.status),
        (1, RequestStatus::Failed)
    );

    let slow = (0..100).map(|i| (20 * i, token("a", 1))).collect();
    let record = one(hang(slow), limits(10_000, 10_000, 300));
    fails(&record, FailKind::TimeoutTotal, "whole request");
    // Sent 20 ms apart, and what came after the limit is no part of the answer.
    assert!(record.tokens.len() <= 15);
}

#[test]
fn rows_19_25_and_26_errors_under_status_200_are_failures() {
    let error = "data: {\"error\":{\"message\":\"engine died\"}}\n\n";
    let parts = vec![(0, token("a", 1)), (1, error.to_owned())];
    let record = one(
        move || Answer {
            status: "200 OK",
            parts: parts.clone(),
            end: End::Proper,
        },
        Limits::default(),
    );
    fails(&record, FailKind::InBandError, "engine died");
    let record = one(
        || Answer::json("200 OK", "data: [DONE]\n\n"),
        Limits::default(),
    );
    fails(&record, FailKind::NoTokens, "without a token");
    let record = one(
        || Answer::json("200 OK", "{\"choices\":[]}\n\n"),
        Limits::default(),
    );
    fails(&record, FailKind::Protocol, "not an event stream");
}

#[test]
fn a_server_that_is_no_http_server_is_a_protocol_failure() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            use std::io::{Read, Write};
            let _ = socket.read(&mut [0; 4_096]);
            let _ = socket.write_all(b"SSH-2.0-OpenSSH_9.9\r\n\r\n");
        }
    });
    let server = ScriptServer {
        port,
        seen: Default::default(),
    };
    let (records, _) = run(
        &server,
        patient(vec![open(0, 0)], vec![]),
        Limits::default(),
    );
    fails(&records[0], FailKind::Protocol, "not an HTTP response");
}
