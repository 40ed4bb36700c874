//! Wrong answers, by request.
//!
//! Each kind is something that real servers were seen to do and that some load generator counted
//! as a success, hid, or crashed on.

use std::str::FromStr;

use pb_contract::Nanos;

/// A wrong answer and the requests that get it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What goes wrong.
    pub kind: FaultKind,
    /// Every so many requests, the last of each group: 1 is every request, 2 every second.
    pub every: u64,
}

impl Fault {
    /// A fault of every request.
    pub fn always(kind: FaultKind) -> Fault {
        Fault { kind, every: 1 }
    }

    /// Whether the request with this number, counted from 0, gets it.
    pub fn hits(&self, number: u64) -> bool {
        number % self.every == self.every - 1
    }
}

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Refused with a status and perhaps a `Retry-After` in seconds.
    Status {
        /// HTTP status, 400 to 599.
        status: u16,
        /// Value of `Retry-After`.
        retry_after_s: Option<u32>,
    },
    /// `data: {"error": ...}` after that many tokens, at status 200.
    InBandError(u32),
    /// An `error:` line after that many tokens (llama.cpp #16109).
    ErrorField(u32),
    /// The body ends properly after that many tokens, without finish reason or `[DONE]`.
    Truncated(u32),
    /// The connection is closed after that many tokens, in the middle of the body.
    Close(u32),
    /// The connection is reset after that many tokens.
    Reset(u32),
    /// Nothing more is sent after that many tokens and the connection stays open.
    Stall(u32),
    /// Head and `[DONE]`, nothing between.
    NoTokens,
    /// Not one byte is sent.
    NeverAnswers,
    /// The head goes out that much later than it should, and everything after it.
    SlowHead(Nanos),
    /// The response goes out in pieces of so many bytes, with a pause between.
    Split {
        /// Bytes of a piece.
        bytes: usize,
        /// Pause between pieces.
        gap_ns: Nanos,
    },
    /// The response goes out in two parts, cut at this byte of the body.
    CutAt {
        /// Bytes of the body (chunk framing included) in the first part.
        bytes: usize,
        /// Pause between the parts.
        gap_ns: Nanos,
    },
    /// A stream that calls itself `application/json`.
    ContentType,
    /// A head that is no HTTP.
    BadHead,
    /// A chunk length that is no number, after that many tokens.
    BadChunk(u32),
    /// An event that is no JSON, after that many tokens.
    BadJson(u32),
}

/// Pause between the pieces of a response when none is given.
const DEFAULT_GAP: Nanos = Nanos::from_micros(300);

/// A text that is no fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a fault; write KIND[:NUMBER[:NUMBER]][@EVERY] with KIND one of status (status, \
     Retry-After in s), error, error-field, truncated, close, reset, stall, bad-chunk, bad-json \
     (after how many tokens), no-tokens, never, slow-head (ms), split, cut-at (bytes, pause in \
     us), content-type, bad-head; for example status:503:1@2"
)]
pub struct FaultError(String);

impl FromStr for Fault {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || FaultError(text.to_string());
        let (what, every) = match text.split_once('@') {
            None => (text, 1),
            Some((what, every)) => (what, every.parse().map_err(|_| error())?),
        };
        let mut parts = what.split(':');
        let name = parts.next().unwrap_or_default();
        let numbers: Vec<u32> = parts
            .map(|part| part.parse().map_err(|_| error()))
            .collect::<Result<_, _>>()?;
        let kind = kind(name, &numbers).ok_or_else(error)?;
        if every == 0 {
            return Err(error());
        }
        Ok(Fault { kind, every })
    }
}

/// The kind of that name; `None` when name and numbers do not fit.
fn kind(name: &str, numbers: &[u32]) -> Option<FaultKind> {
    let gap = |us: Option<&u32>| us.map_or(DEFAULT_GAP, |&us| Nanos::from_micros(us.into()));
    let kind = match (name, numbers) {
        ("status", [status @ 400..=599, rest @ ..]) if rest.len() <= 1 => FaultKind::Status {
            status: *status as u16,
            retry_after_s: rest.first().copied(),
        },
        ("error", [tokens]) => FaultKind::InBandError(*tokens),
        ("error-field", [tokens]) => FaultKind::ErrorField(*tokens),
        ("truncated", [tokens]) => FaultKind::Truncated(*tokens),
        ("close", [tokens]) => FaultKind::Close(*tokens),
        ("reset", [tokens]) => FaultKind::Reset(*tokens),
        ("stall", [tokens]) => FaultKind::Stall(*tokens),
        ("bad-chunk", [tokens]) => FaultKind::BadChunk(*tokens),
        ("bad-json", [tokens]) => FaultKind::BadJson(*tokens),
        ("no-tokens", []) => FaultKind::NoTokens,
        ("never", []) => FaultKind::NeverAnswers,
        ("content-type", []) => FaultKind::ContentType,
        ("bad-head", []) => FaultKind::BadHead,
        ("slow-head", [ms]) => FaultKind::SlowHead(Nanos::from_millis((*ms).into())),
        ("split", [bytes @ 1..=u32::MAX, rest @ ..]) if rest.len() <= 1 => FaultKind::Split {
            bytes: *bytes as usize,
            gap_ns: gap(rest.first()),
        },
        ("cut-at", [bytes, rest @ ..]) if rest.len() <= 1 => FaultKind::CutAt {
            bytes: *bytes as usize,
            gap_ns: gap(rest.first()),
        },
        _ => return None,
    };
    Some(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_name_kind_numbers_and_share() {
        let fault: Fault = "status:503:1@2".parse().unwrap();
        let kind = FaultKind::Status {
            status: 503,
            retry_after_s: Some(1),
        };
        assert_eq!(fault, Fault { kind, every: 2 });
        assert_eq!(
            (0..5).map(|n| fault.hits(n)).collect::<Vec<_>>(),
            [false, true, false, true, false]
        );
        let fault: Fault = "close:3".parse().unwrap();
        assert_eq!(fault, Fault::always(FaultKind::Close(3)));
        assert!(fault.hits(0));
    }

    #[test]
    fn a_text_that_is_no_fault_is_refused_with_the_list() {
        for text in [
            "",
            "nope",
            "status",
            "status:200",
            "close:x",
            "never:1",
            "split:0",
            "error:1@0",
        ] {
            let error = text.parse::<Fault>().unwrap_err().to_string();
            assert!(error.contains("status:503:1@2"), "{text}: {error}");
        }
    }
}
