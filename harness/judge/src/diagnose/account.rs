//! Where the time between two tokens went, by the engine's own steps.
//!
//! A decoding request gets one token a step. So the gap before a token is made of the steps that
//! ended within it: the one that computed the token, steps that computed prompts only, steps in
//! which other requests decoded and this one did not, and what no step accounts for. Client and
//! engine must be on one clock (one machine, or a simulation); a token arrives after the end of
//! its step, by less than the step takes.

use std::collections::BTreeMap;

use pb_contract::{Nanos, StepRow, TokenRow};

use super::case::Case;
use super::document::{PartTime, Symptom, SymptomName};

/// Fewest gaps that are looked at.
pub(super) const LEAST_GAPS: usize = 200;
/// The longest gaps: so many of a hundred, but at least [`LEAST_SLOW`].
const SLOW_PERCENT: usize = 1;
/// Fewest gaps that a mean is taken of.
const LEAST_SLOW: usize = 20;
/// The undisturbed gaps: the shortest so many of a hundred.
const CALM_PERCENT: usize = 25;
/// A symptom is there when the longest are so many times the undisturbed ones: "tripled".
pub(super) const SYMPTOM_FACTOR: f64 = 3.0;
/// And longer by at least this, in nanoseconds.
pub(super) const SYMPTOM_NS: f64 = 1e6;

/// Parts of the time of a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Matrix products and attention of prompt rows.
    Prefill,
    /// Matrix products of decode rows.
    DecodeGemm,
    /// Attention of decode rows: reading keys and values.
    DecodeAttention,
    /// The engine waiting for its commands and locks.
    LockWait,
    /// Planning, block allocation, building the batch.
    Host,
    /// Sampling, norms, bookkeeping.
    Rest,
    /// Between steps, beyond the lock wait.
    Idle,
    /// Steps in which others decoded and this request did not.
    Skipped,
    /// What no step accounts for: delivery, the network, the client.
    Outside,
}

impl Part {
    /// All parts, in the order of a table.
    pub const ALL: [Part; 9] = [
        Part::Prefill,
        Part::DecodeGemm,
        Part::DecodeAttention,
        Part::LockWait,
        Part::Host,
        Part::Rest,
        Part::Idle,
        Part::Skipped,
        Part::Outside,
    ];

    /// Name in documents.
    pub fn name(self) -> &'static str {
        match self {
            Part::Prefill => "prefill",
            Part::DecodeGemm => "decode_gemm",
            Part::DecodeAttention => "decode_attention",
            Part::LockWait => "lock_wait",
            Part::Host => "host",
            Part::Rest => "rest",
            Part::Idle => "between_steps",
            Part::Skipped => "other_requests",
            Part::Outside => "outside_engine",
        }
    }
}

/// Nanoseconds by part.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Parts([f64; 9]);

impl Parts {
    /// Of one part.
    pub(super) fn of(&self, part: Part) -> f64 {
        self.0[part as usize]
    }

    fn add(&mut self, part: Part, ns: f64) {
        self.0[part as usize] += ns;
    }

    fn plus(&mut self, other: &Parts) {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a += b);
    }

    fn scale(&mut self, factor: f64) {
        self.0.iter_mut().for_each(|ns| *ns *= factor);
    }

    fn total(&self) -> f64 {
        self.0.iter().sum()
    }

    /// Of a step that took `wall_ns` since the one before it.
    fn of_step(row: &StepRow, wall_ns: f64) -> Parts {
        let ns = |nanos: Nanos| nanos.0 as f64;
        let duration = ns(row.duration_ns);
        let lock = ns(row.lock_wait_ns).min((wall_ns - duration).max(0.0));
        let mut parts = Parts::default();
        parts.add(
            Part::Prefill,
            ns(row.prefill_gemm_ns) + ns(row.prefill_attention_ns),
        );
        parts.add(Part::DecodeGemm, ns(row.decode_gemm_ns));
        parts.add(Part::DecodeAttention, ns(row.decode_attention_ns));
        parts.add(Part::Host, ns(row.schedule_ns) + ns(row.dispatch_ns));
        let rest = (duration - parts.total()).max(0.0);
        parts.add(Part::Rest, rest);
        parts.add(Part::LockWait, lock);
        parts.add(Part::Idle, (wall_ns - duration - lock).max(0.0));
        parts
    }
}

/// A step with the time since the end of the one before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) row: StepRow,
    pub(super) end_ns: u64,
    pub(super) wall_ns: f64,
    parts: Parts,
}

/// The steps of an arm by block, each in order.
#[derive(Debug, Default)]
pub(super) struct Timelines(BTreeMap<u32, Vec<Step>>);

impl Timelines {
    pub(super) fn of(case: &Case<'_>) -> Timelines {
        let mut rows: BTreeMap<u32, Vec<StepRow>> = BTreeMap::new();
        for step in case.data.steps.iter().filter(|step| step.arm == case.arm) {
            rows.entry(step.block).or_default().push(step.row);
        }
        let timeline = |(block, mut rows): (u32, Vec<StepRow>)| {
            rows.sort_by_key(|row| (row.start_ns, row.step));
            (block, walled(&rows))
        };
        Timelines(rows.into_iter().map(timeline).collect())
    }

    /// All steps.
    pub(super) fn steps(&self) -> impl Iterator<Item = &Step> {
        self.0.values().flatten()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn walled(rows: &[StepRow]) -> Vec<Step> {
    let mut before = None;
    let step = |row: &StepRow| {
        let end_ns = row.start_ns.0.saturating_add(row.duration_ns.0);
        let own = (row.duration_ns + row.lock_wait_ns).0;
        // An engine that was idle before the step waited for work, not for itself.
        let wall = match before {
            Some((end, true)) => end_ns.saturating_sub(end),
            _ => own,
        };
        before = Some((end_ns, row.running > 0 || row.waiting > 0));
        let wall_ns = wall as f64;
        Step {
            row: *row,
            end_ns,
            wall_ns,
            parts: Parts::of_step(row, wall_ns),
        }
    };
    rows.iter().map(step).collect()
}

/// A gap before a content event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gap {
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    parts: Parts,
}

impl Gap {
    fn ns(&self) -> u64 {
        self.to_ns - self.from_ns
    }
}

/// The gaps of one stream.
fn gaps_of(tokens: &[TokenRow], steps: &[Step]) -> Vec<Gap> {
    let ended = |at: Nanos| steps.partition_point(|step| step.end_ns <= at.0);
    let places: Vec<usize> = tokens.iter().map(|token| ended(token.at_ns)).collect();
    let mut gaps = Vec::with_capacity(tokens.len());
    for i in 1..tokens.len() {
        let (from, to) = (
            tokens[i - 1].at_ns.0,
            tokens[i].at_ns.0.max(tokens[i - 1].at_ns.0),
        );
        let came = match places[i] > places[i - 1] {
            true => came(tokens, &places, i),
            false => 0,
        };
        let parts = parts_of_gap(
            &steps[places[i - 1]..places[i].max(places[i - 1])],
            came,
            (to - from) as f64,
        );
        gaps.push(Gap {
            from_ns: from,
            to_ns: to,
            parts,
        });
    }
    gaps
}

/// Tokens of the event `i` and of those that follow without a step between: they were computed in
/// the gap before it and came late.
fn came(tokens: &[TokenRow], places: &[usize], i: usize) -> u64 {
    let events = tokens[i..].iter().zip(&places[i..]);
    let with_it = events.take_while(|&(_, &place)| place == places[i]);
    with_it
        .map(|(token, _)| u64::from(token.tokens.max(1)))
        .sum()
}

/// The step that computed the first token which came with this gap's event: the last step, or, of
/// several tokens at once, as many decoding steps earlier.
fn own_step(steps: &[Step], came: u64) -> usize {
    let late = usize::try_from(came.saturating_sub(1)).unwrap_or(usize::MAX);
    if late == 0 {
        return steps.len().saturating_sub(1);
    }
    let decoding = (0..steps.len())
        .rev()
        .filter(|&i| steps[i].row.decode_seqs > 0);
    decoding.take(late.saturating_add(1)).last().unwrap_or(0)
}

/// Divides `gap_ns` among the steps that ended in it, of which the last `came` that decoded
/// computed tokens of this stream. What follows the first of these is delivery.
fn parts_of_gap(steps: &[Step], came: u64, gap_ns: f64) -> Parts {
    let own = own_step(steps, came);
    let mut parts = Parts::default();
    for (i, step) in steps.iter().take(own + 1).enumerate() {
        if step.row.decode_seqs > 0 && i != own {
            parts.add(Part::Skipped, step.wall_ns);
        } else {
            parts.plus(&step.parts);
        }
    }
    let total = parts.total();
    if total > gap_ns {
        parts.scale(gap_ns / total);
    } else {
        parts.add(Part::Outside, gap_ns - total);
    }
    parts
}

/// The gaps of all streams: the longest and the undisturbed ones.
#[derive(Debug, Default)]
pub(super) struct TokenGaps {
    pub(super) n: usize,
    /// Whether the engine's steps are known.
    pub(super) has_steps: bool,
    pub(super) slow: Vec<Gap>,
    pub(super) calm: Vec<Gap>,
}

impl TokenGaps {
    pub(super) fn of(case: &Case<'_>, timelines: &Timelines) -> TokenGaps {
        let none = Vec::new();
        let mut gaps = Vec::new();
        for row in case.ended_well() {
            let steps = timelines.0.get(&row.block).unwrap_or(&none);
            gaps.extend(gaps_of(case.data.tokens_of(row), steps));
        }
        let n = gaps.len();
        let has_steps = !timelines.is_empty();
        if n < LEAST_GAPS {
            return TokenGaps {
                n,
                has_steps,
                ..TokenGaps::default()
            };
        }
        gaps.sort_by_key(|gap| (gap.ns(), gap.from_ns, gap.to_ns));
        let slow = (n * SLOW_PERCENT / 100).max(LEAST_SLOW);
        TokenGaps {
            n,
            has_steps,
            slow: gaps[n - slow..].to_vec(),
            calm: gaps[..n * CALM_PERCENT / 100].to_vec(),
        }
    }

    /// Mean length in ns of the undisturbed and of the longest.
    pub(super) fn means(&self) -> Option<(f64, f64)> {
        let mean = |gaps: &[Gap]| {
            let sum: f64 = gaps.iter().map(|gap| gap.ns() as f64).sum();
            (!gaps.is_empty()).then(|| sum / gaps.len() as f64)
        };
        mean(&self.calm).zip(mean(&self.slow))
    }

    /// Whether the longest stand out.
    pub(super) fn present(&self) -> Option<bool> {
        let (calm, slow) = self.means()?;
        Some(slow >= SYMPTOM_FACTOR * calm && slow - calm >= SYMPTOM_NS)
    }

    /// Share of `part` in what the longest have more than the undisturbed; absent without steps or
    /// without a symptom.
    pub(super) fn share(&self, part: Part) -> Option<f64> {
        if !self.has_steps || self.present() != Some(true) {
            return None;
        }
        let (calm, slow) = self.means()?;
        let more = mean_part(&self.slow, part) - mean_part(&self.calm, part);
        Some(more / (slow - calm))
    }

    pub(super) fn symptom(&self) -> Symptom {
        let means = self.means();
        let ms = |ns: f64| ns / 1e6;
        let text = match means {
            None => format!(
                "{} gaps between tokens: fewer than the {LEAST_GAPS} that are needed",
                self.n
            ),
            Some((calm, slow)) => format!(
                "the longest {} of {} gaps last {:.1} ms on average, the shortest quarter {:.1} \
                 ms; a symptom is at least {SYMPTOM_FACTOR:.0} times as long",
                self.slow.len(),
                self.n,
                ms(slow),
                ms(calm)
            ),
        };
        let part = |part: Part| {
            Some(PartTime {
                part: part.name(),
                calm_ms: ms(mean_part(&self.calm, part)),
                slow_ms: ms(mean_part(&self.slow, part)),
                share: self.share(part)?,
            })
        };
        Symptom {
            name: SymptomName::TokenGaps,
            present: self.present(),
            n: self.n as u64,
            calm_ms: means.map(|(calm, _)| ms(calm)),
            slow_ms: means.map(|(_, slow)| ms(slow)),
            text,
            parts: Part::ALL.into_iter().filter_map(part).collect(),
            leading: None,
        }
    }
}

fn mean_part(gaps: &[Gap], part: Part) -> f64 {
    let sum: f64 = gaps.iter().map(|gap| gap.parts.of(part)).sum();
    sum / gaps.len().max(1) as f64
}

#[cfg(test)]
mod tests;
