//! What was really sent, and when: the truth that a client is compared with.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;

use pb_contract::Nanos;

/// What a write carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteKind {
    /// Status line and fields.
    Head,
    /// Role-only event.
    Role,
    /// Event with generated tokens.
    Token,
    /// Finish reason without content.
    Finish,
    /// Usage, or an event with nothing that this list names.
    Usage,
    /// `[DONE]`.
    Done,
    /// Error event.
    Error,
    /// Comment line.
    Comment,
    /// Bytes as the script or a recording gives them.
    Raw,
    /// Whole body.
    Body,
    /// Part of what the next write completes.
    Piece,
    /// End of the body or of the connection.
    End,
}

impl WriteKind {
    /// Its name in the CSV.
    pub fn name(self) -> &'static str {
        match self {
            WriteKind::Head => "head",
            WriteKind::Role => "role",
            WriteKind::Token => "token",
            WriteKind::Finish => "finish",
            WriteKind::Usage => "usage",
            WriteKind::Done => "done",
            WriteKind::Error => "error",
            WriteKind::Comment => "comment",
            WriteKind::Raw => "raw",
            WriteKind::Body => "body",
            WriteKind::Piece => "piece",
            WriteKind::End => "end",
        }
    }
}

/// One write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedWrite {
    /// When it was due: an instant of the machine's monotonic clock.
    pub due_ns: Nanos,
    /// Just before the bytes were handed over: to the socket in HTTP/1.1, to the framing layer in
    /// HTTP/2. The same clock.
    pub written_ns: Nanos,
    /// Bytes.
    pub bytes: usize,
    /// Tokens in them.
    pub tokens: u32,
    /// What they were.
    pub kind: WriteKind,
    /// The client's window was full, so the last byte left later than the first.
    pub blocked: bool,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// As HTTP says it should.
    Complete,
    /// The server closed or reset the connection, as told.
    Cut,
    /// The server fell silent, as told, until the client left or the server stopped.
    Stalled,
    /// The client left before the end.
    ClientGone,
    /// The server was stopped before the end.
    Stopped,
}

impl Ending {
    /// Its name in the CSV.
    pub fn name(self) -> &'static str {
        match self {
            Ending::Complete => "complete",
            Ending::Cut => "cut",
            Ending::Stalled => "stalled",
            Ending::ClientGone => "client_gone",
            Ending::Stopped => "stopped",
        }
    }
}

/// One generation request and all that was sent for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedRequest {
    /// Its number in order of arrival, from 0; `mock-N` in the response.
    pub request: u64,
    /// `x-request-id` of the request.
    pub x_request_id: Option<String>,
    /// Path.
    pub path: String,
    /// Model.
    pub model: String,
    /// Status sent; 0 when none was.
    pub status: u16,
    /// Prompt tokens.
    pub prompt_tokens: usize,
    /// Prompt tokens that were in the cache.
    pub cached_tokens: usize,
    /// When its first byte was read: an instant of the machine's monotonic clock.
    pub first_byte_ns: Nanos,
    /// Zero of its schedule: the first byte, or the instant its turn came if it had to wait.
    pub start_ns: Nanos,
    /// How it ended.
    pub ending: Ending,
    /// The writes in order.
    pub writes: Vec<LoggedWrite>,
}

/// Finished generation requests in order of their ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// The latest requests.
    pub requests: VecDeque<LoggedRequest>,
    /// Requests dropped because the log is full: the oldest leave first.
    pub dropped: u64,
    /// How late all writes were, those of dropped requests included.
    pub lateness: Lateness,
}

/// How late writes were, in buckets of an eighth.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Writes by bucket: eight buckets for each doubling of nanoseconds.
    counts: BTreeMap<u32, u64>,
}

impl Lateness {
    fn add(&mut self, late: Nanos) {
        let late = late.0.max(8);
        let power = late.ilog2();
        let step = (late >> (power - 3)) as u32 & 7;
        *self.counts.entry(power * 8 + step).or_default() += 1;
    }

    /// Writes counted.
    pub fn writes(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Nearest-rank percentile, at most an eighth above the true value; `None` without writes.
    pub fn percentile(&self, percent: u32) -> Option<Nanos> {
        let rank = (self.writes() * u64::from(percent)).div_ceil(100).max(1);
        let mut below = 0;
        let (&bucket, _) = self.counts.iter().find(|(_, count)| {
            below += **count;
            below >= rank
        })?;
        let (power, step) = (bucket / 8, u128::from(bucket % 8));
        let end = ((8 + step + 1) << power >> 3) - 1;
        Some(Nanos(u64::try_from(end).unwrap_or(u64::MAX)))
    }
}

/// Columns of the CSV.
const COLUMNS: &str = "request,x_request_id,path,model,status,prompt_tokens,cached_tokens,\
                       first_byte_ns,start_ns,ending,write,due_ns,written_ns,bytes,tokens,kind,\
                       blocked";

impl Log {
    /// Adds a request to a log of at most `most`.
    pub(crate) fn push(&mut self, request: LoggedRequest, most: usize) {
        for write in &request.writes {
            self.lateness
                .add(write.written_ns.saturating_sub(write.due_ns));
        }
        self.requests.push_back(request);
        while self.requests.len() > most {
            self.requests.pop_front();
            self.dropped += 1;
        }
    }

    /// As CSV: a row a write; a request without writes has one row whose last columns are empty.
    pub fn to_csv(&self) -> String {
        let mut out = Log::header();
        for request in &self.requests {
            out.push_str(&Log::rows(request));
        }
        out
    }

    /// The first line of the CSV.
    pub(crate) fn header() -> String {
        format!("{COLUMNS}\n")
    }

    /// The lines of a request.
    pub(crate) fn rows(request: &LoggedRequest) -> String {
        let row = request_columns(request);
        let mut out = String::with_capacity((row.len() + 80) * request.writes.len().max(1));
        if request.writes.is_empty() {
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{row},,,,,,,");
        }
        for (i, write) in request.writes.iter().enumerate() {
            let _ = writeln!(
                out,
                "{row},{i},{},{},{},{},{},{}",
                write.due_ns.0,
                write.written_ns.0,
                write.bytes,
                write.tokens,
                write.kind.name(),
                write.blocked
            );
        }
        out
    }
}

fn request_columns(request: &LoggedRequest) -> String {
    format!(
        "{},{},{},{},{},{},{},{},{},{}",
        request.request,
        quoted(request.x_request_id.as_deref().unwrap_or("")),
        quoted(&request.path),
        quoted(&request.model),
        request.status,
        request.prompt_tokens,
        request.cached_tokens,
        request.first_byte_ns.0,
        request.start_ns.0,
        request.ending.name()
    )
}

fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(number: u64, writes: usize) -> LoggedRequest {
        let write = LoggedWrite {
            due_ns: Nanos(20),
            written_ns: Nanos(21),
            bytes: 3,
            tokens: 1,
            kind: WriteKind::Token,
            blocked: false,
        };
        LoggedRequest {
            request: number,
            x_request_id: Some("a,\"b".into()),
            path: "/p".into(),
            model: "m".into(),
            status: 200,
            prompt_tokens: 5,
            cached_tokens: 0,
            first_byte_ns: Nanos(10),
            start_ns: Nanos(11),
            ending: Ending::Complete,
            writes: vec![write; writes],
        }
    }

    #[test]
    fn a_row_a_write_and_one_for_a_request_without() {
        let mut log = Log::default();
        log.push(request(0, 2), 10);
        log.push(request(1, 0), 10);
        let csv = log.to_csv();
        let mut reader = csv::Reader::from_reader(csv.as_bytes());
        let rows: Vec<csv::StringRecord> = reader.records().map(|r| r.unwrap()).collect();
        assert_eq!(rows.len(), 3);
        assert_eq!(&rows[0][1], "a,\"b");
        assert_eq!(
            (&rows[1][10], &rows[1][12], &rows[1][15]),
            ("1", "21", "token")
        );
        assert_eq!((&rows[2][0], &rows[2][10], &rows[2][16]), ("1", "", ""));
    }

    #[test]
    fn lateness_is_nearest_rank_to_an_eighth_and_outlives_dropped_requests() {
        let mut log = Log::default();
        assert_eq!(log.lateness.percentile(99), None);
        for late in 1..=100 {
            let mut one = request(late, 1);
            one.writes[0].written_ns = one.writes[0].due_ns + Nanos::from_micros(late);
            log.push(one, 1);
        }
        assert_eq!((log.requests.len(), log.lateness.writes()), (1, 100));
        for (percent, exact) in [(50, 50_000), (99, 99_000), (100, 100_000)] {
            let value = log.lateness.percentile(percent).unwrap().0;
            assert!(
                value >= exact && value <= exact * 9 / 8,
                "{value} for {exact}"
            );
        }
    }

    #[test]
    fn a_full_log_drops_the_oldest_and_counts() {
        let mut log = Log::default();
        (0..5).for_each(|n| log.push(request(n, 1), 2));
        let kept: Vec<u64> = log.requests.iter().map(|r| r.request).collect();
        assert_eq!((kept, log.dropped), (vec![3, 4], 3));
    }
}
