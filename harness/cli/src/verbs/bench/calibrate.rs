//! What this client is worth on this machine, just before it measures.
//!
//! A load generator that is late itself reports its own delay as the server's. So before a run
//! the client measures a server whose every write is known: `prefillbench mock`, in a process of
//! its own. It is given a load in the manner of the coming one ([`load`]), and the client's
//! record is compared with the server's ([`compare`]). A client that is late here would be late
//! in the run, and the run is void.

mod child;
mod compare;
mod load;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use pb_bench::{Calibration, Spread};
use pb_contract::plan::Plan;
use pb_contract::{Clock, Nanos, WallClock};
use pb_load::control::{Control, Method};
use pb_load::{Endpoint, HttpVersion, Limits, Record, RunContext, StopSignal, run_plan_blocking};
use pb_stats::nearest_rank;

use self::child::MockChild;
use self::compare::{Errors, read_log};
use self::load::CalibrationLoad;
use crate::interrupt::Interrupted;

/// Driver lag, and the delay between a write and its read, beyond which a client is late.
const LIMIT: Nanos = Nanos::from_millis(1);

/// The same for requests that are due together: the spread of their sends.
const SPREAD_LIMIT: Nanos = Nanos::from_millis(5);

/// Share of what is measured that the client's own delay may be.
const SHARE: f64 = 0.05;

/// How long the server's log is waited for.
const LOG_WAIT: Nanos = Nanos::from_secs(2);

/// Between two looks at the log.
const LOG_PAUSE: Nanos = Nanos::from_millis(20);

/// Limits of a request: every stream is known to be shorter.
const LIMITS: Nanos = Nanos::from_secs(10);

/// A calibration to be made.
#[derive(Clone, Debug)]
pub(crate) struct CalibrationPlan {
    program: PathBuf,
    http: HttpVersion,
    load: CalibrationLoad,
}

/// What a calibration found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Calibrated {
    document: Calibration,
    errors: Errors,
    /// How its load was smaller than the run's.
    bounded: Option<String>,
}

impl CalibrationPlan {
    /// For a coming `run` over `http`; `program` is this executable.
    pub(crate) fn of(run: &Plan, program: PathBuf, http: HttpVersion) -> CalibrationPlan {
        CalibrationPlan {
            program,
            http,
            load: CalibrationLoad::of(run),
        }
    }
}

/// Makes a calibration, which takes about two seconds. One that cannot be made (the server does
/// not start, for example) says so in its document and is no error.
///
/// # Errors
/// `stop` was turned on.
pub(crate) fn calibrate(
    plan: &CalibrationPlan,
    stop: &StopSignal,
) -> Result<Calibrated, Interrupted> {
    let measured = MockChild::start(&plan.program, &plan.load.server_args())
        .and_then(|server| measure(server.base_url(), plan, stop, || ()));
    if stop.is_stopped() {
        return Err(Interrupted);
    }
    Ok(measured.unwrap_or_else(|error| Calibrated::skipped(format!("{error:#}"))))
}

/// Drives the load against the ground-truth server at `base_url`. `disturb` is done after every
/// request, on the client's own thread.
fn measure(
    base_url: &str,
    plan: &CalibrationPlan,
    stop: &StopSignal,
    mut disturb: impl FnMut(),
) -> Result<Calibrated> {
    let load = &plan.load;
    if load.plan.open.is_empty() && load.plan.closed.is_empty() {
        bail!("the run has no requests");
    }
    let endpoint = Endpoint::parse(base_url)?
        .with_model("mock")
        .with_http_version(plan.http);
    let endpoint = match load.kind {
        "burst" => endpoint.with_connections(load.streams.unwrap_or(1)),
        _ => endpoint,
    };
    let limits = Limits {
        connect_ns: LIMITS,
        first_token_ns: LIMITS,
        idle_ns: LIMITS,
        total_ns: LIMITS,
        ..Limits::default()
    };
    let context = RunContext {
        arm: "calibration".to_owned(),
        block: 0,
    };
    let records = Arc::new(Mutex::new(Vec::<Record>::new()));
    let kept = Arc::clone(&records);
    let emit = move |record| {
        kept.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(record);
        disturb();
    };
    let cpu = cpu_time();
    let run = run_plan_blocking(
        load.plan.clone(),
        context,
        &endpoint,
        limits,
        stop.clone(),
        emit,
    )?;
    let spent = cpu_time().saturating_sub(cpu);
    let records = std::mem::take(&mut *records.lock().unwrap_or_else(PoisonError::into_inner));
    let truth = read_log(&fetch_log(&endpoint, &records)?)?;
    let errors = Errors::of(&records, &truth);
    if errors.compared == 0 {
        let failed = records.iter().find_map(|r| r.row.fail_message.as_deref());
        bail!(
            "no request of {} could be compared with the ground-truth server's log: {}",
            run.sent,
            failed.unwrap_or("the log does not fit")
        );
    }
    let elapsed = run.end_ns.saturating_sub(run.start_ns).as_secs_f64();
    let measured = Measured {
        requests: run.sent,
        streams: run.max_in_flight,
        cpu_share: spent.as_secs_f64() / elapsed.max(1e-9),
    };
    Ok(Calibrated::new(load, errors, &measured))
}

/// What the run loop says of a calibration.
#[derive(Clone, Copy, Debug)]
struct Measured {
    requests: u64,
    /// At once, at most.
    streams: usize,
    cpu_share: f64,
}

/// The log, once it has every request that ended well.
fn fetch_log(endpoint: &Endpoint, records: &[Record]) -> Result<String> {
    let control = Control::new(endpoint)?;
    let ended = records.iter().filter(|record| record.row.fail.is_none());
    let ended = ended.count();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start a runtime")?;
    let start = WallClock.now();
    loop {
        let asked = control.exchange(Method::GET, "/mock/log", None);
        let answer = runtime.block_on(asked)?;
        if answer.status != 200 {
            bail!("the ground-truth server has no log: HTTP {}", answer.status);
        }
        // The server ends a request a moment after the client has read its last byte.
        let complete = read_log(&answer.body)?.len() >= ended;
        if complete || WallClock.now() > start + LOG_WAIT {
            return Ok(answer.body);
        }
        // Made inside the runtime: its timer is needed.
        runtime.block_on(async { tokio::time::sleep(LOG_PAUSE.to_duration()).await });
    }
}

/// Processor time of this process so far.
fn cpu_time() -> Nanos {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Nanos(spent.tv_sec as u64 * 1_000_000_000 + spent.tv_nsec as u64)
}

/// Standard deviation of signed nanoseconds, in milliseconds; absent without values.
fn deviation_ms(values: &[i64]) -> Option<f64> {
    let n = values.len() as f64;
    let mean = values.iter().map(|&v| v as f64).sum::<f64>() / n;
    let squares = values.iter().map(|&v| (v as f64 - mean).powi(2));
    (n > 0.0).then(|| (squares.sum::<f64>() / n).sqrt() / 1e6)
}

impl Calibrated {
    /// One that was not made.
    pub(crate) fn skipped(problem: impl Into<String>) -> Calibrated {
        Calibrated {
            document: Calibration {
                problem: Some(problem.into()),
                ..Calibration::default()
            },
            errors: Errors::default(),
            bounded: None,
        }
    }

    fn new(load: &CalibrationLoad, errors: Errors, measured: &Measured) -> Calibrated {
        let of = |samples: &[u64]| Spread::of(samples.to_vec());
        let all_lags = [errors.lag.as_slice(), &errors.spread].concat();
        let itl = errors.itl.iter().map(|d| d.unsigned_abs());
        let document = Calibration {
            load: Some(load.kind.to_owned()),
            bounded: load.bounded.clone(),
            compared: errors.compared,
            read_error_ms: of(&errors.read),
            itl_error_sd_ms: deviation_ms(&errors.itl),
            requests: measured.requests,
            streams: measured.streams as u64,
            rate_rps: load.rate_rps,
            tokens: errors.read.len() as u64,
            ttft_error_ms: of(&errors.ttft),
            itl_error_ms: Spread::of(itl.collect()),
            driver_lag_ms: of(&all_lags),
            server_late_ms: of(&errors.late),
            cpu_share: Some(measured.cpu_share),
            problem: None,
        };
        Calibrated {
            document,
            errors,
            bounded: load.bounded.clone(),
        }
    }

    /// For the result.
    pub(crate) fn document(&self) -> Calibration {
        self.document.clone()
    }

    /// What must be known with it.
    pub(crate) fn notes(&self) -> Vec<String> {
        let note = |bound: &String| {
            format!("calibration: it asked less of the client than the run does: {bound}")
        };
        self.bounded.iter().map(note).collect()
    }

    /// What speaks against a run with this client. `ttft` is the median time to first token of
    /// the run, of which the client's own delay may be a twentieth; without it only the fixed
    /// limits count. A calibration that was not made speaks against nothing.
    pub(crate) fn reasons(&self, ttft: Option<Nanos>) -> Vec<String> {
        let share = ttft.map(|ttft| Nanos((ttft.0 as f64 * SHARE) as u64));
        let delays = [
            ("driver lag", &self.errors.lag, LIMIT),
            (
                "the spread of requests due together",
                &self.errors.spread,
                SPREAD_LIMIT,
            ),
            (
                "the delay between a token's arrival and its stamp",
                &self.errors.read,
                LIMIT,
            ),
        ];
        let mut reasons = Vec::new();
        for (what, samples, limit) in delays {
            let Some(p99) = p99(samples) else {
                continue;
            };
            let of_ttft = share.filter(|&share| share < limit);
            if p99 > of_ttft.unwrap_or(limit) {
                let rule = match of_ttft {
                    Some(share) => format!("{share}, a twentieth of the median TTFT"),
                    None => limit.to_string(),
                };
                reasons.push(format!(
                    "calibration: {what} was {p99} at the 99th percentile against a server whose \
                     times are known, above {rule}; free the client's cores, or ask less of it"
                ));
            }
        }
        reasons
    }
}

/// Nearest-rank 99th percentile.
fn p99(samples: &[u64]) -> Option<Nanos> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    nearest_rank(&sorted, 0.99).map(Nanos)
}

#[cfg(test)]
mod tests;
