//! Ways to a target that need more than its address: TLS with a root of its own, HTTP/2, another
//! metrics page, and the target's tokenizer.

mod bench_common;
mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use bench_common::{bench, measured, quick};
use common::{Server, run, stderr};
use pb_mock::{MockOptions, Tls};
use serde_json::Value;
use sha2::{Digest, Sha256};

const SIX: [&str; 4] = ["--num-prompts", "6", "--request-rate", "100"];

/// A certificate for this machine, signed by itself.
fn certificate(dir: &Path) -> Tls {
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
    let (cert, key) = (dir.join("cert.pem"), dir.join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).expect("written");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("written");
    Tls { cert, key }
}

#[test]
fn a_root_of_its_own_is_trusted_when_its_file_is_given() {
    let dir = tempfile::tempdir().expect("a directory");
    let tls = certificate(dir.path());
    let server = quick(MockOptions {
        tls: Some(tls.clone()),
        ..MockOptions::default()
    });
    let url = server.base_url();
    assert!(url.starts_with("https://"), "{url}");
    let stranger = bench(&url, dir.path(), "a", &SIX);
    assert_eq!(stranger.status.code(), Some(2), "{}", stderr(&stranger));
    assert!(!dir.path().join("a").exists());
    let file = tls.cert.to_str().expect("UTF-8");
    for (name, http) in [("b", "1.1"), ("c", "2")] {
        let args = [&SIX[..], &["--ca-file", file, "--http", http]].concat();
        let doc = measured(&url, dir.path(), name, &args);
        assert_eq!(doc["counts"]["ok"], 6, "HTTP/{http}");
        let took = doc["load"]["asked"]["connections"]["tls_max_ms"].as_f64();
        assert!(took > Some(0.0), "{}", doc["load"]);
    }
    let missing = ["--ca-file", "no-such-file.pem"];
    let missing = bench(&url, dir.path(), "d", &[&SIX[..], &missing].concat());
    assert_eq!(missing.status.code(), Some(2));
    assert!(
        stderr(&missing).contains("no-such-file.pem"),
        "{}",
        stderr(&missing)
    );
}

/// Hands everything on to `target` and keeps the first bytes of each connection.
fn wiretap(target: std::net::SocketAddr) -> (String, Arc<Mutex<Vec<Vec<u8>>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let heard = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&heard);
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let kept = Arc::clone(&kept);
            std::thread::spawn(move || hand_on(client, target, &kept));
        }
    });
    (url, heard)
}

/// Until one side closes.
fn hand_on(client: TcpStream, target: std::net::SocketAddr, heard: &Mutex<Vec<Vec<u8>>>) {
    let Ok(server) = TcpStream::connect(target) else {
        return;
    };
    let (from, to) = (
        client.try_clone().expect("a handle"),
        server.try_clone().expect("one"),
    );
    let back = std::thread::spawn(move || std::io::copy(&mut &server, &mut &client));
    let mut first = vec![0; 3];
    // A connection that was made ahead may never say anything.
    if (&from).read_exact(&mut first).is_ok() && (&to).write_all(&first).is_ok() {
        heard.lock().expect("a lock").push(first);
        let _ = std::io::copy(&mut &from, &mut &to);
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
    let _ = back.join();
}

#[test]
fn http_2_is_spoken_when_it_is_asked_for() {
    let server = quick(MockOptions::default());
    let dir = tempfile::tempdir().expect("a directory");
    for (http, methods) in [("1.1", &["GET", "POS"][..]), ("2", &["PRI"])] {
        let (url, heard) = wiretap(server.addr);
        let args = [&SIX[..], &["--http", http]].concat();
        let doc = measured(&url, dir.path(), http, &args);
        assert_eq!(doc["counts"]["ok"], 6);
        assert_eq!(doc["tokens"]["output"], 6 * 4);
        let heard = heard.lock().expect("a lock");
        let measured: Vec<String> = heard
            .iter()
            .map(|first| String::from_utf8_lossy(first).into_owned())
            .collect();
        // HTTP/2 begins every connection with its preface, "PRI * HTTP/2.0".
        assert!(!measured.is_empty());
        let others = measured
            .iter()
            .filter(|first| !methods.contains(&&***first));
        assert_eq!(others.count(), 0, "HTTP/{http}: {measured:?}");
    }
}

#[test]
fn the_metrics_page_is_the_one_that_was_named() {
    let (server, other) = (quick(MockOptions::default()), quick(MockOptions::default()));
    let dir = tempfile::tempdir().expect("a directory");
    let own = measured(&server.base_url(), dir.path(), "own", &SIX);
    let counted = |doc: &Value| doc["server"]["counters"]["prompt_tokens"].clone();
    assert_eq!(counted(&own), 6 * 32);
    // The page of a server that nobody asked anything says so.
    let page = format!("{}/metrics", other.base_url());
    let args = [&SIX[..], &["--metrics-url", &page]].concat();
    let named = measured(&server.base_url(), dir.path(), "named", &args);
    assert_eq!(named["counts"]["ok"], 6);
    assert_eq!(named["server"]["metrics_url"], page);
    assert_eq!(counted(&named), 0);
    assert!(other.stop().requests.is_empty());
}

#[test]
fn the_targets_tokenizer_makes_the_counts_of_texts_exact() {
    let dir = tempfile::tempdir().expect("a directory");
    let model = dir.path().join("model");
    let model = model.to_str().expect("UTF-8");
    let made = run(&["model", "synth", model, "--seed", "1"]);
    assert!(made.status.success(), "{}", stderr(&made));
    let server = Server::start(&["--model", model, "--served-model-name", "tiny"]);
    let url = format!("http://{}", server.address);
    let text = [&SIX[..], &["--input-unit", "text", "--ignore-eos"]].concat();
    // The same file, named in two ways.
    let file = format!("{model}/tokenizer.json");
    for (name, tokenizer) in [("a", model), ("b", &*file)] {
        let args = [&text[..], &["--tokenizer", tokenizer]].concat();
        let doc = measured(&url, dir.path(), name, &args);
        assert_eq!(doc["counts"]["ok"], 6);
        let facts = &doc["workload"];
        let planned = facts["prompt_tokens_planned"].as_u64();
        assert!(planned > Some(0), "{facts}");
        // What this program counted, the server counts.
        assert_eq!(facts["prompt_tokens_served"].as_u64(), planned, "{facts}");
        assert_eq!(facts["facts"]["detail"]["tokens_exact"], true, "{facts}");
        let bytes = std::fs::read(&file).expect("a file");
        let digest = Sha256::digest(bytes);
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(doc["identity"]["tokenizer"], digest.as_str());
    }
    // Without it they are words, and an estimate.
    let doc = measured(&url, dir.path(), "c", &text);
    assert_eq!(doc["workload"]["facts"]["detail"]["tokens_exact"], false);
    assert!(doc["identity"]["tokenizer"].is_null());
    let none = [&text[..], &["--tokenizer", "no-such-file.json"]].concat();
    let none = bench(&url, dir.path(), "d", &none);
    assert_eq!(none.status.code(), Some(2));
    assert!(
        stderr(&none).contains("--tokenizer no-such-file.json"),
        "{}",
        stderr(&none)
    );
}
