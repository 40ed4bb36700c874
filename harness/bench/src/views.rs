//! The parts of the document that are computed from the rows and from what the run rests on.

use pb_contract::{Nanos, RequestRow};
use pb_record::metrics::{Counts, request_metrics};
use serde::{Deserialize, Serialize};

use crate::conditions::{Cache, WorkloadFacts};
use crate::goodput::Slo;
use crate::server::Server;
use crate::tally::Tally;

/// Rates per second of the run: from its start to the end of the last stream.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// Requests due; absent when all were due at once.
    pub offered_rps: Option<f64>,
    /// Requests that ended well.
    pub achieved_rps: Option<f64>,
    /// Their output tokens.
    pub output_tps: Option<f64>,
    /// Output tokens that arrived, those of requests that did not end well included.
    pub streamed_tps: Option<f64>,
    /// Prompt tokens of the requests that ended well, as the server counts them.
    pub input_tps: Option<f64>,
    /// Requests that met every objective; absent when none was named.
    pub goodput_rps: Option<f64>,
    /// Share of the offered requests that met every objective, 0 to 1.
    pub goodput_share: Option<f64>,
}

impl Rates {
    pub(crate) fn of(tally: &Tally, counts: &Counts, window: &Window) -> Rates {
        let run = window.run();
        let per_second = |count: u64, span: Option<Nanos>| {
            let seconds = span?.as_secs_f64();
            (seconds > 0.0).then(|| count as f64 / seconds)
        };
        let (tokens, good) = (tally.tokens(), tally.good());
        let streamed = tokens.output_streamed + tally.partial_tokens();
        Rates {
            offered_rps: per_second(counts.offered, window.arrivals_ns.or(run)),
            achieved_rps: per_second(counts.ok, run),
            output_tps: per_second(tokens.output, run),
            streamed_tps: per_second(streamed, run),
            input_tps: tokens
                .input_served
                .and_then(|served| per_second(served, run)),
            goodput_rps: good.and_then(|good| per_second(good, run)),
            goodput_share: good.and_then(|good| share(good, counts.offered)),
        }
    }
}

pub(crate) fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// The time of the run on the client's monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Window {
    /// Start of the schedule.
    pub start_ns: Nanos,
    /// End of the last stream; absent when none ended.
    pub end_ns: Option<Nanos>,
    /// From the start to the last arrival of an open loop.
    pub arrivals_ns: Option<Nanos>,
    /// From start to end, in seconds.
    pub run_s: Option<f64>,
}

impl Window {
    pub(crate) fn of(tally: &Tally, start: Nanos, arrivals_ns: Option<Nanos>) -> Window {
        let end_ns = tally.last_closed();
        Window {
            start_ns: start,
            end_ns,
            arrivals_ns,
            run_s: end_ns.map(|end| end.saturating_sub(start).as_secs_f64()),
        }
    }

    pub(crate) fn run(&self) -> Option<Nanos> {
        self.end_ns.map(|end| end.saturating_sub(self.start_ns))
    }
}

/// How many of the offered requests met a limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attained {
    /// The limit in ms.
    pub limit_ms: f64,
    /// Requests that met it.
    pub met: u64,
    /// Their share of the offered ones, 0 to 1.
    pub share: Option<f64>,
}

/// A demand on the run and whether it was met.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gate {
    /// The demand as the user writes it.
    pub name: String,
    /// The limit in ms; absent when ending well is all that is asked.
    pub limit_ms: Option<f64>,
    /// Share that is asked for.
    pub required: f64,
    /// Share found; absent when nothing was offered.
    pub attained: Option<f64>,
    /// Whether it was met.
    pub pass: bool,
}

impl Gate {
    pub(crate) fn of(slo: &Slo, tally: &Tally, counts: &Counts) -> Gate {
        let met = match &slo.objective {
            Some(limit) => tally.meeting(limit).unwrap_or(0),
            None => counts.ok,
        };
        let attained = share(met, counts.offered);
        Gate {
            name: slo.to_string(),
            limit_ms: slo.objective.map(|limit| limit.limit_ms()),
            required: slo.share,
            attained,
            pass: attained.is_some_and(|attained| attained >= slo.share),
        }
    }
}

/// The prefix cache: planned, measured, and how far the figures may be trusted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheView {
    /// `asis`, `cold`, `warm` or `unproven`.
    pub state: String,
    /// Prompt tokens planned to be found; absent when the state was not controlled.
    pub planned_hit_tokens: Option<u64>,
    /// Prompt tokens found; absent when the server does not say.
    pub measured_hit_tokens: Option<u64>,
    /// Requests whose answer says what was found.
    pub known_rows: u64,
    /// Tokens found of the prompt tokens of those requests, 0 to 1; absent when none says.
    pub hit_rate: Option<f64>,
    /// Why the rate may be too high: recomputed prompts of preempted requests look like hits.
    pub hit_rate_doubt: Option<String>,
}

impl CacheView {
    pub(crate) fn of(cache: &Cache, tally: &Tally, server: Option<&Server>) -> CacheView {
        let known = |row: &RequestRow| {
            let prompt = row.prompt_tokens.unwrap_or(row.prompt_tokens_planned);
            Some((u64::from(row.cached_tokens?), u64::from(prompt)))
        };
        let add = |sum: (u64, u64), one: (u64, u64)| (sum.0 + one.0, sum.1 + one.1);
        let (hits, prompts) = tally.ok().filter_map(known).fold((0, 0), add);
        let preemptions = server.and_then(|s| s.counters.preemptions).unwrap_or(0);
        CacheView {
            state: cache.state.to_owned(),
            planned_hit_tokens: cache.planned_hit_tokens,
            measured_hit_tokens: cache.measured_hit_tokens,
            known_rows: cache.known_rows as u64,
            hit_rate: share(hits, prompts),
            hit_rate_doubt: (preemptions > 0).then(|| {
                format!(
                    "the server preempted {preemptions} requests; what they found again of \
                     their own blocks counts as hits"
                )
            }),
        }
    }
}

/// The workload and how its prompts arrived at the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// What it is.
    pub facts: WorkloadFacts,
    /// Requests that ended well and whose prompt the server counted.
    pub known_rows: u64,
    /// Of these, prompt tokens as planned.
    pub prompt_tokens_planned: u64,
    /// Of these, prompt tokens as the server counts them.
    pub prompt_tokens_served: u64,
    /// Served minus planned of each request: what a template or another tokenizer adds. Mean.
    pub template_overhead_mean: Option<f64>,
    /// As above; smallest.
    pub template_overhead_min: Option<i64>,
    /// As above; largest.
    pub template_overhead_max: Option<i64>,
}

impl Workload {
    pub(crate) fn of(facts: &WorkloadFacts, tally: &Tally) -> Workload {
        let (mut planned, mut served, mut over) = (0, 0, Vec::new());
        for row in tally.ok() {
            if let Some(prompt) = row.prompt_tokens {
                planned += u64::from(row.prompt_tokens_planned);
                served += u64::from(prompt);
                over.push(i64::from(prompt) - i64::from(row.prompt_tokens_planned));
            }
        }
        let mean = over.iter().sum::<i64>() as f64 / over.len() as f64;
        Workload {
            facts: facts.clone(),
            known_rows: over.len() as u64,
            prompt_tokens_planned: planned,
            prompt_tokens_served: served,
            template_overhead_mean: (!over.is_empty()).then_some(mean),
            template_overhead_min: over.iter().min().copied(),
            template_overhead_max: over.iter().max().copied(),
        }
    }
}

/// Whether each request got exactly the output that was asked for: ended by length, at the
/// length. Absent when none ended well.
pub(crate) fn length_controlled(tally: &Tally) -> Option<bool> {
    let exact = |row: &RequestRow| {
        let output = row.completion_tokens.unwrap_or(row.streamed_tokens);
        row.finish_reason.as_deref() == Some("length") && output == row.max_tokens
    };
    tally.ok().next().map(|_| tally.ok().all(exact))
}

/// Requests whose server counted other output tokens than the stream carried.
pub(crate) fn hidden_tokens(tally: &Tally) -> u64 {
    tally
        .ok()
        .filter(|row| request_metrics(row).hidden_tokens)
        .count() as u64
}
