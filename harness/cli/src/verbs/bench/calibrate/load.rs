//! The load of a calibration: like the coming run's, only shorter.
//!
//! A client that is exact with one stream may be late with a thousand, so the calibration asks as
//! much of it at once as the run will: as many streams, and the arrivals of the run's busiest
//! stretch, ties included. What would take longer than a moment is cut, and the cut is told.

use pb_contract::plan::{ClosedLoop, OpenRequest, Plan, PlannedBody};
use pb_contract::{Nanos, RequestId, TokenId};

/// How long requests are started.
pub(crate) const SPAN: Nanos = Nanos::from_millis(1500);

/// Streams at once, at most.
const MAX_STREAMS: usize = 256;

/// Requests at once in a closed loop, at least: one alone would give too few samples.
const MIN_STREAMS: usize = 4;

/// Requests of the open part, at most.
const MAX_ARRIVALS: usize = 1500;

/// Arrivals of the open part, at least: with fewer, one outlier is the 99th percentile.
const MIN_ARRIVALS: usize = 200;

/// Requests that may be due at one instant.
const MAX_TIES: usize = 256;

/// A run that is one burst is imitated by so many, one after the other.
const BURSTS: usize = 5;

/// Events per second over all streams that the server is told to send, about.
const EVENTS_PER_S: f64 = 10_000.0;

/// Output tokens of a request.
const TOKENS: u32 = 10;

/// Time to the first token.
const TTFT_MS: f64 = 10.0;

/// Time between tokens, at least.
const ITL_MS: f64 = 5.0;

/// Length of a prompt, at least and at most: longer ones of the run are not imitated.
const PROMPT: (usize, usize) = (16, 1024);

/// Requests in a closed loop that none can use up in time.
const PLENTY: usize = 2000;

/// What the calibration asks of the client.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CalibrationLoad {
    /// `burst`, `open`, `closed` or `mixed`.
    pub(crate) kind: &'static str,
    /// Requests per second of the open part.
    pub(crate) rate_rps: Option<f64>,
    /// Slots of the closed part, or requests of one burst.
    pub(crate) streams: Option<usize>,
    /// What is smaller than in the run.
    pub(crate) bounded: Option<String>,
    /// The requests.
    pub(crate) plan: Plan,
    /// Time between tokens that the server must be given.
    pub(crate) itl_ms: f64,
}

impl CalibrationLoad {
    /// A short load in the manner of `run`.
    pub(crate) fn of(run: &Plan) -> CalibrationLoad {
        let asked: usize = run.closed.iter().map(|part| part.streams).sum();
        // Each session has at most one request under way.
        let asked = asked + run.sessions.len();
        let streams = asked.clamp(MIN_STREAMS, MAX_STREAMS);
        let mut bounds = Vec::new();
        if asked > MAX_STREAMS {
            bounds.push(format!("{MAX_STREAMS} of {asked} streams"));
        }
        let due: Vec<Nanos> = run.open.iter().map(|request| request.offset_ns).collect();
        let is_burst = 2 * most_tied(&due) > due.len().max(1);
        let offsets = match (due.is_empty(), is_burst) {
            (true, _) => Vec::new(),
            (false, true) => bursts(most_tied(&due), &mut bounds),
            (false, false) => arrivals(&due, &mut bounds),
        };
        let burst = most_tied(&offsets);
        let kind = match (asked > 0, offsets.is_empty()) {
            (true, true) => "closed",
            (true, false) => "mixed",
            (false, _) if is_burst => "burst",
            (false, _) => "open",
        };
        let rate = offsets.len() as f64 / SPAN.as_secs_f64();
        // In flight at once: the slots, and what arrives while a stream lasts or at one instant.
        let lasting_s = (TTFT_MS + ITL_MS * f64::from(TOKENS - 1)) / 1e3;
        let open_streams = (rate * lasting_s).max(burst as f64);
        let closed_streams = if asked > 0 { streams } else { 0 };
        let in_flight = open_streams + closed_streams as f64;
        let length = mean_prompt(run);
        let mut plan = plan(&offsets, length, SPAN);
        if asked > 0 {
            plan.closed = vec![closed(streams, plan.open.len(), length)];
        }
        CalibrationLoad {
            kind,
            rate_rps: (!offsets.is_empty() && kind != "burst").then_some(rate),
            streams: match kind {
                "burst" => Some(burst),
                _ => (asked > 0).then_some(streams),
            },
            bounded: (!bounds.is_empty()).then(|| bounds.join(", ")),
            plan,
            itl_ms: (1e3 * in_flight / EVENTS_PER_S).max(ITL_MS),
        }
    }

    /// Arguments of the ground-truth server.
    pub(crate) fn server_args(&self) -> Vec<String> {
        let pairs = [
            ("--ttft-ms", format!("{TTFT_MS}")),
            ("--itl-ms", format!("{}", self.itl_ms)),
        ];
        let mut args: Vec<String> = vec!["--no-cache".to_owned()];
        for (name, value) in pairs {
            args.extend([name.to_owned(), value]);
        }
        args
    }
}

/// Due instants like those of the busiest stretch of `due`, filled up where there are few.
fn arrivals(due: &[Nanos], bounds: &mut Vec<String>) -> Vec<Nanos> {
    let (from, until) = busiest(due);
    let first = due[from];
    let mut offsets: Vec<Nanos> = Vec::new();
    let mut ties = 0;
    for &at in &due[from..until] {
        let at = at.saturating_sub(first);
        ties = if offsets.last() == Some(&at) {
            ties + 1
        } else {
            1
        };
        if ties <= MAX_TIES {
            offsets.push(at);
        }
    }
    let spread_out = until - from - offsets.len();
    if spread_out > 0 {
        bounds.push(format!(
            "{MAX_TIES} requests at one instant, {spread_out} fewer"
        ));
    }
    if offsets.len() > MAX_ARRIVALS {
        bounds.push(format!("{MAX_ARRIVALS} of {} arrivals", offsets.len()));
        // Every so many, so that the stretch keeps its shape.
        let all = offsets.len();
        offsets = (0..MAX_ARRIVALS)
            .map(|i| offsets[i * all / MAX_ARRIVALS])
            .collect();
    }
    let missing = MIN_ARRIVALS.saturating_sub(offsets.len()) as u64;
    // Between the others, not at the same instants.
    offsets.extend((0..missing).map(|i| Nanos((2 * i + 1) * SPAN.0 / (2 * missing))));
    offsets.sort_unstable();
    offsets
}

/// Bursts of as many requests as the run's, evenly over the span.
fn bursts(size: usize, bounds: &mut Vec<String>) -> Vec<Nanos> {
    if size > MAX_TIES {
        bounds.push(format!("{MAX_TIES} of {size} requests at one instant"));
    }
    let at = |burst: usize| Nanos(burst as u64 * SPAN.0 / BURSTS as u64);
    let burst = |number| std::iter::repeat_n(at(number), size.min(MAX_TIES));
    (0..BURSTS).flat_map(burst).collect()
}

/// The stretch of [`SPAN`] with the most arrivals, as a range of indices. `due` ascends.
fn busiest(due: &[Nanos]) -> (usize, usize) {
    let mut best = (0, 0);
    let mut until = 0;
    for (from, &start) in due.iter().enumerate() {
        while until < due.len() && due[until] < start + SPAN {
            until += 1;
        }
        if until - from > best.1 - best.0 {
            best = (from, until);
        }
    }
    best
}

/// Most requests due at one instant.
fn most_tied(offsets: &[Nanos]) -> usize {
    let runs = offsets.chunk_by(|a, b| a == b);
    runs.map(<[Nanos]>::len).max().unwrap_or(0)
}

/// Mean length of the run's prompts, as far as it is imitated.
fn mean_prompt(run: &Plan) -> usize {
    let open = run.open.iter().map(|request| &request.body);
    let closed = run.closed.iter().flat_map(|part| &part.bodies);
    let turns = run.sessions.iter().flat_map(|session| &session.turns);
    let bodies = open.chain(closed).chain(turns.map(|turn| &turn.body));
    let (mut sum, mut count) = (0u64, 0u64);
    for body in bodies {
        sum += u64::from(body.planned_tokens);
        count += 1;
    }
    ((sum / count.max(1)) as usize).clamp(PROMPT.0, PROMPT.1)
}

fn body(length: usize) -> PlannedBody {
    let ids: Vec<TokenId> = (0..length as u32).map(|i| 100 + i % 800).collect();
    PlannedBody::of_ids("calibration", ids, TOKENS)
}

fn plan(offsets: &[Nanos], length: usize, span: Nanos) -> Plan {
    let request = |(number, &offset_ns): (usize, &Nanos)| OpenRequest {
        id: RequestId(number as u64),
        offset_ns,
        body: body(length),
    };
    Plan {
        open: offsets.iter().enumerate().map(request).collect(),
        horizon_ns: span,
        drain_ns: Nanos::from_secs(5),
        ..Plan::default()
    }
}

fn closed(streams: usize, first: usize, length: usize) -> ClosedLoop {
    ClosedLoop {
        streams,
        first_id: RequestId(first as u64),
        bodies: vec![body(length); PLENTY.max(8 * streams)],
    }
}

#[cfg(test)]
mod tests {
    use pb_contract::plan::{Session, Turn};

    use super::*;

    fn run(offsets_ms: impl IntoIterator<Item = u64>) -> Plan {
        let offsets: Vec<Nanos> = offsets_ms.into_iter().map(Nanos::from_millis).collect();
        let horizon = offsets.last().copied().unwrap_or_default() + Nanos(1);
        let mut plan = plan(&offsets, 16, horizon);
        for request in &mut plan.open {
            request.body.planned_tokens = 300;
        }
        plan
    }

    fn slots(streams: usize) -> Plan {
        Plan {
            closed: vec![closed(streams, 0, 16)],
            ..Plan::default()
        }
    }

    #[test]
    fn an_open_loop_is_imitated_at_its_busiest() {
        // One request a second, but 400 within the 14th.
        let quiet = (0..60).map(|s| s * 1000);
        let rush = (0..400).map(|i| 14_000 + i * 2);
        let mut all: Vec<u64> = quiet.chain(rush).collect();
        all.sort_unstable();
        let load = CalibrationLoad::of(&run(all));
        assert_eq!((load.kind, load.streams), ("open", None));
        // 400 and one of the quiet ones, which is due at 14 s; the one of 15 s comes too.
        assert_eq!(load.plan.open.len(), 402);
        assert_eq!(load.rate_rps, Some(402.0 / 1.5));
        assert_eq!(load.bounded, None);
    }

    #[test]
    fn a_slow_loop_is_filled_up() {
        let load = CalibrationLoad::of(&run((0..10).map(|s| s * 2000)));
        assert_eq!(load.kind, "open");
        assert_eq!(load.plan.open.len(), MIN_ARRIVALS);
        let last = load.plan.open.last().unwrap();
        assert!(last.offset_ns < load.plan.horizon_ns, "{last:?}");
        let mut ids: Vec<u64> = load.plan.open.iter().map(|r| r.id.0).collect();
        ids.dedup();
        assert_eq!(ids.len(), MIN_ARRIVALS);
    }

    #[test]
    fn a_burst_stays_a_burst_and_is_bounded() {
        let load = CalibrationLoad::of(&run(std::iter::repeat_n(0, 1000)));
        assert_eq!(
            (load.kind, load.streams, load.rate_rps),
            ("burst", Some(256), None)
        );
        assert_eq!(
            most_tied(
                &load
                    .plan
                    .open
                    .iter()
                    .map(|r| r.offset_ns)
                    .collect::<Vec<_>>()
            ),
            256
        );
        let bounded = load.bounded.unwrap();
        assert_eq!(bounded, "256 of 1000 requests at one instant");
        // 256 streams at 10,000 events per second: 25.6 ms between the tokens of one.
        assert_eq!(load.itl_ms, 25.6);
        let load = CalibrationLoad::of(&run(std::iter::repeat_n(0, 30)));
        let offsets: Vec<Nanos> = load.plan.open.iter().map(|r| r.offset_ns).collect();
        assert_eq!((load.kind, load.streams), ("burst", Some(30)));
        assert_eq!((offsets.len(), most_tied(&offsets)), (150, 30));
        assert_eq!(offsets[149], Nanos::from_millis(1200));
    }

    #[test]
    fn a_rate_beyond_the_bound_is_thinned_evenly() {
        let load = CalibrationLoad::of(&run((0..9000).map(|i| i / 4)));
        assert_eq!(load.plan.open.len(), MAX_ARRIVALS);
        assert_eq!(load.rate_rps, Some(1000.0));
        assert_eq!(load.bounded.as_deref(), Some("1500 of 6000 arrivals"));
        let last = load.plan.open.last().unwrap().offset_ns;
        assert!(last > Nanos::from_millis(1490), "{last}");
    }

    #[test]
    fn a_closed_loop_has_the_slots_of_the_run_within_bounds() {
        for (asked, streams, bounded) in [
            (1, 4, None),
            (32, 32, None),
            (2000, 256, Some("256 of 2000 streams".to_owned())),
        ] {
            let load = CalibrationLoad::of(&slots(asked));
            assert_eq!((load.kind, load.streams), ("closed", Some(streams)));
            assert_eq!(load.plan.closed[0].streams, streams);
            assert_eq!(load.bounded, bounded);
            assert!(load.plan.open.is_empty() && load.rate_rps.is_none());
        }
        assert_eq!(CalibrationLoad::of(&slots(32)).itl_ms, 5.0);
    }

    #[test]
    fn sessions_are_streams_and_parts_are_mixed() {
        let turn = Turn {
            id: RequestId(0),
            think_ns: Nanos::ZERO,
            body: body(20),
            history: false,
        };
        let session = Session {
            offset_ns: Nanos::ZERO,
            turns: vec![turn],
        };
        let sessions = Plan {
            sessions: vec![session; 9],
            ..Plan::default()
        };
        let load = CalibrationLoad::of(&sessions);
        assert_eq!((load.kind, load.streams), ("closed", Some(9)));
        let mut mixed = run([0, 500, 900]);
        mixed.closed = slots(8).closed;
        let load = CalibrationLoad::of(&mixed);
        assert_eq!((load.kind, load.streams), ("mixed", Some(8)));
        let first = load.plan.closed[0].first_id.0;
        assert_eq!(first, load.plan.open.len() as u64, "no id occurs twice");
    }

    #[test]
    fn prompts_are_as_long_as_those_of_the_run_within_bounds() {
        for (planned, length) in [(300, 300), (3, 16), (50_000, 1024)] {
            let mut run = run((0..400).map(|i| i * 3));
            for request in &mut run.open {
                request.body.planned_tokens = planned;
            }
            let load = CalibrationLoad::of(&run);
            let ids = load.plan.open[7].body.prompt.ids().unwrap();
            assert_eq!(ids.len(), length);
        }
    }

    #[test]
    fn a_plan_without_requests_gives_a_load_without_requests() {
        let load = CalibrationLoad::of(&Plan::default());
        assert!(load.plan.open.is_empty() && load.plan.closed.is_empty());
    }
}
