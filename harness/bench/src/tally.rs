//! From the records of a run to its numbers. Pure: no clock, no file.
//!
//! The definitions of a single request's latencies are those of `pb_record::metrics`. Here they
//! are pooled: over the requests that ended well, because a failure has no latency that means
//! anything, and a fast error would make a server look quick. The view in which a failure counts
//! as an endless latency is in [`crate::offered`].
//!
//! Memory: a row for each request and eight bytes for each content event; as much again for the
//! events while their percentiles are found, from one sorted copy. Joining and reading a run of
//! 100,000 requests and ten million tokens took 196 MiB at its peak (`examples/join_memory.rs`).
//! Tokens are never held as rows.

use std::collections::BTreeMap;

use pb_contract::{Nanos, RequestRow, RequestStatus, TokenRow};
use pb_record::metrics::{Bundle, Repeated, RequestMetrics, event_gaps, request_metrics};
use pb_stats::{StallRule, stalls_of_sorted};
use serde::{Deserialize, Serialize};

use crate::distribution::{Distribution, Spread, ms};
use crate::goodput::{Objective, meets};

/// Arm of the requests that warm a server up: they are kept as rows and never enter a number.
pub const WARMUP_ARM: &str = "warmup";

/// Gaps that a reader notices: at least 50 ms and five times the median gap.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stalls {
    /// How many; absent when there was no gap at all.
    pub count: Option<u64>,
    /// Their sum in ms.
    pub total_ms: Option<f64>,
    /// Their share of the time of all gaps, 0 to 1.
    pub share: Option<f64>,
    /// The shortest gap that counts, in ms.
    pub threshold_ms: Option<f64>,
    /// The longest gap among them, in ms.
    pub longest_ms: Option<f64>,
}

impl Stalls {
    /// Among event gaps, each of which is there once.
    fn of(gaps: &Distribution) -> Stalls {
        let found = stalls_of_sorted(gaps.singles(), StallRule::default());
        let any = found.gaps > 0;
        Stalls {
            count: any.then_some(found.count),
            total_ms: any.then(|| ms(found.total_ns)),
            share: found.time_share,
            threshold_ms: found.threshold_ns.map(ms),
            longest_ms: found.longest_ns.map(ms),
        }
    }
}

/// What is said of the gaps between the events of a part.
pub(crate) struct GapFigures {
    pub(crate) itl: Option<Spread>,
    pub(crate) event_gap: Option<Spread>,
    pub(crate) stalls: Stalls,
}

/// Token counts over the requests that ended well, by the three rules that tools count by.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tokens {
    /// Prompt tokens as planned.
    pub input_planned: u64,
    /// Prompt tokens as the server counts them; absent when an answer does not say.
    pub input_served: Option<u64>,
    /// Output tokens: as the server counts them, else as the stream carried them.
    pub output: u64,
    /// Of `output`, tokens that were counted from the stream because the server does not say.
    pub output_estimated: u64,
    /// Output tokens that the streams carried, whatever the server counts.
    pub output_streamed: u64,
    /// Content events: what a tool counts that takes each event for a token.
    pub events: u64,
    /// Share of tokens that came in an event with others, 0 to 1.
    pub bundled_share: Option<f64>,
}

/// The gaps of the streams of one class.
#[derive(Clone, Debug, Default)]
struct Gaps {
    /// Before events of one token: an event gap and a token latency at once.
    singles: Vec<u64>,
    /// Before events of another number of tokens.
    bundles: Vec<(u64, u32)>,
    /// Tokens that came in an event with others, and all tokens.
    bundled: (u64, u64),
    /// Content events.
    events: u64,
}

impl Gaps {
    fn add(&mut self, tokens: &[TokenRow]) {
        for gap in event_gaps(tokens) {
            match gap.tokens {
                1 => self.singles.push(gap.gap_ns),
                many => self.bundles.push((gap.gap_ns, many)),
            }
        }
        let (bundled, all) = pb_record::metrics::bundled_tokens(tokens);
        self.bundled.0 = self.bundled.0.saturating_add(bundled);
        self.bundled.1 = self.bundled.1.saturating_add(all);
        self.events += tokens.len() as u64;
    }

    /// Gaps, whatever came after them.
    fn len(&self) -> usize {
        self.singles.len() + self.bundles.len()
    }
}

/// The token latencies of a gap before `tokens` tokens. What an even spread leaves over goes to
/// the first ones, a nanosecond each, so that the sum stays exact.
fn spread(gap_ns: u64, tokens: u32, rule: Bundle) -> [Repeated; 2] {
    let count = u64::from(tokens);
    match (count, rule) {
        (0, _) => [Repeated { ns: 0, count: 0 }; 2],
        (_, Bundle::Even) => [
            Repeated {
                ns: gap_ns / count + 1,
                count: gap_ns % count,
            },
            Repeated {
                ns: gap_ns / count,
                count: count - gap_ns % count,
            },
        ],
        (_, Bundle::Burst) => [
            Repeated {
                ns: gap_ns,
                count: 1,
            },
            Repeated {
                ns: 0,
                count: count - 1,
            },
        ],
    }
}

/// The records of a run, as far as its numbers need them.
#[derive(Debug)]
pub struct Tally {
    rows: Vec<RequestRow>,
    objectives: Vec<Objective>,
    rule: Bundle,
    gaps: BTreeMap<String, Gaps>,
    met: Vec<u64>,
    limits: Vec<(Objective, u64)>,
    good: BTreeMap<String, u64>,
    warmups: u64,
    per_second: BTreeMap<u64, u64>,
    streams: Option<Vec<Vec<u64>>>,
    partial_tokens: u64,
}

impl Tally {
    /// An empty one; a good request meets `objectives`, bundles are spread evenly.
    pub fn new(objectives: Vec<Objective>) -> Tally {
        Tally::with_rule(objectives, Bundle::Even)
    }

    /// An empty one that spreads bundles by `rule`.
    pub fn with_rule(objectives: Vec<Objective>, rule: Bundle) -> Tally {
        Tally {
            rows: Vec::new(),
            met: vec![0; objectives.len()],
            objectives,
            rule,
            limits: Vec::new(),
            gaps: BTreeMap::new(),
            good: BTreeMap::new(),
            warmups: 0,
            per_second: BTreeMap::new(),
            streams: None,
            partial_tokens: 0,
        }
    }

    /// Counts the requests that meet each of these too, whether good or not.
    pub fn with_limits(mut self, limits: Vec<Objective>) -> Tally {
        self.limits = limits.into_iter().map(|limit| (limit, 0)).collect();
        self
    }

    /// Keeps the gaps of each stream too, eight bytes each, for lists with a value a request.
    pub fn with_streams(mut self) -> Tally {
        self.streams = Some(Vec::new());
        self
    }

    /// Takes a record in; one of a warm-up is counted and nothing else.
    pub fn add(&mut self, row: RequestRow, tokens: &[TokenRow]) {
        if row.arm == WARMUP_ARM {
            self.warmups += 1;
            return;
        }
        if let Some(streams) = &mut self.streams {
            streams.push(event_gaps(tokens).iter().map(|gap| gap.gap_ns).collect());
        }
        if row.status == RequestStatus::Ok {
            self.gaps.entry(row.class.clone()).or_default().add(tokens);
            for token in tokens {
                *self
                    .per_second
                    .entry(token.at_ns.0 / 1_000_000_000)
                    .or_default() += 1;
            }
            let mut good = true;
            for (objective, met) in self.objectives.iter().zip(&mut self.met) {
                let meets = meets(&row, tokens, objective);
                *met += u64::from(meets);
                good &= meets;
            }
            for (limit, met) in &mut self.limits {
                *met += u64::from(meets(&row, tokens, limit));
            }
            *self.good.entry(row.class.clone()).or_default() += u64::from(good);
        } else {
            self.partial_tokens += u64::from(row.streamed_tokens);
        }
        self.rows.push(row);
    }

    /// All rows, in the order in which their requests ended.
    pub fn rows(&self) -> &[RequestRow] {
        &self.rows
    }

    /// The gaps of the stream of a row, by its number in [`Tally::rows`]; absent without
    /// [`Tally::with_streams`].
    pub fn stream(&self, row: usize) -> Option<&[u64]> {
        self.streams.as_ref()?.get(row).map(Vec::as_slice)
    }

    /// Most content events of requests that ended well within a whole second of the clock.
    pub fn most_events_in_a_second(&self) -> u64 {
        self.per_second.values().copied().max().unwrap_or(0)
    }

    /// The objectives that a good request meets.
    pub fn objectives(&self) -> &[Objective] {
        &self.objectives
    }

    /// How bundles become token latencies.
    pub fn rule(&self) -> Bundle {
        self.rule
    }

    /// Requests of the warm-up.
    pub fn warmups(&self) -> u64 {
        self.warmups
    }

    /// Tokens that came from requests that did not end well.
    pub fn partial_tokens(&self) -> u64 {
        self.partial_tokens
    }

    /// The classes of the workload, in order.
    pub fn classes(&self) -> Vec<String> {
        let all: std::collections::BTreeSet<&String> = self.rows.iter().map(|r| &r.class).collect();
        all.into_iter().cloned().collect()
    }

    /// What is said of all requests.
    pub fn all(&self) -> Part<'_> {
        Part {
            tally: self,
            class: None,
        }
    }

    /// What is said of the requests of one class.
    pub fn class<'a>(&'a self, class: &'a str) -> Part<'a> {
        Part {
            tally: self,
            class: Some(class),
        }
    }

    /// Requests that ended well.
    pub fn ok(&self) -> impl Iterator<Item = &RequestRow> {
        self.all().ok()
    }

    /// One latency of every request that ended well and has it.
    pub fn latency(&self, of: fn(&RequestMetrics) -> Option<u64>) -> Option<Spread> {
        self.all().latency(of).spread()
    }

    /// The client's own delay, of every request that was sent, however it ended.
    pub fn driver_lag(&self) -> Option<Spread> {
        self.all().driver_lag().spread()
    }

    /// Token latencies.
    pub fn itl(&self) -> Option<Spread> {
        self.all().itl().spread()
    }

    /// Gaps between events with tokens.
    pub fn event_gaps(&self) -> Option<Spread> {
        self.all().event_gaps().spread()
    }

    /// Stalls among the gaps.
    pub fn stalls(&self) -> Stalls {
        self.all().stalls()
    }

    /// Token counts.
    pub fn tokens(&self) -> Tokens {
        self.all().tokens()
    }

    /// Requests within every objective; absent when none was named.
    pub fn good(&self) -> Option<u64> {
        self.all().good()
    }

    /// For each objective the requests that met it.
    pub fn met(&self) -> impl Iterator<Item = (&Objective, u64)> {
        self.objectives.iter().zip(self.met.iter().copied())
    }

    /// Requests that met a limit; absent when it was not named before they were added.
    pub fn meeting(&self, limit: &Objective) -> Option<u64> {
        let named = self.limits.iter().map(|(limit, met)| (limit, *met));
        let found = self.met().chain(named).find(|(named, _)| *named == limit);
        found.map(|(_, met)| met)
    }

    /// When the last stream closed.
    pub fn last_closed(&self) -> Option<Nanos> {
        self.rows.iter().filter_map(|row| row.closed_ns).max()
    }
}

/// The requests of a run, or of one class of it.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    tally: &'a Tally,
    class: Option<&'a str>,
}

impl<'a> Part<'a> {
    /// Its rows.
    pub fn rows(self) -> impl Iterator<Item = &'a RequestRow> {
        let of_class = move |row: &&RequestRow| self.class.is_none_or(|class| row.class == class);
        self.tally.rows.iter().filter(of_class)
    }

    /// Its requests that ended well.
    pub fn ok(self) -> impl Iterator<Item = &'a RequestRow> {
        self.rows().filter(|row| row.status == RequestStatus::Ok)
    }

    fn gaps(self) -> impl Iterator<Item = &'a Gaps> + Clone {
        let of_class = move |name: &str| self.class.is_none_or(|class| name == class);
        let all = self.tally.gaps.iter();
        all.filter(move |(name, _)| of_class(name))
            .map(|(_, gaps)| gaps)
    }

    /// One latency of every request that ended well and has it.
    pub fn latency(self, of: fn(&RequestMetrics) -> Option<u64>) -> Distribution {
        let samples = self.ok().filter_map(|row| of(&request_metrics(row)));
        Distribution::of(samples.collect())
    }

    /// The client's own delay, of every request that was sent, however it ended.
    pub fn driver_lag(self) -> Distribution {
        let lag = |row| request_metrics(row).driver_lag_ns;
        Distribution::of(self.rows().filter_map(lag).collect())
    }

    /// Token latencies.
    pub fn itl(self) -> Distribution {
        let length = self.gaps().map(|gaps| gaps.singles.len()).sum();
        let mut singles = Vec::with_capacity(length);
        for gaps in self.gaps() {
            singles.extend_from_slice(&gaps.singles);
        }
        let bundles = self.gaps().flat_map(|gaps| &gaps.bundles);
        let runs = bundles.flat_map(|&(gap, tokens)| spread(gap, tokens, self.tally.rule));
        Distribution::with_runs(singles, runs.collect())
    }

    /// Gaps between events with tokens.
    pub fn event_gaps(self) -> Distribution {
        let mut all = Vec::with_capacity(self.gaps().map(Gaps::len).sum());
        for gaps in self.gaps() {
            all.extend_from_slice(&gaps.singles);
            all.extend(gaps.bundles.iter().map(|&(gap, _)| gap));
        }
        Distribution::of(all)
    }

    /// Stalls among the gaps.
    pub fn stalls(self) -> Stalls {
        Stalls::of(&self.event_gaps())
    }

    /// What is said of the gaps. They are the bulk of a run, so no more than one sorted copy of
    /// them is there at a time.
    pub(crate) fn gap_figures(self) -> GapFigures {
        let events = self.event_gaps();
        let (event_gap, stalls) = (events.spread(), Stalls::of(&events));
        drop(events);
        // Where every event carries one token, gaps and token latencies are the same.
        let single = self.gaps().all(|gaps| gaps.bundles.is_empty());
        GapFigures {
            itl: match single {
                true => event_gap,
                false => self.itl().spread(),
            },
            event_gap,
            stalls,
        }
    }

    /// Token counts.
    pub fn tokens(self) -> Tokens {
        let served = |row: &RequestRow| row.prompt_tokens.map(u64::from);
        let any = self.ok().next().is_some();
        let events = self.gaps().map(|gaps| gaps.events).sum();
        let mut tokens = Tokens {
            input_planned: 0,
            input_served: self.ok().map(served).sum::<Option<u64>>().filter(|_| any),
            output: 0,
            output_estimated: 0,
            output_streamed: 0,
            events,
            bundled_share: None,
        };
        for row in self.ok() {
            tokens.input_planned += u64::from(row.prompt_tokens_planned);
            let output = u64::from(row.completion_tokens.unwrap_or(row.streamed_tokens));
            tokens.output += output;
            tokens.output_streamed += u64::from(row.streamed_tokens);
            if row.completion_tokens.is_none() {
                tokens.output_estimated += output;
            }
        }
        let add = |sum: (u64, u64), gaps: &Gaps| {
            let (bundled, all) = gaps.bundled;
            (sum.0.saturating_add(bundled), sum.1.saturating_add(all))
        };
        let (bundled, all) = self.gaps().fold((0, 0), add);
        tokens.bundled_share = (all > 0).then(|| bundled as f64 / all as f64);
        tokens
    }

    /// Requests within every objective; absent when none was named.
    pub fn good(self) -> Option<u64> {
        let of_class = |name: &str| self.class.is_none_or(|class| name == class);
        let good = self.tally.good.iter().filter(|(name, _)| of_class(name));
        (!self.tally.objectives.is_empty()).then(|| good.map(|(_, count)| count).sum())
    }
}
