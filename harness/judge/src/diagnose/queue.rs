//! How late first tokens are, and what requests waited for in the queue.
//!
//! The rows of the steps count waiting requests, so the time that all requests together wait is the
//! sum over steps of the step's time with the number waiting (Little's law). What kept them waiting
//! is told by the state of the engine in that step.

use pb_contract::RequestRow;
use pb_record::metrics::request_metrics;

use super::account::{SYMPTOM_FACTOR, SYMPTOM_NS, Step, Timelines};
use super::case::{Case, EngineFacts};
use super::document::{Symptom, SymptomName};

/// Fewest requests that are looked at.
const LEAST_REQUESTS: usize = 20;
/// The latest first tokens, of a hundred; at least two.
const SLOW_PERCENT: usize = 10;
/// The earliest, of a hundred.
const CALM_PERCENT: usize = 25;

/// What keeps waiting requests out in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeps {
    /// The step computes prompts of earlier requests.
    Busy,
    /// Not even the shortest prompt would find blocks.
    PoolFull,
    /// As many requests run as may.
    Slots,
    /// Nothing of these: the longest prompt would find blocks and a slot.
    HeldBack,
    /// Cannot be told.
    Unclear,
}

/// First tokens and the queue.
#[derive(Debug, Default)]
pub(super) struct FirstTokens {
    n: usize,
    /// Mean of the earliest and of the latest in ns.
    means: Option<(f64, f64)>,
    /// All of them together, in ns.
    total_ns: f64,
    /// Of this, the client's own delay.
    lag_ns: f64,
    /// Waiting time of all requests, by what kept them; `None` without steps.
    pub(super) queue: Option<Queue>,
}

/// Waiting time in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Queue {
    pub(super) total_ns: f64,
    pub(super) busy_ns: f64,
    pub(super) full_ns: f64,
    pub(super) slots_ns: f64,
    pub(super) held_ns: f64,
}

impl Queue {
    /// As a sentence: the shares of what keeps requests waiting.
    pub(super) fn words(&self) -> String {
        let of = |ns: f64| 100.0 * ns / self.total_ns.max(1.0);
        format!(
            "of the waiting, {:.0} % is behind earlier prompts, {:.0} % for blocks, {:.0} % for a \
             slot, {:.0} % with blocks and slots to spare",
            of(self.busy_ns),
            of(self.full_ns),
            of(self.slots_ns),
            of(self.held_ns)
        )
    }
}

/// Blocks that the shortest and the longest prompt of the arm need.
#[derive(Clone, Copy, Debug)]
struct Need {
    least: usize,
    most: usize,
}

impl Need {
    fn of(case: &Case<'_>) -> Option<Need> {
        let block_size = case.engine.block_size.filter(|size| *size > 0)?;
        let blocks = |row: &RequestRow| (row.prompt_tokens_planned as usize).div_ceil(block_size);
        let least = case.requests().map(blocks).min()?;
        let most = case.requests().map(blocks).max()?;
        Some(Need { least, most })
    }
}

/// What keeps requests waiting in a step.
fn keeps(step: &Step, engine: &EngineFacts, need: Option<Need>) -> Keeps {
    let row = &step.row;
    if row.prefill_tokens > 0 {
        return Keeps::Busy;
    }
    let (Some(need), Some(slots)) = (need, engine.max_num_seqs) else {
        return Keeps::Unclear;
    };
    let available = row.free_blocks.saturating_add(row.reclaimable_blocks);
    if row.running >= slots {
        Keeps::Slots
    } else if available < need.least {
        Keeps::PoolFull
    } else if available >= need.most.saturating_add(row.running) {
        // Every running request may need one more block at once.
        Keeps::HeldBack
    } else {
        Keeps::Unclear
    }
}

fn queue(case: &Case<'_>, timelines: &Timelines) -> Option<Queue> {
    if timelines.is_empty() {
        return None;
    }
    let need = Need::of(case);
    let mut queue = Queue::default();
    for step in timelines.steps() {
        let waited = step.wall_ns * step.row.waiting as f64;
        queue.total_ns += waited;
        match keeps(step, &case.engine, need) {
            Keeps::Busy => queue.busy_ns += waited,
            Keeps::PoolFull => queue.full_ns += waited,
            Keeps::Slots => queue.slots_ns += waited,
            Keeps::HeldBack => queue.held_ns += waited,
            Keeps::Unclear => {}
        }
    }
    Some(queue)
}

impl FirstTokens {
    pub(super) fn of(case: &Case<'_>, timelines: &Timelines) -> FirstTokens {
        let mut ttfts = Vec::new();
        let mut lag_ns = 0.0;
        for row in case.ended_well() {
            let metrics = request_metrics(row);
            ttfts.extend(metrics.ttft_ns.map(|ns| ns as f64));
            lag_ns += metrics.driver_lag_ns.unwrap_or(0) as f64;
        }
        ttfts.sort_by(f64::total_cmp);
        let n = ttfts.len();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let means = (n >= LEAST_REQUESTS).then(|| {
            let slow = (n * SLOW_PERCENT / 100).max(2);
            (
                mean(&ttfts[..n * CALM_PERCENT / 100]),
                mean(&ttfts[n - slow..]),
            )
        });
        FirstTokens {
            n,
            means,
            total_ns: ttfts.iter().sum(),
            lag_ns,
            queue: queue(case, timelines),
        }
    }

    fn present(&self) -> Option<bool> {
        let (calm, slow) = self.means?;
        Some(slow >= SYMPTOM_FACTOR * calm && slow - calm >= SYMPTOM_NS)
    }

    /// Waiting as a share of all time to first tokens; absent without steps.
    pub(super) fn queue_share(&self) -> Option<f64> {
        let queue = self.queue?;
        // What preempted requests wait again is no part of a first token.
        (self.total_ns > 0.0).then(|| (queue.total_ns / self.total_ns).min(1.0))
    }

    pub(super) fn symptom(&self) -> Symptom {
        let ms = |ns: f64| ns / 1e6;
        let mut text = match self.means {
            None => format!(
                "{} first tokens: fewer than the {LEAST_REQUESTS} that are needed",
                self.n
            ),
            Some((calm, slow)) => format!(
                "the latest tenth of {} first tokens comes after {:.1} ms on average, the earliest \
                 quarter after {:.1} ms; a symptom is at least {SYMPTOM_FACTOR:.0} times as late",
                self.n,
                ms(slow),
                ms(calm)
            ),
        };
        if self.total_ns > 0.0 {
            let lag = 100.0 * self.lag_ns / self.total_ns;
            text.push_str(&format!(
                ". Of all that time the client's own delay is {lag:.1} %"
            ));
        }
        if let Some((queue, share)) = self.queue.zip(self.queue_share()) {
            text.push_str(&format!(", waiting {:.0} %", 100.0 * share));
            if queue.total_ns > 0.0 {
                text.push_str(&format!("; {}", queue.words()));
            }
        }
        Symptom {
            name: SymptomName::FirstTokens,
            present: self.present(),
            n: self.n as u64,
            calm_ms: self.means.map(|(calm, _)| ms(calm)),
            slow_ms: self.means.map(|(_, slow)| ms(slow)),
            text,
            parts: Vec::new(),
            leading: None,
        }
    }
}
