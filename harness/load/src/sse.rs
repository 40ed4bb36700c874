//! Server-sent events, as the WHATWG specification parses them.
//!
//! Bytes arrive in any split: in the middle of a line end, of a character, of a field name. The
//! usual shortcuts (split at `\n\n`, look for `data: `) drop tokens on servers that send `\r\n`,
//! omit the space or add `event:` lines, and a lost event looks like a stall. Every byte is
//! looked at once; one event may hold a bounded number of bytes.
//!
//! One deliberate extension: the specification ignores unknown fields, but some servers report a
//! failure in a field named `error`, so that field is kept and makes an event of its own.
//!
//! ```
//! use pb_load::sse::SseParser;
//! let mut parser = SseParser::new(1 << 20);
//! let mut seen = Vec::new();
//! for part in [&b"da"[..], b"ta:1\r", b"\n\r\nda"] {
//!     parser.feed(part, &mut |event| seen.push(event.data.clone())).unwrap();
//! }
//! assert_eq!(seen, ["1"]);
//! assert!(parser.has_partial());
//! ```

/// Largest event accepted unless told otherwise: 16 MiB.
pub const DEFAULT_MAX_EVENT_BYTES: usize = 16 << 20;

/// Buffers up to this size are kept for the next event.
const KEPT_BYTES: usize = 64 << 10;

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// Type; empty means `message`.
    pub event: String,
    /// Lines of data, joined by line feeds.
    pub data: String,
    /// The last id seen so far in the stream; empty when there was none.
    pub last_event_id: String,
    /// Value of an `error` field, when there was one (not part of the specification).
    pub error: Option<String>,
}

/// A stream that cannot be parsed on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// An event holds more bytes than allowed.
    #[error("an event of the stream is larger than {limit_bytes} bytes")]
    TooLarge {
        /// The limit.
        limit_bytes: usize,
    },
}

/// An incremental parser of one stream.
#[derive(Debug)]
pub struct SseParser {
    limit_bytes: usize,
    /// The line so far, without its end.
    line: Vec<u8>,
    /// The last byte was a carriage return: a line feed now belongs to it.
    after_cr: bool,
    /// No line has been parsed yet: a byte order mark may still come.
    at_start: bool,
    /// The event so far; its buffers are used again, so that an event costs no allocation.
    event: SseEvent,
    has_data: bool,
    retry_ms: Option<u64>,
    failed: bool,
}

impl SseParser {
    /// A parser that accepts events of at most `limit_bytes`.
    pub fn new(limit_bytes: usize) -> Self {
        SseParser {
            limit_bytes,
            line: Vec::new(),
            after_cr: false,
            at_start: true,
            event: SseEvent::default(),
            has_data: false,
            retry_ms: None,
            failed: false,
        }
    }

    /// Parses the next bytes and lends every event that they complete to `sink`.
    ///
    /// # Errors
    /// An event that is too large; every later call fails too.
    pub fn feed(
        &mut self,
        mut bytes: &[u8],
        sink: &mut impl FnMut(&SseEvent),
    ) -> Result<(), SseError> {
        while !self.failed && !bytes.is_empty() {
            if self.after_cr {
                self.after_cr = false;
                if bytes[0] == b'\n' {
                    bytes = &bytes[1..];
                    continue;
                }
            }
            let end = memchr::memchr2(b'\n', b'\r', bytes);
            let Some(end) = end else {
                self.extend_line(bytes);
                break;
            };
            self.extend_line(&bytes[..end]);
            if !self.failed {
                self.after_cr = bytes[end] == b'\r';
                self.end_line(sink);
            }
            bytes = &bytes[end + 1..];
        }
        if self.failed {
            Err(SseError::TooLarge {
                limit_bytes: self.limit_bytes,
            })
        } else {
            Ok(())
        }
    }

    /// Whether the stream so far ends inside an event. At the end of a stream such an event is
    /// dropped, as the specification says; a stream that was cut shows by it.
    pub fn has_partial(&self) -> bool {
        !self.line.is_empty() || self.has_data || self.event.error.is_some()
    }

    /// The reconnection time that the server asked for, in milliseconds.
    pub fn retry_ms(&self) -> Option<u64> {
        self.retry_ms
    }

    fn extend_line(&mut self, bytes: &[u8]) {
        let error_bytes = self.event.error.as_ref().map_or(0, String::len);
        let held = self.line.len() + self.event.data.len() + error_bytes;
        if held + bytes.len() > self.limit_bytes {
            self.failed = true;
            return;
        }
        self.line.extend_from_slice(bytes);
    }

    fn end_line(&mut self, sink: &mut impl FnMut(&SseEvent)) {
        let line = std::mem::take(&mut self.line);
        let mut bytes = line.as_slice();
        if std::mem::take(&mut self.at_start) {
            bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
        }
        if bytes.is_empty() {
            self.dispatch(sink);
        } else {
            // The line is whole, so a character that was split between reads is whole too.
            match std::str::from_utf8(bytes) {
                Ok(text) => self.whole_line(text),
                Err(_) => self.whole_line(&String::from_utf8_lossy(bytes)),
            }
        }
        // The buffer is kept, so that a line costs no allocation, unless it is a huge one.
        if line.capacity() <= KEPT_BYTES {
            self.line = line;
            self.line.clear();
        }
    }

    fn whole_line(&mut self, text: &str) {
        let (name, value) = text.split_once(':').unwrap_or((text, ""));
        self.field(name, value.strip_prefix(' ').unwrap_or(value));
    }

    /// A comment is a line with an empty field name, which is no field we know.
    fn field(&mut self, name: &str, value: &str) {
        let event = &mut self.event;
        match name {
            "data" => {
                if self.has_data {
                    event.data.push('\n');
                }
                event.data.push_str(value);
                self.has_data = true;
            }
            "event" => value.clone_into(&mut event.event),
            "id" if !value.contains('\0') => value.clone_into(&mut event.last_event_id),
            "retry" if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) => {
                self.retry_ms = value.parse().ok().or(self.retry_ms);
            }
            "error" => {
                let error = event.error.get_or_insert_default();
                if !error.is_empty() {
                    error.push('\n');
                }
                error.push_str(value);
            }
            _ => {}
        }
    }

    fn dispatch(&mut self, sink: &mut impl FnMut(&SseEvent)) {
        let has_data = std::mem::take(&mut self.has_data);
        // The specification drops an event whose data buffer is empty, which a lone empty `data:`
        // line leaves it.
        if (has_data && !self.event.data.is_empty()) || self.event.error.is_some() {
            sink(&self.event);
        }
        self.event.event.clear();
        self.event.data.clear();
        self.event.data.shrink_to(KEPT_BYTES);
        self.event.error = None;
    }
}
