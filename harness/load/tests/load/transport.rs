//! TLS and HTTP/2: the same stream over each, verified, and one connection for each stream.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pb_contract::{Nanos, RequestStatus};
use pb_load::rows::Record;
use pb_load::{
    Endpoint, HttpVersion, Limits, LoadError, RunContext, RunSummary, StopSignal, run_plan_blocking,
};
use pb_record::metrics::request_metrics;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;

use crate::driver::{closed, patient};
use crate::wall::token;

/// Milliseconds between two tokens of the server, and before the first.
const GAP_MS: u64 = 20;

/// A body whose parts come one after another, a gap apart.
struct Paced {
    parts: VecDeque<Bytes>,
    sleep: Pin<Box<tokio::time::Sleep>>,
}

impl Paced {
    fn new(parts: Vec<String>) -> Paced {
        Paced {
            parts: parts.into_iter().map(Bytes::from).collect(),
            sleep: Box::pin(tokio::time::sleep(Duration::from_millis(GAP_MS))),
        }
    }
}

impl Body for Paced {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.sleep.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.sleep = Box::pin(tokio::time::sleep(Duration::from_millis(GAP_MS)));
        Poll::Ready(self.parts.pop_front().map(|part| Ok(Frame::data(part))))
    }
}

async fn respond(
    request: Request<Incoming>,
    version: Version,
) -> Result<Response<Paced>, Infallible> {
    assert_eq!(request.version(), version);
    assert_eq!(request.uri().path(), "/v1/completions");
    assert_eq!(request.headers()["x-tenant"], "a");
    let done = "data: [DONE]\n\n".to_owned();
    Ok(Response::new(Paced::new(vec![
        token("a", 1),
        token("b", 2),
        done,
    ])))
}

/// Serves one connection in one version of HTTP.
async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, http2: bool) {
    let io = TokioIo::new(stream);
    let version = if http2 {
        Version::HTTP_2
    } else {
        Version::HTTP_11
    };
    let service = service_fn(move |request| respond(request, version));
    // The client hangs up at the end of a run.
    let _ = if http2 {
        hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(io, service)
            .await
    } else {
        hyper::server::conn::http1::Builder::new()
            .serve_connection(io, service)
            .await
    };
}

struct Server {
    port: u16,
    connections: Arc<AtomicUsize>,
    root_file: PathBuf,
}

/// A server with its own certificate for `localhost`.
fn start(tls: bool, http2: bool) -> Server {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let root_file = std::env::temp_dir().join(format!(
        "pb-load-root-{}-{tls}-{http2}-{:p}.pem",
        std::process::id(),
        &made
    ));
    std::fs::write(&root_file, made.cert.pem()).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let acceptor = acceptor(made.cert.der().clone(), key, http2);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let connections = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&connections);
    std::thread::spawn(move || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap().block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                seen.fetch_add(1, Ordering::SeqCst);
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    if !tls {
                        serve(socket, http2).await;
                    } else if let Ok(stream) = acceptor.accept(socket).await {
                        serve(stream, http2).await;
                    }
                });
            }
        });
    });
    Server {
        port,
        connections,
        root_file,
    }
}

fn acceptor(
    cert: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    http2: bool,
) -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert], key)
        .unwrap();
    let name: &[u8] = if http2 { b"h2" } else { b"http/1.1" };
    config.alpn_protocols = vec![name.to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

fn run(endpoint: &Endpoint) -> Result<(Vec<Record>, RunSummary), LoadError> {
    let mut records = Vec::new();
    let endpoint = endpoint.clone().with_header("x-tenant", "a").unwrap();
    let summary = run_plan_blocking(
        patient(vec![], vec![closed(0, 3, 9)]),
        RunContext::default(),
        &endpoint,
        Limits::default(),
        StopSignal::new(),
        |record| records.push(record),
    )?;
    Ok((records, summary))
}

fn endpoint(scheme: &str, server: &Server, version: HttpVersion) -> Endpoint {
    let url = format!("{scheme}://localhost:{}", server.port);
    Endpoint::parse(&url)
        .unwrap()
        .with_http_version(version)
        .with_root_file(&server.root_file)
}

fn refused(endpoint: &Endpoint) -> String {
    match run(endpoint) {
        Err(error @ LoadError::Connect { .. }) => error.to_string(),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn every_transport_carries_the_same_stream() {
    for (scheme, version) in [
        ("http", HttpVersion::Http1),
        ("http", HttpVersion::Http2),
        ("https", HttpVersion::Http1),
        ("https", HttpVersion::Http2),
    ] {
        let tls = scheme == "https";
        let server = start(tls, version == HttpVersion::Http2);
        let (records, summary) = run(&endpoint(scheme, &server, version)).unwrap();
        let name = format!("{scheme}, {version}");
        assert_eq!(records.len(), 9, "{name}");
        for Record { row, tokens } in &records {
            assert_eq!(
                row.status,
                RequestStatus::Ok,
                "{name}: {:?}",
                row.fail_message
            );
            assert_eq!(tokens.len(), 2, "{name}");
            let (sent, headers) = (row.sent_ns.unwrap(), row.headers_ns.unwrap());
            assert!(row.intended_ns <= sent && sent <= headers, "{name}");
            // Never early; late as the machine is.
            let ttft = request_metrics(row).service_ttft_ns.unwrap();
            // But for what the clocks are apart that an arrival is told by.
            let clocks = Nanos::from_millis(1);
            assert!(
                Nanos(ttft) + clocks >= Nanos::from_millis(GAP_MS),
                "{name}: {ttft}"
            );
            let last = row.last_token_ns.unwrap() + clocks - sent;
            assert!(last >= Nanos::from_millis(2 * GAP_MS), "{name}: {last}");
        }
        let connections = server.connections.load(Ordering::SeqCst);
        assert_eq!(connections, 3, "{name}: a connection for each stream, kept");
        let times = summary.connections;
        assert_eq!((times.count, times.during_requests), (3, 0), "{name}");
        assert!(times.tcp_max_ns > Nanos::ZERO && times.tcp_max_ns <= times.tcp_sum_ns);
        assert_eq!(times.tls_max_ns > Nanos::ZERO, tls, "{name}");
    }
}

#[test]
fn certificates_are_verified_always() {
    let server = start(true, false);
    let url = format!("https://localhost:{}", server.port);
    let unknown = Endpoint::parse(&url).unwrap();
    let message = refused(&unknown);
    assert!(
        message.contains("TLS") && message.contains("certificate"),
        "{message}"
    );
    // Known, but for another name.
    let url = format!("https://127.0.0.1:{}", server.port);
    let other = Endpoint::parse(&url)
        .unwrap()
        .with_root_file(&server.root_file);
    let message = refused(&other);
    assert!(
        message.contains("TLS") && message.contains("not valid for name"),
        "{message}"
    );
}

#[test]
fn a_server_without_the_asked_version_is_refused_before_the_run() {
    let server = start(true, false);
    let message = refused(&endpoint("https", &server, HttpVersion::Http2));
    assert!(message.contains("TLS"), "{message}");
}
