use std::sync::atomic::{AtomicBool, Ordering};

use pb_contract::RequestId;
use pb_contract::plan::{ClosedLoop, OpenRequest, PlannedBody};
use pb_mock::{Dist, Fault, FaultKind, Handle, Mock, MockOptions, Timing};

use super::*;

fn body() -> PlannedBody {
    PlannedBody::of_ids("x", vec![1; 40], 8)
}

/// 20 requests in two seconds.
fn open() -> Plan {
    let request = |id| OpenRequest {
        id: RequestId(id),
        offset_ns: Nanos::from_millis(100 * id),
        body: body(),
    };
    Plan {
        open: (0..20).map(request).collect(),
        horizon_ns: Nanos::from_secs(2),
        ..Plan::default()
    }
}

fn closed(streams: usize) -> Plan {
    Plan {
        closed: vec![ClosedLoop {
            streams,
            first_id: RequestId(0),
            bodies: vec![body(); streams],
        }],
        ..Plan::default()
    }
}

fn plan(run: &Plan) -> CalibrationPlan {
    CalibrationPlan::of(run, "/nonexistent".into(), HttpVersion::Http1)
}

/// A ground-truth server in this process with the times that the plan asks for.
fn server(plan: &CalibrationPlan, faults: Vec<Fault>) -> Handle {
    let timing = Timing {
        ttft_ns: Dist::Fixed(10e6),
        itl_ns: Dist::Fixed(plan.load.itl_ms * 1e6),
        ..Timing::default()
    };
    Mock::start(MockOptions {
        timing,
        faults,
        ..MockOptions::default()
    })
    .unwrap()
}

fn run(run: &Plan, disturb: impl FnMut()) -> Calibrated {
    let plan = plan(run);
    let server = server(&plan, Vec::new());
    measure(&server.base_url(), &plan, &StopSignal::new(), disturb).unwrap()
}

/// Every figure is there, is as large as what it is made of, and nothing was lost.
#[test]
fn row_47_the_client_is_measured_against_known_times() {
    for load in [open(), closed(8)] {
        let calibrated = run(&load, || ());
        let (doc, compared) = (calibrated.document(), calibrated.errors.compared);
        assert_eq!(doc.problem, None);
        assert!(doc.requests >= 8, "{doc:?}");
        assert_eq!(compared, doc.requests);
        let [lag, ttft, itl, late] = [
            doc.driver_lag_ms,
            doc.ttft_error_ms,
            doc.itl_error_ms,
            doc.server_late_ms,
        ]
        .map(Option::unwrap);
        assert_eq!((lag.n as u64, ttft.n as u64), (doc.requests, compared));
        // Ten tokens each, one gap fewer.
        assert_eq!((doc.tokens, itl.n as u64), (10 * compared, 9 * compared));
        assert_eq!(late.n as u64, doc.tokens);
        // A byte is not read before it is written; how long after is the machine's affair.
        assert!(ttft.p50 > 0.0 && lag.p50 >= 0.0, "{ttft:?} {lag:?}");
        let cpu = doc.cpu_share.unwrap();
        assert!(cpu > 0.0 && cpu.is_finite(), "{cpu}");
    }
}

/// A client whose thread does something else after every request is late, and is found out.
#[test]
fn row_47_a_client_slowed_by_other_work_is_found() {
    let busy = || {
        let until = WallClock.now() + Nanos::from_millis(8);
        while WallClock.now() < until {}
    };
    let slowed = run(&closed(8), busy);
    let doc = slowed.document();
    assert!(doc.driver_lag_ms.unwrap().p99 > 4.0, "{doc:?}");
    assert!(doc.cpu_share.unwrap() > 0.0, "{doc:?}");
    let reasons = slowed.reasons(None);
    let lag = reasons.iter().find(|reason| reason.contains("driver lag"));
    let lag = lag.unwrap_or_else(|| panic!("{reasons:?}"));
    assert!(
        lag.starts_with("calibration: ") && lag.contains("above 1.0 ms"),
        "{lag}"
    );
}

/// The planted cause that people meet: other threads on the client's cores.
#[test]
fn row_47_a_client_without_a_core_of_its_own_is_found() {
    let done = AtomicBool::new(false);
    let threads = 16 * std::thread::available_parallelism().map_or(2, usize::from);
    let late = std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        // A scheduler may be kind to a thread that mostly sleeps, but not every time.
        let late = (0..10).any(|_| !run(&closed(8), || ()).reasons(None).is_empty());
        done.store(true, Ordering::Relaxed);
        late
    });
    assert!(late, "never late beside {threads} busy threads");
}

#[test]
fn a_calibration_that_cannot_be_made_says_why_and_voids_nothing() {
    let skipped = calibrate(&plan(&open()), &StopSignal::new()).unwrap();
    let why = skipped.document().problem.unwrap();
    assert!(why.contains("cannot start /nonexistent mock"), "{why}");
    assert_eq!(skipped.reasons(Some(Nanos(1))), [] as [String; 0]);
    assert_eq!(skipped.document().driver_lag_ms, None);
}

#[test]
fn a_calibration_that_is_smaller_than_the_run_says_so() {
    let load = CalibrationLoad::of(&closed(2000));
    let measured = Measured {
        requests: 0,
        streams: 0,
        cpu_share: 0.0,
    };
    let notes = Calibrated::new(&load, Errors::default(), &measured).notes();
    assert_eq!(notes.len(), 1);
    assert!(notes[0].ends_with("than the run does: 256 of 2000 streams"));
}

#[test]
fn a_server_that_fails_every_request_gives_no_figures() {
    let plan = plan(&open());
    let status = FaultKind::Status {
        status: 503,
        retry_after_s: None,
    };
    let server = server(&plan, vec![Fault::always(status)]);
    let error = measure(&server.base_url(), &plan, &StopSignal::new(), || ()).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("no request of 200 could be compared"),
        "{text}"
    );
    assert!(text.contains("503"), "{text}");
}

#[test]
fn a_wish_to_stop_ends_a_calibration() {
    let stop = StopSignal::new();
    let plan = plan(&open());
    let server = server(&plan, Vec::new());
    // With the first request that ends.
    let result = measure(&server.base_url(), &plan, &stop, || stop.stop());
    // The whole load would have been compared.
    let compared = result.map_or(0, |calibrated| calibrated.errors.compared);
    assert!(compared < 200, "{compared}");
    assert_eq!(calibrate(&plan, &stop), Err(Interrupted));
}

#[test]
fn limits_are_fixed_or_a_twentieth_of_what_is_measured() {
    let errors = |lag: u64, spread: u64, read: u64| Calibrated {
        document: Calibration::default(),
        errors: Errors {
            lag: vec![lag; 100],
            spread: vec![spread; 100],
            read: vec![read; 100],
            ..Errors::default()
        },
        bounded: None,
    };
    let (us, ms) = (1_000, 1_000_000);
    for (lag, spread, read, ttft_ms, reasons) in [
        (ms, 5 * ms, ms, None, 0),
        (ms + 1, 5 * ms, ms, None, 1),
        (ms, 5 * ms + 1, ms + 1, None, 2),
        // A twentieth of 10 ms is 500 us, and of 100 ms it is no more than the fixed limits.
        (500 * us, 500 * us, 500 * us, Some(10), 0),
        (501 * us, 501 * us, 501 * us, Some(10), 3),
        (ms, 5 * ms, ms, Some(100), 0),
        // A slow server does not excuse a slow client.
        (2 * ms, 0, 0, Some(10_000), 1),
    ] {
        let ttft = ttft_ms.map(Nanos::from_millis);
        let found = errors(lag, spread, read).reasons(ttft);
        assert_eq!(found.len(), reasons, "{lag} {spread} {read}: {found:?}");
    }
    let one = errors(501 * us, 0, 0).reasons(Some(Nanos::from_millis(10)));
    assert!(one[0].contains("driver lag was 501.0 us"), "{one:?}");
    assert!(
        one[0].contains("500.0 us, a twentieth of the median TTFT"),
        "{one:?}"
    );
}

#[test]
fn the_99th_percentile_forgives_one_of_a_hundred() {
    let mut errors = Errors {
        lag: vec![5_000_000; 1],
        ..Errors::default()
    };
    errors.lag.extend(vec![1000; 99]);
    let of = |errors| Calibrated {
        document: Calibration::default(),
        errors,
        bounded: None,
    };
    assert!(of(errors.clone()).reasons(None).is_empty());
    errors.lag.push(5_000_000);
    // Two of 101: rank 100 is the second largest.
    assert_eq!(of(errors).reasons(None).len(), 1);
}
