//! The head of an HTTP/1 request.

/// Longest head in bytes.
pub(crate) const HEAD_BYTES: usize = 64 * 1024;

/// Longest body in bytes: a prompt of some million token ids.
pub(crate) const BODY_BYTES: usize = 64 * 1024 * 1024;

/// What the server reads of a request's head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestHead {
    pub(crate) method: String,
    /// Path without the query.
    pub(crate) path: String,
    pub(crate) content_length: usize,
    /// The body comes in chunks.
    pub(crate) chunked_body: bool,
    /// The connection may be used again.
    pub(crate) keep_alive: bool,
    /// Version 1.1: the client understands chunks.
    pub(crate) chunked: bool,
    /// The client waits for leave to send the body.
    pub(crate) expects_continue: bool,
    pub(crate) x_request_id: Option<String>,
    /// `x-mock-class`.
    pub(crate) class: Option<String>,
}

/// Status and reason of a refusal.
pub(crate) type Refusal = (u16, &'static str);

/// Reads a head; `None` while it is not complete. Beside it, its length in bytes.
///
/// # Errors
/// A head that is no HTTP/1 or that this server does not serve.
pub(crate) fn parse_head(bytes: &[u8]) -> Result<Option<(RequestHead, usize)>, Refusal> {
    let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") else {
        if bytes.len() > HEAD_BYTES {
            return Err((431, "the request head is longer than 64 KiB"));
        }
        return Ok(None);
    };
    let text =
        std::str::from_utf8(&bytes[..end]).map_err(|_| (400, "the request head is not UTF-8"))?;
    let mut lines = text.split("\r\n");
    let mut head = request_line(lines.next().unwrap_or(""))?;
    let mut length = None;
    for line in lines {
        let (name, value) = line
            .split_once(':')
            .ok_or((400, "a header line without a colon"))?;
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => {
                let digits = value.bytes().all(|b| b.is_ascii_digit());
                let n: usize = value
                    .parse()
                    .map_err(|_| (400, "content-length: no number"))?;
                if !digits || length.is_some_and(|before| before != n) {
                    return Err((400, "content-length: not one number"));
                }
                length = Some(n);
            }
            "transfer-encoding" if value.eq_ignore_ascii_case("chunked") => {
                head.chunked_body = true;
            }
            "transfer-encoding" => return Err((501, "transfer-encoding: only chunked is served")),
            "connection" => {
                let value = value.to_ascii_lowercase();
                head.keep_alive &= !value.contains("close");
                head.keep_alive |= value.contains("keep-alive");
            }
            "expect" => head.expects_continue = value.eq_ignore_ascii_case("100-continue"),
            "x-request-id" => head.x_request_id = Some(value.into()),
            "x-mock-class" => head.class = Some(value.into()),
            _ => {}
        }
    }
    if head.chunked_body && (length.is_some() || !head.chunked) {
        // Two readers could see two lengths.
        return Err((
            400,
            "a chunked body has no content-length and is of HTTP/1.1",
        ));
    }
    head.content_length = length.unwrap_or(0);
    if head.content_length > BODY_BYTES {
        return Err((413, "the body is longer than 64 MiB"));
    }
    Ok(Some((head, end + 4)))
}

/// A body that comes in chunks.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    /// The data so far.
    pub(crate) body: Vec<u8>,
    /// The last chunk was seen; trailers and an empty line follow.
    ended: bool,
}

impl Chunks {
    /// Takes what is whole off the front of `buffer`; whether the body is.
    ///
    /// # Errors
    /// Bytes that are no chunk, or more than a body may have.
    pub(crate) fn take(&mut self, buffer: &mut Vec<u8>) -> Result<bool, Refusal> {
        let bad = (400, "a chunk of the body is not as HTTP says");
        loop {
            let Some(end) = buffer.windows(2).position(|pair| pair == b"\r\n") else {
                return match buffer.len() > HEAD_BYTES {
                    true => Err(bad),
                    false => Ok(false),
                };
            };
            if self.ended {
                buffer.drain(..end + 2);
                if end == 0 {
                    return Ok(true);
                }
                continue;
            }
            let line = std::str::from_utf8(&buffer[..end]).map_err(|_| bad)?;
            let digits = line.split(';').next().unwrap_or("").trim_end();
            let hexadecimal = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            let size = usize::from_str_radix(digits, 16).map_err(|_| bad)?;
            if !hexadecimal {
                return Err(bad);
            }
            if size > BODY_BYTES - self.body.len() {
                return Err((413, "the body is longer than 64 MiB"));
            }
            let from = end + 2;
            if size == 0 {
                self.ended = true;
                buffer.drain(..from);
                continue;
            }
            if buffer.len() < from + size + 2 {
                return Ok(false);
            }
            if &buffer[from + size..from + size + 2] != b"\r\n" {
                return Err(bad);
            }
            self.body.extend_from_slice(&buffer[from..from + size]);
            buffer.drain(..from + size + 2);
        }
    }
}

fn request_line(line: &str) -> Result<RequestHead, Refusal> {
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err((400, "the request line is not METHOD TARGET VERSION"));
    };
    if method.is_empty() || !method.bytes().all(|b| b.is_ascii_uppercase()) {
        return Err((400, "the method is not a word in capitals"));
    }
    let chunked = match version {
        "HTTP/1.1" => true,
        "HTTP/1.0" => false,
        _ => return Err((505, "only HTTP/1.0, HTTP/1.1 and HTTP/2 are served")),
    };
    // A proxy is sent the whole address.
    let target = target.strip_prefix("http://").map_or(target, |rest| {
        rest.find('/').map_or("/", |slash| &rest[slash..])
    });
    if !target.starts_with('/') {
        return Err((400, "the target is no path"));
    }
    let path = target.split(['?', '#']).next().unwrap_or("/");
    Ok(RequestHead {
        method: method.into(),
        path: path.into(),
        content_length: 0,
        chunked_body: false,
        keep_alive: chunked,
        chunked,
        expects_continue: false,
        x_request_id: None,
        class: None,
    })
}

#[cfg(test)]
mod tests {
    use pb_contract::Stream;

    use super::*;

    const GOOD: &str = "POST /v1/completions?x=1 HTTP/1.1\r\nHost: h\r\nContent-Length: 12\r\n\
                        X-Request-Id:  7 \r\nconnection: close\r\n\r\nrest";

    #[test]
    fn a_head_is_read_when_it_is_complete() {
        let end = GOOD.len() - "rest".len();
        for cut in 0..end {
            assert_eq!(parse_head(&GOOD.as_bytes()[..cut]), Ok(None), "{cut}");
        }
        let (head, length) = parse_head(GOOD.as_bytes()).unwrap().unwrap();
        assert_eq!(
            (head.method.as_str(), head.path.as_str()),
            ("POST", "/v1/completions")
        );
        assert_eq!((head.content_length, length), (12, end));
        assert_eq!(head.x_request_id.as_deref(), Some("7"));
        assert!(!head.keep_alive && head.chunked);
        let old = b"GET http://h:1/health HTTP/1.0\r\n\r\n";
        let (head, _) = parse_head(old).unwrap().unwrap();
        assert!(head.path == "/health" && !head.keep_alive && !head.chunked);
    }

    #[test]
    fn a_head_that_cannot_be_served_is_refused_with_a_status() {
        let long = format!("GET / HTTP/1.1\r\nx: {}", "y".repeat(HEAD_BYTES));
        for (text, status) in [
            ("\r\n\r\n", 400),
            ("GET /\r\n\r\n", 400),
            ("get / HTTP/1.1\r\n\r\n", 400),
            ("GET x HTTP/1.1\r\n\r\n", 400),
            ("GET / HTTP/3\r\n\r\n", 505),
            ("GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\ncontent-length: +1\r\n\r\n", 400),
            (
                "POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
                400,
            ),
            (
                "POST / HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n",
                413,
            ),
            ("POST / HTTP/1.1\r\ntransfer-encoding: gzip\r\n\r\n", 501),
            ("POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n", 400),
            (
                "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 1\r\n\r\n",
                400,
            ),
            (long.as_str(), 431),
        ] {
            assert_eq!(
                parse_head(text.as_bytes()).unwrap_err().0,
                status,
                "{text:.60}"
            );
        }
    }

    #[test]
    fn a_chunked_body_is_read_in_every_split() {
        let bytes = b"3;x=1\r\nabc\r\nA\r\n0123456789\r\n0\r\nT: 1\r\n\r\nrest";
        for cut in 0..=bytes.len() - 4 {
            let (mut chunks, mut buffer) = (Chunks::default(), bytes[..cut].to_vec());
            let whole = chunks.take(&mut buffer).unwrap();
            assert_eq!(whole, cut == bytes.len() - 4, "{cut}");
            if !whole {
                buffer.extend_from_slice(&bytes[cut..]);
                assert!(chunks.take(&mut buffer).unwrap(), "{cut}");
                assert_eq!(buffer, b"rest");
            }
            assert_eq!(chunks.body, b"abc0123456789");
        }
        for (bad, status) in [
            (&b"g\r\n"[..], 400),
            (b"+1\r\na\r\n", 400),
            (b"\r\n", 400),
            (b"1\r\nabc\r\n", 400),
            (b"fffffff\r\n", 413),
        ] {
            let refusal = Chunks::default().take(&mut bad.to_vec()).unwrap_err();
            assert_eq!(refusal.0, status, "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn bytes_of_any_kind_are_no_panic() {
        let mut stream = Stream::new(11, "mock/http1/fuzz");
        for _ in 0..20_000 {
            let mut bytes = GOOD.as_bytes().to_vec();
            for _ in 0..=stream.below(6) {
                let at = stream.below(bytes.len() as u64) as usize;
                match stream.below(3) {
                    0 => bytes[at] = stream.below(256) as u8,
                    1 => drop(bytes.remove(at)),
                    _ => bytes.insert(at, b"\r\n: /\x00\xff9"[stream.below(8) as usize]),
                }
            }
            if let Ok(Some((head, length))) = parse_head(&bytes) {
                assert!(length <= bytes.len() && head.path.starts_with('/'));
            }
        }
    }
}
