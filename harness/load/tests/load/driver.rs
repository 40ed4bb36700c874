//! The driver's decisions, step by step and by hand.

use pb_contract::plan::{ClosedLoop, OpenRequest, Plan, PlannedBody};
use pb_contract::{Nanos, RequestId};
use pb_load::driver::{Action, Driver, PlanError};

pub(crate) fn body(class: &str) -> PlannedBody {
    PlannedBody::of_ids(class, vec![1, 2, 3], 2)
}

pub(crate) fn open(id: u64, offset_ms: u64) -> OpenRequest {
    let offset_ns = Nanos::from_millis(offset_ms);
    OpenRequest {
        id: RequestId(id),
        offset_ns,
        body: body("open"),
    }
}

pub(crate) fn closed(first_id: u64, streams: usize, requests: usize) -> ClosedLoop {
    let bodies = vec![body("closed"); requests];
    ClosedLoop {
        streams,
        first_id: RequestId(first_id),
        bodies,
    }
}

pub(crate) fn plan(open: Vec<OpenRequest>, closed: Vec<ClosedLoop>) -> Plan {
    let (horizon_ns, drain_ns) = (Nanos::from_millis(1_000), Nanos::from_millis(500));
    Plan {
        open,
        closed,
        horizon_ns,
        drain_ns,
        ..Plan::default()
    }
}

/// A plan with more time than any machine needs: a run ends when its requests have ended.
pub(crate) fn patient(open: Vec<OpenRequest>, closed: Vec<ClosedLoop>) -> Plan {
    let (horizon_ns, drain_ns) = (Nanos::from_secs(600), Nanos::from_secs(600));
    Plan {
        horizon_ns,
        drain_ns,
        ..plan(open, closed)
    }
}

/// Actions in short: `s3@70` sends request 3, intended at 70 ms; `n` not offered, `c` cut off,
/// `w` wake at, `d` done.
fn at(driver: &mut Driver, now_ms: u64) -> String {
    let ms = |at: Nanos| at.0 / 1_000_000;
    let show = |action: Action| match action {
        Action::Send(order) => format!("s{}@{}", order.id, ms(order.intended)),
        Action::NotOffered(order) => format!("n{}@{}", order.id, ms(order.intended)),
        Action::CutOff(ids) => {
            format!(
                "c{}",
                ids.iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join(",")
            )
        }
        Action::WakeAt(at) => format!("w{}", ms(at)),
        Action::Done => "d".to_owned(),
    };
    let actions = driver.poll(Nanos::from_millis(now_ms));
    actions.into_iter().map(show).collect::<Vec<_>>().join(" ")
}

fn end(driver: &mut Driver, id: u64, ms: u64) {
    driver.ended(RequestId(id), Nanos::from_millis(ms), None);
}

#[test]
fn the_open_loop_sends_on_its_schedule_whatever_the_server_does() {
    let requests = vec![open(0, 0), open(1, 30), open(2, 30)];
    let mut driver = Driver::new(plan(requests, vec![]), Nanos::from_millis(100)).unwrap();
    assert_eq!(at(&mut driver, 90), "w100");
    assert_eq!(at(&mut driver, 100), "s0@100 w130");
    assert_eq!(at(&mut driver, 129), "w130");
    // Late: sent all the same, with the instant at which they were due.
    assert_eq!(at(&mut driver, 180), "s1@130 s2@130 w1600");
    assert_eq!(driver.in_flight(), 3);
    for id in 0..3 {
        end(&mut driver, id, 200);
    }
    assert_eq!(at(&mut driver, 200), "d");
}

#[test]
fn a_closed_loop_counts_from_the_moment_its_slot_became_free() {
    let mut driver = Driver::new(plan(vec![], vec![closed(0, 2, 5)]), Nanos::ZERO).unwrap();
    assert_eq!(at(&mut driver, 0), "s0@0 s1@0 w1500");
    end(&mut driver, 1, 50);
    end(&mut driver, 0, 40);
    // Asked 20 ms late: the intended instants do not move.
    assert_eq!(at(&mut driver, 70), "s2@40 s3@50 w1500");
    end(&mut driver, 2, 80);
    assert_eq!(at(&mut driver, 80), "s4@80 w1500");
    assert!(!driver.closed_exhausted());
    end(&mut driver, 3, 90);
    assert_eq!(at(&mut driver, 90), "w1500");
    assert!(
        driver.closed_exhausted(),
        "a slot is free and nothing is left for it"
    );
    end(&mut driver, 4, 95);
    assert_eq!(at(&mut driver, 95), "d");
}

#[test]
fn a_start_in_the_future_is_waited_for() {
    let start = Nanos::from_millis(20);
    let mut driver = Driver::new(plan(vec![], vec![closed(0, 1, 1)]), start).unwrap();
    assert_eq!(at(&mut driver, 0), "w20");
    assert_eq!(at(&mut driver, 20), "s0@20 w1520");
}

#[test]
fn nothing_starts_after_the_horizon_and_nothing_runs_after_the_drain() {
    let mut driver = Driver::new(plan(vec![open(9, 999)], vec![closed(0, 2, 5)]), Nanos::ZERO);
    let driver = driver.as_mut().unwrap();
    assert_eq!(at(driver, 0), "s0@0 s1@0 w999");
    assert_eq!(at(driver, 1_000), "s9@999 w1500");
    // Became free before the horizon and is told of after it: due, so sent.
    end(driver, 0, 998);
    assert_eq!(at(driver, 1_002), "s2@998 w1500");
    end(driver, 1, 1_003);
    assert_eq!(at(driver, 1_003), "w1500");
    assert_eq!(at(driver, 1_500), "c2,9 d");
    // A late report of a request that was cut off changes nothing.
    end(driver, 2, 1_501);
    assert_eq!(at(driver, 1_501), "d");
}

#[test]
fn what_was_due_and_could_not_be_sent_is_not_offered() {
    let requests = vec![open(5, 10), open(6, 20), open(7, 1_000)];
    let mut driver = Driver::new(plan(requests, vec![closed(0, 1, 3)]), Nanos::ZERO).unwrap();
    assert_eq!(at(&mut driver, 0), "s0@0 w10");
    end(&mut driver, 0, 15);
    assert_eq!(at(&mut driver, 2_000), "n5@10 n1@15 n6@20 n7@1000 d");
}

#[test]
fn a_stop_cuts_off_what_runs() {
    let mut driver = Driver::new(
        plan(vec![open(50, 400)], vec![closed(0, 2, 9)]),
        Nanos::ZERO,
    );
    let driver = driver.as_mut().unwrap();
    assert_eq!(at(driver, 0), "s0@0 s1@0 w400");
    driver.stop();
    assert_eq!(at(driver, 100), "c0,1 d");
}

#[test]
fn two_closed_loops_keep_their_slots_apart() {
    let parts = vec![closed(0, 1, 4), closed(10, 1, 4)];
    let mut driver = Driver::new(plan(vec![], parts), Nanos::ZERO).unwrap();
    assert_eq!(at(&mut driver, 0), "s0@0 s10@0 w1500");
    end(&mut driver, 10, 5);
    assert_eq!(at(&mut driver, 5), "s11@5 w1500");
}

#[test]
fn plans_that_contradict_themselves_are_refused() {
    let refuse = |plan| Driver::new(plan, Nanos::ZERO).unwrap_err();
    let twice = plan(vec![open(1, 0)], vec![closed(0, 1, 2)]);
    assert_eq!(refuse(twice), PlanError::DuplicateId(RequestId(1)));
    let unsorted = plan(vec![open(0, 5), open(1, 4)], vec![]);
    assert_eq!(refuse(unsorted), PlanError::Unsorted(RequestId(1)));
    assert!(matches!(
        refuse(plan(vec![open(0, 1_001)], vec![])),
        PlanError::PastHorizon { .. }
    ));
    assert_eq!(
        refuse(plan(vec![], vec![closed(0, 0, 1)])),
        PlanError::NoStreams
    );
    let mut empty = Driver::new(plan(vec![], vec![]), Nanos::ZERO).unwrap();
    assert_eq!(at(&mut empty, 0), "d");
}

#[test]
fn row_39_a_cap_holds_the_open_loop_back_and_keeps_its_arrivals() {
    let requests = (0..5).map(|id| open(id, 10 * id)).collect();
    let mut driver = Driver::new(plan(requests, vec![]), Nanos::ZERO).unwrap();
    driver.hold_at(2);
    assert_eq!(at(&mut driver, 0), "s0@0 w10");
    assert_eq!(at(&mut driver, 10), "s1@10 w1500");
    // Full: three become due and none is sent.
    assert_eq!(at(&mut driver, 45), "w1500");
    end(&mut driver, 0, 43);
    end(&mut driver, 1, 50);
    let free = |driver: &mut Driver, now: u64| -> Vec<(u64, u64)> {
        let ms = |at: Nanos| at.0 / 1_000_000;
        let actions = driver.poll(Nanos::from_millis(now)).into_iter();
        let sent = actions.filter_map(|action| match action {
            Action::Send(order) => Some((ms(order.intended), ms(order.free))),
            _ => None,
        });
        sent.collect()
    };
    // Each goes into the place that was free first, from the instant at which it was.
    assert_eq!(free(&mut driver, 60), [(20, 43), (30, 50)]);
    assert_eq!(driver.in_flight(), 2);
    end(&mut driver, 2, 61);
    assert_eq!(free(&mut driver, 61), [(40, 61)]);
}

#[test]
fn what_a_cap_holds_back_at_the_end_is_not_offered() {
    let requests = vec![open(0, 0), open(1, 10), open(2, 20)];
    let mut driver = Driver::new(plan(requests, vec![]), Nanos::ZERO).unwrap();
    driver.hold_at(1);
    assert_eq!(at(&mut driver, 20), "s0@0 w1500");
    assert_eq!(at(&mut driver, 1_500), "n1@10 n2@20 c0 d");
}

#[test]
fn a_drained_stop_sends_nothing_new_and_lets_running_requests_end() {
    let requests = vec![open(0, 0), open(1, 10), open(2, 900)];
    let plan = plan(requests, vec![closed(10, 2, 9)]);
    let mut driver = Driver::new(plan, Nanos::ZERO).unwrap();
    driver.hold_at(1);
    assert_eq!(at(&mut driver, 0), "s0@0 s10@0 s11@0 w1500");
    driver.drain(Nanos::from_millis(100), Nanos::from_millis(200));
    // One was due and is held back; the one at 900 never was.
    assert_eq!(at(&mut driver, 100), "n1@10 w300");
    end(&mut driver, 10, 150);
    end(&mut driver, 0, 160);
    assert_eq!(at(&mut driver, 160), "w300");
    assert_eq!(at(&mut driver, 300), "c11 d");
    assert!(!driver.closed_exhausted());
}
