//! Running a plan: every record goes on as soon as its request has ended.

use std::io::IsTerminal;
use std::sync::mpsc;

use anyhow::Result;
use pb_contract::plan::Plan;
use pb_contract::{Clock, Nanos, WallClock};
use pb_load::{
    Endpoint, Limits, Record, RunContext, RunOptions, RunSummary, StopSignal, run_plan_with,
};

use super::live::{Live, follow};
use crate::progress::Progress;

/// Time that running requests have when the run is stopped by hand.
const DRAIN: Nanos = Nanos::from_secs(5);

/// A plan with everything that its run needs.
pub(crate) struct Offer<'a> {
    /// The plan.
    pub(crate) plan: Plan,
    /// Where to.
    pub(crate) endpoint: &'a Endpoint,
    /// Name of the arm in the rows.
    pub(crate) arm: &'a str,
    /// Limits of a request.
    pub(crate) limits: Limits,
    /// Ends the run early.
    pub(crate) stop: StopSignal,
    /// Most requests in flight of the open part.
    pub(crate) cap: Option<usize>,
    /// Connections are kept for further requests.
    pub(crate) reuse: bool,
}

/// Runs the plan on this thread and hands every record to `take` on another one: writing must not
/// delay the next send.
///
/// # Errors
/// The plan cannot be run, or `take` fails.
pub(crate) fn offer(
    offer: Offer<'_>,
    progress: &Progress,
    take: impl FnMut(Record) -> Result<()> + Send,
) -> Result<RunSummary> {
    let context = RunContext {
        arm: offer.arm.to_owned(),
        block: 0,
    };
    let terminal = std::io::stderr().is_terminal();
    let mut live = Live::new(&offer.plan, terminal, WallClock.now())?;
    let (sender, receiver) = mpsc::channel::<Record>();
    std::thread::scope(|scope| {
        let taker = scope.spawn(move || {
            let show = |line: String| progress.phase(line);
            follow(&receiver, &mut live, &WallClock, show, take)
        });
        let emit = move |record| {
            // A taker that failed says so at the end.
            let _ = sender.send(record);
        };
        let driven = drive(offer, context, emit);
        // OK because a panic of the taker is a bug that must not be hidden.
        taker.join().expect("the writer thread panicked")?;
        driven
    })
}

fn drive(offer: Offer<'_>, context: RunContext, emit: impl FnMut(Record)) -> Result<RunSummary> {
    let options = RunOptions {
        limits: offer.limits,
        stop: offer.stop,
        max_in_flight: offer.cap,
        drain_on_stop_ns: DRAIN,
        reuse_connections: offer.reuse,
    };
    Ok(run_plan_with(
        offer.plan,
        context,
        offer.endpoint,
        options,
        emit,
    )?)
}
