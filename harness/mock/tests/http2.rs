//! The same answers over HTTP/2.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response, body::Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pb_contract::{Clock, WallClock};
use pb_mock::{Dist, Ending, Fault, Handle, Mock, MockOptions, Script, Timing};

const CHAT: &str = r#"{"messages":[{"role":"user","content":"hi"}],"stream":true,
    "stream_options":{"include_usage":true}}"#;

fn server(options: MockOptions) -> Handle {
    Mock::start(MockOptions {
        timing: Timing {
            ttft_ns: Dist::Fixed(5e6),
            itl_ns: Dist::Fixed(2e6),
            ..Timing::default()
        },
        ..options
    })
    .unwrap()
}

type Sender = hyper::client::conn::http2::SendRequest<Full<Bytes>>;

async fn connect(server: &Handle) -> Sender {
    let socket = tokio::net::TcpStream::connect(server.addr).await.unwrap();
    let io = TokioIo::new(socket);
    let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io)
        .await
        .unwrap();
    tokio::spawn(connection);
    sender
}

async fn chat(sender: &mut Sender, path: &str) -> Response<Incoming> {
    let request = Request::post(format!("http://mock{path}"))
        .header("x-request-id", "q")
        .body(Full::from(CHAT))
        .unwrap();
    sender.send_request(request).await.unwrap()
}

#[tokio::test]
async fn the_worked_stream_is_the_same() {
    let server = server(MockOptions {
        script: Some(Script::worked_stream()),
        ..MockOptions::default()
    });
    let mut sender = connect(&server).await;
    let sent = WallClock.now();
    let response = chat(&mut sender, "/v1/chat/completions").await;
    let id = response.headers().get("x-request-id").cloned();
    assert_eq!(id.unwrap(), "mock-0");
    let mut body = response.into_body();
    let (mut text, mut first_token_ms) = (String::new(), None);
    while let Some(frame) = body.frame().await {
        text.push_str(std::str::from_utf8(frame.unwrap().data_ref().unwrap()).unwrap());
        if text.contains(r#""content":"A""#) && first_token_ms.is_none() {
            first_token_ms = Some((WallClock.now() - sent).as_millis_f64());
        }
    }
    assert_eq!(text.matches("data: ").count(), 7, "{text}");
    let at = first_token_ms.unwrap();
    // How late belongs to the machine.
    assert!(at >= 200.0, "{at} ms, due at 200");
    let log = server.stop();
    assert_eq!(log.requests[0].ending, Ending::Complete);
    assert_eq!(log.requests[0].x_request_id.as_deref(), Some("q"));
    assert_eq!(
        log.requests[0].writes.iter().map(|w| w.tokens).sum::<u32>(),
        5
    );
}

#[tokio::test]
async fn streams_share_a_connection_and_a_fault_breaks_one_of_them() {
    let server = server(MockOptions {
        faults: vec!["close:2@2".parse::<Fault>().unwrap()],
        ..MockOptions::default()
    });
    let sender = connect(&server).await;
    let mut tasks = Vec::new();
    for _ in 0..10 {
        let mut sender = sender.clone();
        tasks.push(tokio::spawn(async move {
            let response = chat(&mut sender, "/v1/chat/completions").await;
            response.into_body().collect().await.is_ok()
        }));
    }
    let mut whole = 0;
    for task in tasks {
        whole += usize::from(task.await.unwrap());
    }
    assert_eq!(whole, 5);
    let mut sender = sender;
    let missing = chat(&mut sender, "/nothing").await;
    assert_eq!(missing.status(), 404);
    let log = server.stop();
    let cut = log.requests.iter().filter(|r| r.ending == Ending::Cut);
    assert_eq!(cut.count(), 5);
}
