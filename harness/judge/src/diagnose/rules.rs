//! The hypotheses, each held against the rows.
//!
//! A hypothesis is *shown* when its mechanism took at least half of what the symptom has more, and
//! what must then also be true is true. Less than a quarter speaks against it, as does anything
//! that cannot be if it holds. What decides and was not measured keeps it open.

use pb_contract::{Nanos, RequestRow, StepRow};

use super::account::{Timelines, TokenGaps};
use super::case::Case;
use super::document::{Hypothesis, State, Symptom, SymptomName};
use super::experiment::Experiment;
use super::of_first_tokens::{eviction, reservation};
use super::of_gaps::{bandwidth, chunks, contention, preemption};
use super::queue::FirstTokens;

/// Share from which a mechanism explains a symptom.
pub(super) const MAIN: f64 = 0.5;
/// Share below which it does not.
pub(super) const MINOR: f64 = 0.25;

/// What the rules look at.
pub(super) struct Facts<'a> {
    pub(super) case: &'a Case<'a>,
    pub(super) timelines: &'a Timelines,
    pub(super) gaps: &'a TokenGaps,
    pub(super) first: &'a FirstTokens,
    pub(super) sums: Sums,
    /// Longest prompt in tokens that were not cached; absent when hits are not told by request.
    pub(super) longest_prompt: Option<u64>,
}

/// Sums and largest values over the steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sums {
    pub(super) largest_prefill: u64,
    pub(super) most_decodes: u64,
    pub(super) most_in_flight: u64,
    pub(super) computed: u64,
    pub(super) queried: u64,
    pub(super) hit: u64,
    pub(super) preempted: u64,
    pub(super) swapped_in: u64,
    pub(super) evicted: u64,
    /// Blocks that were free or reclaimable after steps that preempted, and the pool then.
    pub(super) at_preemption: (f64, f64),
}

impl Sums {
    fn of(timelines: &Timelines) -> Sums {
        let mut sums = Sums::default();
        for step in timelines.steps() {
            sums.add(&step.row);
        }
        sums
    }

    fn add(&mut self, row: &StepRow) {
        let in_flight = row.running.saturating_add(row.waiting);
        let most = |known: &mut u64, count: usize| *known = (*known).max(count as u64);
        most(&mut self.largest_prefill, row.prefill_tokens);
        most(&mut self.most_decodes, row.decode_seqs);
        most(&mut self.most_in_flight, in_flight);
        let more = |sum: &mut u64, count: usize| *sum = sum.saturating_add(count as u64);
        more(&mut self.computed, row.prefill_tokens);
        more(&mut self.queried, row.queried_tokens);
        more(&mut self.hit, row.hit_tokens);
        more(&mut self.preempted, row.preempted);
        more(&mut self.swapped_in, row.swapped_in_tokens);
        more(&mut self.evicted, row.evicted_blocks);
        if row.preempted > 0 {
            let available = row.free_blocks as f64 + row.reclaimable_blocks as f64;
            self.at_preemption.0 += available;
            self.at_preemption.1 += available + row.active_blocks as f64;
        }
    }

    /// Requests and streams at a time, of which the steps would tell more exactly.
    fn seen_by_client(&mut self, case: &Case<'_>) {
        let spans = |from: fn(&RequestRow) -> Option<Nanos>| {
            let rows = case.requests();
            rows.filter_map(|row| Some((from(row)?.0, row.last_token_ns?.0)))
                .collect()
        };
        self.most_in_flight = most_at_once(spans(|row| row.sent_ns));
        self.most_decodes = most_at_once(spans(|row| row.first_token_ns));
    }

    /// Prompt tokens that were computed although they had been computed before.
    pub(super) fn again(&self) -> u64 {
        let fresh = self.queried.saturating_sub(self.hit);
        self.computed.saturating_sub(fresh)
    }
}

impl<'a> Facts<'a> {
    pub(super) fn of(
        case: &'a Case<'a>,
        timelines: &'a Timelines,
        gaps: &'a TokenGaps,
        first: &'a FirstTokens,
    ) -> Facts<'a> {
        let mut sums = Sums::of(timelines);
        if timelines.is_empty() {
            sums.seen_by_client(case);
        }
        let fresh = case.ended_well().map(|row| {
            let cached = match sums.hit {
                0 if !timelines.is_empty() => Some(0),
                _ => row.cached_tokens,
            }?;
            let prompt = row.prompt_tokens.unwrap_or(row.prompt_tokens_planned);
            Some(u64::from(prompt.saturating_sub(cached)))
        });
        let fresh: Option<Vec<u64>> = fresh.collect();
        Facts {
            case,
            timelines,
            gaps,
            first,
            sums,
            longest_prompt: fresh.and_then(|all| all.into_iter().max()),
        }
    }

    pub(super) fn has_steps(&self) -> bool {
        !self.timelines.is_empty()
    }

    /// Output tokens that came, as a share of those that were asked for.
    pub(super) fn output_share(&self) -> Option<f64> {
        let (mut came, mut asked) = (0_u64, 0_u64);
        for row in self.case.ended_well() {
            came += u64::from(row.completion_tokens.unwrap_or(row.streamed_tokens));
            asked += u64::from(row.max_tokens);
        }
        (asked > 0).then(|| came as f64 / asked as f64)
    }
}

/// The most of these spans that have one instant in common.
fn most_at_once(spans: Vec<(u64, u64)>) -> u64 {
    let ends = spans.iter().map(|&(_, end)| (end, false));
    let mut events: Vec<(u64, bool)> = spans.iter().map(|&(start, _)| (start, true)).collect();
    events.extend(ends);
    // At one instant what ends does so before the next one begins.
    events.sort_unstable();
    let (mut now, mut most) = (0_u64, 0);
    for (_, begins) in events {
        // A span that ends before it begins does not count below zero.
        now = if begins {
            now + 1
        } else {
            now.saturating_sub(1)
        };
        most = most.max(now);
    }
    most
}

/// A hypothesis under construction.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) share: Option<f64>,
    pub(super) shown: bool,
    pub(super) speaks_for: Vec<String>,
    pub(super) against: Vec<String>,
    /// What decides and is missing.
    pub(super) decides: Vec<String>,
    /// What is missing and would make it surer.
    pub(super) missing: Vec<String>,
}

impl Draft {
    /// Weighs the share of a symptom that `what` took.
    pub(super) fn weigh(&mut self, what: &str, share: Option<f64>) {
        self.share = share;
        let Some(share) = share else { return };
        let text = format!("{what} {:.0} % of what they have more", 100.0 * share);
        if share >= MAIN {
            self.shown = true;
            self.speaks_for.push(text);
        } else if share < MINOR {
            self.against
                .push(format!("{what} only {:.0} %", 100.0 * share));
        } else {
            self.missing.push(format!("a clear share: {text}"));
        }
    }

    fn done(
        mut self,
        id: &'static str,
        claim: &'static str,
        name: SymptomName,
        symptoms: &[Symptom],
    ) -> Hypothesis {
        match symptoms
            .iter()
            .find(|s| s.name == name)
            .and_then(|s| s.present)
        {
            Some(true) => {}
            Some(false) => self
                .against
                .push(format!("the run shows no {}", name.words())),
            None => self
                .decides
                .push(format!("enough measurements to see {}", name.words())),
        }
        let state = match (self.against.is_empty(), self.decides.is_empty()) {
            (false, _) => State::Against,
            (true, true) if self.shown => State::Supported,
            _ => State::Open,
        };
        let mut missing = self.decides;
        missing.append(&mut self.missing);
        Hypothesis {
            id,
            claim,
            symptom: name,
            state,
            share: self.share,
            speaks_for: self.speaks_for,
            against: self.against,
            missing,
            experiment: Experiment::default(),
        }
    }
}

/// All hypotheses in the order of a table.
pub(super) fn judged(facts: &Facts<'_>, symptoms: &[Symptom]) -> Vec<Hypothesis> {
    let (gaps, first) = (SymptomName::TokenGaps, SymptomName::FirstTokens);
    vec![
        chunks(facts).done(
            "unbounded_chunks",
            "prompts are computed whole, and every stream waits for them",
            gaps,
            symptoms,
        ),
        contention(facts).done(
            "lock_contention",
            "the engine waits for locks of its host before each step",
            gaps,
            symptoms,
        ),
        bandwidth(facts).done(
            "decode_bandwidth",
            "decode steps take as long as reading the keys and values takes",
            gaps,
            symptoms,
        ),
        preemption(facts).done(
            "preemption_thrashing",
            "requests lose their blocks and compute them again",
            gaps,
            symptoms,
        ),
        reservation(facts).done(
            "pool_reservation",
            "room is kept for output that never comes, while requests wait",
            first,
            symptoms,
        ),
        eviction(facts).done(
            "eviction_thrashing",
            "cached prefixes are evicted before they are asked for again",
            first,
            symptoms,
        ),
    ]
}
