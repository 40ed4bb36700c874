//! A request as it goes out, made before it is due.

use bytes::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request};

use crate::endpoint::{Endpoint, HttpVersion};

/// A request that only has to be written.
#[derive(Clone, Debug)]
pub(crate) enum Wire {
    /// All bytes.
    Http1(Bytes),
    /// Head and body; the framing is the connection's.
    Http2(Box<Request<Bytes>>),
}

impl Wire {
    /// Its size, roughly.
    pub(crate) fn len(&self) -> usize {
        match self {
            Wire::Http1(bytes) => bytes.len(),
            Wire::Http2(request) => request.body().len(),
        }
    }
}

/// A request to a route of the endpoint, with its headers. `id` goes into `x-request-id`, by
/// which a server's log can be joined with the rows of a run.
pub(crate) fn request(
    endpoint: &Endpoint,
    method: Method,
    route: &str,
    accept: &str,
    body: Bytes,
    id: Option<&str>,
) -> Result<Wire, hyper::http::Error> {
    let http1 = endpoint.http_version() == HttpVersion::Http1;
    let builder = Request::builder().method(method);
    let mut builder = match http1 {
        true => builder
            .uri(endpoint.path(route))
            .header(HOST, endpoint.authority()),
        false => builder.uri(endpoint.url(route)),
    };
    builder = builder
        .header(ACCEPT, accept)
        .header(CONTENT_TYPE, "application/json");
    if let Some(key) = endpoint.api_key() {
        builder = builder.header(AUTHORIZATION, format!("Bearer {key}"));
    }
    if let Some(id) = id {
        builder = builder.header("x-request-id", id);
    }
    let mut request = builder.body(body)?;
    for (name, value) in endpoint.headers() {
        request.headers_mut().insert(name, value.clone());
    }
    Ok(match http1 {
        true => Wire::Http1(http1_bytes(request)),
        false => Wire::Http2(Box::new(request)),
    })
}

/// Head and body as HTTP/1.1 has them.
fn http1_bytes(request: Request<Bytes>) -> Bytes {
    let (head, body) = request.into_parts();
    let mut bytes = Vec::with_capacity(512 + body.len());
    let target = head.uri.path_and_query().map_or("/", |path| path.as_str());
    bytes.extend_from_slice(format!("{} {target} HTTP/1.1\r\n", head.method).as_bytes());
    for (name, value) in &head.headers {
        bytes.extend_from_slice(name.as_str().as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    if !body.is_empty() || head.method != Method::GET {
        bytes.extend_from_slice(format!("content-length: {}\r\n", body.len()).as_bytes());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(&body);
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(endpoint: &Endpoint, method: Method, body: &'static str) -> String {
        let wire = request(endpoint, method, "/r?x=1", "a/b", body.into(), Some("i-1")).unwrap();
        match wire {
            Wire::Http1(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
            Wire::Http2(_) => panic!("HTTP/1.1 was asked for"),
        }
    }

    #[test]
    fn a_request_is_what_rfc_9112_says() {
        let endpoint = Endpoint::parse("http://h:1/p").unwrap();
        let endpoint = endpoint.with_api_key("k").unwrap();
        let endpoint = endpoint.with_header("Accept", "c/d").unwrap();
        assert_eq!(
            text(&endpoint, Method::POST, "{}"),
            "POST /p/r?x=1 HTTP/1.1\r\nhost: h:1\r\naccept: c/d\r\n\
             content-type: application/json\r\nauthorization: Bearer k\r\n\
             x-request-id: i-1\r\ncontent-length: 2\r\n\r\n{}"
        );
        assert!(!text(&endpoint, Method::GET, "").contains("content-length"));
        assert!(text(&endpoint, Method::POST, "").contains("content-length: 0\r\n\r\n"));
    }

    #[test]
    fn a_request_that_http_does_not_allow_is_an_error() {
        let endpoint = Endpoint::parse("http://h:1").unwrap();
        let made = |endpoint: &Endpoint, route: &str| {
            request(endpoint, Method::POST, route, "a/b", Bytes::new(), None).is_ok()
        };
        assert!(made(&endpoint, "/a"));
        assert!(!made(&endpoint, "/a b"));
        assert!(!made(&endpoint, "/a\r\nx: y"));
    }
}
