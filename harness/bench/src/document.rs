//! The result of a run as one document: `bench.json`, and what `--json` prints.
//!
//! Its keys are listed in `docs/schema/bench-1.schema.json`. A key is never left out; what was
//! not measured is null, never zero.

use std::collections::BTreeMap;

use pb_contract::FailKind;
use pb_record::metrics::{Bundle, Counts, failures};
use serde::{Deserialize, Serialize};

use crate::calibration::Calibration;
pub use crate::conditions::{Cache, Frame};
use crate::conditions::{Conditions, Identity, Shard, ShardNote};
use crate::distribution::{PERCENTILE_RULE, Spread};
use crate::load::Load;
use crate::offered::Offered;
use crate::server::Server;
use crate::steadiness::{self, Steadiness};
use crate::tally::{Part, Stalls, Tally, Tokens};
pub use crate::validity::Validity;
use crate::validity::{validity, warnings};
pub use crate::views::Rates;
use crate::views::{
    Attained, CacheView, Gate, Window, Workload, hidden_tokens, length_controlled, share,
};

/// Name of the file with the document.
pub const DOCUMENT_FILE: &str = "bench.json";

/// Version of the document's keys.
pub const SCHEMA_VERSION: u32 = 1;

/// The result of a run. What was not measured is null.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// `complete`, `interrupted` or `partial`: a shard or the end of the run is missing.
    pub state: String,
    /// The run was stopped before its end.
    pub interrupted: bool,
    /// The rule of every percentile: `nearest-rank`.
    pub percentile_rule: String,
    /// How bundles of tokens become token latencies in `itl_ms`.
    pub itl_rule: Bundle,
    /// Who was asked.
    pub identity: Identity,
    /// Requests by how they ended; they sum to `offered`.
    pub counts: Counts,
    /// Requests that did not end well, by kind.
    pub failures: BTreeMap<FailKind, u64>,
    /// First token after the intended arrival.
    pub ttft_ms: Option<Spread>,
    /// First event after the intended arrival.
    pub ttfr_ms: Option<Spread>,
    /// First token after the first byte was sent.
    pub service_ttft_ms: Option<Spread>,
    /// Token latencies, by `itl_rule`.
    pub itl_ms: Option<Spread>,
    /// Gaps between events with tokens.
    pub event_gap_ms: Option<Spread>,
    /// Time per output token after the first, one value a request.
    pub tpot_ms: Option<Spread>,
    /// Last token after the intended arrival.
    pub e2e_ms: Option<Spread>,
    /// Stream closed after the intended arrival.
    pub close_ms: Option<Spread>,
    /// First byte sent after the intended arrival.
    pub driver_lag_ms: Option<Spread>,
    /// Gaps that a reader notices.
    pub stalls: Stalls,
    /// Whether later requests are like earlier ones.
    #[serde(default)]
    pub steadiness: Vec<Steadiness>,
    /// Token counts.
    pub tokens: Tokens,
    /// Requests whose server counted other output tokens than the stream carried: hidden ones, or
    /// bundles of unknown size.
    pub hidden_tokens: u64,
    /// Every answer has exactly the length that was asked for.
    pub length_controlled: Option<bool>,
    /// Rates.
    pub rates: Rates,
    /// The same run with failures as endless latencies.
    pub offered: Offered,
    /// For each limit the share of the offered requests that met it.
    pub slo: BTreeMap<String, Attained>,
    /// Demands on the run.
    pub gates: Vec<Gate>,
    /// The same numbers for each class of the workload.
    pub classes: BTreeMap<String, Class>,
    /// The prefix cache.
    pub cache: CacheView,
    /// The load that was asked for and what it became.
    pub load: Load,
    /// The workload.
    pub workload: Workload,
    /// The time of the run.
    pub window: Window,
    /// What the server said of itself; null when it was not asked or does not say.
    pub server: Option<Server>,
    /// The client's own error on this machine.
    pub calibration: Option<Calibration>,
    /// Whether the numbers may be used.
    pub validity: Validity,
    /// What a reader should know and what speaks not against the run.
    pub warnings: Vec<String>,
    /// sha256 of the schedule.
    pub schedule_sha256: String,
    /// Seed of the schedule.
    pub seed: u64,
    /// Which part of the schedule this is.
    pub shard: Option<Shard>,
    /// The parts that were joined.
    pub shards: Vec<ShardNote>,
}

/// The numbers of the requests of one class; keys as in the document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Class {
    pub counts: Counts,
    pub failures: BTreeMap<FailKind, u64>,
    pub ttft_ms: Option<Spread>,
    pub ttfr_ms: Option<Spread>,
    pub service_ttft_ms: Option<Spread>,
    pub itl_ms: Option<Spread>,
    pub event_gap_ms: Option<Spread>,
    pub tpot_ms: Option<Spread>,
    pub e2e_ms: Option<Spread>,
    pub close_ms: Option<Spread>,
    pub driver_lag_ms: Option<Spread>,
    pub stalls: Stalls,
    pub tokens: Tokens,
    pub goodput_share: Option<f64>,
    pub offered: Offered,
}

impl Class {
    fn of(part: Part<'_>) -> Class {
        let counts = Counts::of(part.rows());
        let gaps = part.gap_figures();
        Class {
            counts,
            failures: failures(part.rows()),
            ttft_ms: part.latency(|m| m.ttft_ns).spread(),
            ttfr_ms: part.latency(|m| m.ttfr_ns).spread(),
            service_ttft_ms: part.latency(|m| m.service_ttft_ns).spread(),
            itl_ms: gaps.itl,
            event_gap_ms: gaps.event_gap,
            tpot_ms: part.latency(|m| m.tpot_ns).spread(),
            e2e_ms: part.latency(|m| m.e2e_ns).spread(),
            close_ms: part.latency(|m| m.close_ns).spread(),
            // A run in which nothing was answered has no percentiles.
            driver_lag_ms: part.driver_lag().spread().filter(|_| counts.ok > 0),
            stalls: gaps.stalls,
            tokens: part.tokens(),
            goodput_share: part.good().and_then(|good| share(good, counts.offered)),
            offered: Offered::of(part),
        }
    }
}

impl Document {
    /// The numbers of a run that rests on a frame and nothing else.
    pub fn new(tally: &Tally, frame: Frame) -> Document {
        Document::of(tally, &Conditions::new(frame))
    }

    /// The numbers of a run. `tally` is one that [`Conditions::tally`] made.
    pub fn of(tally: &Tally, conditions: &Conditions) -> Document {
        let frame = &conditions.frame;
        let all = Class::of(tally.all());
        let window = Window::of(tally, frame.start, frame.arrivals_ns);
        let span = frame.arrivals_ns.or(window.run());
        let load = Load::of(tally.rows(), &conditions.load, span);
        let steadiness = steadiness::of(tally);
        let validity = validity(tally, &all.counts, &load, conditions);
        let limits = tally
            .objectives()
            .iter()
            .copied()
            .chain(conditions.limits());
        let slo = limits.map(|limit| {
            let met = tally.meeting(&limit).unwrap_or(0);
            let attained = Attained {
                limit_ms: limit.limit_ms(),
                met,
                share: share(met, all.counts.offered),
            };
            (limit.to_string(), attained)
        });
        let gates = conditions
            .slos
            .iter()
            .map(|slo| Gate::of(slo, tally, &all.counts));
        Document {
            schema_version: SCHEMA_VERSION,
            state: conditions.state().to_owned(),
            interrupted: conditions.interrupted,
            percentile_rule: PERCENTILE_RULE.to_owned(),
            itl_rule: tally.rule(),
            identity: conditions.identity.clone(),
            slo: slo.collect(),
            gates: gates.collect(),
            rates: Rates::of(tally, &all.counts, &window),
            hidden_tokens: hidden_tokens(tally),
            length_controlled: length_controlled(tally),
            classes: classes(tally, &all),
            cache: CacheView::of(&frame.cache, tally, conditions.server.as_ref()),
            workload: Workload::of(&conditions.workload, tally),
            warnings: warnings(tally, &all, &load, &steadiness, conditions),
            steadiness,
            load,
            window,
            server: conditions.server.clone(),
            calibration: conditions.calibration.clone(),
            validity,
            schedule_sha256: frame.schedule_sha256.clone(),
            seed: frame.seed,
            shard: conditions.shard,
            shards: conditions.shards.clone(),
            counts: all.counts,
            failures: all.failures,
            ttft_ms: all.ttft_ms,
            ttfr_ms: all.ttfr_ms,
            service_ttft_ms: all.service_ttft_ms,
            itl_ms: all.itl_ms,
            event_gap_ms: all.event_gap_ms,
            tpot_ms: all.tpot_ms,
            e2e_ms: all.e2e_ms,
            close_ms: all.close_ms,
            driver_lag_ms: all.driver_lag_ms,
            stalls: all.stalls,
            tokens: all.tokens,
            offered: all.offered,
        }
    }

    /// Exit code: 1 when every request failed, 3 when the run is not valid, 1 when a demand on it
    /// was not met.
    pub fn exit_code(&self) -> u8 {
        let met = self.gates.iter().all(|gate| gate.pass);
        match (self.counts.ok, self.validity.valid, met) {
            (0, ..) if self.counts.offered > 0 => 1,
            (_, false, _) => 3,
            (_, true, met) => u8::from(!met),
        }
    }
}

fn classes(tally: &Tally, all: &Class) -> BTreeMap<String, Class> {
    let names = tally.classes();
    let of = |name: &str| match names.len() {
        // The only class has the numbers of the whole.
        1 => all.clone(),
        _ => Class::of(tally.class(name)),
    };
    names.iter().map(|name| (name.clone(), of(name))).collect()
}
