//! How a run is going, from its records as they come.
//!
//! For the eye only: percentiles come from histograms of three digits, and verdicts never do.
//! What is in flight follows from the plan and from what has ended, since only ended requests
//! are records.

use std::sync::mpsc::{Receiver, RecvTimeoutError};

use anyhow::Result;
use hdrhistogram::Histogram;
use pb_contract::plan::Plan;
use pb_contract::{Clock, Nanos, RequestId, RequestRow, RequestStatus, TokenRow};
use pb_load::Record;
use pb_record::hlog::{DIGITS, HIGHEST_NS, LOWEST_NS};
use pb_record::metrics::{Bundle, counted_itl, request_metrics};

/// Between two states on a terminal.
const ON_TERMINAL: Nanos = Nanos::from_millis(250);

/// Between two lines elsewhere.
const ELSEWHERE: Nanos = Nanos::from_secs(10);

/// A horizon beyond this is no expectation but "until the requests are used up".
pub(crate) const LONGEST: Nanos = Nanos::from_secs(7 * 24 * 3600);

/// The state of a run.
#[derive(Debug)]
pub(crate) struct Live {
    every: Nanos,
    /// When the last state was shown.
    shown: Nanos,
    /// Requests that ended well, and otherwise.
    done: u64,
    failed: u64,
    demand: Demand,
    ttft: Latency,
    itl: Latency,
}

/// What the plan asks for.
#[derive(Debug, Default)]
struct Demand {
    /// Requests in all.
    total: u64,
    /// Due instants of the open part after the start, ascending.
    offsets: Vec<Nanos>,
    /// Offset of each open request, until the first record has told the start.
    by_id: Vec<(RequestId, Nanos)>,
    /// Slots of the closed parts, their requests, and which ids those have.
    slots: u64,
    closed_total: u64,
    /// Turns of sessions: how many are in flight does not follow from the plan.
    turns: u64,
    /// When the last request is due at the latest, after the start; absent when the end is open.
    expected: Option<Nanos>,
    start: Option<Nanos>,
    /// Ended requests of the open part.
    open_ended: u64,
}

/// A histogram that counts what it cannot hold.
#[derive(Debug)]
struct Latency {
    values: Histogram<u64>,
    saturated: u64,
}

impl Live {
    /// The state before the start, shown at `now`; `terminal` decides how often it is shown.
    ///
    /// # Errors
    /// None in practice: the histograms' bounds are constants.
    pub(crate) fn new(plan: &Plan, terminal: bool, now: Nanos) -> Result<Live> {
        Ok(Live {
            every: if terminal { ON_TERMINAL } else { ELSEWHERE },
            shown: now,
            done: 0,
            failed: 0,
            demand: Demand::of(plan),
            ttft: Latency::new()?,
            itl: Latency::new()?,
        })
    }

    /// Takes a record in.
    pub(crate) fn record(&mut self, row: &RequestRow, tokens: &[TokenRow]) {
        self.demand.ended(row);
        if row.status != RequestStatus::Ok {
            self.failed += 1;
            return;
        }
        self.done += 1;
        if let Some(ns) = request_metrics(row).ttft_ns {
            self.ttft.add(ns, 1);
        }
        for gap in counted_itl(tokens, Bundle::Even) {
            self.itl.add(gap.ns, gap.count);
        }
    }

    /// The state, when it is time to show it.
    pub(crate) fn due(&mut self, now: Nanos) -> Option<String> {
        if now < self.shown + self.every {
            return None;
        }
        self.shown = now;
        Some(self.line(now))
    }

    /// The state in one line.
    pub(crate) fn line(&self, now: Nanos) -> String {
        let demand = &self.demand;
        let mut parts = vec![format!("{} of {} done", self.done, demand.total)];
        if self.failed > 0 {
            parts.push(format!("{} failed", self.failed));
        }
        if let Some(count) = demand.in_flight(now, self.done + self.failed) {
            parts.push(format!("{count} in flight"));
        }
        parts.extend(self.ttft.text("TTFT"));
        parts.extend(self.itl.text("ITL"));
        if let Some(start) = demand.start {
            let elapsed = now.saturating_sub(start).as_secs_f64();
            parts.push(match demand.expected {
                Some(expected) => format!("{elapsed:.0} of {:.0} s", expected.as_secs_f64()),
                None => format!("{elapsed:.0} s"),
            });
        }
        parts.join(", ")
    }
}

/// Hands records to `take` until there are no more, and shows the state in between.
///
/// # Errors
/// `take` fails: the rest is not taken.
pub(crate) fn follow(
    records: &Receiver<Record>,
    live: &mut Live,
    clock: &dyn Clock,
    mut show: impl FnMut(String),
    mut take: impl FnMut(Record) -> Result<()>,
) -> Result<()> {
    loop {
        match records.recv_timeout(live.every.to_duration()) {
            Ok(record) => {
                live.record(&record.row, &record.tokens);
                take(record)?;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        if let Some(line) = live.due(clock.now()) {
            show(line);
        }
    }
}

impl Demand {
    fn of(plan: &Plan) -> Demand {
        let closed = |of: fn(&pb_contract::plan::ClosedLoop) -> usize| -> u64 {
            plan.closed.iter().map(|part| of(part) as u64).sum()
        };
        let turns: usize = plan
            .sessions
            .iter()
            .map(|session| session.turns.len())
            .sum();
        let closed_total = closed(|part| part.bodies.len());
        let mut by_id: Vec<(RequestId, Nanos)> = plan
            .open
            .iter()
            .map(|request| (request.id, request.offset_ns))
            .collect();
        by_id.sort_unstable();
        let open_ended = plan.closed.is_empty() && plan.sessions.is_empty();
        let expected = match open_ended {
            true => plan.open.last().map(|request| request.offset_ns),
            false => Some(plan.horizon_ns).filter(|&horizon| horizon < LONGEST),
        };
        Demand {
            total: plan.open.len() as u64 + closed_total + turns as u64,
            offsets: plan.open.iter().map(|request| request.offset_ns).collect(),
            by_id,
            slots: closed(|part| part.streams),
            closed_total,
            turns: turns as u64,
            expected,
            start: None,
            open_ended: 0,
        }
    }

    fn ended(&mut self, row: &RequestRow) {
        let found = self
            .by_id
            .binary_search_by_key(&row.request, |entry| entry.0);
        self.open_ended += u64::from(found.is_ok());
        if self.start.is_none() {
            let offset = found.map_or(Nanos::ZERO, |at| self.by_id[at].1);
            self.start = row.intended_ns.checked_sub(offset);
        }
    }

    /// Requests in flight when `ended` have ended; absent when the plan does not tell.
    fn in_flight(&self, now: Nanos, ended: u64) -> Option<u64> {
        if self.turns > 0 {
            return None;
        }
        let since = now.saturating_sub(self.start?);
        let due = self.offsets.partition_point(|&offset| offset <= since) as u64;
        let closed_ended = ended - self.open_ended;
        let closed = self
            .slots
            .min(self.closed_total.saturating_sub(closed_ended));
        Some(due.saturating_sub(self.open_ended) + closed)
    }
}

impl Latency {
    fn new() -> Result<Latency> {
        Ok(Latency {
            values: Histogram::new_with_bounds(LOWEST_NS, HIGHEST_NS, DIGITS)?,
            saturated: 0,
        })
    }

    fn add(&mut self, ns: u64, count: u64) {
        if ns > HIGHEST_NS {
            self.saturated += count;
        }
        self.values.saturating_record_n(ns, count);
    }

    fn text(&self, name: &str) -> Option<String> {
        let at = |q| Nanos(self.values.value_at_quantile(q)).as_millis_f64();
        let more = match self.saturated {
            0 => String::new(),
            n => format!(" ({n} above 1 h)"),
        };
        let text = || format!("{name} p50 {:.1} p99 {:.1} ms{more}", at(0.5), at(0.99));
        (!self.values.is_empty()).then(text)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use pb_contract::VirtualClock;
    use pb_contract::plan::{ClosedLoop, OpenRequest, PlannedBody, Session, Turn};

    use super::*;

    const START: Nanos = Nanos::from_secs(100);

    fn body() -> PlannedBody {
        PlannedBody::of_ids("x", vec![1, 2], 2)
    }

    /// Ten requests, one every 100 ms.
    fn open() -> Plan {
        let request = |id: u64| OpenRequest {
            id: RequestId(id),
            offset_ns: Nanos::from_millis(100 * id),
            body: body(),
        };
        Plan {
            open: (0..10).map(request).collect(),
            horizon_ns: Nanos::from_secs(1),
            ..Plan::default()
        }
    }

    /// Request `id`, due at `due` ms, with its tokens that many ms later.
    fn ended(id: u64, due: u64, tokens: &[u64]) -> Record {
        let at = |ms: u64| START + Nanos::from_millis(due + ms);
        let status = if tokens.is_empty() { "failed" } else { "ok" };
        let row = serde_json::json!({
            "arm": "a", "block": 0, "request": id, "class": "x", "intended_ns": at(0),
            "first_token_ns": tokens.first().map(|&ms| at(ms)), "status": status,
            "prompt_tokens_planned": 2, "max_tokens": 2, "streamed_tokens": tokens.len(),
        });
        let token = |(event, &ms): (usize, &u64)| TokenRow {
            arm: "a".into(),
            block: 0,
            request: RequestId(id),
            event: event as u32,
            at_ns: at(ms),
            tokens: 1,
        };
        Record {
            row: serde_json::from_value(row).unwrap(),
            tokens: tokens.iter().enumerate().map(token).collect(),
        }
    }

    fn live(plan: &Plan, terminal: bool) -> Live {
        Live::new(plan, terminal, START).unwrap()
    }

    #[test]
    fn an_open_loop_shows_what_is_due_and_has_not_ended() {
        let mut live = live(&open(), true);
        assert_eq!(live.line(START), "0 of 10 done");
        // The third request ends first: the start follows from it all the same.
        for record in [
            ended(2, 200, &[50, 60]),
            ended(0, 0, &[]),
            ended(1, 100, &[70, 90]),
        ] {
            live.record(&record.row, &record.tokens);
        }
        // Due by 450 ms: the requests at 0, 100, 200, 300 and 400 ms.
        let line = live.line(START + Nanos::from_millis(450));
        let expected = "2 of 10 done, 1 failed, 2 in flight, TTFT p50 50.0 p99 70.1 ms, \
                        ITL p50 10.0 p99 20.0 ms, 0 of 1 s";
        // Three digits: 70 ms lies in a bucket 65,536 ns wide that ends at 70.058 ms.
        assert_eq!(line, expected);
    }

    #[test]
    fn a_closed_loop_has_its_slots_in_flight_until_requests_run_out() {
        let plan = Plan {
            closed: vec![ClosedLoop {
                streams: 3,
                first_id: RequestId(0),
                bodies: vec![body(); 4],
            }],
            horizon_ns: Nanos::from_secs(1 << 30),
            ..Plan::default()
        };
        let mut live = live(&plan, true);
        let now = START + Nanos::from_secs(2);
        for (id, in_flight) in [(0, 3), (1, 2), (2, 1), (3, 0)] {
            let record = ended(id, 0, &[1500]);
            live.record(&record.row, &record.tokens);
            let line = live.line(now);
            assert!(
                line.contains(&format!(", {in_flight} in flight,")),
                "{line}"
            );
            assert!(line.ends_with(", 2 s"), "no end is expected: {line}");
            assert!(!line.contains("ITL"), "one token has no gap: {line}");
        }
    }

    #[test]
    fn sessions_do_not_tell_what_is_in_flight() {
        let turn = |id| Turn {
            id: RequestId(id),
            think_ns: Nanos::ZERO,
            body: body(),
            history: false,
        };
        let plan = Plan {
            sessions: vec![Session {
                offset_ns: Nanos::ZERO,
                turns: vec![turn(0), turn(1)],
            }],
            horizon_ns: Nanos::from_secs(5),
            ..Plan::default()
        };
        let mut live = live(&plan, true);
        live.record(&ended(0, 0, &[5, 6]).row, &[]);
        let line = live.line(START + Nanos::from_secs(1));
        assert_eq!(line, "1 of 2 done, TTFT p50 5.0 p99 5.0 ms, 1 of 5 s");
    }

    #[test]
    fn a_terminal_is_told_often_and_a_log_seldom() {
        for (terminal, ms) in [(true, 250), (false, 10_000)] {
            let mut live = live(&open(), terminal);
            let at = |ms| START + Nanos::from_millis(ms);
            assert_eq!(live.due(at(ms - 1)), None);
            assert!(live.due(at(ms)).is_some());
            assert_eq!(live.due(at(2 * ms - 1)), None);
            assert!(live.due(at(2 * ms)).is_some());
        }
    }

    #[test]
    fn what_no_histogram_holds_is_counted() {
        let mut live = live(&open(), true);
        live.ttft.add(HIGHEST_NS + 1, 1);
        live.ttft.add(5_000_000, 3);
        let line = live.line(START);
        assert!(line.contains("TTFT p50 5.0 p99 36"), "{line}");
        assert!(line.contains("(1 above 1 h)"), "{line}");
    }

    #[test]
    fn records_are_handed_on_in_order_until_one_cannot_be() {
        let (sender, receiver) = mpsc::channel();
        for id in 0..3 {
            sender.send(ended(id, 0, &[5])).unwrap();
        }
        drop(sender);
        let clock = VirtualClock::new();
        clock.advance_to(START + Nanos::from_secs(60));
        let mut state = live(&open(), false);
        let (mut taken, mut shown) = (Vec::new(), Vec::new());
        let take = |record: Record| {
            taken.push(record.row.request.0);
            anyhow::ensure!(record.row.request.0 < 1, "disk full");
            Ok(())
        };
        let ran = follow(&receiver, &mut state, &clock, |line| shown.push(line), take);
        assert_eq!(ran.unwrap_err().to_string(), "disk full");
        assert_eq!(taken, [0, 1]);
        // The clock stands still after the first line.
        assert_eq!(shown.len(), 1, "{shown:?}");
    }
}
