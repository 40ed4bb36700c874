//! The driver under the virtual clock.

use pb_contract::plan::Plan;
use pb_contract::{FailKind, Nanos, RequestStatus};
use pb_load::rows::{Record, RunContext};
use pb_load::shell_sim::{FixedServer, SimOptions, Stall, run_sim};
use pb_record::metrics::{Counts, request_metrics};

use crate::driver::{closed, open, plan};

const MS: u64 = 1_000_000;

fn run(plan: Plan, server: (u64, u64, usize), stalls: Vec<Stall>) -> Vec<Record> {
    let (ttft, gap, slots) = server;
    let mut server = FixedServer::new(Nanos::from_millis(ttft), Nanos::from_millis(gap), slots);
    let options = SimOptions {
        start: Nanos::ZERO,
        stalls,
    };
    let mut records = run_sim(plan, RunContext::default(), &mut server, &options).unwrap();
    records.sort_by_key(|record| record.row.request);
    records
}

fn ttft_ms(records: &[Record]) -> Vec<u64> {
    records
        .iter()
        .map(|record| request_metrics(&record.row).ttft_ns.unwrap() / MS)
        .collect()
}

/// Requests every 100 ms, first token after 20 ms. A client that hangs from 150 ms to 650 ms sends
/// those of 200 to 600 ms at 650 ms: by hand, their latencies are 470, 370, 270, 170 and 70 ms,
/// while the time since sending stays 20 ms.
#[test]
fn a_stalled_client_shows_in_the_latency() {
    let requests: Vec<_> = (0..8).map(|i| open(i, 100 * i)).collect();
    let calm = run(plan(requests.clone(), vec![]), (20, 5, 100), vec![]);
    assert_eq!(ttft_ms(&calm), [20; 8]);

    let stall = (Nanos::from_millis(150), Nanos::from_millis(650));
    let stalled = run(plan(requests, vec![]), (20, 5, 100), vec![stall]);
    assert_eq!(ttft_ms(&stalled), [20, 20, 470, 370, 270, 170, 70, 20]);
    for record in &stalled {
        assert_eq!(request_metrics(&record.row).service_ttft_ns, Some(20 * MS));
    }
    let lag = request_metrics(&stalled[2].row).driver_lag_ns;
    assert_eq!(
        lag,
        Some(450 * MS),
        "and the driver's own lag says whose fault it was"
    );
}

#[test]
fn a_stalled_reader_shows_too() {
    // Sent at 0, tokens at 100 and 110 ms; the client hangs from 50 to 300 ms.
    let stall = (Nanos::from_millis(50), Nanos::from_millis(300));
    let records = run(plan(vec![open(0, 0)], vec![]), (100, 10, 1), vec![stall]);
    assert_eq!(ttft_ms(&records), [300]);
}

/// One slot, ten requests a second, 190 ms of service: request `i` waits `90 i` ms.
#[test]
fn row_39_a_queue_grows_in_the_latency_from_the_intended_arrival() {
    let requests: Vec<_> = (0..10).map(|i| open(i, 100 * i)).collect();
    let mut long = plan(requests, vec![]);
    long.drain_ns = Nanos::from_secs(10);
    // Two tokens: the first after 180 ms, the second 10 ms later, which frees the slot.
    let records = run(long, (180, 10, 1), vec![]);
    let expected: Vec<u64> = (0..10).map(|i| 180 + 90 * i).collect();
    assert_eq!(ttft_ms(&records), expected);
    // The time since sending has the server's queue in it too; what the client adds is nothing.
    for record in &records {
        assert_eq!(request_metrics(&record.row).driver_lag_ns, Some(0));
    }
}

#[test]
fn closed_loops_follow_one_another_and_end_with_the_horizon() {
    // 30 ms + one gap of 10 ms = 40 ms a request: 1,000 ms hold 25 of them a stream; the one that
    // starts at the horizon itself is the 26th.
    let records = run(plan(vec![], vec![closed(0, 2, 1_000)]), (30, 10, 8), vec![]);
    assert_eq!(records.len(), 52);
    assert_eq!(records[50].row.intended_ns, Nanos::from_millis(1_000));
    assert!(
        records
            .iter()
            .all(|record| record.row.status == RequestStatus::Ok)
    );
    assert!(records.iter().all(|record| record.tokens.len() == 2));
}

#[test]
fn rows_32_and_35_every_request_that_was_due_is_a_row() {
    // One slot of 400 ms a request; ten are due within 1,000 ms, the run is cut off at 1,500 ms:
    // three have ended at 400, 800 and 1,200 ms, seven are incomplete.
    let requests: Vec<_> = (0..10).map(|i| open(i, 100 * i)).collect();
    let records = run(plan(requests.clone(), vec![]), (390, 10, 1), vec![]);
    let counts = Counts::of(records.iter().map(|record| &record.row));
    assert_eq!((counts.offered, counts.ok, counts.incomplete), (10, 3, 7));
    let cut = &records[9].row;
    assert_eq!(
        (cut.fail, cut.first_token_ns),
        (Some(FailKind::Cancelled), None)
    );
    assert_eq!(cut.closed_ns, Some(Nanos::from_millis(1_500)));
    // The fourth had its first token at 1,590 ms at the earliest: nothing of it is made up.
    assert!(records[3].tokens.is_empty());

    // A client that hangs past the cut-off never sends what was due meanwhile. Of the five that it
    // had sent, the server has served four by 1,600 ms; the fifth would end at 2,000 ms.
    let stall = (Nanos::from_millis(450), Nanos::from_millis(1_995));
    let records = run(plan(requests, vec![]), (390, 10, 1), vec![stall]);
    let counts = Counts::of(records.iter().map(|record| &record.row));
    assert_eq!((counts.offered, counts.ok, counts.not_offered), (10, 4, 5));
    assert_eq!(counts.incomplete, 1);
    let lost = &records[9].row;
    assert_eq!(
        (lost.status, lost.sent_ns),
        (RequestStatus::NotOffered, None)
    );
    assert_eq!(lost.fail, Some(FailKind::NotOffered));
}

#[test]
fn row_45_the_same_plan_gives_the_same_rows() {
    let make = || {
        let requests: Vec<_> = (0..9).map(|i| open(1_000 + i, 97 * i)).collect();
        run(plan(requests, vec![closed(0, 3, 500)]), (31, 7, 4), vec![])
    };
    assert_eq!(make(), make());
}
