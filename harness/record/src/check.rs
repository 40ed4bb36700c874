//! What speaks against the rows of a run.
//!
//! Every event of a stream is written down more than once: one by one and as a sum, as the first
//! and the last of its request, as a way of ending and as the columns that go with it. A table
//! that was cut, doubled, sorted or edited contradicts itself, and numbers made of it are wrong
//! without looking wrong. So each statement is held against the others, and whatever does not fit
//! is named.
//!
//! Only what the client itself cannot have written is a fault. What a server may say (more tokens
//! than were asked for, a cache that found more than the prompt) is none.

use std::collections::BTreeMap;

use pb_contract::{FailKind, Nanos, RequestRow, RequestStatus, TokenRow};
use serde::{Deserialize, Serialize};

/// Examples of one fault that are kept: the others are only counted.
const EXAMPLES: usize = 2;

/// By how much an answer may seem to come before its request was sent. The kernel's stamps of
/// arrival are of another clock than the stamps of sending.
const CLOCKS_APART: Nanos = Nanos::from_millis(1);

/// Kinds of contradiction in a run directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// A table of a run that ended is not there, or has no header.
    MissingTable,
    /// A table of a run that ended stops in mid line.
    CutLine,
    /// A table has other bytes than its writer left.
    ChangedTable,
    /// A whole row does not parse.
    UnreadableRow,
    /// A request has more than one row.
    DuplicateRequest,
    /// Content events of a request that has no row.
    UnknownTokens,
    /// Content events that do not stand where their request is.
    DisplacedTokens,
    /// The content events of a request are not numbered 0, 1, 2, ...
    EventNumbers,
    /// A content event that carried no token.
    EmptyEvent,
    /// The content events of a request go back in time.
    EventInstants,
    /// More tokens in the content events than the request streamed.
    EventSum,
    /// The first or the last content event is not where the request row says.
    EventEnds,
    /// The instants of a request are not in the order of what happened.
    Instants,
    /// A way of ending without the kind of failure that goes with it, or the reverse.
    Status,
    /// A column that this way of ending must have is empty, or one that it cannot have is not.
    Columns,
    /// Another number of requests than were planned.
    RequestCount,
    /// Request numbers with gaps, or beyond the plan.
    RequestNumbers,
    /// Other prompt or output lengths than were planned.
    Lengths,
    /// A request that was due before the schedule began.
    BeforeStart,
    /// Two files name another seed, schedule or count.
    Receipts,
    /// The figures in `bench.json` are not those of the rows.
    Document,
    /// A histogram log holds another number of values than the rows have.
    Histograms,
}

impl Fault {
    /// What it is, for people.
    pub const fn words(self) -> &'static str {
        match self {
            Fault::MissingTable => "a table is missing",
            Fault::CutLine => "a table of a run that ended stops in mid line",
            Fault::ChangedTable => "a table is not as its writer left it",
            Fault::UnreadableRow => "rows cannot be read",
            Fault::DuplicateRequest => "requests have more than one row",
            Fault::UnknownTokens => "content events belong to no request",
            Fault::DisplacedTokens => "content events stand apart from their request",
            Fault::EventNumbers => "content events are missing or doubled",
            Fault::EmptyEvent => "content events carry no token",
            Fault::EventInstants => "content events go back in time",
            Fault::EventSum => "content events carry more tokens than their request",
            Fault::EventEnds => "content events do not end where their request says",
            Fault::Instants => "instants are out of order",
            Fault::Status => "status and failure do not fit",
            Fault::Columns => "columns do not fit how the request ended",
            Fault::RequestCount => "the number of requests is not the planned one",
            Fault::RequestNumbers => "request numbers do not fit the plan",
            Fault::Lengths => "lengths are not the planned ones",
            Fault::BeforeStart => "requests were due before the start",
            Fault::Receipts => "the files of the run disagree",
            Fault::Document => "bench.json has other figures than the rows",
            Fault::Histograms => "a histogram log has other values than the rows",
        }
    }
}

/// What one kind of fault was found in.
#[derive(Clone, Debug, Default, PartialEq)]
struct Group {
    count: u64,
    examples: Vec<String>,
}

/// What was found, by kind. Its size does not grow with the number of faults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    groups: BTreeMap<Fault, Group>,
}

impl Findings {
    /// Notes a fault; `example` says where, and is made only while examples are kept.
    pub fn add(&mut self, fault: Fault, example: impl FnOnce() -> String) {
        self.add_many(fault, 1, example);
    }

    /// Notes a fault that was found `count` times, with one example of it.
    pub fn add_many(&mut self, fault: Fault, count: u64, example: impl FnOnce() -> String) {
        let group = self.groups.entry(fault).or_default();
        group.count = group.count.saturating_add(count);
        if group.examples.len() < EXAMPLES {
            group.examples.push(crate::visible(&example()));
        }
    }

    /// Nothing speaks against the run.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// How often a fault was found.
    pub fn count(&self, fault: Fault) -> u64 {
        self.groups.get(&fault).map_or(0, |group| group.count)
    }

    /// The kinds that were found.
    pub fn faults(&self) -> impl Iterator<Item = Fault> {
        self.groups.keys().copied()
    }

    /// One sentence for each kind, each beginning with `contradiction:`.
    pub fn reasons(&self) -> Vec<String> {
        let sentence = |(fault, group): (&Fault, &Group)| {
            let examples = group.examples.join("; ");
            let more = match group.count - group.examples.len() as u64 {
                0 => String::new(),
                more => format!("; and {more} more"),
            };
            format!("contradiction: {}: {examples}{more}", fault.words())
        };
        self.groups.iter().map(sentence).collect()
    }
}

/// A request in words.
pub fn place(row: &RequestRow) -> String {
    in_words(&row.arm, row.block, row.request.0)
}

/// A request in words, by its parts.
pub(crate) fn in_words(arm: &str, block: u32, request: u64) -> String {
    format!("request {request} of arm {arm:?}, block {block}")
}

/// Holds a request and its content events against one another.
pub fn check_record(row: &RequestRow, events: &[TokenRow], findings: &mut Findings) {
    let mut add = |fault, what: Option<String>| {
        if let Some(what) = what {
            findings.add(fault, || format!("{}: {what}", place(row)));
        }
    };
    if let Some((fault, what)) = events_fault(events) {
        add(fault, Some(what));
    }
    add(Fault::EventSum, sum_fault(row, events));
    add(Fault::EventEnds, ends_fault(row, events));
    add(Fault::Instants, instants_fault(row));
    add(Fault::Status, status_fault(row));
    add(Fault::Columns, columns_fault(row));
}

/// The first thing that is wrong with the numbers, times and counts of the content events of one
/// request by themselves.
pub fn events_fault(events: &[TokenRow]) -> Option<(Fault, String)> {
    for (index, event) in events.iter().enumerate() {
        let number = event.event;
        let previous = index.checked_sub(1).map(|before| &events[before]);
        if previous.is_some_and(|previous| previous.event == number) {
            return Some((Fault::EventNumbers, format!("two rows of event {number}")));
        }
        if number as usize != index {
            let what = format!("no event {index}, but an event {number}");
            return Some((Fault::EventNumbers, what));
        }
        if event.tokens == 0 {
            return Some((Fault::EmptyEvent, format!("no token in event {number}")));
        }
        if previous.is_some_and(|previous| event.at_ns < previous.at_ns) {
            let what = format!("a time that runs backwards at event {number}");
            return Some((Fault::EventInstants, what));
        }
    }
    None
}

/// Fewer is possible: tokens that a stream announced and that no content event followed.
fn sum_fault(row: &RequestRow, events: &[TokenRow]) -> Option<String> {
    let sum: u64 = events.iter().map(|event| u64::from(event.tokens)).sum();
    let streamed = row.streamed_tokens;
    (sum > u64::from(streamed))
        .then(|| format!("{sum} tokens in events, streamed_tokens {streamed}"))
}

fn ends_fault(row: &RequestRow, events: &[TokenRow]) -> Option<String> {
    let ends = [
        ("first_token_ns", row.first_token_ns, events.first()),
        ("last_token_ns", row.last_token_ns, events.last()),
    ];
    let at = |event: Option<&TokenRow>| event.map(|event| event.at_ns);
    let (column, row, event) = ends
        .into_iter()
        .find(|(_, row, event)| *row != at(*event))?;
    let said = |at: Option<Nanos>| at.map_or("absent".to_owned(), |at| at.0.to_string());
    Some(match event {
        Some(event) => {
            let (number, at) = (event.event, event.at_ns.0);
            format!("{column} is {}, event {number} came at {at}", said(row))
        }
        None => format!("{column} is {}, and there is no event", said(row)),
    })
}

fn instants_fault(row: &RequestRow) -> Option<String> {
    let steps = [
        ("intended_ns", Some(row.intended_ns)),
        ("sent_ns", row.sent_ns),
        ("headers_ns", row.headers_ns),
        ("first_event_ns", row.first_event_ns),
        ("first_token_ns", row.first_token_ns),
        ("last_token_ns", row.last_token_ns),
        ("closed_ns", row.closed_ns),
    ];
    let mut before: Option<(&str, Nanos)> = None;
    for (name, at) in steps {
        let Some(at) = at else { continue };
        if let Some((earlier, limit)) = before {
            let slack = match (earlier, name) {
                (_, "sent_ns") => Nanos(0),
                ("intended_ns" | "sent_ns", _) => CLOCKS_APART,
                _ => Nanos(0),
            };
            if at.0.saturating_add(slack.0) < limit.0 {
                return Some(format!(
                    "{name} {at_ns} is before {earlier} {limit_ns}",
                    at_ns = at.0,
                    limit_ns = limit.0
                ));
            }
        }
        before = Some((name, at));
    }
    None
}

/// The population that a kind of failure belongs to.
const fn status_of(fail: Option<FailKind>) -> RequestStatus {
    match fail {
        None => RequestStatus::Ok,
        Some(FailKind::Truncated) => RequestStatus::Truncated,
        Some(FailKind::Cancelled) => RequestStatus::Incomplete,
        Some(FailKind::NotOffered) => RequestStatus::NotOffered,
        Some(_) => RequestStatus::Failed,
    }
}

fn status_fault(row: &RequestRow) -> Option<String> {
    let name = |value: serde_json::Result<String>| value.unwrap_or_default().replace('"', "");
    (row.status != status_of(row.fail)).then(|| {
        let status = name(serde_json::to_string(&row.status));
        let fail = name(serde_json::to_string(&row.fail));
        format!("status {status} with fail {fail}")
    })
}

/// Columns that a way of ending must have, and those that it cannot have.
const fn demanded(fail: Option<FailKind>) -> (&'static [&'static str], &'static [&'static str]) {
    match fail {
        None => (
            &[
                "sent_ns",
                "headers_ns",
                "http_status",
                "first_event_ns",
                "first_token_ns",
                "last_token_ns",
                "closed_ns",
            ],
            &["fail_message"],
        ),
        Some(FailKind::NotOffered) => (
            &[],
            &[
                "sent_ns",
                "headers_ns",
                "http_status",
                "first_event_ns",
                "first_token_ns",
                "last_token_ns",
                "closed_ns",
                "finish_reason",
                "prompt_tokens",
                "cached_tokens",
                "completion_tokens",
            ],
        ),
        Some(
            FailKind::Dns
            | FailKind::Connect
            | FailKind::Tls
            | FailKind::TimeoutConnect
            | FailKind::ClientPortExhausted,
        ) => (
            &["closed_ns"],
            &[
                "headers_ns",
                "http_status",
                "first_event_ns",
                "first_token_ns",
            ],
        ),
        Some(FailKind::HttpStatus) => (
            &["sent_ns", "headers_ns", "http_status", "closed_ns"],
            &["first_token_ns"],
        ),
        Some(FailKind::InBandError) => {
            (&["sent_ns", "headers_ns", "http_status", "closed_ns"], &[])
        }
        Some(FailKind::NoTokens) => (
            &["sent_ns", "headers_ns", "http_status", "closed_ns"],
            &["first_token_ns"],
        ),
        Some(FailKind::TimeoutFirstToken) => (&["closed_ns"], &["first_token_ns"]),
        Some(FailKind::TimeoutIdle) => (&["sent_ns", "headers_ns", "closed_ns"], &[]),
        Some(
            FailKind::TimeoutTotal | FailKind::Protocol | FailKind::Truncated | FailKind::Cancelled,
        ) => (&["closed_ns"], &[]),
    }
}

fn columns_fault(row: &RequestRow) -> Option<String> {
    let columns = [
        ("sent_ns", row.sent_ns.is_some()),
        ("headers_ns", row.headers_ns.is_some()),
        ("http_status", row.http_status.is_some()),
        ("first_event_ns", row.first_event_ns.is_some()),
        ("first_token_ns", row.first_token_ns.is_some()),
        ("last_token_ns", row.last_token_ns.is_some()),
        ("closed_ns", row.closed_ns.is_some()),
        ("fail_message", row.fail_message.is_some()),
        ("finish_reason", row.finish_reason.is_some()),
        ("prompt_tokens", row.prompt_tokens.is_some()),
        ("cached_tokens", row.cached_tokens.is_some()),
        ("completion_tokens", row.completion_tokens.is_some()),
    ];
    let has = |name: &str| {
        columns
            .iter()
            .any(|(column, there)| *column == name && *there)
    };
    let (must, cannot) = demanded(row.fail);
    let empty = must.iter().find(|name| !has(name));
    let filled = cannot.iter().find(|name| has(name));
    let refused = row.fail == Some(FailKind::HttpStatus);
    if let Some(name) = empty {
        return Some(format!("no {name}"));
    }
    if let Some(name) = filled {
        return Some(format!("a {name}"));
    }
    if has("first_token_ns") != has("last_token_ns") {
        return Some("one of first_token_ns and last_token_ns without the other".to_owned());
    }
    if has("headers_ns") != has("http_status") {
        return Some("one of headers_ns and http_status without the other".to_owned());
    }
    match row.http_status {
        Some(200) if refused => Some("http_status 200 of a refusal".to_owned()),
        Some(status) if row.fail.is_none() && status != 200 => {
            Some(format!("http_status {status} of a request that ended well"))
        }
        _ if row.first_token_ns.is_some() && row.streamed_tokens == 0 => {
            Some("a first token, and streamed_tokens 0".to_owned())
        }
        _ if row.status == RequestStatus::NotOffered && row.streamed_tokens > 0 => {
            Some("streamed_tokens of a request that was never sent".to_owned())
        }
        _ => None,
    }
}
