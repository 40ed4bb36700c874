//! From rows to samples, by the definitions that every number of a report rests on.
//!
//! Samples are raw nanoseconds. Only requests that ended well give latencies: a failed, truncated
//! or incomplete request is a member of its own population, counted and never averaged in.

use pb_contract::{RequestRow, RequestStatus};
use pb_record::RunData;
use pb_record::metrics::{Bundle, bundled_tokens, counted_itl, event_gaps, request_metrics};

use super::counted::Counted;

/// The rule by which the gap before a bundle of tokens becomes token gaps.
pub const BUNDLE_RULE: &str = "even";

/// Raw samples of a set of requests, in nanoseconds, in row order unless sorted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    /// First token minus intended arrival.
    pub ttft: Vec<u64>,
    /// First token minus first byte sent.
    pub service_ttft: Vec<u64>,
    /// First event minus intended arrival.
    pub ttfr: Vec<u64>,
    /// Gaps between tokens; the gap before k tokens counts as k gaps of a k-th each.
    pub itl: Counted,
    /// Gaps between content events.
    pub event_gap: Vec<u64>,
    /// Time for each token after the first, one value a request of at least two tokens.
    pub tpot: Vec<u64>,
    /// Last token minus intended arrival.
    pub e2e: Vec<u64>,
    /// Tokens that the streams carried.
    pub tokens: u64,
    /// Of these, tokens that shared their event with others.
    pub bundled_tokens: u64,
}

impl Samples {
    /// The samples of the given rows of `data`.
    pub fn collect<'a>(data: &RunData, rows: impl IntoIterator<Item = &'a RequestRow>) -> Samples {
        let mut samples = Samples::default();
        for row in rows {
            if row.status == RequestStatus::Ok {
                samples.add(data, row);
            }
        }
        samples
    }

    /// The samples of one arm, of one class of it when `class` is given.
    pub fn of(data: &RunData, arm: &str, class: Option<&str>) -> Samples {
        Samples::collect(data, rows_of(data, arm, class))
    }

    /// Sorts every list, for quantiles.
    pub fn sorted(mut self) -> Samples {
        let lists = [
            &mut self.ttft,
            &mut self.service_ttft,
            &mut self.ttfr,
            &mut self.event_gap,
            &mut self.tpot,
            &mut self.e2e,
        ];
        for list in lists {
            list.sort_unstable();
        }
        self.itl.sort();
        self
    }

    fn add(&mut self, data: &RunData, row: &RequestRow) {
        let metrics = request_metrics(row);
        self.ttft.extend(metrics.ttft_ns);
        self.service_ttft.extend(metrics.service_ttft_ns);
        self.ttfr.extend(metrics.ttfr_ns);
        self.e2e.extend(metrics.e2e_ns);
        self.tpot.extend(metrics.tpot_ns);
        let events = data.tokens_of(row);
        self.event_gap
            .extend(event_gaps(events).iter().map(|gap| gap.gap_ns));
        self.itl.extend(counted_itl(events, Bundle::Even));
        let (bundled, total) = bundled_tokens(events);
        self.bundled_tokens += bundled;
        self.tokens += total;
    }
}

/// The rows of one arm, of one class of it when `class` is given.
pub fn rows_of<'a>(
    data: &'a RunData,
    arm: &str,
    class: Option<&str>,
) -> impl Iterator<Item = &'a RequestRow> {
    data.requests
        .iter()
        .filter(move |row| row.arm == arm && class.is_none_or(|class| row.class == class))
}

/// Whether a row's instants run backwards: a clock fault, which voids a run.
pub(crate) fn backwards(row: &RequestRow) -> bool {
    let instants = [
        Some(row.intended_ns),
        row.sent_ns,
        row.headers_ns,
        row.first_event_ns,
        row.first_token_ns,
        row.last_token_ns,
        row.closed_ns,
    ];
    let known: Vec<_> = instants.into_iter().flatten().collect();
    known.windows(2).any(|pair| pair[1] < pair[0])
}

/// Driver lag (first byte sent minus intended arrival) of the given rows, sorted, whatever became
/// of them: a late driver distorts a failed request as well.
pub(crate) fn driver_lag<'a>(rows: impl IntoIterator<Item = &'a RequestRow>) -> Vec<u64> {
    let mut lags: Vec<u64> = rows
        .into_iter()
        .filter_map(|row| request_metrics(row).driver_lag_ns)
        .collect();
    lags.sort_unstable();
    lags
}
