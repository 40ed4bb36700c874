//! A file cut into records: lines, or whole JSON values wherever they begin and end.

use std::io::{BufRead, Read};
use std::sync::Arc;

use crate::trace::error::{Place, TraceError};

/// Longest record. A conversation of a thousand turns with its block names takes a few MB.
pub const MAX_RECORD_BYTES: usize = 64 << 20;

/// UTF-8's byte order mark, which some editors put at the start of a file.
const BOM: &[u8] = b"\xef\xbb\xbf";

/// How a file is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// A record a line.
    Lines,
    /// JSON values in a row, or the elements of one array, over any number of lines.
    Values,
}

/// The records of a source, one at a time.
#[derive(Debug)]
pub(crate) struct Records<R> {
    source: R,
    framing: Framing,
    buffer: Vec<u8>,
    /// Where the last record began.
    place: Place,
    /// Lines read so far.
    lines: u64,
    first: bool,
    in_array: bool,
}

impl<R: BufRead> Records<R> {
    pub(crate) fn new(source: R, name: &str, framing: Framing) -> Self {
        Records {
            source,
            framing,
            buffer: Vec::new(),
            place: Place {
                file: Arc::from(name),
                line: 0,
            },
            lines: 0,
            first: true,
            in_array: false,
        }
    }

    /// Where the last record began.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// The next record that is not blank; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<(&str, &Place)>, TraceError> {
        let found = match self.framing {
            Framing::Lines => self.next_line()?,
            Framing::Values => self.next_value()?,
        };
        if !found {
            return Ok(None);
        }
        match std::str::from_utf8(&self.buffer) {
            Ok(text) => Ok(Some((text.trim_end_matches(['\n', '\r']), &self.place))),
            Err(_) => Err(TraceError::line(&self.place, "not UTF-8")),
        }
    }

    /// Fills the buffer with the next line that is not blank.
    fn next_line(&mut self) -> Result<bool, TraceError> {
        loop {
            self.lines += 1;
            self.place.line = self.lines;
            self.buffer.clear();
            let mut limited = (&mut self.source).take(MAX_RECORD_BYTES as u64 + 1);
            let read = limited.read_until(b'\n', &mut self.buffer);
            let bytes = read.map_err(|source| self.io(source))?;
            if bytes > MAX_RECORD_BYTES {
                return Err(self.too_long());
            }
            if std::mem::take(&mut self.first) && self.buffer.starts_with(BOM) {
                self.buffer.drain(..BOM.len());
            }
            if bytes == 0 || !self.buffer.trim_ascii().is_empty() {
                return Ok(bytes > 0);
            }
        }
    }

    /// Fills the buffer with the next JSON object, by counting brackets outside strings.
    fn next_value(&mut self) -> Result<bool, TraceError> {
        self.buffer.clear();
        let Some(start) = self.skip_to_value()? else {
            return Ok(false);
        };
        self.place.line = self.lines + 1;
        self.buffer.push(start);
        let (mut depth, mut in_string, mut escaped) = (1usize, false, false);
        while depth > 0 {
            let Some(byte) = self.byte()? else {
                let message = "the file ends inside this JSON value: is it cut off?";
                return Err(TraceError::line(&self.place, message));
            };
            self.buffer.push(byte);
            if self.buffer.len() > MAX_RECORD_BYTES {
                return Err(self.too_long());
            }
            match (in_string, byte) {
                (true, _) if escaped => escaped = false,
                (true, b'\\') => escaped = true,
                (_, b'"') => in_string = !in_string,
                (false, b'{' | b'[') => depth += 1,
                (false, b'}' | b']') => depth -= 1,
                _ => {}
            }
        }
        Ok(true)
    }

    /// The opening brace of the next value; `None` at the end.
    fn skip_to_value(&mut self) -> Result<Option<u8>, TraceError> {
        loop {
            let first = std::mem::take(&mut self.first);
            let Some(byte) = self.byte()? else {
                return Ok(None);
            };
            match byte {
                b'{' => return Ok(Some(byte)),
                b'[' if !self.in_array => self.in_array = true,
                b']' | b',' if self.in_array => {}
                _ if byte.is_ascii_whitespace() => {}
                0xef if first => {
                    self.byte()?;
                    self.byte()?;
                }
                _ => {
                    self.place.line = self.lines + 1;
                    let found = char::from(byte).escape_default();
                    let message = format!("'{found}' where a JSON object must begin");
                    return Err(TraceError::line(&self.place, message));
                }
            }
        }
    }

    fn byte(&mut self) -> Result<Option<u8>, TraceError> {
        let byte = match self.source.fill_buf() {
            Ok(bytes) => bytes.first().copied(),
            Err(source) => return Err(self.io(source)),
        };
        if byte.is_some() {
            self.source.consume(1);
        }
        self.lines += u64::from(byte == Some(b'\n'));
        Ok(byte)
    }

    fn io(&self, source: std::io::Error) -> TraceError {
        TraceError::Io {
            place: self.place.clone(),
            source,
        }
    }

    fn too_long(&self) -> TraceError {
        let message = format!("longer than {MAX_RECORD_BYTES} bytes: not a record of a trace");
        TraceError::line(&self.place, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str, framing: Framing) -> Result<Vec<(u64, String)>, String> {
        let mut records = Records::new(text.as_bytes(), "t", framing);
        let mut found = Vec::new();
        while let Some((record, place)) = records.next().map_err(|e| e.to_string())? {
            found.push((place.line, record.to_owned()));
        }
        Ok(found)
    }

    #[test]
    fn lines_survive_marks_blank_lines_and_a_missing_end() {
        let text = "\u{feff}a,b\r\n\r\n  \n1,2\r\n3,4";
        let want = [(1, "a,b"), (4, "1,2"), (5, "3,4")].map(|(n, s)| (n, s.to_owned()));
        assert_eq!(all(text, Framing::Lines).unwrap(), want);
        assert!(all("\n\n", Framing::Lines).unwrap().is_empty());
    }

    #[test]
    fn values_are_found_in_arrays_rows_and_over_lines() {
        let bodies = [r#"{"a":"]}\"{","b":[1,{}]}"#, "{\n\"c\": 2}"];
        let want = |lines: [u64; 2]| {
            let pairs = lines.into_iter().zip(bodies.map(str::to_owned));
            pairs.collect::<Vec<_>>()
        };
        let array = format!("\u{feff}[\n{},\n{}\n]\n", bodies[0], bodies[1]);
        assert_eq!(all(&array, Framing::Values).unwrap(), want([2, 3]));
        let row = format!("{}\n{}", bodies[0], bodies[1]);
        assert_eq!(all(&row, Framing::Values).unwrap(), want([1, 2]));
        let cut = all("[{\"a\": 1}, {\"b\": ", Framing::Values).unwrap_err();
        assert!(cut.contains("the file ends inside"), "{cut}");
        let other = all("\nhello", Framing::Values).unwrap_err();
        assert_eq!(other, "t:2: 'h' where a JSON object must begin");
    }
}
