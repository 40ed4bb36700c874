//! Server-sent events, taken apart as their bytes come.

/// Bytes that are no event of a reasonable size.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

/// Finds the `data:` of events in a stream of bytes. Lines end with LF or CRLF; comments and other
/// fields are skipped; several data lines of an event are joined by LF.
#[derive(Debug, Default)]
pub(crate) struct SseReader {
    line: Vec<u8>,
    data: Option<Vec<u8>>,
    ready: std::collections::VecDeque<Vec<u8>>,
}

impl SseReader {
    /// Takes bytes in. No event may be longer than `limit_bytes`.
    pub(crate) fn feed(&mut self, bytes: &[u8], limit_bytes: usize) -> Result<(), TooLong> {
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            let held = self.line.len() + self.data.as_ref().map_or(0, Vec::len);
            if held + part.len() > limit_bytes {
                return Err(TooLong);
            }
            self.line.extend_from_slice(part);
            if self.line.last() == Some(&b'\n') {
                self.line.pop();
                if self.line.last() == Some(&b'\r') {
                    self.line.pop();
                }
                self.end_line();
            }
        }
        Ok(())
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            self.ready.extend(self.data.take());
            return;
        }
        if let Some(value) = line.strip_prefix(b"data:") {
            let value = value.strip_prefix(b" ").unwrap_or(value);
            match &mut self.data {
                Some(data) => {
                    data.push(b'\n');
                    data.extend_from_slice(value);
                }
                None => self.data = Some(value.to_vec()),
            }
        }
    }

    /// The next whole event.
    pub(crate) fn next(&mut self) -> Option<Vec<u8>> {
        self.ready.pop_front()
    }

    /// Whether the bytes so far end between two events.
    pub(crate) fn at_boundary(&self) -> bool {
        self.line.is_empty() && self.data.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(chunks: &[&[u8]]) -> Vec<String> {
        let mut reader = SseReader::default();
        let mut out = Vec::new();
        for chunk in chunks {
            reader.feed(chunk, 100).unwrap();
            out.extend(std::iter::from_fn(|| reader.next()).map(|e| String::from_utf8(e).unwrap()));
        }
        out
    }

    #[test]
    fn events_are_the_same_wherever_the_bytes_are_cut() {
        let text =
            b": hello\nevent: x\ndata: a b\r\n\r\ndata:{\"c\":1}\ndata: d\n\n\ndata: [DONE]\n\n";
        let expected = ["a b", "{\"c\":1}\nd", "[DONE]"];
        assert_eq!(events(&[text]), expected);
        for cut in 0..text.len() {
            assert_eq!(events(&[&text[..cut], &text[cut..]]), expected, "{cut}");
        }
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(events(&bytes), expected);
    }

    #[test]
    fn a_cut_event_is_no_event_and_a_long_one_is_refused() {
        let mut reader = SseReader::default();
        reader.feed(b"data: half", 100).unwrap();
        assert_eq!((reader.next(), reader.at_boundary()), (None, false));
        reader.feed(b"\n", 100).unwrap();
        assert!(!reader.at_boundary(), "the empty line is missing");
        reader.feed(b"\n", 100).unwrap();
        assert!(reader.at_boundary());
        assert_eq!(reader.feed(&[b'x'; 101], 100), Err(TooLong));
        let mut lines = SseReader::default();
        lines
            .feed(&[b"data: ", &[b'x'; 60][..], b"\n"].concat(), 100)
            .unwrap();
        assert_eq!(
            lines.feed(&[b"data: ", &[b'x'; 60][..]].concat(), 100),
            Err(TooLong)
        );
    }
}
