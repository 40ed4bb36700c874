//! Habits of real servers: choices, token ids, llama.cpp's slots and timings, TLS, the log file.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use pb_contract::Nanos;
use pb_mock::{Dist, Handle, Mock, MockOptions, Persona, Script, Timing, Tls};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::Value;

use common::{PATIENCE, ask, complete, eventually, start};

fn quick(options: MockOptions) -> MockOptions {
    MockOptions {
        timing: Timing {
            ttft_ns: Dist::Fixed(2e6),
            itl_ns: Dist::Fixed(1e6),
            ..Timing::default()
        },
        ..options
    }
}

/// The JSON documents of a stream.
fn events(text: &str) -> Vec<Value> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let documents = data.filter(|data| *data != "[DONE]");
    documents
        .map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

fn post(server: &Handle, path: &str, body: &str) -> (u16, Value) {
    let seen = ask(server, "POST", path, body, PATIENCE);
    let body = serde_json::from_str(&seen.body()).unwrap_or(Value::Null);
    (seen.status(), body)
}

#[test]
fn every_choice_is_streamed_and_counted() {
    let server = start(quick(MockOptions::default()));
    let body = r#"{"prompt":"x","max_tokens":3,"n":2,"stream":true,
        "stream_options":{"include_usage":true}}"#;
    let events = events(&complete(&server, body).text());
    for index in 0..2 {
        let of = |event: &&Value| event["choices"][0]["index"] == index;
        let texts: Vec<&str> = events
            .iter()
            .filter(of)
            .map(|event| event["choices"][0]["text"].as_str().unwrap())
            .collect();
        assert_eq!(texts, ["a", "b", "c"]);
        let last = events.iter().rfind(of).unwrap();
        assert_eq!(last["choices"][0]["finish_reason"], "length");
    }
    assert_eq!(events.last().unwrap()["usage"]["completion_tokens"], 6);
    let (status, whole) = post(
        &server,
        "/v1/completions",
        r#"{"prompt":"x","n":2,"max_tokens":2}"#,
    );
    assert_eq!(status, 200);
    let texts: Vec<&Value> = whole["choices"].as_array().unwrap().iter().collect();
    assert_eq!(texts.len(), 2);
    assert_eq!(
        (&texts[1]["index"], &texts[1]["text"]),
        (&1.into(), &"ab".into())
    );
}

#[test]
fn token_ids_and_growing_usage_come_when_they_are_asked_for() {
    let options = MockOptions {
        script: Some(Script::worked_stream()),
        ..MockOptions::default()
    };
    let server = start(options);
    let chat = |more: &str| {
        let body =
            format!(r#"{{"messages":[{{"role":"user","content":"hi"}}],"stream":true{more}}}"#);
        let path = "/v1/chat/completions";
        events(&ask(&server, "POST", path, &body, PATIENCE).text())
    };
    let ids: Vec<Value> = chat(r#","return_token_ids":true"#)
        .iter()
        .map(|event| event["choices"][0]["token_ids"].clone())
        .collect();
    let list = |ids: &[u32]| Value::from(ids.to_vec());
    // Role, A, BCD, E, finish; the usage has no choice. Ids are those of the bytes.
    let expected = [Value::Null, list(&[65]), list(&[66, 67, 68]), list(&[69])];
    assert_eq!(ids[..4], expected);
    let more = r#","stream_options":{"include_usage":true,"continuous_usage_stats":true}"#;
    let counts: Vec<Option<u64>> = chat(more)
        .iter()
        .map(|event| event["usage"]["completion_tokens"].as_u64())
        .collect();
    assert_eq!(counts, [0, 1, 4, 5, 5, 5].map(Some));
    assert!(chat("")[1]["usage"].is_null());
}

#[test]
fn row_73_llama_cpp_reuses_by_slot_and_token_unless_told_not_to() {
    let server = start(quick(MockOptions {
        persona: Persona::LlamaCpp { slots: 2 },
        ..MockOptions::default()
    }));
    let request = |prompt: &str, more: &str| {
        let body = format!(r#"{{"prompt":{prompt},"max_tokens":2,"stream":true{more}}}"#);
        let seen = complete(&server, &body);
        assert!(seen.text().contains("Server: llama.cpp"), "{}", seen.text());
        let events = events(&seen.text());
        let last = events.last().unwrap();
        // The finish reason is in an event of its own, with the timings and no text.
        assert_eq!(last["choices"][0]["finish_reason"], "length");
        assert_eq!(last["choices"][0]["text"], "");
        assert_eq!(last["timings"]["predicted_n"], 2);
        assert!(events[1]["choices"][0]["finish_reason"].is_null());
        let timings = &last["timings"];
        let part = |name: &str| timings[name].as_u64().unwrap();
        (part("cache_n"), part("prompt_n"))
    };
    assert_eq!(request("[1,2,3,4,5]", ""), (0, 5));
    // All but the last token, which must be computed.
    assert_eq!(request("[1,2,3,4,5]", ""), (4, 1));
    assert_eq!(request("[1,2,3,9]", ""), (3, 1));
    assert_eq!(request("[1,2,3,9]", r#","cache_prompt":false"#), (0, 4));
    let (status, slots) = {
        let seen = ask(&server, "GET", "/slots", "", PATIENCE);
        (
            seen.status(),
            serde_json::from_str::<Value>(&seen.body()).unwrap(),
        )
    };
    assert_eq!((status, slots.as_array().unwrap().len()), (200, 2));
    assert_eq!(slots[0]["is_processing"], false);
    assert_eq!(post(&server, "/slots/0?action=erase", "").0, 200);
    assert_eq!(post(&server, "/slots/9?action=erase", "").0, 400);
    assert_eq!(request("[1,2,3,9]", ""), (0, 4));
    assert_eq!(post(&server, "/reset_prefix_cache", "").0, 404);
}

#[test]
fn a_body_may_come_in_chunks() {
    let server = start(quick(MockOptions::default()));
    let mut socket = TcpStream::connect(server.addr).unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nconnection: close\r\n\
                transfer-encoding: chunked\r\n\r\n";
    for part in [
        head,
        "8\r\n{\"prompt\r\n",
        "b;x=1\r\n\":[1,2,3,4]\r\n",
        "1\r\n}\r\n0\r\n\r\n",
    ] {
        socket.write_all(part.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    assert!(
        text.starts_with("HTTP/1.1 200") && text.contains("\"prompt_tokens\":4"),
        "{text}"
    );
}

#[test]
fn times_that_no_run_lives_to_see_are_refused() {
    let with = |ttft_ns: Dist, itl_ns: Dist| {
        let timing = Timing {
            ttft_ns,
            itl_ns,
            ..Timing::default()
        };
        let options = MockOptions {
            timing,
            ..MockOptions::default()
        };
        Mock::start(options)
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    let fine = Dist::Fixed(1e6);
    assert_eq!(with(Dist::Fixed(1e15), fine), Ok(()));
    for (ttft, itl, name) in [
        (Dist::Fixed(1.1e15), fine, "ttft"),
        (fine, Dist::Exponential(1e30), "itl"),
        (
            fine,
            Dist::LogNormal {
                median: 1e6,
                sigma: 50.0,
            },
            "itl",
        ),
    ] {
        let message = with(ttft, itl).unwrap_err();
        assert!(
            message.starts_with(name) && message.contains("1e9 ms"),
            "{message}"
        );
    }
}

#[test]
fn the_log_file_has_each_request_as_soon_as_it_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    let server = start(quick(MockOptions {
        log_file: Some(path.clone()),
        ..MockOptions::default()
    }));
    assert!(
        complete(&server, r#"{"prompt":"x","max_tokens":3,"stream":true}"#)
            .text()
            .len()
            > 9
    );
    let rows = || {
        let text = std::fs::read_to_string(&path).unwrap();
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        reader.records().map(|row| row.unwrap()).collect::<Vec<_>>()
    };
    // The server still runs.
    eventually("rows of the request", || !rows().is_empty());
    // The head, three tokens, `[DONE]` and the end.
    assert_eq!(rows().len(), 6);
    complete(&server, r#"{"prompt":"x","max_tokens":1,"stream":true}"#);
    let log = server.stop();
    assert_eq!(rows().len(), 10);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), log.to_csv());
    let refused = Mock::start(MockOptions {
        log_file: Some(folder.path().join("no/such/folder.csv")),
        ..MockOptions::default()
    });
    assert!(refused.unwrap_err().to_string().contains("folder.csv"));
}

fn tls(folder: &std::path::Path) -> (Tls, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let root = CertificateDer::from_pem_file(&cert).unwrap();
    (Tls { cert, key }, root)
}

#[test]
fn the_same_answers_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let (files, root) = tls(folder.path());
    let server = start(quick(MockOptions {
        tls: Some(files),
        ..MockOptions::default()
    }));
    assert!(server.base_url().starts_with("https://"));
    let mut roots = rustls::RootCertStore::empty();
    roots.add(root).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let socket = TcpStream::connect(server.addr).unwrap();
    let mut stream = rustls::StreamOwned::new(connection, socket);
    let body = r#"{"prompt":"x","max_tokens":3,"stream":true}"#;
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut text = String::new();
    // The end of the connection may come without TLS's own goodbye.
    let _ = stream.read_to_string(&mut text);
    assert!(text.contains("data: [DONE]"), "{text}");
    let log = server.stop();
    let request = &log.requests[0];
    let first = request
        .writes
        .iter()
        .find(|write| write.tokens > 0)
        .unwrap();
    assert!(first.written_ns >= request.first_byte_ns + Nanos::from_millis(2));
}

#[test]
fn a_certificate_that_is_none_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (files, _) = tls(folder.path());
    let with = |cert, key| {
        let tls = Some(Tls { cert, key });
        let options = MockOptions {
            tls,
            ..MockOptions::default()
        };
        Mock::start(options).unwrap_err().to_string()
    };
    let message = with(folder.path().join("none.pem"), files.key.clone());
    assert!(
        message.contains("--tls-cert") && message.contains("none.pem"),
        "{message}"
    );
    let message = with(files.cert.clone(), files.cert);
    assert!(message.contains("--tls-key"), "{message}");
}
