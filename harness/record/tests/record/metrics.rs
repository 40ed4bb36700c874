//! The metric definitions on hand-worked streams.

use crate::common::{row, tokens};
use pb_contract::{FailKind, Nanos, RequestStatus};
use pb_record::metrics::{
    Bundle, Counts, Repeated, bundled_tokens, counted_itl, event_gaps, failures, request_metrics,
    token_itl,
};

const MS: u64 = 1_000_000;

/// Role event at 50 ms, one token at 200, three in one event at 300, one at 400; closed at 416.
#[test]
fn the_worked_stream() {
    let metrics = request_metrics(&row(3));
    assert_eq!(metrics.ttft_ns, Some(200 * MS));
    assert_eq!(metrics.ttfr_ns, Some(50 * MS));
    assert_eq!(metrics.service_ttft_ns, Some(199 * MS));
    assert_eq!(metrics.tpot_ns, Some(50 * MS));
    assert_eq!(metrics.e2e_ns, Some(400 * MS));
    assert_eq!(metrics.close_ns, Some(416 * MS));
    assert_eq!(metrics.driver_lag_ns, Some(MS));
    assert!(!metrics.hidden_tokens);

    let stream = tokens(3, &[(200, 1), (300, 3), (400, 1)]);
    let gaps: Vec<u64> = event_gaps(&stream).iter().map(|gap| gap.gap_ns).collect();
    assert_eq!(gaps, [100 * MS, 100 * MS]);
    let even = token_itl(&stream, Bundle::Even);
    assert_eq!(even, [33_333_334, 33_333_333, 33_333_333, 100 * MS]);
    assert_eq!(
        token_itl(&stream, Bundle::Burst),
        [100 * MS, 0, 0, 100 * MS]
    );
    assert_eq!(bundled_tokens(&stream), (3, 5));
}

#[test]
fn a_stall_is_a_gap_of_its_own_and_never_a_mean() {
    let stream = tokens(0, &[(0, 1), (10, 1), (20, 1), (30, 1), (1_000, 1)]);
    assert_eq!(
        token_itl(&stream, Bundle::Even),
        [10 * MS, 10 * MS, 10 * MS, 970 * MS]
    );
}

#[test]
fn the_first_token_is_no_inter_token_latency() {
    let stream = tokens(0, &[(500, 1), (510, 1), (520, 1)]);
    assert_eq!(token_itl(&stream, Bundle::Even), [10 * MS, 10 * MS]);
}

#[test]
fn token_latencies_sum_to_the_decode_time_under_both_rules() {
    let stream = tokens(0, &[(7, 2), (20, 7), (33, 3), (99, 1)]);
    for bundle in [Bundle::Even, Bundle::Burst] {
        let itl = token_itl(&stream, bundle);
        assert_eq!(itl.len(), 11);
        assert_eq!(itl.iter().sum::<u64>(), 92 * MS);
    }
}

#[test]
fn hidden_tokens_leave_the_time_per_token_out() {
    let mut hidden = row(0);
    hidden.completion_tokens = Some(500);
    let metrics = request_metrics(&hidden);
    assert!(metrics.hidden_tokens);
    assert_eq!(metrics.tpot_ns, None);
    // Fewer than were streamed are not the same tokens either.
    hidden.completion_tokens = Some(4);
    assert_eq!(request_metrics(&hidden).tpot_ns, None);
    let mut silent = row(0);
    silent.completion_tokens = None;
    assert_eq!(request_metrics(&silent).tpot_ns, Some(50 * MS));
}

/// The worked stream when only the usage tells how many tokens there were: three events, five
/// tokens. The count gives the time per token, and the difference is flagged.
#[test]
fn bundles_of_unknown_size_take_the_servers_count() {
    let mut bundled = row(0);
    (bundled.streamed_tokens, bundled.completion_tokens) = (3, Some(5));
    let metrics = request_metrics(&bundled);
    assert_eq!(
        (metrics.tpot_ns, metrics.hidden_tokens),
        (Some(50 * MS), true)
    );
    bundled.completion_tokens = Some(12);
    assert_eq!(request_metrics(&bundled).tpot_ns, Some(18_181_818));
    bundled.completion_tokens = Some(13);
    assert_eq!(request_metrics(&bundled).tpot_ns, None);
    // One event has no time within it.
    (bundled.streamed_tokens, bundled.completion_tokens) = (1, Some(3));
    assert_eq!(request_metrics(&bundled).tpot_ns, None);
}

#[test]
fn what_did_not_happen_is_absent() {
    let mut one = row(0);
    one.streamed_tokens = 1;
    one.completion_tokens = Some(1);
    assert_eq!(request_metrics(&one).tpot_ns, None);
    let mut none = row(0);
    (none.sent_ns, none.first_token_ns, none.last_token_ns) = (None, None, None);
    let metrics = request_metrics(&none);
    assert_eq!(
        (metrics.ttft_ns, metrics.e2e_ns, metrics.driver_lag_ns),
        (None, None, None)
    );
    assert_eq!((metrics.tpot_ns, metrics.service_ttft_ns), (None, None));
    assert!(token_itl(&[], Bundle::Even).is_empty());
}

#[test]
fn latency_counts_from_the_intended_arrival() {
    let mut late = row(0);
    late.intended_ns = Nanos::ZERO;
    late.sent_ns = Some(Nanos::from_millis(150));
    let metrics = request_metrics(&late);
    assert_eq!(metrics.driver_lag_ns, Some(150 * MS));
    assert_eq!(
        (metrics.ttft_ns, metrics.service_ttft_ns),
        (Some(200 * MS), Some(50 * MS))
    );
}

#[test]
fn populations_sum_to_what_was_offered() {
    let with = |status, fail| {
        let mut row = row(0);
        (row.status, row.fail) = (status, fail);
        row
    };
    let rows = [
        with(RequestStatus::Ok, None),
        with(RequestStatus::Ok, None),
        with(RequestStatus::Failed, Some(FailKind::HttpStatus)),
        with(RequestStatus::Truncated, Some(FailKind::Truncated)),
        with(RequestStatus::Incomplete, Some(FailKind::Cancelled)),
        with(RequestStatus::Incomplete, Some(FailKind::Cancelled)),
        with(RequestStatus::NotOffered, Some(FailKind::NotOffered)),
    ];
    let counts = Counts::of(&rows);
    let parts = (
        counts.ok,
        counts.failed,
        counts.truncated,
        counts.incomplete,
        counts.not_offered,
    );
    assert_eq!((counts.offered, parts), (7, (2, 1, 1, 2, 1)));
    let kinds: Vec<_> = failures(&rows).into_iter().collect();
    assert_eq!(
        kinds,
        [
            (FailKind::HttpStatus, 1),
            (FailKind::Truncated, 1),
            (FailKind::Cancelled, 2),
            (FailKind::NotOffered, 1)
        ]
    );
}

#[test]
fn a_row_that_claims_many_tokens_costs_no_memory() {
    // 100 ms over 2^32 - 1 tokens: 100,000,000 of them take a nanosecond, the others none.
    let stream = tokens(0, &[(0, 1), (100, u32::MAX)]);
    let run = |ns, count| Repeated { ns, count };
    let many = u64::from(u32::MAX);
    let even = [run(1, 100 * MS), run(0, many - 100 * MS)];
    assert_eq!(counted_itl(&stream, Bundle::Even), even);
    let burst = [run(100 * MS, 1), run(0, many - 1)];
    assert_eq!(counted_itl(&stream, Bundle::Burst), burst);
    // No token, no latency, and no division by zero.
    let none = tokens(0, &[(0, 1), (100, 0)]);
    assert!(counted_itl(&none, Bundle::Even).is_empty());
    let mut data_rows = row(0);
    data_rows.streamed_tokens = u32::MAX;
    let dir = tempfile::tempdir().unwrap();
    let (rows, steps) = (vec![data_rows], Vec::new());
    let data =
        pb_record::RunData::from_parts(dir.path(), crate::common::manifest(), rows, stream, steps);
    let report = pb_record::hlog::export(&data.unwrap()).unwrap();
    assert_eq!(report.itl.values, many);
}
