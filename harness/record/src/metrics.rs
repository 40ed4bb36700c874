//! What the instants of a request mean.
//!
//! These are the project's definitions of the latency metrics, in one place and pure. Latency
//! counts from the *intended* arrival, so that a late client shows; a role-only event ends the
//! time to the first response, never the time to the first token; closing the stream and the
//! usage event extend nothing. An absent value is `None`, never zero.

use std::collections::BTreeMap;

use pb_contract::{FailKind, Nanos, RequestRow, RequestStatus, TokenRow};
use serde::{Deserialize, Serialize};

/// The latencies of one request, in nanoseconds. They are derived from whatever instants the
/// request reached, so a failed request may have some: callers choose the population.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestMetrics {
    /// First token after the intended arrival.
    pub ttft_ns: Option<u64>,
    /// First event of any kind after the intended arrival.
    pub ttfr_ns: Option<u64>,
    /// First token after the first byte was sent.
    pub service_ttft_ns: Option<u64>,
    /// Decode time per token after the first, rounded to the nearest nanosecond; by the server's
    /// count when it has one. Absent for fewer than two tokens, and when the two counts are too
    /// far apart to be of the same tokens (see [`HIDDEN_FACTOR`]).
    pub tpot_ns: Option<u64>,
    /// Last token after the intended arrival.
    pub e2e_ns: Option<u64>,
    /// Stream closed after the intended arrival.
    pub close_ns: Option<u64>,
    /// First byte sent after the intended arrival: the client's own delay.
    pub driver_lag_ns: Option<u64>,
    /// The server counted other output tokens than the stream carried: some were hidden, or came
    /// in bundles whose size the stream does not tell.
    pub hidden_tokens: bool,
}

/// The most tokens that an event of unknown size is taken to carry. A server that counts up to so
/// many times the tokens that it streamed sent bundles, and its count gives the time per token;
/// one that counts more, or fewer, counted tokens that were never streamed, and there is no time
/// per token.
pub const HIDDEN_FACTOR: u32 = 4;

/// The latencies of a request.
pub fn request_metrics(row: &RequestRow) -> RequestMetrics {
    let since = |at: Option<Nanos>, from: Nanos| at.map(|at| at.saturating_sub(from).0);
    let hidden_tokens = row
        .completion_tokens
        .is_some_and(|counted| counted != row.streamed_tokens);
    RequestMetrics {
        ttft_ns: since(row.first_token_ns, row.intended_ns),
        ttfr_ns: since(row.first_event_ns, row.intended_ns),
        service_ttft_ns: row.sent_ns.and_then(|sent| since(row.first_token_ns, sent)),
        tpot_ns: tpot_ns(row),
        e2e_ns: since(row.last_token_ns, row.intended_ns),
        close_ns: since(row.closed_ns, row.intended_ns),
        driver_lag_ns: since(row.sent_ns, row.intended_ns),
        hidden_tokens,
    }
}

fn tpot_ns(row: &RequestRow) -> Option<u64> {
    let streamed = row.streamed_tokens;
    let counted = row.completion_tokens.unwrap_or(streamed);
    if counted < streamed || counted > streamed.saturating_mul(HIDDEN_FACTOR) {
        return None;
    }
    let gaps = u64::from(counted.checked_sub(1)?);
    let decode = row.last_token_ns?.saturating_sub(row.first_token_ns?).0;
    // Several tokens in the only event have no time between them that could be seen.
    if streamed < 2 {
        return None;
    }
    // Half of the divisor rounds to the nearest; no gap, no time per token.
    (gaps > 0).then(|| (decode + gaps / 2) / gaps)
}

/// The time between two consecutive content events of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// When it ended: the instant of the later event.
    pub at_ns: Nanos,
    /// Its length.
    pub gap_ns: u64,
    /// Tokens that the later event carried.
    pub tokens: u32,
}

/// The event gaps of one request, from its content events in order. One fewer than events.
pub fn event_gaps(tokens: &[TokenRow]) -> Vec<Gap> {
    let gap = |pair: &[TokenRow]| Gap {
        at_ns: pair[1].at_ns,
        gap_ns: pair[1].at_ns.saturating_sub(pair[0].at_ns).0,
        tokens: pair[1].tokens,
    };
    tokens.windows(2).map(gap).collect()
}

/// How a gap before several tokens becomes token latencies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bundle {
    /// Spread evenly over the tokens.
    #[default]
    Even,
    /// All before the first of them, none before the others.
    Burst,
}

/// A latency that several tokens share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Repeated {
    /// The latency in nanoseconds.
    pub ns: u64,
    /// How many tokens have it; at least 1.
    pub count: u64,
}

/// The inter-token latencies of one request, in order, equal ones of a gap counted: at most two
/// entries a gap, however many tokens a row claims. Their sum is exactly the time from the first
/// event to the last: what an even spread leaves over goes to the first tokens, a nanosecond each.
pub fn counted_itl(tokens: &[TokenRow], bundle: Bundle) -> Vec<Repeated> {
    let spread = |gap: Gap| {
        let count = u64::from(gap.tokens);
        let (first, rest) = match (count, bundle) {
            (0, _) => return [(0, 0); 2],
            (_, Bundle::Even) => {
                let longer = gap.gap_ns % count;
                let each = gap.gap_ns / count;
                ((each + 1, longer), (each, count - longer))
            }
            (_, Bundle::Burst) => ((gap.gap_ns, 1), (0, count - 1)),
        };
        [first, rest]
    };
    let all = event_gaps(tokens).into_iter().flat_map(spread);
    all.filter(|&(_, count)| count > 0)
        .map(|(ns, count)| Repeated { ns, count })
        .collect()
}

/// As [`counted_itl`], one entry a token. As long as the tokens that the rows claim: for rows that
/// a client made itself, not for rows from a file.
pub fn token_itl(tokens: &[TokenRow], bundle: Bundle) -> Vec<u64> {
    let runs = counted_itl(tokens, bundle).into_iter();
    runs.flat_map(|run| (0..run.count).map(move |_| run.ns))
        .collect()
}

/// `(tokens that came in an event with others, all tokens)`.
pub fn bundled_tokens(tokens: &[TokenRow]) -> (u64, u64) {
    let count = |row: &TokenRow| u64::from(row.tokens);
    let bundled = tokens.iter().filter(|row| row.tokens > 1).map(count).sum();
    (bundled, tokens.iter().map(count).sum())
}

/// How many requests ended how. The five kinds sum to `offered`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// All requests that were due.
    pub offered: u64,
    /// Complete.
    pub ok: u64,
    /// Ended by a failure other than truncation.
    pub failed: u64,
    /// Broken off.
    pub truncated: u64,
    /// Still running when the run ended.
    pub incomplete: u64,
    /// Due but never sent.
    pub not_offered: u64,
}

impl Counts {
    /// Counts rows.
    pub fn of<'a>(rows: impl IntoIterator<Item = &'a RequestRow>) -> Counts {
        let mut counts = Counts::default();
        for row in rows {
            counts.offered += 1;
            let slot = match row.status {
                RequestStatus::Ok => &mut counts.ok,
                RequestStatus::Failed => &mut counts.failed,
                RequestStatus::Truncated => &mut counts.truncated,
                RequestStatus::Incomplete => &mut counts.incomplete,
                RequestStatus::NotOffered => &mut counts.not_offered,
            };
            *slot += 1;
        }
        counts
    }
}

/// Rows by kind of failure; rows without one are not counted.
pub fn failures<'a>(rows: impl IntoIterator<Item = &'a RequestRow>) -> BTreeMap<FailKind, u64> {
    let mut counts = BTreeMap::new();
    for kind in rows.into_iter().filter_map(|row| row.fail) {
        *counts.entry(kind).or_insert(0) += 1;
    }
    counts
}
