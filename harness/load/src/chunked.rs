//! A chunked body (RFC 9112, section 7.1), as it comes.

use crate::response::{MAX_FIELDS, Piece, ResponseError};

/// Most bytes of extensions in one body, and of trailer fields.
const MAX_EXTRA_BYTES: usize = 16 << 10;

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// The first digit of a size.
    #[default]
    Start,
    Size,
    /// Blanks after a size.
    Blank,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// The first byte of a trailer line, or the return that ends the body.
    Line,
    Trailer,
    TrailerLf,
    EndLf,
    Ended,
}

/// The state of a chunked body.
#[derive(Debug, Default)]
pub(crate) struct Chunked {
    place: Place,
    /// Bytes left of the chunk.
    left: u64,
    extension_bytes: usize,
    trailer: Vec<u8>,
    trailer_lines: usize,
}

impl Chunked {
    /// Takes bytes off the front of `input` up to the next data or the end; `None` when more are
    /// needed.
    ///
    /// # Errors
    /// Bytes that are no chunked body.
    pub(crate) fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
    ) -> Result<Option<Piece<'a>>, ResponseError> {
        loop {
            if self.place == Place::Ended {
                return Ok(Some(Piece::End));
            }
            if input.is_empty() {
                return Ok(None);
            }
            if self.place == Place::Data {
                let most = usize::try_from(self.left).unwrap_or(usize::MAX);
                let (data, rest) = input.split_at(most.min(input.len()));
                *input = rest;
                self.left -= data.len() as u64;
                if self.left == 0 {
                    self.place = Place::DataCr;
                }
                return Ok(Some(Piece::Data(data)));
            }
            let byte = input[0];
            *input = &input[1..];
            self.place = self.step(byte).map_err(ResponseError::Chunk)?;
        }
    }

    fn step(&mut self, byte: u8) -> Result<Place, &'static str> {
        match (self.place, byte) {
            (Place::Start | Place::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                self.digit(byte)?;
                Ok(Place::Size)
            }
            (Place::Start, _) => Err("a chunk without a size"),
            (Place::Size | Place::Blank, b'\t' | b' ') => Ok(Place::Blank),
            (Place::Size | Place::Blank, b';') => Ok(Place::Extension),
            (Place::Size | Place::Blank | Place::Extension, b'\r') => Ok(Place::SizeLf),
            (Place::Size | Place::Blank, _) => Err("a size that is no hexadecimal number"),
            (Place::Extension, b'\n') => Err("a line feed in an extension"),
            (Place::Extension, _) => {
                self.extension_bytes += 1;
                match self.extension_bytes >= MAX_EXTRA_BYTES {
                    true => Err("extensions that are too long"),
                    false => Ok(Place::Extension),
                }
            }
            (Place::SizeLf, b'\n') if self.left == 0 => Ok(Place::Line),
            (Place::SizeLf, b'\n') => Ok(Place::Data),
            (Place::DataCr, b'\r') => Ok(Place::DataLf),
            (Place::DataLf, b'\n') => Ok(Place::Start),
            (Place::Line, b'\r') => {
                self.keep(byte)?;
                Ok(Place::EndLf)
            }
            (Place::Line | Place::Trailer, _) => {
                self.trailer.push(byte);
                if self.trailer.len() >= MAX_EXTRA_BYTES {
                    return Err("trailers that are too long");
                }
                match byte == b'\r' {
                    true => Ok(Place::TrailerLf),
                    false => Ok(Place::Trailer),
                }
            }
            (Place::TrailerLf, b'\n') => {
                self.trailer_lines += 1;
                if self.trailer_lines > MAX_FIELDS {
                    return Err("too many trailers");
                }
                self.keep(byte)?;
                Ok(Place::Line)
            }
            (Place::EndLf, b'\n') => {
                self.keep(byte)?;
                self.check_trailer()?;
                Ok(Place::Ended)
            }
            _ => Err("a line or a chunk that does not end where it should"),
        }
    }

    fn digit(&mut self, byte: u8) -> Result<(), &'static str> {
        let digit = char::from(byte).to_digit(16).unwrap_or(0);
        let size = self.left.checked_mul(16);
        let size = size.and_then(|size| size.checked_add(u64::from(digit)));
        self.left = size.ok_or("a size that is too large")?;
        Ok(())
    }

    /// Keeps a byte of the trailers, when there are any.
    fn keep(&mut self, byte: u8) -> Result<(), &'static str> {
        if self.trailer.is_empty() {
            return Ok(());
        }
        self.trailer.push(byte);
        match self.trailer.len() >= MAX_EXTRA_BYTES {
            true => Err("trailers that are too long"),
            false => Ok(()),
        }
    }

    /// Trailers carry nothing that is measured, but bytes that are no fields are an error.
    fn check_trailer(&self) -> Result<(), &'static str> {
        if self.trailer.is_empty() {
            return Ok(());
        }
        let mut fields = vec![httparse::EMPTY_HEADER; self.trailer_lines];
        match httparse::parse_headers(&self.trailer, &mut fields) {
            Ok(httparse::Status::Complete(_)) => Ok(()),
            _ => Err("trailers that are no fields"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The data of a body fed in pieces of `size`, and whether it ended.
    fn read(body: &[u8], size: usize) -> Result<(Vec<u8>, bool), ResponseError> {
        let (mut chunked, mut data) = (Chunked::default(), Vec::new());
        for mut part in body.chunks(size) {
            while let Some(piece) = chunked.next(&mut part)? {
                match piece {
                    Piece::Data(bytes) => data.extend_from_slice(bytes),
                    _ => return Ok((data, true)),
                }
            }
        }
        Ok((data, false))
    }

    #[test]
    fn chunks_extensions_and_trailers_in_every_split() {
        let body = b"3\r\nabc\r\n0A;x=\"y\"\r\n0123456789\r\n1 \t\r\nz\r\n0\r\nA: b\r\n\r\n";
        for size in 1..=body.len() {
            let (data, ended) = read(body, size).unwrap();
            assert_eq!(
                (data.as_slice(), ended),
                (&b"abc0123456789z"[..], true),
                "{size}"
            );
        }
        assert_eq!(
            read(b"1\r\na\r\n0\r\n", 100).unwrap(),
            (b"a".to_vec(), false)
        );
    }

    #[test]
    fn what_is_no_chunk_is_refused() {
        for (body, part) in [
            (&b"\r\n"[..], "without a size"),
            (b"g\r\n", "without a size"),
            (b"1g\r\n", "no hexadecimal"),
            (b"-1\r\n", "without a size"),
            (b"1\n", "no hexadecimal"),
            (b"1;a\nb", "line feed in an extension"),
            (b"1 2\r\n", "no hexadecimal"),
            (b"1\r\nab", "does not end"),
            (b"1\r\na\n", "does not end"),
            (b"1\r\na\rx", "does not end"),
            (b"10000000000000000\r\n", "too large"),
            (b"0\r\n\rx", "does not end"),
            (b"0\r\nno field\r\n\r\n", "no fields"),
        ] {
            let error = read(body, 1).unwrap_err().to_string();
            assert!(error.contains(part), "{}: {error}", body.escape_ascii());
        }
    }
}
