//! The oracle of the response reader: another implementation of HTTP/1.1 (hyper's client).

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::response::{Piece, ResponseError, ResponseReader};

/// What a reader made of the bytes of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Reading {
    /// No head: bytes that are none, or too few.
    NoHead { is_protocol: bool },
    /// A head, the data, and whether the response ended properly.
    Response {
        status: u16,
        fields: Vec<(String, String)>,
        data: Vec<u8>,
        is_whole: bool,
    },
}

/// Reads `data`, all that a server sends on a connection, whole, byte by byte and in pieces, and
/// panics when the readings differ from each other or from the other implementation's.
pub fn fuzz_response(data: &[u8]) {
    let whole = read(data, |_| usize::MAX);
    assert_eq!(read(data, |_| 1), whole, "byte by byte");
    let pieces = read(data, |at| 1 + usize::from(data[at] % 7));
    assert_eq!(pieces, whole, "in pieces");
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    // OK because a fuzzer without threads cannot go on.
    let other = runtime.expect("a runtime").block_on(oracle(data));
    match other {
        // Another protocol was never asked for; the other reader leaves that to its caller.
        Reading::Response { status: 101, .. } => {
            assert_eq!(whole, Reading::NoHead { is_protocol: true });
        }
        other => assert_eq!(whole, other, "against the other implementation"),
    }
}

fn read(data: &[u8], length_at: impl Fn(usize) -> usize) -> Reading {
    let mut reader = ResponseReader::new();
    let (mut head, mut body, mut ended) = (None, Vec::new(), false);
    let mut error = None;
    let mut at = 0;
    while at < data.len() && error.is_none() && !ended {
        let end = at.saturating_add(length_at(at)).min(data.len());
        let mut part = &data[at..end];
        loop {
            match reader.next(&mut part) {
                Ok(None) => break,
                Ok(Some(Piece::Head(new))) => head = Some(new),
                Ok(Some(Piece::Data(bytes))) => body.extend_from_slice(bytes),
                Ok(Some(Piece::End)) => {
                    ended = true;
                    break;
                }
                Err(failed) => {
                    error = Some(failed);
                    break;
                }
            }
        }
        at = end;
    }
    if !ended && error.is_none() {
        // A body of no bytes ends without any.
        match reader.next(&mut &[][..]) {
            Ok(Some(Piece::End)) => {}
            _ => error = reader.end().err(),
        }
    }
    match head {
        None => Reading::NoHead {
            is_protocol: !matches!(error, Some(ResponseError::Incomplete(_))),
        },
        Some(head) => {
            let mut fields: Vec<_> = head.fields().collect();
            fields.sort();
            Reading::Response {
                status: head.status,
                fields,
                data: body,
                is_whole: error.is_none(),
            }
        }
    }
}

async fn oracle(data: &[u8]) -> Reading {
    let (near, mut far) = tokio::io::duplex(data.len().max(1) + 4_096);
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(near)).await;
    // OK because the handshake of HTTP/1.1 sends and reads nothing.
    let (mut sender, connection) = handshake.expect("no handshake over HTTP/1.1");
    let request = Request::post("/")
        .header("host", "h")
        .body(Empty::<Bytes>::new());
    // OK because the request is fixed.
    let sent = sender.send_request(request.expect("a request"));
    let serve = async {
        // The answer comes after the request, as it does on a network.
        let mut buffer = [0; 1_024];
        let _ = far.read(&mut buffer).await;
        let _ = far.write_all(data).await;
        let _ = far.shutdown().await;
        // Kept open for writing: only the server's side has ended.
        std::future::pending::<()>().await
    };
    let exchange = async {
        let response = match sent.await {
            Ok(response) => response,
            Err(error) => {
                let is_protocol = !error.is_incomplete_message();
                return Reading::NoHead { is_protocol };
            }
        };
        let (head, mut body) = response.into_parts();
        let (mut bytes, mut is_whole) = (Vec::new(), true);
        while let Some(frame) = body.frame().await {
            match frame.map(|frame| frame.into_data()) {
                Ok(Ok(part)) => bytes.extend_from_slice(&part),
                Ok(Err(_)) => {}
                Err(_) => {
                    is_whole = false;
                    break;
                }
            }
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let fields = head.headers.iter();
        let mut fields: Vec<_> = fields
            .map(|(name, value)| (name.as_str().to_owned(), text(value.as_bytes())))
            .collect();
        fields.sort();
        Reading::Response {
            status: head.status.as_u16(),
            fields,
            data: bytes,
            is_whole,
        }
    };
    let working = async {
        // Its error reaches the exchange.
        let _ = connection.await;
        std::future::pending::<()>().await
    };
    tokio::select! {
        biased;
        reading = exchange => reading,
        () = working => unreachable!("it never ends"),
        () = serve => unreachable!("it never ends"),
    }
}
