//! An HTTP/1.1 response, byte by byte as it comes.
//!
//! A general client hands a body on through buffers and channels, which costs more than all else
//! that happens to a token. This reader borrows the data from the read that brought it. It takes
//! what RFC 9112 allows and refuses the rest, because a reader that guesses where a message ends
//! reads one response as two. What it takes and refuses is compared with another implementation
//! by fuzzing ([`crate::fuzz_response`]).

use std::fmt;
use std::ops::Range;

use crate::chunked::Chunked;

/// Longest head in bytes.
const MAX_HEAD_BYTES: usize = 400 << 10;

/// Most fields of a head.
pub(crate) const MAX_FIELDS: usize = 100;

/// Heads up to this size are parsed at each read, longer ones at the end of a line only.
const EAGER_BYTES: usize = 1 << 10;

/// The bytes are not a response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ResponseError {
    /// The head breaks the grammar.
    #[error("the response head: {0}")]
    Head(String),
    /// A head that is larger than any server's.
    #[error("the response head is longer than {MAX_HEAD_BYTES} bytes")]
    HeadTooLarge,
    /// A length that is none.
    #[error("content-length: not one whole number")]
    Length,
    /// A field that the version does not have.
    #[error("transfer-encoding in a response of HTTP/1.0")]
    OldTransferEncoding,
    /// The server wants to speak another protocol that nobody asked for.
    #[error("status 101: the server changes the protocol")]
    Upgrade,
    /// A chunk breaks the grammar.
    #[error("chunked body: {0}")]
    Chunk(&'static str),
    /// The connection ended too early.
    #[error("the connection ended inside the response {0}")]
    Incomplete(&'static str),
}

/// Status and fields.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ResponseHead {
    pub(crate) status: u16,
    bytes: Box<[u8]>,
    /// Name and value of each field.
    fields: Vec<(Range<usize>, Range<usize>)>,
}

impl ResponseHead {
    /// Names in lower case and values.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (String, String)> + '_ {
        self.fields.iter().map(|(name, value)| {
            let name = String::from_utf8_lossy(&self.bytes[name.clone()]);
            let value = String::from_utf8_lossy(&self.bytes[value.clone()]);
            (name.to_ascii_lowercase(), value.into_owned())
        })
    }

    /// The first value of a field, when it is text.
    pub(crate) fn text(&self, name: &'static str) -> Option<&str> {
        self.values(name).next().and_then(plain)
    }

    fn values(&self, name: &'static str) -> impl DoubleEndedIterator<Item = &[u8]> {
        let fits = move |field: &&(Range<usize>, Range<usize>)| {
            self.bytes[field.0.clone()].eq_ignore_ascii_case(name.as_bytes())
        };
        let value = |field: &(Range<usize>, Range<usize>)| &self.bytes[field.1.clone()];
        self.fields.iter().filter(fits).map(value)
    }

    /// A head of another protocol's making.
    pub(crate) fn made(status: u16, fields: &[(&str, &[u8])]) -> ResponseHead {
        let (mut bytes, mut places) = (Vec::new(), Vec::new());
        let mut add = |part: &[u8]| {
            let from = bytes.len();
            bytes.extend_from_slice(part);
            from..bytes.len()
        };
        for (name, value) in fields {
            places.push((add(name.as_bytes()), add(value)));
        }
        ResponseHead {
            status,
            bytes: bytes.into(),
            fields: places,
        }
    }
}

impl fmt::Debug for ResponseHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseHead")
            .field("status", &self.status)
            .field("fields", &self.fields.len())
            .finish_non_exhaustive()
    }
}

/// A value in visible characters, blanks and tabs.
fn plain(value: &[u8]) -> Option<&str> {
    let visible = |&byte: &u8| (b' '..=b'~').contains(&byte) || byte == b'\t';
    let text = std::str::from_utf8(value).ok();
    text.filter(|text| text.as_bytes().iter().all(visible))
}

/// What was found next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    /// The final head.
    Head(ResponseHead),
    /// Data of the body.
    Data(&'a [u8]),
    /// The response is whole.
    End,
}

#[derive(Debug)]
enum State {
    Head,
    /// So many bytes are left.
    Length(u64),
    Chunked(Chunked),
    UntilClose,
    Done,
}

/// A reader of the responses of one connection.
#[derive(Debug)]
pub(crate) struct ResponseReader {
    state: State,
    /// A head that is not whole yet.
    head: Vec<u8>,
    /// The server keeps the connection after this response.
    keep_alive: bool,
}

impl ResponseReader {
    /// A reader that waits for a head.
    pub(crate) fn new() -> ResponseReader {
        ResponseReader {
            state: State::Head,
            head: Vec::new(),
            keep_alive: true,
        }
    }

    /// Gets ready for the next response of the connection.
    pub(crate) fn next_response(&mut self) {
        self.state = State::Head;
        self.head.clear();
    }

    /// Whether the response has ended and another may follow.
    pub(crate) fn is_reusable(&self) -> bool {
        matches!(self.state, State::Done) && self.keep_alive
    }

    /// Takes bytes off the front of `input`; `None` when more are needed. Bytes after the end of
    /// a response stay in `input`.
    ///
    /// # Errors
    /// Bytes that are no response; nothing is to be read any more.
    pub(crate) fn next<'a>(
        &mut self,
        input: &mut &'a [u8],
    ) -> Result<Option<Piece<'a>>, ResponseError> {
        match &mut self.state {
            State::Head => self.head(input).map(|head| head.map(Piece::Head)),
            State::Length(0) => {
                self.state = State::Done;
                Ok(Some(Piece::End))
            }
            State::Length(left) => {
                let most = usize::try_from(*left).unwrap_or(usize::MAX);
                let (data, rest) = input.split_at(most.min(input.len()));
                *input = rest;
                *left -= data.len() as u64;
                Ok((!data.is_empty()).then_some(Piece::Data(data)))
            }
            State::Chunked(chunked) => {
                let piece = chunked.next(input)?;
                if piece == Some(Piece::End) {
                    self.state = State::Done;
                }
                Ok(piece)
            }
            State::UntilClose => {
                let data = std::mem::take(input);
                Ok((!data.is_empty()).then_some(Piece::Data(data)))
            }
            State::Done => Ok(None),
        }
    }

    /// The connection has ended.
    ///
    /// # Errors
    /// It ended inside the response.
    pub(crate) fn end(&mut self) -> Result<(), ResponseError> {
        self.keep_alive = false;
        match &self.state {
            State::Head if self.head.is_empty() => Err(ResponseError::Incomplete("head")),
            State::Head => {
                parse(&self.head)?;
                Err(ResponseError::Incomplete("head"))
            }
            State::Length(_) | State::Chunked(_) => Err(ResponseError::Incomplete("body")),
            State::UntilClose | State::Done => {
                self.state = State::Done;
                Ok(())
            }
        }
    }

    fn head(&mut self, input: &mut &[u8]) -> Result<Option<ResponseHead>, ResponseError> {
        while !input.is_empty() {
            let ends_line = memchr::memchr(b'\n', input).is_some();
            let before = self.head.len();
            self.head.extend_from_slice(input);
            if !ends_line && self.head.len() > EAGER_BYTES {
                *input = &[];
                break;
            }
            let Some((head, version, length)) = parse(&self.head)? else {
                *input = &[];
                break;
            };
            *input = &input[length - before..];
            self.head.clear();
            // What comes before the final response carries nothing.
            if (100..200).contains(&head.status) && head.status != 101 {
                continue;
            }
            self.begin_body(&head, version)?;
            return Ok(Some(head));
        }
        match self.head.len() > MAX_HEAD_BYTES {
            true => Err(ResponseError::HeadTooLarge),
            false => Ok(None),
        }
    }

    /// Decides where the body ends, by RFC 9112, section 6.3.
    fn begin_body(&mut self, head: &ResponseHead, version: u8) -> Result<(), ResponseError> {
        self.keep_alive = keeps_alive(head, version);
        let encoded = head.values("transfer-encoding").next_back();
        self.state = match (head.status, encoded) {
            (101, _) => return Err(ResponseError::Upgrade),
            (204 | 304, _) => State::Length(0),
            (_, Some(_)) if version == 0 => return Err(ResponseError::OldTransferEncoding),
            (_, Some(encoding)) if is_chunked(encoding) => State::Chunked(Chunked::default()),
            (_, Some(_)) => State::UntilClose,
            (_, None) => length(head)?.map_or(State::UntilClose, State::Length),
        };
        Ok(())
    }
}

/// A whole head, its minor version and its length.
fn parse(bytes: &[u8]) -> Result<Option<(ResponseHead, u8, usize)>, ResponseError> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut response = httparse::Response::new(&mut fields);
    let bad = |error: httparse::Error| ResponseError::Head(error.to_string());
    let httparse::Status::Complete(length) = response.parse(bytes).map_err(bad)? else {
        return Ok(None);
    };
    // OK because a complete head has both.
    let (status, version) = (response.code.unwrap_or(0), response.version.unwrap_or(1));
    if status < 100 {
        return Err(ResponseError::Head(format!("status {status:03}")));
    }
    let place = |part: &[u8]| {
        let from = part.as_ptr() as usize - bytes.as_ptr() as usize;
        from..from + part.len()
    };
    let place_of = |field: &httparse::Header<'_>| {
        // An empty value need not lie within the bytes.
        let value = if field.value.is_empty() {
            0..0
        } else {
            place(field.value)
        };
        (place(field.name.as_bytes()), value)
    };
    let head = ResponseHead {
        status,
        fields: response.headers.iter().map(place_of).collect(),
        bytes: bytes[..length].into(),
    };
    Ok(Some((head, version, length)))
}

/// The items of a list of words.
fn items(value: &[u8]) -> impl DoubleEndedIterator<Item = &str> {
    let text = plain(value);
    text.into_iter()
        .flat_map(|text| text.split(',').map(str::trim))
}

fn is_chunked(value: &[u8]) -> bool {
    let last = items(value).next_back();
    last.is_some_and(|last| last.eq_ignore_ascii_case("chunked"))
}

fn keeps_alive(head: &ResponseHead, version: u8) -> bool {
    let has = |word: &str| {
        let mut all = head.values("connection").flat_map(items);
        all.any(|item| item.eq_ignore_ascii_case(word))
    };
    !has("close") && (version == 1 || has("keep-alive"))
}

/// The length that a head states; `None` when it states none.
fn length(head: &ResponseHead) -> Result<Option<u64>, ResponseError> {
    let mut stated = None;
    for value in head.values("content-length") {
        let text = plain(value).ok_or(ResponseError::Length)?;
        for item in text.split(',').map(str::trim) {
            let digits = !item.is_empty() && item.bytes().all(|byte| byte.is_ascii_digit());
            let number: u64 = item.parse().map_err(|_| ResponseError::Length)?;
            // The largest two numbers mean something else in other implementations.
            let same = stated.is_none_or(|before| before == number);
            if !digits || !same || number > u64::MAX - 2 {
                return Err(ResponseError::Length);
            }
            stated = Some(number);
        }
    }
    Ok(stated)
}
