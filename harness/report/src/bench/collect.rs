//! What the pictures of a load run are made of, gathered while its records are read once more.
//!
//! Requests are kept as a few instants each. Of the gaps between tokens only the largest of each
//! thousandth of the run is kept, and only the stalls of the requests that are drawn one by one,
//! so that the size does not grow with the number of tokens.

use std::collections::BTreeMap;

use pb_bench::{Distribution, Document, ServerPoint, Tally};
use pb_contract::{FailKind, Nanos, RequestRow, RequestStatus, TokenRow, TransferRow};
use pb_judge::run::Counted;
use pb_record::metrics::{Repeated, event_gaps, request_metrics};

/// Requests drawn one by one: the first ones by arrival.
pub(crate) const FIRST: usize = 200;

/// Requests drawn one by one: the slowest ones.
pub(crate) const SLOWEST: usize = 20;

/// Parts of the run, of each of which the largest gap is kept.
const PARTS: u64 = 1_000;

/// Different failures that are listed.
const FAILURES: usize = 20;

/// Longest message of a failure that is kept, in characters.
const MESSAGE: usize = 160;

/// Samples closer than this share of their value are drawn as one: far below a pixel.
const CLOSE: f64 = 0.000_5;

/// A request as its pictures need it, in nanoseconds from the start.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Dot {
    pub(crate) request: u64,
    pub(crate) class: usize,
    pub(crate) intended: u64,
    pub(crate) sent: Option<u64>,
    pub(crate) first: Option<u64>,
    pub(crate) last: Option<u64>,
    pub(crate) closed: Option<u64>,
    pub(crate) ok: bool,
    /// Gaps that were stalls; of requests that are drawn one by one.
    pub(crate) stalls: Vec<(u64, u64)>,
}

impl Dot {
    pub(crate) fn e2e(&self) -> Option<u64> {
        Some(self.last?.saturating_sub(self.intended))
    }
}

/// Failures of one kind with one message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    pub(crate) kind: String,
    pub(crate) status: Option<u16>,
    pub(crate) message: String,
    pub(crate) count: u64,
    pub(crate) first: u64,
}

/// What the pictures and the table of failures of a load run are made of.
#[derive(Clone, Debug)]
pub struct Pictures {
    pub(crate) start: u64,
    pub(crate) span: u64,
    pub(crate) classes: Vec<String>,
    pub(crate) dots: Vec<Dot>,
    pub(crate) ttft: Counted,
    pub(crate) itl: Counted,
    pub(crate) e2e: Counted,
    pub(crate) in_flight: Vec<(u64, u64)>,
    /// For each part of the run the largest gap that ended in it, `(end, gap)`.
    pub(crate) gaps: BTreeMap<u64, (u64, u64)>,
    pub(crate) stall_ns: Option<u64>,
    pub(crate) server: Vec<ServerPoint>,
    pub(crate) transfers: Vec<TransferRow>,
    pub(crate) failures: Vec<Failure>,
    pub(crate) more_failures: u64,
    /// Numbers in `dots` of those that are drawn one by one.
    pub(crate) drawn: BTreeMap<(u32, u64), usize>,
}

impl Pictures {
    /// From the requests of a run; [`Pictures::add`] takes its records in afterwards.
    pub fn new(document: &Document, tally: &Tally, server: Vec<ServerPoint>) -> Pictures {
        let start = document.window.start_ns;
        let since = |at: Nanos| at.saturating_sub(start).0;
        let classes = tally.classes();
        let dot = |row: &RequestRow| Dot {
            request: row.request.0,
            class: classes
                .iter()
                .position(|class| *class == row.class)
                .unwrap_or(0),
            intended: since(row.intended_ns),
            sent: row.sent_ns.map(since),
            first: row.first_token_ns.map(since),
            last: row.last_token_ns.map(since),
            closed: row.closed_ns.map(since),
            ok: row.status == RequestStatus::Ok,
            stalls: Vec::new(),
        };
        let mut rows: Vec<&RequestRow> = tally.rows().iter().collect();
        rows.sort_by_key(|row| (row.intended_ns, row.block, row.request));
        let dots: Vec<Dot> = rows.iter().map(|row| dot(row)).collect();
        let all = tally.all();
        let stall_ms = document.stalls.threshold_ms;
        let (failures, more_failures) = failures(&rows);
        let flight = pb_bench::load::in_flight(tally.rows());
        Pictures {
            start: start.0,
            span: dots
                .iter()
                .filter_map(|d| d.closed)
                .max()
                .unwrap_or(0)
                .max(1),
            drawn: drawn(&rows),
            ttft: thinned(&all.latency(|m| m.ttft_ns)),
            itl: thinned(&all.itl()),
            e2e: thinned(&all.latency(|m| m.e2e_ns)),
            in_flight: flight.into_iter().map(|(at, n)| (since(at), n)).collect(),
            gaps: BTreeMap::new(),
            stall_ns: stall_ms.map(|ms| (ms * 1e6).round() as u64),
            server,
            transfers: Vec::new(),
            failures,
            more_failures,
            classes,
            dots,
        }
    }

    /// Takes in the KV transfers between the workers of the run.
    #[must_use]
    pub fn with_transfers(mut self, transfers: Vec<TransferRow>) -> Pictures {
        self.transfers = transfers;
        self
    }

    /// Takes a record in, for the gaps over time and the stalls of each request.
    pub fn add(&mut self, row: &RequestRow, tokens: &[TokenRow]) {
        if row.status != RequestStatus::Ok || row.arm == pb_bench::WARMUP_ARM {
            return;
        }
        let dot = self.drawn.get(&(row.block, row.request.0)).copied();
        for gap in event_gaps(tokens) {
            let at = gap.at_ns.0.saturating_sub(self.start);
            let part = (u128::from(at) * u128::from(PARTS) / u128::from(self.span)) as u64;
            let kept = self.gaps.entry(part.min(PARTS)).or_insert((at, gap.gap_ns));
            if gap.gap_ns > kept.1 {
                *kept = (at, gap.gap_ns);
            }
            let stall = self.stall_ns.is_some_and(|least| gap.gap_ns >= least);
            if let Some(dot) = dot.filter(|_| stall) {
                self.dots[dot]
                    .stalls
                    .push((at.saturating_sub(gap.gap_ns), at));
            }
        }
    }
}

/// The first requests and the slowest ones.
fn drawn(rows: &[&RequestRow]) -> BTreeMap<(u32, u64), usize> {
    let slowest = slowest(rows);
    let numbers = (0..rows.len().min(FIRST)).chain(slowest);
    numbers
        .map(|i| ((rows[i].block, rows[i].request.0), i))
        .collect()
}

/// Numbers of the slowest requests that ended well, the slowest first.
fn slowest(rows: &[&RequestRow]) -> Vec<usize> {
    let ok = |i: &usize| rows[*i].status == RequestStatus::Ok;
    let mut all: Vec<usize> = (0..rows.len()).filter(ok).collect();
    all.sort_by_key(|&i| std::cmp::Reverse(request_metrics(rows[i]).e2e_ns));
    all.truncate(SLOWEST);
    all
}

/// Samples with those that lie close together as one, at the largest of them.
fn thinned(samples: &Distribution) -> Counted {
    let mut runs: Vec<Repeated> = Vec::new();
    let mut least = 0_u64;
    for run in samples.iter() {
        match runs.last_mut() {
            Some(last) if (run.ns - least) as f64 <= CLOSE * least as f64 => {
                last.ns = run.ns;
                last.count = last.count.saturating_add(run.count);
            }
            _ => {
                least = run.ns;
                runs.push(run);
            }
        }
    }
    let mut counted = Counted::default();
    counted.extend(runs);
    counted
}

/// Failures by kind, status and message, the most frequent first, and how many are not listed.
fn failures(rows: &[&RequestRow]) -> (Vec<Failure>, u64) {
    let mut groups: BTreeMap<(FailKind, Option<u16>, String), (u64, u64)> = BTreeMap::new();
    for row in rows {
        let Some(kind) = row.fail else { continue };
        let message = row.fail_message.as_deref().unwrap_or("");
        let message = message.chars().take(MESSAGE).collect();
        let group = groups.entry((kind, row.http_status, message));
        group.or_insert((0, row.request.0)).0 += 1;
    }
    let name = |kind: FailKind| {
        let value = serde_json::to_value(kind).unwrap_or_default();
        value.as_str().unwrap_or("?").to_owned()
    };
    let all = groups.into_iter();
    let mut all: Vec<Failure> = all
        .map(|((kind, status, message), (count, first))| Failure {
            kind: name(kind),
            status,
            message,
            count,
            first,
        })
        .collect();
    all.sort_by_key(|failure| std::cmp::Reverse(failure.count));
    let more = all.iter().skip(FAILURES).map(|failure| failure.count).sum();
    all.truncate(FAILURES);
    (all, more)
}
