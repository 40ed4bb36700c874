//! SGLang's admission: tokens set aside for the output of running requests.
//!
//! How many tokens running requests will still generate is not known; `max_tokens` is an upper
//! bound that few reach. Admission therefore reserves a share of it, the new-token ratio. The
//! ratio starts high, falls linearly while nothing goes wrong, and is set to what the running
//! requests have used of their bound when it went wrong and requests had to be retracted.

use pb_contract::ReservedDecodeOptions;

use crate::error::PlanError;
use crate::policy::{Observation, SeqView, View};
use crate::step::Step;

/// Share of `max_tokens` reserved at the start, before `conservativeness`.
const INITIAL_RATIO: f64 = 0.7;
/// Least share, as a part of the initial one.
const LEAST_PART: f64 = 0.14;
/// Decode steps in which the ratio falls from its initial to its least value.
const DECAY_STEPS: f64 = 600.0;
/// Tokens that each running request should be able to generate after a retraction.
const STEPS_AFTER_RETRACTION: usize = 20;

/// The options of the reservation and the current ratio.
#[derive(Clone, Debug)]
pub(crate) struct Reserve {
    options: ReservedDecodeOptions,
    initial: f64,
    ratio: f64,
}

impl Reserve {
    pub(crate) fn new(options: ReservedDecodeOptions) -> Result<Self, PlanError> {
        let c = options.conservativeness;
        if !(c.is_finite() && c > 0.0) {
            return Err(PlanError::Setting {
                key: "scheduling.reserved_decode.conservativeness",
                value: c.to_string(),
                problem: "it scales a share of max_tokens",
                fix: "set a number above 0, for example 1.0",
            });
        }
        let positive = [
            (
                "scheduling.reserved_decode.clip_max_new_tokens",
                options.clip_max_new_tokens,
            ),
            (
                "scheduling.reserved_decode.max_prefill_tokens",
                options.max_prefill_tokens,
            ),
        ];
        if let Some(&(key, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(PlanError::Zero { key });
        }
        let initial = (INITIAL_RATIO * c).min(1.0);
        Ok(Reserve {
            options,
            initial,
            ratio: initial,
        })
    }

    /// Moves the ratio after a step.
    pub(crate) fn observe(&mut self, step: &Observation) {
        let least = LEAST_PART * self.initial;
        if step.running == 0 {
            self.ratio = self.initial;
        } else if step.preempted > 0 {
            let used = (step.generated + STEPS_AFTER_RETRACTION * step.running) as f64;
            self.ratio = (used / (step.max_new_tokens + 1) as f64).min(1.0);
        } else if step.decode_seqs > 0 {
            let decay = (self.initial - least) / DECAY_STEPS;
            self.ratio = (self.ratio - decay).max(least);
        }
    }

    /// Output tokens of a request that count at most.
    fn output_tokens(&self, seq_remaining: usize) -> usize {
        seq_remaining.min(self.options.clip_max_new_tokens)
    }
}

/// Whether the next waiting request may be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Continue,
    Stop,
}

/// What a step may still admit.
pub(crate) struct Budgets<'a> {
    reserve: &'a Reserve,
    page: usize,
    /// Tokens reserved for output: of running decodes, and of the prompts of this step.
    reserved: f64,
    /// Prompt tokens left.
    input: usize,
    /// Prompt tokens left for chunks; none when prompts are not cut.
    chunk: Option<usize>,
    /// Nothing ran before this step.
    idle: bool,
}

impl<'a> Budgets<'a> {
    /// Budgets at the start of a step that may hold decodes already.
    pub(crate) fn new(
        reserve: &'a Reserve,
        chunked: bool,
        step: &Step<'_>,
        view: &View<'_>,
    ) -> Self {
        let decodes = view.running.iter().filter(|seq| seq.is_decode());
        let output: usize = decodes
            .map(|seq| reserve.output_tokens(seq.remaining))
            .sum();
        Budgets {
            reserve,
            page: step.memory().block_size(),
            reserved: output as f64 * reserve.ratio,
            input: reserve.options.max_prefill_tokens,
            chunk: chunked.then_some(step.budget),
            idle: view.running.is_empty(),
        }
    }

    /// Tokens that a chunk may have.
    pub(crate) fn chunk_tokens(&self) -> usize {
        self.chunk.unwrap_or(usize::MAX)
    }

    /// Charges `tokens` prompt tokens, in whole pages. `output` is what the request may still
    /// generate, on its last chunk; earlier chunks reserve nothing.
    pub(crate) fn charge(&mut self, tokens: usize, output: Option<usize>) {
        let pages = tokens.next_multiple_of(self.page);
        self.input = self.input.saturating_sub(pages);
        match output {
            Some(remaining) => {
                self.chunk = self.chunk.map(|chunk| chunk.saturating_sub(pages));
                self.reserved += self.reserve.output_tokens(remaining) as f64;
            }
            // One partial prompt at a time.
            None => self.chunk = Some(0),
        }
    }

    /// Tries to admit a waiting request: whole if it fits, else its first whole pages.
    pub(crate) fn add(&mut self, step: &mut Step<'_>, seq: &SeqView, limit: usize) -> Outcome {
        let exhausted = self.input == 0 || self.chunk == Some(0) || step.budget == 0;
        if exhausted || !step.has_place(seq) {
            return Outcome::Stop;
        }
        let first = step.used == 0 && self.idle;
        let hit_tokens = step.hit_tokens(seq);
        let left = seq.num_tokens - hit_tokens;
        // A request that is alone is admitted whatever it may generate: all blocks are its own.
        if !first && !self.leaves_room(step, seq, hit_tokens, left) {
            return Outcome::Stop;
        }
        let pages = left.next_multiple_of(self.page);
        if pages >= self.input && step.used > 0 {
            return Outcome::Stop;
        }
        let whole = pages <= self.chunk_tokens() && left <= limit;
        let count = if whole {
            left
        } else {
            let chunk = self.chunk_tokens() / self.page * self.page;
            chunk.min(limit).min(left)
        };
        if count == 0 || count > step.budget || !step.admit(seq, hit_tokens, count) {
            return Outcome::Stop;
        }
        self.charge(count, whole.then_some(seq.remaining));
        Outcome::Continue
    }

    /// Whether the request, its output and everything reserved stay below the free blocks.
    fn leaves_room(&self, step: &Step<'_>, seq: &SeqView, hit_tokens: usize, left: usize) -> bool {
        let memory = step.memory();
        let blocks = memory.blocks_needed(seq.id, 0, hit_tokens, left);
        let total = blocks * self.page + self.reserve.output_tokens(seq.remaining);
        let free = (memory.free_blocks() * self.page) as f64;
        (total as f64) < free - self.reserved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(decode_seqs: usize, preempted: usize, running: usize) -> Observation {
        Observation {
            decode_seqs,
            preempted,
            running,
            generated: 50,
            max_new_tokens: 399,
            ..Observation::default()
        }
    }

    #[test]
    fn the_ratio_falls_in_600_steps_and_is_set_by_retraction() {
        let mut reserve = Reserve::new(ReservedDecodeOptions::default()).unwrap();
        assert_eq!(reserve.ratio, 0.7);
        (0..300).for_each(|_| reserve.observe(&step(4, 0, 4)));
        // Half way between 0.7 and 0.14 * 0.7 = 0.098.
        assert!((reserve.ratio - 0.399).abs() < 1e-9, "{}", reserve.ratio);
        // A step of prompts alone changes nothing.
        reserve.observe(&step(0, 0, 4));
        assert!((reserve.ratio - 0.399).abs() < 1e-9);
        (0..400).for_each(|_| reserve.observe(&step(4, 0, 4)));
        assert!((reserve.ratio - 0.098).abs() < 1e-9, "{}", reserve.ratio);
        // (50 + 20 * 4) / (399 + 1)
        reserve.observe(&step(4, 1, 4));
        assert_eq!(reserve.ratio, 0.325);
        reserve.observe(&step(0, 0, 0));
        assert_eq!(reserve.ratio, 0.7);
    }

    #[test]
    fn conservativeness_scales_the_start_up_to_everything() {
        let initial = |conservativeness| {
            let options = ReservedDecodeOptions {
                conservativeness,
                ..ReservedDecodeOptions::default()
            };
            Reserve::new(options).map(|reserve| reserve.ratio)
        };
        assert_eq!(initial(0.5), Ok(0.35));
        assert_eq!(initial(2.0), Ok(1.0));
        let message = initial(0.0).unwrap_err().to_string();
        assert!(message.contains("conservativeness = 0"), "{message}");
        assert!(initial(f64::NAN).is_err());
    }
}
